"""Cases: the nodes that follow a value of several possible ranks, imported once for each rank; a
case.

    match %q { OneOf2_0(%a) => { nodes for the rank of %a }, OneOf2_1(%b) => { nodes for %b's } }

Nodes are imported in order, each in all cases that it depends on, so that the cases can end as soon
as the values that are still needed have one rank again; the program grows by the number of cases at
most, of which there are MAX_CASES. A case whose node cannot be imported, or whose results are none
of MAX_ALTERNATIVES combinations of ranks, ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np

from ekiden.frontend.common.block import Block, fail
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sequence_value import Absent, NoTensor
from ekiden.frontend.common.sum_value import (
    MAX_ALTERNATIVES,
    MAX_CASES,
    Kinds,
    Member,
    SumValue,
    first_merged,
    held_var,
    inject,
    match,
    merged,
)
from ekiden.frontend.common.text_value import TextValue
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.ir.dtype import is_int
from ekiden.ir.prim import PrimExpr
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.type import TupleType, Type
from ekiden.relay.expr import Expr, Tuple, TupleGetItem, Var
from ekiden.runtime.errors import UnsupportedError
from ekiden.topi.dimensions import equal


class PerCase(NoTensor):
    """Placeholder for a value of a graph that is bound separately in each case."""

    __slots__ = ()
    what = "a value whose rank depends on data"

    def __init__(self) -> None:
        self.array = self.symbols = self.hint = self.expr = None


class Case:
    """Alternative of a sum type, nested within an enclosing case; further sums split it."""

    def __init__(self, around: Case | None, number: int = 0, var: Var | None = None) -> None:
        self.around, self.number, self.var = around, number, var
        self.block = Block()
        self.values: dict[str, Value] = {}
        self.members: list[Value] = []
        self.whole: SumValue | None = None
        """What splits this case."""
        self.inner: list[Case] = []
        self.error: Exception | None = None

    def path(self) -> list[Case]:
        """Return the cases from the outermost one to this, without the root."""
        ancestors: list[Case] = []
        at: Case | None = self
        while at is not None and at.around is not None:
            ancestors.append(at)
            at = at.around
        return ancestors[::-1]

    def leaves(self) -> list[Case]:
        """Return, in order, the unsplit cases nested in this one, without those that fail."""
        unsplit, waiting = [], [self]
        while waiting:
            case = waiting.pop()
            waiting += reversed(case.inner)
            if not case.inner and case.error is None:
                unsplit.append(case)
        return unsplit

    def failure(self) -> Exception | None:
        """Return the first error where this case, or every case nested in it, fails; else None."""
        waiting, first_error = [self], None
        while waiting:
            case = waiting.pop()
            waiting += reversed(case.inner)
            if not case.inner and case.error is None:
                return None
            first_error = first_error or case.error
        return first_error


class Cases:
    """Tree of the cases of a graph; it begins with the root alone."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.root = self.at = Case(None)

    @contextmanager
    def inside(self, case: Case) -> Iterator[None]:
        """Enter a `with` block that imports nodes for a case nested in the current one."""
        before, path = self.at, case.path()
        blocks = [c.block for c in path[len(before.path()) :]]
        self.at = case
        try:
            with self.scope.inside_alternative(blocks) if blocks else nullcontext():
                yield
        finally:
            self.at = before

    def value(self, name: str, value: Value) -> Value:
        """Return what a name of the graph stands for in the current case; `value` is what the graph
        has under it, which is the answer where it does not depend on the case, or not yet."""
        for case in reversed(self.at.path()):
            if isinstance(value, PerCase) and name in case.values:
                value = case.values[name]
                break
        while isinstance(value, Member):
            inner = [c for c in self.at.path() if c.around and c.around.whole is value.whole]
            if not inner:
                break
            value = inner[0].members[value.index]
        return value

    def split(self, sum_value: SumValue) -> list[Case]:
        """Split each case of the current one by the alternatives of a sum; return the new ones.

        Raises Unsupported where that would make too many.
        """
        old = self.at.leaves()
        if len(self.root.leaves()) + len(old) * (len(sum_value.kinds) - 1) > MAX_CASES:
            raise Unsupported(f"more than {MAX_CASES} combinations of ranks would be told apart")
        return [case for leaf in old for case in self._split(leaf, sum_value)]

    def _split(self, leaf: Case, sum_value: SumValue) -> list[Case]:
        leaf.whole = sum_value
        for number, kinds in enumerate(sum_value.kinds):
            var = held_var(kinds, self.scope.span)
            case = Case(leaf, number, var)
            with self.inside(case):
                fields = (TupleGetItem(var, i) for i in range(len(kinds)))
                case.members = [self.scope.bound(f, "held") for f in fields]
            leaf.inner.append(case)
        return leaf.inner

    def split_members(self, names: Sequence[str], values: dict[str, Value]) -> list[Case]:
        """Split the cases of the current one until no value under these names is a member of a sum;
        return them. Raises Unsupported where that would make too many.
        """
        done, waiting = [], self.at.leaves()
        while waiting:
            case = waiting.pop(0)
            with self.inside(case):
                values_read = (self.value(n, values[n]) for n in names if n in values)
                member = next((v for v in values_read if isinstance(v, Member)), None)
                if member is None:
                    done.append(case)
                else:
                    waiting = self.split(member.whole) + waiting
        return done

    # The end.

    def _kinds(self, leaf: Case, names: Sequence[str], values: dict[str, Value]) -> list[Kinds]:
        """Return the combinations of types that a case's values may have, as seen from outside all
        cases.
        """
        with self.inside(leaf):
            alternatives = alternatives_of(self.scope, self._values(names, values))
        for case in reversed(leaf.path()):
            alternatives = [
                tuple(self.scope.outside(kind, case.block) for kind in kinds)
                for kinds in alternatives
            ]
        return alternatives

    def _values(self, names: Sequence[str], values: dict[str, Value]) -> list[Value]:
        """Return the values under these names in the current case. Raises Unsupported where they
        are members of several sums."""
        current_values = [self.value(n, values[n]) for n in names]
        if len({id(v.whole) for v in current_values if isinstance(v, Member)}) > 1:
            raise Unsupported(f"more than {MAX_CASES} combinations of ranks would be told apart")
        return current_values

    def are_one(self, names: Sequence[str], values: dict[str, Value]) -> bool:
        """Return whether all cases bind these names to values of one rank and dtype.

        Integers that are known (axes and shapes, which later nodes need) must have the same
        numbers, too.
        """
        leaves = self.root.leaves()
        for leaf in leaves:
            with self.inside(leaf):
                if any(isinstance(self.value(n, values[n]), Member) for n in names):
                    return False
        if len(self._alternatives(names, values)[0]) > 1:
            return False
        return not any(self._differ(name, values, leaves) for name in names)

    def _differ(self, name: str, values: dict[str, Value], leaves: Sequence[Case]) -> bool:
        """Return whether integers under this name are known in a case and differ between cases."""
        for leaf in leaves:
            with self.inside(leaf):
                value = self.value(name, values[name])
            if not isinstance(value, NoTensor) and value.is_known and is_int(value.type.dtype):
                return self._same(name, values, leaves) is None
        return False

    def are_few(self, names: Sequence[str], values: dict[str, Value]) -> bool:
        """Return whether the values have at most MAX_ALTERNATIVES combinations of ranks over all
        cases.
        """
        _, numbers = self._alternatives(names, values)
        return all(n is not None for own in numbers for n in own)

    def _alternatives(
        self, names: Sequence[str], values: dict[str, Value]
    ) -> tuple[list[Kinds], list[list[int | None]]]:
        """Return the combinations of types that values have in all cases, and the numbers of those
        that each case has."""
        every = [self._kinds(leaf, names, values) for leaf in self.root.leaves()]
        alternatives, flat = first_merged([kinds for own in every for kinds in own])
        numbers = iter(flat)
        return alternatives, [[next(numbers) for _ in own] for own in every]

    def end(self, names: Sequence[str], values: dict[str, Value]) -> dict[str, Value]:
        """Return the values under these names behind all cases: plain ones, or members of a sum."""
        scope, leaves = self.scope, self.root.leaves()
        same = {n: v for n in names if (v := self._same(n, values, leaves)) is not None}
        open_names = [n for n in names if n not in same]
        if not open_names:
            return same
        alternatives, numbers = self._alternatives(open_names, values)
        reason = f"{', '.join(map(repr, open_names))}: more than {MAX_ALTERNATIVES} combinations"
        for leaf, case_numbers in zip(leaves, numbers, strict=True):
            if all(n is None for n in case_numbers):
                leaf.error = UnsupportedError(f"{reason} of ranks")
        numbers_of = {id(leaf): n for leaf, n in zip(leaves, numbers, strict=True)}
        if len(alternatives) > 1:
            scope.use_sum(len(alternatives))
        results: dict[int, Expr] = {}
        order = [self.root]
        for case in order:
            order += case.inner
        # Results of inner cases become the arms of the match of their outer case.
        for case in reversed(order):  # the inner ones first
            results[id(case)] = self._result(
                case, open_names, values, alternatives, numbers_of, results
            )
        merged_result = results[id(self.root)]
        texts = {n for n in open_names if self._is_text(n, values, leaves)}
        merged_values = _results(scope, merged_result, alternatives, open_names)
        return same | {n: _as_text(scope, v) if n in texts else v for n, v in merged_values.items()}

    def _result(
        self,
        case: Case,
        names: Sequence[str],
        values: dict[str, Value],
        alternatives: Sequence[Kinds],
        numbers_of: dict[int, list[int | None]],
        results: dict[int, Expr],
    ) -> Expr:
        """Return the result expression of a case: a tuple of its values, an injection into the sum,
        the match over its inner cases, or a failure.
        """
        scope = self.scope
        with self.inside(case):
            error = case.failure()
            if error is not None:
                return fail(str(error))
            if case.whole is not None:
                assert case.whole.expr is not None
                arms = [(c.var, results[id(c)]) for c in case.inner if c.var is not None]
                result: Expr = match(case.whole.expr, arms).with_fields(span=scope.span)
            else:
                current_values, numbers = self._values(names, values), numbers_of[id(case)]
                if len(alternatives) == 1:
                    pairs = zip(current_values, alternatives[0], strict=True)
                    result = Tuple(tuple(scope.under(v, kind) for v, kind in pairs))
                else:
                    reason = f"more than {MAX_ALTERNATIVES} combinations of ranks"
                    result = injected(scope, current_values, alternatives, numbers, reason)
            return result if case is self.root else scope.close(result)

    def _same(self, name: str, values: dict[str, Value], leaves: Sequence[Case]) -> Value | None:
        """Return a value that is one and the same in all cases, if it is."""
        case_values: list[Value] = []
        for leaf in leaves:
            with self.inside(leaf):
                case_values.append(self.value(name, values[name]))
        first = case_values[0]
        if isinstance(first, Absent) and all(isinstance(v, Absent) for v in case_values):
            return first
        if any(isinstance(v, NoTensor) or not v.is_known for v in case_values):
            return None
        inner = {s for leaf in leaves for case in leaf.path() for s in case.block.symbols}
        symbols = [e for v in case_values if v.symbols is not None for e in v.symbols.ravel()]
        if inner.intersection(free_vars(*symbols)):
            return None
        return first if all(_are_equal(first, v) for v in case_values[1:]) else None

    def _is_text(self, name: str, values: dict[str, Value], leaves: Sequence[Case]) -> bool:
        with self.inside(leaves[0]):
            return isinstance(self.value(name, values[name]), TextValue)


