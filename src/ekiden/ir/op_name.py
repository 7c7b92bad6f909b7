"""Names of intrinsics, which know what they are called in the registry of operators."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar


class OpName(str):
    """The name of an intrinsic in its table, "exp"; `name` is that in the registry of operators,
    "tir.exp", as of TVM's operators of calls."""

    __slots__ = ()
    others: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Ours -> TVM's where they differ; set by `ekiden.ir.intrinsic`."""

    @property
    def name(self) -> str:
        """Return the name in the registry of operators, which `ekiden.ir.Op.get` knows."""
        return f"tir.{self.others.get(self, self)}"

    def same_as(self, other: object) -> bool:
        """Return whether another operator, of a call or of the registry, is this one."""
        return getattr(other, "name", None) == self.name
