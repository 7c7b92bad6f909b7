"""Pushdown automata of patterns with recursive group calls, determinised lazily.

The syntax is RE2's, with three forms of PCRE:

    (?(DEFINE)(?<value>...))   groups that are called, and match nothing where they stand
    (?&value)                  a call of a named group, from within itself too
    (?:(?!TEXT)(?s:.))*        anything in which TEXT does not occur

A configuration is a state of the nondeterministic automaton and a stack of the states to return to.
Sets of configurations are the states here, numbered as they are reached: nothing is computed for
texts that nobody writes, so that what a pattern could need is no bound on what it needs.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ekiden.frontend.onnx.regex import Nfa, PatternParser, RegexError, SyntaxTree, byte_classes

__all__ = ["DEAD", "START", "PushdownAutomaton", "has_group_calls"]

START, DEAD = 0, 1
"""States: of the empty text, and of texts that begin no match."""
UNKNOWN = -1
MAX_STACK_DEPTH = 64
"""Calls within each other: what nests deeper is no match."""
MAX_CONFIGURATIONS = 5_000
"""Of one state: more are those of an ambiguous pattern."""
MAX_STATES = 50_000
MAX_VISITS = 1_000_000
"""Configurations that are looked at for one pattern, which takes some seconds: JSON of any kind
takes thousands."""
UNREACHABLE = MAX_STACK_DEPTH + 1
_BEFORE_TEXT = "(?:(?!"
_ANYTHING = ")(?s:.))*"
_NAME = re.compile(r"\?P?<(\w+)>")

Configuration: TypeAlias = "tuple[int, int]"
"""(state of the nondeterministic automaton, number of the stack)"""
Closure: TypeAlias = "tuple[frozenset[Configuration], bool]"
"""(configurations that read bytes, whether the text so far matches)"""


def has_group_calls(pattern: str) -> bool:
    """Return whether a pattern uses PCRE group calls or definitions."""
    return "(?&" in pattern or _BEFORE_TEXT in pattern


class _GroupParser(PatternParser):
    """Parser of patterns with group calls; `groups` holds the syntax trees of named groups."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self.groups: dict[str, SyntaxTree] = {}

    def parse_atom(self) -> SyntaxTree:
        """Parse an atom; see `PatternParser`."""
        if self.consume_if_next(_BEFORE_TEXT):
            return ("without", self._parse_literal())
        return super().parse_atom()

    def _parse_literal(self) -> bytes:
        """Parse the excluded text of a complement, up to the end of the construct."""
        chars = []
        while not self.consume_if_next(")"):
            char = self.next_char()
            char = self.next_char() if char == "\\" else char
            chars.append(char)
        if not chars or not self.pattern.startswith(_ANYTHING[1:], self.at):
            self.raise_error("'(?:(?!TEXT)(?s:.))*' expected, without another form in it")
        self.at += len(_ANYTHING) - 1
        return "".join(chars).encode()

    def parse_group(self) -> SyntaxTree:
        """Parse the inside of parentheses; see `PatternParser`."""
        if self.consume_if_next("?&"):
            end = self.pattern.find(")", self.at)
            name, self.at = self.pattern[self.at : end], end + 1
            if end < 0 or not name.isidentifier():
                self.raise_error("the name of a group expected")
            return ("call", name)
        if self.consume_if_next("?(DEFINE)"):
            self.parse_alternation()
            if not self.consume_if_next(")"):
                self.raise_error("')' expected")
            return ("cat", [])
        named = _NAME.match(self.pattern, self.at)
        tree = super().parse_group()
        if named is not None and self.groups.setdefault(named[1], tree) != tree:
            self.raise_error(f"two unlike groups named '{named[1]}'")
        return tree


