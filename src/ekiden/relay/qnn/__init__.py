"""Quantised arithmetic, at TVM's place: `relay.qnn.op`."""

from ekiden.relay.qnn import op

__all__ = ["op"]
