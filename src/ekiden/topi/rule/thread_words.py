"""Sums of products of bytes on devices that multiply words of four in one instruction.

    for blocks of k: all threads bring their share of a and b into memory of the block, four bytes
        that follow each other along k as a word; barrier;
    for each word: sum = dot4(word of a, word of b, sum); barrier

Bytes behind the last step of k are 0, so any k is served, and where bytes that follow each other
along k are no neighbours in memory they are gathered. A zero point that is subtracted from bytes
before they are multiplied is taken off behind the sums:

    sum (a - p) (b - q)  ->  sum a b - p sum b - q sum a + k p q

whose sums of bytes are products of words, too: with four ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import Add, IntImm, PrimExpr, Sub, Var, cast, const
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.late_methods import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, PrimFunc, Stmt, seq
from ekiden.topi.rule.decision import Decision
from ekiden.topi.rule.family import size_of
from ekiden.topi.rule.thread_factors import Factors, narrow
from ekiden.topi.rule.thread_lanes import coordinates
from ekiden.topi.rule.thread_parts import Group
from ekiden.topi.rule.thread_tiles import Share, TileKernel

WORD = 4
"""Bytes of a word."""
DEPTH = 64
"""Steps of k between two barriers, at most: as many words as the other kernels have numbers."""
FACTORS: Mapping[str, str] = {"int8": "int32", "uint8": "int32"}
"""What is multiplied -> the type of sums."""
LETTERS = {"int8": "s8", "uint8": "u8"}
ONES = 0x01010101
"""Four bytes of 1."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """A factor: bytes, less a number that is the same for all steps of k if there is one."""

    value: PrimExpr
    point: PrimExpr | None = None

    @staticmethod
    def of(factor: PrimExpr, factors: Factors) -> Bytes | None:
        """That of an expression; None for another one."""
        value = narrow(factor, FACTORS)
        if value is not None:
            return Bytes(value)
        if not isinstance(factor, (Add, Sub)):
            return None
        value, steps = narrow(factor.a, FACTORS), {r.var for r in factors.reduce.axis}
        if value is None or not steps.isdisjoint(free_vars(factor.b)):
            return None
        return Bytes(value, factor.b if isinstance(factor, Sub) else 0 - factor.b)


def ability(a: str, b: str) -> str:
    """The instruction for bytes of two types, which may be given in the other order."""
    left, right = LETTERS[a], LETTERS[b]
    return f"dot4_{right}{left}" if (left, right) == ("s8", "u8") else f"dot4_{left}{right}"


def can_multiply(factors: Factors, target: Target) -> bool:
    """Whether a target has an instruction for such sums."""
    a, b = (Bytes.of(each, factors) for each in (factors.a, factors.b))
    return a is not None and b is not None and target.has(ability(a.value.dtype, b.value.dtype))


def depth_of(factors: Factors) -> int:
    """Steps of k between two barriers: no more than there are."""
    size, depth = size_of(factors.depth), DEPTH
    while size is not None and depth > WORD and size <= depth // 2:
        depth //= 2
    return depth


class WordKernel(TileKernel):
    """One program being built; its steps of k are words."""

    def __init__(self, group: Group, decision: Decision) -> None:
        super().__init__(group, decision)
        self.depth //= WORD
        a, b = (Bytes.of(each, self.factors) for each in (self.factors.a, self.factors.b))
        assert a is not None and b is not None
        self.left, self.right = a, b
        self.of_rows = Buffer("of_rows", (const(self.rows),), self.dtype, "local")
        self.of_columns = Buffer("of_columns", (const(self.columns),), self.dtype, "local")

    @property
    def bytes_sums(self) -> list[tuple[Buffer, int, Bytes]]:
        """Sums of bytes that are wanted, of how many rows or columns, and of what: those of a
        factor where the other has a zero point."""
        found = []
        if self.right.point is not None:
            found.append((self.of_rows, self.rows, self.left))
        if self.left.point is not None:
            found.append((self.of_columns, self.columns, self.right))
        return found

    @property
    def held(self) -> list[Buffer]:
        """What a thread has by itself."""
        return [self.sums, *(buffer for buffer, _, _ in self.bytes_sums)]

    @property
    def steps_of_k(self) -> PrimExpr:
        """Words of k."""
        return simplify((self.factors.depth + (WORD - 1)) // WORD)

    def kept(self, factor: PrimExpr) -> PrimExpr:
        """What memory of the block has of a factor: its bytes."""
        return (self.left if factor is self.factors.a else self.right).value

    def stored(self, dtype: str) -> str:
        """The type of a word."""
        return "int32"

    def brought(self, share: Share, place: PrimExpr, k: PrimExpr) -> PrimExpr:
        """A word of a factor; its first byte is the lowest."""
        word = self._byte(share, place, k, 0)
        for number in range(1, WORD):
            byte = self._byte(share, place, k, number)
            moved = call_intrin("left_shift", byte, const(8 * number, "uint32"))
            word = call_intrin("bitwise_or", word, moved)
        return cast(word, "int32")

    def _byte(self, share: Share, place: PrimExpr, word: PrimExpr, number: int) -> PrimExpr:
        """A byte of a word as a number without sign; 0 behind the last step."""
        reduced = self.group.reduce.axis
        extents, depth = [r.extent for r in reduced], self.factors.depth
        last, step = size_of(extents[-1]), word * WORD + number
        if last is not None and last % WORD == 0:
            at = coordinates(word, [*extents[:-1], const(last // WORD)])
            at[-1] = at[-1] * WORD + number
        else:
            at = coordinates(step, extents)
        steps: dict[Var, PrimExpr] = dict(zip(reduced, at, strict=True))
        read = self.factor(share.value, share.axes, place, steps)
        byte = cast(cast(read, "uint8"), "uint32")
        if number == 0 or _divides(WORD, depth):
            return byte
        return if_then_else(step < depth, byte, const(0, "uint32"))

    def start(self) -> Stmt:
        """All sums are 0."""
        zero = const(0, self.dtype)
        others = [
            BufferStore(buffer, zero, (const(n),))
            for buffer, count, _ in self.bytes_sums
            for n in range(count)
        ]
        return seq(super().start(), *others)

    def products(self, a: Sequence[Var], b: Sequence[Var]) -> list[Stmt]:
        """Every sum gets its product, and sums of bytes their bytes."""
        words = {id(self.left): a, id(self.right): b}
        others = []
        for buffer, count, factor in self.bytes_sums:
            for n in range(count):
                at, word = (const(n),), words[id(factor)][n]
                total = BufferLoad(buffer, at, self.dtype)
                others.append(BufferStore(buffer, _dot(total, _ONES, word, "uint8", factor), at))
        return [*super().products(a, b), *others]

    def added(self, total: PrimExpr, x: Var, y: Var) -> PrimExpr:
        """A sum and the products of two words."""
        return _dot(total, x, y, self.left.value.dtype, self.right)

    def total(self, i: int, j: int) -> PrimExpr:
        """A sum, without what zero points have added."""
        found = super().total(i, j)
        f = self.factors
        points = [
            None if side.point is None else self.factor(side.point, axes, number, {})
            for side, axes, number in (
                (self.left, f.rows, self.row(i)),
                (self.right, f.columns, self.column(j)),
            )
        ]
        of_a, of_b = points
        if of_a is not None:
            found = found - of_a * BufferLoad(self.of_columns, (const(j),), self.dtype)
        if of_b is not None:
            found = found - of_b * BufferLoad(self.of_rows, (const(i),), self.dtype)
        if of_a is not None and of_b is not None:
            found = found + cast(f.depth, self.dtype) * of_a * of_b
        return found

    def build(self, name: str, shared: bool = True) -> PrimFunc:
        """The program."""
        return super().build(name, shared=True)


_ONES = const(ONES, "int32")


def _dot(total: PrimExpr, x: PrimExpr, y: PrimExpr, of_x: str, other: Bytes) -> PrimExpr:
    """A sum and the products of the bytes of two words, of types that are given."""
    of_y = other.value.dtype
    op = ability(of_x, of_y)
    return call_intrin(op, total, *((x, y) if op.endswith(LETTERS[of_y]) else (y, x)), dtype="int32")


def _divides(number: int, size: PrimExpr) -> bool:
    """Whether a size is known to be a multiple of a number."""
    rest = simplify(size % number)
    return isinstance(rest, IntImm) and rest.value == 0


__all__ = ["DEPTH", "FACTORS", "WordKernel", "can_multiply", "depth_of"]
