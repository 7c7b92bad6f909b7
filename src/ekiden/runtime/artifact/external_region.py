"""Regions whose code is an artifact of its own; those of the compiler "ccompiler"."""

from __future__ import annotations

from collections.abc import Callable

from ekiden.runtime.binding._core import Executable, Tensor, VirtualMachine

__all__ = ["load_region"]


def load_region(symbol: str, code: bytes) -> Callable[..., None]:
    """Load a region and return the function that runs its `main` and copies the results to the
    caller's tensors. Raises LoadError for code that is no artifact of this architecture.
    """
    executable = Executable.from_bytes(code)
    inputs = len(executable.params("main"))

    def run_region(*tensors: Tensor) -> None:
        """Run once: `tensors` are the region's inputs, then the tensors for its results, which are
        copied because the program has memory of its own.
        """
        returned = VirtualMachine(executable).invoke("main", *tensors[:inputs])
        results = [returned] if isinstance(returned, Tensor) else list(returned)  # type: ignore[call-overload]
        for result, to in zip(results, tensors[inputs:], strict=True):
            assert isinstance(result, Tensor)
            result.copyto(to)

    return run_region
