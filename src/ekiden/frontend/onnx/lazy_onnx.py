"""Lazy import of the package onnx: models are parsed by its protobuf messages alone.

    from ekiden.frontend.onnx.lazy_onnx import onnx

`import onnx` also loads what checks, prints, makes and converts models: 150 modules, which take
longer than all passes over a small model. The messages stand in one of them, which needs no other
of its package; what is asked for beyond them loads the rest. The same holds of protobuf, whose
messages are in C: it would load those in Python too, with texts of messages, dates and calendars.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule

__all__ = ["onnx"]

_MESSAGES_MODULE = "onnx.onnx_ml_pb2"
_PURE_PYTHON_MODULE = "python_message"


def _load_messages() -> ModuleType:
    """Load the module of ONNX's protobuf messages without importing the package around it. It stays
    out of sys.modules, as its package is not loaded: a later import of onnx runs it again, and
    protobuf returns the same classes for the same messages.
    """
    package = find_spec("onnx")
    search_paths = package.submodule_search_locations if package is not None else None
    spec = (
        PathFinder.find_spec(_MESSAGES_MODULE, search_paths) if search_paths is not None else None
    )
    # Once the package is loaded, its own module is used, so that classes are not made twice.
    if "onnx" in sys.modules or spec is None or spec.loader is None:
        return import_module("onnx")
    module = module_from_spec(spec)
    with _defer_python_messages():
        spec.loader.exec_module(module)
    return module


@contextmanager
def _defer_python_messages() -> Iterator[None]:
    """Keep protobuf's pure-Python messages unloaded while its C implementation is used. A later
    import of them gets the real module.
    """
    internal = import_module("google.protobuf.internal")
    kind = import_module("google.protobuf.internal.api_implementation").Type()
    if kind == "python" or hasattr(internal, _PURE_PYTHON_MODULE):
        yield
        return
    setattr(internal, _PURE_PYTHON_MODULE, LazyModule(f"{internal.__name__}.{_PURE_PYTHON_MODULE}"))
    try:
        yield
    finally:
        if isinstance(getattr(internal, _PURE_PYTHON_MODULE), LazyModule):
            delattr(internal, _PURE_PYTHON_MODULE)


class _LazyOnnx:
    """Lazy proxy of the package onnx, imported for names other than its protobuf messages."""

    def __init__(self) -> None:
        self._messages = _load_messages()

    def __getattr__(self, name: str) -> object:
        messages = vars(self._messages)
        value = messages[name] if name in messages else getattr(import_module("onnx"), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import onnx
else:
    onnx = _LazyOnnx()
