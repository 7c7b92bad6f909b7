"""Loops that sum products of bytes and do nothing else, which some processors do otherwise.

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

WORD, LANES = 4, 4
"""Bytes of a word, words of a vector."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a step loads of one factor: the variable, and where its bytes begin."""

    var: Var
    buffer: Buffer
    index: PrimExpr
    step: int
    """Bytes to those of the next step."""


@dataclass(slots=True)
class Dots:
    """What a nest of loops does that sums products of bytes and nothing else."""

    loops: list[For] = field(default_factory=list)
    data: list[Word] = field(default_factory=list)
    weights: list[Word] = field(default_factory=list)
    acc: Buffer | None = None
    sums: dict[tuple[Var, Var], PrimExpr] = field(default_factory=dict)
    """(data, weights) -> the sum that their products are added to."""

    @staticmethod
    def of(loop: For) -> Dots | None:
        """Those of a nest."""
        found = Dots()
        at: Stmt = loop
        while isinstance(at, For):
            if not is_const(at.min, 0) or not isinstance(at.extent, IntImm):
                return None
            found.loops.append(at)
            at = at.body
        waiting = [at]
        while waiting:
            s = waiting.pop()
            if isinstance(s, SeqStmt):
                waiting.extend(reversed(s.seq))
            elif not found._take(s):
                return None
            elif isinstance(s, LetStmt):
                waiting.append(s.body)
        return found if found._is_whole() else None

    @property
    def sum_buffer(self) -> Buffer:
        """Of the sums."""
        assert self.acc is not None
        return self.acc

    @property
    def steps(self) -> int:
        """Of the innermost loop."""
        extent = self.loops[-1].extent
        assert isinstance(extent, IntImm)
        return extent.value

    @property
    def outer(self) -> Sequence[For]:
        """All loops but that one."""
        return self.loops[:-1]

    @property
    def columns(self) -> int:
        """All lanes of all weights."""
        return LANES * len(self.weights)

    def first(self, word: Word) -> PrimExpr:
        """Where a word begins in the first step of the innermost loop."""
        k = self.loops[-1].loop_var
        return simplify(substitute(word.index, {k: const(0, k.dtype)}))

    def _take(self, s: Stmt) -> bool:
        """Whether a statement is one of these."""
        if isinstance(s, LetStmt):
            return self._take_word(s)
        if not isinstance(s, BufferStore) or s.predicate is not None:
            return False
        value, index = s.value, s.indices[0]
        if not isinstance(value, Intrinsic) or value.op != "dot4_u8s8":
            return False
        old, data, weight = value.args
        is_own = isinstance(old, BufferLoad) and old.buffer is s.buffer
        if not is_own or not isinstance(old, BufferLoad) or not isinstance(index, IntImm):
            return False
        if not is_const(old.indices[0], index.value) or self.acc not in (None, s.buffer):
            return False
        if not isinstance(data, Var) or not isinstance(weight, Var):
            return False
        self.acc = s.buffer
        self.sums[data, weight] = index
        return True

    def _take_word(self, s: LetStmt) -> bool:
        """let a = broadcast(word of uint8), or let b = words of int8"""
        if s.var.dtype != dt.with_lanes("int32", LANES):
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
        if not is_const(ramp.stride, 1) or ramp.lanes != (WORD if is_data else WORD * LANES):
            return False
        moved = substitute(ramp.base, {k: k + const(1, k.dtype)}) - ramp.base
        step = simplify(moved)
        if not isinstance(step, IntImm) or step.value % WORD or (is_data and step.value != WORD):
            return False
        to = self.data if is_data else self.weights
        to.append(Word(s.var, load.buffer, ramp.base, step.value))
        return True

    def _is_whole(self) -> bool:
        """Whether all data are multiplied with all weights, whose words lie side by side."""
        pairs = {(d.var, w.var) for d in self.data for w in self.weights}
        if not pairs or pairs != set(self.sums):
            return False
        begin = self.weights[0]
        return all(
            w.buffer is begin.buffer
            and w.step == begin.step
            and is_const(simplify(w.index - begin.index), n * WORD * LANES)
            for n, w in enumerate(self.weights)
        )


__all__ = ["LANES", "WORD", "Dots", "Word"]
