"""NumPy references of Relay's operators under the names of TVM's `topi.testing`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ekiden._lazy import load_module

Array: TypeAlias = npt.NDArray[Any]
Ints: TypeAlias = int | Sequence[int]
Padding: TypeAlias = int | str | Sequence[int]


def _relay_op_module() -> Any:  # noqa: ANN401 - the operators stand on a higher floor
    return load_module("ekiden.relay.op")


def _evaluate(build: Callable[..., Any], *arrays: npt.ArrayLike) -> Any:  # noqa: ANN401
    """Evaluate an expression on constants with the interpreter."""
    interpreter = load_module("ekiden.relay.interpreter").Interpreter()
    expr = build(*(_relay_op_module().const(np.asarray(a)) for a in arrays))
    return interpreter.evaluate(expr)


def _padding_widths(padding: Padding, kernel: Sequence[int]) -> list[int]:
    """Return the padding before each axis, then after each."""
    rank = len(kernel)
    if padding == "VALID":
        return [0] * 2 * rank
    if padding == "SAME":
        before = [k // 2 for k in kernel]
        return [*before, *(k - 1 - b for k, b in zip(kernel, before, strict=True))]
    if isinstance(padding, str):
        raise ValueError(f"padding: 'VALID', 'SAME' or numbers expected, got {padding!r}")
    amounts = [padding] * rank if isinstance(padding, int) else list(padding)
    return amounts * 2 if len(amounts) == rank else amounts


def _grouped_conv(
    name: str,
    a: Array,
    w: Array,
    stride: Ints,
    padding: Padding,
    axes: slice,
    **more: Any,  # noqa: ANN401
) -> Array:
    options = {"strides": stride, "padding": _padding_widths(padding, w.shape[axes]), **more}
    result: Array = _evaluate(
        lambda x, y: getattr(_relay_op_module().nn, name)(x, y, **options), a, w
    )
    return result


def conv1d_ncw_python(
    a_np: Array, w_np: Array, stride: Ints, padding: Padding, dilation: Ints, groups: int = 1
) -> Array:
    """Return the convolution of [n, c, w] with [o, i, w]."""
    wide = np.array(w_np.shape[2:])
    reach = (wide - 1) * dilation + 1
    pads = _padding_widths(padding, reach.tolist())
    return _grouped_conv(
        "conv1d", a_np, w_np, stride, pads, slice(2, None), dilation=dilation, groups=groups
    )


def group_conv1d_ncw_python(
    a_np: Array, w_np: Array, stride: Ints, padding: Padding, dilation: Ints, groups: int
) -> Array:
    """Return the grouped convolution of [n, c, w] with [o, i, w]."""
    return conv1d_ncw_python(a_np, w_np, stride, padding, dilation, groups)


def conv2d_nchw_python(
    a_np: Array, w_np: Array, stride: Ints, padding: Padding, groups: int = 1
) -> Array:
    """Return the convolution of [n, c, h, w] with [o, i, h, w]."""
    return _grouped_conv("conv2d", a_np, w_np, stride, padding, slice(2, None), groups=groups)


def conv2d_nhwc_python(
    a_np: Array, w_np: Array, stride: Ints, padding: Padding, groups: int = 1
) -> Array:
    """Return the convolution of [n, h, w, c] with [h, w, i, o]."""
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return _grouped_conv(
        "conv2d", a_np, w_np, stride, padding, slice(0, 2), groups=groups, **layouts
    )


def conv2d_hwcn_python(a_np: Array, w_np: Array, stride: Ints, padding: Padding) -> Array:
    """Return the convolution of [h, w, c, n] with [h, w, i, o]."""
    nhwc_result = conv2d_nhwc_python(a_np.transpose(3, 0, 1, 2), w_np, stride, padding)
    return nhwc_result.transpose(1, 2, 3, 0)


def conv3d_ncdhw_python(
    a_np: Array, w_np: Array, stride: Ints, padding: Padding, groups: int = 1
) -> Array:
    """Return the convolution of [n, c, d, h, w] with [o, i, d, h, w]."""
    return _grouped_conv("conv3d", a_np, w_np, stride, padding, slice(2, None), groups=groups)


def conv3d_ndhwc_python(
    a_np: Array, w_np: Array, stride: Ints, padding: Padding, groups: int = 1
) -> Array:
    """Return the convolution of [n, d, h, w, c] with [d, h, w, i, o]."""
    layouts = {"data_layout": "NDHWC", "kernel_layout": "DHWIO"}
    return _grouped_conv(
        "conv3d", a_np, w_np, stride, padding, slice(0, 3), groups=groups, **layouts
    )


def conv2d_transpose_nchw_python(
    a_np: Array, w_np: Array, stride: Ints, padding: Padding, output_padding: Ints, groups: int = 1
) -> Array:
    """Return the transposed convolution of [n, c, h, w] with [i, o, h, w]."""
    more = {"output_padding": output_padding, "groups": groups}
    more["channels"] = w_np.shape[1] * groups
    return _grouped_conv("conv2d_transpose", a_np, w_np, stride, padding, slice(2, None), **more)


def conv3d_transpose_ncdhw_python(
    a_np: Array, w_np: Array, stride: Ints, padding: Padding, output_padding: Ints
) -> Array:
    """Return the transposed convolution of [n, c, d, h, w] with [i, o, d, h, w]."""
    more = {"output_padding": output_padding, "channels": w_np.shape[1]}
    return _grouped_conv("conv3d_transpose", a_np, w_np, stride, padding, slice(2, None), **more)


def depthwise_conv2d_python_nchw(
    input_np: Array, filter_np: Array, stride: Ints, padding: Padding
) -> Array:
    """Convolve each channel of [n, c, h, w] with its filters [c, multiplier, h, w]."""
    channels, times, *window = filter_np.shape
    w = filter_np.reshape(channels * times, 1, *window)
    return conv2d_nchw_python(input_np, w, stride, padding, channels)


def depthwise_conv2d_python_nhwc(
    input_np: Array, filter_np: Array, stride: Ints, padding: Padding
) -> Array:
    """Convolve each channel of [n, h, w, c] with its filters [h, w, c, multiplier]."""
    data, w = input_np.transpose(0, 3, 1, 2), filter_np.transpose(2, 3, 0, 1)
    return depthwise_conv2d_python_nchw(data, w, stride, padding).transpose(0, 2, 3, 1)


def dense(
    x: Array,
    y: Array,
    bias: Array,
    use_bias: bool = False,
    use_relu: bool = False,
    out_dtype: str | None = None,
) -> Array:
    """Return x times the transpose of y, optionally with a bias and a ReLU."""
    product = np.dot(x.astype(out_dtype or x.dtype), y.T.astype(out_dtype or y.dtype))
    product = product + bias if use_bias else product
    return np.asarray(np.maximum(product, 0) if use_relu else product)


def batch_matmul(
    x: Array,
    y: Array,
    out_dtype: str | None = None,
    trans_x: bool = False,
    trans_y: bool = True,
) -> Array:
    """Return batched matrix products; a batch of one broadcasts."""
    lhs = x.transpose(0, 2, 1) if trans_x else x
    rhs = y.transpose(0, 2, 1) if trans_y else y
    return np.asarray(np.matmul(lhs.astype(out_dtype or x.dtype), rhs.astype(out_dtype or y.dtype)))


def softmax_python(a_np: Array, axis: int = 1) -> Array:
    """Return the softmax along an axis."""
    result: Array = _evaluate(lambda x: _relay_op_module().nn.softmax(x, axis=axis), a_np)
    return result


def log_softmax_python(a_np: Array, axis: int = 1) -> Array:
    """Return the log-softmax along an axis."""
    result: Array = _evaluate(lambda x: _relay_op_module().nn.log_softmax(x, axis=axis), a_np)
    return result


def lrn_python(a_np: Array, size: int, axis: int, bias: float, alpha: float, beta: float) -> Array:
    """Return the local response normalisation over `size` neighbours on an axis."""
    options = {"size": size, "axis": axis, "bias": bias, "alpha": alpha, "beta": beta}
    result: Array = _evaluate(lambda x: _relay_op_module().nn.lrn(x, **options), a_np)
    return result


def l2_normalize_python(a_np: Array, eps: float, axis: Sequence[int] | None = None) -> Array:
    """Divide by the root of the sum of squares."""
    total = np.sum(np.square(a_np), axis=None if axis is None else tuple(axis), keepdims=True)
    return np.asarray(a_np / np.sqrt(np.maximum(total, eps)))


def layer_norm_python(
    data: Array, gamma: Array, beta: Array, axis: Ints, epsilon: float = 1e-5
) -> Array:
    """Normalise over axes, then scale and shift along them."""
    return _normalize_rows(data, gamma, beta, axis, epsilon)


def instance_norm_python(
    data: Array, gamma: Array, beta: Array, axis: Ints, epsilon: float = 1e-5
) -> Array:
    """Normalise over axes, then scale and shift along axis 1."""
    along = (1, -1, *[1] * (data.ndim - 2))
    return _normalize_rows(data, gamma.reshape(along), beta.reshape(along), axis, epsilon)


def _normalize_rows(data: Array, gamma: Array, beta: Array, axis: Ints, epsilon: float) -> Array:
    axes = axis if isinstance(axis, int) else tuple(axis)
    mean = data.astype("float32").mean(axes, keepdims=True)
    variance = data.astype("float32").var(axes, keepdims=True)
    normalized = (data - mean) / np.sqrt(variance + epsilon)
    return np.asarray(normalized * gamma + beta).astype(data.dtype)


def gather_python(data: Array, axis: int, indices: Array) -> Array:
    """Gather the elements at indices along an axis."""
    return np.asarray(np.take_along_axis(data, indices.astype("int64"), axis))


def gather_nd_python(a_np: Array, indices_np: Array) -> Array:
    """Gather the slices at coordinates, which are the columns of `indices_np`."""
    return np.asarray(a_np[tuple(indices_np)])


def one_hot(
    indices: Array, on_value: float, off_value: float, depth: int, axis: int, dtype: str
) -> Array:
    """Return `on_value` where the position on a new axis is the index, else `off_value`."""
    axis_index = indices.ndim if axis == -1 else axis
    shape = [1] * (indices.ndim + 1)
    shape[axis_index] = depth
    is_index = np.arange(depth).reshape(shape) == np.expand_dims(indices, axis_index)
    return np.asarray(np.where(is_index, on_value, off_value)).astype(dtype)


def slice_axis_python(data: Array, axis: int, begin: int, end: int | None = None) -> Array:
    """Return a slice of one axis."""
    cut = [slice(None)] * data.ndim
    cut[axis] = slice(begin, end)
    return np.asarray(data[tuple(cut)])


def strided_slice_python(
    data: Array,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Ints,
    slice_mode: str = "end",
    axes: Sequence[int] | None = None,
) -> Array:
    """Return a slice of several axes."""
    options = {"begin": begin, "end": end, "strides": strides, "slice_mode": slice_mode}
    result: Array = _evaluate(
        lambda x: _relay_op_module().strided_slice(x, axes=axes, **options), data
    )
    return result


def sequence_mask(data: Array, valid_length: Array, mask_value: float, axis: int) -> Array:
    """Return the data with `mask_value` after the valid length of each sequence."""
    options = {"mask_value": mask_value, "axis": axis}
    result: Array = _evaluate(
        lambda x, n: _relay_op_module().sequence_mask(x, n, **options), data, valid_length
    )
    return result


def poolnd_python(
    np_data: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding_before: Sequence[int],
    padding_after: Sequence[int],
    pool_type: str,
    count_include_pad: bool = True,
    ceil_mode: bool = False,
    dtype: str = "float32",
    layout: str | None = None,
) -> Array:
    """Return the maximum ("max") or the mean ("avg") of each window."""
    rank = len(kernel)
    options: dict[str, Any] = {
        "pool_size": tuple(kernel), "strides": tuple(strides), "dilation": tuple(dilation),
        "padding": (*padding_before, *padding_after), "ceil_mode": ceil_mode,
        "layout": layout or ("NCW", "NCHW", "NCDHW")[rank - 1],
    }  # fmt: skip
    if pool_type == "avg":
        options["count_include_pad"] = count_include_pad
    pool = getattr(_relay_op_module().nn, f"{pool_type}_pool{rank}d")
    return np.asarray(_evaluate(lambda x: pool(x, **options), np_data)).astype(dtype)


def depth_to_space_python(data: Array, block_size: int, mode: str = "DCR") -> Array:
    """Rearrange channels to blocks of pixels."""
    result: Array = _evaluate(
        lambda x: _relay_op_module().nn.depth_to_space(x, block_size, "NCHW", mode=mode), data
    )
    return result


def space_to_depth_python(data: Array, block_size: int) -> Array:
    """Rearrange blocks of pixels to channels."""
    result: Array = _evaluate(
        lambda x: _relay_op_module().nn.space_to_depth(x, block_size, "NCHW"), data
    )
    return result


def searchsorted_ref(sorted_sequence: Array, values: Array, right: bool, out_dtype: str) -> Array:
    """Return where values would be inserted into each sequence."""
    result: Array = _evaluate(
        lambda s, v: _relay_op_module().searchsorted(s, v, right, out_dtype),
        sorted_sequence,
        values,
    )
    return result


def reorg_python(a_np: Array, stride: int) -> Array:
    """Return YOLO's reorganisation of pixel blocks to channels."""
    result: Array = _evaluate(lambda x: _relay_op_module().vision.yolo_reorg(x, stride), a_np)
    return result


