"""What integers stand for: the types of quantised tensors.

A tensor of a `TensorAffineType` means scale * (integers - zero_point).
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.node import Node, freeze, node


class AffineType(Node):
    """Base of affine types (TVM's names)."""

    __slots__ = ()


@node("TensorAffineType")
class TensorAffineType(AffineType):
    """Of a tensor: its scale (float32) and zero point (int32), scalars or vectors along `axis`, and
    the dtype of its integers."""

    scale: RelayExpr
    zero_point: RelayExpr
    dtype: str
    axis: int = -1


@node("TupleAffineType")
class TupleAffineType(AffineType):
    """Of a tuple: those of its fields."""

    types: tuple[TensorAffineType, ...]

    def __post_init__(self) -> None:
        freeze(self, types=tuple(self.types))
