"""VM compiler, from A-normal form with explicit memory to bytecode.

let %y = nn.relu(add(%x, %x)); (%y, exp(%y)) for %x: Tensor[(2, 4), float32] becomes

    load_consti $1 32                       what %y takes: bytes,
    alloc_storage $1 $1[0] 64 0             aligned to 64, on the host
    alloc_tensor $1 $1 0 [2, 4] float32
    load_const $2 Const[0]                  the 2 of multiply(%x, 2), which add(%x, %x) is
    invoke_packed PackedFunc[0] (in: $0, $2, out: $1)
    load_consti $0 32                       %x is dead: its register serves again
    alloc_storage $0 $0[0] 64 0
    alloc_tensor $0 $0 0 [2, 4] float32
    invoke_packed PackedFunc[1] (in: $1, out: $0)
    alloc_data $0 tag(0) [~$1, ~$0]         ~: moved out of registers that die here
    ret $0

Functions are compiled one by one (function_compiler.py); kernels and shape functions before them,
so that their numbers are known (primitive_table.py).

Sizes that are not constants are elements of int64 vectors on the host. A *stage* is a point of a
function at which some become known: its entry, or behind a binding that names sizes which were not
known before. Each stage has one kernel that computes its vector from shapes, elements and the
vectors of stages before it (dim_plan.py); allocations and reshapes name a vector and where to
begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ekiden._lazy import LazyModule
from ekiden.backend.external import is_external_function
from ekiden.backend.kernels.canonical_form import canonicalize
from ekiden.backend.kernels.flops import describe_kernel
from ekiden.backend.kernels.lower import Constraint
from ekiden.backend.kernels.quantized_slowdown import estimate_slowdown, warn_of_slowdown
from ekiden.backend.vm.constant_pool import ConstantPool
from ekiden.backend.vm.dim_plan import DimPlan
from ekiden.backend.vm.function_compiler import FunctionCompiler, ProgramTables, param_devices
from ekiden.backend.vm.module_kernels import (
    ModuleKernels,
    compile_kernels,
    primitive_calls,
    primitive_functions,
)
from ekiden.backend.vm.pipeline import LoweredModule
from ekiden.backend.vm.primitive_table import PrimitiveTable
from ekiden.backend.vm.stage_kernels import stage_kernel
from ekiden.backend.vm.write_executable import (
    DeviceTable,
    ExecutableProgram,
    VMFunction,
    write_programs,
)
from ekiden.codegen.parallel import ProgressCallback
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, Array, Op
from ekiden.ir.pass_context import notify_product, time_phase
from ekiden.ir.type import FuncType
from ekiden.relay.adjoint_type import STANDARD_TYPE_DATA
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.devices.device_domains import HOST_OPERATORS_ATTR
from ekiden.relay.transform.devices.plan_devices import device_table
from ekiden.relay.transform.language.lambda_lift import flatten_closure
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.relay.transform.memory.peak_memory import predict_peak
from ekiden.relay.transform.memory_plan import KernelMemoryInfo
from ekiden.relay.visitor import type_post_order
from ekiden.runtime.artifact.chunks import MIN_THREADED_BYTES
from ekiden.runtime.artifact.container_format import ArtifactFile
from ekiden.runtime.artifact.device_code import pack_kernels
from ekiden.runtime.artifact.metadata import CALL_CLOSURE_FUNCTION
from ekiden.runtime.debug.instructions import make_instruction
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

if TYPE_CHECKING:
    from ekiden.backend.aot import build as aot
    from ekiden.runtime.debug import disassemble as disassembler
else:
    aot = LazyModule("ekiden.backend.aot.build")
    disassembler = LazyModule("ekiden.runtime.debug.disassemble")


def _with_input_names(main: VMFunction, metadata: Mapping[str, object]) -> VMFunction:
    """Return `main` with the model's names for its inputs; variables may have been renamed."""
    described = cast("Mapping[str, list[dict[str, str]]]", metadata.get("main", {}))
    names = tuple(input_info["name"] for input_info in described.get("inputs", ()))
    return replace(main, params=names) if len(names) == len(main.params) else main


def _closure_trampolines(main: Function) -> list[VMFunction]:
    """Return a trampoline for each arity of the functions in the result of `main`: it calls its
    first argument with the others.
    """
    kinds = type_post_order(main.body.checked_type)
    counts = sorted({len(kind.arg_types) for kind in kinds if isinstance(kind, FuncType)})
    return [
        VMFunction(
            f"{CALL_CLOSURE_FUNCTION} {n}",
            ("closure", *(f"x{i}" for i in range(n))),
            n + 1,
            (make_instruction("InvokeClosureTail", closure=0, args=tuple(range(1, n + 1))),),
        )
        for n in counts
    ]


def host_functions(module: IRModule) -> list[str]:
    """Return the registered host functions that a module's operators call, sorted and unique."""
    names: set[str] = set()
    for function in module.functions.values():
        exprs = evaluation_order(function.body) if isinstance(function, Function) else []
        calls = [e.op.name for e in exprs if isinstance(e, Call) and isinstance(e.op, Op)]
        names.update(OPS[name].host for name in calls)
    return sorted(names - {""})


