"""Micro-kernels: families of tensor intrinsics whose sizes are those of the program they replace.

    for i, j: for k: d[i, j] = d[i, j] + a[i, k] * b[k, j]      register_tile(own=16, unroll=2)
              out[i, j] = f(d[i, j], ...)                  ->   sums in registers, k outside, then f

A table entry declares the required processor features and the options, and writes the statements of
one tile; `Schedule.tensorize` matches a program's tile: a `MatmulTileNest`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import ClassVar

from ekiden.ir.prim import PrimExpr, const
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Stmt

StoreVector = Callable[[PrimExpr, PrimExpr, PrimExpr, PrimExpr | None], Stmt]
"""Function (row, first column, vector, mask or None) -> statement that stores a vector of results.
"""
LoadVector = Callable[[PrimExpr, PrimExpr, int], PrimExpr]
"""Function (row, first column, lanes) -> vector of stored partial sums."""


@dataclass(frozen=True, slots=True)
class SumLoop:
    """A reduction loop of a tile: its extent, its strides in both factors (elements), its first
    iteration, and the rows that have a term in each iteration, where these are not all.
    """

    extent: PrimExpr
    a_stride: PrimExpr
    b_stride: PrimExpr
    begin: PrimExpr = field(default_factory=lambda: const(0))
    rows: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class PartialSums:
    """How a tile continues partial sums: when they start from stored ones, how those are loaded,
    and when the sums are complete; until then `store` stores them.
    """

    has_partial_sums: PrimExpr
    load: LoadVector
    store: StoreVector
    is_last: PrimExpr


@dataclass(frozen=True, slots=True)
class MatmulTileNest:
    """A tile of a matrix product: d[i, j] over `rows` x `columns`, with one factor invariant in j
    and one invariant in i; or a tile of products by elements, of which one is invariant in i.

    dtype: of the sums. a, a_rows: the first factor, and the offset of each row. b, b_base,
    b_columns: the second factor, its offset, and the stride of a column; b_width: the columns
    available from there, at least `columns` if known. loops: the reduction loops, outermost first.
    store: stores the epilogue of a sum; `work` counts its float operations. panel_position: the
    tile's index among those with the same b, if there are several; following: the offset of the
    next b from this one. row_loop: the actual number of rows, at most `rows`, for a kernel that
    accepts any;
    a_stride: the distance of rows of the first factor. a_columns: the stride of a column in the
    first factor, 0 for products of matrices.
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
    store: StoreVector
    epilogue_flops: int
    partial_sums: PartialSums | None
    panel_position: PrimExpr | None
    next_panel_offset: PrimExpr
    row_loop: PrimExpr | None = None
    a_stride: PrimExpr | None = None
    a_columns: int = 0


Options = Mapping[str, int]
_KERNEL_CALL_PATTERN = re.compile(r"(\w+)\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """A table entry: name, required processor features, options with defaults, the writer of a
    tile, and whether that accepts any number of rows (else it writes one variant per row count),
    and whether it is for products by elements, of which some may be left out by conditions.
    """

    name: str
    required_features: tuple[str, ...]
    defaults: Options
    write: Callable[[MatmulTileNest, Options], Stmt]
    accepts_any_rows: bool = False
    is_elementwise: bool = False

    _table: ClassVar[dict[str, MicroKernel]] = {}

    @staticmethod
    def register(kernel: MicroKernel) -> MicroKernel:
        """Add an entry to the table. Raises ValueError when the name is registered."""
        if kernel.name in MicroKernel._table:
            raise ValueError(f"MicroKernel.register {kernel.name!r}: the name is taken")
        MicroKernel._table[kernel.name] = kernel
        return kernel

    def call(self, **options: int) -> str:
        """Return the kernel's name with options, as `tensorize` accepts it."""
        option_text = ", ".join(f"{k}={v}" for k, v in options.items())
        return f"{self.name}({option_text})"

    @staticmethod
    def parse(text: str) -> tuple[MicroKernel, Options] | None:
        """Parse what `call` wrote; return None for a name without parentheses. Raises ScheduleError
        for an unknown kernel or option.
        """
        match = _KERNEL_CALL_PATTERN.fullmatch(text)
        if match is None:
            return None
        name, option_text = match.groups()
        kernel = MicroKernel._table.get(name)
        if kernel is None:
            available = ", ".join(sorted(MicroKernel._table))
            raise ScheduleError(f"micro-kernel {name!r}: there is none; there are {available}")
        return kernel, kernel.parse_options(option_text)

    def parse_options(self, text: str) -> Options:
        """Return all options: those of a text like "own=16, unroll=2", and the defaults. Raises
        ScheduleError for an unknown option.
        """
        options = dict(self.defaults)
        for assignment in filter(None, (item.strip() for item in text.split(","))):
            key, _, value = assignment.partition("=")
            if key not in options or not re.fullmatch(r"-?\d+", value):
                available = ", ".join(f"{k}={v}" for k, v in self.defaults.items())
                raise ScheduleError(
                    f"micro-kernel {self.name!r}: no option {assignment!r}; there are, with "
                    "what they"
                    f" are unless set: {available}"
                )
            options[key] = int(value)
        return options


__all__ = ["MatmulTileNest", "MicroKernel", "Options", "PartialSums", "SumLoop"]
