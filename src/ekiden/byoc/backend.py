"""What an engine is to Ekiden, and the road from a module to regions that it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol, cast

from ekiden.backend.external import External, register_compiler
from ekiden.ir.extensions import note_extension
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Sequential
from ekiden.relay.expr import Function
from ekiden.relay.transform import (
    AnnotateTarget,
    InferType,
    MergeCompilerRegions,
    MergeComposite,
    PartitionGraph,
)
from ekiden.relay.transform.merge_composite import Entry
from ekiden.runtime.engines import register_loader, text_of
from ekiden.runtime.errors import CompileError

_LOG = logging.getLogger("ekiden")


class Backend(Protocol):
    """An engine that takes regions of programs.

    `register` one, and `partition` finds it by its name, which stands in artifacts.
    """

    name: str

    def patterns(self) -> Sequence[Entry]:
        """What it takes, as `MergeComposite` does: (name, pattern, check of the matched
        expression), the longer ones first; each name begins with the engine's and a dot.
        """

    def compile(self, function: Function) -> bytes:
        """The code of a region: a function of tensors, of which each call is of a composite
        function by a name of `patterns`, with constants in place. Its code may be loaded on
        another machine, by another version of the engine. Raises CompileError, which names what it
        cannot take.
        """

    def load(self, symbol: str, code: bytes) -> Callable[..., None]:
        """What runs a region: called with its inputs, then the tensors that it writes, any number
        of threads at once. Raises LoadError where the engine is not there, or refuses the code.
        """


OURS = {"onnxruntime": "ekiden.byoc.onnxruntime"}
"""The engines that Ekiden has, by name: modules with a function `backend`."""
_BACKENDS: dict[str, Backend] = {}


def register(backend: Backend) -> None:
    """Make an engine known by its name; a later one takes its place. Artifacts that need it can be
    loaded from then on in this process.
    """
    note_extension(type(backend))
    _known(backend)
    register_loader(backend.name, backend.load)


def _known(backend: Backend) -> None:
    _BACKENDS[backend.name] = backend
    register_compiler(backend.name, External(lambda region: text_of(backend.compile(region))))


def _find(name: str) -> Backend:
    if name not in _BACKENDS and name in OURS:
        _known(cast(Backend, import_module(OURS[name]).backend()))
    if name not in _BACKENDS:
        known = ", ".join(f"'{each}'" for each in sorted({*_BACKENDS, *OURS}))
        raise CompileError(f"byoc: expected one of the engines {known}, got {name!r}")
    return _BACKENDS[name]


def partition(module: IRModule, engine: str) -> IRModule:
    """The module with regions for an engine cut out: functions that have its name as the attribute
    `Compiler`. What no pattern takes stays with Ekiden. The logger "ekiden" names each region.

    Raises CompileError for an engine that is not known.
    """
    backend = _find(engine)
    made = Sequential(
        [
            InferType(),
            MergeComposite(backend.patterns()),
            AnnotateTarget(engine),
            MergeCompilerRegions(),
            PartitionGraph(),
            InferType(),
        ]
    )(module)
    for name, function in made.functions.items():
        if isinstance(function, Function) and function.attr("Compiler") == engine:
            _LOG.info("byoc: '%s' goes to the engine '%s'", name.name_hint, engine)
    return made
