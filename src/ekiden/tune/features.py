"""What a model of costs sees of a schedule: numbers about the program as it is scheduled. To lower
it would take as long as to compile it.

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

UNKNOWN = 16
"""Turns that a loop counts whose number is not known."""


@dataclass(slots=True)
class _Sums:
    """What is added up on the way."""

    stores: float = 0.0
    operations: float = 0.0
    loads: float = 0.0
    scalar: float = 0.0
    moved: float = 0.0
    kept: float = 0.0
    registers: float = 0.0
    statements: float = 0.0
    innermost: dict[int, float] = field(default_factory=dict)
    parallel: float = 1.0


def program_features(func: PrimFunc) -> Mapping[str, float]:
    """The features of a scheduled program."""
    sums = _Sums()
    _add(sums, func.body, _Place())
    work = max(1.0, sums.operations)
    inner = max(sums.innermost, key=sums.innermost.__getitem__, default=1)
    found = {
        "turns": sums.stores,
        "operations": work,
        "loads of operations": sums.loads / work,
        "stores of operations": sums.stores / work,
        "scalars of operations": sums.scalar / work,
        "bytes of operations": sums.moved / work,
        "kept of operations": sums.kept / work,
        "registers": sums.registers,
        "statements": sums.statements,
        "innermost": inner,
        "parallel": sums.parallel,
    }
    return {name: math.log2(1 + value) for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class _Place:
    """The loops around a statement: turns, lanes of vectors, copies that are written out, turns of
    the innermost serial loop."""

    turns: float = 1.0
    lanes: int = 1
    copies: int = 1
    inner: int = 1

    def within(self, loop: For) -> _Place:
        """Inside a loop."""
        own = loop.extent.value if isinstance(loop.extent, IntImm) else UNKNOWN
        match loop.kind:
            case ForKind.VECTORIZED:
                return replace(self, turns=self.turns * own, lanes=self.lanes * own)
            case ForKind.UNROLLED:
                return replace(self, turns=self.turns * own, copies=self.copies * own)
            case ForKind.SERIAL:
                return replace(self, turns=self.turns * own, inner=own)
        return replace(self, turns=self.turns * own)


def _add(sums: _Sums, stmt: Stmt, place: _Place) -> None:
    """Recursive: statements nest as deep as loops do."""
    if isinstance(stmt, For):
        place = place.within(stmt)
        if stmt.kind is ForKind.PARALLEL:
            own = stmt.extent.value if isinstance(stmt.extent, IntImm) else UNKNOWN
            sums.parallel = max(sums.parallel, own)
    if isinstance(stmt, BufferStore):
        _add_store(sums, stmt, place)
    for each in sub_statements(stmt):
        _add(sums, each, place)


def _add_store(sums: _Sums, stmt: BufferStore, place: _Place) -> None:
    nodes = list(post_order(stmt.value))
    loads = [e for e in nodes if isinstance(e, BufferLoad)]
    floats = sum(dt.is_float(e.dtype) for e in nodes if isinstance(e, BinaryExpr))
    lanes = place.lanes * dt.lanes(stmt.value.dtype)
    operations = place.turns * floats
    sums.stores += place.turns
    sums.statements += place.copies
    sums.operations += operations
    sums.loads += place.turns * len(loads)
    sums.scalar += place.turns * (lanes == 1)
    sums.innermost[place.inner] = sums.innermost.get(place.inner, 0.0) + operations
    for buffer, dtype in [(e.buffer, e.dtype) for e in loads] + [(stmt.buffer, stmt.value.dtype)]:
        size = dt.itemsize(dtype)
        if buffer.scope == "register":
            sums.kept += place.turns * size
            sums.registers = max(sums.registers, place.copies * place.lanes * size)
        else:
            sums.moved += place.turns * size


__all__ = ["program_features"]