class _PushdownNfa(Nfa):
    """Pushdown NFA of a pattern and its groups, with call transitions between them."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._called: list[str] = []
        parser = _GroupParser(pattern)
        tree = parser.parse_pattern()
        self.calls: dict[int, list[tuple[str, int]]] = {}
        """State -> (group, state to return to)."""
        self.starts: dict[str, int] = {}
        self.finals: set[int] = set()
        """States in which the pattern or a group has matched."""
        self.start = self._add_group(tree)
        called = deque(self._called)
        while called:
            name = called.popleft()
            if name in self.starts:
                continue
            if name not in parser.groups:
                raise RegexError(f"pattern {pattern[:64]!r}: there is no group '{name}'")
            self._called.clear()
            self.starts[name] = self._add_group(parser.groups[name])
            called += self._called

    @property
    def has_assertions(self) -> bool:
        """Return whether a transition depends on neighbouring bytes."""
        return any(condition for moves in self.epsilon_moves for condition, _ in moves)

    def _add_group(self, tree: SyntaxTree) -> int:
        start = self.add_state()
        self.finals.add(self.add_tree(tree, start))
        return start

    def add_tree(self, tree: SyntaxTree, start: int) -> int:
        """Append the automaton of a tree; see `Nfa`."""
        match tree:
            case ("call", str(name)):
                end = self.add_state()
                self.calls.setdefault(start, []).append((name, end))
                self._called.append(name)
                return end
            case ("without", bytes(text)):
                return self._add_complement(text, start)
        return super().add_tree(tree, start)

    def _add_complement(self, text: bytes, start: int) -> int:
        """Append the automaton of the texts that do not contain `text`: the automaton of Knuth,
        Morris and Pratt, without its last state.
        """
        states = [self.add_state() for _ in text]
        self.epsilon_moves[start].append(("", states[0]))
        end = self.add_state()
        targets: list[list[int]] = []  # by state and byte: how much of `text` has just been read
        border = 0  # where the text without its first byte leads
        for n, byte in enumerate(text):
            row = list(targets[border]) if n else [0] * 256
            border = row[byte]
            row[byte] = n + 1
            targets.append(row)
        for state, row in zip(states, targets, strict=True):
            self.epsilon_moves[state].append(("", end))
            for byte, length in enumerate(row):
                if length < len(text):
                    self.byte_moves[state].append((byte, byte, states[length]))
        return end


class PushdownAutomaton:
    """Deterministic pushdown automaton over bytes, whose states are created on demand."""

    def __init__(self, pattern: str, letters: Sequence[bool]) -> None:
        """Create the automaton of a pattern.

        Args:
            pattern: The pattern that whole texts match.
            letters: For each byte, whether there is a token of it alone: a text that can go on by
                these can always be ended.

        Raises RegexError for an invalid pattern.
        """
        self._nfa = nfa = _PushdownNfa(pattern)
        self.has_assertions = nfa.has_assertions
        self.kinds = byte_classes(nfa.byte_moves)
        """The class of each byte."""
        kind_of = self.kinds.tolist()
        self._kind_count = int(kind_of[-1]) + 1
        self._moves = [
            [(kind_of[low], kind_of[high], target) for low, high, target in row]
            for row in nfa.byte_moves
        ]
        self._depths = _min_call_depth_to_match(nfa, letters)
        self.can_match = self._depths[nfa.start] <= MAX_STACK_DEPTH
        """Whether texts of `letters` match."""
        self._stacks: list[tuple[int, int, int]] = [(-1, -1, 0)]
        """(state to return to, number of the stack below, depth) of each stack."""
        self._stack_numbers: dict[tuple[int, int], int] = {}
        self._numbers: dict[frozenset[Configuration], int] = {}
        self._sets: list[frozenset[Configuration]] = []
        self._visits = 0
        self.table: NDArray[np.int32] = np.full((64, self._kind_count), UNKNOWN, np.int32)
        """State and class of a byte -> state, `UNKNOWN` until it is asked for."""
        self.accepts: list[bool] = []
        """Whether the text so far matches, by state."""
        self.is_alive: NDArray[np.bool_] = np.zeros(64, np.bool_)
        """Whether a match can be reached by `letters`, by state."""
        self._intern_state(self._closure([(nfa.start, 0)]))
        self._intern_state((frozenset(), False))
        self.table[DEAD] = DEAD

    @property
    def state_count(self) -> int:
        """Return the number of states so far."""
        return len(self._sets)

    def follow(self, states: NDArray[np.int32], kinds: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the states [n] after one byte class each. Raises RegexError for a pattern that
        takes too many.
        """
        next_states = self.table[states, kinds]
        missing = np.flatnonzero(next_states == UNKNOWN)
        if len(missing):
            # Marked rather than sorted: there are many nodes of a trie, and few pairs.
            is_missing = np.zeros((len(self._sets), self._kind_count), np.bool_)
            is_missing[states[missing], kinds[missing]] = True
            for state, kind in np.argwhere(is_missing).tolist():
                target = self._step(state, kind)
                self.table[state, kind] = target
            next_states = self.table[states, kinds]
        return next_states

    def follow_bytes(self, state: int, data: bytes) -> int:
        """Return the state after some bytes, `DEAD` where they lead nowhere. Raises RegexError for
        a pattern that takes too many states.
        """
        kinds = self.kinds
        for byte in data:
            if state == DEAD:
                break
            kind = kinds[byte]
            target = self.table.item(state, kind)
            if target == UNKNOWN:
                target = self._step(state, int(kind))
                self.table[state, kind] = target
            state = target
        return state

    def _step(self, state: int, kind: int) -> int:
        targets = [
            (target, stack)
            for position, stack in self._sets[state]
            for low, high, target in self._moves[position]
            if low <= kind <= high
        ]
        return self._intern_state(self._closure(targets)) if targets else DEAD

    def _closure(self, configurations: Sequence[Configuration]) -> Closure:
        """Return the epsilon closure of configurations, and whether it accepts."""
        seen, waiting = set(configurations), list(configurations)
        accepts = False
        nfa = self._nfa
        while waiting:
            state, stack = waiting.pop()
            reached = [(target, stack) for _, target in nfa.epsilon_moves[state]]
            back, below, depth = self._stacks[stack]
            if state in nfa.finals:
                if stack:
                    reached.append((back, below))
                else:
                    accepts = True
            for name, end in nfa.calls.get(state, ()):
                start = nfa.starts[name]
                # A call that could not return within the depth would leave a text without an end.
                if depth + 1 + self._depths[start] <= MAX_STACK_DEPTH:
                    reached.append((start, self._push(end, stack, depth)))
            for configuration in reached:
                if configuration not in seen:
                    seen.add(configuration)
                    waiting.append(configuration)
            if len(seen) > MAX_CONFIGURATIONS:
                raise RegexError("the pattern is too ambiguous")
        self._visits += len(seen)
        if self._visits > MAX_VISITS:
            raise RegexError("the pattern takes too long")
        return frozenset(c for c in seen if self._moves[c[0]]), accepts

    def _push(self, back: int, stack: int, depth: int) -> int:
        number = self._stack_numbers.setdefault((back, stack), len(self._stacks))
        if number == len(self._stacks):
            self._stacks.append((back, stack, depth + 1))
        return number

    def _intern_state(self, closure: Closure) -> int:
        """Return the number of a state, a new one for a new closure."""
        configurations, accepts = closure
        # Whether it accepts is part of the state: a final configuration may read no bytes.
        key = configurations | {(-1, 0)} if accepts else configurations
        number = self._numbers.setdefault(key, len(self._sets))
        if number < len(self._sets):
            return number
        if number >= MAX_STATES:
            raise RegexError(f"the pattern needs more than {MAX_STATES} states")
        self._sets.append(configurations)
        self.accepts.append(accepts)
        if number == len(self.table):
            self.table = np.concatenate((self.table, np.full_like(self.table, UNKNOWN)))
            self.is_alive = np.concatenate((self.is_alive, np.zeros_like(self.is_alive)))
        self.is_alive[number] = accepts or any(
            self._stacks[stack][2] + self._depths[state] <= MAX_STACK_DEPTH
            for state, stack in configurations
        )
        return number


