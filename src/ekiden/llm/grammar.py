"""Constrained decoding: the tokens that may follow, by the automaton of a regular expression.

The automaton moves by bytes, a token by all of its bytes. Moves after which no tokens lead to a
match are left out.

    Grammar        a table of states and tokens, made at once: also for vocabularies without a token
                   for each byte, and for patterns that look at neighbours (`\\b`)
    LazyGrammar    the row of a state is made when a text first reaches it: patterns that call parts
                   of themselves, of any number of states
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekiden.frontend.onnx.regex import RegexError, compile_dfa
from ekiden.llm.pushdown_automaton import DEAD, PushdownAutomaton, has_group_calls
from ekiden.llm.token_trie import TokenTrie
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["MAX_TABLE_BYTES", "Grammar", "LazyGrammar", "compile_grammar"]

MAX_TABLE_BYTES = 1 << 30
"""Of a table."""
MAX_ROW_BYTES = 1 << 27
"""Of the rows that a lazy grammar keeps."""
NO_TRANSITION = -1


@dataclass(frozen=True, eq=False)
class Grammar:
    """Token-level DFA of a pattern as a dense table: a deterministic automaton over the tokens of a
    vocabulary.

    pattern: the regular expression (RE2's syntax) that the whole response matches. moves: int32
    [states, tokens], the state after each token, below 0 where it may not come. accepts: bool
    [states], whether the pattern matches what there is.
    """

    pattern: str
    moves: NDArray[np.int32]
    accepts: NDArray[np.bool_]

    @staticmethod
    def of(pattern: str, tokens: Sequence[bytes | None], ends: Sequence[int] = ()) -> Grammar:
        """Compile a regular expression for a vocabulary.

        Args:
            pattern: The regular expression that the whole response matches.
            tokens: The bytes of each token; None for one that is no text.
            ends: The end tokens, allowed where the pattern matches.

        Raises InputError for an invalid pattern, one that matches no text of these tokens, or one
        that needs too large a table.
        """
        try:
            table, kinds, accepts = compile_dfa(pattern)
        except RegexError as error:
            raise InputError(f"grammar: {error}") from error
        if 4 * len(table) * len(tokens) > MAX_TABLE_BYTES:
            raise InputError(
                f"grammar: pattern {pattern!r} has {len(table)} states, too many for a vocabulary"
                f" of {len(tokens)} tokens"
            )
        moves = np.full((len(table), len(tokens)), NO_TRANSITION, np.int32)
        for number, token in enumerate(tokens):
            if not token:
                continue
            position = np.arange(len(table))
            # All states advance together: a token costs as many gathers as it has bytes.
            for kind in kinds[np.frombuffer(token, np.uint8)]:
                position = table[position, kind]
            moves[:, number] = position
        alive = _productive_states(moves, accepts)
        if not alive[0]:
            raise InputError(f"grammar: no tokens make a text that {pattern!r} matches")
        # A token into a dead state would start a text that can never match.
        moves[(moves < 0) | ~alive[moves]] = NO_TRANSITION
        for end in ends:
            # The end token is allowed exactly in accepting states.
            moves[:, end] = np.where(accepts, np.arange(len(table)), NO_TRANSITION)
        return Grammar(pattern, moves, accepts)

    def is_over(self, state: int) -> bool:
        """Return whether no token may follow in this state."""
        return not (self.moves[state] >= 0).any()

    @property
    def vocabulary(self) -> int:
        """Return the vocabulary size."""
        return int(self.moves.shape[1])

    @property
    def nbytes(self) -> int:
        """Return the size of the table in bytes."""
        return int(self.moves.nbytes)

    def row(self, state: int) -> NDArray[np.int32]:
        """Return the transitions of a state [tokens]: below 0 where a token may not come."""
        moves: NDArray[np.int32] = self.moves[state]
        return moves

    def advance(self, state: int, token: int) -> int:
        """Return the state after a token; negative for a forbidden token."""
        return int(self.moves[state, token])

    def is_match(self, state: int) -> bool:
        """Return whether the text generated so far matches."""
        return bool(self.accepts[state])


class _GrammarRow(NamedTuple):
    """Logit mask of a state [tokens], and whether it allows no token: both are asked for at each
    step, and the second takes a walk through the vocabulary.
    """

    mask: NDArray[np.int32]
    is_over: bool


class LazyGrammar:
    """Token-level automaton whose states are computed when sequences reach them; engines may share
    it.
    """

    def __init__(self, pattern: str, trie: TokenTrie, ends: Sequence[int] = ()) -> None:
        """Create a grammar.

        Args:
            pattern: What the whole response matches, as `PushdownAutomaton` reads it.
            trie: The tokens.
            ends: The end tokens, allowed where the pattern matches.

        Raises InputError for an invalid pattern, or one that matches no text of these tokens.
        """
        self.pattern, self._trie, self._ends = pattern, trie, list(ends)
        try:
            self._automaton = PushdownAutomaton(pattern, trie.single_bytes)
        except RegexError as error:
            raise InputError(f"grammar: {error}") from error
        if not self._automaton.can_match:
            raise InputError(f"grammar: no tokens make a text that {pattern[:256]!r} matches")
        # The class of each byte of the trie, level by level.
        self._kinds = [self._automaton.kinds[level.letters] for level in trie.levels]
        self._rows: OrderedDict[int, _GrammarRow] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def has_assertions(self) -> bool:
        """Return whether the pattern has assertions on neighbouring characters, which this class
        does not support.
        """
        return self._automaton.has_assertions

    @property
    def vocabulary(self) -> int:
        """Return the vocabulary size."""
        return len(self._trie.tokens)

    @property
    def nbytes(self) -> int:
        """Return the approximate size of its cached rows and states in bytes."""
        return 4 * self.vocabulary * len(self._rows) + 2048 * self._automaton.state_count

    def row(self, state: int) -> NDArray[np.int32]:
        """Return the logit mask of a state [tokens]: 0 for allowed tokens and -1 for others. Raises
        InputError for a pattern that takes too many states.
        """
        return self._cached_row(state).mask

    def _cached_row(self, state: int) -> _GrammarRow:
        with self._lock:
            row = self._rows.get(state)
            if row is not None:
                self._rows.move_to_end(state)
                return row
            try:
                mask = self._compute_row(state)
            except RegexError as error:
                raise InputError(f"grammar: {error}") from error
            row = self._rows[state] = _GrammarRow(mask, not (mask >= 0).any())
            while len(self._rows) > 1 and len(self._rows) * mask.nbytes > MAX_ROW_BYTES:
                self._rows.popitem(last=False)
            return row

    def _compute_row(self, state: int) -> NDArray[np.int32]:
        automaton = self._automaton
        row = np.full(self.vocabulary, NO_TRANSITION, np.int32)
        nodes, states = np.zeros(1, np.int32), np.array([state], np.int32)
        for level, kinds in zip(self._trie.levels, self._kinds, strict=True):
            nodes, places = level.children(nodes)
            states = automaton.follow(states[places], kinds[nodes])
            goes_on = states != DEAD
            nodes, states = nodes[goes_on], states[goes_on]
            if not len(nodes):
                break
            is_allowed = np.zeros(len(kinds), np.bool_)
            is_allowed[nodes] = automaton.is_alive[states]
            row[level.tokens[is_allowed[level.ends]]] = 0
        # The end token is allowed exactly where the text matches.
        row[self._ends] = 0 if automaton.accepts[state] else NO_TRANSITION
        return row

    def advance(self, state: int, token: int) -> int:
        """Return the state after a token; negative for a forbidden token."""
        if token in self._ends:
            return state if self.is_match(state) else NO_TRANSITION
        with self._lock:
            target = self._automaton.follow_bytes(state, self._trie.tokens[token] or b"")
        return NO_TRANSITION if target == DEAD else target

    def is_match(self, state: int) -> bool:
        """Return whether the text generated so far matches."""
        return self._automaton.accepts[state]

    def is_over(self, state: int) -> bool:
        """Return whether no token may follow."""
        return self._cached_row(state).is_over


def compile_grammar(
    pattern: str, trie: TokenTrie, ends: Sequence[int] = ()
) -> Grammar | LazyGrammar:
    """Compile a pattern for a vocabulary, lazily where the lazy automaton is exact.

    Args:
        pattern: What the whole response matches.
        trie: The tokens.
        ends: The end tokens, allowed where the pattern matches.

    Raises InputError as `Grammar.of` and `LazyGrammar` do.
    """
    # With a token for each byte that tokens have, each byte that a match goes on by is a token:
    # without, texts are left out that only longer tokens could go on.
    if trie.single_bytes == trie.bytes or has_group_calls(pattern):
        lazy = LazyGrammar(pattern, trie, ends)
        if not lazy.has_assertions:
            return lazy
        if has_group_calls(pattern):
            raise InputError("grammar: '^', '$', '\\b' and '\\B' do not go with calls of groups")
    return Grammar.of(pattern, trie.tokens, ends)


def _productive_states(moves: NDArray[np.int32], accepts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the states from which an accepting state is reachable."""
    before: list[list[int]] = [[] for _ in moves]
    for state, row in enumerate(moves):
        for next_ in np.unique(row[row >= 0]):
            before[next_].append(state)
    live = accepts.copy()
    new = np.flatnonzero(live).tolist()
    while new:
        for state in before[new.pop()]:
            if not live[state]:
                live[state] = True
                new.append(state)
    return live
