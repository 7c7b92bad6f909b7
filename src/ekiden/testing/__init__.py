"""Test helpers, at TVM's path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden import runtime
from ekiden.runtime import Device, cpu
from ekiden.target import Target, TargetLike

_T = TypeVar("_T")


def assert_allclose(
    actual: object, desired: object, rtol: float = 1e-7, atol: float = 1e-7
) -> None:
    """Raise AssertionError unless two arrays or tensors have equal shapes and close elements."""
    a, b = _to_numpy(actual), _to_numpy(desired)
    np.testing.assert_allclose(a.shape, b.shape)
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, verbose=True)


def _to_numpy(value: object) -> NDArray[Any]:
    plain: object = value.numpy() if hasattr(value, "numpy") else value
    return np.asarray(plain)


def main() -> None:
    """Run the tests of the calling file with pytest, and exit with its status."""
    pytest = import_module("pytest")
    sys.exit(pytest.main([sys.argv[0], *sys.argv[1:]]))


def enabled_targets() -> list[tuple[str, Device]]:
    """Return the available targets, each with its device."""
    return [("llvm", cpu())]


def device_enabled(target: TargetLike) -> bool:
    """Return whether programs for a target can run on this machine: code can be generated, and the
    device is present.
    """
    parsed = Target.parse(target)
    if not parsed.kind.is_cpu:
        return parsed.kind.has_generator and runtime.device(parsed.kind.name).exist
    return parsed.kind.has_generator and parsed.serves(Target.host())


def parametrize_targets(*args: object) -> Callable[..., object]:
    """Decorate a test to run with `target` and `dev` of each named target, or of all enabled
    ones.
    """
    mark: Callable[..., object] = import_module("pytest").mark.parametrize(
        "target, dev", enabled_targets()
    )
    if len(args) == 1 and callable(args[0]):
        return mark(args[0])  # type: ignore[return-value]
    return mark


def uses_gpu(function: Callable[..., _T]) -> Callable[..., _T]:
    """Return the function unchanged: tests run on every available target."""
    return function


def requires_llvm(function: Callable[..., _T]) -> Callable[..., _T]:
    """Return the function unchanged: LLVM is always available."""
    return function


__all__ = [
    "assert_allclose",
    "device_enabled",
    "enabled_targets",
    "main",
    "parametrize_targets",
    "requires_llvm",
    "uses_gpu",
]
