"""Loops over vectors in C: as loops over elements where that is the same, and with loads that hang
on a condition done anyway where there is memory to read."""

from __future__ import annotations

import numpy as np
import pytest
from codegen_kernels import map_kernel

from ekiden import compile as compile_model
from ekiden import relay
from ekiden.codegen import c
from ekiden.codegen.c.scalarize import scalarize_vector_loop
from ekiden.codegen.llvm import link_image
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, cast, const
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, PrimFunc

TARGET = Target.parse("c")


def loop_of(index: PrimExpr, value: PrimExpr, var: Var, out: Buffer) -> For:
    """Four turns that store vectors."""
    return For(var, const(0), const(4), ForKind.SERIAL, BufferStore(out, value, (index,)))


def test_vector_loop_becomes_element_loop() -> None:
    text = c.emit(map_kernel(lambda v: cast(v, "float32x8"), ["int8"], "float32", 8, 64), TARGET)
    assert "i < 64" in text and "lane < 8" not in text


def test_non_elementwise_vector_loop_is_unchanged() -> None:
    """A vector that all turns share, one that moves with another step, a lane's own number."""
    i, x, out = Var("i"), Buffer("x", (const(64),)), Buffer("out", (const(64),))
    near = ramp(i * 8, 1, 8)
    assert scalarize_vector_loop(loop_of(near, BufferLoad(x, (near,)), i, out)) is not None
    assert (
        scalarize_vector_loop(loop_of(near, BufferLoad(x, (ramp(const(0), 1, 8),)), i, out)) is None
    )
    assert scalarize_vector_loop(loop_of(near, BufferLoad(x, (ramp(i * 4, 1, 8),)), i, out)) is None
    assert scalarize_vector_loop(loop_of(near, broadcast(BufferLoad(x, (i,)), 8), i, out)) is None
    assert scalarize_vector_loop(loop_of(ramp(i * 8, 2, 8), BufferLoad(x, (near,)), i, out)) is None


@pytest.mark.parametrize("dtype", ["int8", "float64", "bool"])
def test_scalarized_loop_of_every_dtype_in_place_and_out_of_place(dtype: str) -> None:
    """Of sizes that no vector divides, with two inputs of which one may give its memory."""
    text = (
        "def @main(%x: Tensor[(?), float32], %y: Tensor[(?), float32]) "
        f'{{ cast(add(multiply(%x, %y), %x), dtype="{dtype}") }}'
    )
    model = compile_model(relay.parse(text), target="c")
    for size in (0, 1, 7, 64, 1001):
        x, y = (np.arange(size) % n - 3.0 for n in (7, 5))
        result = model(x.astype("f"), y.astype("f"))
        np.testing.assert_array_equal(np.asarray(result), (x * y + x).astype(dtype))


def test_conditional_loads_are_speculated() -> None:
    """Lanes before the first element and behind the last read nothing."""
    i, x, out = Var("i"), Buffer("x", (const(32),)), Buffer("out", (const(32),))
    index = ramp(i * 8, 1, 8)
    value = const(-1.0, "float32")
    for shift in (-3, 3):
        at = ramp(i * 8 + shift, 1, 8)
        is_in = (at >= broadcast(const(0), 8)) & (at < broadcast(const(32), 8))
        load, none = BufferLoad(x, (at,)), broadcast(const(0.0, "float32"), 8)
        taken = call_intrin("if_then_else", is_in, load, none, dtype="float32x8")
        value = taken + broadcast(value, 8) if shift < 0 else value * taken
    func = PrimFunc((x, out), loop_of(index, value, i, out), {"global_symbol": "f"})
    text = c.emit(func, TARGET)
    assert text.count("lane < 8") == 2 and "} else {" in text
    kernel = load_image(link_image([c.compile_c(text, TARGET)], ["f"]))["f"]
    data, result = np.arange(1, 33, dtype="f"), np.zeros(32, "f")
    kernel(data, result)
    padded = np.pad(data, 3)
    np.testing.assert_array_equal(result, (padded[:32] - 1) * padded[6:38])
