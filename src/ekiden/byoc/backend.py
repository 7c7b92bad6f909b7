"""What an engine is to Ekiden, and the road from a module to regions that it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from typing import Protocol

from ekiden.backend.external import External, register_compiler
from ekiden.byoc.onednn_regions import OneDnnEngine
from ekiden.byoc.onnx_regions import OnnxEngine
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.extensions import note_extension
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Sequential
from ekiden.relay.expr import Call, Function, TupleGetItem
from ekiden.relay.op.annotation import OnDeviceAttrs
from ekiden.relay.transform.external.annotate_target import AnnotateTarget
from ekiden.relay.transform.external.merge_compiler_regions import MergeCompilerRegions
from ekiden.relay.transform.external.merge_composite import Entry, MergeComposite
from ekiden.relay.transform.external.partition_graph import PartitionGraph
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.inline import apply, inline
from ekiden.relay.transform.language.scopes import evaluation_order, rewrite_graph
from ekiden.relay.visitor import post_order
from ekiden.runtime.devices.engines import guarded, missing, register_loader, text_of
from ekiden.runtime.errors import CompileError, EkidenError, LoadError

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


_OWN: tuple[Backend, ...] = (
    OnnxEngine("onnxruntime"),
    OnnxEngine("openvino"),
    OneDnnEngine("onednn"),
)
_BACKENDS: dict[str, Backend] = {each.name: each for each in _OWN}
"""By name; those that Ekiden has, and what users register."""


def register(backend: Backend) -> None:
    """Make an engine known by its name; a later one takes its place. Artifacts that need it can be
    loaded from then on in this process. Raises CompileError for a name that there cannot be.
    """
    name: object = backend.name
    if not (isinstance(name, str) and name.isidentifier()):
        raise CompileError(
            f"byoc: engine: a name of letters, digits and low bars expected, got {name!r}"
        )
    note_extension(type(backend))
    _BACKENDS[backend.name] = backend
    _compiles(backend)

    def load(symbol: str, code: bytes) -> Callable[..., None]:
        return guarded(backend.name, symbol, backend.load(symbol, code))

    register_loader(backend.name, load)


def _compiles(backend: Backend) -> None:
    register_compiler(backend.name, External(lambda region: text_of(_code(backend, region))))


for _backend in _BACKENDS.values():
    _compiles(_backend)


def _find(name: object) -> Backend:
    if not isinstance(name, str) or name not in _BACKENDS:
        known = ", ".join(f"'{each}'" for each in sorted(_BACKENDS))
        raise CompileError(f"byoc: expected one of the engines {known}, got {name!r}")
    if lacks := missing(name):
        raise CompileError(f"byoc: {lacks}")
    return _BACKENDS[name]


def present() -> list[str]:
    """The engines that are here, in the order in which they were made known."""
    return [name for name in _BACKENDS if not missing(name)]


def partition(module: IRModule, engine: str) -> IRModule:
    """The module with regions for an engine cut out: functions that have its name as the attribute
    `Compiler`. What no pattern takes stays with Ekiden, and so does a region that the engine
    refuses when it is tried. The logger "ekiden" names each region.

    Raises CompileError for an engine that is not known, or is not here.
    """
    _find(engine)
    return cut_out(module, engine)


def cut_out(module: IRModule, engine: str, *, forgives: bool = False) -> IRModule:
    """What `partition` does, with an engine that is here; one that `forgives` leaves a region with
    Ekiden, with a warning, for which the engine breaks its promises."""
    backend = _BACKENDS[engine]
    made = Sequential(
        [
            InferType(),
            MergeComposite(_patterns(backend)),
            AnnotateTarget(engine),
            MergeCompilerRegions(),
            PartitionGraph(),
            InferType(),
        ]
    )(module)
    placed = _placed_elsewhere(made)
    refused: set[GlobalVar] = set()
    for name, function in made.functions.items():
        if not isinstance(function, Function) or function.attr("Compiler") != engine:
            continue
        if reason := placed.get(name) or _refusal(backend, name.name_hint, function, forgives):
            _LOG.warning("byoc: '%s' stays with Ekiden: %s", name.name_hint, reason)
            refused.add(name)
        else:
            _LOG.info("byoc: '%s' goes to the engine '%s'", name.name_hint, engine)
    return taken_back(made, refused)


def _placed_elsewhere(module: IRModule) -> dict[GlobalVar, str]:
    """Return the functions whose results the program places on another device than the host, where
    engines run, each with what to say of it."""
    placed: dict[GlobalVar, str] = {}
    for function in module.functions.values():
        for call in evaluation_order(function.body) if isinstance(function, Function) else ():
            if not isinstance(call, Call) or not isinstance(call.attrs, OnDeviceAttrs):
                continue
            place, value = call.attrs.virtual_device, call.args[0]
            while isinstance(value, TupleGetItem):
                value = value.tuple_value
            region = value.op if isinstance(value, Call) else None
            is_placed = call.attrs.constrain_body and not place.is_host
            if is_placed and isinstance(region, GlobalVar):
                placed[region] = f"the program places it on {place.device}"
    return placed


def _patterns(backend: Backend) -> Sequence[Entry]:
    """What an engine takes; a name that is not its own would be nobody's."""
    found = _asked(backend, None, backend.patterns)
    if not isinstance(found, (list, tuple)):
        raise _broken(backend, f"it gave a {type(found).__name__} of its patterns")
    for name, *_ in found:
        if not name.startswith(f"{backend.name}."):
            raise _broken(backend, f"names of patterns begin with '{backend.name}.', got {name!r}")
    return found


