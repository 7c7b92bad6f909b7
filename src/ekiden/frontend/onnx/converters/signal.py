"""ONNX DFT, STFT and MelWeightMatrix; complex numbers are pairs (real, imaginary) in the last axis.

float32 transforms whose extent is constant and not large are products with a constant matrix of
waves: 100 times as fast as the operator that computes each wave, and as accurate.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ekiden.frontend.common.constant_fill import emit_full, emit_iota
from ekiden.frontend.common.dft import (
    MAX_DFT_MATRIX_EXTENT,
    ComplexParts,
    apply_dft_matrix,
    dft_last_axis,
    dft_matrix,
    has_dft,
)
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.runtime_axes import is_runtime_input, switch_on_axis
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.op import Array
from ekiden.ir.prim import GE, fold_binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import as_dim, known_int, simplify_dim


def _fits_dft_matrix(node: OnnxNode, extent: int | None) -> bool:
    """Return whether a float32 DFT is short enough for a constant matrix."""
    return node.dtype(0) == "float32" and extent is not None and 0 < extent <= MAX_DFT_MATRIX_EXTENT


def _dft_by_matmul(node: OnnxNode, axis: int, extent: int, inverse: bool, onesided: bool) -> Expr:
    """Emit the DFT of an axis as a product with the DFT matrix."""
    rank, is_complex = node.rank(0) - 1, known_int(node.shape(0)[-1]) != 1
    components = [
        op.take(node.expr(0), const(i, "int64"), axis=rank) for i in range(1 + is_complex)
    ]
    moved = [_resize_last_axis(node, _move_axis_to_end(node, p, axis), extent) for p in components]
    rows = moved[0] if len(moved) == 1 else op.concatenate(moved, axis=rank - 1)
    bins = extent // 2 + 1 if onesided else extent
    matrix = dft_matrix(extent, bins, inverse, is_complex)
    spectrum = apply_dft_matrix(rows, matrix, node.tensor_type_of(rows).shape[:-1])
    order = [*range(rank - 1), rank]
    order.insert(axis, rank - 1)
    return spectrum if axis == rank - 1 else op.transpose(spectrum, axes=order)


def _complex_parts(node: OnnxNode) -> tuple[Expr, Expr]:
    """Emit the real and imaginary parts of input 0 in float64."""
    data, last = op.cast(node.expr(0), "float64"), node.rank(0) - 1
    real = op.squeeze(op.strided_slice(data, begin=[0], end=[1], axes=[last]), axis=[last])
    if known_int(node.shape(0)[-1]) == 1:
        return real, op.zeros_like(real)
    imaginary = op.strided_slice(data, begin=[1], end=[2], axes=[last])
    return real, op.squeeze(imaginary, axis=[last])


def _dft(node: OnnxNode) -> Expr | Value:
    """Convert DFT."""
    axis = node.get_int("axis", 1)
    if node.opset >= 20:
        # A run-time axis is a switch over all axes, whose branches must agree in shape.
        is_same_size = node.optional_value(1) is None and not node.get_int("onesided", 0)
        if is_same_size and is_runtime_input(node, 2):
            return switch_on_axis(node, 2, node.rank(0) - 1, partial(_dft_along_axis, node))
        axis = -2 if node.optional_value(2) is None else int(node.constant_array(2, "axis").item())
    return _dft_along_axis(node, node.axis(axis, node.rank(0)))


def _dft_along_axis(node: OnnxNode, axis: int) -> Expr:
    """Emit the DFT along a constant axis."""
    inverse, onesided = bool(node.get_int("inverse", 0)), bool(node.get_int("onesided", 0))
    length = (
        None if node.optional_value(1) is None else int(node.constant_array(1, "dft_length").item())
    )
    if length is not None and length < 1:
        node.reject(f"'dft_length' must be at least 1, got {length}")
    # The inverse of a one-sided spectrum is a real signal (IRFFT).
    if inverse and onesided:
        return _inverse_real_dft(node, axis, length)
    extent_known = known_int(node.shape(0)[axis]) if length is None else length
    if (
        extent_known is not None
        and _fits_dft_matrix(node, extent_known)
        and known_int(node.shape(0)[axis]) is not None
    ):
        return _dft_by_matmul(node, axis, extent_known, inverse, onesided)
    real, imaginary = (
        _resize_last_axis(node, _move_axis_to_end(node, p, axis), length)
        for p in _complex_parts(node)
    )
    extent = known_int(node.tensor_type_of(real).shape[-1])
    components = list(_dft_float64(node, real, imaginary, inverse))
    if onesided:
        if extent is None:
            node.reject("attribute 'onesided' needs a transformed axis of constant extent")
        rank = node.rank(0) - 1
        components = [_slice_front(p, extent // 2 + 1, rank - 1) for p in components]
    return op.cast(
        op.stack([_move_axis_from_end(node, p, axis) for p in components], axis=-1), node.dtype(0)
    )


def _dft_float64(node: OnnxNode, real: Expr, imaginary: Expr, inverse: bool) -> ComplexParts:
    """Emit the DFT of the last axis in float64 as real and imaginary parts."""
    shape = node.tensor_type_of(real).shape
    extent = known_int(shape[-1])
    if extent is not None and has_dft(extent):
        return dft_last_axis(real, imaginary, shape[:-1], extent, "float64", inverse)
    spectrum = op.dft(real, imaginary, inverse=inverse)
    return TupleGetItem(spectrum, 0), TupleGetItem(spectrum, 1)


def _inverse_real_dft(node: OnnxNode, axis: int, length: int | None) -> Expr:
    """Emit the real signal of a one-sided spectrum (inverse real DFT)."""
    half = known_int(node.shape(0)[axis])
    if half is None:
        node.reject("attribute 'onesided' needs a transformed axis of constant extent")
    # Half a spectrum of n / 2 + 1 bins belongs to the even length n, unless one is given.
    extent = 2 * (half - 1) if length is None else length
    real, imaginary = (
        _resize_last_axis(node, _move_axis_to_end(node, p, axis), extent // 2 + 1)
        for p in _complex_parts(node)
    )
    rank = node.rank(0) - 1
    # The spectrum of a real signal is Hermitian: the missing half is the mirrored conjugate.
    if extent > 2:
        count = extent - extent // 2 - 1
        mirrored = op.subtract(const(np.int64(count)), emit_iota(count))
        tails = [op.take(p, mirrored, axis=rank - 1) for p in (real, imaginary)]
        real = op.concatenate([real, tails[0]], axis=rank - 1)
        imaginary = op.concatenate([imaginary, op.negative(tails[1])], axis=rank - 1)
    signal, _ = _dft_float64(node, real, imaginary, True)
    return op.cast(
        op.expand_dims(_move_axis_from_end(node, signal, axis), axis=rank), node.dtype(0)
    )


def _move_axis_to_end(node: OnnxNode, component: Expr, axis: int) -> Expr:
    """Emit a transpose that moves an axis to the end."""
    rank = node.rank(0) - 1
    order = [i for i in range(rank) if i != axis] + [axis]
    return component if axis == rank - 1 else op.transpose(component, axes=order)


def _move_axis_from_end(node: OnnxNode, component: Expr, axis: int) -> Expr:
    """Emit a transpose that moves the last axis back."""
    rank = node.rank(0) - 1
    order = list(range(rank - 1))
    order.insert(axis, rank - 1)
    return component if axis == rank - 1 else op.transpose(component, axes=order)


def _slice_front(component: Expr, count: int, axis: int) -> Expr:
    """Emit the first elements of an axis."""
    return op.strided_slice(component, begin=[0], end=[count], axes=[axis])


def _resize_last_axis(node: OnnxNode, component: Expr, length: int | None) -> Expr:
    """Emit the last axis truncated or zero-padded to a length."""
    shape = node.tensor_type_of(component).shape
    extent = known_int(shape[-1])
    if length is None or extent == length:
        return component
    if extent is None:
        node.reject("'dft_length' needs a transformed axis of constant extent")
    if extent > length:
        return _slice_front(component, length, len(shape) - 1)
    widths = [(0, 0)] * (len(shape) - 1) + [(0, length - extent)]
    return op.nn.pad(component, widths, const(0.0, node.tensor_type_of(component).dtype))


def _frame_length(node: OnnxNode) -> int:
    """Return the frame length from its input or the window."""
    if node.optional_value(3) is not None:
        length = int(node.constant_array(3, "frame_length").item())
        if length < 1:
            node.reject(f"'frame_length' must be at least 1, got {length}")
        return length
    window = node.optional_value(2)
    window_length = None if window is None else known_int(window.type.shape[0])
    return (
        node.reject("'frame_length' must be constant") if window_length is None else window_length
    )


def _stft_by_frames(node: OnnxNode) -> Expr:
    """Emit STFT with a run-time frame step: gathered frames, each transformed."""
    (step,) = (as_dim(d) for d in node.dims(1, "frame_step", 1))
    length, one_sided = _frame_length(node), bool(node.get_int("onesided", 1))
    time = node.shape(0)[1]
    node.scope.require_condition(fold_binary(GE, step, as_dim(1)), " with 'frame_step'")
    node.scope.require_condition(fold_binary(GE, time, as_dim(length)), " with 'frame_length'")
    # ONNX STFT: only frames that lie entirely inside the signal.
    frames = simplify_dim((time - length) // step + 1)
    starts = op.multiply(op.arange(0, frames, 1, "int64"), node.scope.emit_dim(step))
    sample_indices = op.add(
        op.reshape(starts, (frames, 1)), op.expand_dims(emit_iota(length), axis=0)
    )
    taps = emit_full((length,), 1.0, "float64")
    if node.optional_value(2) is not None:
        taps = op.cast(node.expr(2), "float64")
    data = op.cast(node.expr(0), "float64")
    both = (data, op.zeros_like(data)) if node.rank(0) == 2 else _complex_parts(node)
    real, imaginary = (op.multiply(op.take(p, sample_indices, axis=1), taps) for p in both)
    components: list[Expr] = list(_dft_float64(node, real, imaginary, False))
    if one_sided:
        components = [_slice_front(p, length // 2 + 1, 2) for p in components]
    return op.cast(op.stack(components, axis=-1), node.dtype(0))


def _stft(node: OnnxNode) -> Expr:
    """Convert STFT."""
    if is_runtime_input(node, 1):
        return _stft_by_frames(node)
    step = int(node.constant_array(1, "frame_step").item())
    window, length = node.optional_value(2), _frame_length(node)
    one_sided = bool(node.get_int("onesided", 1))
    taps = emit_full((length,), 1.0, "float64")
    if window is not None:
        taps = op.cast(node.expr(2), "float64")
    if not _fits_dft_matrix(node, length):
        array = None
    else:
        array = np.ones(length) if window is None else window.array
    if array is not None and array.shape == (length,):
        return _stft_by_convolution(node, array, step, one_sided)

    def stft_component(component: Expr) -> Expr:
        """Emit the STFT of a real component, [batch, frames, bins, 2]."""
        frames_first = op.stft(
            component, length, step, length, taps, normalized=False, onesided=one_sided
        )
        return op.transpose(frames_first, axes=[0, 2, 1, 3])

    def cast_to_input(spectrum: Expr) -> Expr:
        """Emit a cast back to the input's dtype."""
        return op.cast(spectrum, node.dtype(0))

    if node.rank(0) == 2:
        return cast_to_input(stft_component(op.cast(node.expr(0), "float64")))
    real, imaginary = _complex_parts(node)
    if known_int(node.shape(0)[-1]) == 1:
        return cast_to_input(stft_component(real))
    x, y = stft_component(real), stft_component(imaginary)  # x + iy of a complex signal
    # i * (re, im) = (-im, re).
    turned = op.stack([op.negative(_complex_component(y, 1)), _complex_component(y, 0)], axis=-1)
    return cast_to_input(op.add(x, turned))