def _resize_by_scale(
    data: Array, scale: Sequence[float], layout: str, axes: str, method: str, mode: str
) -> Array:
    size = [round(data.shape[layout.index(a)] * s) for a, s in zip(axes, scale, strict=True)]
    resize = getattr(_relay_op_module().image, f"resize{len(axes)}d")
    result: Array = _evaluate(lambda x: resize(x, size, None, layout, method, mode), data)
    return result


def resize1d_python(
    data: Array,
    scale: Sequence[float],
    layout: str,
    method: str = "linear",
    coordinate_transformation_mode: str = "align_corners",
) -> Array:
    """Resize rows by a scale."""
    return _resize_by_scale(data, scale, layout, "W", method, coordinate_transformation_mode)


def resize2d_python(
    data: Array,
    scale: Sequence[float],
    layout: str,
    method: str = "linear",
    coordinate_transformation_mode: str = "align_corners",
) -> Array:
    """Resize images by scales of height and width."""
    return _resize_by_scale(data, scale, layout, "HW", method, coordinate_transformation_mode)


def resize3d_python(
    data: Array,
    scale: Sequence[float],
    layout: str,
    method: str = "linear",
    coordinate_transformation_mode: str = "align_corners",
) -> Array:
    """Resize volumes by scales of depth, height and width."""
    return _resize_by_scale(data, scale, layout, "DHW", method, coordinate_transformation_mode)


