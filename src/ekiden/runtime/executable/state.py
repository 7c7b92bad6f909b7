"""What a program keeps between runs: buffers of a module, variables of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from ekiden import runtime
from ekiden.runtime.errors import InputError
from ekiden.runtime.forks import Lock


class Kept:
    """Values by name. A run takes them all and gives the new ones, behind its results."""

    def __init__(self, names: Sequence[str], first: Callable[[], object]) -> None:
        """`first` gives the values before the first run: one, or a tuple."""
        self.names = tuple(names)
        self._first = first
        self._values: tuple[object, ...] | None = None
        self._lock = Lock()

    def run(
        self,
        invoke: Callable[[Sequence[object], object], object],
        values: Sequence[object],
        timeout: object,
    ) -> object:
        """The results of a run of these values and those that are kept, which waits for others.
        Where it fails the kept ones stay.
        """
        with self._lock:
            found = invoke([*values, *self._current()], timeout)
            assert isinstance(found, tuple), "metadata that were checked say so"
            cut = len(found) - len(self.names)
            self._values = found[cut:]
        return found[0] if cut == 1 else found[:cut]

    def now(self) -> dict[str, runtime.Tensor]:
        """The values by name."""
        with self._lock:
            pairs = zip(self.names, self._current(), strict=True)
            return {name: cast(runtime.Tensor, value) for name, value in pairs}

    def put(self, values: Mapping[str, object]) -> None:
        """Go on from these values, which `now` gave, here or elsewhere. Raises InputError for other
        names, shapes or dtypes than those of now; then the values stay.
        """
        if sorted(values) != sorted(self.names):
            there = ", ".join(f"'{name}'" for name in self.names)
            raise InputError(f"state: values of {there} expected, got {', '.join(sorted(values))}")
        with self._lock:
            pairs = zip(self.names, self._current(), strict=True)
            self._values = tuple(_like(name, old, values[name]) for name, old in pairs)

    def another(self) -> Kept:
        """The same names, as before the first run."""
        return Kept(self.names, self._first)

    def reset(self) -> None:
        """Forget all that runs have made."""
        with self._lock:
            self._values = None

    def _current(self) -> tuple[object, ...]:
        if self._values is None:
            found = self._first()
            self._values = tuple(found) if isinstance(found, tuple) else (found,)
        return self._values


def _like(name: str, old: object, value: object) -> runtime.Tensor:
    """A value in the place of another. Raises InputError where it cannot be."""
    made = runtime.tensor(value)  # type: ignore[arg-type]  # whatever a user gives
    assert isinstance(old, runtime.Tensor)
    if made.dtype != old.dtype or made.shape != old.shape:
        expected, got = (f"{t.dtype}{list(t.shape)}" for t in (old, made))
        raise InputError(f"state: '{name}': expected {expected}, got {got}")
    return made


def kept_values(metadata: Mapping[str, object], first: Callable[[], object]) -> Kept | None:
    """What a program with these metadata keeps; None if nothing."""
    names = cast("Sequence[str]", metadata.get("states", ()))
    return Kept(names, first) if names else None
