"""Tensor intrinsics: the semantics of an instruction and its implementation.

    desc   for i in 16: block: C[i] = C[i] + A[i] * B[i]      the meaning, as a loop program
    impl   C[0:16] = vpdpbusd(C[0:16], A[0:16], B[0:16])      the same over the same buffers

`Schedule.tensorize` matches the first in a program and replaces it by the second.
"""

from __future__ import annotations

from typing import ClassVar

from ekiden._lazy import load_module
from ekiden.ir.prim import IntImm
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.stmt import PrimFunc

TENSOR_INTRIN_MODULES = ("lanes", "x86", "cuda")
"""Modules of this package that register intrinsics."""


@dataclass(frozen=True, slots=True)
class TensorIntrin:
    """A pair of description and implementation over equal parameters."""

    name: str
    desc: PrimFunc
    impl: PrimFunc

    _table: ClassVar[dict[str, TensorIntrin]] = {}

    @staticmethod
    def register(name: str, desc: PrimFunc, impl: PrimFunc, override: bool = False) -> TensorIntrin:
        """Register an intrinsic; the buffers of both functions agree in number, shape and dtype.

        Raises ValueError where they do not, or when the name is registered and `override` is not
        set.
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
            if a.dtype != b.dtype or _comparable_shape(a.shape) != _comparable_shape(b.shape):
                raise ValueError(
                    f"TensorIntrin.register {name!r}: buffer {a.name!r} is {a.dtype}"
                    f"{_comparable_shape(a.shape)} in the description and "
                    f"{b.dtype}{_comparable_shape(b.shape)} in the implementation"
                )
        intrin = TensorIntrin._table[name] = TensorIntrin(name, desc, impl)
        return intrin

    @staticmethod
    def get(name: str) -> TensorIntrin:
        """Return the intrinsic of a name. Raises ScheduleError listing the names there are.

        The modules of this folder are imported on demand: a process that replays a trace knows an
        intrinsic by its name only.
        """
        if name not in TensorIntrin._table:
            for module in TENSOR_INTRIN_MODULES:
                load_module(f"{__name__}.{module}")
        intrin = TensorIntrin._table.get(name)
        if intrin is None:
            raise ScheduleError(
                f"tensor intrinsic {name!r}: there is none; there are {sorted(TensorIntrin._table)}"
            )
        return intrin


def _comparable_shape(shape: tuple[object, ...]) -> list[object]:
    """Return a shape with constants as numbers; symbols stay themselves."""
    return [d.value if isinstance(d, IntImm) else d for d in shape]


__all__ = ["TensorIntrin"]
