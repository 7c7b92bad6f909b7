"""Live bytes at each kernel call, and those of parameters and results."""

from __future__ import annotations

import pytest
from pass_checks import program

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay.transform import AnnotateUsedMemory, InferType, ToANormalForm
from ekiden.relay.transform.language.let_chains import iter_bindings
from ekiden.runtime.errors import PassError

pytestmark = pytest.mark.quick


def kernel(shape: tuple[int, ...] = (10,), dtype: str = "int8") -> relay.Function:
    x = relay.var("x", shape=shape, dtype=dtype)
    return relay.Function([x], relay.nn.relu(x)).with_attr("Primitive", 1)


def annotated(body: relay.Expr) -> tuple[list[tuple[int, ...]], object]:
    """`used_memory` of each function in order, and `io_used_memory`."""
    module = InferType()(ToANormalForm()(InferType()(IRModule.from_expr(body))))
    main = AnnotateUsedMemory()(module)["main"]
    result: dict[relay.Function, tuple[int, ...]] = {}
    for _, value in iter_bindings(main.body):
        if isinstance(value, relay.Call) and isinstance(value.op, relay.Function):
            result[value.op] = value.op.attrs["used_memory"]
    return list(result.values()), main.attrs["io_used_memory"]


def test_later_read_values_are_live() -> None:
    x = relay.var("x", shape=(10,), dtype="int8")
    a, b = (kernel()(x) for _ in range(2))
    c, d = (kernel()(b) for _ in range(2))
    body = relay.concatenate([a, relay.Tuple([c, d])[0], d], axis=0)
    assert annotated(body) == ([(20,), (30,), (30,), (40,)], 40)


def test_function_has_a_number_for_each_of_its_calls() -> None:
    x, f = relay.var("x", shape=(10,), dtype="int8"), kernel()
    y = f(x)
    assert annotated(relay.concatenate([y, f(y), f(x)], axis=0)) == ([(20, 30, 40)], 40)


def test_unused_results_count_as_live() -> None:
    x = relay.var("x", shape=(3, 0, 2), dtype="float32")
    assert annotated(kernel((3, 0, 2), "float32")(x)) == ([(0,)], 0)
    x, y = relay.var("x", shape=(3,), dtype="float64"), relay.var("y", shape=(2,), dtype="int16")
    unread = relay.Let(relay.var("u"), kernel((2,), "int16")(y), kernel((3,), "float64")(x))
    assert annotated(unread) == ([(32,), (48,)], 52)


def test_branches_account_for_later_uses() -> None:
    x, c = relay.var("x", shape=(10,), dtype="int8"), relay.var("c", shape=(), dtype="bool")
    kept = kernel()(x)
    chosen = relay.If(c, kernel()(kernel()(x)), x)
    assert annotated(relay.add(kept, chosen)) == ([(21,), (30,), (30,)], 21)


def test_sizes_that_a_run_decides_are_refused() -> None:
    module = ToANormalForm()(program("def @main(%x: Tensor[(?, 2), int8]) { nn.relu(%x) }"))
    with pytest.raises(PassError, match="AnnotateUsedMemory does not support dynamic shapes"):
        AnnotateUsedMemory()(module)
