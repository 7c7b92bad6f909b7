"""Compilation of a static model to C for microcontrollers, without an allocator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ekiden.backend.crt.c_emitter import tvmgen_prefix
from ekiden.backend.crt.kernels import MicroKernels
from ekiden.backend.crt.micro_module import POOL_ALIGNMENT_BYTES, MicroModule, MicroTensor, Pool
from ekiden.backend.crt.plan_memory import EntryInterface, plan_module
from ekiden.backend.crt.program import CRT_ERROR_PREFIX
from ekiden.backend.crt.value_layout import tensor_bytes, unbounded_message
from ekiden.backend.vm.pipeline import vm_pipeline
from ekiden.byoc.backend import inline_regions
from ekiden.compiler.artifact_metadata import describe_main
from ekiden.compiler.build import Model, import_model
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import ImportOptions, Shapes
from ekiden.ir.expr import RelayExpr
from ekiden.ir.expr_text import format_type
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import dump_if_requested, time_phase
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Function, Tuple, TupleGetItem
from ekiden.relay.transform.language.defunctionalization import monomorphize
from ekiden.relay.transform.language.eta_expand import EtaExpand
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.remove_unused_functions import (
    check_entries,
    declared_entries,
)
from ekiden.relay.transform.shapes.name_dimensions import NameDimensions
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.target.target import TargetLike
from ekiden.target.triple import MICROCONTROLLER_ARCHES

DEFAULT_MODEL_NAME = "default"
"""Default model name (TVM's)."""


@dataclass(frozen=True, slots=True)
class MicroProgram:
    """Compiled model for a microcontroller, with the Relay text of its source."""

    module: MicroModule
    relay: str

    @property
    def libmod_name(self) -> str:
        """Return the name of the model, by TVM's name."""
        return self.module.name


@dump_if_requested("compile")
def compile(
    model: Model,
    target: TargetLike = "c",
    *,
    shape: Shapes | None = None,
    name: str = DEFAULT_MODEL_NAME,
    pools: Sequence[Pool] = (),
    packed: bool = False,
    alignment: int = POOL_ALIGNMENT_BYTES,
    constant_alignment: int = 4,
) -> MicroProgram:
    """Compile a model of static shapes to C code, for a target of kind "c" ("c -mcpu=cortex-m7") or
    this machine. Choices and loops are C; recursion must be a loop. C may call `main`, and the
    functions that the module's attribute `entries` names.

    `shape` replaces the declared shapes of inputs by name, `name` is what names in C begin with.
    With `pools` the caller of the program gives these memories, the first preferred; else it has
    one of its own. `packed` adds `tvmgen_NAME_run` as a function of the open C ABI, over tensors.
    What lies in memories is aligned to `alignment` bytes, constants to `constant_alignment` at
    least. Raises CompileError for what needs the runtime or has no bound, naming the model's node.
    """
    if packed and pools:
        raise CompileError("compile: a packed function has no parameters for memories")
    _check_alignment(alignment, constant_alignment)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise CompileError(f"compile: the name of a model library is one of C, got {name!r}")
    chosen = _resolve_target(target)
    module = _inline_regions(import_model(model, ImportOptions(shape)))
    module = _flatten_result(NameDimensions()(InferType()(module)))
    if _has_polymorphic_function(module):
        module = monomorphize(InferType()(EtaExpand()(module)))
    if "main" not in module or not isinstance(module["main"], Function):
        raise CompileError("compile: the module has no Relay function 'main'")
    main, imported = module["main"], ImportResult.from_module(module)
    assert isinstance(main, Function)
    described = describe_main(main, imported)
    kinds, result = [p.checked_type for p in main.params], main.body.checked_type
    inputs = _tensors_of(described["inputs"], "input", kinds)
    results = result.fields if isinstance(result, TupleType) else (result,)
    outputs = _tensors_of(described["outputs"], "output", results)
    if [t.name for t in outputs] == ["output0"] and not imported.output_names:
        outputs = (replace(outputs[0], name="output"),)  # TVM's name of the only one
    entries = _entry_interfaces(module)
    prepared = vm_pipeline(chosen, plans_memory=False)(module)
    kernels = MicroKernels(chosen, tvmgen_prefix(name))
    with time_phase("kernels"):
        planned = plan_module(prepared, kernels, name, inputs, outputs, pools, entries)
    return MicroProgram(
        replace(planned, is_packed=packed, constant_alignment=constant_alignment), module.astext()
    )


def _inline_regions(module: IRModule) -> IRModule:
    """Inline the regions of the compiler "ccompiler", so that they are compiled to C too."""
    return inline_regions(
        module,
        {
            name
            for name, function in module.functions.items()
            if isinstance(function, Function) and function.attr("Compiler") == "ccompiler"
        },
    )


def _flatten_result(module: IRModule) -> IRModule:
    """Flatten a result of nested tuples to a tuple of tensors."""
    if "main" not in module:
        return module
    main = module["main"]
    if not isinstance(main, Function) or not isinstance(main.body.checked_type, TupleType):
        return module
    if not any(isinstance(k, TupleType) for k in main.body.checked_type.fields):
        return module
    leaves: list[RelayExpr] = []
    stack: list[tuple[RelayExpr, Type]] = [(main.body, main.body.checked_type)]
    while stack:
        value, kind = stack.pop()
        if isinstance(kind, TupleType):
            components = (TupleGetItem(value, n) for n in range(len(kind.fields)))
            stack.extend(reversed(list(zip(components, kind.fields, strict=True))))
        else:
            leaves.append(value)
    flat = Function(main.params, Tuple(tuple(leaves)), None, main.type_params, main.attrs)
    return InferType()(module.with_function("main", flat))


def _has_polymorphic_function(module: IRModule) -> bool:
    """Return whether a function, global or inside of one, has type parameters."""
    roots = [f for f in module.functions.values() if isinstance(f, Function)]
    nodes = (e for root in roots for e in post_order(root, into_functions=True))
    return any(isinstance(e, Function) and e.type_params for e in nodes)


def _entry_interfaces(module: IRModule) -> dict[str, EntryInterface]:
    """Return the inputs and outputs of each entry point besides `main`, by name.

    Raises CompileError for an entry point that the module does not have, and for inputs and outputs
    that are not tensors of a static shape.
    """
    entries: dict[str, EntryInterface] = {}
    check_entries(module)
    for name in declared_entries(module):
        function = module[name]
        assert isinstance(function, Function)
        if name == "main":
            continue
        inputs = [
            _entry_tensor(name, "input", p.name_hint, p.checked_type) for p in function.params
        ]
        kinds = _flat_types(function.body.checked_type)
        labels = ["output"] if len(kinds) == 1 else [f"output{n}" for n in range(len(kinds))]
        outputs = [
            _entry_tensor(name, "output", label, kind)
            for label, kind in zip(labels, kinds, strict=True)
        ]
        entries[name] = inputs, outputs
    return entries


def _flat_types(kind: Type) -> list[Type]:
    """Return the types of the components of nested tuples, in order."""
    flat, stack = [], [kind]
    while stack:
        component = stack.pop()
        if isinstance(component, TupleType):
            stack.extend(reversed(component.fields))
        else:
            flat.append(component)
    return flat


def _entry_tensor(entry: str, direction: str, name: str, kind: Type) -> MicroTensor:
    """Return an input or output of an entry point. Raises CompileError for another type than a
    tensor of numbers of a static shape.
    """
    what = f"entry point '{entry}': {direction}"
    head = f"{CRT_ERROR_PREFIX}: {what} '{name}'"
    if not isinstance(kind, TensorType):
        raise CompileError(f"{head} is {format_type(kind)}, a tensor expected")
    tensor_bytes(kind, head)
    row = {
        "name": name,
        "shape": [d.value for d in kind.shape if isinstance(d, IntImm)],
        "dtype": kind.dtype,
    }
    return _tensors_of([row], what, [kind])[0]


def _check_alignment(memories: int, constants: int) -> None:
    """Raise CompileError for an alignment that is not a power of two or exceeds a memory's."""
    for what, alignment in (("of memories", memories), ("of constants", constants)):
        if alignment < 1 or alignment & (alignment - 1):
            raise CompileError(
                f"compile: alignment {what}: a power of two expected, got {alignment}"
            )
    if memories > POOL_ALIGNMENT_BYTES:
        raise CompileError(
            f"compile: alignment of memories: at most {POOL_ALIGNMENT_BYTES} bytes expected, "
            f"got {memories}"
        )


def _resolve_target(target_like: TargetLike) -> Target:
    """Return the target, of kind "c" and one core. Raises CompileError for another."""
    target = Target.parse(target_like)
    if target.kind.name != "c":
        raise CompileError(
            f"compile: runtime 'crt' makes C: target kind 'c' expected, got {target.kind.name!r}"
        )
    if target.triple.partition("-")[0] not in MICROCONTROLLER_ARCHES:
        target.check_usable("compile")
    return Target(target, cores=1)


def _tensors_of(rows: object, what: str, kinds: Sequence[Type]) -> tuple[MicroTensor, ...]:
    """Return the tensors of metadata rows. Raises CompileError for an unknown shape or a dtype that
    is not numeric.
    """
    assert isinstance(rows, list)
    tensors: list[MicroTensor] = []
    for row, kind in zip(rows, kinds, strict=True):
        shape, dtype, head = (
            row["shape"],
            row["dtype"],
            f"{CRT_ERROR_PREFIX}: {what} '{row['name']}'",
        )
        if not all(isinstance(d, int) for d in shape):
            if what == "output" and isinstance(kind, TensorType):
                raise CompileError(f"{head}: {unbounded_message(kind)}")
            raise CompileError(
                f"{head} has no static shape: {dtype}{shape}; give one (--shape NAME=1,3,224,224)"
            )
        if not re.fullmatch(r"bool|(u?int|b?float)\d+", dtype):
            raise CompileError(f"{head} is {dtype}, tensors of numbers expected")
        tensors.append(MicroTensor(row["name"], tuple(shape), dtype))
    return tuple(tensors)


__all__ = ["DEFAULT_MODEL_NAME", "MicroProgram", "compile"]
