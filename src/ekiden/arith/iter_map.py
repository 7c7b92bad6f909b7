"""Iteration maps (TVM's iter_affine_map): index expressions as sums of splits (mixed-radix digits)
of loop iterators.

An index like `i * 16 + j // 4` is a sum of splits; a split is a digit of a mark, that is of a loop
variable or of a fused sum in mixed radix:

    IterSplit(m, lower, extent, scale)  =  (m // lower % extent) * scale
    IterSum((s0, s1, ...), base)        =  s0 + s1 + ... + base
    IterMark(source, extent)            =  source, known to be in [0, extent)

For i in [0, 8), j in [0, 64), of the index i * 16 + j // 4:

    IterSum((IterSplit(i, 1, 8, 16), IterSplit(j, 4, 16, 1)), 0)

where each scale is the product of the extents below it, so that the sum counts through [0, 128)
without gaps: a number in mixed radix. Such a sum can be divided again: (i * 16 + j // 4) // 32 is
the digit i // 2. Where the divisor falls among several digits, these are fused into a mark of their
own, and a digit of that is taken.

`detect_iter_map` writes indices this way and checks that no digit is used twice, and (bijective)
that every digit is used: then the indices visit each point exactly once. Names follow TVM 0.16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import TypeAlias

from ekiden.arith.analyzer import Analyzer
from ekiden.ir.prim import (
    GE,
    GT,
    LE,
    LT,
    Add,
    And,
    BinaryExpr,
    FloorDiv,
    FloorMod,
    IntImm,
    Mul,
    PrimExpr,
    Sub,
    Var,
    convert,
)
from ekiden.ir.prim_visitor import (
    chain_operands,
    children,
    free_vars,
    is_same_expr,
    post_order,
    rewrite,
    substitute,
)
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass

Size: TypeAlias = int | PrimExpr
"""Constant or symbolic size."""


class IterMapLevel(Enum):
    """Strength of the claim that `detect_iter_map` checks."""

    NO_CHECK = "no_check"
    SURJECTIVE = "surjective"
    BIJECTIVE = "bijective"


class IterMapError(Exception):
    """Reason why indices are no iteration map, returned in `IterMapResult.errors`."""


@dataclass(frozen=True, slots=True, eq=False)
class IterMark:
    """Iterator (a variable minus its range's start) or fused sum, in [0, extent)."""

    source: Var | IterSum
    extent: Size


@dataclass(frozen=True, slots=True, eq=False)
class IterSplit:
    """Split of an iterator: `source // lower_factor % extent * scale`."""

    source: IterMark
    lower_factor: Size
    extent: Size
    scale: Size

    def key(self) -> tuple[object, ...]:
        """Return the identity of the split, irrespective of scale."""
        return (self.source, size_key(self.lower_factor), size_key(self.extent))


@dataclass(frozen=True, slots=True, eq=False)
class IterSum:
    """Sum of splits and a loop-invariant base."""

    args: tuple[IterSplit, ...]
    base: Size


@dataclass(frozen=True, slots=True)
class IterMapResult:
    """One IterSum per index (none if it is no map), and the errors."""

    indices: tuple[IterSum, ...] = ()
    errors: tuple[str, ...] = ()


def _as_python_int(value: Size) -> Size:
    return value.value if isinstance(value, IntImm) else value


def size_key(value: Size) -> object:
    """Return the identity of a size: its number, or the expression's id."""
    return value if isinstance(value, int) else id(value)


@dataclass(slots=True)
class _SizeArithmetic:
    """Arithmetic and proofs about sizes under the iterators' ranges."""

    analyzer: Analyzer = field(default_factory=Analyzer)

    def simplify(self, value: Size) -> Size:
        """Simplify a size, to an int if constant."""
        if isinstance(value, int):
            return value
        return _as_python_int(self.analyzer.simplify(value))

    def simplify_base(self, value: Size) -> Size:
        """Simplify a base, preserving the quotients and remainders of outer iterators."""
        if isinstance(value, int):
            return value
        return _as_python_int(simplify_around_digits(value, self.analyzer))

    def can_prove_equal(self, a: Size, b: Size) -> bool:
        """Return whether two sizes are provably equal."""
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return self.analyzer.can_prove_equal(_as_expr(a, b), _as_expr(b, a))

    def can_prove_divides(self, divisor: Size, value: Size) -> bool:
        """Return whether value is provably a multiple of the non-zero divisor."""
        if isinstance(divisor, int) and isinstance(value, int):
            return divisor != 0 and value % divisor == 0
        return self.simplify(_as_expr(value, divisor) % divisor) == 0

    def can_prove_at_most(self, a: Size, b: Size) -> bool:
        """Return whether a <= b is provable."""
        if isinstance(a, int) and isinstance(b, int):
            return a <= b
        return self.analyzer.can_prove(_as_expr(a, b) <= b)

    def divide(self, a: Size, b: Size) -> Size:
        return self.simplify(a // b)

    def multiply(self, a: Size, b: Size) -> Size:
        return self.simplify(a * b)


def _as_expr(value: Size, like: Size = 0) -> PrimExpr:
    return value if isinstance(value, PrimExpr) else convert(value, getattr(like, "dtype", None))


class IterMapDetector:
    """Converter of expressions over iterators to sums of splits."""

    def __init__(
        self,
        iters: Mapping[Var, Range],
        level: IterMapLevel,
        trivial: bool,
        whole_sums: bool = False,
    ) -> None:
        self.divides_whole_sums = whole_sums
        """Whether a sum divides as one digit even where the divisor falls between two of its
        digits.
        """
        self.size_arithmetic = _SizeArithmetic()
        self.level = level
        self.mark_of_var: dict[Var, IterMark] = {}
        self.start_of_var: dict[Var, Size] = {}
        self.constrained_sums: list[tuple[IterSum, IterMark]] = []
        """Fused sums with smallest scale 1 that a predicate bounds, with their marks."""
        self._fused_marks: dict[tuple[object, ...], IterMark] = {}
        self._parsed_sums: dict[int, IterSum] = {}
        self._keepalive: list[PrimExpr] = []
        for var, domain in iters.items():
            self.size_arithmetic.analyzer.bind(var, domain.min, domain.extent)
            extent = self.size_arithmetic.simplify(domain.extent)
            self.start_of_var[var] = self.size_arithmetic.simplify(domain.min)
            # An iterator of extent 1 is its start: it would be a digit of no value.
            if not (trivial and extent == 1):
                self.mark_of_var[var] = IterMark(var, extent)

    # From expressions to sums.

    def parse(self, expr: PrimExpr) -> IterSum:
        """Parse an expression to a sum of splits.

        Raises:
            IterMapError: It is none.
        """
        for node in post_order(expr):
            if id(node) not in self._parsed_sums:
                self._parsed_sums[id(node)] = self._parse_node(node)
                self._keepalive.append(node)
        return self._parsed_sums[id(expr)]

    def _parse_node(self, e: PrimExpr) -> IterSum:
        if isinstance(e, IntImm):
            return IterSum((), e.value)
        if isinstance(e, Var):
            return self._parse_var(e)
        inside = [self._parsed_sums[id(c)] for c in children(e)]
        # No iterator is inside: the node belongs to the base.
        if not any(s.args for s in inside):
            values = {
                v: _as_expr(b, v) for v, b in self.start_of_var.items() if v not in self.mark_of_var
            }
            return IterSum((), self.size_arithmetic.simplify_base(substitute(e, values)))
        if not isinstance(e, BinaryExpr):
            raise IterMapError(f"{type(e).__name__} of an iterator is not a digit of it")
        a, b = inside
        match e:
            case Add():
                return self.add_sums(a, b, 1)
            case Sub():
                return self.add_sums(a, b, -1)
            case Mul():
                if a.args and b.args:
                    raise IterMapError("a product of iterators is not a sum of digits")
                return self.scale_sum(a, b.base) if a.args else self.scale_sum(b, a.base)
            case FloorDiv() | FloorMod():
                if b.args:
                    raise IterMapError("division by an iterator is not a digit")
                return self._divide_sum(a, b.base, isinstance(e, FloorDiv))
        raise IterMapError(f"'{e.symbol}' of an iterator is not a digit of it")

    def _parse_var(self, var: Var) -> IterSum:
        mark = self.mark_of_var.get(var)
        if mark is None:
            return IterSum((), self.start_of_var.get(var, var))
        return IterSum((IterSplit(mark, 1, mark.extent, 1),), self.start_of_var[var])

    def add_sums(self, a: IterSum, b: IterSum, sign: int) -> IterSum:
        """Return a + sign * b, merging equal splits."""
        merged = {s.key(): s for s in a.args}
        for split in b.args:
            # The same digit twice is one with the sum of the scales.
            old = merged.get(split.key())
            scale = self.size_arithmetic.simplify((old.scale if old else 0) + split.scale * sign)
            # Equal digits of opposite sign cancel.
            if scale == 0:
                del merged[split.key()]
            else:
                merged[split.key()] = IterSplit(
                    split.source, split.lower_factor, split.extent, scale
                )
        base = self.size_arithmetic.simplify_base(a.base + b.base * sign)
        return IterSum(tuple(merged.values()), base)

    def scale_sum(self, a: IterSum, factor: Size) -> IterSum:
        """Return a * factor."""
        if factor == 0:
            return IterSum((), 0)
        times = self.size_arithmetic.multiply
        args = (
            IterSplit(s.source, s.lower_factor, s.extent, times(s.scale, factor)) for s in a.args
        )
        return IterSum(tuple(args), times(a.base, factor))

    def _divide_sum(self, a: IterSum, c: Size, wants_quotient: bool) -> IterSum:
        """Return a // c or a % c: multiples of c divide out, the rest must form splits of one sum.

        (i * 16 + j) // 4 = i * 4 + j // 4, and (i * 16 + j) % 4 = j % 4.
        """
        # A divisor is never 0: the expression would have no value.
        if not self.size_arithmetic.can_prove_at_most(1 if isinstance(c, int) else 0, c):
            raise IterMapError(f"the divisor {c!r} is not known to be positive")
        numbers = self.size_arithmetic
        keeps_sum = self.divides_whole_sums and len(a.args) > 1
        divides = numbers.can_prove_divides
        multiple = tuple(s for s in a.args if not keeps_sum and divides(c, s.scale))
        remainder = tuple(s for s in a.args if keeps_sum or not divides(c, s.scale))
        whole_base: Size
        rest_base: Size
        if numbers.can_prove_divides(c, a.base):
            whole_base, rest_base = numbers.divide(a.base, c), 0
        elif isinstance(a.base, int) and isinstance(c, int):
            whole_base, rest_base = a.base // c, a.base % c
        else:
            whole_base, rest_base = 0, a.base
        outer = IterSum(
            tuple(
                IterSplit(s.source, s.lower_factor, s.extent, numbers.divide(s.scale, c))
                for s in multiple
            ),
            whole_base,
        )
        inner = self._divide_remainder(IterSum(remainder, rest_base), c, wants_quotient)
        return self.add_sums(outer, inner, 1) if wants_quotient else inner

    def _divide_remainder(self, a: IterSum, c: Size, wants_quotient: bool) -> IterSum:
        """Return a // c or a % c where no scale is a multiple of c."""
        numbers = self.size_arithmetic
        if not a.args:
            base = a.base // c if wants_quotient else a.base % c
            return IterSum((), numbers.simplify(base))
        top = numbers.simplify(a.base + self._max_sum(a.args))
        # The whole sum is below the divisor: the quotient is 0 and the remainder is the sum itself.
        if self._is_nonnegative(a) and numbers.can_prove_at_most(numbers.simplify(top + 1), c):
            return IterSum((), 0) if wants_quotient else a
        if a.base != 0:
            raise IterMapError(f"an offset of {a.base!r} is not a multiple of the divisor {c!r}")
        digits = self.order_splits(a)
        # A divisor is positive, so steps must be: floor(-i / 2) is no digit of i.
        if isinstance(digits[0].scale, int) and digits[0].scale < 0:
            raise IterMapError(f"the divided index steps by {digits[0].scale!r}")
        border = max(
            (n for n, s in enumerate(digits) if numbers.can_prove_divides(s.scale, c)), default=-1
        )
        border = min(border, 0) if self.divides_whole_sums else border
        if border < 0:
            step = digits[0].scale
            raise IterMapError(f"the divisor {c!r} is not a multiple of the step {step!r}")
        above = self._cut_split(self.fuse_splits(IterSum(digits[border:], 0)), c, wants_quotient)
        below = () if wants_quotient else digits[:border]
        return IterSum((*((above,) if above.extent != 1 else ()), *below), 0)

    def _cut_split(self, split: IterSplit, c: Size, wants_quotient: bool) -> IterSplit:
        """Cut a split at c, a multiple of its scale, and return the upper or the lower part.

        Where c does not divide it, the last value of the digit above has fewer values below it:
        such a digit is taken only where nothing is claimed and nothing is above it.
        """
        numbers = self.size_arithmetic
        factor = numbers.divide(c, split.scale)
        above: Size
        if not numbers.can_prove_divides(factor, split.extent):
            if numbers.can_prove_at_most(split.extent, factor):
                return IterSplit(split.source, 1, 1, 1) if wants_quotient else split
            # A last block that is not full is no bijection; without a claim its digit is still one.
            if self.level is not IterMapLevel.NO_CHECK or not self.is_topmost_split(split):
                raise IterMapError(f"{factor!r} does not divide the extent {split.extent!r}")
            above = numbers.simplify((_as_expr(split.extent) + factor - 1) // factor)
        else:
            above = numbers.divide(split.extent, factor)
        if wants_quotient:
            lower = numbers.multiply(split.lower_factor, factor)
            return IterSplit(split.source, lower, above, 1)
        return IterSplit(split.source, split.lower_factor, factor, split.scale)

    def is_topmost_split(self, split: IterSplit) -> bool:
        """Return whether a split reaches the end of its mark."""
        numbers, mark_extent = self.size_arithmetic, split.source.extent
        if numbers.can_prove_at_most(
            mark_extent, numbers.multiply(split.lower_factor, split.extent)
        ):
            return True
        return numbers.can_prove_equal(
            self._ceil_div(mark_extent, split.lower_factor), split.extent
        )

    def _max_sum(self, args: Sequence[IterSplit]) -> Size:
        total: Size = 0
        for s in args:
            total = total + (s.extent - 1) * s.scale
        return self.size_arithmetic.simplify(total)

    def _is_nonnegative(self, a: IterSum) -> bool:
        return self.size_arithmetic.can_prove_at_most(0, a.base) and all(
            self.size_arithmetic.can_prove_at_most(0, s.scale) for s in a.args
        )

    # Sums in mixed radix.

    def order_splits(self, a: IterSum) -> tuple[IterSplit, ...]:
        """Order the splits by scale, lowest first; each scale must be the product of the extents
        below it.

        Raises:
            IterMapError: Digits overlap or leave gaps.
        """
        remaining = list(self._apply_constraints(a).args)
        digits: list[IterSplit] = []
        if not remaining:
            return ()
        expected = self._smallest_scale(remaining)
        while remaining:
            at = self._find_split_of_scale(remaining, expected)
            if at is None:
                raise IterMapError(f"digits overlap or leave a gap: none has the step {expected!r}")
            split = remaining.pop(at)
            digits.append(split)
            expected = self.size_arithmetic.multiply(split.scale, split.extent)
        return tuple(digits)

    def _find_split_of_scale(self, remaining: Sequence[IterSplit], expected: Size) -> int | None:
        """Return the index of the split with a given scale, or None.

        Of several only one may have more than one value; those of one value go first, as they leave
        the next scale unchanged.
        """
        matching = [
            n
            for n, s in enumerate(remaining)
            if self.size_arithmetic.can_prove_equal(s.scale, expected)
        ]
        for n in matching:
            if len(matching) == 1 or remaining[n].extent == 1:
                return n
        return None

    def _smallest_scale(self, remaining: Sequence[IterSplit]) -> Size:
        """Return the scale that divides all others."""
        for split in remaining:
            if all(self.size_arithmetic.can_prove_divides(split.scale, s.scale) for s in remaining):
                return split.scale
        raise IterMapError("no step divides all others")

    def _apply_constraints(self, a: IterSum) -> IterSum:
        """Replace the splits that a predicate bounds jointly by their fused mark."""
        for pattern, mark in self.constrained_sums:
            held = {s.key(): s for s in a.args}
            # The bound is on these digits together, so it applies only if all of them are present.
            if not all(s.key() in held for s in pattern.args):
                continue
            step = held[pattern.args[-1].key()].scale
            if not all(
                self.size_arithmetic.can_prove_equal(
                    held[s.key()].scale, self.size_arithmetic.multiply(s.scale, step)
                )
                for s in pattern.args
            ):
                continue
            used = {s.key() for s in pattern.args}
            unrelated = tuple(s for s in a.args if s.key() not in used)
            a = IterSum((*unrelated, IterSplit(mark, 1, mark.extent, step)), a.base)
        return a

    def fuse_splits(self, a: IterSum) -> IterSplit:
        """Fuse a sum with base 0 into one split of a new mark."""
        digits = self.order_splits(a)
        if len(digits) == 1:
            return digits[0]
        step = digits[0].scale
        quotient = self.size_arithmetic.divide
        scaled = tuple(
            IterSplit(s.source, s.lower_factor, s.extent, quotient(s.scale, step)) for s in digits
        )
        # Equal fused sums must be one mark, or their digits would count as independent.
        name = tuple((s.key(), size_key(s.scale)) for s in scaled)
        mark = self._fused_marks.get(name)
        if mark is None:
            extent = self.size_arithmetic.multiply(scaled[-1].scale, scaled[-1].extent)
            mark = self._fused_marks[name] = IterMark(IterSum(scaled[::-1], 0), extent)
        return IterSplit(mark, 1, mark.extent, step)

    # Predicates.

    def assume_predicate(self, predicate: PrimExpr) -> list[tuple[PrimExpr, IterMark]]:
        """Learn upper bounds of fused sums from `a < b and ...`.

        Returns:
            The conditions used, with the marks they shorten.

        Raises:
            IterMapError: A condition is no bound of a fused sum.
        """
        used: list[tuple[PrimExpr, IterMark]] = []
        for e in chain_operands(predicate, And):
            if not (isinstance(e, IntImm) and e.value):
                mark = self._mark_for_bound(e)
                if mark is not None:
                    used.append((e, mark))
        return used

    def _mark_for_bound(self, e: PrimExpr) -> IterMark | None:
        match e:
            case LT():
                bound = self.add_sums(self.parse(e.b), self.parse(e.a), -1)
            case GT():
                bound = self.add_sums(self.parse(e.a), self.parse(e.b), -1)
            case LE():
                bound = self.add_sums(self.parse(e.b + 1), self.parse(e.a), -1)
            case GE():
                bound = self.add_sums(self.parse(e.a + 1), self.parse(e.b), -1)
            case _:
                raise IterMapError(f"a predicate must bound a sum of digits, not {e!r}")
        if not bound.args:
            if self.size_arithmetic.can_prove_at_most(1, bound.base):
                return None
            raise IterMapError("a predicate without an iterator is not known to hold")
        # 0 < base - digits, that is digits < base
        digits = self.scale_sum(IterSum(bound.args, 0), -1)
        if not self._is_nonnegative(digits):
            raise IterMapError("a lower bound of iterators is not supported")
        split = self.fuse_splits(digits)
        extent = self._ceil_div(bound.base, split.scale)
        if self.size_arithmetic.can_prove_at_most(split.extent, extent):
            return None
        if split.lower_factor != 1 or not self.size_arithmetic.can_prove_equal(
            split.extent, split.source.extent
        ):
            raise IterMapError("a bound of one digit of an iterator is not supported")
        mark = IterMark(split.source.source, self.size_arithmetic.simplify(extent))
        if isinstance(split.source.source, IterSum):
            self.constrained_sums.append((split.source.source, mark))
        else:
            pattern = IterSum((IterSplit(split.source, 1, split.extent, 1),), 0)
            self.constrained_sums.append((pattern, mark))
        return mark

    def _ceil_div(self, a: Size, b: Size) -> Size:
        return self.size_arithmetic.simplify((a + b - 1) // b)

    # What may be claimed.

    def normalize_sum(self, a: IterSum) -> IterSum:
        """Return the sum with splits in order and constraints applied.

        Raises:
            IterMapError: Digits overlap.
        """
        digits = self.order_splits(a)
        if digits and digits[0].scale != 1 and self.level is not IterMapLevel.NO_CHECK:
            raise IterMapError(f"the index steps by {digits[0].scale!r}")
        return IterSum(tuple(reversed(digits)), a.base)

    def detect_indices(self, indices: Sequence[PrimExpr]) -> list[IterSum]:
        """Return the sums of indices that together form a map of the required level."""
        sums = [self.normalize_sum(self.parse(i)) for i in indices]
        if self.level is not IterMapLevel.NO_CHECK:
            self.check(sums)
        return sums

    def check(self, indices: Sequence[IterSum]) -> None:
        """Check that no split is used twice and, for a bijection, that all are used.

        Marks are examined before those that they are fused of, whose digits they use.

        Raises:
            IterMapError: The check fails.
        """
        used: dict[IterMark, list[IterSplit]] = {}
        for total in indices:
            for split in total.args:
                used.setdefault(split.source, []).append(split)
        visited: set[IterMark] = set()
        pending = list(used)
        while pending:
            mark = pending.pop()
            # A mark may be part of another that was not looked at yet.
            if mark in visited:
                raise IterMapError("an iterator is used twice")
            visited.add(mark)
            # Digits of one mark are independent only if they do not overlap.
            self._check_splits_disjoint(mark, used[mark])
            if isinstance(mark.source, IterSum):
                for split in mark.source.args:
                    is_used = split.source in used
                    used.setdefault(split.source, []).append(split)
                    if not is_used:
                        pending.append(split.source)
                    elif split.source in visited:
                        raise IterMapError("an iterator is used twice")
        if self.level is IterMapLevel.BIJECTIVE:
            self._check_all_used({m.source for m in visited if isinstance(m.source, Var)})

    def _check_all_used(self, used_vars: set[Var]) -> None:
        for var, mark in self.mark_of_var.items():
            if mark.extent != 1 and var not in used_vars:
                raise IterMapError(f"iterator {var.name!r} is not used")

    def _check_splits_disjoint(self, mark: IterMark, splits: Sequence[IterSplit]) -> None:
        """Check that the splits of a mark are adjacent and, for a bijection, without gaps."""
        numbers = self.size_arithmetic
        remaining = [s for s in splits if s.extent != 1]
        name = mark.source.name if isinstance(mark.source, Var) else "a fused iterator"
        expected: Size = 1
        while remaining:
            exact = [s for s in remaining if numbers.can_prove_equal(s.lower_factor, expected)]
            if not exact and self.level is not IterMapLevel.BIJECTIVE:
                exact = [
                    s
                    for s in remaining
                    if numbers.can_prove_divides(expected, s.lower_factor)
                    and all(
                        numbers.can_prove_at_most(s.lower_factor, o.lower_factor) for o in remaining
                    )
                ]
            if len(exact) != 1:
                raise IterMapError(f"{name}: digits overlap or leave a gap at {expected!r}")
            remaining.remove(exact[0])
            expected = numbers.multiply(exact[0].lower_factor, exact[0].extent)
        if self.level is IterMapLevel.BIJECTIVE and not numbers.can_prove_equal(
            expected, mark.extent
        ):
            raise IterMapError(
                f"{name}: only {expected!r} of {mark.extent!r} values are told apart"
            )


def simplify_around_digits(e: PrimExpr, analyzer: Analyzer) -> PrimExpr:
    """Simplify an index, preserving quotients and remainders of sums.

    Only together with others of the same sum can these be recognized as digits: (i * 5 + j) // 2
    and (i * 5 + j) % 2 can, i * 2 + (i + j) // 2 and (i + j) % 2 cannot.
    """

    def simplify_numerator(d: PrimExpr) -> PrimExpr:
        """Simplify the numerator of a quotient or remainder unless it is a sum."""
        if not isinstance(d, (FloorDiv, FloorMod)) or _find_divided_sums(d.a):
            return d
        return d.with_fields(a=analyzer.simplify(d.a))

    return rewrite(e, simplify_numerator) if _find_divided_sums(e) else analyzer.simplify(e)


def keep_digits(indices: Sequence[PrimExpr], analyzer: Analyzer) -> bool:
    """Return whether the divided sums in indices are provably splits of one sum."""
    divided = [division for e in indices for division in _find_divided_sums(e)]
    return all(is_same_expr(digit.a, divided[0].a) for digit in divided) and all(
        _is_iter_map(checked, analyzer) for checked in divided
    )


def _find_divided_sums(e: PrimExpr) -> list[FloorDiv | FloorMod]:
    return [
        node
        for node in post_order(e)
        if isinstance(node, (FloorDiv, FloorMod)) and isinstance(node.a, (Add, Sub))
    ]


def _is_iter_map(e: PrimExpr, analyzer: Analyzer) -> bool:
    ranges: dict[Var, Range] = {}
    for v in free_vars(e):
        bound = analyzer.const_int_bound(v)
        if math.isinf(bound.min_value) or math.isinf(bound.max_value):
            return False
        low, extent = int(bound.min_value), int(bound.max_value - bound.min_value) + 1
        ranges[v] = Range.from_min_extent(convert(low, v.dtype), convert(extent, v.dtype))
    try:
        IterMapDetector(ranges, IterMapLevel.NO_CHECK, trivial=False).parse(e)
    except IterMapError:
        return False
    return True


def detect_iter_map(
    indices: Sequence[PrimExpr],
    input_iters: Mapping[Var, Range],
    predicate: PrimExpr | bool = True,
    check_level: IterMapLevel = IterMapLevel.SURJECTIVE,
    simplify_trivial_iterators: bool = True,
) -> IterMapResult:
    """Detect the iteration map of indices: each as a sum of splits of the iterators.

    SURJECTIVE: every index covers its range without steps and no digit is used twice, so that
    different points of the digits used have different indices. BIJECTIVE: also every digit of every
    iterator is used, so that the map can be inverted. NO_CHECK: digits only.

    Args:
        indices: The indices.
        input_iters: The ranges of the iterators.
        predicate: May shorten fused iterators (`i * 4 + j < 10`).
        check_level: The claim.
        simplify_trivial_iterators: Treat iterators of one value as constants.

    Returns:
        A result without indices if the check fails.
    """
    errors: list[str] = []
    # The exact division first: it knows more digits.
    for whole_sums in (False, True):
        detector = IterMapDetector(input_iters, check_level, simplify_trivial_iterators, whole_sums)
        try:
            detector.assume_predicate(convert(predicate))
            return IterMapResult(tuple(detector.detect_indices(indices)))
        except IterMapError as error:
            errors.append(str(error))
    return IterMapResult((), tuple(errors[:1]))


def is_bijective(indices: Sequence[PrimExpr], input_iters: Mapping[Var, Range]) -> bool:
    """Return whether the indices visit every point of their box exactly once."""
    result = detect_iter_map(indices, input_iters, True, IterMapLevel.BIJECTIVE)
    return bool(result.indices) or not indices
