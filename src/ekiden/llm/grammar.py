"""Constrained generation: a regular expression compiled to an automaton over the tokens of a
vocabulary.

The automaton moves by bytes. A token moves it by all of its bytes, so that a table of states and
tokens is all that the choice of a token needs; moves after which no tokens lead to a match are left
out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekiden.frontend.onnx.regex import RegexError, compile_dfa
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["MAX_TABLE_BYTES", "Grammar"]

MAX_TABLE_BYTES = 1 << 30
"""Of a table."""
NO_TRANSITION = -1


@dataclass(frozen=True, eq=False)
class Grammar:
    """Grammar of answers: a deterministic automaton over the tokens of a vocabulary.

    pattern: the regular expression (RE2's syntax) that the whole answer matches. moves: int32
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
            pattern: The regular expression that the whole answer matches.
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
            at = np.arange(len(table))
            # All states advance together: a token costs as many gathers as it has bytes.
            for kind in kinds[np.frombuffer(token, np.uint8)]:
                at = table[at, kind]
            moves[:, number] = at
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
