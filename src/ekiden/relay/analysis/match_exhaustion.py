"""Exhaustiveness checking of pattern matches.

The clauses are rows of a matrix of patterns, as in L. Maranget, "Warnings for pattern matching"
(2007). A column with a constructor is split into one matrix per constructor of its type; a row of
an empty matrix that no clause fills is a case that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.module import IRModule
from ekiden.relay.adjoint_type import type_definition
from ekiden.relay.expr import (
    Constructor,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternWildcard,
)
from ekiden.runtime.lazy_dataclass import dataclass

Row = tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class _HeadConstructor:
    """Head constructor of a value: an ADT constructor, or a tuple."""

    constructor: Constructor | None
    arity: int

    def specialize(self, pattern: Pattern) -> Row | None:
        """Specialise a row to this head: return its field patterns, or None if it does not
        match.
        """
        match pattern:
            case PatternTuple(patterns=inner):
                return inner
            case PatternConstructor(constructor=constructor, patterns=inner):
                return inner if constructor.tag == self.constructor_tag else None
            case _:
                return (PatternWildcard(),) * self.arity

    @property
    def constructor_tag(self) -> int:
        """Return the constructor's tag; tuples have a tag of their own."""
        return -1 if self.constructor is None else self.constructor.tag

    def unspecialize(self, row: Row) -> Row:
        """Rebuild a row from field patterns under this head, the inverse of `specialize`."""
        inner, remaining = row[: self.arity], row[self.arity :]
        if self.constructor is None:
            return (PatternTuple(inner), *remaining)
        return (PatternConstructor(self.constructor, inner), *remaining)


def unmatched_cases(match: Match, mod: IRModule | None = None) -> list[Pattern]:
    """Return patterns of the values that no clause matches; empty if the match is exhaustive.

    Constructors of a type that the module does not define are assumed to be the only ones.
    """
    rows: list[Row] = [(clause.lhs,) for clause in match.clauses]
    return [row[0] for row in _unmatched_rows(rows, 1, mod or IRModule())]


def pattern_text(pattern: Pattern) -> str:
    """Format a pattern for messages; variables print as wildcards."""
    match pattern:
        case PatternTuple(patterns=(only,)):
            return f"({pattern_text(only)},)"
        case PatternTuple(patterns=inner):
            return f"({', '.join(map(pattern_text, inner))})"
        case PatternConstructor(constructor=constructor, patterns=()):
            return constructor.name_hint
        case PatternConstructor(constructor=constructor, patterns=inner):
            return f"{constructor.name_hint}({', '.join(map(pattern_text, inner))})"
        case _:
            return "_"


def _unmatched_rows(rows: Sequence[Row], width: int, module: IRModule) -> list[Row]:
    """Return pattern rows of the values that no row matches (Maranget 2007)."""
    # Maranget's algorithm: split by the heads of one column and recurse into the rows that fit.
    column = next((c for c in range(width) if any(map(_is_refutable, (r[c] for r in rows)))), width)
    # Only wildcards are left: the first row, if there is one, fits everything.
    if column == width:
        return [] if rows else [(PatternWildcard(),) * width]
    before: Row = (PatternWildcard(),) * column
    unmatched: list[Row] = []
    for head in _head_constructors([r[column] for r in rows], module):
        inner = [
            (*fields, *r[column + 1 :])
            for r in rows
            if (fields := head.specialize(r[column])) is not None
        ]
        for row in _unmatched_rows(inner, head.arity + width - column - 1, module):
            unmatched.append((*before, *head.unspecialize(row)))
    return unmatched


def _is_refutable(pattern: Pattern) -> bool:
    """Return whether a pattern inspects its value."""
    return isinstance(pattern, (PatternConstructor, PatternTuple))


def _head_constructors(column: Sequence[Pattern], module: IRModule) -> list[_HeadConstructor]:
    """Return all head constructors of the type of a column of patterns."""
    by_tag: dict[int, Constructor] = {}
    for pattern in column:
        if isinstance(pattern, PatternTuple):
            return [_HeadConstructor(None, len(pattern.patterns))]
        if isinstance(pattern, PatternConstructor):
            by_tag[pattern.constructor.tag] = pattern.constructor
    first = next(iter(by_tag.values()))
    data = type_definition(module, first.belong_to)
    # Without the definition only the constructors that occur are known.
    every = data.constructors if data is not None else tuple(by_tag.values())
    return [_HeadConstructor(c, len(c.inputs)) for c in every]