def _stft_by_convolution(node: OnnxNode, window: Array, step: int, one_sided: bool) -> Expr:
    """Emit the STFT as a convolution with the windowed DFT matrix."""
    length = len(window)
    channels = (known_int(node.shape(0)[2]) or 1) if node.rank(0) == 3 else 1
    bins = length // 2 + 1 if one_sided else length
    matrix = (
        dft_matrix(length, bins, is_complex=channels == 2).reshape(2 * bins, -1, length) * window
    )
    batch, time = node.shape(0)[:2]
    convolved = op.nn.conv2d(
        op.reshape(node.expr(0), (batch, 1, time, channels), allowzero=True),
        const(matrix.astype(np.float32)[:, :, None]),
        strides=(1, step),
        data_layout="NHWC",
        kernel_layout="OIHW",
    )
    frames = node.tensor_type_of(convolved).shape[2]
    return op.reshape(convolved, (batch, frames, bins, 2), allowzero=True)


def _complex_component(data: Expr, index: int) -> Expr:
    """Emit the real (0) or imaginary (1) part."""
    return op.take(data, const(index, "int64"), axis=3)


def _mel_weights(node: OnnxNode) -> Expr:
    """Convert MelWeightMatrix: triangular filters between points evenly spaced in mels."""
    bands, length = (int(node.constant_array(i, n).item()) for i, n in enumerate(_MEL_SIZE_INPUTS))
    rate, low, high = (op.cast(op.reshape(node.expr(i), ()), "float64") for i in (2, 3, 4))
    first, last = (_hertz_to_mel(hertz) for hertz in (low, high))
    step = op.divide(op.subtract(last, first), const(float(bands + 2), "float64"))
    mel_points = op.add(first, op.multiply(emit_iota(bands + 2, "float64"), step))
    hertz = 700.0 * (op.power(const(10.0, "float64"), mel_points / 2595.0) - 1.0)
    # As in ONNX's reference: band edges are rounded down to frequency bins.
    points = op.floor_divide(float(length + 1) * hertz, rate)
    lower, centre, upper = (op.strided_slice(points, begin=[n], end=[n + bands]) for n in range(3))
    bins = op.expand_dims(emit_iota(length // 2 + 1, "float64"), axis=1)
    one = const(1.0, "float64")
    rising = (bins - lower) / op.maximum(centre - lower, one)
    rising = op.where(op.equal(lower, centre), one, rising)
    none = op.zeros_like(rising)
    up = op.where(_is_in_half_open_range(lower, bins, centre + 1.0), rising, none)
    down = (upper - bins) / op.maximum(upper - centre, one)
    weights = op.where(_is_in_half_open_range(centre, bins, upper), down, up)
    return op.cast(weights, from_onnx_dtype(node.get_int("output_datatype", 1)))


_MEL_SIZE_INPUTS = ("num_mel_bins", "dft_length")


def _hertz_to_mel(hertz: Expr) -> Expr:
    """Emit the mel scale of a frequency: 2595 * log10(1 + hertz / 700)."""
    return 2595.0 * op.log10(op.divide(hertz, const(700.0, "float64")) + 1.0)


def _is_in_half_open_range(low: Expr, bin_index: Expr, stop: Expr) -> Expr:
    """Emit low <= bin < stop."""
    return op.logical_and(op.less_equal(low, bin_index), op.less(bin_index, stop))


# fmt: off
ROWS = (
    OnnxRow("DFT",  _dft, since_version=17, attributes="axis inverse onesided"),
    OnnxRow("STFT", _stft, since_version=17, attributes="onesided"),
    OnnxRow("MelWeightMatrix", _mel_weights, since_version=17, attributes="output_datatype"),
)
# fmt: on
