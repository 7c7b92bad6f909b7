"""Debugging graph executor, which exposes every node's result and time."""

from ekiden._lazy import attach

__all__: list[str] = []

__getattr__, __dir__ = attach(__name__, {})
