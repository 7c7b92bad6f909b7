"""Tensors and buffers are not iterable, since Python would index without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import ekiden
from ekiden import relay, te, tir
from ekiden.ir.op import OP_ATTRS, OP_NODES, OPS
from ekiden.relay.op import op as operators
from ekiden.runtime.errors import CompileError
from ekiden.tir.expr import ByteView

X = te.placeholder((3, 4), name="x")
BUFFER = tir.decl_buffer((3,), "float32", "b")


@pytest.fixture(autouse=True)
def _own_operators_are_forgotten() -> Iterator[None]:
    """Other tests take all operators that there are for Ekiden's."""
    before = set(OP_NODES)
    yield
    own = set(OP_NODES) - before
    for table in (OPS, OP_NODES, *OP_ATTRS.values()):
        for name in own:
            table.pop(name, None)


@pytest.mark.parametrize(
    "indexed",
    [te.placeholder((3,)), X, X[0], BUFFER, ByteView(BUFFER)],
    ids=["vector", "matrix", "row", "buffer", "bytes"],
)
def test_iterating_over_tensors_is_refused(indexed: object) -> None:
    with pytest.raises(TypeError, match="is not iterable"):
        list(indexed)  # type: ignore[call-overload]  # which is what is refused
    with pytest.raises(TypeError):
        0 in indexed  # type: ignore[operator]  # noqa: B015


def test_buffers_of_the_builder_are_not_iterated_over() -> None:
    builder = tir.ir_builder.create()
    with pytest.raises(TypeError, match="is not iterable"):
        list(builder.allocate("float32", (3,), "a"))


def double(attrs: object, inputs: list[te.Tensor], out_type: object) -> te.Tensor:
    return te.compute((8,), lambda i: inputs[0](i) * 2.0)


def run_own(name: str, compute: Callable[..., object]) -> object:
    """The result of a program of one operator, which is computed so."""
    operators.register(name, "an operator of a test")
    op = operators.get(name)
    op.set_num_inputs(1)
    op.add_argument("data", "Tensor", "what is doubled")
    op.add_type_rel(f"{name}.rel", lambda types, attrs: types[0])
    operators.register_pattern(name, operators.OpPattern.ELEMWISE)
    relay.op.register_compute(name, compute)
    x = relay.var("x", shape=(8,))
    module = ekiden.IRModule.from_expr(relay.Function([x], relay.Call(op, [x])))
    return ekiden.compile(module)


def test_compute_may_give_its_one_tensor_without_a_list() -> None:
    executable = run_own("test.alone", double)
    result = executable(np.ones(8, "float32"))  # type: ignore[operator]
    assert result.numpy().tolist() == [2.0] * 8


@pytest.mark.parametrize(
    ("number", "argument"),
    [(0, None), (1, 3), (2, "text"), (3, [None]), (4, [X, 3]), (5, (n for n in "ab"))],
)
def test_compute_that_gives_anything_else_is_refused_by_name(number: int, argument: object) -> None:
    name = f"test.wrong{number}"
    with pytest.raises(
        CompileError, match=rf"{name}.*expected a list of tensors \(te.Tensor\), got"
    ):
        run_own(name, lambda attrs, inputs, out_type: argument)
