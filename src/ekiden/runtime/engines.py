"""Engines of others that run regions of a program: what an artifact needs of them, and loading it.

An artifact names the engine of each such region and has the region's code, bytes that the engine
made. When the region is linked, the global function ek.external.<engine> makes a kernel of these
bytes; C code may register one by that name too (`ek_registry_set` in runtime.h).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from ekiden.runtime import engine_artifact
from ekiden.runtime._core import register_func
from ekiden.runtime.errors import LoadError

__all__ = [
    "ENGINES", "Engine", "kept_for", "load_region", "missing", "register_loader", "text_of",
]  # fmt: skip

Loader = Callable[[str, bytes], Callable[..., None]]
"""From a region's name and code to what runs it: called with its inputs, then the tensors that it
writes."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that Ekiden knows: the package that it comes with, and where it is loaded."""

    package: str
    """The module that must be there."""
    extra: str
    """The extra of Ekiden that installs it."""
    module: str
    """Ours, whose function `load` is a Loader."""


ENGINES = {
    "onnxruntime": Engine("onnxruntime", "onnxruntime", "ekiden.runtime.engine_onnxruntime"),
    "openvino": Engine("openvino", "openvino", "ekiden.runtime.engine_openvino"),
}
"""By the name in artifacts."""


def text_of(code: bytes) -> str:
    """Code as an artifact's metadata has it."""
    return base64.b64encode(code).decode()


def kept_for(symbol: str, metadata: str) -> str:
    """What the metadata of an artifact keep of a region."""
    kept: str = json.loads(metadata)["external"][symbol][1]
    return kept


def register_loader(engine: str, load: Loader) -> None:
    """Have the regions of an engine loaded by this function from now on."""

    def make(symbol: str, metadata: str) -> Callable[..., None]:
        return load(symbol, base64.b64decode(kept_for(symbol, metadata)))

    register_func(f"ek.external.{engine}", make, override=True)


def missing(name: str) -> str:
    """What an engine of the table lacks here, and the command that installs it; empty where it is
    here, or is none of the table.
    """
    engine = ENGINES.get(name)
    if engine is None or find_spec(engine.package) is not None:
        return ""
    return f"package '{engine.package}' is missing; pip install 'ekiden[{engine.extra}]'"


def load_region(name: str, symbol: str, code: bytes) -> Callable[..., None]:
    """Load a region of an engine in the table, which is imported now.

    Raises LoadError with the command that installs it.
    """
    engine = ENGINES[name]
    if lacks := missing(name):
        raise LoadError(f"link executable: '{symbol}' runs in the engine '{name}', whose {lacks}")
    made: Callable[..., None] = import_module(engine.module).load(symbol, code)
    return made


for _name in ENGINES:
    register_loader(_name, partial(load_region, _name))
register_loader("ccompiler", engine_artifact.load)
