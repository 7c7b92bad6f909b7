"""Test parameters for the calling conventions of a compiled model."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ekiden.testing.aot import AOTTestRunner

AOT_DEFAULT_RUNNER = AOTTestRunner()


def parametrize_aot_options(test: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a test to run with every calling convention: run a test with each `interface_api`,
    `use_unpacked_api` and `test_runner` that go together.
    """
    rows = [
        ("packed", True, AOT_DEFAULT_RUNNER),
        ("packed", False, AOT_DEFAULT_RUNNER),
        ("c", True, AOT_DEFAULT_RUNNER),
    ]
    names = ["interface_api", "use_unpacked_api", "test_runner"]
    mark: Callable[..., Any] = import_module("pytest").mark.parametrize(names, rows)
    marked: Callable[..., Any] = mark(test)
    return marked


__all__ = ["AOT_DEFAULT_RUNNER", "AOTTestRunner", "parametrize_aot_options"]
