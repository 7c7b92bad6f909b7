"""Registry of operator gradients (vector-Jacobian products).

A row is a function (call, grad) -> one expression per argument, None where an argument gets nothing
(integers, conditions). `call` is the forward call, with checked types on itself and its arguments,
so that its result can be used again; `grad` has the type of its result, a Tuple for several. The
rows are in `ekiden.relay.gradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OPS
from ekiden.relay.expr import Call

Gradient = Callable[[Call, RelayExpr], Sequence[RelayExpr | None]]
"""Function (forward call, output gradient) -> gradients of the arguments."""

GRADIENTS_BY_OPERATOR: dict[str, Gradient] = {}
"""Gradient functions by operator name."""


@overload
def register_gradient(op_name: str, fgradient: Gradient, override: bool = False) -> Gradient: ...


@overload
def register_gradient(
    op_name: str, fgradient: None = None, override: bool = False
) -> Callable[[Gradient], Gradient]: ...


def register_gradient(
    op_name: str, fgradient: Gradient | None = None, override: bool = False
) -> Gradient | Callable[[Gradient], Gradient]:
    """Register an operator's gradient function; without one, a decorator
    `@register_gradient("nn.relu")`.

    Raises KeyError when there is no such operator and ValueError when it has a gradient already.
    """

    def register(gradient: Gradient) -> Gradient:
        """Register the gradient and return it, for use as a decorator."""
        if op_name not in OPS:
            raise KeyError(f"register gradient: no operator {op_name!r}")
        # An accidental second gradient would silently change what is trained.
        if op_name in GRADIENTS_BY_OPERATOR and not override:
            raise ValueError(f"register gradient: operator {op_name!r} has one already")
        GRADIENTS_BY_OPERATOR[op_name] = gradient
        return gradient

    return register if fgradient is None else register(fgradient)
