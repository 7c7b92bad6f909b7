"""Nodes: immutable, compared by identity, copied and printed like dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import pytest

from ekiden.ir.attrs import Attrs
from ekiden.ir.prim import Add, IntImm, SizeVar, Var, const
from ekiden.ir.type import FuncType, TensorType
from ekiden.relay.expr import Call
from ekiden.relay.op.nn.conv import Conv2DAttrs

pytestmark = pytest.mark.quick


def test_fields_cannot_be_assigned_or_deleted() -> None:
    one = const(1)
    for change in (lambda: setattr(one, "value", 2), lambda: setattr(one, "other", 2),
                   lambda: delattr(one, "value")):  # fmt: skip
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert isinstance(one, IntImm) and one.value == 1


def test_tensor_has_no_dimension_below_0() -> None:
    with pytest.raises(ValueError, match=r"no dimension may be below 0, got \(3, -4\)"):
        TensorType((3, -4))


def test_constructors_take_places_names_and_defaults() -> None:
    a, b = Var("a"), Var(name="b", dtype="int32")
    assert (a.dtype, b.dtype, SizeVar("n", upper=4).upper) == ("int64", "int32", 4)
    assert Add(a, 1).dtype == "int64", "__post_init__ has run"
    for wrong in (lambda: Var(), lambda: Var("a", "int64", 3), lambda: Var("a", other=1)):
        with pytest.raises(TypeError):
            wrong()
    names = list(inspect.signature(Var).parameters)
    assert names == ["name", "dtype"] and "span" in inspect.signature(Call).parameters


def test_init_only_parameters_are_no_fields() -> None:
    kind = FuncType((), TensorType((), "float32"), [])
    assert [f.name for f in dataclasses.fields(kind)][:2] == ["arg_types", "ret_type"]
    assert "type_constraints" in inspect.signature(FuncType).parameters


def test_copies_and_pickles_have_the_same_fields() -> None:
    one = const(7, "int32")
    for result in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert isinstance(result, IntImm) and (result.value, result.dtype) == (7, "int32")
    changed = dataclasses.replace(one, value=8)  # type: ignore[type-var]
    assert isinstance(changed, IntImm) and (changed.value, changed.dtype) == (8, "int32")


def test_attributes_are_shown_by_name() -> None:
    attrs = Conv2DAttrs(strides=(2, 2))
    assert isinstance(attrs, Attrs)
    assert repr(attrs).startswith("Conv2DAttrs(strides=(2, 2), ")
