"""Sums of products of bytes on devices that multiply words of four in one instruction.

    sum over k of a[m, k] * b[n, k]  ->  sum over words of dot4(a[m, word], b[n, word])

A word is four bytes that follow each other along k, put together when a thread brings it into
memory of the block, be they neighbours in memory or not; bytes behind the last step of k are 0, so
any k is served. The rest is as in `thread_tiles`, of int32 along words.

A zero point that is subtracted from bytes before they are multiplied is taken off the sums:

    sum (a - p) (b - q)  ->  sum a b - p sum b - q sum a + k p q

whose sums of bytes are products of words, too: with four ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import Add, Cast, PrimExpr, Sub, Var, cast, const, is_const, minimum
from ekiden.ir.prim_visitor import free_vars, post_order, substitute
from ekiden.runtime.late_methods import dataclass
from ekiden.target import Target
from ekiden.te.prim_func import allocated
from ekiden.te.reducer import Reduce, ReduceAxis, reduce_axis
from ekiden.te.tensor import ProducerLoad
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, LetStmt, PrimFunc, Stmt, seq
from ekiden.topi.rule.decision import Decision
from ekiden.topi.rule.family import size_of
from ekiden.topi.rule.thread_factors import Factors
from ekiden.topi.rule.thread_lanes import coordinates, distance_of
from ekiden.topi.rule.thread_parts import Group
from ekiden.topi.rule.thread_tiles import TileKernel

WORD = 4
"""Bytes of a word."""
DEPTH = 16
"""Words of k between two barriers, at most: as many as the other kernels have numbers."""
LEAST_DEPTH = 4
FACTORS: Mapping[str, str] = {"int8": "s8", "uint8": "u8"}
"""What is multiplied, with sums in int32 -> how instructions name it."""
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
        if not isinstance(factor, (Add, Sub)):
            value = _narrow(factor)
            return None if value is None else Bytes(value)
        value, point = _narrow(factor.a), factor.b
        if value is None or not free_vars(point).isdisjoint(factors.reduce.axis):
            return None
        return Bytes(value, point if isinstance(factor, Sub) else const(0, point.dtype) - point)


def _narrow(factor: PrimExpr) -> PrimExpr | None:
    """Bytes that are widened to int32."""
    is_wide = isinstance(factor, Cast) and factor.dtype == "int32"
    return factor.value if is_wide and factor.value.dtype in FACTORS else None


def ability(a: str, b: str) -> str:
    """The instruction for bytes of two types, which may be given in the other order."""
    left, right = sorted((FACTORS[a], FACTORS[b]), reverse=True)  # u8s8, of different ones
    return f"dot4_{left}{right}"


def can_multiply(factors: Factors, target: Target) -> bool:
    """Whether a target has an instruction for such sums."""
    a, b = (Bytes.of(each, factors) for each in (factors.a, factors.b))
    return a is not None and b is not None and target.has(ability(a.value.dtype, b.value.dtype))


def depth_of(factors: Factors) -> int:
    """Words of k between two barriers: no more than there are."""
    size, depth = size_of(factors.depth), DEPTH
    while size is not None and depth > LEAST_DEPTH and size <= depth // 2 * WORD:
        depth //= 2
    return depth


class Steps:
    """The steps of k of a product, and words of them.

    Where the last axis of k is whole words these have its place, which takes fewer divisions than
    words of all axes as one do.
    """

    def __init__(self, factors: Factors) -> None:
        self.axes, self.depth = factors.reduce.axis, factors.depth
        self.are_whole = is_const(simplify(self.axes[-1].extent % WORD), 0)
        outer = self.axes[:-1] if self.are_whole else ()
        size = self.axes[-1].extent if self.are_whole else self.depth + (WORD - 1)
        self.word = reduce_axis((0, simplify(size // WORD)), "word")
        self.words: tuple[ReduceAxis, ...] = (*outer, self.word)

    def byte(self, value: PrimExpr, number: int) -> PrimExpr:
        """A byte of a word of a factor, as a number without sign; 0 behind the last step."""
        step = self.word * WORD + number
        at = {self.axes[-1]: step} if self.are_whole else self._places(step)
        found = cast(cast(substitute(value, at), "uint8"), "uint32")
        if self.are_whole or number == 0 or is_const(simplify(self.depth % WORD), 0):
            return found
        return if_then_else(step < self.depth, found, const(0, "uint32"))

    def _places(self, step: PrimExpr) -> dict[Var, PrimExpr]:
        at = coordinates(step, [r.extent for r in self.axes])
        return dict(zip(self.axes, at, strict=True))

    def packed(self, value: PrimExpr) -> PrimExpr:
        """A word of a factor, its first byte the lowest."""
        word = self.byte(value, 0)
        for number in range(1, WORD):
            moved = call_intrin("left_shift", self.byte(value, number), const(8 * number, "uint32"))
            word = call_intrin("bitwise_or", word, moved)
        return cast(word, "int32")


@dataclass(frozen=True, slots=True)
class WordGroup(Group):
    """A group whose reduction runs over words."""

    words: Reduce

    @property
    def reduce(self) -> Reduce:
        """What is reduced."""
        return self.words


class WordKernel(TileKernel):
    """One program being built."""

    def __init__(self, group: Group, decision: Decision) -> None:
        super().__init__(group, decision)
        f = self.factors
        a, b = Bytes.of(f.a, f), Bytes.of(f.b, f)
        assert a is not None and b is not None
        steps, self.depth_of_k = Steps(f), f.depth
        self.left, self.right = a, b
        x, y = steps.packed(a.value), steps.packed(b.value)
        words = f.reduce.with_fields(sources=(x * y,), axis=steps.words)
        self.group = WordGroup(group.params, group.inputs, group.output, group.anchor, words)
        self.factors = Factors(x, y, f.batch, f.rows, f.columns, f.extents, words)
        self.of_rows = Buffer("of_rows", (const(self.rows),), self.dtype, "local")
        self.of_columns = Buffer("of_columns", (const(self.columns),), self.dtype, "local")

    @property
    def bytes_sums(self) -> list[tuple[Buffer, Bytes]]:
        """Sums of bytes of rows and of columns: where the other factor has a zero point."""
        of_rows = [] if self.right.point is None else [(self.of_rows, self.left)]
        return of_rows + ([] if self.left.point is None else [(self.of_columns, self.right)])

    def lies_by_steps(self, factor: PrimExpr) -> bool:
        """Whether words are neighbours in the memory that a factor comes from."""
        found = [e for e in post_order(factor) if isinstance(e, ProducerLoad)]
        at, step = self.factors.reduce.axis[-1], Var("step")
        distances = [distance_of(e.producer.shape, e.indices, {at: step}, step) for e in found]
        return all(is_const(d, 0) or is_const(d, WORD) for d in distances)

    def start(self) -> Stmt:
        """All sums are 0."""
        zero, made = const(0, self.dtype), [super().start()]
        for buffer, _ in self.bytes_sums:
            made += [BufferStore(buffer, zero, (const(n),)) for n in range(_count(buffer))]
        return seq(*made)

    def step(self, a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> Stmt:
        """Every sum gets the products of two words, and sums of bytes those of one."""
        names_a = [Var(f"a{i}", e.dtype) for i, e in enumerate(a)]
        names_b = [Var(f"b{j}", e.dtype) for j, e in enumerate(b)]
        kind_a, kind_b = self.left.value.dtype, self.right.value.dtype
        made: list[Stmt] = []
        for i, x in enumerate(names_a):
            for j, y in enumerate(names_b):
                made.append(_added(self.sums, i * self.columns + j, (x, kind_a), (y, kind_b)))
        ones = const(ONES, "int32"), "uint8"
        for buffer, side in self.bytes_sums:
            names = names_a if side is self.left else names_b
            for n, name in enumerate(names):
                made.append(_added(buffer, n, ones, (name, side.value.dtype)))
        body = seq(*made)
        for name, value in reversed([*zip(names_a, a, strict=True), *zip(names_b, b, strict=True)]):
            body = LetStmt(name, value, body)
        return body

    def centred(self) -> Stmt:
        """Take off the sums what zero points have added."""
        f, made = self.factors, list[Stmt]()
        for i in range(self.rows):
            for j in range(self.columns):
                at = (const(i * self.columns + j),)
                row, column = minimum(self.row(i), self.m - 1), minimum(self.column(j), self.n - 1)
                points = [
                    None if side.point is None else self.factor(side.point, axes, number, {})
                    for side, axes, number in (
                        (self.left, f.rows, row),
                        (self.right, f.columns, column),
                    )
                ]
                value = self._without(BufferLoad(self.sums, at, self.dtype), i, j, *points)
                made.append(BufferStore(self.sums, value, at))
        return seq(*made)

    def _without(
        self, total: PrimExpr, i: int, j: int, p: PrimExpr | None, q: PrimExpr | None
    ) -> PrimExpr:
        if p is not None:
            total = total - p * BufferLoad(self.of_columns, (const(j),), self.dtype)
        if q is not None:
            total = total - q * BufferLoad(self.of_rows, (const(i),), self.dtype)
        if p is not None and q is not None:
            total = total + cast(self.depth_of_k, self.dtype) * p * q
        return total

    def build(self, name: str, shared: bool = True) -> PrimFunc:
        """The program."""
        sums, kept = self.blocks(self.steps)
        others = [buffer for buffer, _ in self.bytes_sums]
        centred = [self.centred()] if others else []
        body = seq(self.start(), sums, *centred, self.finish())
        return self.launched(allocated(body, [self.sums, *others]), kept, name)


def _count(buffer: Buffer) -> int:
    found = size_of(buffer.shape[0])
    assert found is not None
    return found


def _added(buffer: Buffer, n: int, x: tuple[PrimExpr, str], y: tuple[PrimExpr, str]) -> Stmt:
    """A sum gets the products of the bytes of two words, whose types are given."""
    at, op = (const(n),), ability(x[1], y[1])
    left, right = (x, y) if op == f"dot4_{FACTORS[x[1]]}{FACTORS[y[1]]}" else (y, x)
    total = BufferLoad(buffer, at, "int32")
    return BufferStore(buffer, call_intrin(op, total, left[0], right[0], dtype="int32"), at)


__all__ = ["FACTORS", "WordKernel", "can_multiply", "depth_of"]