def _are_equal(a: Value, b: Value) -> bool:
    """Return whether known values have the same elements and type."""
    if a.type.dtype != b.type.dtype or a.elements.shape != b.elements.shape:
        return False
    if a.array is not None and b.array is not None:
        return bool(np.array_equal(a.array, b.array))
    pairs = zip(a.elements.ravel(), b.elements.ravel(), strict=True)
    return all(
        isinstance(x, PrimExpr) and isinstance(y, PrimExpr) and equal(x, y) for x, y in pairs
    )


def _results(
    scope: Scope, result: Expr, alternatives: Sequence[Kinds], names: Sequence[str]
) -> dict[str, Value]:
    """Return the values of a tuple, or of a sum of tuples, under their names."""
    if len(alternatives) == 1:
        return dict(zip(names, scope.fields(result, names), strict=True))
    return dict(
        zip(names, members(scope, SumValue(scope.spanned(result), alternatives)), strict=True)
    )


def _as_text(scope: Scope, value: Value) -> Value:
    return value if isinstance(value, Member) else TextValue(scope.expr(value), value.type)


def whole_of(values: Sequence[Value]) -> SumValue | None:
    """Return the sum that some of these values are members of: one, as graphs give them."""
    return next((v.whole for v in values if isinstance(v, Member)), None)


