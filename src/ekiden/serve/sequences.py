"""Stateful sequences of requests: the state that a program carries between the requests of one
sequence.

The state is the program's own (`Executable.state`), or outputs that come back as inputs, as the
configuration pairs them. It is kept here between requests, saved as the bytes of a safetensors
file, and goes on from those here or in another process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np

from ekiden.runtime import load_param_dict, save_param_dict
from ekiden.runtime.errors import EkidenError, LoadError, RequestError, ServeError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.datatypes import Array
from ekiden.serve.signature import ModelSignature, TensorPort, output_arrays

__all__ = ["ActiveSequence", "SequenceSession", "SequenceTable", "session_factory"]


class SequenceSession(Protocol):
    """Interface of a session, the state of one sequence and the runs that change it."""

    def run(self, arrays: Sequence[Array], seconds: float) -> list[Array]:
        """Return the outputs of the next step. If it fails, the state is unchanged."""

    def state_values(self) -> dict[str, Array]:
        """Return the state by name."""

    def restore(self, values: Mapping[str, Array]) -> None:
        """Continue from a saved state."""


class StatefulSession:
    """Session of a program that keeps its own state."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable.session()

    def run(self, arrays: Sequence[Array], seconds: float) -> list[Array]:
        """Return the outputs of the next step; see `SequenceSession`."""
        return output_arrays(self._executable(*arrays, timeout=seconds))

    def state_values(self) -> dict[str, Array]:
        """Return the state by name; see `SequenceSession`."""
        return {name: value.numpy() for name, value in self._executable.state.items()}

    def restore(self, values: Mapping[str, Array]) -> None:
        """Continue from a saved state; see `SequenceSession`."""
        self._executable.set_state(values)


class FeedbackSession:
    """Session whose state is outputs fed back as inputs."""

    def __init__(
        self, executable: Executable, signature: ModelSignature, pairs: Mapping[str, str]
    ) -> None:
        self._executable, self._whole, self._pairs = executable, signature, pairs
        self._values: dict[str, Array] = {}

    def run(self, arrays: Sequence[Array], seconds: float) -> list[Array]:
        """Return the outputs of the next step; see `SequenceSession`."""
        request_inputs = iter(arrays)
        rows = len(arrays[0]) if arrays and arrays[0].ndim else 1
        feeds = [
            self._state_value(port, rows) if port.name in self._pairs else next(request_inputs)
            for port in self._whole.inputs
        ]
        output_values = output_arrays(self._executable(*feeds, timeout=seconds))
        outputs = dict(zip((port.name for port in self._whole.outputs), output_values, strict=True))
        self._values = {name: outputs[of] for name, of in self._pairs.items()}
        return [a for name, a in outputs.items() if name not in self._pairs.values()]

    def _state_value(self, port: TensorPort, rows: int) -> Array:
        """Return the value of a state input; initially zeros, with the request's first dimension
        for symbolic sizes.
        """
        if port.name not in self._values:
            shape = [d if isinstance(d, int) else rows for d in port.dims]
            self._values[port.name] = np.zeros(shape, port.datatype.numpy)
        return self._values[port.name]

    def state_values(self) -> dict[str, Array]:
        """Return the state by name; see `SequenceSession`."""
        return dict(self._values)

    def restore(self, values: Mapping[str, Array]) -> None:
        """Continue from a saved state; see `SequenceSession`. Raises RequestError for a name or a
        type that the model's state does not have.
        """
        for port in self._whole.inputs:
            if port.name not in self._pairs:
                continue
            value = values.get(port.name)
            if value is None or value.dtype != port.datatype.numpy:
                raise RequestError(f"state: '{port.name}' of {port.datatype.name} expected")
            port.check(value)
        if unknown := [name for name in values if name not in self._pairs]:
            raise RequestError(f"state: nothing is named '{unknown[0][:64]}'")
        # The values share the memory of the saved file, so they are copied.
        self._values = {name: value.copy() for name, value in values.items()}


