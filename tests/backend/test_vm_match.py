"""Decision trees of pattern matches."""

from __future__ import annotations

import pytest

from ekiden.backend.vm.decision_tree import (
    MatchLeaf,
    TagTest,
    decision_tree,
    pattern_at,
    tuple_paths,
)
from ekiden.relay import Match, parse
from ekiden.relay.analysis.match_exhaustion import pattern_text
from ekiden.relay.transform.language.scope_tree import evaluation_order

pytestmark = pytest.mark.quick

TagTest.__test__ = False  # type: ignore[attr-defined]  # not a class of tests
TYPES = "type List[A] { Cons(A, List[A]), Nil, } type Pair { Both(List[int32], List[int32]), }"


def tree(kind: str, clauses: str) -> list[MatchLeaf | TagTest]:
    module = parse(f"{TYPES} def @f(%x: {kind}) -> int32 {{ match (%x) {{ {clauses} }} }}")
    result = next(e for e in evaluation_order(module["f"].body) if isinstance(e, Match))  # type: ignore[attr-defined]
    return decision_tree(result.clauses)


def shown(nodes: list[MatchLeaf | TagTest], number: int | None = 0) -> object:
    """A tree as nested data."""
    if number is None:
        return "nothing"
    node = nodes[number]
    if isinstance(node, MatchLeaf):
        return node.clause, {variable.name_hint: path for variable, path in node.variables}
    cases = {tag: shown(nodes, case) for tag, case in node.cases.items()}
    return node.path, cases, shown(nodes, node.default_node)


def test_match_tests_each_field_once() -> None:
    nodes = tree("List[int32]", "Cons(%a, Cons(%b, _)) => %b, Cons(%a, _) => %a, Nil => 0")
    inner = (1,), {0: (0, {"a": (0,), "b": (1, 0)})}, (1, {"a": (0,)})
    assert shown(nodes) == ((), {0: inner, 1: (2, {})}, "nothing")


def test_wildcards_are_not_tested() -> None:
    assert shown(tree("List[int32]", "%all => 1, Nil => 0")) == (0, {"all": ()})
    pair = "(%a, (_, %b)) => %a + %b"
    assert shown(tree("(int32, (int32, int32))", pair)) == (0, {"a": (0,), "b": (1, 1)})


def test_clause_reached_by_several_paths() -> None:
    nodes = tree("(List[int32], List[int32])", "(Nil, Nil) => 0, (Cons(%a, _), _) => %a, _ => 2")
    first = (1,), {1: (0, {})}, (2, {})
    assert shown(nodes) == ((0,), {1: first, 0: (1, {"a": (0, 0)})}, (2, {}))


def test_most_discriminating_field_is_tested_first() -> None:
    clauses = "Both(Nil, Nil) => 0, Both(_, Cons(_, _)) => 1, Both(_, Nil) => 2"
    root, cases, other = shown(tree("Pair", clauses))  # type: ignore[misc]
    assert (root, other) == ((), "nothing")
    assert cases[0][0] == (1,)


def test_match_without_clauses_has_no_nodes() -> None:
    assert decision_tree([]) == []


def test_missing_clause_message_shows_known_fields() -> None:
    module = parse(
        f"{TYPES} def @f(%x: (List[int32], List[int32])) -> int32 {{"
        " match? (%x) { (Cons(%a, _), _) => %a } }"
    )
    result = next(e for e in evaluation_order(module["f"].body) if isinstance(e, Match))  # type: ignore[attr-defined]
    cons, nil = module.get_type("List")[1:]
    places = tuple_paths(result.clauses)
    assert places == {(): 2}
    assert pattern_text(pattern_at({(0,): cons, (0, 1): nil}, places)) == "(Cons(_, Nil), _)"
    assert pattern_text(pattern_at({}, {})) == "_"
    deep = {(1,) * n: cons for n in range(9)}
    assert pattern_text(pattern_at(deep, {})) == "Cons(_, Cons(_, Cons(_, Cons(_, _))))"
