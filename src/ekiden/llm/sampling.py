"""Sampling parameters and stopping criteria of a generation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from ekiden.llm.grammar import Grammar, LazyGrammar
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Sampling"]

MAX_LOGIT_FACTOR = 1e30
"""Of what multiplies logits, or divides them: products stay numbers in float32."""
MAX_PENALTY = MAX_LOGIT_BIAS = 1e6
"""Of what is added to logits or subtracted from them for each token."""
MAX_ALTERNATIVES = 1024
"""Of the likeliest tokens whose log-probabilities a text may report."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters, as in transformers' `generate`. Raises InputError for an
    invalid number.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    """What logits are divided by; 0 takes the likeliest token."""
    top_k: int = 0
    """Only so many of the likeliest tokens; 0 for any, 1 for the likeliest at any temperature."""
    top_p: float = 1.0
    """Only the likeliest that make up this share together."""
    min_p: float = 0.0
    """Only those that are at least this share of the likeliest one."""
    repetition_penalty: float = 1.0
    """What logits of tokens that came before are made smaller by; 1 changes nothing."""
    seed: int = 0
    """Equal seeds give equal texts, whatever is generated beside them."""
    stop: Sequence[str] = ()
    """The text ends before the first of these: one text or several, which are stored as a tuple. A
    special token is one too, though it has no text."""
    ignore_end: bool = False
    """Whether tokens that end a text are as others."""
    grammar: Grammar | LazyGrammar | str | None = None
    """The form of the text: a regular expression that the whole answer matches."""
    frequency_penalty: float = 0.0
    """What is subtracted from a token's logit for each time that the answer has it already."""
    presence_penalty: float = 0.0
    """What is subtracted from the logit of each token that the answer has already."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token -> what is added to its logit."""
    logprobs: int | None = None
    """The number of likeliest tokens whose log-probabilities are reported beside that of each
    chosen token; None reports none."""
    adapter: str = ""
    """The adapter of the model that the text is made with, by its name; empty for none."""

    def __post_init__(self) -> None:
        """Validate the parameters. Raises InputError."""
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise InputError(f"max_tokens: at least 1 expected, got {self.max_tokens!r}")
        for name, minimum, maximum in (
            ("temperature", 0.0, math.inf), ("top_k", 0, 2**24), ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0), ("seed", -(2**63), 2**63 - 1),
        ):  # fmt: skip
            value = getattr(self, name)
            kinds = (int,) if type(minimum) is int else (int, float)
            if not _is_number_of(value, kinds) or not minimum <= value <= maximum:
                kind = "whole number" if kinds == (int,) else "number"
                raise InputError(
                    f"{name}: a {kind} from {minimum} to {maximum} expected, got {value!r}"
                )
        penalty = self.repetition_penalty
        if not _is_number_of(penalty, (int, float)) or not 0 < penalty < math.inf:
            raise InputError(f"repetition_penalty: a number above 0 expected, got {penalty!r}")
        self._check_logit_changes()
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stops, (tuple, list)) or not all(type(s) is str and s for s in stops):
            raise InputError(f"stop: texts expected, got {self.stop!r}")
        object.__setattr__(self, "stop", tuple(stops))
        if not isinstance(self.adapter, str):
            raise InputError(f"adapter: a name expected, got {self.adapter!r}")

    def _check_logit_changes(self) -> None:
        """Validate penalties, biases and the number of alternatives. Raises InputError."""
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            if not _is_number_of(value, (int, float)) or not abs(value) <= MAX_PENALTY:
                raise InputError(
                    f"{name}: a number from {-MAX_PENALTY} to {MAX_PENALTY} expected, got {value!r}"
                )
        if not isinstance(self.logit_bias, Mapping):
            raise InputError(f"logit_bias: numbers by token expected, got {self.logit_bias!r}")
        for token, bias in self.logit_bias.items():
            if type(token) is not int or not _is_number_of(bias, (int, float)):
                raise InputError(f"logit_bias: a number by token expected, got {token!r}: {bias!r}")
            if not abs(bias) <= MAX_LOGIT_BIAS:
                raise InputError(f"logit_bias: {bias!r} of token {token} is out of range")
        count = self.logprobs
        if count is not None and (type(count) is not int or not 0 <= count <= MAX_ALTERNATIVES):
            raise InputError(f"logprobs: from 0 to {MAX_ALTERNATIVES} expected, got {count!r}")

    @property
    def has_count_penalties(self) -> bool:
        """Return whether tokens that a response has already are penalised by their counts."""
        return bool(self.frequency_penalty or self.presence_penalty)

    @property
    def changes_logits(self) -> bool:
        """Return whether biases or penalties are added to logits: penalties by count, or biases."""
        return bool(self.has_count_penalties or self.logit_bias)

    @property
    def is_stepwise(self) -> bool:
        """Return whether the host takes part in each token, so that steps cannot be batched: its
        logits are changed or reported.
        """
        return self.changes_logits or self.logprobs is not None

    @property
    def is_greedy(self) -> bool:
        """Return whether the most likely token is chosen."""
        return (
            self._is_argmax
            and self.repetition_penalty == 1
            and self.grammar is None
            and not self.changes_logits
        )

    @property
    def _is_argmax(self) -> bool:
        return self.temperature == 0 or self.top_k == 1

    def settings(self) -> tuple[float, ...]:
        """Return the settings in the order of program.SETTINGS."""
        # Divided by a large temperature, unequal logits become equal floats, and all of them are
        # the likeliest: one likeliest token is chosen from logits that are not divided.
        temperature = 0.0 if self._is_argmax else min(self.temperature, MAX_LOGIT_FACTOR)
        return (
            temperature, float(self.top_k), self.top_p, self.min_p,
            min(max(self.repetition_penalty, 1 / MAX_LOGIT_FACTOR), MAX_LOGIT_FACTOR),
        )  # fmt: skip


def _is_number_of(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
