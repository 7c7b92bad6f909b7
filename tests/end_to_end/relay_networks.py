"""Comparison of compiled programs with the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ekiden
from comparison import agree, equal
from ekiden import relay
from ekiden.relay.interpreter import Interpreter

Array = np.ndarray[Any, Any]


def check(module: relay.IRModule | relay.Function, *runs: Sequence[Array]) -> None:
    """The compiled program gives what the interpreter gives, on each list of arguments, and its
    native code what its bytecode gives.
    """
    if isinstance(module, relay.Function):
        module = relay.IRModule.from_expr(module)
    exe, native = ekiden.compile(module), ekiden.compile(module, executor="aot")
    for args in runs:
        result = exe(*args)
        agree(result, Interpreter(module).evaluate("main", *args))
        equal(native(*args), result)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
