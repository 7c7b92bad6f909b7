"""Micro-kernels: families of tensor intrinsics whose sizes are those of the program they replace.

    for i, j: for k: d[i, j] = d[i, j] + a[i, k] * b[k, j]      register_tile(unroll=2, ...)
              out[i, j] = f(d[i, j], ...)                  ->   sums in registers, k outside, then f

A table entry declares the required processor features and the options, and writes the statements of
one tile; `Schedule.tensorize` matches a program's tile: a `MatmulTileNest`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import ClassVar

from ekiden._lazy import load_module
from ekiden.ir import dtype as dt
from ekiden.ir.prim import FloatImm, IntImm, PrimExpr, Var, const
from ekiden.ir.prim_visitor import post_order
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import PrimFunc, Stmt

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
class GatherLoop:
    """A reduction loop that follows those of a tile: step n multiplies the element of the first
    factor at the index `table[table_begin + n]` by the second factor's element of its own.

    Indices count `a_stride` elements from the first element of a row.
    """

    extent: PrimExpr
    table: Buffer
    table_begin: PrimExpr
    a_stride: PrimExpr
    b_base: PrimExpr
    b_stride: PrimExpr
    word_loops: tuple[SumLoop, ...] = ()
    """Loops inside of it, outermost first."""


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
class PanelCopy:
    """A copy of the second factor that a tile makes while it multiplies: the buffer, the offset of
    the first element, and the strides of the reduction loops; columns are adjacent.
    """

    buffer: Buffer
    base: PrimExpr
    strides: tuple[PrimExpr, ...]


@dataclass(frozen=True, slots=True)
class MatmulTileNest:
    """A tile of a matrix product: d[i, j] over `rows` x `columns`, with one factor invariant in j
    and one invariant in i; or a tile of products by elements, of which one is invariant in i.

    dtype: of the sums. a, a_rows: the first factor, and the offset of each row. b, b_base,
    b_columns: the second factor, its offset, and the stride of a column; b_width: the columns
    available from there, at least `columns` if known. loops: the reduction loops, outermost first;
    gather: the loop behind them whose elements are looked up in a table, if there is one. facts:
    the annotations of the sum's block.
    store: stores the epilogue of a sum; `work` counts its float operations. panel_position: the
    tile's index among those with the same b, if there are several; following: the offset of the
    next b from this one. row_loop: the actual number of rows, at most `rows`, for a kernel that
    accepts any;
    a_stride: the distance of rows of the first factor. a_columns: the stride of a column in the
    first factor, 0 for products of matrices. copy: the copy of the second factor that the tile
    makes, if it makes one.
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
    gather: GatherLoop | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    row_loop: PrimExpr | None = None
    a_stride: PrimExpr | None = None
    a_columns: int = 0
    copy: PanelCopy | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """The part of a buffer that a parameter of a description stands for in a tile.

    row_offsets: the flat offset of the parameter's first element, of each row of the tile, in its
    first column. column_stride: the distance of the next column's. axis_strides: the distances of
    neighbours along each axis of the parameter (elements).
    """

    buffer: Buffer
    row_offsets: Sequence[PrimExpr]
    column_stride: int
    axis_strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedTile:
    """A tile of `rows` x `columns` results, each of which is what a description computes.

    dtype: of the results. operands: the description's parameters by name. store: stores the
    epilogue of a result; `epilogue_flops` counts its float operations. first: the first row among
    `total_rows`. panel, num_panels: the loop outside that moves the operands of columns, and its
    number of iterations; None where there is none. facts: the annotations of the tile's blocks.
    """

    dtype: str
    rows: int
    columns: int
    operands: Mapping[str, Operand]
    store: StoreVector
    epilogue_flops: int
    first: PrimExpr
    total_rows: PrimExpr
    panel: PrimExpr | None
    num_panels: PrimExpr
    facts: Mapping[str, object] = field(default_factory=dict)


