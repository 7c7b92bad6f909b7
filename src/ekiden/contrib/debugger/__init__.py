"""The graph executor that shows what every node gives, and how long it takes."""

from ekiden._lazy import attach

__all__: list[str] = []

__getattr__, __dir__ = attach(__name__, {})
