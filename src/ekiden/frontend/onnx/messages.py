"""The package `onnx`, of which reading a model takes the classes of its messages alone.

    from ekiden.frontend.onnx.messages import onnx

`import onnx` also loads what checks, prints, makes and converts models: 150 modules, which take
longer than all passes over a small model. The messages stand in one of them, which needs no other
of its package; what is asked for beyond them loads the rest.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["onnx"]

_NAME = "onnx.onnx_ml_pb2"


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
    found.loader.exec_module(made)
    return made


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
