"""Tensor intrinsics: what an instruction computes, and how it is written.

    desc   for i in 16: block: C[i] = C[i] + A[i] * B[i]      the meaning, as a loop program
    impl   C[0:16] = vpdpbusd(C[0:16], A[0:16], B[0:16])      the same over the same buffers
`Schedule.tensorize` finds the first in a program and puts the second in its place.
"""

from __future__ import annotations

from typing import ClassVar

from ekiden._lazy import load_module
from ekiden.ir.prim import IntImm
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.stmt import PrimFunc

BESIDE = ("lanes", "x86", "cuda")
"""Modules of this folder that register intrinsics."""


@dataclass(frozen=True, slots=True)
class TensorIntrin:
    """A description and an implementation over equal parameters."""

    name: str
    desc: PrimFunc
    impl: PrimFunc

    _table: ClassVar[dict[str, TensorIntrin]] = {}

    @staticmethod
    def register(name: str, desc: PrimFunc, impl: PrimFunc, override: bool = False) -> TensorIntrin:
        """Declare an intrinsic; the buffers of both functions agree in number, shape and dtype.

        Raises ValueError when they don't, or when the name is taken and not to be overridden.
        """
        if name in TensorIntrin._table and not override:
            raise ValueError(f"TensorIntrin.register {name!r}: the name is taken")
        for number in (*desc.scalars, *impl.scalars):
            raise ValueError(f"TensorIntrin.register {name!r}: {number.name!r} is no buffer")
        if len(desc.params) != len(impl.params):
            raise ValueError(
                f"TensorIntrin.register {name!r}: expected as many buffers in both functions, "
                f"got {len(desc.params)} and {len(impl.params)}"
            )
        for a, b in zip(desc.buffers, impl.buffers, strict=True):
            if a.dtype != b.dtype or _sizes(a.shape) != _sizes(b.shape):
                raise ValueError(
                    f"TensorIntrin.register {name!r}: buffer {a.name!r} is {a.dtype}"
                    f"{_sizes(a.shape)} in the description and {b.dtype}{_sizes(b.shape)} in the "
                    "implementation"
                )
        made = TensorIntrin._table[name] = TensorIntrin(name, desc, impl)
        return made

    @staticmethod
    def get(name: str) -> TensorIntrin:
        """The intrinsic of a name. Raises ScheduleError listing the names there are.

        Those of the modules beside are there in every process: one that applies a trace has not
        made it, and imports what a trace names by nothing else.
        """
        if name not in TensorIntrin._table:
            for module in BESIDE:
                load_module(f"{__name__}.{module}")
        found = TensorIntrin._table.get(name)
        if found is None:
            raise ScheduleError(
                f"tensor intrinsic {name!r}: there is none; there are {sorted(TensorIntrin._table)}"
            )
        return found


def _sizes(shape: tuple[object, ...]) -> list[object]:
    """The constant sizes of a shape; a symbol is only itself."""
    return [d.value if isinstance(d, IntImm) else d for d in shape]


__all__ = ["TensorIntrin"]
