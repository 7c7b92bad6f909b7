"""Register-tile convolutions against NumPy: strides, dilation, padding, groups, odd channels,
symbolic images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ekiden import te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.prim import FloorDiv, FloorMod, IntImm, SizeVar, maximum
from ekiden.kernels import schedule
from ekiden.kernels.micro_kernels.register_tiles import narrowest_lanes
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir.stmt import For
from ekiden.tir.transform import lower
from ekiden.tir.visitor import all_exprs, pre_order_stmts
from ekiden.topi.nn import conv
from ekiden.topi.nn.weight_packing import pack_weight
from long_runs import share

TARGET = Target.host()
TILE = 4 * TARGET.lanes("float32")
Pair = tuple[int, int]


def reference(
    x: np.ndarray,
    w: np.ndarray,
    strides: Pair,
    padding: tuple[int, ...],
    dilation: Pair,
    groups: int,
) -> np.ndarray:
    """NHWC data, OIHW weights; sums over taps."""
    top, left, bottom, right = padding
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0))).astype("float64")
    out, _, kh, kw = w.shape
    rows = (x.shape[1] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    columns = (x.shape[2] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    result = np.zeros((x.shape[0], rows, columns, out))
    per_in, per_out = w.shape[1], out // groups
    for g in range(groups):
        weights = w[g * per_out : (g + 1) * per_out]
        data = x[..., g * per_in : (g + 1) * per_in]
        for i in range(kh):
            for j in range(kw):
                y0, x0 = i * dilation[0], j * dilation[1]
                part = data[
                    :,
                    y0 : y0 + rows * strides[0] : strides[0],
                    x0 : x0 + columns * strides[1] : strides[1],
                ]
                part = part[:, :rows, :columns]
                result[..., g * per_out : (g + 1) * per_out] += part @ weights[:, :, i, j].T
    return result


def make(
    shape: tuple[int | SizeVar, ...],
    weight: np.ndarray,
    strides: Pair,
    padding: tuple[int, ...],
    dilation: Pair,
    groups: int,
    relu: bool = False,
) -> tuple[Callable[..., object], np.ndarray]:
    """The kernel and its packed weight."""
    out, per_in = weight.shape[:2]
    channels = shape[3]
    if groups == 1:
        packed, layout = pack_weight(weight, "conv2d", TILE), f"OHWI{TILE}o"
    elif per_in == 1 and out == channels:
        packed, layout = np.ascontiguousarray(weight.transpose(2, 3, 0, 1)), "HWOI"
    else:
        packed, layout = pack_weight(weight, "group_conv2d", TILE, groups), f"GOHWI{TILE}o"
    data, parameter = (
        te.placeholder(shape, name="data"),
        te.placeholder(packed.shape, name="weight"),
    )
    result = conv(data, parameter, strides, padding, dilation, groups, "NHWC", layout, channels=out)
    if relu:
        anchor = result
        result = te.compute(anchor.shape, lambda *i: maximum(anchor[i], 0.0), tag="elemwise")
    func = schedule([data, parameter], [result], TARGET, "conv")
    image = link_image([compile_object([lower(func, TARGET)], TARGET)], ["conv"])
    return load_image(image)["conv"], packed


# fmt: off
CASES = [   # n, h, w, in, out, kernel, strides, padding, dilation, groups
    (1, 7, 7, 16, 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (2, 5, 9, 3, 70, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    (1, 14, 13, 5, 17, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (1, 14, 13, 5, 130, (1, 1), (2, 3), (0, 0, 0, 0), (1, 1), 1),
    (1, 23, 20, 3, 64, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    (1, 12, 16, 4, 8, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1),
    (1, 12, 16, 4, 8, (3, 2), (1, 2), (0, 2, 1, 0), (1, 3), 1),
    (1, 1, 30, 8, 24, (1, 5), (1, 1), (0, 2, 0, 2), (1, 1), 1),
    (1, 3, 3, 4, 6, (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (1, 1, 1, 9, 65, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (2, 8, 8, 12, 18, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 3),
    (1, 9, 7, 6, 140, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    (1, 20, 20, 8, 8, (3, 3), (2, 1), (1, 1, 1, 1), (1, 1), 4),
    (1, 9, 11, 20, 20, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 20),
    (2, 10, 10, 33, 33, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 33),
    (1, 6, 6, 16, 16, (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 16),
    (2, 1, 3, 40, 40, (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 40),
    (1, 11, 29, 25, 25, (3, 5), (2, 3), (1, 2, 0, 4), (2, 2), 25),
    (1, 4, 5, 8, 8, (2, 3), (1, 1), (5, 4, 6, 7), (1, 1), 8),
    (1, 9, 30, 16, 16, (3, 3), (1, 2), (0, 0, 0, 0), (1, 1), 16),
    (1, 12, 40, 9, 9, (3, 31), (1, 1), (1, 15, 1, 15), (1, 1), 9),
    (1, 20, 40, 8, 70, (3, 3), (1, 1), (18, 18, 18, 18), (18, 18), 1),
    (1, 13, 40, 8, 16, (3, 5), (2, 3), (30, 40, 9, 61), (9, 20), 1),
    (2, 4, 20, 8, 16, (3, 3), (1, 2), (7, 9, 5, 6), (1, 1), 1),
    (1, 9, 21, 8, 8, (3, 3), (1, 1), (0, 13, 9, 0), (4, 5), 2),
]
# fmt: on


@pytest.mark.parametrize("order", ["row", "panel"])
def test_no_iteration_of_a_reduction_divides_by_a_size_of_the_run(order: str) -> None:
    """A division takes as long as ten products of vectors, and no pass moves it out of a loop that
    may have no iterations.
    """
    n, h, w = (SizeVar(name, "int64") for name in "nhw")
    data, weight = (
        te.placeholder((n, h, w, 16), name="data"),
        te.placeholder((2, 3, 3, 16, TILE), name="weight"),
    )
    result = conv(data, weight, 2, 0, 1, 1, "NHWC", f"OHWI{TILE}o", channels=2 * TILE)
    func = schedule([data, weight], [result], TARGET, "conv", {"conv_nhwc_pack": {"order": order}})
    loops = [s for s in pre_order_stmts(lower(func, TARGET).body) if isinstance(s, For)]
    reductions = [loop for loop in loops if loop.loop_var.name.startswith("k")]
    assert reductions
    for loop in reductions:
        divisions = [e for e in all_exprs(loop.body) if isinstance(e, FloorDiv | FloorMod)]
        assert all(isinstance(e.b, IntImm) for e in divisions), loop


@share(4)
@pytest.mark.parametrize("case", CASES, ids=lambda c: "x".join(map(str, c[:5])))
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_tiled_convolution_matches_numpy(case: tuple[object, ...], symbolic: bool) -> None:
    n, h, w, c, out, kernel, strides, padding, dilation, groups = case
    random = np.random.default_rng(0)
    weight = random.standard_normal((out, c // groups, *kernel)).astype("float32")  # type: ignore[operator,misc]
    shape = (SizeVar("n"), SizeVar("h"), SizeVar("w"), c) if symbolic else (n, h, w, c)
    options = (strides, padding, dilation, groups)
    run, packed = make(shape, weight, *options, relu=symbolic)  # type: ignore[arg-type]
    sizes = [(n, h, w), (1, h + 4, w + 9)] if symbolic else [(n, h, w)]  # type: ignore[operator]
    for size in sizes:
        data = random.standard_normal((*size, c)).astype("float32")
        want = reference(data, weight, *options)  # type: ignore[arg-type]
        result = np.full(want.shape, np.nan, "float32")
        run(data, packed, result)
        np.testing.assert_allclose(
            result, np.maximum(want, 0) if symbolic else want, rtol=1e-4, atol=1e-4
        )


def test_tiled_convolution_of_empty_batch() -> None:
    weight = np.ones((4, 2, 3, 3), "float32")
    run, packed = make((SizeVar("n"), 5, 5, 2), weight, (1, 1), (1, 1, 1, 1), (1, 1), 1)
    run(np.zeros((0, 5, 5, 2), "float32"), packed, np.zeros((0, 5, 5, 4), "float32"))


def test_tiled_convolution_of_empty_rows() -> None:
    weight = np.ones((8, 1, 3, 3), "float32")
    run, packed = make((1, 5, 1, 8), weight, (1, 1), (1, 0, 1, 1), (1, 1), 8)
    run(np.zeros((1, 5, 1, 8), "float32"), packed, np.zeros((1, 5, 0, 8), "float32"))
    run, packed = make((1, 5, 0, 8), weight, (1, 1), (1, 2, 1, 2), (1, 1), 8)
    result = np.ones((1, 5, 2, 8), "float32")
    run(np.zeros((1, 5, 0, 8), "float32"), packed, result)
    assert not result.any()


@share(4)
@pytest.mark.parametrize("out", [1, 3, 8, 9])
@pytest.mark.parametrize("per_in", [1, 5, 8])
def test_few_output_channels_take_narrow_vectors(out: int, per_in: int) -> None:
    rng = np.random.default_rng(out)
    x = rng.standard_normal((1, 9, 17, per_in)).astype(np.float32)
    w = rng.standard_normal((out, per_in, 3, 5)).astype(np.float32)
    run, packed = make(x.shape, w, (1, 1), (1, 2, 1, 2), (1, 1), 1)
    expected = reference(x, w, (1, 1), (1, 2, 1, 2), (1, 1), 1)
    actual = np.zeros(expected.shape, np.float32)
    run(x, packed, actual)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_vector_lanes_match_channels() -> None:
    wide, narrow = Target.parse("llvm -mcpu=znver4"), Target.parse("llvm -mcpu=x86-64-v3")
    assert [narrowest_lanes(n, wide) for n in (1, 8, 9, 16, 24)] == [8, 8, 16, 16, 16]
    assert [narrowest_lanes(n, narrow) for n in (1, 4, 8, 24)] == [8, 8, 8, 8]
