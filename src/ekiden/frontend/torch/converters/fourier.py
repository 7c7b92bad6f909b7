"""Fourier transforms, normalised by nothing, the root of the extents, or the extents."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.value import Value
from ekiden.frontend.common.waves import Parts, fourier, has_waves
from ekiden.frontend.torch.complex import Complex, none_real, own
from ekiden.frontend.torch.node import Found, Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.shape import known, tidy

_POWERS = (0.0, 0.5, 1.0)


def _along(node: Node, parts: tuple[Expr, Expr | None], axis: int, inverse: bool) -> Parts:
    """The transform of one axis, not normalised."""
    shape = node.typed(parts[0]).shape
    rank, extent = len(shape), known(shape[axis])
    order = [i for i in range(rank) if i != axis] + [axis]
    back = [order.index(i) for i in range(rank)]
    moved = [None if p is None else op.transpose(p, axes=order) for p in parts]
    real, imaginary, dtype = moved[0], moved[1], node.part_dtype
    assert real is not None
    if extent is not None and has_waves(extent):
        outer = tuple(shape[i] for i in order[:-1])
        found = fourier(real, imaginary, outer, extent, dtype, inverse)
    else:  # sums of many waves cancel: in float64
        wide = op.cast(real, "float64")
        other = op.zeros_like(wide) if imaginary is None else op.cast(imaginary, "float64")
        made = op.dft(wide, other, inverse=inverse)
        found = TupleGetItem(made, 0), TupleGetItem(made, 1)
    if inverse:  # it has divided by the extent, which normalisation says
        count = node.of(shape[axis], node.typed(found[0]).dtype)
        found = op.multiply(found[0], count), op.multiply(found[1], count)
    x, y = (op.cast(op.transpose(p, axes=back), dtype) for p in found)
    return x, y


def _normalised(node: Node, parts: Parts, axes: Sequence[int], how: int) -> Parts:
    if not _POWERS[how]:
        return parts
    shape, dtype = node.typed(parts[0]).shape, node.part_dtype
    scale: Expr = const(1.0, dtype)
    for axis in axes:
        scale = op.multiply(scale, node.of(shape[axis], dtype))
    scale = op.power(scale, const(-_POWERS[how], dtype))
    return op.multiply(parts[0], scale), op.multiply(parts[1], scale)


def _fft(node: Node, x: Complex, dim: Sequence[int], how: int, forward: bool) -> Found:
    parts: Parts = node.of(x.real), node.of(x.imaginary)
    axes = [node.axis(d, len(x.real.type.shape)) for d in dim]
    for axis in axes:
        parts = _along(node, parts, axis, not forward)
    return _normalised(node, parts, axes, how)


def _fft_of_real(node: Node, x: Value, dim: Sequence[int], how: int, onesided: bool) -> Found:
    """Of the last of the axes the first half, where the other is its mirror image."""
    axes = [node.axis(d, len(x.type.shape)) for d in dim]
    last = axes[-1]
    parts = _along(node, (node.of(x), None), last, False)
    parts = _normalised(node, parts, [last], how)
    if onesided:
        half = tidy(x.type.shape[last] // 2 + 1)
        real, imaginary = (op.strided_slice(p, [0], [half], axes=[last]) for p in parts)
        parts = real, imaginary
    for axis in axes[:-1]:
        parts = _along(node, parts, axis, False)
    return _normalised(node, parts, axes[:-1], how)


def _fft_to_real(node: Node, x: Complex, dim: Sequence[int], how: int, size: object) -> Found:
    """The first half of the last axis stands for its mirror image too; `size` is all of it."""
    del size  # as the shape of the output has it
    axes = [node.axis(d, len(x.real.type.shape)) for d in dim]
    parts: Parts = node.of(x.real), node.of(x.imaginary)
    for axis in axes[:-1]:
        parts = _along(node, parts, axis, True)
    last = axes[-1]
    extent = known(node.out_shape[last])
    if extent is None:
        node.unsupported("the extent of its result must be constant")
    mirror = [extent - k for k in range(extent // 2 + 1, extent)]
    real, imaginary = (op.strided_slice(p, [0], [extent // 2 + 1], axes=[last]) for p in parts)
    if mirror:
        places = const(mirror, "int64")
        tails = [op.take(p, places, axis=last) for p in (real, imaginary)]
        real = op.concatenate([real, tails[0]], axis=last)
        imaginary = op.concatenate([imaginary, op.negative(tails[1])], axis=last)
    return _normalised(node, _along(node, (real, imaginary), last, True), axes, how)[0]


ROWS: tuple[Row, ...] = (
    ("_fft_c2c", none_real, own(_fft)),
    ("_fft_c2r", none_real, own(_fft_to_real)),
    ("_fft_r2c", none_real, own(_fft_of_real)),
)
