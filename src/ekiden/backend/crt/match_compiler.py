"""Compilation of pattern matches to statements: a decision tree over constructor tags selects a
clause, and each clause is emitted once.

    match (%o) { Some(%y) => a, No => b }
->  switch (o) { case 0: clause = 0; case 1: clause = 1; else: clause = -1 }
    switch (clause) { case 0: a where y = o's first field; case 1: b; else: fail }
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ekiden.backend.crt import micro_module as crt
from ekiden.backend.crt.value_locations import Value
from ekiden.backend.vm.bytecode_emitter import ScopeIterator
from ekiden.backend.vm.decision_tree import MatchLeaf, Path, TagTest, decision_tree
from ekiden.ir.expr import RelayExpr
from ekiden.ir.type import Type
from ekiden.relay.expr import (
    Clause,
    Constructor,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
)

if TYPE_CHECKING:
    from ekiden.backend.crt.read_routine import RoutineReader

BranchReader = Callable[[RelayExpr], ScopeIterator]
_HeadConstructors = Mapping[Path, Constructor]
"""Constructors at the paths of a matched value."""
NO_CLAUSE_NUMBER = -1


def read_match(
    reader: RoutineReader, match: Match, value: Value, branch: BranchReader
) -> Iterator[ScopeIterator]:
    """Read a match of a value; `branch` reads the body of a clause."""
    nodes = decision_tree(match.clauses)
    where = (
        f"no clause of the match at {match.span} is for the value" if match.span else "no clause"
    )
    if not nodes:
        reader.append_unresolved(crt.FailStatement(where))
        return
    if isinstance(nodes[0], MatchLeaf):  # the first clause is for all values
        _bind_pattern_variables(reader, match.clauses[nodes[0].clause], match, value)
        yield from branch(match.clauses[nodes[0].clause].rhs)
        return
    number, reader.matches = reader.matches, reader.matches + 1
    _emit_decision_tree(reader, match, value, nodes, number)
    reader.append_unresolved(crt.ClauseSwitchHeader(number))
    for clause in sorted({node.clause for node in nodes if isinstance(node, MatchLeaf)}):
        reader.append_unresolved(crt.CaseHeader(clause))
        _bind_pattern_variables(reader, match.clauses[clause], match, value)
        yield from branch(match.clauses[clause].rhs)
        reader.append_unresolved(crt.BlockEnd())
    reader.append_unresolved(crt.CaseHeader(None))
    reader.append_unresolved(crt.FailStatement(where))
    reader.append_unresolved(crt.BlockEnd())
    reader.append_unresolved(crt.BlockEnd())


def _emit_decision_tree(
    reader: RoutineReader, match: Match, value: Value, nodes: list[MatchLeaf | TagTest], number: int
) -> None:
    """Emit the decision tree that selects the number of a clause."""
    stack: list[crt.Statement | tuple[MatchLeaf | TagTest | None, _HeadConstructors]] = [
        (nodes[0], {})
    ]
    while stack:
        current = stack.pop()
        if not isinstance(current, tuple):
            reader.append_unresolved(current)
            continue
        node, heads = current
        if not isinstance(node, TagTest):
            reader.append_unresolved(
                crt.SelectClause(number, node.clause if node is not None else NO_CLAUSE_NUMBER)
            )
            continue
        kind, scrutinee = _subvalue(reader, match, value, node.path, heads)
        reader.append_unresolved(crt.SwitchHeader(), scrutinee[0])
        stack.append(crt.BlockEnd())
        default = nodes[node.default_node] if node.default_node is not None else None
        stack += [crt.BlockEnd(), (default, heads), crt.CaseHeader(None)]
        made_by = {c.tag: c for c, _ in reader.program.layouts.constructors(kind)}
        for tag, case in node.cases.items():
            inner = {**heads, node.path: made_by[tag]}
            stack += [crt.BlockEnd(), (nodes[case], inner), crt.CaseHeader(tag)]


def _subvalue(
    reader: RoutineReader, match: Match, value: Value, path: Path, heads: _HeadConstructors
) -> tuple[Type, Value]:
    """Return the component of a value at a path, and its type."""
    kind = match.data.checked_type
    for length, index in enumerate(path):
        row = reader.program.layouts.fields(
            kind, heads.get(path[:length]), reader.error_prefix(match)
        )
        kind, value = row[index].type, value[row[index].start : row[index].end]
    return kind, value


def _bind_pattern_variables(
    reader: RoutineReader, clause: Clause, match: Match, value: Value
) -> None:
    """Bind the variables of a clause's pattern to the components of a value."""
    stack: list[tuple[Pattern, Type, Value]] = [(clause.lhs, match.data.checked_type, value)]
    while stack:
        pattern, kind, component = stack.pop()
        match pattern:
            case PatternVar(var=variable):
                reader.values[variable] = component
                continue
            case PatternConstructor(constructor=constructor, patterns=inside):
                made_by: Constructor | None = constructor
            case PatternTuple(patterns=inside):
                made_by = None
            case _:
                continue
        row = reader.program.layouts.fields(kind, made_by, reader.error_prefix(match))
        for inner, field in zip(inside, row, strict=True):
            stack.append((inner, field.type, component[field.start : field.end]))


__all__ = ["read_match"]
