"""Texts of a form: which tokens may follow, by the automaton of a regular expression.

The automaton moves by bytes. A token moves it by all of its bytes, so that a table of states and
tokens is all that the choice of a token needs; moves after which the pattern can match no more are
left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekiden.frontend.onnx.regex import RegexError, automaton
from ekiden.runtime.errors import InputError
from ekiden.runtime.late_methods import dataclass

__all__ = ["Grammar"]

MOST_BYTES = 1 << 30
"""Of a table."""
NONE = -1


@dataclass(frozen=True, eq=False)
class Grammar:
    """A form that texts have.

    pattern: the regular expression (RE2's syntax) that the whole answer matches. moves: int32
    [states, tokens], the state after each token, below 0 where it may not come. accepts: bool
    [states], whether the pattern matches what there is.
    """

    pattern: str
    moves: NDArray[np.int32]
    accepts: NDArray[np.bool_]

    @staticmethod
    def of(pattern: str, tokens: Sequence[bytes | None], ends: Sequence[int] = ()) -> Grammar:
        """The form for a vocabulary: the bytes of each token, None for one that is no text; those
        of `ends` may come where the pattern matches.

        Raises InputError for a pattern that is wrong, matches no text of these tokens, or needs
        too large a table.
        """
        try:
            table, kinds, accepts = automaton(pattern)
        except RegexError as error:
            raise InputError(f"grammar: {error}") from error
        if 4 * len(table) * len(tokens) > MOST_BYTES:
            raise InputError(
                f"grammar: pattern {pattern!r} has {len(table)} states, too many for a vocabulary"
                f" of {len(tokens)} tokens"
            )
        alive = _leads(table, accepts)
        steps = np.vstack((np.where(alive[table], table, NONE), np.full(table.shape[1], NONE)))
        moves = np.full((len(table), len(tokens)), NONE, np.int32)
        for number, token in enumerate(tokens):
            if not token:
                continue
            at = np.arange(len(table))
            for kind in kinds[np.frombuffer(token, np.uint8)]:
                at = steps[at, kind]
            moves[:, number] = at
        for end in ends:
            moves[:, end] = np.where(accepts, np.arange(len(table)), NONE)
        made = Grammar(pattern, moves, accepts)
        if made.is_over(0) and not accepts[0]:
            raise InputError(f"grammar: no token begins a text that {pattern!r} matches")
        return made

    def is_over(self, state: int) -> bool:
        """Whether no token may follow."""
        return not (self.moves[state] >= 0).any()


def _leads(table: NDArray[np.int32], accepts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The states from which one that accepts can be reached."""
    found = accepts.copy()
    while True:
        more = found | found[table].any(1)
        if (more == found).all():
            return found
        found = more
