"""Gradient rules of operators, read by `transform.gradient`."""

from ekiden.relay.gradient import data_movement, elementwise, nn
from ekiden.relay.op.gradient import GRADIENTS_BY_OPERATOR, Gradient, register_gradient

__all__ = [
    "GRADIENTS_BY_OPERATOR",
    "Gradient",
    "data_movement",
    "elementwise",
    "nn",
    "register_gradient",
]
