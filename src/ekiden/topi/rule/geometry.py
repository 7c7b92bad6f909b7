"""The numbers of a convolution, as its rules need them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import EQ, PrimExpr, binary, const
from ekiden.topi.rule.epilogue import operands_of


def _ints(value: object) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The numbers of one convolution. Strides, dilation, kernel as (y, x); padding as (top, left,
    bottom, right)."""

    data: tuple[PrimExpr, ...]
    out: tuple[PrimExpr, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int | PrimExpr, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def is_padded(self) -> bool:
        """Whether any tap can fall outside the data."""
        return any(self.padding)

    @property
    def is_pointwise(self) -> bool:
        """Whether output pixels are input pixels, one to one and in order."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and not self.is_padded

    def padded(self) -> tuple[PrimExpr, ...]:
        """Height and width of the data as it is read: with zeros around it."""
        top, left, bottom, right = self.padding
        return simplify(self.data[1] + top + bottom), simplify(self.data[2] + left + right)


def geometry_of(anchor: te.Tensor) -> Geometry:
    """The geometry of a convolution's tensor expression, from its attributes."""
    attrs = anchor.op.attrs
    data, _ = operands_of(anchor)
    return Geometry(
        data=data.shape,
        out=anchor.shape,
        kernel=_ints(attrs["kernel_size"]),
        strides=_ints(attrs["strides"]),
        padding=_ints(attrs["padding"]),
        dilation=_ints(attrs["dilation"]),
        groups=int(str(attrs["groups"])),
    )


@dataclass(frozen=True, slots=True)
class Phases:
    """One axis of a transposed convolution. Its results stride * q + phase are an ordinary
    convolution over q: with place = stride * q + phase + before, they are the sum over taps of

        data[(place - tap * dilation) / stride] * weight[tap]     where the division is exact

    that is over every `step`-th tap from the first, each `move` elements before the last one.
    """

    kernel: int
    stride: int
    dilation: int
    before: int
    extra: int
    """Results beyond (size - 1) * stride: reach, output padding, less what is cut off."""

    @property
    def _common(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def step(self) -> int:
        """From a tap of a phase to the next."""
        return self.stride // self._common

    @property
    def move(self) -> int:
        """How far before the data of a tap those of the next one are."""
        return self.dilation // self._common

    @property
    def front(self) -> int:
        """Zeros before the data, so that all taps of the first results are in it."""
        return max(0, ((self.kernel - 1) * self.dilation - self.before) // self.stride)

    @property
    def ahead(self) -> int:
        """How far behind element q the results from stride * q on read."""
        return (self.before + self.stride - 1) // self.stride

    @property
    def back(self) -> int:
        """Zeros behind the data."""
        return max(0, -(-self.extra // self.stride) - 1 + self.ahead)

    def count(self, size: PrimExpr) -> PrimExpr:
        """How many q there are."""
        return simplify(size + (-(-self.extra // self.stride) - 1))

    def first(self, phase: PrimExpr) -> PrimExpr:
        """The first tap of a phase, if it has any."""
        inverse = pow(self.move, -1, self.step)
        return simplify((phase + self.before) // self._common * inverse % self.step)

    def taps(self, phase: PrimExpr) -> PrimExpr:
        """How many taps a phase has."""
        if self.kernel % self.step == 0:
            many: PrimExpr = const(self.kernel // self.step)
        else:
            many = simplify((self.kernel + self.step - 1 - self.first(phase)) // self.step)
        if self._common == 1:
            return many
        fits = binary(EQ, (phase + self.before) % self._common, const(0))
        return if_then_else(fits, many, const(0))

    def origin(self, phase: PrimExpr) -> PrimExpr:
        """Where the first tap of q = 0 reads, counted from the zeros before the data."""
        place = phase + (self.before + self.front * self.stride)
        return simplify((place - self.first(phase) * self.dilation) // self.stride)


def phases_of(anchor: te.Tensor) -> tuple[Phases, ...]:
    """The axes of a transposed convolution's tensor expression."""
    attrs = anchor.op.attrs
    names = ("kernel_size", "strides", "dilation", "padding", "output_padding")
    kernel, strides, dilation, padding, extra = (_ints(attrs[name]) for name in names)
    rank = len(kernel)
    axes = zip(kernel, strides, dilation, padding[:rank], padding[rank:], extra, strict=True)
    return tuple(
        Phases(k, s, d, before, (k - 1) * d + 1 + more - before - after)
        for k, s, d, before, after, more in axes
    )


def transposed_geometry(anchor: te.Tensor, axes: tuple[Phases, ...]) -> Geometry:
    """The convolution without strides whose windows hold what all phases read."""
    data, _ = operands_of(anchor)
    n, *sizes, _ = data.shape
    counts = [axis.count(size) for axis, size in zip(axes, sizes, strict=True)]
    return Geometry(
        data=data.shape,
        out=(n, *counts, anchor.shape[-1]),
        kernel=tuple(axis.front + axis.ahead + 1 for axis in axes),
        strides=(1,) * len(axes),
        padding=(*(axis.front for axis in axes), *(axis.back for axis in axes)),
        dilation=(1,) * len(axes),
        groups=int(str(anchor.op.attrs["groups"])),
    )


__all__ = ["Geometry", "Phases", "geometry_of", "phases_of", "transposed_geometry"]
