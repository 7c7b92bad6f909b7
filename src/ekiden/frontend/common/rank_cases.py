"""Rank cases: nodes that depend on a value of several possible ranks are imported once per rank.

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

from ekiden.frontend.common.import_block import ImportBlock, emit_failure
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sequence_value import AbsentValue, NonTensorValue
from ekiden.frontend.common.string_value import StringValue
from ekiden.frontend.common.sum_value import (
    MAX_ALTERNATIVES,
    MAX_CASES,
    SumMember,
    SumValue,
    TypeCombination,
    inject_alternative,
    match_sum,
    merge_alternatives,
    merge_first_alternatives,
    payload_var,
)
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.ir.dtype import is_int
from ekiden.ir.prim import PrimExpr
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.type import TupleType, Type
from ekiden.relay.expr import Expr, Tuple, TupleGetItem, Var
from ekiden.runtime.errors import UnsupportedError
from ekiden.topi.dimensions import are_equal_dims


class CaseDependentValue(NonTensorValue):
    """Placeholder for a value of a graph that is bound separately in each case."""

    __slots__ = ()
    description = "a value whose rank depends on data"

    def __init__(self) -> None:
        self.array = self.symbols = self.hint = self.expr = None


class RankCase:
    """Alternative of a sum type, nested within an enclosing case; further sums split it."""

    def __init__(self, around: RankCase | None, number: int = 0, var: Var | None = None) -> None:
        self.around, self.number, self.var = around, number, var
        self.block = ImportBlock()
        self.values: dict[str, Value] = {}
        self.members: list[Value] = []
        self.whole: SumValue | None = None
        """What splits this case."""
        self.inner: list[RankCase] = []
        self.error: Exception | None = None

    def path(self) -> list[RankCase]:
        """Return the enclosing cases from the outermost one to this, without the root."""
        ancestors: list[RankCase] = []
        current: RankCase | None = self
        while current is not None and current.around is not None:
            ancestors.append(current)
            current = current.around
        return ancestors[::-1]

    def live_leaves(self) -> list[RankCase]:
        """Return, in order, the unsplit cases below this one, without those that fail."""
        unsplit, waiting = [], [self]
        while waiting:
            case = waiting.pop()
            waiting += reversed(case.inner)
            if not case.inner and case.error is None:
                unsplit.append(case)
        return unsplit

    def failure(self) -> Exception | None:
        """Return the first error if this case, or every case nested in it, fails; else None."""
        waiting, first_error = [self], None
        while waiting:
            case = waiting.pop()
            waiting += reversed(case.inner)
            if not case.inner and case.error is None:
                return None
            first_error = first_error or case.error
        return first_error


class RankCaseTree:
    """Tree of the cases of a graph, which begins as the root alone."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.root = self.at = RankCase(None)

    @contextmanager
    def enter_case(self, case: RankCase) -> Iterator[None]:
        """Return a context in which nodes are imported for a case nested in the current one."""
        before, path = self.at, case.path()
        blocks = [c.block for c in path[len(before.path()) :]]
        self.at = case
        try:
            with self.scope.enter_alternative(blocks) if blocks else nullcontext():
                yield
        finally:
            self.at = before

    def lookup_value(self, name: str, value: Value) -> Value:
        """Look up a name of the graph in the current case and its enclosing ones."""
        for case in reversed(self.at.path()):
            if isinstance(value, CaseDependentValue) and name in case.values:
                value = case.values[name]
                break
        while isinstance(value, SumMember):
            inner = [c for c in self.at.path() if c.around and c.around.whole is value.whole]
            if not inner:
                break
            value = inner[0].members[value.index]
        return value

    def split_by_sum(self, sum_value: SumValue) -> list[RankCase]:
        """Split each case of the current one by the alternatives of a sum; return the new ones.

        Raises Unsupported where that would make too many.
        """
        old = self.at.live_leaves()
        # Cases multiply with each independent sum, and each is imported by itself: bound the
        # product.
        if len(self.root.live_leaves()) + len(old) * (len(sum_value.kinds) - 1) > MAX_CASES:
            raise Unsupported(f"more than {MAX_CASES} combinations of ranks would be told apart")
        return [case for leaf in old for case in self._split_leaf(leaf, sum_value)]

    def _split_leaf(self, leaf: RankCase, sum_value: SumValue) -> list[RankCase]:
        """Split one unsplit case by the alternatives of a sum, and bind the fields of each."""
        leaf.whole = sum_value
        for number, kinds in enumerate(sum_value.kinds):
            var = payload_var(kinds, self.scope.span)
            case = RankCase(leaf, number, var)
            with self.enter_case(case):
                fields = (TupleGetItem(var, i) for i in range(len(kinds)))
                case.members = [self.scope.bind_named(f, "held") for f in fields]
            leaf.inner.append(case)
        return leaf.inner

    def split_until_ranked(self, names: Sequence[str], values: dict[str, Value]) -> list[RankCase]:
        """Split the cases of the current one until no value under these names is a member of a sum;
        return them. Raises Unsupported where that would make too many.
        """
        done, waiting = [], self.at.live_leaves()
        while waiting:
            case = waiting.pop(0)
            with self.enter_case(case):
                values_read = (self.lookup_value(n, values[n]) for n in names if n in values)
                member = next((v for v in values_read if isinstance(v, SumMember)), None)
                if member is None:
                    done.append(case)
                else:
                    waiting = self.split_by_sum(member.whole) + waiting
        return done

    # The end.

    def _leaf_alternatives(
        self, leaf: RankCase, names: Sequence[str], values: dict[str, Value]
    ) -> list[TypeCombination]:
        """Return the combinations of types that the values of one case may have, as seen from
        outside all cases.
        """
        with self.enter_case(leaf):
            alternatives = type_alternatives(self.scope, self._current_values(names, values))
        for case in reversed(leaf.path()):
            alternatives = [
                tuple(self.scope.erase_block_dims(kind, case.block) for kind in kinds)
                for kinds in alternatives
            ]
        return alternatives

    def _current_values(self, names: Sequence[str], values: dict[str, Value]) -> list[Value]:
        """Return the values under these names in the current case. Raises Unsupported where they
        are members of several sums."""
        current_values = [self.lookup_value(n, values[n]) for n in names]
        if len({id(v.whole) for v in current_values if isinstance(v, SumMember)}) > 1:
            # Values of two independent sums would need the product of their alternatives.
            raise Unsupported(f"more than {MAX_CASES} combinations of ranks would be told apart")
        return current_values

    def have_uniform_types(self, names: Sequence[str], values: dict[str, Value]) -> bool:
        """Return whether all cases bind these names to values of one rank and dtype.

        Integers that are known (axes and shapes, which later nodes need) must have the same
        numbers, too.
        """
        leaves = self.root.live_leaves()
        for leaf in leaves:
            with self.enter_case(leaf):
                if any(isinstance(self.lookup_value(n, values[n]), SumMember) for n in names):
                    return False
        if len(self._collect_alternatives(names, values)[0]) > 1:
            return False
        return not any(self._differs_by_case(name, values, leaves) for name in names)

    def _differs_by_case(
        self, name: str, values: dict[str, Value], leaves: Sequence[RankCase]
    ) -> bool:
        """Return whether integers under this name are known in a case and differ between cases."""
        for leaf in leaves:
            with self.enter_case(leaf):
                value = self.lookup_value(name, values[name])
            if (
                not isinstance(value, NonTensorValue)
                and value.is_known
                and is_int(value.type.dtype)
            ):
                return self._common_value(name, values, leaves) is None
        return False

    def fits_alternatives(self, names: Sequence[str], values: dict[str, Value]) -> bool:
        """Return whether the values have at most MAX_ALTERNATIVES combinations of ranks over all
        cases.
        """
        _, numbers = self._collect_alternatives(names, values)
        return all(n is not None for own in numbers for n in own)

    def _collect_alternatives(
        self, names: Sequence[str], values: dict[str, Value]
    ) -> tuple[list[TypeCombination], list[list[int | None]]]:
        """Return the merged type combinations of all cases, and for each case the indices of its
        own in that list.
        """
        every = [self._leaf_alternatives(leaf, names, values) for leaf in self.root.live_leaves()]
        alternatives, flat = merge_first_alternatives([kinds for own in every for kinds in own])
        numbers = iter(flat)
        return alternatives, [[next(numbers) for _ in own] for own in every]

    def merge_results(self, names: Sequence[str], values: dict[str, Value]) -> dict[str, Value]:
        """Return the values under these names after all cases: plain ones, or members of a sum."""
        scope, leaves = self.scope, self.root.live_leaves()
        same = {n: v for n in names if (v := self._common_value(n, values, leaves)) is not None}
        open_names = [n for n in names if n not in same]
        if not open_names:
            return same
        alternatives, numbers = self._collect_alternatives(open_names, values)
        reason = f"{', '.join(map(repr, open_names))}: more than {MAX_ALTERNATIVES} combinations"
        for leaf, case_numbers in zip(leaves, numbers, strict=True):
            if all(n is None for n in case_numbers):
                leaf.error = UnsupportedError(f"{reason} of ranks")
        numbers_of = {id(leaf): n for leaf, n in zip(leaves, numbers, strict=True)}
        if len(alternatives) > 1:
            scope.declare_sum_type(len(alternatives))
        results: dict[int, Expr] = {}
        order = [self.root]
        for case in order:
            order += case.inner
        # Results of inner cases become the arms of the match of their outer case.
        for case in reversed(order):  # the inner ones first
            results[id(case)] = self._case_result(
                case, open_names, values, alternatives, numbers_of, results
            )
        merged_result = results[id(self.root)]
        texts = {n for n in open_names if self._is_string_tensor(n, values, leaves)}
        merged_values = _unpack_results(scope, merged_result, alternatives, open_names)
        return same | {
            n: _to_string_tensor(scope, v) if n in texts else v for n, v in merged_values.items()
        }

    def _case_result(
        self,
        case: RankCase,
        names: Sequence[str],
        values: dict[str, Value],
        alternatives: Sequence[TypeCombination],
        numbers_of: dict[int, list[int | None]],
        results: dict[int, Expr],
    ) -> Expr:
        """Return the result expression of a case: a tuple of its values, an injection into the sum,
        the match over its inner cases, or a failure.
        """
        scope = self.scope
        with self.enter_case(case):
            error = case.failure()
            if error is not None:
                return emit_failure(str(error))
            if case.whole is not None:
                assert case.whole.expr is not None
                arms = [(c.var, results[id(c)]) for c in case.inner if c.var is not None]
                result: Expr = match_sum(case.whole.expr, arms).with_fields(span=scope.span)
            else:
                current_values, numbers = self._current_values(names, values), numbers_of[id(case)]
                if len(alternatives) == 1:
                    pairs = zip(current_values, alternatives[0], strict=True)
                    result = Tuple(tuple(scope.relax_to_type(v, kind) for v, kind in pairs))
                else:
                    reason = f"more than {MAX_ALTERNATIVES} combinations of ranks"
                    result = inject_values(scope, current_values, alternatives, numbers, reason)
            return result if case is self.root else scope.close_block(result)

    def _common_value(
        self, name: str, values: dict[str, Value], leaves: Sequence[RankCase]
    ) -> Value | None:
        """Return the value of a name where all cases agree on it; else None."""
        case_values: list[Value] = []
        for leaf in leaves:
            with self.enter_case(leaf):
                case_values.append(self.lookup_value(name, values[name]))
        first = case_values[0]
        if isinstance(first, AbsentValue) and all(isinstance(v, AbsentValue) for v in case_values):
            return first
        if any(isinstance(v, NonTensorValue) or not v.is_known for v in case_values):
            return None
        inner = {s for leaf in leaves for case in leaf.path() for s in case.block.symbols}
        symbols = [e for v in case_values if v.symbols is not None for e in v.symbols.ravel()]
        # A symbol that a case binds is not in scope behind the match.
        if inner.intersection(free_vars(*symbols)):
            return None
        return first if all(_are_equal(first, v) for v in case_values[1:]) else None

    def _is_string_tensor(
        self, name: str, values: dict[str, Value], leaves: Sequence[RankCase]
    ) -> bool:
        """Return whether a name is bound to strings."""
        with self.enter_case(leaves[0]):
            return isinstance(self.lookup_value(name, values[name]), StringValue)


