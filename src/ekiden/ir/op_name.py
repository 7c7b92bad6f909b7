"""OpName: intrinsic names that know their name in the operator registry."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar


class OpName(str):
    """Intrinsic name such as "exp", whose `name` is the registry's "tir.exp"."""

    __slots__ = ()
    tvm_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Ours -> TVM's where they differ; set by `ekiden.ir.intrinsic`."""

    @property
    def name(self) -> str:
        """Return the name in the operator registry, as `ekiden.ir.Op.get` expects it."""
        return f"tir.{self.tvm_names.get(self, self)}"

    def same_as(self, other: object) -> bool:
        """Return whether another operator has the same registry name."""
        return getattr(other, "name", None) == self.name
