"""Scalar expressions."""

from __future__ import annotations

import pytest

from ekiden import relay
from ekiden.arith import Analyzer
from ekiden.ir.json import load_json, save_json
from ekiden.ir.op import Op
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    AnyDim,
    Cast,
    Div,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Mul,
    PrimExpr,
    Select,
    SizeVar,
    Sub,
    Var,
    cast,
    const,
)
from ekiden.ir.prim_visitor import expr_leaves, free_vars, has_unknown_dim

pytestmark = pytest.mark.quick


def test_constants_compare_as_numbers() -> None:
    shape = relay.var("x", shape=(1, 2)).type_annotation.shape  # type: ignore[union-attr]
    assert shape[0] == 1 and shape[1] != 1 and shape[1] == 2
    assert tuple(shape) == (1, 2)
    assert const(3) == IntImm("int32", 3) and const(3) != const(4)
    assert const(1) != "1" and const(1) != SizeVar("n")


def test_names_compare_by_identity() -> None:
    n = SizeVar("n")
    assert n == n and n != SizeVar("n")


def test_one_registry_of_operators() -> None:
    """Those of Relay and those of loop programs, by their names and with attributes."""
    names = Op.list_op_names()
    assert {"nn.relu", "tir.exp", "tir.call_packed", "call_lowered"} <= set(names)
    exp = Op.get("tir.exp")
    assert exp is not Op.get("exp") and Op.get("exp").definition.name == "exp"
    assert exp.get_attr("TCallEffectKind") == 1
    assert Op.get("tir.call_packed").get_attr("TCallEffectKind") == 3
    exp.set_attr("mine", 5)
    assert exp.get_attr("mine") == 5 and exp.get_attr("TOpPattern") is None
    exp.reset_attr("mine")
    assert load_json(save_json(exp)) is exp
    x = Var("x", "float32")
    call = Intrinsic("float32", exp, [x])  # type: ignore[arg-type]  # TVM's order
    assert (call.op, call.args, call.dtype) == ("exp", (x,), "float32")
    with pytest.raises(KeyError, match=r"no operator 'tir\.exq'; did you mean"):
        Op.get("tir.exq")


def test_classes_make_the_node_that_they_name() -> None:
    """As TVM's do: no dtype, no folding, numbers beside expressions."""
    x, y = Var("x", "int32"), Var("y", "int64")
    for kind in (Add, Sub, Mul, Div, FloorDiv, FloorMod, Min, Max):
        result = kind(x, 0)
        assert type(result) is kind and result.a is x and result.dtype == "int32"
        assert isinstance(result.b, IntImm) and result.b.dtype == "int32"
    for kind in (EQ, NE, LT, LE, GT, GE):
        assert kind(x, x).dtype == "bool"
    assert Select(LT(x, 1), x, 2).dtype == "int32"
    cast_x = Cast("float32", x)  # type: ignore[arg-type]  # TVM's order
    assert (cast_x.value, cast_x.dtype) == (x, "float32")
    with pytest.raises(TypeError, match="Add: operands must have one dtype, got int32 and int64"):
        Add(x, y)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (const(300), "int8", 44),
        (const(-1), "uint8", 255),
        (const(2**31), "int32", -(2**31)),
        (const(-1.5), "int32", -1),
        (const(2), "bool", 1),
    ],
)
def test_casts_of_constants_are_numbers_of_their_dtype(
    value: PrimExpr, dtype: str, expected: int
) -> None:
    result = cast(value, dtype)
    assert isinstance(result, IntImm) and (result.value, result.dtype) == (expected, dtype)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3e10])
def test_floats_without_an_integer_stay_casts(value: float) -> None:
    result = cast(const(value), "int32")
    assert isinstance(result, Cast)
    assert isinstance(Analyzer().rewrite_simplify(result), Cast)


def test_floor_division_of_floats_by_one_rounds() -> None:
    x, i = Var("x", "float32"), Var("i")
    assert isinstance(x // 1, FloorDiv) and x / 1 is x and i // 1 is i


def test_leaves_are_unique_and_in_order_of_appearance() -> None:
    n, m, unknown = SizeVar("n"), SizeVar("m"), AnyDim()
    part = m * 2 + n
    assert expr_leaves(part) == (m, n) and not has_unknown_dim(part)
    whole = (n // 2) * part + unknown
    assert expr_leaves(whole) == (n, m, unknown) == expr_leaves(whole) and has_unknown_dim(whole)
    assert free_vars(part, whole) == [m, n] and expr_leaves(whole + const(1)) == expr_leaves(whole)