def _are_equal(a: Value, b: Value) -> bool:
    """Return whether known values have the same elements and type."""
    if a.type.dtype != b.type.dtype or a.known_elements.shape != b.known_elements.shape:
        return False
    if a.array is not None and b.array is not None:
        return bool(np.array_equal(a.array, b.array))
    pairs = zip(a.known_elements.ravel(), b.known_elements.ravel(), strict=True)
    return all(
        isinstance(x, PrimExpr) and isinstance(y, PrimExpr) and are_equal_dims(x, y)
        for x, y in pairs
    )


def _unpack_results(
    scope: Scope, result: Expr, alternatives: Sequence[TypeCombination], names: Sequence[str]
) -> dict[str, Value]:
    """Return the fields of a tuple, or of a sum of tuples, under their names."""
    if len(alternatives) == 1:
        return dict(zip(names, scope.bind_tuple_fields(result, names), strict=True))
    return dict(
        zip(
            names,
            sum_members(scope, SumValue(scope.attach_span(result), alternatives)),
            strict=True,
        )
    )


def _to_string_tensor(scope: Scope, value: Value) -> Value:
    """Return a byte tensor as a string tensor; members of sums are returned unchanged."""
    return value if isinstance(value, SumMember) else StringValue(scope.expr(value), value.type)


