"""Interface of external engines (BYOC backends), and partitioning of modules into regions
for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from typing import Protocol

from ekiden.backend.external import ExternalCompiler, register_compiler
from ekiden.byoc.onednn_regions import OneDnnEngine
from ekiden.byoc.onnx_regions import OnnxEngine
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Sequential
from ekiden.ir.user_extensions import record_extension
from ekiden.relay.expr import Call, Function, TupleGetItem
from ekiden.relay.op.annotation import OnDeviceAttrs
from ekiden.relay.transform.external.annotate_target import AnnotateTarget
from ekiden.relay.transform.external.merge_compiler_regions import MergeCompilerRegions
from ekiden.relay.transform.external.merge_composite import MergeComposite, PatternEntry
from ekiden.relay.transform.external.partition_graph import PartitionGraph
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.inline import inline, inline_application
from ekiden.relay.transform.language.scope_tree import evaluation_order, rewrite_graph
from ekiden.relay.visitor import post_order
from ekiden.runtime.devices.engines import (
    encode_code,
    missing_engine_message,
    register_loader,
)
from ekiden.runtime.errors import CompileError, EkidenError, LoadError

_LOGGER = logging.getLogger("ekiden")


class Backend(Protocol):
    """Interface of an engine that runs regions of programs. After `register`, `partition` finds it
    by name, which artifacts record.
    """

    name: str

    def patterns(self) -> Sequence[PatternEntry]:
        """Return the supported patterns in `MergeComposite`'s form, (name, pattern, check), longer
        ones first; each name begins with the engine's name and a dot.
        """

    def compile(self, function: Function) -> bytes:
        """Return the code of a region: a function of tensors, whose calls are of composite
        functions named in `patterns`, with constants in place. The code may be loaded on another
        machine, by another version of the engine. Raises CompileError naming what is not
        supported.
        """

    def load(self, symbol: str, code: bytes) -> Callable[..., None]:
        """Return a callable that runs a region: called with its inputs, then its output tensors,
        from any number of threads at once. Raises LoadError if the engine is missing or rejects
        the code.
        """


_BUILTIN_BACKENDS: tuple[Backend, ...] = (
    OnnxEngine("onnxruntime"),
    OnnxEngine("openvino"),
    OneDnnEngine("onednn"),
)
_REGISTERED_BACKENDS: dict[str, Backend] = {each.name: each for each in _BUILTIN_BACKENDS}
"""By name; those that Ekiden has, and what users register."""


def register(backend: Backend) -> None:
    """Register an engine under its name, replacing an earlier one. Artifacts that need it can be
    loaded from then on in this process. Raises CompileError for an invalid name.
    """
    name: object = backend.name
    if not (isinstance(name, str) and name.isidentifier()):
        raise CompileError(
            f"byoc: engine: a name of letters, digits and low bars expected, got {name!r}"
        )
    record_extension(type(backend))
    _REGISTERED_BACKENDS[backend.name] = backend
    _validate_backend(backend)
    register_loader(backend.name, backend.load, is_foreign=True)


def _validate_backend(backend: Backend) -> None:
    register_compiler(
        backend.name, ExternalCompiler(lambda region: encode_code(_compile_region(backend, region)))
    )


for _backend in _REGISTERED_BACKENDS.values():
    _validate_backend(_backend)


def _lookup_backend(name: object) -> Backend:
    """Look up a registered backend by name. Raises CompileError if it is unknown or not
    installed.
    """
    if not isinstance(name, str) or name not in _REGISTERED_BACKENDS:
        names = ", ".join(f"'{engine_name}'" for engine_name in sorted(_REGISTERED_BACKENDS))
        raise CompileError(f"byoc: expected one of the engines {names}, got {name!r}")
    if lacks := missing_engine_message(name):
        raise CompileError(f"byoc: {lacks}")
    return _REGISTERED_BACKENDS[name]


def installed_backends() -> list[str]:
    """Return the names of the installed backends, in registration order."""
    return [name for name in _REGISTERED_BACKENDS if not missing_engine_message(name)]


def partition(module: IRModule, engine: str) -> IRModule:
    """Return the module with an engine's regions partitioned: functions with its name as the
    attribute `Compiler`. What no pattern matches stays with Ekiden, and so does a region the engine
    refuses when tried. The logger "ekiden" names each region. Raises CompileError for an engine
    that is unknown or not installed.
    """
    _lookup_backend(engine)
    return partition_for_engine(module, engine)


def partition_for_engine(module: IRModule, engine: str, *, forgives: bool = False) -> IRModule:
    """Partition a module for an installed backend. With `forgives`, a region on which the engine
    violates the Backend contract stays with Ekiden, with a warning.
    """
    backend = _REGISTERED_BACKENDS[engine]
    partitioned = Sequential(
        [
            InferType(),
            # TVM's pass order: composites first, so that regions merge around whole patterns.
            MergeComposite(_validated_patterns(backend)),
            AnnotateTarget(engine),
            MergeCompilerRegions(),
            PartitionGraph(),
            InferType(),
        ]
    )(module)
    placed = _find_offloaded_functions(partitioned)
    refused: set[GlobalVar] = set()
    for name, function in partitioned.functions.items():
        if not isinstance(function, Function) or function.attr("Compiler") != engine:
            continue
        if reason := placed.get(name) or _rejection_reason(
            backend, name.name_hint, function, forgives
        ):
            _LOGGER.warning("byoc: '%s' stays with Ekiden: %s", name.name_hint, reason)
            refused.add(name)
        else:
            _LOGGER.info("byoc: '%s' goes to the engine '%s'", name.name_hint, engine)
    return inline_regions(partitioned, refused)


def _find_offloaded_functions(module: IRModule) -> dict[GlobalVar, str]:
    """Return the functions whose results are placed on a device, where backends do not run, each
    with a message.
    """
    placed: dict[GlobalVar, str] = {}
    for function in module.functions.values():
        for call in evaluation_order(function.body) if isinstance(function, Function) else ():
            if not isinstance(call, Call) or not isinstance(call.attrs, OnDeviceAttrs):
                continue
            placement, value = call.attrs.virtual_device, call.args[0]
            while isinstance(value, TupleGetItem):
                value = value.tuple_value
            region = value.op if isinstance(value, Call) else None
            is_placed = call.attrs.constrain_body and not placement.is_host
            if is_placed and isinstance(region, GlobalVar):
                placed[region] = f"the program places it on {placement.device}"
    return placed


def _validated_patterns(backend: Backend) -> Sequence[PatternEntry]:
    """Return a backend's pattern table after validating it. Raises CompileError if they are
    malformed or a name lacks the engine's prefix.
    """
    entries = _call_engine(backend, None, backend.patterns)
    if not isinstance(entries, (list, tuple)):
        raise _contract_error(backend, f"it gave a {type(entries).__name__} of its patterns")
    for name, *_ in entries:
        if not name.startswith(f"{backend.name}."):
            raise _contract_error(
                backend, f"names of patterns begin with '{backend.name}.', got {name!r}"
            )
    return entries


def _compile_region(backend: Backend, region: Function) -> bytes:
    """Return the code that a backend compiles for a region. Raises CompileError for any error of
    the engine's.
    """
    code = _call_engine(backend, region, lambda: backend.compile(region))
    if not isinstance(code, bytes):
        raise _contract_error(
            backend, f"it gave a {type(code).__name__} of the code of a region", region
        )
    return code


def _call_engine(
    backend: Backend, region: Function | None, question: Callable[[], object]
) -> object:
    """Call into a backend, passing CompileError through and turning any other exception into
    _BackendContractError.
    """
    try:
        return question()
    except EkidenError:
        raise
    except Exception as error:  # of code that is not ours
        raise _contract_error(backend, f"{type(error).__name__}: {error}", region) from error


class _BackendContractError(CompileError):
    """Violation of the `Backend` contract, as opposed to the refusal of a region."""


def _contract_error(backend: Backend, why: str, region: Function | None = None) -> CompileError:
    """Return an error that names the backend and, for a region, its name and source nodes."""
    where = "" if region is None else f" region '{region.attr('global_symbol')}'"
    spans = [] if region is None else [c.span for c in operator_calls(region) if c.span]
    nodes = ", ".join(dict.fromkeys(map(str, spans)))
    return _BackendContractError(
        f"byoc: engine '{backend.name}':{where}{f' ({nodes})' if nodes else ''}"
        f"{':' if where else ''} {why}"
    )


def operator_calls(region: Function) -> list[Call]:
    """Return the operator calls of a region, in evaluation order."""
    order = post_order(region.body, into_functions=True)
    return [e for e in order if isinstance(e, Call) and isinstance(e.op, Op)]


def _rejection_reason(backend: Backend, symbol: str, region: Function, forgives: bool) -> str:
    """Return why a backend rejects a region; empty if it accepts it."""
    try:
        code = _compile_region(backend, region)
        runner = _call_engine(backend, region, lambda: backend.load(symbol, code))
        if not callable(runner):
            what = f"it gave a {type(runner).__name__} of what runs a region"
            raise _contract_error(backend, what, region)
    except _BackendContractError as error:
        if not forgives:
            raise
        return str(error)
    except (CompileError, LoadError) as error:
        return str(error)
    return ""


def inline_regions(module: IRModule, names: Set[GlobalVar]) -> IRModule:
    """Return the module with these regions inlined at their calls."""
    if not names:
        return module
    functions = dict(module.functions)
    for name in names:
        region = functions[name]
        assert isinstance(region, Function)
        functions[name] = Function(
            region.params, rewrite_graph(region.body, _inline_composite_call)
        )
    return InferType()(inline(module.with_functions(functions), lambda name, _: name in names))


def _inline_composite_call(old: RelayExpr, new: RelayExpr) -> RelayExpr:
    """Inline a call of a composite function."""
    if isinstance(new, Call) and isinstance(new.op, Function) and new.op.attr("Composite"):
        return inline_application(new.op, new)
    return new
