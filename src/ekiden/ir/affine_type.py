"""Affine types: scale and zero point of quantized tensors.

A tensor of a `TensorAffineType` means scale * (integers - zero_point).
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.node import Node, node, set_frozen_fields


class AffineType(Node):
    """Base class of the affine (quantization) types (TVM's names)."""

    __slots__ = ()


@node("TensorAffineType")
class TensorAffineType(AffineType):
    """Affine type of a tensor: scale (float32) and zero point (int32), per tensor or per `axis`,
    and the integer dtype.
    """

    scale: RelayExpr
    zero_point: RelayExpr
    dtype: str
    axis: int = -1


@node("TupleAffineType")
class TupleAffineType(AffineType):
    """Affine type of a tuple: one TensorAffineType per field."""

    types: tuple[TensorAffineType, ...]

    def __post_init__(self) -> None:
        set_frozen_fields(self, types=tuple(self.types))
