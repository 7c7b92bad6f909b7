"""Lowering of single functions, and the implementations of an operator's strategy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import ekiden
from ekiden import IRModule, relay, te
from ekiden.ir.attrs import Attrs
from ekiden.ir.op import get as get_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.backend import te_compiler
from ekiden.relay.op.strategy import OpStrategy
from ekiden.runtime.errors import CompileError
from ekiden.target import Target

pytestmark = pytest.mark.quick


def _tripled(shape: Sequence[int]) -> relay.Function:
    x = relay.var("x", shape=shape)
    function = relay.Function([x], relay.add(relay.add(x, x), x))
    return relay.transform.InferType()(IRModule.from_expr(function))["main"]


def test_equal_functions_are_lowered_once_until_cleared() -> None:
    compiler = te_compiler.TECompiler()
    first, again = (compiler.lower(_tripled((10,)), "llvm") for _ in range(2))
    assert first.same_as(again) and len(list(compiler.items())) == 1
    assert not first.same_as(compiler.lower(_tripled(()), "llvm"))
    assert not first.same_as(compiler.lower(_tripled((10,)), "llvm -mcpu=x86-64"))
    assert first.funcs["main"] is first.prim_func
    compiler.clear()
    assert list(compiler.items()) == []
    assert not first.same_as(compiler.lower(_tripled((10,)), "llvm"))


def test_pass_context_is_part_of_the_lowering_cache_key() -> None:
    compiler, x, w = te_compiler.TECompiler(), *(relay.var(n, shape=(16, 16)) for n in "xw")
    dense = relay.Function([x, w], relay.nn.dense(x, w))
    first = compiler.lower(dense, "llvm")
    assert "tvmgen_other" in str(compiler.lower(dense, "llvm", "other").prim_func.name)
    with ekiden.transform.PassContext(config={"tir.disable_vectorize": True}):
        plain = compiler.lower(dense, "llvm")
        assert not plain.same_as(first) and plain.same_as(compiler.lower(dense, "llvm"))
    with (
        ekiden.transform.PassContext(config={"kernels.decisions": {"dense": "rows=99"}}),
        pytest.raises(CompileError, match="'rows' is one of"),
    ):
        compiler.lower(dense, "llvm")


def test_tensor_constants_are_kernel_arguments() -> None:
    x = relay.var("x", shape=(16,))
    added = relay.Function([x], relay.add(x, relay.const(np.ones(16, "float32"))))
    with pytest.raises(CompileError, match=r"one element, got one of \(16,\)"):
        te_compiler.get().lower(added, "llvm")


def test_jit_kernel_runs_immediately() -> None:
    assert te_compiler.get() is te_compiler.get()
    kernel = te_compiler.get().jit(_tripled((10,)), "llvm")
    x, y = ekiden.nd.array(np.arange(10, dtype="float32")), ekiden.nd.empty((10,))
    kernel(x, y)
    np.testing.assert_array_equal(y.numpy(), 3 * np.arange(10))


def _offers() -> list[str]:
    inputs = [te.placeholder((8,), "float32"), te.placeholder((8,), "float32")]
    kind = TensorType((8,))
    arguments = (get_op("add"), None, inputs, kind, "llvm")
    chosen, outputs = te_compiler.select_implementation(*arguments)
    assert [tuple(t.shape) for t in outputs] == [(8,)]
    valid = te_compiler.get_valid_implementations(*arguments)
    assert chosen.name in [item.name for item in valid]
    return [chosen.name, *sorted(item.name for item in valid)]


def test_strategy_implementations_are_selected_by_level(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _offers() == ["add", "add"]

    def strategy(
        attrs: Attrs | None, inputs: Sequence[te.Tensor], out: Type, target: Target
    ) -> OpStrategy:
        result = OpStrategy()
        for name, level in (("slow", 5), ("fast", 15), ("other", 10)):
            result.add_implementation(lambda a, x, o: [ekiden.topi.add(*x)], None, name, level)
        return result

    add = get_op("add")
    add.set_attr("FTVMStrategy", strategy)
    try:
        assert _offers() == ["fast", "fast", "other", "slow"]
    finally:
        add.reset_attr("FTVMStrategy")


def test_operator_without_a_kernel_has_no_implementation() -> None:
    with pytest.raises(CompileError, match="device_copy: there is no implementation for llvm"):
        te_compiler.get_valid_implementations(
            get_op("device_copy"), None, [te.placeholder((2,))], TensorType((2,)), "llvm"
        )
