"""Regions of programs whose code is an artifact of its own: those of the compiler "ccompiler"."""

from __future__ import annotations

from collections.abc import Callable

from ekiden.runtime.binding._core import Executable, Tensor, VirtualMachine

__all__ = ["load"]


def load(symbol: str, code: bytes) -> Callable[..., None]:
    """What runs a region: its function `main`, whose results are copied to where a call wants them.

    Raises LoadError for what is no artifact of this machine's kind.
    """
    executable = Executable.from_bytes(code)
    inputs = len(executable.params("main"))

    def kernel(*tensors: Tensor) -> None:
        """One run: `tensors` are the region's inputs, then the places for its results, which are
        copied: the program has memory of its own.
        """
        found = VirtualMachine(executable).invoke("main", *tensors[:inputs])
        results = [found] if isinstance(found, Tensor) else list(found)  # type: ignore[call-overload]
        for made, to in zip(results, tensors[inputs:], strict=True):
            assert isinstance(made, Tensor)
            made.copyto(to)

    return kernel
