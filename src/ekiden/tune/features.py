"""Cost-model features of a schedule: numbers about the program as it is scheduled. To lower it
would take as long as to compile it.

    turns                   of all stores
    operations              on floats; loads, stores and bytes of them, how many bytes are registers
    scalars of operations   stores that no vectorized loop has around them
    registers               bytes of the largest tile that is written out in registers
    statements              that loops which are written out make
    innermost               turns of the innermost serial loop around most of the operations
    parallel                turns that threads share

Each is a logarithm, of the operations where that is more telling: so that what is learned of one
task says something of another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace

from ekiden.ir import dtype as dt
from ekiden.ir.prim import BinaryExpr, IntImm
from ekiden.ir.prim_visitor import post_order
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import BufferStore, For, ForKind, PrimFunc, Stmt
from ekiden.tir.visitor import sub_statements

ASSUMED_TRIP_COUNT = 16
"""Assumed trip count of a loop whose extent is unknown."""


@dataclass(slots=True)
class _FeatureSums:
    """Feature totals, accumulated while a program is walked."""

    stores: float = 0.0
    operations: float = 0.0
    loads: float = 0.0
    scalar_operations: float = 0.0
    bytes_moved: float = 0.0
    bytes_reused: float = 0.0
    registers: float = 0.0
    statements: float = 0.0
    innermost: dict[int, float] = field(default_factory=dict)
    parallel: float = 1.0


def program_features(func: PrimFunc) -> Mapping[str, float]:
    """Return the features of a scheduled program, on a log scale."""
    sums = _FeatureSums()
    _add_statement(sums, func.body, _LoopNest())
    work = max(1.0, sums.operations)
    inner = max(sums.innermost, key=sums.innermost.__getitem__, default=1)
    values = {
        "turns": sums.stores,
        "operations": work,
        "loads of operations": sums.loads / work,
        "stores of operations": sums.stores / work,
        "scalars of operations": sums.scalar_operations / work,
        "bytes of operations": sums.bytes_moved / work,
        "kept of operations": sums.bytes_reused / work,
        "registers": sums.registers,
        "statements": sums.statements,
        "innermost": inner,
        "parallel": sums.parallel,
    }
    return {name: math.log2(1 + value) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class _LoopNest:
    """Loop nest around a statement, as features need it: iterations, vector lanes, unrolled copies,
    iterations of the innermost serial loop.
    """

    iterations: float = 1.0
    lanes: int = 1
    copies: int = 1
    innermost_iterations: int = 1

    def enter_loop(self, loop: For) -> _LoopNest:
        """Return the nest inside a loop."""
        trip_count = loop.extent.value if isinstance(loop.extent, IntImm) else ASSUMED_TRIP_COUNT
        match loop.kind:
            case ForKind.VECTORIZED:
                return replace(
                    self, iterations=self.iterations * trip_count, lanes=self.lanes * trip_count
                )
            case ForKind.UNROLLED:
                return replace(
                    self, iterations=self.iterations * trip_count, copies=self.copies * trip_count
                )
            case ForKind.SERIAL:
                return replace(
                    self, iterations=self.iterations * trip_count, innermost_iterations=trip_count
                )
        return replace(self, iterations=self.iterations * trip_count)


def _add_statement(sums: _FeatureSums, stmt: Stmt, nest: _LoopNest) -> None:
    """Accumulate a statement's features, recursing as deep as loops nest."""
    if isinstance(stmt, For):
        nest = nest.enter_loop(stmt)
        if stmt.kind is ForKind.PARALLEL:
            trip_count = (
                stmt.extent.value if isinstance(stmt.extent, IntImm) else ASSUMED_TRIP_COUNT
            )
            sums.parallel = max(sums.parallel, trip_count)
    if isinstance(stmt, BufferStore):
        _add_store(sums, stmt, nest)
    for inner in sub_statements(stmt):
        _add_statement(sums, inner, nest)


def _add_store(sums: _FeatureSums, stmt: BufferStore, nest: _LoopNest) -> None:
    """Accumulate the features of one store."""
    nodes = list(post_order(stmt.value))
    loads = [e for e in nodes if isinstance(e, BufferLoad)]
    floats = sum(dt.is_float(e.dtype) for e in nodes if isinstance(e, BinaryExpr))
    lanes = nest.lanes * dt.lanes(stmt.value.dtype)
    operations = nest.iterations * floats
    sums.stores += nest.iterations
    sums.statements += nest.copies
    sums.operations += operations
    sums.loads += nest.iterations * len(loads)
    sums.scalar_operations += nest.iterations * (lanes == 1)
    sums.innermost[nest.innermost_iterations] = (
        sums.innermost.get(nest.innermost_iterations, 0.0) + operations
    )
    for buffer, dtype in [(e.buffer, e.dtype) for e in loads] + [(stmt.buffer, stmt.value.dtype)]:
        size = dt.itemsize(dtype)
        if buffer.scope == "register":
            sums.bytes_reused += nest.iterations * size
            # The largest live tile approximates register pressure: unrolled copies times lanes.
            sums.registers = max(sums.registers, nest.copies * nest.lanes * size)
        else:
            sums.bytes_moved += nest.iterations * size


__all__ = ["program_features"]