def alternatives_of(
    scope: Scope, values: Sequence[Value], block: Block | None = None
) -> list[Kinds]:
    """Return the combinations of types that values may have, as they are seen around a block."""
    sum_value = whole_of(values)
    if sum_value is None:
        return [tuple(scope.outside(v.kind, block) for v in values)]
    return [
        tuple(
            scope.outside(kinds[v.index] if isinstance(v, Member) else v.kind, block)
            for v in values
        )
        for kinds in sum_value.kinds
    ]


def injected(
    scope: Scope,
    values: Sequence[Value],
    alternatives: Sequence[Kinds],
    numbers: Sequence[int | None],
    reason: str = "",
) -> Expr:
    """Return values injected into a sum of these alternatives.

    For each combination of types that the values may have, `numbers` gives the alternative, or None
    where the run ends with this reason.

    Raises:
        Unsupported: for strings.
    """
    if any(isinstance(v, TextValue) for v in values):
        raise Unsupported("strings whose rank depends on data are not supported")
    sum_value = whole_of(values)
    arms: list[tuple[Var, Expr]] = []
    for own, number in enumerate(numbers):
        held = held_var(() if sum_value is None else sum_value.kinds[own], scope.span)
        if number is None:
            arms.append((held, fail(f"{scope.span}: {reason}")))
            continue
        fields = [
            scope.relaxed(TupleGetItem(held, value.index), kind)
            if isinstance(value, Member)
            else scope.under(value, kind)
            for value, kind in zip(values, alternatives[number], strict=True)
        ]
        kinds = [TupleType(k) for k in alternatives]
        arms.append((held, inject(kinds, number, Tuple(tuple(fields)))))
    if sum_value is None:
        ((_, alone),) = arms
        return alone
    assert sum_value.expr is not None
    return match(sum_value.expr, arms).with_fields(span=scope.span)