def _code(backend: Backend, region: Function) -> bytes:
    """A region's code, by its engine. Raises CompileError, for any error of the engine's."""
    code = _asked(backend, region, lambda: backend.compile(region))
    if not isinstance(code, bytes):
        raise _broken(backend, f"it gave a {type(code).__name__} of the code of a region", region)
    return code


def _asked(backend: Backend, region: Function | None, question: Callable[[], object]) -> object:
    """What an engine answers; its refusals are errors of ours, and others no refusals."""
    try:
        return question()
    except EkidenError:
        raise
    except Exception as error:  # of code that is not ours
        raise _broken(backend, f"{type(error).__name__}: {error}", region) from error


class _BrokenError(CompileError):
    """Of an engine that does not do what a Backend promises, which is no refusal of a region."""


def _broken(backend: Backend, why: str, region: Function | None = None) -> CompileError:
    """An error that names the engine and, of a region, its name and its nodes."""
    where = "" if region is None else f" region '{region.attr('global_symbol')}'"
    spans = [] if region is None else [c.span for c in operators_of(region) if c.span]
    nodes = ", ".join(dict.fromkeys(map(str, spans)))
    return _BrokenError(
        f"byoc: engine '{backend.name}':{where}{f' ({nodes})' if nodes else ''}"
        f"{':' if where else ''} {why}"
    )


def operators_of(region: Function) -> list[Call]:
    """Return the calls of operators in a region, in the order of their evaluation."""
    order = post_order(region.body, into_functions=True)
    return [e for e in order if isinstance(e, Call) and isinstance(e.op, Op)]


def _refusal(backend: Backend, symbol: str, region: Function, forgives: bool) -> str:
    """Why an engine does not take a region; empty where it does."""
    try:
        code = _code(backend, region)
        made = _asked(backend, region, lambda: backend.load(symbol, code))
        if not callable(made):
            what = f"it gave a {type(made).__name__} of what runs a region"
            raise _broken(backend, what, region)
    except _BrokenError as error:
        if not forgives:
            raise
        return str(error)
    except (CompileError, LoadError) as error:
        return str(error)
    return ""


def taken_back(module: IRModule, names: Set[GlobalVar]) -> IRModule:
    """The module with the bodies of these regions where they are called, as they were."""
    if not names:
        return module
    functions = dict(module.functions)
    for name in names:
        region = functions[name]
        assert isinstance(region, Function)
        functions[name] = Function(region.params, rewrite_graph(region.body, _without_patterns))
    return InferType()(inline(module.with_functions(functions), lambda name, _: name in names))


def _without_patterns(old: RelayExpr, new: RelayExpr) -> RelayExpr:
    """A call of what matched a pattern becomes the calls that matched."""
    if isinstance(new, Call) and isinstance(new.op, Function) and new.op.attr("Composite"):
        return apply(new.op, new)
    return new
