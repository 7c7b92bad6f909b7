"""Operators that a program declares itself, in TVM's steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from ekiden import IRModule, relay, topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.op import OP_ATTRS, OP_NODES, OPS
from ekiden.ir.type import TensorType, Type
from ekiden.relay.op import op as registry
from ekiden.runtime.errors import CompileError, TypeInferenceError

pytestmark = pytest.mark.quick

NAME = "test.scaled_sum"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    for table in (OPS, OP_NODES, *OP_ATTRS.values()):
        table.pop(NAME, None)


def _declared(relation: str = "Broadcast") -> relay.op.op.Op:
    registry.register(NAME, "The sum of two tensors, twice.")
    found = registry.get(NAME)
    found.set_num_inputs(2)
    found.add_argument("lhs", "Tensor", "a summand")
    found.add_argument("rhs", "Tensor", "a summand")
    found.add_type_rel(relation)
    return found


def _call(*shapes: Sequence[int]) -> relay.Function:
    params = [relay.var(f"x{i}", shape=s) for i, s in enumerate(shapes)]
    return relay.Function(params, relay.Call(registry.get(NAME), params))


def _typed(function: relay.Function) -> Type:
    return relay.transform.InferType()(IRModule.from_expr(function))["main"].body.checked_type


def test_what_was_said_is_known() -> None:
    found = _declared()
    registry.register_pattern(NAME, registry.OpPattern.BROADCAST)
    registry.register_stateful(NAME, False)
    found.set_support_level(3)
    assert (found.num_inputs, found.support_level) == (2, 3)
    assert found.description == "The sum of two tensors, twice."
    assert OPS[NAME].arguments == ("lhs", "rhs")
    assert found.get_attr("TOpPattern") == registry.OpPattern.BROADCAST
    assert found.get_attr("TOpIsStateful") is False


def test_relations_by_name() -> None:
    found = _declared()
    assert _typed(_call((10, 4), (5, 10, 1))) == TensorType((5, 10, 4))
    found.add_type_rel("BroadcastComp")
    assert _typed(_call((10, 4), (5, 10, 1))) == TensorType((5, 10, 4), "bool")
    with pytest.raises(KeyError, match="no type relation 'Guess'; there are Identity, "):
        found.add_type_rel("Guess")


def test_a_relation_of_its_own_and_a_computation_run() -> None:
    found = _declared()

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        return types[0]

    found.add_type_rel("test.first", relation)
    relay.op.register_compute(
        NAME, lambda attrs, inputs, out: [topi.multiply(topi.add(*inputs), topi.add(*inputs))]
    )
    run = relay.create_executor("vm", IRModule.from_expr(_call((3,), (3,)))).evaluate()
    got = run(np.float32([1, 2, 3]), np.float32([1, 1, 1]))
    np.testing.assert_array_equal(got.numpy(), [4, 9, 16])


def test_an_operator_without_a_relation_says_so() -> None:
    registry.register(NAME)
    registry.get(NAME).set_num_inputs(1)
    with pytest.raises(TypeInferenceError, match="no type relation; give it one by add_type_rel"):
        _typed(_call((3,)))


def test_names_are_taken_once_and_operators_of_the_house_stand() -> None:
    _declared()
    with pytest.raises(CompileError, match="Operator test.scaled_sum is registered before"):
        registry.register(NAME)
    with pytest.raises(ValueError, match="operator 'add' is Ekiden's"):
        registry.get("add").set_num_inputs(3)
    assert registry.get("log").num_inputs == 1
