"""Micro-kernels: families of tensor intrinsics whose sizes are those of the program they replace.

    for i, j: for k: d[i, j] = d[i, j] + a[i, k] * b[k, j]      register_tile(own=16, unroll=2)
              out[i, j] = f(d[i, j], ...)                  ->   sums in registers, k outside, then f

A row of the table says what the processor must have, what may be set, and writes the statements of
one tile; `Schedule.tensorize` finds out of a program what the tile is: a `TileNest`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from ekiden.ir.prim import PrimExpr
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Stmt

Place = Callable[[PrimExpr, PrimExpr, PrimExpr, PrimExpr | None], Stmt]
"""(row, first column, vector of results, mask or None) -> the statement that keeps them."""
Load = Callable[[PrimExpr, PrimExpr, int], PrimExpr]
"""(row, first column, lanes) -> a vector of what was kept."""


@dataclass(frozen=True, slots=True)
class SumLoop:
    """A loop of the sums: its steps, and how far a step moves in both factors (elements)."""

    extent: PrimExpr
    a_stride: PrimExpr
    b_stride: PrimExpr


@dataclass(frozen=True, slots=True)
class Part:
    """Sums of one part of several: when they begin with what was kept, how that is loaded, and when
    they are whole; until then `keep` stores them."""

    begun: PrimExpr
    load: Load
    keep: Place
    is_last: PrimExpr


@dataclass(frozen=True, slots=True)
class TileNest:
    """A tile of sums of products: d[i, j] over `rows` x `columns`, a factor that j does not move
    and one that i does not.

    dtype: of the sums. a, a_rows: the first factor, and where each row begins. b, b_base,
    b_columns: the second, where it begins, and how far a column moves; b_width: how many columns
    there are from there, at least `columns` if it is known. loops: those of the sums,
    outermost first. store: what is made of a sum; `work` counts the float operations in that.
    number: which of the tiles with the same b it is, if there are several; following: where the
    next b begins, from this one. many: the rows there are, of at most `rows`, for a kernel that
    takes any number; a_stride: how far apart those of the first factor begin.
    """

    dtype: str
    rows: int
    columns: int
    a: Buffer
    a_rows: Sequence[PrimExpr]
    b: Buffer
    b_base: PrimExpr
    b_columns: int
    b_width: int
    loops: tuple[SumLoop, ...]
    store: Place
    work: int
    part: Part | None
    number: PrimExpr | None
    following: PrimExpr
    many: PrimExpr | None = None
    a_stride: PrimExpr | None = None


Options = Mapping[str, int]
_CALL = re.compile(r"(\w+)\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """A row: a name, what a processor must have for it, what may be set and is unless it is, what
    writes a tile, and whether that takes any number of rows: else it writes one for each."""

    name: str
    needs: tuple[str, ...]
    defaults: Options
    write: Callable[[TileNest, Options], Stmt]
    any_rows: bool = False

    _table: ClassVar[dict[str, MicroKernel]] = {}

    @staticmethod
    def register(kernel: MicroKernel) -> MicroKernel:
        """Put a row into the table. Raises ValueError when the name is taken."""
        if kernel.name in MicroKernel._table:
            raise ValueError(f"MicroKernel.register {kernel.name!r}: the name is taken")
        MicroKernel._table[kernel.name] = kernel
        return kernel

    def call(self, **options: int) -> str:
        """The kernel with some options, as `tensorize` takes it."""
        given = ", ".join(f"{k}={v}" for k, v in options.items())
        return f"{self.name}({given})"

    @staticmethod
    def parse(text: str) -> tuple[MicroKernel, Options] | None:
        """What `call` wrote; None for a name without parentheses. Raises ScheduleError for a row or
        an option that there is not."""
        found = _CALL.fullmatch(text)
        if found is None:
            return None
        name, given = found.groups()
        kernel = MicroKernel._table.get(name)
        if kernel is None:
            there = ", ".join(sorted(MicroKernel._table))
            raise ScheduleError(f"micro-kernel {name!r}: there is none; there are {there}")
        return kernel, kernel.options_of(given)

    def options_of(self, text: str) -> Options:
        """All options: those of a text like "own=16, unroll=2", and the defaults. Raises
        ScheduleError for an option that it does not have."""
        options = dict(self.defaults)
        for each in filter(None, (part.strip() for part in text.split(","))):
            key, _, value = each.partition("=")
            if key not in options or not re.fullmatch(r"-?\d+", value):
                there = ", ".join(f"{k}={v}" for k, v in self.defaults.items())
                raise ScheduleError(
                    f"micro-kernel {self.name!r}: no option {each!r}; there are, with what they"
                    f" are unless set: {there}"
                )
            options[key] = int(value)
        return options


__all__ = ["MicroKernel", "Options", "Part", "SumLoop", "TileNest"]
