"""Compilation of matches to decision trees (Maranget 2008), which test no component of a value
twice on a path.

    match (%l) { Cons(%x, Cons(_, _)) => a, Cons(%x, _) => b, Nil => c }
    ->  test ():  Cons -> test (1,):  Cons -> a where %x = (0,)
                                      else -> b where %x = (0,)
                  Nil  -> c
                  else -> nothing fits

A path is the fields that lead to a part, from the value outward. Of the tests that the first clause
still needs, the path that most clauses test comes first; a clause without a test there goes on in
every case. Tuples, variables and wildcards need no test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

from ekiden.ir.type import GlobalTypeVar
from ekiden.relay.expr import (
    Clause,
    Constructor,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    Var,
)
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["MatchLeaf", "Path", "TagTest", "decision_tree", "pattern_at", "tuple_paths"]

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MatchLeaf:
    """Leaf of a decision tree: the selected clause and the paths of its variables."""

    clause: int
    variables: tuple[tuple[Var, Path], ...]


@dataclass(frozen=True, slots=True)
class TagTest:
    """Node of a decision tree that branches on the tag of the constructor at `path`."""

    path: Path
    cases: dict[int, int]
    """Node number of each tag."""
    default_node: int | None
    """Node of all other tags; None if no clause matches them."""
    data: GlobalTypeVar
    """Type of the tested value."""


@dataclass(frozen=True, slots=True)
class _ClauseRow:
    """Row of the clause matrix: the tests of a clause that remain."""

    clause: int
    tests: dict[Path, PatternConstructor]
    variables: tuple[tuple[Var, Path], ...]

    def specialize(self, path: Path) -> _ClauseRow:
        """Specialize the row to a matched constructor at `path` (Maranget 2008)."""
        if path not in self.tests:
            return self
        inside = self.tests[path].patterns
        below = _clause_row(self.clause, [(p, (*path, i)) for i, p in enumerate(inside)])
        remaining = {p: c for p, c in self.tests.items() if p != path}
        return _ClauseRow(self.clause, remaining | below.tests, self.variables + below.variables)


def _clause_row(clause: int, patterns: Sequence[tuple[Pattern, Path]]) -> _ClauseRow:
    tests: dict[Path, PatternConstructor] = {}
    variables: list[tuple[Var, Path]] = []
    work = list(reversed(patterns))
    while work:
        pattern, path = work.pop()
        match pattern:
            case PatternVar(var=variable):
                variables.append((variable, path))
            case PatternConstructor():
                tests[path] = pattern
            case PatternTuple(patterns=inside):
                work.extend(reversed([(p, (*path, i)) for i, p in enumerate(inside)]))
    return _ClauseRow(clause, tests, tuple(variables))


@dataclass(slots=True)
class _TreeBuilder:
    """Builder of the tree: nodes in breadth-first order, and the rows of pending ones."""

    nodes: list[MatchLeaf | TagTest] = field(default_factory=list)
    pending_rows: list[list[_ClauseRow]] = field(default_factory=list)

    def node_number(self, rows: list[_ClauseRow]) -> int:
        """Return the number that the node of these rows will get; the node is built later, breadth
        first.
        """
        self.pending_rows.append(rows)
        return len(self.pending_rows) - 1

    def build_node(self, rows: list[_ClauseRow]) -> MatchLeaf | TagTest:
        """Return the node that decides among rows; the first that matches wins. It tests the path
        that most rows test (Maranget 2008, the heuristic of necessity).
        """
        first = rows[0]
        if not first.tests:
            return MatchLeaf(first.clause, first.variables)
        test_counts = Counter(path for row in rows for path in row.tests)
        # Heuristic: the constructor test of the first row that most rows need; the first row
        # decides priority.
        path = max(first.tests, key=test_counts.__getitem__)
        tags = dict.fromkeys(r.tests[path].constructor.tag for r in rows if path in r.tests)
        cases = {
            tag: self.node_number(
                [r.specialize(path) for r in rows if tag == _tag_at(r, path, tag)]
            )
            for tag in tags
        }
        untested = [row for row in rows if path not in row.tests]
        data = first.tests[path].constructor.belong_to
        return TagTest(path, cases, self.node_number(untested) if untested else None, data)


def _tag_at(row: _ClauseRow, path: Path, otherwise: int) -> int:
    return row.tests[path].constructor.tag if path in row.tests else otherwise


def decision_tree(clauses: Sequence[Clause]) -> list[MatchLeaf | TagTest]:
    """Return the nodes of the decision tree of a match, from number 0; none if there are no
    clauses.
    """
    builder = _TreeBuilder()
    if clauses:
        builder.node_number([_clause_row(i, [(c.lhs, ())]) for i, c in enumerate(clauses)])
    # Breadth first and iterative, so that deep patterns do not exhaust the stack.
    while len(builder.nodes) < len(builder.pending_rows):
        builder.nodes.append(builder.build_node(builder.pending_rows[len(builder.nodes)]))
    return builder.nodes


def tuple_paths(clauses: Sequence[Clause]) -> dict[Path, int]:
    """Return the paths of the tuples that clauses destructure, and their number of fields."""
    field_counts: dict[Path, int] = {}
    work: list[tuple[Pattern, Path]] = [(c.lhs, ()) for c in clauses]
    while work:
        pattern, path = work.pop()
        if isinstance(pattern, PatternTuple):
            field_counts[path] = len(pattern.patterns)
        if isinstance(pattern, (PatternTuple, PatternConstructor)):
            work.extend((p, (*path, i)) for i, p in enumerate(pattern.patterns))
    return field_counts


MAX_SHOWN_PATTERN_DEPTH = 4
"""Maximum depth of a pattern in an error message."""


def pattern_at(
    heads: Mapping[Path, Constructor], tuples: Mapping[Path, int], path: Path = ()
) -> Pattern:
    """Return the pattern of a value whose constructors are known at some paths, at most
    MAX_SHOWN_PATTERN_DEPTH deep, for an error message.
    """
    if len(path) < MAX_SHOWN_PATTERN_DEPTH:
        constructor = heads.get(path)
        count = tuples.get(path, 0) if constructor is None else len(constructor.inputs)
        inner = tuple(pattern_at(heads, tuples, (*path, i)) for i in range(count))
        if constructor is not None:
            return PatternConstructor(constructor, inner)
        if inner:
            return PatternTuple(inner)
    return PatternWildcard()
