"""Values of the interpreter: arrays, tuples, ADT values, references, and closures with frames."""

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
"""ADT value `ConstructorValue(tag, fields, constructor)` (TVM's name), shared with the runtime.

The class is that of the runtime, so that the results of one executor are arguments of another.
"""


@dataclass(slots=True, eq=False)
class RefValue:
    """Mutable reference value."""

    value: Value


@dataclass(slots=True, eq=False)
class ActivationFrame:
    """Activation frame of the interpreter; `outer` is the defining frame (static link).

    What the function gives becomes the value of expression `result` in the frame `caller`.
    """

    values: dict[Expr, Value] = field(default_factory=dict)
    outer: ActivationFrame | None = None
    symbols: Symbols = field(default_factory=dict)
    bound_symbols: set[PrimVar] = field(default_factory=set)
    """Symbols bound by this activation."""
    caller: ActivationFrame | None = None
    result: Expr | None = None
    depth: int = 0

    def lookup(self, expr: Expr) -> Value | None:
        """Look up an expression's value in this and enclosing frames, or return None."""
        current: ActivationFrame | None = self
        while current is not None:
            value = current.values.get(expr)
            if value is not None:
                return value
            # Frames are linked, not copied: making a closure costs the same for any number of
            # variables.
            current = current.outer
        return None


@dataclass(slots=True, eq=False)
class Closure:
    """Function with its defining frame."""

    function: Function
    frame: ActivationFrame | None = None


Value = Union[  # noqa: UP007 - it names itself
    Array, tuple["Value", ...], ADT, RefValue, Closure, Constructor, Op
]


__all__ = ["ActivationFrame", "Closure", "ConstructorValue", "RefValue", "Symbols", "Value"]
