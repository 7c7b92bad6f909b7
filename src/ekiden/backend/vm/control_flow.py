"""Bytecode emission of branches (`If`) and pattern matches (`Match`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from ekiden._lazy import LazyModule
from ekiden.backend.vm.bytecode_emitter import BytecodeEmitter, ScopeIterator
from ekiden.backend.vm.decision_tree import (
    MatchLeaf,
    Path,
    TagTest,
    decision_tree,
    pattern_at,
    tuple_paths,
)
from ekiden.ir.expr import RelayExpr
from ekiden.ir.node import Node
from ekiden.ir.type import GlobalTypeVar
from ekiden.relay.expr import Constructor, If, Match, TypeData
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import ekiden.relay.analysis.match_exhaustion as matches
else:
    matches = LazyModule("ekiden.relay.analysis.match_exhaustion")

__all__ = ["ChoiceEmitter", "ValueParts"]

ValueParts: TypeAlias = dict[Path, int]
"""Registers of a value's components, by path."""
_Heads: TypeAlias = dict[Path, Constructor]
"""Constructors at the paths of a matched value."""
_PendingNode: TypeAlias = tuple[int, int, ValueParts, _Heads]
"""Decision-tree node to be emitted, its label, and the constructors known there."""

MAX_JUMP_TABLE_CASES = 256
"""Maximum number of cases in a jump table."""


@dataclass(slots=True)
class _MatchFailures:
    """Failure exits of a match: one Fatal for each pattern of values that no clause matches."""

    tuples: Mapping[Path, int]
    """Number of fields of each tuple in the value, by path."""
    fallback_label: int
    """Label of the failure for a value of unknown shape."""
    failure_labels: list[tuple[int, _Heads]] = field(default_factory=list)
    """Failure labels, with the constructors known there."""


