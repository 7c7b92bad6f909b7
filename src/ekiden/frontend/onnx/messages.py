"""The package `onnx`, of which reading a model takes the classes of its messages alone.

    from ekiden.frontend.onnx.messages import onnx

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

_NAME = "onnx.onnx_ml_pb2"
_IN_PYTHON = "python_message"


def _messages() -> ModuleType:
    """The module of the messages. It is not put where Python keeps modules, as its package is not
    loaded: if that is later, it is run again, and protobuf gives the same classes for the same
    messages.
    """
    package = find_spec("onnx")
    places = package.submodule_search_locations if package is not None else None
    found = PathFinder.find_spec(_NAME, places) if places is not None else None
    if "onnx" in sys.modules or found is None or found.loader is None:
        return import_module("onnx")
    made = module_from_spec(found)
    with _messages_in_c():
        found.loader.exec_module(made)
    return made


@contextmanager
def _messages_in_c() -> Iterator[None]:
    """While protobuf is loaded, its messages in Python are imported by who uses them, where those
    in C are there. Who imports them later has the module.
    """
    internal = import_module("google.protobuf.internal")
    kind = import_module("google.protobuf.internal.api_implementation").Type()
    if kind == "python" or hasattr(internal, _IN_PYTHON):
        yield
        return
    setattr(internal, _IN_PYTHON, LazyModule(f"{internal.__name__}.{_IN_PYTHON}"))
    try:
        yield
    finally:
        if isinstance(getattr(internal, _IN_PYTHON), LazyModule):
            delattr(internal, _IN_PYTHON)


class _Onnx:
    """What the package has by a name: of its messages first."""

    def __init__(self) -> None:
        self._messages = _messages()

    def __getattr__(self, name: str) -> object:
        messages = vars(self._messages)
        value = messages[name] if name in messages else getattr(import_module("onnx"), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import onnx
else:
    onnx = _Onnx()
