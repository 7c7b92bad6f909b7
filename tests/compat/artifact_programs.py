"""Programs whose artifacts are stored for each release, with their inputs and expected outputs.

`scripts/write_compatibility_artifacts.py` compiles them; `test_release_artifacts.py` runs the
stored artifacts. Rows never change once a release has stored them: a new artifact feature is a new
row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ekiden import relay
from ekiden.ir.module import IRModule

Arrays = list[npt.NDArray[np.generic]]

WEIGHT = np.arange(-12, 12, dtype=np.float32).reshape(3, 8)
"""Whole numbers: every order of adding them gives the same."""


@dataclass(frozen=True)
class Kept:
    """A program: how it is compiled, arguments, and its results in NumPy's words."""

    build: Callable[[], IRModule]
    args: Arrays
    results: Arrays
    executor: str = "vm"


def _dense() -> IRModule:
    x = relay.var("x", shape=(relay.Any(), 8))
    out = relay.nn.relu(relay.nn.dense(x, relay.const(WEIGHT)))
    return IRModule.from_expr(relay.Function([x], out))


def _text(text: str) -> Callable[[], IRModule]:
    return lambda: relay.parse(text)


_LOOP = """
def @sum(%i: int32, %x: Tensor[(n), float32]) -> Tensor[(n), float32] {
  if (equal(%i, 0)) { %x }
  else { @sum(subtract(%i, 1), add(%x, multiply(%x, 2f))) }
}
def @main(%i: int32, %x: Tensor[(n), float32]) { @sum(%i, %x) }
"""
_DATA = """
type Chain { Cons(Tensor[(4), float32], Chain), Nil }
def @fold(%f: fn(Tensor[(4), float32], Tensor[(4), float32]) -> Tensor[(4), float32],
          %chain: Chain) -> Tensor[(4), float32] {
  match (%chain) {
    Cons(%head, %tail) => { %f(%head, @fold(%f, %tail)) },
    Nil => { zeros(shape=[4], dtype="float32") }
  }
}
def @main(%x: Tensor[(4), float32], %y: Tensor[(4), float32]) {
  @fold(fn (%a: Tensor[(4), float32], %b: Tensor[(4), float32]) { add(%a, multiply(%b, %y)) },
        Cons(%x, Cons(%y, Nil)))
}
"""
_SIZES = "def @main(%x: Tensor[(n, m), int32]) { (argwhere(%x), transpose(%x)) }"

_X = np.arange(-16, 24, dtype=np.float32).reshape(5, 8)
_V, _W = np.float32([1, 2, 3, 4]), np.float32([-1, 0, 2, 5])
_BITS = np.int32([[0, 1, 0], [2, 0, 3]])

PROGRAMS = {
    "dense": Kept(_dense, [_X], [np.maximum(_X @ WEIGHT.T, 0)]),
    "dense-aot": Kept(_dense, [_X], [np.maximum(_X @ WEIGHT.T, 0)], "aot"),
    "loop": Kept(_text(_LOOP), [np.int32(4), _V], [_V * 81]),
    "data": Kept(_text(_DATA), [_V, _W], [_V + _W * _W]),
    "sizes": Kept(_text(_SIZES), [_BITS], [np.argwhere(_BITS), _BITS.T]),
}
"""By the name of the file."""

LIBRARY = "dense"
"""The program that is kept as a shared library too."""
TARGETS = ["llvm -mcpu=x86-64", "llvm -mcpu=cortex-a72"]
"""Each artifact has code for both."""
