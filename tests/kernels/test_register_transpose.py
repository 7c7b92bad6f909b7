"""Transpositions by square register tiles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import relay, te
from ekiden.codegen.build import build
from ekiden.ir.intrinsic import shuffle
from ekiden.ir.prim import Intrinsic, Var, const
from ekiden.kernels import schedule
from ekiden.kernels.micro_kernels.register_transpose import (
    TRANSPOSABLE_DTYPES,
    emit_interleave,
    emit_transpose,
    transpose_tile_size,
)
from ekiden.relay import op
from ekiden.target import Target
from ekiden.tir import interpreter
from ekiden.tir.expr import Buffer, BufferLoad, ramp
from ekiden.tir.stmt import BufferStore, PrimFunc
from ekiden.tir.transform import lower
from ekiden.tir.visitor import all_exprs, pre_order_stmts
from ekiden.topi import transpose
from long_runs import share
from processor import processors

SHAPES = [
    ((33, 50), (1, 0)),
    ((2, 17, 7, 9), (0, 2, 3, 1)),
    ((3, 20, 4, 36), (0, 2, 3, 1)),
    ((130, 3, 66), (2, 1, 0)),
    ((2, 3, 7, 29), (0, 2, 3, 1)),
    ((2, 1100, 2), (0, 2, 1)),
    ((3, 50, 4), (0, 2, 1)),
    ((1, 4, 1050), (0, 2, 1)),
]


def some(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)


@share(4)
@pytest.mark.parametrize("text", [*processors(), "c"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int16", "bool"])
def test_register_transposes_match_numpy(dtype: str, text: str) -> None:
    for shape, axes in SHAPES:
        x = relay.var("x", relay.tensor_type(shape, dtype))
        function = relay.Function((x,), op.transpose(x, axes))
        run = ekiden.compile(relay.IRModule.from_expr(function), text)
        data = some(shape, dtype)
        np.testing.assert_array_equal(run(data).numpy(), data.transpose(axes))  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [*processors(), "c"])
def test_sizes_known_at_run_time(text: str) -> None:
    n, m = (relay.SizeVar(name, "int64") for name in "nm")
    x = relay.var("x", shape=(2, n, m))
    run = ekiden.compile(
        relay.IRModule.from_expr(relay.Function((x,), op.transpose(x, (0, 2, 1)))), text
    )
    for shape in ((2, 1, 1), (2, 15, 16), (2, 16, 17), (2, 100, 65), (2, 0, 5), (2, 64, 128)):
        data = some(shape, "float32")
        np.testing.assert_array_equal(run(data).numpy(), data.transpose(0, 2, 1))  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [*processors(), "c"])
def test_bordered_pixels_of_bytes_are_transposed_for_sizes_known_at_run_time(text: str) -> None:
    """Lines shorter than a tile, of whole tiles, and whose last tile overlaps the one before."""
    h, w = (relay.SizeVar(name, "int64") for name in "hw")
    x = relay.var("x", shape=(1, 20, h, w))
    levels = op.cast(op.clip(op.round(op.divide(x, relay.const(np.float32(3)))), 0, 99), "uint8")
    body = op.transpose(op.nn.pad(levels, ((0, 0), (0, 0), (1, 1), (1, 1))), (0, 2, 3, 1))
    run = ekiden.compile(relay.IRModule.from_expr(relay.Function((x,), body)), text)
    for shape in ((1, 20, 3, 3), (1, 20, 2, 16), (1, 20, 5, 28), (1, 20, 1, 83), (1, 20, 2, 70)):
        data = some(shape, "float32")
        want = np.clip(np.round(data / np.float32(3)), 0, 99).astype("uint8")
        want = np.pad(want, ((0, 0), (0, 0), (1, 1), (1, 1))).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(run(data).numpy(), want)  # type: ignore[union-attr]


@share(4)
@pytest.mark.parametrize("text", [*processors(), "c"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_planes_of_floats_become_pixels_of_bytes(channels: int, dtype: str, text: str) -> None:
    """As images are quantised for a convolution: a border of the zero point, channels padded."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x, point = relay.var("x", shape=(2, channels, 5, 37)), relay.const(np.asarray(3, dtype))
    levels = op.add(
        op.round(op.multiply(x, relay.const(np.float32(50)))), op.cast(point, "float32")
    )
    image = op.nn.pad(
        op.cast(op.clip(levels, low, high), dtype), [(0, 0)] * 2 + [(1, 1)] * 2, point
    )
    pixels = op.transpose(image, (0, 2, 3, 1))
    if channels == 3:
        pixels = op.nn.pad(pixels, [(0, 0)] * 3 + [(0, 1)], relay.const(np.asarray(0, dtype)))
    run = ekiden.compile(relay.IRModule.from_expr(relay.Function((x,), pixels)), text)
    data = np.random.default_rng(0).standard_normal((2, channels, 5, 37)).astype("float32")
    expected = np.clip(np.round(data * np.float32(50)) + 3, low, high).astype(dtype)
    expected = np.pad(expected, [(0, 0)] * 2 + [(1, 1)] * 2, constant_values=3)
    expected = np.pad(expected.transpose(0, 2, 3, 1), [(0, 0)] * 3 + [(0, channels == 3)])
    np.testing.assert_array_equal(run(data).numpy(), expected)  # type: ignore[union-attr]


