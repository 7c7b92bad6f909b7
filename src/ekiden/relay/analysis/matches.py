"""Which values a match has no clause for.

The clauses are rows of a matrix of patterns, as in L. Maranget, "Warnings for pattern matching"
(2007). A column with a constructor is split into one matrix per constructor of its type; a row of
an empty matrix that no clause fills is a case that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.module import IRModule
from ekiden.relay.adjoint_type import definition
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
class _Head:
    """What a value can be at the top: a constructor, or a tuple (no constructor)."""

    constructor: Constructor | None
    arity: int

    def fits(self, pattern: Pattern) -> Row | None:
        """Return the patterns of the fields of a value with this head, or None if a pattern refuses
        it.
        """
        match pattern:
            case PatternTuple(patterns=inner):
                return inner
            case PatternConstructor(constructor=constructor, patterns=inner):
                return inner if constructor.tag == self.tag else None
            case _:
                return (PatternWildcard(),) * self.arity

    @property
    def tag(self) -> int:
        """Return the number of the constructor; a tuple has its own."""
        return -1 if self.constructor is None else self.constructor.tag

    def close(self, row: Row) -> Row:
        """Return a row whose first patterns are joined under this head, the opposite of `fits`."""
        inner, remaining = row[: self.arity], row[self.arity :]
        if self.constructor is None:
            return (PatternTuple(inner), *remaining)
        return (PatternConstructor(self.constructor, inner), *remaining)


def unmatched_cases(match: Match, mod: IRModule | None = None) -> list[Pattern]:
    """Return patterns of the values that no clause of a match fits; empty if it is exhaustive.

    Constructors of a type that the module does not define are assumed to be the only ones.
    """
    rows: list[Row] = [(clause.lhs,) for clause in match.clauses]
    return [row[0] for row in _missing(rows, 1, mod or IRModule())]


def pattern_text(pattern: Pattern) -> str:
    """Return a pattern as text for messages; a variable is a wildcard."""
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


def _missing(rows: Sequence[Row], width: int, module: IRModule) -> list[Row]:
    """Return the rows of `width` patterns that stand for all values no row fits."""
    column = next((c for c in range(width) if any(map(_is_open, (r[c] for r in rows)))), width)
    # Only wildcards are left: the first row, if there is one, fits everything.
    if column == width:
        return [] if rows else [(PatternWildcard(),) * width]
    before: Row = (PatternWildcard(),) * column
    unmatched: list[Row] = []
    for head in _heads([r[column] for r in rows], module):
        inner = [
            (*fields, *r[column + 1 :])
            for r in rows
            if (fields := head.fits(r[column])) is not None
        ]
        for row in _missing(inner, head.arity + width - column - 1, module):
            unmatched.append((*before, *head.close(row)))
    return unmatched


def _is_open(pattern: Pattern) -> bool:
    """Return whether a pattern looks into a value."""
    return isinstance(pattern, (PatternConstructor, PatternTuple))


def _heads(column: Sequence[Pattern], module: IRModule) -> list[_Head]:
    """Return all heads of the type that the patterns of a column are of."""
    by_tag: dict[int, Constructor] = {}
    for pattern in column:
        if isinstance(pattern, PatternTuple):
            return [_Head(None, len(pattern.patterns))]
        if isinstance(pattern, PatternConstructor):
            by_tag[pattern.constructor.tag] = pattern.constructor
    first = next(iter(by_tag.values()))
    data = definition(module, first.belong_to)
    every = data.constructors if data is not None else tuple(by_tag.values())
    return [_Head(c, len(c.inputs)) for c in every]