def _run_constraints(module: IRModule, name: str) -> Sequence[Constraint]:
    """Return the conditions on inputs that every run of `main` must meet, as the frontend declares
    them.
    """
    conditions = module.attrs.get("constraints", ()) if name == "main" else ()
    assert isinstance(conditions, Sequence)
    return conditions


def _instruction_sources(functions: Sequence[VMFunction]) -> dict[str, list[list[object]]]:
    """Return, by function, the index of each instruction that may fail and its model node."""
    return {
        f.name: [
            [index, instruction.source]
            for index, instruction in enumerate(f.code)
            if instruction.has("fails") and instruction.source
        ]
        for f in functions
    }


def _instruction_checks(functions: Sequence[VMFunction]) -> dict[str, list[list[object]]]:
    """Return the index checks of each function: rows of an instruction's index and the names of its
    operators that check indices at run time.
    """
    rows_by_function: dict[str, list[list[object]]] = {
        f.name: [
            [index, list(instruction.checks)]
            for index, instruction in enumerate(f.code)
            if any(instruction.checks)
        ]
        for f in functions
    }
    return {name: rows for name, rows in rows_by_function.items() if rows}


def _profile_annotations(facts: KernelMemoryInfo) -> dict[str, object]:
    """Return the profile annotations of a kernel."""
    return {} if facts.is_vectorized else {"vectors": False}


def _kernel_sources(module_kernels: ModuleKernels) -> list[tuple[str, str]]:
    """Return the names of kernels, each with a model node of it."""
    functions = zip(
        module_kernels.kernels.names, (f for f, _ in module_kernels.functions), strict=False
    )
    return [(name, str(f.span)) for name, f in functions if f.span]


def _called_kernels(module_kernels: ModuleKernels, module: IRModule) -> Iterator[str]:
    """Yield the name of the kernel of each call of a module, except calls of external engines."""
    functions = (f for f, _ in module_kernels.functions)
    names = dict(zip(functions, module_kernels.kernels.names, strict=False))
    return (names[f] for f, _ in primitive_calls(module) if f in names)


def _debug_origins(
    functions: Sequence[VMFunction], metadata: Mapping[str, object]
) -> dict[str, object]:
    """Return the model nodes of instructions, and the model tensors that some of them compute."""
    sources = _instruction_sources(functions)
    nodes = {text for rows in sources.values() for _, text in rows}
    tensors = metadata.get("tensors", {})
    assert isinstance(tensors, dict)
    tensor_rows = {name: row for name, row in tensors.items() if row[0] in nodes}
    return {"sources": sources, "tensors": tensor_rows}


def compile_module(
    module: IRModule,
    target: Target,
    metadata: dict[str, object],
    progress: ProgressCallback | None = None,
    *,
    is_native: bool = False,
) -> memoryview:
    """Compile a module to the bytes of an executable with the options of `compile_variants`."""
    kernels = compile_kernels(module, target, progress=progress)
    variants = [(LoweredModule(module, kernels, None), metadata)]
    return compile_variants(variants, is_native=is_native).file.to_bytes()


def check_module(module: IRModule) -> None:
    """Raise the errors of `compile_module` for a module that the VM pipeline has prepared, as far
    as they are known without compiling kernels, such as unbound dimensions.
    """
    for function, _ in primitive_functions(module):
        if not is_external_function(function):
            canonicalize(function)
    for variable, definition in module.functions.items():
        if isinstance(definition, Function):
            plan = DimPlan(variable.name_hint, flatten_closure(definition))
            for stage in plan.stages:
                if stage.dims.exprs:
                    stage_kernel(plan, stage)


@dataclass(frozen=True, eq=False, slots=True)
class LinkedExecutable:
    """Executable file, with the constants and general kernels that stay in memory when it is loaded
    immediately.
    """

    file: ArtifactFile
    external_sections: Mapping[int, Array]
    """Large constants, by number, that are stored outside the file's bytes."""
    general_forms: Mapping[str, bytes]
    """General forms of kernels without code yet, by name."""


def compile_variants(
    variants: Iterable[tuple[LoweredModule, dict[str, object]]], *, is_native: bool = False
) -> LinkedExecutable:
    """Compile a module that is lowered for each target to an executable with its metadata;
    optionally with native code of its functions beside their bytecode. Equal constants of variants
    are one. Large ones stay apart where kernels are general: such an executable is loaded at once.

    Raises CompileError for what the virtual machine cannot run, naming the node of the model.
    """
    pool = ConstantPool()
    programs = [
        _compile_target_variant(lowered, metadata, pool, is_native=is_native)
        for lowered, metadata in variants
    ]
    for program in programs:
        assert program.device_table.devices == programs[0].device_table.devices, (
            "devices do not depend on targets"
        )
    placed = [
        replace(p, device_table=replace(p.device_table, constants=tuple(pool.devices)))
        for p in programs
    ]
    general = programs[0].general_forms
    apart: dict[int, Array] = {}
    if general and len(programs[0].device_table.devices) == 1 and not pool.load_time_numbers:
        large = {n: a for n, a in enumerate(pool.arrays) if a.nbytes >= MIN_THREADED_BYTES}
        apart = {n: a for n, a in large.items() if a.dtype.isbuiltin == 1}  # whole bytes
    return LinkedExecutable(
        write_programs(placed, pool.arrays, pool.load_time_numbers, apart or ()), apart, general
    )