def find_sum_value(values: Sequence[Value]) -> SumValue | None:
    """Return the sum value (one alternative per rank case) that has some value as a member."""
    return next((v.whole for v in values if isinstance(v, SumMember)), None)


def type_alternatives(
    scope: Scope, values: Sequence[Value], block: ImportBlock | None = None
) -> list[TypeCombination]:
    """Return the combinations of types that values may have, as seen from outside a block."""
    sum_value = find_sum_value(values)
    if sum_value is None:
        return [tuple(scope.erase_block_dims(v.relay_type, block) for v in values)]
    return [
        tuple(
            scope.erase_block_dims(
                kinds[v.index] if isinstance(v, SumMember) else v.relay_type, block
            )
            for v in values
        )
        for kinds in sum_value.kinds
    ]


def inject_values(
    scope: Scope,
    values: Sequence[Value],
    alternatives: Sequence[TypeCombination],
    numbers: Sequence[int | None],
    reason: str = "",
) -> Expr:
    """Emit the injection of values into a sum with these alternatives.

    For each combination of types that the values may have, `numbers` gives the alternative, or None
    where the run ends with this reason.

    Raises:
        Unsupported: for strings.
    """
    if any(isinstance(v, StringValue) for v in values):
        raise Unsupported("strings whose rank depends on data are not supported")
    sum_value = find_sum_value(values)
    arms: list[tuple[Var, Expr]] = []
    # Without a sum among the values there is one alternative and one arm; no match is needed.
    for own, number in enumerate(numbers):
        held = payload_var(() if sum_value is None else sum_value.kinds[own], scope.span)
        if number is None:
            arms.append((held, emit_failure(f"{scope.span}: {reason}")))
            continue
        fields = [
            scope.relax_type(TupleGetItem(held, value.index), kind)
            if isinstance(value, SumMember)
            else scope.relax_to_type(value, kind)
            for value, kind in zip(values, alternatives[number], strict=True)
        ]
        kinds = [TupleType(k) for k in alternatives]
        arms.append((held, inject_alternative(kinds, number, Tuple(tuple(fields)))))
    if sum_value is None:
        ((_, alone),) = arms
        return alone
    assert sum_value.expr is not None
    return match_sum(sum_value.expr, arms).with_fields(span=scope.span)