def dilate_python(input_np: Array, strides: Sequence[int], dilation_value: float = 0.0) -> Array:
    """Insert a value between elements, which are then `strides` apart."""
    result: Array = _evaluate(
        lambda x: _relay_op_module().nn.dilate(x, tuple(strides), dilation_value), input_np
    )
    return result


def matrix_set_diag(
    input_np: Array, diagonal: Array, k: Ints = 0, align: str = "RIGHT_LEFT"
) -> Array:
    """Replace diagonals of matrices."""
    result: Array = _evaluate(
        lambda x, d: _relay_op_module().matrix_set_diag(x, d, k, align), input_np, diagonal
    )
    return result


def adaptive_pool(
    np_data: Array, out_size: Ints, pool_type: str, layout: str | None = None
) -> Array:
    """Return adaptive max or average pooling."""
    rank = np_data.ndim - 2
    pool = getattr(_relay_op_module().nn, f"adaptive_{pool_type}_pool{rank}d")
    names = layout or ("NCW", "NCHW", "NCDHW")[rank - 1]
    result: Array = _evaluate(lambda x: pool(x, out_size, names), np_data)
    return result


def roi_pool_nchw_python(
    a_np: Array, rois_np: Array, pooled_size: Ints, spatial_scale: float
) -> Array:
    """Return the maxima of the bins of regions."""
    size = (pooled_size,) * 2 if isinstance(pooled_size, int) else tuple(pooled_size)
    result: Array = _evaluate(
        lambda x, r: _relay_op_module().vision.roi_pool(x, r, size, spatial_scale), a_np, rois_np
    )
    return result


__all__ = [name for name in list(globals()) if name.endswith("_python")] + [
    "adaptive_pool", "batch_matmul", "dense", "depthwise_conv2d_python_nchw",
    "depthwise_conv2d_python_nhwc", "matrix_set_diag", "one_hot", "searchsorted_ref",
    "sequence_mask",
]  # fmt: skip
