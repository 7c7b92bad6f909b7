"""What expressions are worth while the interpreter runs: arrays, tuples of values, values of
algebraic data types, mutable cells, and functions with the frames that they were made in.
"""

from __future__ import annotations

from dataclasses import field
from typing import Union

from ekiden.ir.op import Array, Op
from ekiden.ir.prim import Var as PrimVar
from ekiden.relay.expr import Constructor, Expr, Function
from ekiden.runtime import ADT
from ekiden.runtime.lazy_dataclass import dataclass

Symbols = dict[PrimVar, int]


ConstructorValue = ADT
"""TVM's name of a value of a data type: `ConstructorValue(tag, fields, constructor)`.

The class is that of the runtime, so that the results of one executor are arguments of another.
"""


@dataclass(slots=True, eq=False)
class RefValue:
    """A mutable cell."""

    value: Value


@dataclass(slots=True, eq=False)
class Frame:
    """The values of one activation; `outer` is where its function was made.

    What the function gives becomes the value of expression `result` in the frame `caller`.
    """

    values: dict[Expr, Value] = field(default_factory=dict)
    outer: Frame | None = None
    symbols: Symbols = field(default_factory=dict)
    bound: set[PrimVar] = field(default_factory=set)
    """The symbols that bindings of this activation named: another one names its own."""
    caller: Frame | None = None
    result: Expr | None = None
    depth: int = 0

    def find(self, expr: Expr) -> Value | None:
        """Return the value of an expression here or in a frame around, or None if there is none
        yet.
        """
        at: Frame | None = self
        while at is not None:
            value = at.values.get(expr)
            if value is not None:
                return value
            at = at.outer
        return None


@dataclass(slots=True, eq=False)
class Closure:
    """A function and the frame it was made in."""

    function: Function
    frame: Frame | None = None


Value = Union[  # noqa: UP007 - it names itself
    Array, tuple["Value", ...], ADT, RefValue, Closure, Constructor, Op
]


__all__ = ["Closure", "ConstructorValue", "Frame", "RefValue", "Symbols", "Value"]
