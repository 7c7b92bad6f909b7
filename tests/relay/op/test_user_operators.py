"""Operators declared by a program, as in TVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest

from ekiden import IRModule, relay, topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.op import OP_ATTRS, OP_NODES, OPS
from ekiden.ir.pass_context import PassContext
from ekiden.ir.type import TensorType, Type
from ekiden.relay.backend.executors import create_executor
from ekiden.relay.op import op as registry
from ekiden.runtime.errors import CompileError, RunError, TypeInferenceError

pytestmark = pytest.mark.quick

NAME = "test.scaled_sum"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    for table in (OPS, OP_NODES, *OP_ATTRS.values()):
        table.pop(NAME, None)


def _declared(relation: str = "Broadcast") -> relay.op.op.Op:
    registry.register(NAME, "The sum of two tensors, twice.")
    result = registry.get(NAME)
    result.set_num_inputs(2)
    result.add_argument("lhs", "Tensor", "a summand")
    result.add_argument("rhs", "Tensor", "a summand")
    result.add_type_rel(relation)
    return result


def _call(*shapes: Sequence[int]) -> relay.Function:
    params = [relay.var(f"x{i}", shape=s) for i, s in enumerate(shapes)]
    return relay.Function(params, relay.Call(registry.get(NAME), params))


def _typed(function: relay.Function) -> Type:
    return relay.transform.InferType()(IRModule.from_expr(function))["main"].body.checked_type


def test_registered_properties_are_returned() -> None:
    result = _declared()
    registry.register_pattern(NAME, registry.OpPattern.BROADCAST)
    registry.register_stateful(NAME, False)
    result.set_support_level(3)
    assert (result.num_inputs, result.support_level) == (2, 3)
    assert result.description == "The sum of two tensors, twice."
    assert OPS[NAME].arguments == ("lhs", "rhs")
    assert result.get_attr("TOpPattern") == registry.OpPattern.BROADCAST
    assert result.get_attr("TOpIsStateful") is False


def test_relations_by_name() -> None:
    result = _declared()
    assert _typed(_call((10, 4), (5, 10, 1))) == TensorType((5, 10, 4))
    result.add_type_rel("BroadcastComp")
    assert _typed(_call((10, 4), (5, 10, 1))) == TensorType((5, 10, 4), "bool")
    with pytest.raises(KeyError, match="no type relation 'Guess'; there are Identity, "):
        result.add_type_rel("Guess")


def test_relation_of_its_own_and_a_computation_run() -> None:
    result = _declared()

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        return types[0]

    result.add_type_rel("test.first", relation)
    relay.op.register_compute(
        NAME, lambda attrs, inputs, out: [topi.multiply(topi.add(*inputs), topi.add(*inputs))]
    )
    run = relay.create_executor("vm", IRModule.from_expr(_call((3,), (3,)))).evaluate()
    actual = run(np.float32([1, 2, 3]), np.float32([1, 1, 1]))
    np.testing.assert_array_equal(actual.numpy(), [4, 9, 16])


def test_operator_without_a_relation_says_so() -> None:
    registry.register(NAME)
    registry.get(NAME).set_num_inputs(1)
    with pytest.raises(TypeInferenceError, match="no type relation; give it one by add_type_rel"):
        _typed(_call((3,)))


def test_operator_names_are_unique_and_builtins_protected() -> None:
    _declared()
    with pytest.raises(CompileError, match="Operator test.scaled_sum is registered before"):
        registry.register(NAME)
    with pytest.raises(ValueError, match="operator 'add' is Ekiden's"):
        registry.get("add").set_num_inputs(3)
    assert registry.get("log").num_inputs == 1


def _unary() -> relay.op.op.Op:
    registry.register(NAME, "A tensor, twice.")
    result = registry.get(NAME)
    result.set_num_inputs(1)
    result.add_type_rel("Identity")
    registry.register_pattern(NAME, registry.OpPattern.ELEMWISE)
    return result


def _run(kind: str, argument: relay.Expr | None = None) -> np.ndarray:
    x = relay.var("x", shape=(3,))
    body = relay.nn.relu(relay.Call(registry.get(NAME), [x if argument is None else argument]))
    run = cast(
        "Callable[..., Any]",
        create_executor(kind, IRModule.from_expr(relay.Function([x], body))).evaluate(),
    )
    return cast("np.ndarray", run(np.float32([1, 2, 3])).numpy())


@pytest.mark.parametrize("kind", ["vm", "aot", "graph"])
@pytest.mark.parametrize("level", [0, 3])
def test_legalization_is_what_compile_makes_of_an_operator(kind: str, level: int) -> None:
    _unary()
    relay.transform.register_legalize(
        NAME, lambda attrs, inputs, types: relay.add(inputs[0], inputs[0])
    )
    with PassContext(opt_level=level):
        np.testing.assert_array_equal(_run(kind), [2, 4, 6])


@pytest.mark.parametrize(
    ("legal", "text"),
    [
        (lambda attrs, inputs, types: relay.argmax(inputs[0]), "expected Tensor.*got int32"),
        (lambda attrs, inputs, types: 3, "gave 3, expected an expression"),
        (lambda attrs, inputs, types: inputs[4], "raised IndexError"),
    ],
)
def test_legalization_of_another_type_is_told_by_the_operators_name(
    legal: Callable[..., object], text: str
) -> None:
    _unary()
    relay.transform.register_legalize(NAME, legal)  # type: ignore[arg-type]
    with pytest.raises(CompileError, match=rf"{NAME}.*legalization.*{text}"):
        _run("vm")


def test_reference_is_what_the_interpreter_runs_and_constants_fold_by() -> None:
    _unary()
    registry.register_reference(NAME, lambda attrs, data: data * 2)
    np.testing.assert_array_equal(_run("debug"), [2, 4, 6])
    constant = relay.const(np.float32([1, 2, 3]))
    np.testing.assert_array_equal(_run("vm", constant), [2, 4, 6])
    with pytest.raises(CompileError, match=f"{NAME}: no computation"):
        _run("vm")


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (lambda attrs, data: data.astype(np.float64), "gave .*float64.* says .*float32"),
        (lambda attrs, data: data[:2], r"gave Tensor\[\(2,\)"),
        (lambda attrs, data: (data, data), "gave .*, .*float32"),
        (lambda attrs, data: data[9], "raised IndexError"),
    ],
)
def test_reference_of_another_type_is_told_by_the_operators_name(
    reference: Callable[..., Any], text: str
) -> None:
    _unary()
    registry.register_reference(NAME, reference)
    with pytest.raises(RunError, match=f"{NAME}: its reference {text}"):
        _run("debug")


@pytest.mark.parametrize(
    ("compute", "text"),
    [
        (lambda attrs, inputs, out: [topi.cast(inputs[0], "int32")], "got int32"),
        (lambda attrs, inputs, out: [inputs[0] + 1.0, inputs[0]], "got float32.*, float32"),
        (lambda attrs, inputs, out: [topi.expand_dims(inputs[0], 0)], r"shape \(1, 3\)"),
        (lambda attrs, inputs, out: [], "got no tensor"),
        (lambda attrs, inputs, out: inputs[7], "raised IndexError"),
    ],
)
def test_computation_of_another_type_is_told_by_the_operators_name(
    compute: Callable[..., Any], text: str
) -> None:
    _unary()
    relay.op.register_compute(NAME, compute)
    with pytest.raises(CompileError, match=f"{NAME}: compute .*{text}"):
        _run("vm")
