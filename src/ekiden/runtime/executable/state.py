"""State that a program carries across runs; buffers of a module, variables of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from ekiden import runtime
from ekiden._locks import ForkSafeLock
from ekiden.runtime.errors import InputError


class ProgramState:
    """State of a program by name. A run takes all values and returns the new ones after its
    results.
    """

    def __init__(self, names: Sequence[str], first: Callable[[], object]) -> None:
        """Create the state; `first` returns the values before the first run: one, or a tuple."""
        self.names = tuple(names)
        self._first = first
        self._values: tuple[object, ...] | None = None
        self._lock = ForkSafeLock()

    def run(
        self,
        invoke: Callable[[Sequence[object], object], object],
        values: Sequence[object],
        timeout: object,
    ) -> object:
        """Run with these values and the state, serialised with other runs. If the run fails the
        state stays.
        """
        # A run reads and replaces the whole state: concurrent runs would lose updates.
        with self._lock:
            outputs = invoke([*values, *self._current_values()], timeout)
            assert isinstance(outputs, tuple), "metadata that were checked say so"
            cut = len(outputs) - len(self.names)
            self._values = outputs[cut:]
        return outputs[0] if cut == 1 else outputs[:cut]

    def snapshot(self) -> dict[str, runtime.Tensor]:
        """Return the values by name."""
        with self._lock:
            pairs = zip(self.names, self._current_values(), strict=True)
            return {name: cast(runtime.Tensor, value) for name, value in pairs}

    def restore(self, values: Mapping[str, object]) -> None:
        """Restore values that a snapshot returned, here or elsewhere. Raises InputError, without a
        change, for other names, shapes or dtypes.
        """
        if sorted(values) != sorted(self.names):
            expected_names = ", ".join(f"'{name}'" for name in self.names)
            raise InputError(
                f"state: values of {expected_names} expected, got {', '.join(sorted(values))}"
            )
        with self._lock:
            # All values are checked before the state changes.
            pairs = zip(self.names, self._current_values(), strict=True)
            self._values = tuple(_check_replacement(name, old, values[name]) for name, old in pairs)

    def with_initial_values(self) -> ProgramState:
        """Return a state with the same names and its initial values."""
        return ProgramState(self.names, self._first)

    def reset(self) -> None:
        """Reset the state to the initial values."""
        with self._lock:
            self._values = None

    def _current_values(self) -> tuple[object, ...]:
        if self._values is None:
            initial = self._first()
            self._values = tuple(initial) if isinstance(initial, tuple) else (initial,)
        return self._values


def _check_replacement(name: str, old: object, value: object) -> runtime.Tensor:
    """Check a value against the one that it replaces, and return it as a tensor. Raises InputError
    for another shape or dtype.
    """
    replacement = runtime.tensor(value)  # type: ignore[arg-type]  # whatever a user gives
    assert isinstance(old, runtime.Tensor)
    if replacement.dtype != old.dtype or replacement.shape != old.shape:
        expected, actual = (f"{t.dtype}{list(t.shape)}" for t in (old, replacement))
        raise InputError(f"state: '{name}': expected {expected}, got {actual}")
    return replacement


def make_program_state(
    metadata: Mapping[str, object], first: Callable[[], object]
) -> ProgramState | None:
    """Return the state of a program with these metadata; None if it has none."""
    names = cast("Sequence[str]", metadata.get("states", ()))
    return ProgramState(names, first) if names else None
