"""Sums of products of bytes by the vectors of Cortex-M55 (MVE, Helium), 16 at a time.

for k in n: b = word of B[4 k]; a = word of A[4 k]; acc[0] = dot4(acc[0], a, b); ...
->  the same over vectors of four words, then over the words that are left.

Instructions multiply bytes of one kind, and data are unsigned where weights are signed: data are
taken less 128, and 128 times the sum of the weights is added behind the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import substitute
from ekiden.tir.expr import Buffer, BufferLoad, Ramp
from ekiden.tir.stmt import BufferStore, For, LetStmt, SeqStmt, Stmt

WORD, WORDS = 4, 4
"""Bytes of a word, words of a vector."""
HEAD = """\
#if defined(__ARM_FEATURE_MVE)
#include <arm_mve.h>
#endif"""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that a step loads: the variable, and the bytes it is made of."""

    var: Var
    buffer: Buffer
    index: PrimExpr
    step: int
    """Bytes to the word of the next step: more than a word in panels of several columns."""

    @property
    def is_unsigned(self) -> bool:
        """Whether its bytes are data, not weights."""
        return self.buffer.dtype == "uint8"


@dataclass(frozen=True, slots=True)
class Update:
    """acc[index] = dot4(acc[index], data, weight)"""

    acc: Buffer
    index: PrimExpr
    data: Var
    weight: Var


@dataclass(slots=True)
class Dots:
    """What such a loop does in a step."""

    words: list[Word] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)

    @staticmethod
    def of(loop: For) -> Dots | None:
        """Those of a loop that does nothing else, and has a vector of steps at least."""
        extent = loop.extent
        if not is_const(loop.min, 0) or not isinstance(extent, IntImm) or extent.value < WORDS:
            return None
        found = Dots()
        waiting = [loop.body]
        while waiting:
            s = waiting.pop()
            if isinstance(s, SeqStmt):
                waiting.extend(reversed(s.seq))
            elif not found._take(s, loop.loop_var):
                return None
            elif isinstance(s, LetStmt):
                waiting.append(s.body)
        return found if found._is_whole() else None

    def _take(self, s: Stmt, k: Var) -> bool:
        """Whether a statement is one of these."""
        if isinstance(s, LetStmt):
            word = _word(s, k)
            if word is not None:
                self.words.append(word)
            return word is not None
        update = _update(s)
        if update is not None:
            self.updates.append(update)
        return update is not None

    def _is_whole(self) -> bool:
        known = {w.var: w.is_unsigned for w in self.words}
        return bool(self.updates) and all(
            known.get(u.data) is True and known.get(u.weight) is False for u in self.updates
        )


def _word(s: LetStmt, k: Var) -> Word | None:
    """let v = reinterpret(buffer[ramp(index, 1, 4)]), four bytes further in each step"""
    value = s.value
    if not isinstance(value, Intrinsic) or value.op != "reinterpret" or value.dtype != "int32":
        return None
    load = value.args[0]
    if not isinstance(load, BufferLoad) or load.buffer.dtype not in ("int8", "uint8"):
        return None
    ramp = load.indices[0]
    if not isinstance(ramp, Ramp) or not is_const(ramp.stride, 1) or ramp.lanes != WORD:
        return None
    step = substitute(ramp.base, {k: k + const(1, k.dtype)}) - ramp.base
    apart = simplify(step)
    if not isinstance(apart, IntImm) or apart.value < WORD or apart.value % WORD:
        return None
    if apart.value > WORD and load.buffer.dtype == "uint8":  # not known to begin at a word
        return None
    return Word(s.var, load.buffer, ramp.base, apart.value)


def _update(s: Stmt) -> Update | None:
    if not isinstance(s, BufferStore) or s.predicate is not None:
        return None
    value = s.value
    if not isinstance(value, Intrinsic) or value.op != "dot4_u8s8" or value.dtype != "int32":
        return None
    old, data, weight = value.args
    same = isinstance(old, BufferLoad) and old.buffer is s.buffer
    if not same or not isinstance(old, BufferLoad) or not isinstance(s.indices[0], IntImm):
        return None
    if not isinstance(data, Var) or not isinstance(weight, Var):
        return None
    at = old.indices[0]
    is_own = isinstance(at, IntImm) and at.value == s.indices[0].value
    return Update(s.buffer, s.indices[0], data, weight) if is_own else None


__all__ = ["HEAD", "WORDS", "Dots", "Update", "Word"]