class ChoiceEmitter(BytecodeEmitter):
    """Emitter of a function's branches and matches."""

    registers: dict[RelayExpr, int]
    """Register of each variable."""
    types: Mapping[GlobalTypeVar, Node]
    """Data type definitions."""

    def _emit_let_chain(self, body: RelayExpr, to: int | None) -> ScopeIterator:
        """Emit a let-chain, whose result goes to a register or is returned from the function."""
        raise NotImplementedError

    def _atom_register(self, expr: RelayExpr) -> int:
        """Return the register of an argument."""
        raise NotImplementedError

    def _emit_if(self, expr: If, to: int | None) -> ScopeIterator:
        if_true, if_false, after = self.new_label(), self.new_label(), self.new_label()
        self.emit("Switch", value=self._atom_register(expr.cond), offsets=(if_false, if_true))
        self.bind_label(if_true)
        yield self._emit_let_chain(expr.true_branch, to)
        self._emit_jump_or_return(after, to)
        self.bind_label(if_false)
        yield self._emit_let_chain(expr.false_branch, to)
        self.bind_label(after)

    def _emit_match(self, expr: Match, to: int | None) -> ScopeIterator:
        nodes = decision_tree(expr.clauses)
        leaves = Counter(node.clause for node in nodes if isinstance(node, MatchLeaf))
        after = self.new_label()
        ends = _MatchFailures(tuple_paths(expr.clauses), self.new_label())
        shared: dict[int, int] = {}
        value = self._atom_register(expr.data)
        waiting: list[_PendingNode] = [(0, self.new_label(), {(): value}, {})] if nodes else []
        while waiting:
            number, label, registers, heads = waiting.pop()
            node = nodes[number]
            self.bind_label(label)
            if isinstance(node, TagTest):
                waiting.extend(reversed(self._emit_test(node, registers, heads, ends)))
            elif leaves[node.clause] > 1:
                self._emit_clause_edge(node, registers, shared)
            else:
                self.registers |= {
                    v: self._component_register(path, registers) for v, path in node.variables
                }
                yield self._emit_let_chain(expr.clauses[node.clause].rhs, to)
                self._emit_jump_or_return(after, to)
        for clause, label in shared.items():
            self.bind_label(label)
            yield self._emit_let_chain(expr.clauses[clause].rhs, to)
            self._emit_jump_or_return(after, to)
        self._emit_match_failures(expr, ends)
        self.bind_label(after)

    def _emit_match_failures(self, match: Match, ends: _MatchFailures) -> None:
        """Emit the errors for values that no clause matches."""
        before, where = self.source_node, f" of the match at {match.span}" if match.span else ""
        message = f"no clause{where} is for it"
        if not match.clauses and match.span:  # none was meant to fit: it says why the program ends
            message = str(match.span)
        for label, heads in ends.failure_labels:
            self.bind_label(label)
            shown = matches.pattern_text(pattern_at(heads, ends.tuples))
            self.source_node = f"no clause{where} is for {shown}"
            self.emit("Fatal")
        self.bind_label(ends.fallback_label)
        self.source_node = message
        self.emit("Fatal")
        self.source_node = before

    def _emit_jump_or_return(self, after: int, to: int | None) -> None:
        if to is not None:
            self.emit_goto(after)

    def _emit_test(
        self, test: TagTest, registers: ValueParts, heads: _Heads, ends: _MatchFailures
    ) -> list[_PendingNode]:
        """Emit a test and return the nodes for its outcomes."""
        value = self._component_register(test.path, registers)
        heads_by_tag = {c.tag: {**heads, test.path: c} for c in self._data_type_constructors(test)}
        node_labels = {node: self.new_label() for node in test.cases.values()}
        labels = {tag: node_labels[node] for tag, node in test.cases.items()}
        waiting = [
            (node, node_labels[node], dict(registers), heads_by_tag.get(tag, heads))
            for tag, node in test.cases.items()
        ]
        fallback_label = ends.fallback_label
        if test.default_node is not None:
            fallback_label = self.new_label()
            waiting.append((test.default_node, fallback_label, dict(registers), heads))
        else:
            missing = {tag: self.new_label() for tag in heads_by_tag if tag not in labels}
            ends.failure_labels.extend((label, heads_by_tag[tag]) for tag, label in missing.items())
            labels |= missing
        if max(labels) < MAX_JUMP_TABLE_CASES:
            cases = (labels.get(tag, fallback_label) for tag in range(max(labels) + 1))
            self.emit("Switch", value=value, offsets=(*cases, fallback_label))
        else:
            self._emit_tag_comparisons(
                self.emit_into("GetTag", object=value), labels, fallback_label
            )
        return waiting

    def _data_type_constructors(self, test: TagTest) -> tuple[Constructor, ...]:
        """Return all constructors of the tested data type."""
        data = self.types.get(test.data)
        return data.constructors if isinstance(data, TypeData) else ()

    def _emit_tag_comparisons(
        self, tag_register: int, labels: dict[int, int], fallback_label: int
    ) -> None:
        for tag, label in labels.items():
            further, constant_register = self.new_label(), self.emit_into("LoadConsti", value=tag)
            self.emit(
                "If",
                test=tag_register,
                target=constant_register,
                true_offset=label,
                false_offset=further,
            )
            self.bind_label(further)
        self.emit_goto(fallback_label)

    def _emit_clause_edge(
        self, leaf: MatchLeaf, registers: ValueParts, shared: dict[int, int]
    ) -> None:
        """Emit an edge to a clause; all edges leave the clause's variables in the same
        registers.
        """
        if leaf.clause not in shared:
            shared[leaf.clause] = self.new_label()
            self.registers |= {variable: self.new_register() for variable, _ in leaf.variables}
        for variable, path in leaf.variables:
            self.emit(
                "Move", dst=self.registers[variable], src=self._component_register(path, registers)
            )
        self.emit_goto(shared[leaf.clause])

    def _component_register(self, path: Path, registers: ValueParts) -> int:
        """Return the register of a component of the matched value."""
        prefix_length = next(n for n in range(len(path), -1, -1) if path[:n] in registers)
        for n in range(prefix_length, len(path)):
            held = registers[path[:n]]
            registers[path[: n + 1]] = self.emit_into("GetField", object=held, index=path[n])
        return registers[path]
