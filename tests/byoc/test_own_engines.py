"""Engines of the user's own: functions in Python over the tensors of a region."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import ekiden
from comparison import Array
from ekiden import byoc, relay
from ekiden.backend.external import register_external
from ekiden.relay.dataflow_pattern import is_op, wildcard
from ekiden.relay.expr import Function
from ekiden.relay.transform.external.merge_composite import PatternEntry
from ekiden.runtime import Tensor
from ekiden.runtime.errors import RunError

Run = Callable[..., None]


class OwnEngine:
    """An engine of one operator, which runs it by a function of its inputs and outputs."""

    def __init__(self, name: str, operator: str, run: Run) -> None:
        self.name, self._operator, self._run = name, operator, run

    def patterns(self) -> Sequence[PatternEntry]:
        return [(f"{self.name}.op", is_op(self._operator)(wildcard()))]

    def compile(self, function: Function) -> bytes:
        return b"code"

    def load(self, symbol: str, code: bytes) -> Run:
        return self._run


def run_region(name: str, operator: str, dtype: str, run: Run, value: Array) -> Array:
    byoc.register(OwnEngine(name, operator, run))
    zero = f'cast(0, dtype="{dtype}")'
    text = f"def @main(%x: Tensor[(n, 3), {dtype}]) {{ add({operator}(%x), {zero}) }}"
    result: Array = ekiden.compile(byoc.partition(relay.parse(text), name))(value).numpy()
    return result


@pytest.mark.parametrize("rows", [1, 40])
def test_output_that_an_engine_leaves_unwritten_is_an_error(rows: int) -> None:
    value = np.ones((rows, 3), np.float32)
    said = rf"engine 'idle': it wrote nothing to its output 0, a tensor \({rows}, 3\) float32"
    with pytest.raises(RunError, match=said):
        run_region("idle", "nn.relu", "float32", lambda x, out: None, value)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool"])
def test_elements_that_an_engine_leaves_unwritten_are_an_error(dtype: str) -> None:
    """The last row alone, also where its results are bytes of any value."""
    value = np.arange(900).reshape(300, 3).astype(dtype)

    def copy_all_but_the_last_row(x: Tensor, out: Tensor) -> None:
        out.numpy()[:-1] = x.numpy()[:-1]

    said = rf"engine 'partial_{dtype}': it left 3 elements of its output 0, a tensor \(300, 3\) "
    said += rf"{dtype}, unwritten, the first at \(299, 0\)"
    name = f"partial_{dtype}"
    with pytest.raises(RunError, match=said):
        run_region(name, "copy", dtype, copy_all_but_the_last_row, value)


def test_part_that_later_calls_leave_unwritten_is_an_error() -> None:
    calls: list[int] = []

    def copy_once(x: Tensor, out: Tensor) -> None:
        calls.append(1)
        rows = len(x.numpy()) if len(calls) == 1 else 150
        out.numpy()[:rows] = x.numpy()[:rows]

    byoc.register(OwnEngine("tiring", "nn.relu", copy_once))
    module = relay.parse("def @main(%x: Tensor[(300, 3), float32]) { nn.relu(%x) }")
    exe = ekiden.compile(byoc.partition(module, "tiring"))
    value = np.ones((300, 3), np.float32)
    np.testing.assert_array_equal(exe(value).numpy(), value)
    said = "engine 'tiring': it wrote only a part of its output 0"
    with pytest.raises(RunError, match=said):
        exe(value)


@pytest.mark.parametrize("byte", [0xA5, 0x5A, 0])
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_engine_may_write_any_bytes(rows: int, byte: int) -> None:
    """Those too that tell memory that nothing has written."""
    value = np.full((rows, 3), byte, np.uint8)
    copy: Run = lambda x, out: out.copy_from(x)  # noqa: E731
    np.testing.assert_array_equal(run_region("copier", "negative", "uint8", copy, value), value)


def test_output_that_is_unwritten_is_named() -> None:
    def negate_first(x: Tensor, first: Tensor, second: Tensor) -> None:
        first.copy_from(-x.numpy())

    register_external("half", lambda function: negate_first)
    x = relay.var("x", shape=(2, 3))
    region = Function([x], relay.Tuple([relay.negative(x), relay.tanh(x)]))
    for key, attr in (("Compiler", "half"), ("global_symbol", "half_0"), ("Primitive", 1)):
        region = region.with_attr(key, attr)
    y = relay.var("y", shape=(2, 3))
    exe = ekiden.compile(ekiden.IRModule.from_expr(Function([y], relay.Call(region, [y]))))
    with pytest.raises(RunError, match=r"engine 'half': it wrote nothing to its output 1"):
        exe(np.ones((2, 3), np.float32))


def test_engine_that_writes_nothing_is_left_out_of_auto(
    caplog: pytest.LogCaptureFixture,
) -> None:
    byoc.register(OwnEngine("lazy_softmax", "nn.softmax", lambda x, out: None))
    module = relay.parse("def @main(%x: Tensor[(2, 3), float32]) { nn.softmax(%x) }")
    value = np.zeros((2, 3), np.float32)
    with caplog.at_level("WARNING", "ekiden"):
        result = ekiden.compile(module, byoc="auto")(value).numpy()
    np.testing.assert_allclose(result, np.full((2, 3), 1 / 3), rtol=1e-6)
    assert "engine 'lazy_softmax': it wrote nothing to its output 0" in caplog.text