MICRO_KERNEL_MODULES = tuple(
    f"ekiden.kernels.micro_kernels.{name}"
    for name in ("registered_micro_kernels", "int4_tile", "block_tile")
)
"""Modules that register micro-kernels."""
Options = Mapping[str, int]
_KERNEL_CALL_PATTERN = re.compile(r"(\w+)\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """A table entry: name, required processor features, options with defaults, the writer of a
    tile, and whether that accepts any number of rows (else it writes one variant per row count),
    whether it is for products by elements, whether conditions may leave terms out of the sums, and
    whether it makes copies.

    A kernel of another sum than products of elements has a description, the program of one result
    (row and column), and `write_described` in place of `write`.
    """

    name: str
    required_features: tuple[str, ...]
    defaults: Options
    write: Callable[[MatmulTileNest, Options], Stmt] | None = None
    accepts_any_rows: bool = False
    is_elementwise: bool = False
    takes_conditions: bool = False
    makes_copies: bool = False
    describe: Callable[[Options], PrimFunc] | None = None
    write_described: Callable[[DescribedTile, Options], Stmt] | None = None
    renamed_options: Mapping[str, str] = field(default_factory=dict)
    """Names of options in traces of earlier versions, with the current names."""

    _table: ClassVar[dict[str, MicroKernel]] = {}

    @staticmethod
    def register(kernel: MicroKernel) -> MicroKernel:
        """Add an entry to the table. Raises ValueError when the name is registered."""
        if kernel.name in MicroKernel._table:
            raise ValueError(f"MicroKernel.register {kernel.name!r}: the name is taken")
        MicroKernel._table[kernel.name] = kernel
        return kernel

    def description(self, options: Options) -> PrimFunc:
        """Return the program of one result; cached by the options."""
        assert self.describe is not None, self.name
        return _cached_description(self.describe, tuple(options.items()))

    def call(self, **options: int) -> str:
        """Return the kernel's name with options, as `tensorize` accepts it."""
        option_text = ", ".join(f"{k}={v}" for k, v in options.items())
        return f"{self.name}({option_text})"

    @staticmethod
    def parse(text: str) -> tuple[MicroKernel, Options] | None:
        """Parse what `call` wrote; return None for a name without parentheses. Raises ScheduleError
        for an unknown kernel or option.

        The modules of micro-kernels are imported on demand: a process that replays a trace knows
        them by their names only.
        """
        match = _KERNEL_CALL_PATTERN.fullmatch(text)
        if match is None:
            return None
        name, option_text = match.groups()
        if name not in MicroKernel._table:
            for module in MICRO_KERNEL_MODULES:
                load_module(module)
        kernel = MicroKernel._table.get(name)
        if kernel is None:
            available = ", ".join(sorted(MicroKernel._table))
            raise ScheduleError(f"micro-kernel {name!r}: there is none; there are {available}")
        return kernel, kernel.parse_options(option_text)

    def parse_options(self, text: str) -> Options:
        """Return all options: those of a text like "l1_prefetch=16, unroll=2", and the defaults.
        Raises ScheduleError for an unknown option.
        """
        options = dict(self.defaults)
        for assignment in filter(None, (item.strip() for item in text.split(","))):
            key, _, value = assignment.partition("=")
            key = self.renamed_options.get(key, key)
            if key not in options or not re.fullmatch(r"-?\d+", value):
                available = ", ".join(f"{k}={v}" for k, v in self.defaults.items())
                raise ScheduleError(
                    f"micro-kernel {self.name!r}: no option {assignment!r}; there are, with "
                    "what they"
                    f" are unless set: {available}"
                )
            options[key] = int(value)
        return options


def count_float_ops(value: PrimExpr) -> int:
    """Return the number of float operations in an expression."""
    plain = (BufferLoad, Var, IntImm, FloatImm)
    return sum(dt.is_float(e.dtype) for e in post_order(value) if not isinstance(e, plain))


@lru_cache(maxsize=64)
def _cached_description(
    describe: Callable[[Options], PrimFunc], options: tuple[tuple[str, int], ...]
) -> PrimFunc:
    # Making a description takes as long as matching it.
    return describe(dict(options))


__all__ = [
    "DescribedTile",
    "GatherLoop",
    "MatmulTileNest",
    "MicroKernel",
    "Operand",
    "Options",
    "PanelCopy",
    "PartialSums",
    "SumLoop",
    "count_float_ops",
]