@share(4)
@pytest.mark.parametrize("text", [*processors(), "c"])
@pytest.mark.parametrize("columns", [5, 8, 16, 40])
def test_rows_of_bytes_become_words_of_panels(columns: int, text: str) -> None:
    """As computed weights are packed, in panels narrower than a vector of bytes too."""
    x = relay.var("x", relay.tensor_type((2, 3, 4, 2, columns), "int8"))
    function = relay.Function((x,), op.transpose(x, (0, 3, 1, 4, 2)))
    run = ekiden.compile(relay.IRModule.from_expr(function), text)
    data = some((2, 3, 4, 2, columns), "int8")
    np.testing.assert_array_equal(run(data).numpy(), data.transpose(0, 3, 1, 4, 2))  # type: ignore[union-attr]


def test_panel_of_few_columns_is_stored_in_words() -> None:
    """8 columns are fewer than the 16 lanes of a vector of bytes, and fill one of words."""
    data, target = te.placeholder((3, 4, 2, 8), "int8", "data"), Target.parse("llvm -mcpu=haswell")
    func = lower(schedule([data], [transpose(data, (2, 0, 3, 1))], target, "pack"), target)
    stores = [s for s in pre_order_stmts(func.body) if isinstance(s, BufferStore)]
    assert {s.value.dtype for s in stores} == {"int8x32"}


def test_transposed_elements_may_be_computed() -> None:
    """Of another type too, with other operands beside it, in either order."""
    x, y = relay.var("x", shape=(40, 70)), relay.var("y", shape=(70, 40))
    turned_x = op.transpose(x, (1, 0))
    for body, expected in (
        (op.add(turned_x, y), lambda a, b: a.T + b),
        (op.cast(op.multiply(turned_x, y), "int8"), lambda a, b: (a.T * b).astype("int8")),
        (op.transpose(op.add(turned_x, y), (1, 0)), lambda a, b: a + b.T),
        (op.where(op.less(y, relay.const(np.float32(0))), turned_x, y),
         lambda a, b: np.where(b < 0, a.T, b)),
    ):  # fmt: skip
        run = ekiden.compile(relay.IRModule.from_expr(relay.Function((x, y), body)))
        a, b = (np.random.default_rng(n).uniform(-5, 5, s).astype("f")
                for n, s in enumerate(((40, 70), (70, 40))))  # fmt: skip
        np.testing.assert_array_equal(run(a, b).numpy(), expected(a, b))  # type: ignore[union-attr]


