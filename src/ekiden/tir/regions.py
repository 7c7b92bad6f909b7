"""Which part of a buffer the statements inside a loop touch, in terms of what is outside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ekiden.arith import Analyzer
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.ir.prim_visitor import post_order, substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BlockRealize, BufferStore, For, IfThenElse, Stmt
from ekiden.tir.visitor import expressions, sub_statements


@dataclass(frozen=True, slots=True)
class Range:
    """[low, low + extent) along one axis."""

    low: PrimExpr
    extent: PrimExpr


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of a buffer: its indices over loop variables, and the loops between here
    and there.
    """

    indices: tuple[PrimExpr, ...]
    loops: tuple[For, ...]
    is_store: bool
    conditional: bool


def accesses(root: Stmt, buffer: Buffer) -> list[Access]:
    """Every access of a buffer inside a statement in program order (a store's loads before the
    store).
    """
    found: list[Access] = []
    _collect(root, buffer, (), {}, False, found)
    return found


def _collect(
    s: Stmt,
    buffer: Buffer,
    loops: tuple[For, ...],
    values: dict[Var, PrimExpr],
    conditional: bool,
    out: list[Access],
) -> None:
    for e in post_order(*expressions(s)):
        if isinstance(e, BufferLoad) and e.buffer is buffer:
            out.append(
                Access(tuple(substitute(i, values) for i in e.indices), loops, False, conditional)
            )
    if isinstance(s, BufferStore) and s.buffer is buffer:
        out.append(
            Access(tuple(substitute(i, values) for i in s.indices), loops, True, conditional)
        )
    if isinstance(s, For):
        loops = (*loops, s)
    if isinstance(s, BlockRealize):
        given = (substitute(v, values) for v in s.iter_values)
        values = values | {i.var: v for i, v in zip(s.block.iter_vars, given, strict=True)}
    conditional = conditional or isinstance(s, IfThenElse)
    for inner in sub_statements(s):
        _collect(inner, buffer, loops, values, conditional, out)


def region(buffer: Buffer, touched: Sequence[Access], outer: Iterable[For]) -> list[Range]:
    """The smallest box known to hold all accesses, as a function of the loops outside; a whole axis
    where nothing is known.
    """
    analyzer = Analyzer()
    for loop in outer:
        analyzer.bind(loop.loop_var, loop.min, loop.extent)
    for access in touched:
        for loop in access.loops:
            analyzer.bind(loop.loop_var, loop.min, loop.extent)
    return [_range(n, dim, touched, analyzer) for n, dim in enumerate(buffer.shape)]


def _range(axis: int, dim: PrimExpr, touched: Sequence[Access], analyzer: Analyzer) -> Range:
    whole = Range(const(0), dim)
    base: PrimExpr | None = None
    low, high = math.inf, -math.inf
    for access in touched:
        index = access.indices[axis]
        start = substitute(index, {loop.loop_var: loop.min for loop in access.loops})
        base = start if base is None else base
        bounds = analyzer.const_int_bound(index - base)
        low, high = min(low, bounds[0]), max(high, bounds[1])
    if base is None or math.isinf(low) or math.isinf(high):
        return whole
    extent = int(high - low) + 1
    if isinstance(dim, IntImm) and extent >= dim.value:
        return whole
    return Range(analyzer.simplify(base + int(low)), const(extent))
