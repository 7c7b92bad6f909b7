"""Modules at TVM's `contrib.target` path: the ONNX exporter."""

from ekiden._lazy import attach

__all__: list[str] = []

__getattr__, __dir__ = attach(__name__, {})
