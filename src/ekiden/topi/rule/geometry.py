"""The numbers of a convolution, as its rules need them."""

from __future__ import annotations

from dataclasses import dataclass

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr
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


__all__ = ["Geometry", "geometry_of"]