@share(4)
@pytest.mark.quick
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_interleave_intrinsic_in_interpreter(lanes: int, count: int) -> None:
    x, out = (Buffer(name, (const(lanes * count),)) for name in ("x", "out"))
    rows = [BufferLoad(x, (ramp(const(n * lanes), 1, lanes),), f"float32x{lanes}")
            for n in range(count)]  # fmt: skip
    data = some((count, lanes), "float32")
    for apart, expected in ((False, data.T), (True, data.reshape(lanes, count).T)):
        body = emit_interleave(
            rows, lambda n, v: BufferStore(out, v, (ramp(const(n * lanes), 1, lanes),)), apart
        )
        actual = np.zeros(lanes * count, "float32")
        interpreter.run_prim_func(PrimFunc((x, out), body), data.reshape(-1), actual)
        np.testing.assert_array_equal(actual, expected.reshape(-1))


@share(4)
@pytest.mark.quick
@pytest.mark.parametrize("dtype", sorted(TRANSPOSABLE_DTYPES))
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_transpose_tile_in_interpreter(size: int, dtype: str) -> None:
    x, out = (Buffer(name, (const(size * size),), dtype) for name in ("x", "out"))
    rows = [
        BufferLoad(x, (ramp(const(n * size), 1, size),), f"{dtype}x{size}") for n in range(size)
    ]
    body = emit_transpose(rows, lambda n, v: BufferStore(out, v, (ramp(const(n * size), 1, size),)))
    data = some((size, size), dtype)
    result = np.zeros_like(data)
    interpreter.run_prim_func(PrimFunc((x, out), body), data.reshape(-1), result.reshape(-1))
    np.testing.assert_array_equal(result, data.T)


@pytest.mark.parametrize("text", ["c", "llvm"])
def test_transpose_tile_in_compiled_code(text: str) -> None:
    x, out = Buffer("x", (const(16),)), Buffer("out", (const(16),))
    rows = [BufferLoad(x, (ramp(const(n * 4), 1, 4),), "float32x4") for n in range(4)]
    body = emit_transpose(rows, lambda n, v: BufferStore(out, v, (ramp(const(n * 4), 1, 4),)))
    data, result = some((4, 4), "float32"), np.zeros((4, 4), "float32")
    build(PrimFunc((x, out), body), text, name="tile")["tile"](data.reshape(-1), result.reshape(-1))
    np.testing.assert_array_equal(result, data.T)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("cpu", "dtype", "size"),
    [("znver4", "float32", 16), ("x86-64-v3", "float32", 8), ("x86-64-v2", "float32", 4),
     ("znver4", "uint8", 16), ("x86-64-v2", "uint8", 16), ("znver4", "float64", 8),
     ("znver4", "int16", 16), ("znver4", "float16", 1), ("znver4", "bool", 1)],
)  # fmt: skip
def test_transpose_tile_size_follows_from_target(cpu: str, dtype: str, size: int) -> None:
    assert transpose_tile_size(dtype, Target(f"llvm -mcpu={cpu}")) == size
    assert transpose_tile_size(dtype, Target(f"c -mcpu={cpu}")) == 1


@pytest.mark.quick
def test_tile_takes_as_many_shuffles_as_it_should() -> None:
    def count(shape: tuple[int, int], dtype: str) -> int:
        x = te.placeholder(shape, dtype)
        output = schedule([x], [transpose(x, (1, 0))], Target("llvm -mcpu=znver4"), "kernel")
        result = all_exprs(output.body)
        return sum(isinstance(e, Intrinsic) and e.op == "shuffle" for e in result)

    assert count((64, 64), "float32") == 16 * 4
    assert count((64, 64), "uint8") == 16 * 4
    assert count((64, 64), "float64") == 8 * 3
    assert count((64, 3), "float32") == 3 * 2
    assert count((64, 5), "float32") == 4 * 2


@pytest.mark.quick
def test_shuffle_of_two_types_is_a_fault() -> None:
    a, b = Var("a", "float32x4"), Var("b", "int32x4")
    refused: Callable[[], object] = lambda: shuffle(a, b, [0, 4])  # noqa: E731
    with pytest.raises(AssertionError, match="float32x4 and int32x4"):
        refused()