def session_factory(
    executable: Executable, signature: ModelSignature, pairs: Mapping[str, str], source: str
) -> tuple[ModelSignature, Callable[[], SequenceSession] | None]:
    """Return the signature that clients see, and a factory of sessions; None for a stateless
    program. Raises ServeError if pairs name no input or output, or do not match.
    """
    if not pairs:
        maker = (lambda: StatefulSession(executable)) if executable.state else None
        return signature, maker
    inputs = {port.name: port for port in signature.inputs}
    outputs = {port.name: port for port in signature.outputs}
    for name, of in pairs.items():
        if name not in inputs or of not in outputs:
            raise ServeError(f"'{source}': sequences: state: no input '{name}' or output '{of}'")
        if inputs[name].datatype != outputs[of].datatype or inputs[name].datatype.is_text:
            raise ServeError(f"'{source}': sequences: state: '{name}' and '{of}' differ in dtype")
    client_signature = ModelSignature(
        tuple(port for port in signature.inputs if port.name not in pairs),
        tuple(port for port in signature.outputs if port.name not in pairs.values()),
    )
    return client_signature, lambda: FeedbackSession(executable, signature, pairs)


@dataclass(slots=True)
class ActiveSequence:
    """Active sequence: its session, and the version that it holds."""

    session: SequenceSession
    version: object
    """What it began with, and stays with when another version is loaded."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the step under way: steps wait for each other."""
    last_used: float = field(default_factory=time.monotonic)

    def save(self) -> bytes:
        """Return the state as a safetensors file."""
        return bytes(save_param_dict(self.session.state_values()))

    def restore(self, data: bytes) -> None:
        """Continue from a saved file."""
        try:
            values = {name: t.numpy() for name, t in load_param_dict(data).items()}
            self.session.restore(values)
        except (LoadError, EkidenError) as error:
            raise RequestError(f"the state cannot be taken: {error}") from None


class SequenceTable:
    """Active sequences of one model by name."""

    def __init__(
        self, max_count: int, idle_seconds: float, on_end: Callable[[ActiveSequence], None]
    ) -> None:
        """Create a table; `on_end` is called with each sequence that ends or expires."""
        self._most, self._idle, self._on_end = max_count, idle_seconds, on_end
        self._found: dict[int | str, ActiveSequence] = {}

    def __len__(self) -> int:
        return len(self._found)

    def adopt(self, source: SequenceTable) -> None:
        """Move all sequences of another table to this one."""
        self._found, source._found = source._found, {}

    def items(self) -> list[tuple[int | str, ActiveSequence]]:
        """Return all sequences by name."""
        return list(self._found.items())

    def get(self, name: int | str) -> ActiveSequence:
        """Return an active sequence. Raises RequestError if it has not begun or has expired."""
        sequence = self._found.get(name)
        if sequence is not None and self._has_expired(sequence):
            self.end(name)
            sequence = None
        if sequence is None:
            raise RequestError("the sequence has not begun here, or has ended", "conflict")
        sequence.last_used = time.monotonic()
        return sequence

    def begin(self, name: int | str, make: Callable[[], ActiveSequence]) -> ActiveSequence:
        """Begin a sequence, replacing one of the same name. Raises RequestError if there are too
        many.
        """
        # The old sequence of this name ends first, so that it does not count.
        self.end(name)
        self.end_idle()
        if len(self._found) >= self._most:
            raise RequestError(f"there are {self._most} sequences already", "busy", 1.0)
        self._found[name] = sequence = make()
        return sequence

    def end(self, name: int | str, only: ActiveSequence | None = None) -> None:
        """End a sequence if it exists; with `only`, only that session."""
        sequence = self._found.get(name)
        if sequence is not None and only in (None, sequence):
            del self._found[name]
            self._on_end(sequence)

    def end_idle(self) -> None:
        """End the sequences that have been idle too long."""
        for name, sequence in self.items():
            if self._has_expired(sequence):
                self.end(name)

    def _has_expired(self, sequence: ActiveSequence) -> bool:
        """Return whether a sequence was idle for longer than the limit; a step that still runs
        keeps it.
        """
        is_idle = time.monotonic() - sequence.last_used > self._idle
        return is_idle and not sequence.lock.locked()