def _min_call_depth_to_match(nfa: _PushdownNfa, letters: Sequence[bool]) -> list[int]:
    """Return the minimum call depth from each state to the end of its group; `UNREACHABLE` where
    `letters` do not lead there.
    """
    before: list[list[int]] = [[] for _ in nfa.byte_moves]
    counts = np.cumsum([0, *letters]).tolist()
    for state, (silent, moves) in enumerate(zip(nfa.epsilon_moves, nfa.byte_moves, strict=True)):
        for _, target in silent:
            before[target].append(state)
        for low, high, target in moves:
            if counts[high + 1] > counts[low]:
                before[target].append(state)
    callers: list[list[int]] = [[] for _ in nfa.byte_moves]
    for state, calls in nfa.calls.items():
        for name, end in calls:
            callers[end].append(state)
            callers[nfa.starts[name]].append(state)
    depths = [UNREACHABLE] * len(before)
    waiting = deque(nfa.finals)
    for state in nfa.finals:
        depths[state] = 0
    while waiting:
        reached = waiting.popleft()
        candidates = [(state, depths[reached]) for state in before[reached]]
        for state in callers[reached]:
            candidates += [
                (state, max(1 + depths[nfa.starts[name]], depths[end]))
                for name, end in nfa.calls[state]
            ]
        for state, depth in candidates:
            if depth < depths[state]:
                depths[state] = depth
                waiting.append(state)
    return depths
