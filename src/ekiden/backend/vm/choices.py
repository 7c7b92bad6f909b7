"""Emitting choices: `If` and `Match`."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from ekiden.backend.vm.emit import Emitter, Scope
from ekiden.backend.vm.match import Leaf, Path, Test, decision_tree
from ekiden.ir.expr import RelayExpr
from ekiden.relay.expr import If, Match

__all__ = ["Choices", "Parts"]

Parts: TypeAlias = dict[Path, int]
"""Registers of parts of a value."""
_Waiting: TypeAlias = tuple[int, int, Parts]
"""A node of a decision tree that is not emitted yet, its label, and the parts known there."""

MAX_CASES = 256
"""A tag from here on has no place in a table of jumps."""


class Choices(Emitter):
    """The part of a function's compiler that emits its choices."""

    registers: dict[RelayExpr, int]
    """Where the values of variables are."""

    def _scope(self, body: RelayExpr, to: int | None) -> Scope:
        """Emit a let-chain; its result goes to a register, or is that of the function."""
        raise NotImplementedError

    def _atom(self, expr: RelayExpr) -> int:
        """The register of an argument."""
        raise NotImplementedError

    def _if(self, expr: If, to: int | None) -> Scope:
        if_true, if_false, after = self.label(), self.label(), self.label()
        self.emit("Switch", value=self._atom(expr.cond), offsets=(if_false, if_true))
        self.place(if_true)
        yield self._scope(expr.true_branch, to)
        self._leave(after, to)
        self.place(if_false)
        yield self._scope(expr.false_branch, to)
        self.place(after)

    def _match(self, expr: Match, to: int | None) -> Scope:
        nodes = decision_tree(expr.clauses)
        leaves = Counter(node.clause for node in nodes if isinstance(node, Leaf))
        nothing, after = self.label(), self.label()
        shared: dict[int, int] = {}
        waiting: list[_Waiting] = [(0, self.label(), {(): self._atom(expr.data)})] if nodes else []
        while waiting:
            number, label, parts = waiting.pop()
            node = nodes[number]
            self.place(label)
            if isinstance(node, Test):
                waiting.extend(reversed(self._test(node, parts, nothing)))
            elif leaves[node.clause] > 1:
                self._join(node, parts, shared)
            else:
                self.registers |= {v: self._part(path, parts) for v, path in node.variables}
                yield self._scope(expr.clauses[node.clause].rhs, to)
                self._leave(after, to)
        for clause, label in shared.items():
            self.place(label)
            yield self._scope(expr.clauses[clause].rhs, to)
            self._leave(after, to)
        self.place(nothing)
        self.emit("Fatal")
        self.place(after)

    def _leave(self, after: int, to: int | None) -> None:
        if to is not None:
            self.goto(after)

    def _test(self, test: Test, parts: Parts, nothing: int) -> list[_Waiting]:
        """Emit a test; what is to be emitted for its outcomes."""
        value = self._part(test.path, parts)
        found = {node: self.label() for node in test.cases.values()}
        other = nothing
        if test.other is not None:
            found[test.other] = other = self.label()
        labels = {tag: found[node] for tag, node in test.cases.items()}
        if max(labels) < MAX_CASES:
            cases = (labels.get(tag, other) for tag in range(max(labels) + 1))
            self.emit("Switch", value=value, offsets=(*cases, other))
        else:
            self._test_each(self.into("GetTag", object=value), labels, other)
        return [(node, label, dict(parts)) for node, label in found.items()]

    def _test_each(self, found: int, labels: dict[int, int], other: int) -> None:
        for tag, label in labels.items():
            further, wanted = self.label(), self.into("LoadConsti", value=tag)
            self.emit("If", test=found, target=wanted, true_offset=label, false_offset=further)
            self.place(further)
        self.goto(other)

    def _join(self, leaf: Leaf, parts: Parts, shared: dict[int, int]) -> None:
        """One of several ways to a clause: they all leave its variables in the same registers."""
        if leaf.clause not in shared:
            shared[leaf.clause] = self.label()
            self.registers |= {variable: self.new() for variable, _ in leaf.variables}
        for variable, path in leaf.variables:
            self.emit("Move", dst=self.registers[variable], src=self._part(path, parts))
        self.goto(shared[leaf.clause])

    def _part(self, path: Path, parts: Parts) -> int:
        """The register of a part of the value that is matched; `parts` are those that have one."""
        known = next(n for n in range(len(path), -1, -1) if path[:n] in parts)
        for n in range(known, len(path)):
            held = parts[path[:n]]
            parts[path[: n + 1]] = self.into("GetField", object=held, index=path[n])
        return parts[path]
