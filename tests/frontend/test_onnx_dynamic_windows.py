"""Places of maxima, and resizing by matrices, of extents that the run says: interpreted and
compiled as in ONNX Runtime and in ONNX's reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import agree, graph_model, ints, normal
from onnx_models import named_node as node

import ekiden
from ekiden.runtime.errors import UnsupportedError
from long_runs import alike, share

pytestmark = pytest.mark.early
IMAGE = normal(1, 2, 7, 6)


@share(16)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 1, 1)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 1)])
@pytest.mark.parametrize("ceil", [0, 1])
def test_max_pool_indices_of_dynamic_extents(
    ceil: int, dilations: tuple[int, int], pads: tuple[int, ...], order: int, symbolic: bool
) -> None:
    pool = node(
        "MaxPool", "x", "y i", kernel_shape=[3, 2], strides=[2, 2], pads=pads, dilations=dilations,
        ceil_mode=ceil, storage_order=order,
    )  # fmt: skip
    agree([pool], {"x": IMAGE}, None, 12, symbolic)


@alike(4)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("shape", [(2, 2, 9), (2, 1, 7, 6, 8)])
def test_max_pool_indices_over_one_and_three_axes(shape: tuple[int, ...], symbolic: bool) -> None:
    window = {"kernel_shape": [3, 2, 1][: len(shape) - 2], "strides": [2, 2, 3][: len(shape) - 2]}
    pool = node("MaxPool", "x", "y i", ceil_mode=1, **window)
    agree([pool], {"x": normal(*shape)}, None, 12, symbolic)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_max_pool_indices_with_auto_pad(auto: str) -> None:
    pool = node("MaxPool", "x", "y i", kernel_shape=[3, 2], strides=[2, 2], auto_pad=auto)
    for extent in (6, 7, 8):
        agree([pool], {"x": normal(1, 2, extent, 5)}, None, 12, True)


@share(4)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8"])
@pytest.mark.parametrize("target", ["c", "llvm -mcpu=nehalem"])
def test_max_pool_indices_on_each_target(target: str, dtype: str) -> None:
    """Of windows of the lowest value alone too, which is that of the border."""
    pool = node(
        "MaxPool", "x", "y i", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1
    )
    x = np.round(9 * IMAGE).astype(dtype)
    x[0, 0] = -np.inf if x.dtype.kind == "f" else np.iinfo(dtype).min
    agree([pool], {"x": x}, None, 12, True, targets=(target,))


def test_max_pool_and_unpool_of_data_dependent_extents() -> None:
    nodes = [
        node("NonZero", "m", "n"),
        node("Squeeze", "n zero", "rows"),
        node("Gather", "x rows", "g", axis=2),
        node("MaxPool", "g", "p i", kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxUnpool", "p i", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    for mask in ((1, 1, 0, 1, 1, 0, 0), (1, 1, 1, 1, 1, 1, 0), (0, 0, 0, 0, 1, 1, 0)):
        agree(nodes, {"x": IMAGE, "m": ints(*mask)}, {"zero": ints(0)})


SIZES = ((4, 3), (9, 8), (7, 6), (1, 13))
SCALES = ((0.5, 0.25), (1.25, 1.5), (1, 1), (0.25, 2))


@share(6)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("by", ["sizes", "scales", "scales that are known"])
@pytest.mark.parametrize("outside", [0, 1])
def test_antialiased_resize_of_dynamic_extents(outside: int, by: str, mode: str) -> None:
    """As many weights as the smallest scale has taps."""
    attributes = {"antialias": 1, "mode": mode, "exclude_outside": outside}
    for size, scale in zip(SIZES, SCALES, strict=True):
        scales = np.array([1, 1, *scale], np.float32)
        if by == "sizes":
            resize = node("Resize", "x - - s", **attributes)
            agree([resize], {"x": IMAGE, "s": ints(1, 2, *size)}, reference=True)
        elif by == "scales":
            resize = node("Resize", "x - s", **attributes)
            agree([resize], {"x": IMAGE, "s": scales}, reference=True)
        else:
            resize = node("Resize", "x - s", **attributes)
            agree([resize], {"x": IMAGE}, {"s": scales}, symbolic=True, reference=True)


@share(3)
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_aspect_ratio_policies_with_runtime_sizes(mode: str, policy: str) -> None:
    attributes = {"mode": mode, "keep_aspect_ratio_policy": policy, "axes": [3, 2]}
    for size in SIZES[:3]:
        resize = node("Resize", "x - - s", **attributes)
        agree([resize], {"x": IMAGE, "s": ints(*size[::-1])}, reference=True)
        agree([resize], {"x": IMAGE}, {"s": ints(*size[::-1])}, symbolic=True, reference=True)


@alike(4)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", ["half_pixel_symmetric", "tf_crop_and_resize"])
def test_rare_coordinate_modes_of_dynamic_extents(coordinates: str, mode: str) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    roi = np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], np.float32)
    for size in SIZES:
        feed = {"x": IMAGE, "s": ints(1, 2, *size)}
        agree([node("Resize", "x r - s", **attributes)], feed, {"r": roi}, reference=True)


@pytest.mark.parametrize("target", ["c", "llvm -mcpu=nehalem"])
def test_antialiased_resize_on_each_target(target: str) -> None:
    resize = node("Resize", "x - - s", mode="linear", antialias=1)
    feed = {"x": IMAGE.astype(np.float64), "s": ints(1, 2, 3, 4)}
    agree([resize], feed, reference=True, targets=(target,))


@alike(4)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 2, 2, 3, 2)])
def test_resize_of_non_image_axes(shape: tuple[int, ...], mode: str) -> None:
    x = normal(*shape)
    scales = np.ones(len(shape), np.float32)
    scales[-2:] = 1.5, 2
    agree([node("Resize", "x - s", mode=mode)], {"x": x}, {"s": scales}, 18, True, True)


def test_antialias_of_nearest_is_refused() -> None:
    resize = node("Resize", "x - s", antialias=1)
    model = graph_model([resize], {"x": IMAGE}, ["y"], {"s": np.ones(4, np.float32)}, 18)
    with pytest.raises(UnsupportedError, match="'antialias' has a meaning for 'mode' linear and"):
        ekiden.compile(model)