def sum_members(scope: Scope, union: SumValue) -> list[Value]:
    """Return the fields of a sum; a field of one type in all alternatives becomes a plain value."""
    fields: list[Value] = []
    for index in range(len(union.kinds[0])):
        kinds, _ = merge_alternatives([(k[index],) for k in union.kinds])
        if len(kinds) > 1:
            fields.append(SumMember(union, index))
        else:
            fields.append(
                scope.bind_named(_project_member(scope, union, index, kinds[0][0]), "held")
            )
    return fields


def _project_member(scope: Scope, union: SumValue, index: int, kind: Type) -> Expr:
    """Project a field that has one type in all alternatives out of a sum."""
    assert union.expr is not None
    held = [payload_var(k, scope.span) for k in union.kinds]
    arms = [(var, scope.relax_type(TupleGetItem(var, index), kind)) for var in held]
    return match_sum(union.expr, arms).with_fields(span=scope.span)


def to_program_output(scope: Scope, value: Value) -> Value:
    """Return a value as an output of the program; one of several ranks becomes a sum of tensors of
    its own.
    """
    if not isinstance(value, SumMember):
        return value
    sum_value, index = value.whole, value.index
    kinds, numbers = merge_alternatives([(k[index],) for k in sum_value.kinds])
    scope.declare_sum_type(len(kinds))
    held = [payload_var(k, scope.span) for k in sum_value.kinds]
    arms = []
    for var, number in zip(held, numbers, strict=True):
        field = scope.relax_type(TupleGetItem(var, index), kinds[number][0])
        arms.append((var, inject_alternative([k for (k,) in kinds], number, field)))
    assert sum_value.expr is not None
    output = scope.attach_span(match_sum(sum_value.expr, arms).with_fields(span=scope.span))
    return SumValue(output, sum_value.kinds)