def members(scope: Scope, union: SumValue) -> list[Value]:
    """Return the values of a sum: those of one type in all alternatives as plain ones."""
    fields: list[Value] = []
    for index in range(len(union.kinds[0])):
        kinds, _ = merged([(k[index],) for k in union.kinds])
        if len(kinds) > 1:
            fields.append(Member(union, index))
        else:
            fields.append(scope.bound(_member(scope, union, index, kinds[0][0]), "held"))
    return fields


def _member(scope: Scope, union: SumValue, index: int, kind: Type) -> Expr:
    """Return a member that has one type in all alternatives."""
    assert union.expr is not None
    held = [held_var(k, scope.span) for k in union.kinds]
    arms = [(var, scope.relaxed(TupleGetItem(var, index), kind)) for var in held]
    return match(union.expr, arms).with_fields(span=scope.span)


def leaving(scope: Scope, value: Value) -> Value:
    """Return an output of a program; one of several ranks as a sum of tensors, of its own."""
    if not isinstance(value, Member):
        return value
    sum_value, index = value.whole, value.index
    kinds, numbers = merged([(k[index],) for k in sum_value.kinds])
    scope.use_sum(len(kinds))
    held = [held_var(k, scope.span) for k in sum_value.kinds]
    arms = []
    for var, number in zip(held, numbers, strict=True):
        field = scope.relaxed(TupleGetItem(var, index), kinds[number][0])
        arms.append((var, inject([k for (k,) in kinds], number, field)))
    assert sum_value.expr is not None
    output = scope.spanned(match(sum_value.expr, arms).with_fields(span=scope.span))
    return SumValue(output, sum_value.kinds)
