"""Executable of a model with inputs of unknown rank, compiled per combination of ranks."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np

from ekiden import runtime
from ekiden._locks import ForkSafeLock
from ekiden.frontend.common.options import Shapes
from ekiden.runtime.artifact.metadata import ANY_RANK_SHAPE, TensorInfo
from ekiden.runtime.errors import ExportError, InputError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.executable.outputs import BoundRun


class UnrankedExecutable(Executable):
    """Executable with one program per combination of input ranks, compiled at the first run and
    cached.

    `inputs` and `outputs` show such tensors with the dimension "...". There is no one program to
    save, export or look into: what asks for it raises ExportError, which names the inputs.
    """

    def __init__(
        self,
        inputs: Sequence[tuple[str, str, tuple[int | str, ...] | None]],
        outputs: Sequence[tuple[str, str]],
        compile_for: Callable[[Shapes], Executable],
    ) -> None:
        """Create an executable without programs.

        Args:
            inputs: (name, dtype, shape) of each, the shape None where the rank is unknown.
            outputs: (name, dtype) of each.
            compile_for: Returns the executable for shapes of the inputs without a rank. It is
                called in a copy of this thread's context: the PassContext of now holds then too.
        """
        self.inputs = tuple(
            TensorInfo(name, ANY_RANK_SHAPE if shape is None else shape, dtype)
            for name, dtype, shape in inputs
        )
        self.outputs = tuple(TensorInfo(name, ANY_RANK_SHAPE, dtype) for name, dtype in outputs)
        self._kept = self._nesting = self._upgrade = None
        self._positions = {info.name: i for i, info in enumerate(self.inputs)}
        self._unranked = tuple(i for i, (_, _, shape) in enumerate(inputs) if shape is None)
        self._compile_for = compile_for
        self._context = contextvars.copy_context()
        self._lock = ForkSafeLock()
        self._by_ranks: dict[tuple[int, ...], Executable] = {}

    @property
    def _program(self) -> NoReturn:
        names = [self.inputs[i].name for i in self._unranked]
        listed, shapes = ", ".join(map(repr, names)), ", ".join(f"{n!r}: (...)" for n in names)
        raise ExportError(
            f"the model does not say the rank of its input {listed}, so there is a program for each"
            f" rank that is run, and none to save or look into: compile with shape={{{shapes}}}"
        )

    def for_inputs(self, *args: object, **named: object) -> Executable:
        """Return the executable for the ranks of these inputs, compiled on first use. Raises
        InputError as a call does, and what `compile` raises.
        """
        arguments = self._order_inputs(args, named)
        if len(arguments) != len(self.inputs):
            expected = f"expected {len(self.inputs)} inputs ({self._names()})"
            raise InputError(f"run: {expected}, got {len(arguments)}")
        ranks = tuple(_argument_rank(self.inputs[i], arguments[i]) for i in self._unranked)
        with self._lock:
            if ranks not in self._by_ranks:
                shapes: Shapes = {
                    self.inputs[i].name: (None,) * rank
                    for i, rank in zip(self._unranked, ranks, strict=True)
                }
                compiled = self._context.copy().run(self._compile_for, shapes)
                self._by_ranks[ranks] = compiled
            return self._by_ranks[ranks]

    def __call__(
        self, *args: object, out: object = None, timeout: object = None, **named: object
    ) -> runtime.Tensor | tuple[runtime.Tensor, ...]:
        """Run the program for the ranks of these inputs; see `Executable`."""
        options = {"out": out, "timeout": timeout}
        also = {k: v for k, v in options.items() if v is not None and k in self._positions}
        executable = self.for_inputs(*args, **named, **also)
        return executable(*args, out=out, timeout=timeout, **named)

    def bind(self, *args: object, out: object = None, **named: object) -> BoundRun:
        """Bind the program for the ranks of these inputs; see `Executable.bind`."""
        return self.for_inputs(*args, **named).bind(*args, out=out, **named)

    def profile(self, *args: object, peak: bool = True, **named: object) -> Any:  # noqa: ANN401
        """Profile the program for the ranks of these inputs; see `Executable.profile`."""
        return self.for_inputs(*args, **named).profile(*args, peak=peak, **named)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the kernels of all compiled programs have their own code."""
        for executable in list(self._by_ranks.values()):
            executable.wait(timeout)

    @property
    def tiers(self) -> dict[str, str]:
        """Return the tiers of the kernels of all compiled programs."""
        programs = [e.tiers for e in list(self._by_ranks.values())]
        return {name: tier for tiers in programs for name, tier in tiers.items()}


def _argument_rank(info: TensorInfo, value: object) -> int:
    """Return the rank of an argument. Raises InputError for one that is no array."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return len(shape)
    try:
        if hasattr(value, "__dlpack__"):
            return len(runtime.tensor(cast(Any, value)).shape)
        return np.ndim(cast(Any, value))
    except (TypeError, ValueError, BufferError) as error:
        actual = type(value).__name__
        hint = "; inputs by name are keywords: executable(**inputs)"
        reason = hint if isinstance(value, Mapping) else ""
        expected = f"an array of {info.dtype}, got {actual}{reason}"
        raise InputError(f"input '{info.name}': expected {expected}") from error
