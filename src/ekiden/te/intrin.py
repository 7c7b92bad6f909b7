"""Scalar functions for the bodies of computations, by TVM's names: those of `ekiden.tir.op`."""

from ekiden.tir import op
from ekiden.tir.op import *  # noqa: F403

__all__ = [
    name
    for name in op.__all__
    if name not in ("address_of", "call_extern", "call_packed", "max", "min")
]
