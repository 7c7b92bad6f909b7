"""Background loop of a served engine: one thread that steps all texts of a model.

Requests come in as events, and tokens go out through what each request gave for them. Admission,
cancellation, deadlines and the end of the loop are events too: they take effect between two steps,
and nothing but the loop's own thread ever waits for a step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field

from ekiden.llm.engine import Engine, Stream
from ekiden.llm.logit_biases import TokenScore
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["EngineLoop", "TokenUpdate"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenUpdate:
    """Tokens that a step generated for one sequence."""

    tokens: Sequence[int]
    finish: str = ""
    """As `Stream.finish`, or "deadline"."""
    reason: str = ""
    """What failed."""
    scores: Sequence[TokenScore] = ()
    """Of each token, where log-probabilities are asked for."""


@dataclass(eq=False, slots=True)
class _ScheduledSequence:
    """Sequence in the loop, with its delivery callback and deadline."""

    stream: Stream
    deliver: Callable[[TokenUpdate], None]
    deadline: float
    """By `time.monotonic`."""
    sent: int = field(default=0)
    """How many of its tokens were delivered."""


class EngineLoop:
    """Loop thread that owns the sequences of an engine and runs its steps. Its methods can be
    called from any thread and never wait.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the loop; `clock()` is the time that deadlines refer to."""
        self._engine, self._clock = engine, clock
        self._changed = threading.Condition()
        self._events: list[Callable[[], None]] = []
        self._entries: dict[Stream, _ScheduledSequence] = {}
        """The texts under way, of the loop's thread alone."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run_loop, name="texts", daemon=True)
        self._thread.start()

    def add(self, stream: Stream, deliver: Callable[[TokenUpdate], None], deadline: float) -> None:
        """Generate the tokens of a sequence from `Engine.prepare`; `deliver` is called on the
        loop's thread with those of each step, and must not block. The last update has a `finish`.
        """
        entry = _ScheduledSequence(stream, deliver, deadline)

        def begin_stream() -> None:
            """Register the sequence on the loop's thread, and queue it unless it has finished."""
            self._entries[stream] = entry
            if not stream.finish:
                self._engine.add(stream)

        self._post(begin_stream)

    def cancel(self, stream: Stream) -> None:
        """Stop generating and delivering tokens of a sequence."""

        def end_stream() -> None:
            """Close the sequence on the loop's thread, unless it has ended."""
            if self._entries.pop(stream, None) is not None:
                self._engine.close(stream)

        self._post(end_stream)

    def close(self) -> None:
        """End all sequences, and then the thread."""

        def end_all() -> None:
            """Close all sequences on the loop's thread, and accept no more."""
            for entry in self._entries.values():
                self._engine.close(entry.stream)
            self._is_closed = True

        self._post(end_all)

    def _post(self, event: Callable[[], None]) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify()

    def _run_loop(self) -> None:
        while True:
            with self._changed:
                while not self._events and not self._entries and not self._is_closed:
                    self._changed.wait()
                # Events run outside the lock, so that callers never wait for a step.
                events, self._events = self._events, []
            for event in events:
                event()
            if self._is_closed and not self._entries:
                return
            self._end_expired()
            self._run_step()
            self._deliver_updates()

    def _end_expired(self) -> None:
        """End the sequences whose deadline has passed."""
        current_time = self._clock()
        for entry in [e for e in self._entries.values() if e.deadline <= current_time]:
            del self._entries[entry.stream]
            self._engine.close(entry.stream)
            self._deliver_one(entry, TokenUpdate((), "deadline"))

    def _run_step(self) -> None:
        """Run one engine step."""
        try:
            self._engine.step()
        except Exception as error:  # each of its texts is told by its own end
            _log.warning("a step failed: %s: %s", type(error).__name__, error)

    def _deliver_updates(self) -> None:
        # The loop removes entries, so it runs over a copy.
        for entry in list(self._entries.values()):
            stream = entry.stream
            tokens = stream.tokens[entry.sent :]
            if not tokens and not stream.finish:
                continue
            scores = stream.scores[entry.sent : entry.sent + len(tokens)]
            entry.sent += len(tokens)
            if stream.finish:
                del self._entries[stream]
            self._deliver_one(entry, TokenUpdate(tokens, stream.finish, stream.reason, scores))

    def _deliver_one(self, entry: _ScheduledSequence, update: TokenUpdate) -> None:
        try:
            entry.deliver(update)
        except Exception as error:  # of code that is not ours: nobody takes the text any more
            _log.warning("a text was not taken: %s", type(error).__name__)
            self._entries.pop(entry.stream, None)
            self._engine.close(entry.stream)
