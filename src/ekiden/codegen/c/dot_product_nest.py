"""Recognise loop nests that compute int8 dot products and nothing else.

for k in n: b = words of B[k]; a = word of A[k] in all lanes; acc[0] = dot4_u8s8(acc[0], a, b); ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Broadcast, Buffer, BufferLoad, Ramp
from ekiden.tir.stmt import BufferStore, For, LetStmt, SeqStmt, Stmt

WORD_BYTES, VECTOR_WORDS = 4, 4
"""WORD_BYTES: bytes per word. VECTOR_WORDS: words per vector."""


@dataclass(frozen=True, slots=True)
class OperandLoad:
    """Load of one int8 operand in an iteration: the variable it binds, the buffer, the byte offset
    and the step of the innermost loop.
    """

    var: Var
    buffer: Buffer
    index: PrimExpr
    step: int
    """Byte stride between iterations of the innermost loop."""


@dataclass(slots=True)
class DotProductNest:
    """Loop nest that only accumulates products of uint8 data and int8 weights."""

    loops: list[For] = field(default_factory=list)
    data: list[OperandLoad] = field(default_factory=list)
    weights: list[OperandLoad] = field(default_factory=list)
    acc: Buffer | None = None
    sums: dict[tuple[Var, Var], PrimExpr] = field(default_factory=dict)
    """Accumulator of each (data, weights) pair."""

    @staticmethod
    def match(loop: For) -> DotProductNest | None:
        """Match a loop nest; return None if it does anything but accumulate dot products."""
        nest = DotProductNest()
        current: Stmt = loop
        while isinstance(current, For):
            if not is_const(current.min, 0) or not isinstance(current.extent, IntImm):
                return None
            nest.loops.append(current)
            current = current.body
        waiting = [current]
        while waiting:
            s = waiting.pop()
            if isinstance(s, SeqStmt):
                waiting.extend(reversed(s.seq))
            elif not nest._match_statement(s):
                return None
            elif isinstance(s, LetStmt):
                waiting.append(s.body)
        return nest if nest._covers_all_pairs() else None

    @property
    def sum_buffer(self) -> Buffer:
        """Return the accumulator buffer."""
        assert self.acc is not None
        return self.acc

    @property
    def reduction_extent(self) -> int:
        """Return the trip count of the innermost (reduction) loop."""
        extent = self.loops[-1].extent
        assert isinstance(extent, IntImm)
        return extent.value

    @property
    def outer_loops(self) -> Sequence[For]:
        """Return all loops but the innermost."""
        return self.loops[:-1]

    @property
    def num_columns(self) -> int:
        """Return the number of output columns: all lanes of all weight vectors."""
        return VECTOR_WORDS * len(self.weights)

    def initial_offset(self, word: OperandLoad) -> PrimExpr:
        """Return the offset of a word in the first iteration of the innermost loop."""
        k = self.loops[-1].loop_var
        return simplify(substitute(word.index, {k: const(0, k.dtype)}))

    def _match_statement(self, s: Stmt) -> bool:
        """Match a statement of the nest against the pattern and record it; return False if it does
        not fit.
        """
        if isinstance(s, LetStmt):
            return self._match_operand_load(s)
        if not isinstance(s, BufferStore) or s.predicate is not None:
            return False
        value, index = s.value, s.indices[0]
        if not isinstance(value, Intrinsic) or value.op != "dot4_u8s8":
            return False
        old, data, weight = value.args
        is_own = isinstance(old, BufferLoad) and old.buffer is s.buffer
        if not is_own or not isinstance(old, BufferLoad) or not isinstance(index, IntImm):
            return False
        # A store must add to the sum that it replaces, and all sums belong to one buffer.
        if not is_const(old.indices[0], index.value) or self.acc not in (None, s.buffer):
            return False
        if not isinstance(data, Var) or not isinstance(weight, Var):
            return False
        self.acc = s.buffer
        self.sums[data, weight] = index
        return True

    def _match_operand_load(self, s: LetStmt) -> bool:
        """Match `let a = broadcast(word of uint8)` or `let b = words of int8` and record the
        operand; return False for other lets.
        """
        if s.var.dtype != dt.with_lanes("int32", VECTOR_WORDS):
            return False
        is_data = isinstance(s.value, Broadcast)
        value = s.value.value if isinstance(s.value, Broadcast) else s.value
        if not isinstance(value, Intrinsic) or value.op != "reinterpret":
            return False
        load = value.args[0]
        if not isinstance(load, BufferLoad) or len(load.indices) != 1:
            return False
        ramp, k = load.indices[0], self.loops[-1].loop_var
        if load.buffer.dtype != ("uint8" if is_data else "int8") or not isinstance(ramp, Ramp):
            return False
        if not is_const(ramp.stride, 1) or ramp.lanes != (
            WORD_BYTES if is_data else WORD_BYTES * VECTOR_WORDS
        ):
            return False
        moved = substitute(ramp.base, {k: k + const(1, k.dtype)}) - ramp.base
        step = simplify(moved)
        if (
            not isinstance(step, IntImm)
            or step.value % WORD_BYTES
            or (is_data and step.value != WORD_BYTES)
        ):
            return False
        to = self.data if is_data else self.weights
        to.append(OperandLoad(s.var, load.buffer, ramp.base, step.value))
        return True

    def _covers_all_pairs(self) -> bool:
        """Return whether each data word is multiplied by each weight vector, with contiguous weight
        vectors.
        """
        pairs = {(d.var, w.var) for d in self.data for w in self.weights}
        if not pairs or pairs != set(self.sums):
            return False
        # The writer addresses all weight vectors from the first, so they must be contiguous in one
        # buffer.
        begin = self.weights[0]
        return all(
            w.buffer is begin.buffer
            and w.step == begin.step
            and is_const(simplify(w.index - begin.index), n * WORD_BYTES * VECTOR_WORDS)
            for n, w in enumerate(self.weights)
        )


__all__ = ["VECTOR_WORDS", "WORD_BYTES", "DotProductNest", "OperandLoad"]
