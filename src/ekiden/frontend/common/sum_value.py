"""Sum types (tagged unions) of rank-polymorphic values: values whose rank or dtype is known only at
run time.

A value of one of several ranks has a sum type of the program, with a constructor for each rank; it
is matched where it is used, and the nodes that follow are imported for each (see
ekiden.frontend.common.rank_cases):

    type OneOf2[A, B] { OneOf2_0(A), OneOf2_1(B) }
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from typing import TypeAlias

from ekiden.frontend.common.sequence_value import NonTensorValue, join_types, to_sequence_value
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.ir.expr_text import format_type
from ekiden.ir.span import Span
from ekiden.ir.type import GlobalTypeVar, TensorType, TupleType, Type, TypeCall, TypeVar
from ekiden.relay.expr import (
    Call,
    Clause,
    Constructor,
    Expr,
    Match,
    PatternConstructor,
    PatternVar,
    TypeData,
    Var,
)

SUM_TYPE_PREFIX = "OneOf"
"""How the name of a sum type begins; the number of its alternatives follows."""
MAX_ALTERNATIVES = 8
"""The most combinations of ranks that values may have at one place of a program."""
MAX_CASES = 32
"""The most cases that a node is imported for."""
TypeCombination: TypeAlias = tuple[Type, ...]
"""The types of several values in one alternative."""


@cache
def sum_type_definition(count: int) -> TypeData:
    """Return the sum type of `count` alternatives."""
    header = GlobalTypeVar(f"{SUM_TYPE_PREFIX}{count}")
    variables = tuple(TypeVar(f"A{n}") for n in range(count))
    constructors = (
        Constructor(f"{SUM_TYPE_PREFIX}{count}_{n}", (variable,), header, n)
        for n, variable in enumerate(variables)
    )
    return TypeData(header, variables, tuple(constructors))


def sum_type(alternatives: Sequence[Type]) -> TypeCall:
    """Return the sum type of these alternatives."""
    return TypeCall(sum_type_definition(len(alternatives)).header, tuple(alternatives))


def is_sum_type(kind: Type) -> bool:
    """Return whether a type is a sum type of this module."""
    return isinstance(kind, TypeCall) and str(getattr(kind.func, "name_hint", "")).startswith(
        SUM_TYPE_PREFIX
    )


def inject_alternative(alternatives: Sequence[Type], index: int, value: Expr) -> Expr:
    """Emit the injection of a value as alternative `index` of a sum of these types."""
    constructor = sum_type_definition(len(alternatives)).constructors[index]
    return Call(constructor, (value,), type_args=tuple(alternatives))


def match_sum(value: Expr, arms: Sequence[tuple[Var, Expr]]) -> Match:
    """Emit a match of a sum over its alternatives; each arm is (variable of the payload,
    result).
    """
    constructors = sum_type_definition(len(arms)).constructors
    clauses = [
        Clause(PatternConstructor(constructor, (PatternVar(var),)), result)
        for constructor, (var, result) in zip(constructors, arms, strict=True)
    ]
    return Match(value, tuple(clauses))


def payload_var(kinds: Sequence[Type], span: Span) -> Var:
    """Return a variable for the payload tuple of an alternative. It has a span: an expression
    without one is copied where it becomes part of a node.
    """
    kind = TupleType(tuple(kinds))
    var = Var("held", kind, span=span)
    var.set_checked_type(kind)
    return var


class SumValue(NonTensorValue):
    """Sum value of several alternatives, each a tuple of equally many values.

    origin: the choice that decides which, where one alone does, by its name, and the branch of each
    alternative.
    """

    __slots__ = ("kinds", "origin")
    description = "a value of one of several ranks"

    def __init__(
        self,
        expr: Expr,
        kinds: Sequence[TypeCombination],
        origin: tuple[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.array = self.symbols = self.hint = None
        self.expr, self.kinds, self.origin = expr, tuple(kinds), origin

    @property
    def relay_type(self) -> Type:
        """Return the sum type."""
        assert self.expr is not None
        checked = self.expr.checked_type_or_none()
        return sum_type([TupleType(k) for k in self.kinds]) if checked is None else checked


class SumMember(NonTensorValue):
    """Field of a sum value: one of the values that every alternative holds."""

    __slots__ = ("index", "whole")
    description = "a value whose rank depends on data"

    def __init__(self, union: SumValue, index: int) -> None:
        self.array = self.symbols = self.hint = self.expr = None
        self.whole, self.index = union, index

    @property
    def relay_type(self) -> Type:
        """Return the sum of the types that the field may have."""
        return sum_type([kinds[self.index] for kinds in self.whole.kinds])


def to_sum_value(expr: Expr, kind: TypeCall) -> SumValue:
    """Return an expression of a sum of tuples as a value."""
    kinds = [k.fields for k in kind.args if isinstance(k, TupleType)]
    assert len(kinds) == len(kind.args), f"a sum of tuples expected, got {format_type(kind)}"
    return SumValue(expr, kinds)


def value_of_type_call(expr: Expr, kind: TypeCall) -> NonTensorValue:
    """Return an expression of an algebraic data type as a value: a sum or a sequence."""
    return to_sum_value(expr, kind) if is_sum_type(kind) else to_sequence_value(expr, kind)


def merge_alternatives(every: Sequence[TypeCombination]) -> tuple[list[TypeCombination], list[int]]:
    """Merge combinations of equal ranks and dtypes; return the alternatives and the number of each
    combination's own.

    Raises Unsupported for more than MAX_ALTERNATIVES.
    """
    alternatives, numbers = merge_first_alternatives(every)
    assigned = [n for n in numbers if n is not None]
    if len(assigned) < len(numbers):
        raise Unsupported(f"its values may have more than {MAX_ALTERNATIVES} combinations of ranks")
    return alternatives, assigned


def merge_first_alternatives(
    every: Sequence[TypeCombination],
) -> tuple[list[TypeCombination], list[int | None]]:
    """Merge combinations like merge_alternatives, up to MAX_ALTERNATIVES; further ones have no
    number.
    """
    groups: dict[object, list[TypeCombination]] = {}
    for kinds in every:
        key = tuple(map(_rank_signature, kinds))
        if key in groups or len(groups) < MAX_ALTERNATIVES:
            groups.setdefault(key, []).append(kinds)
    keys = list(groups)
    alternatives = [reduce(_join_kinds, members) for members in groups.values()]
    of_each = [tuple(map(_rank_signature, kinds)) for kinds in every]
    return alternatives, [keys.index(key) if key in groups else None for key in of_each]


def possible_dtypes(kind: Type) -> set[str]:
    """Return the dtypes that a tensor or a sum of tensors may have."""
    if isinstance(kind, TypeCall) and is_sum_type(kind):
        return {d for k in kind.args for d in possible_dtypes(k)}
    return {kind.dtype} if isinstance(kind, TensorType) else {format_type(kind)}


def _join_kinds(a: TypeCombination, b: TypeCombination) -> TypeCombination:
    """Join two combinations of types pairwise."""
    both = [join_types(x, y) for x, y in zip(a, b, strict=True)]
    return tuple(k for k in both if k is not None)


def _rank_signature(kind: Type) -> object:
    """Return the key under which types are merged: dtype and rank, recursively."""
    match kind:
        case TensorType():
            return kind.dtype, len(kind.shape)
        case TypeCall():
            return kind.func.name_hint, tuple(map(_rank_signature, kind.args))  # type: ignore[attr-defined]
        case TupleType():
            return tuple(map(_rank_signature, kind.fields))
    return format_type(kind)