@time_phase("bytecode")
def _compile_target_variant(
    lowered: LoweredModule,
    metadata: dict[str, object],
    constants: ConstantPool,
    *,
    is_native: bool = False,
) -> ExecutableProgram:
    """Compile a module for one target; its constants are added to those of the other variants.

    Raises CompileError for what the virtual machine cannot run, naming the node of the model.
    """
    module, module_kernels = lowered.module, lowered.kernels
    target, kernels = module_kernels.target, module_kernels.kernels
    if (peak := predict_peak(module)) is not None:
        metadata = {**metadata, "memory": {"peak": peak}}
    functions = {
        g.name_hint: flatten_closure(f)
        for g, f in module.functions.items()
        if isinstance(f, Function)
    }
    closures = {
        g.name_hint
        for g, f in module.functions.items()
        if isinstance(f, Function) and f.attr("Closure")
    }
    plans = [DimPlan(n, f, _run_constraints(module, n)) for n, f in functions.items()]
    shapes = {s: stage_kernel(p, s) for p in plans for s in p.stages if s.dims.exprs}
    kernels = kernels.with_shape_kernels(list(shapes.values()), target)
    hosts = host_functions(module)
    if hosts:
        metadata = {**metadata, "host_functions": hosts}
    if module_kernels.symbols:
        metadata = {**metadata, "external": module_kernels.external_artifacts}
    table = device_table(module)
    devices = {entry.device: index for index, entry in enumerate(table)}
    primitives = PrimitiveTable(
        module, module_kernels, [*(s.name for s in shapes.values()), *hosts]
    )
    own_numbers = {n: i for i, n in enumerate(functions)}
    types = {**STANDARD_TYPE_DATA, **module.type_definitions}
    program = ProgramTables(own_numbers, closures, types, devices, constants)
    program.primitives = {
        (f, index): primitives.kernel_number(f, index) for f, index in module_kernels.calls
    }
    program.load_time_primitives = {
        array: primitives.load_time_number(f)
        for array, f in module_kernels.load_time_functions.items()
    }
    program.host_functions = {n: primitives.device_free_number(n) for n in hosts}
    program.shape_functions = {
        stage: primitives.device_free_number(s.name) for stage, s in shapes.items()
    }
    compiled = [FunctionCompiler(program, plan).compile() for plan in plans]
    compiled = [_with_input_names(f, metadata) if f.name == "main" else f for f in compiled]
    rows = zip(kernels.names, kernels.forms, kernels.facts, strict=True)
    about = {
        n: describe_kernel(f) | _profile_annotations(form) | estimate_slowdown(f, target)
        for n, f, form in rows
    }
    warn_of_slowdown(
        about, _kernel_sources(module_kernels), _called_kernels(module_kernels, module), target
    )
    metadata = {**metadata, "kernels": about, **_debug_origins(compiled, metadata)}
    if checks := _instruction_checks(compiled):
        metadata = {**metadata, "checks": checks}
    several = len(table) > 1
    if several:
        counts = Counter(index for _, index in module_kernels.calls)
        by_device = {
            str(table_entry.device): counts[index] for index, table_entry in enumerate(table)
        }
        work = module.attrs.get(HOST_OPERATORS_ATTR, [])
        metadata = {**metadata, "placement": {"kernels": by_device, "host": work}}
    native: tuple[Sequence[bytes], Sequence[str]] = ((), ())
    if is_native:
        general_forms = aot.compile_native(
            compiled, primitives.names, kernels.exports, target, is_checked=several
        )
        native = general_forms.objects, general_forms.exports
    image = kernels.link(target, *native)
    compiled += _closure_trampolines(functions["main"])
    what = f"the bytecode of the virtual machine for {target}"
    notify_product(
        "bytecode.txt", what, lambda: disassembler.disassemble_functions(compiled, primitives.names)
    )
    placement = DeviceTable(
        devices=tuple(row.device for row in table),
        primitives=primitives.devices,
        params=tuple(
            param_devices(functions.get(f.name), len(f.params), devices) for f in compiled
        ),
    )
    derived = [(made_one, by, of) for made_one, (by, of) in program.derived_constants.items()]
    code = pack_kernels(kernels.device_kernels) if kernels.device_kernels else b""
    return ExecutableProgram(
        compiled, primitives.names, image, metadata, placement, derived, code, kernels.general_forms
    )
