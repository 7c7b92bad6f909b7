"""Geometry of convolutions and transposed convolutions, as kernels need it."""

from __future__ import annotations

import math
from dataclasses import replace

from ekiden import te
from ekiden.arith import prove_equal, simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import EQ, PrimExpr, const, fold_binary, logical_and, maximum
from ekiden.kernels.cpu.window_taps import WindowAxis
from ekiden.kernels.family import known_extent
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.runtime.lazy_dataclass import dataclass


def _int_tuple(value: object) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)


@dataclass(frozen=True, slots=True)
class DepthAxis:
    """Depth axis of a 3D convolution, whose slices are treated as images: each image of the result
    reads `kernel` slices.
    """

    size: PrimExpr
    num_results: PrimExpr
    kernel: int
    stride: int
    pad_front: int
    pad_back: int
    dilation: int

    @property
    def padded_slices(self) -> PrimExpr:
        """Return the number of depth slices with padding."""
        return simplify(self.size + (self.pad_front + self.pad_back))


NO_DEPTH_AXIS = DepthAxis(const(1), const(1), 1, 1, 0, 0, 1)
"""Depth axis of 2D convolutions."""


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """Geometry of one convolution: shapes, kernel, strides, padding, dilation, groups and the depth
    axis. Strides, dilation, kernel as (y, x); padding as (top, left, bottom, right); data and out
    as (image, y, x, channel), where every slice is an image.
    """

    data: tuple[PrimExpr, ...]
    out: tuple[PrimExpr, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int | PrimExpr, ...]
    dilation: tuple[int, ...]
    groups: int
    depth: DepthAxis = NO_DEPTH_AXIS

    @property
    def is_padded(self) -> bool:
        """Return whether any tap can be outside the data."""
        return any((*self.padding, self.depth.pad_front, self.depth.pad_back))

    @property
    def window_extents(self) -> tuple[int, int]:
        """Return the dilated window's height and width."""
        down, across = ((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        return down, across

    @property
    def window_axes(self) -> tuple[WindowAxis, WindowAxis, WindowAxis]:
        """Return the window axes of depth, lines and pixels."""
        top, left_pad, bottom, right = self.padding
        deep = self.depth
        slices = deep.size, deep.kernel, deep.stride, deep.dilation, deep.pad_front, deep.pad_back
        line_and_pixel = zip(self.kernel, self.strides, self.dilation, strict=True)
        (ky, sy, dy), (kx, sx, dx) = line_and_pixel
        lines = WindowAxis(self.data[1], ky, sy, dy, top, bottom)
        return WindowAxis(*slices), lines, WindowAxis(self.data[2], kx, sx, dx, left_pad, right)

    @property
    def is_pointwise(self) -> bool:
        """Return whether output pixels map one to one, in order, to input pixels.

        Those of a transposed convolution may be fewer.
        """
        one = self.depth.kernel == self.depth.stride == 1
        if not one or not self.kernel == self.strides == (1, 1) or self.is_padded:
            return False
        return all(map(prove_equal, self.data[:3], self.out[:3]))

    def padded_extents(self) -> tuple[PrimExpr, ...]:
        """Return height and width of the data with padding."""
        top, left_pad, bottom, right = self.padding
        return simplify(self.data[1] + top + bottom), simplify(self.data[2] + left_pad + right)

    def num_padded_slices(self) -> PrimExpr:
        """Return the number of images of the data, padding slices included."""
        if self.depth is NO_DEPTH_AXIS:
            return self.data[0]
        images = self.out[0] // maximum(
            self.depth.num_results, const(1)
        )  # of data that may have no slices
        return simplify(images * self.depth.padded_slices)

    def first_padded_slice(self, image: PrimExpr) -> PrimExpr:
        """Return the first padded slice that an image of the result reads."""
        if self.depth is NO_DEPTH_AXIS:
            return image
        out, step = self.depth.num_results, self.depth.stride
        return image // out * self.depth.padded_slices + image % out * step

    def unpadded_slice(self, image: PrimExpr) -> tuple[PrimExpr, PrimExpr | None]:
        """Return the data slice of a padded slice, and the condition that it is inside the data."""
        if self.depth is NO_DEPTH_AXIS:
            return image, None
        padded, size = self.depth.padded_slices, self.depth.size
        position = image % padded - self.depth.pad_front
        data_image = image // padded * size + position
        return data_image, logical_and(
            position >= 0, position < size
        ) if self.has_padded_slices else None

    def data_strides(self, slice: PrimExpr | None) -> list[PrimExpr]:
        """Return the data strides along each kernel axis.

        The strides of a pixel's neighbours on the two axes of a slice are preceded by the stride
        from a tap's slice to that of the next tap. That is `slice` if it is not None: a copy has
        the slices that taps read and not those between.
        """
        height, width = self.padded_extents()
        row = simplify(width * self.data[3])
        if self.depth is NO_DEPTH_AXIS:
            return [row, self.data[3]]
        far = simplify(height * row * self.depth.dilation) if slice is None else slice
        return [far, row, self.data[3]]

    def result_indices(self, at: list[PrimExpr]) -> list[PrimExpr]:
        """Return the indices of a result in its tensor, by (image, line, column, channel)."""
        if self.depth is NO_DEPTH_AXIS:
            return at
        image, *inner = at
        return [image // self.depth.num_results, image % self.depth.num_results, *inner]

    @property
    def has_padded_slices(self) -> bool:
        """Return whether the depth axis is padded."""
        return bool(self.depth.pad_front or self.depth.pad_back)


def _conv_geometry(
    data: tuple[PrimExpr, ...],
    out: tuple[PrimExpr, ...],
    windows: tuple[tuple[int, ...], ...],
    groups: int,
) -> ConvGeometry:
    """Return the geometry of a convolution over two or three axes.

    Args:
        data: The shape of the data.
        out: The shape of the results.
        windows: The extent, stride, zeros before and after, and dilation of each axis.
        groups: The groups of channels.
    """
    if len(windows) == 2:
        kernel, strides, before, after, dilation = zip(*windows, strict=True)
        return ConvGeometry(data, out, kernel, strides, (*before, *after), dilation, groups)
    depth = DepthAxis(data[1], out[1], *windows[0])
    n, size, *image = data
    # Slices become images: kernels loop over images and need no third axis of their own.
    flat = (simplify(n * size), *image)
    flat_geometry = _conv_geometry(flat, (simplify(n * out[1]), *out[2:]), windows[1:], groups)
    return replace(flat_geometry, depth=depth)


def conv_geometry_of(anchor: te.Tensor) -> ConvGeometry:
    """Return the geometry of a convolution's tensor expression, from its attributes."""
    attrs = anchor.op.attrs
    data, _ = operands_of(anchor)
    names = ("kernel_size", "strides", "padding", "dilation")
    kernel, strides, padding, dilation = (_int_tuple(attrs[name]) for name in names)
    before, after = padding[: len(kernel)], padding[len(kernel) :]
    windows = tuple(zip(kernel, strides, before, after, dilation, strict=True))
    return _conv_geometry(data.shape, anchor.shape, windows, int(str(attrs["groups"])))


@dataclass(frozen=True, slots=True)
class TransposedAxis:
    """Axis of a transposed convolution by phases: results at stride * q + phase depend on every
    stride-th tap only.

    Its results stride * q + phase are an ordinary convolution over q: with position = stride * q +
    phase + before, they are the sum over taps of

        data[(position - tap * dilation) / stride] * weight[tap]     where the division is exact

    that is over every `tap_step`-th tap from the first, each `data_step` elements before the last
    one.
    """

    kernel: int
    stride: int
    dilation: int
    pad_before: int
    extra_results: int
    """Results beyond (size - 1) * stride: window reach plus output padding minus cropping."""
    num_phases: int
    """Number of phases with results: at most `stride`, and at most the number of results."""

    @property
    def _stride_dilation_gcd(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def tap_step(self) -> int:
        """Return the step between consecutive taps of a phase."""
        return self.stride // self._stride_dilation_gcd

    @property
    def data_step(self) -> int:
        """Return the data distance between consecutive taps of a phase."""
        return self.dilation // self._stride_dilation_gcd

    @property
    def padding_before(self) -> int:
        """Return the padding before the data that the first results' taps need."""
        return max(0, ((self.kernel - 1) * self.dilation - self.pad_before) // self.stride)

    @property
    def read_offset(self) -> int:
        """Return the input offset, relative to element q, of the results from stride * q on."""
        return (self.pad_before + self.stride - 1) // self.stride

    @property
    def padding_after(self) -> int:
        """Return the padding after the data."""
        return max(0, -(-self.extra_results // self.stride) - 1 + self.read_offset)

    def num_positions(self, size: PrimExpr) -> PrimExpr:
        """Return the number of positions q of each phase."""
        return simplify(size + (-(-self.extra_results // self.stride) - 1))

    def first_tap(self, phase: PrimExpr) -> PrimExpr:
        """Return the first tap of a phase."""
        # stride and dilation divided by their gcd are coprime, so the inverse exists.
        inverse = pow(self.data_step, -1, self.tap_step)
        return simplify(
            (phase + self.pad_before) // self._stride_dilation_gcd * inverse % self.tap_step
        )

    def num_taps(self, phase: PrimExpr) -> PrimExpr:
        """Return the number of taps of a phase."""
        # All phases have as many taps, which makes the number a constant.
        if self.kernel % self.tap_step == 0:
            num_taps: PrimExpr = const(self.kernel // self.tap_step)
        else:
            num_taps = simplify(
                (self.kernel + self.tap_step - 1 - self.first_tap(phase)) // self.tap_step
            )
        if self._stride_dilation_gcd == 1:
            return num_taps
        # Where the gcd is not 1, some phases meet no tap at all.
        fits = fold_binary(EQ, (phase + self.pad_before) % self._stride_dilation_gcd, const(0))
        return if_then_else(fits, num_taps, const(0))

    def first_element(self, phase: PrimExpr) -> PrimExpr:
        """Return the padded index of the element that the first tap of q = 0 reads."""
        position = phase + (self.pad_before + self.padding_before * self.stride)
        return simplify((position - self.first_tap(phase) * self.dilation) // self.stride)


def transposed_axes_of(anchor: te.Tensor) -> tuple[TransposedAxis, ...]:
    """Return the axes of a transposed convolution's tensor expression."""
    attrs = anchor.op.attrs
    names = ("kernel_size", "strides", "dilation", "padding", "output_padding")
    kernel, strides, dilation, padding, extra = (_int_tuple(attrs[name]) for name in names)
    rank = len(kernel)
    extents = [known_extent(extent) for extent in anchor.shape[1:-1]]
    axes = zip(
        kernel, strides, dilation, padding[:rank], padding[rank:], extra, extents, strict=True
    )
    return tuple(
        TransposedAxis(
            k, s, d, before, (k - 1) * d + 1 + more - before - after,
            s if extent is None else min(s, max(extent, 1)),
        )
        for k, s, d, before, after, more, extent in axes
    )  # fmt: skip


def transposed_geometry(anchor: te.Tensor, axes: tuple[TransposedAxis, ...]) -> ConvGeometry:
    """Return the geometry of the unstrided convolution whose windows cover the taps of all
    phases.
    """
    data, _ = operands_of(anchor)
    n, *sizes, _ = data.shape
    counts = [axis.num_positions(size) for axis, size in zip(axes, sizes, strict=True)]
    windows = tuple(
        (axis.padding_before + axis.read_offset + 1, 1, axis.padding_before, axis.padding_after, 1)
        for axis in axes
    )
    out = (n, *counts, anchor.shape[-1])
    return _conv_geometry(data.shape, out, windows, int(str(anchor.op.attrs["groups"])))


__all__ = [
    "NO_DEPTH_AXIS",
    "ConvGeometry",
    "TransposedAxis",
    "conv_geometry_of",
    "transposed_axes_of",
    "transposed_geometry",
]
