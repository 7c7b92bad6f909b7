"""Model compilation: from a model to the bytes of an artifact."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, cast

from ekiden._lazy import load_module
from ekiden.backend.external import ExternalCompiler, register_compiler
from ekiden.backend.kernels.build import flushes_denormals
from ekiden.backend.kernels.tiered_compilation import FullTierRequest, OnKernel
from ekiden.backend.vm.compile import compile_variants
from ekiden.backend.vm.pipeline import LoweredModule, lower, lower_full_tier
from ekiden.codegen.build import get_code_generator
from ekiden.codegen.parallel import CancellationToken, ProgressCallback
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import NO_OPTIONS, ImportOptions
from ekiden.frontend.common.specialize_inputs import specialize_input_shapes
from ekiden.frontend.common.sum_value import is_sum_type
from ekiden.frontend.registry import import_by_frontend
from ekiden.ir.dtype import itemsize
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.package_versions import package_version
from ekiden.ir.pass_context import (
    BYOC_ENGINE_OPTION,
    PassContext,
    PassInstrument,
    attach_dump,
    current_dump,
    dump_if_requested,
    time_phase,
)
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.ir.type import TensorType, TupleType, Type, TypeCall
from ekiden.relay.analysis.shape_constraints import shape_conditions
from ekiden.relay.analysis.well_formedness import find_errors
from ekiden.relay.expr import Constant, Function, Var
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.remove_unused_functions import check_entries
from ekiden.relay.transform.shapes.name_dimensions import NameDimensions
from ekiden.relay.visitor import bound_vars, fresh_copy, post_order
from ekiden.runtime.artifact import mapped_files
from ekiden.runtime.artifact.container_format import ArtifactFile, Seekable
from ekiden.runtime.artifact.metadata import (
    ANY_RANK_PREFIX,
    ANY_RANK_SHAPE,
    OBJECT_DTYPE,
    SEQUENCE_OF_MAPS_PREFIX,
    SEQUENCE_PREFIX,
    STRING_DTYPE,
    Dim,
)
from ekiden.runtime.devices.engines import encode_code
from ekiden.runtime.errors import CompileError
from ekiden.runtime.files import Writer
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.terminal import stderr_is_terminal
from ekiden.target.virtual_device import CompilationConfig, Targets, compilation_config

Model: TypeAlias = str | os.PathLike[str] | bytes | IRModule | Function | Any
"""Accepted model: a path, bytes, a module, a Relay function, or an object of a supported framework.
"""


def as_module(program: IRModule | Function) -> IRModule:
    """Return a Relay program as a module; a function becomes `main`."""
    return program if isinstance(program, IRModule) else IRModule({"main": program})


@time_phase("import")
def import_model(model: Model, options: ImportOptions = NO_OPTIONS) -> IRModule:
    """Import anything that `compile` accepts as a module; the frontend's declarations become its
    attributes. Raises CompileError for anything else, and for options that the model does not know.
    """
    if isinstance(model, (IRModule, Function)):
        for name in options.set_option_names():
            if name != "shape":
                what = "an ekiden.IRModule" if isinstance(model, IRModule) else "a relay.Function"
                raise CompileError(f"compile: {what} takes no '{name}'; it takes 'shape'")
        module = _check_module(as_module(model))
        return specialize_input_shapes(module, options.shape) if options.shape else module
    return import_by_frontend(model, options).to_module()


def _check_module(module: IRModule) -> IRModule:
    """Check a hand-written program; functions that share variables get their own. Raises
    CompileError naming what is not well formed.
    """
    module = _rename_shared_variables(module)
    if errors := find_errors(module):
        more = f"; {len(errors) - 3} more" if len(errors) > 3 else ""
        raise CompileError(f"compile: {'; '.join(errors[:3])}{more}")
    for mark in ("Primitive", "Compiler"):
        if "main" in module and module["main"].attr(mark):
            raise CompileError(
                f"compile: @main is marked {mark!r}, which is only for functions that @main calls"
            )
    return module


def _rename_shared_variables(module: IRModule) -> IRModule:
    bound: set[Var] = set()
    again: dict[GlobalVar, BaseFunc] = {}
    for name, function in module.functions.items():
        if isinstance(function, Function):
            # Passes key facts by variable, so no variable may be bound in two functions.
            own = set(bound_vars(function))
            if own & bound:
                again[name] = cast(Function, fresh_copy(function))
            bound |= own
    return module.with_functions({**module.functions, **again}) if again else module


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """Compiled artifact in chunks of bytes, with the names of the model's external weight files."""

    artifact: ArtifactFile
    weight_files: tuple[str, ...]
    external_constants: Mapping[int, Array]
    """Constants by number that are not in the artifact, for programs with general kernels, which
    are loaded but not stored.
    """
    mapped_weight_files: mapped_files.MappedFiles
    """Mapped weight files, checked for changes before the artifact is written."""
    general_program: GeneralProgram | None = None
    """General program whose kernels remain to be compiled, if any."""

    def __len__(self) -> int:
        return self.artifact.size

    @time_phase("write")
    def to_bytes(self) -> memoryview:
        """Return the artifact's bytes. Raises ImportModelError if weight files have changed since
        they were first read.
        """
        contents = self.artifact.to_bytes()
        self.mapped_weight_files.check("compile")
        return contents

    @time_phase("write")
    def write(self, file: Writer) -> None:
        """Write the artifact to a seekable file. Raises as `to_bytes` does; the file must then be
        discarded.
        """
        self.artifact.write_seekable(cast("Seekable", file))
        self.mapped_weight_files.check("compile")


@dataclass(frozen=True, eq=False, slots=True)
class GeneralProgram:
    """Program that runs with general kernels while its specialised ones are compiled."""

    general_kernels: Mapping[str, bytes]
    """Code of the general kernels by kernel name."""
    lowered: LoweredModule
    metadata: dict[str, object]
    executor: str
    files: mapped_files.MappedFiles
    dump: PassInstrument | None
    """Instrument that dumps the compilation, which continues in another thread."""

    def finish(self, on_kernel: OnKernel, cancellation: CancellationToken) -> CompiledModel:
        """Compile every kernel's specialised code, passing each to `on_kernel`; return the final
        artifact. Raises what compiling raises, and CancelledError.
        """
        code = self.lowered.kernels.kernels.code_by_key
        finishing = FullTierRequest(on_kernel, cancellation, code)
        with attach_dump(self.dump):
            own = lower_full_tier(self.lowered, finishing, self.executor == "async")
            linked = compile_variants([(own, self.metadata)], is_native=self.executor == "aot")
        # The program may have been dropped while the last kernel was linked.
        cancellation.check()
        return CompiledModel(linked.file, (), {}, self.files)


def compile_to_bytes(
    model: Model,
    target: Targets = None,
    options: ImportOptions = NO_OPTIONS,
    executor: str = "vm",
) -> bytes:
    """Compile a model and return the bytes of the artifact."""
    compile_options = CompileOptions(target, options, executor=executor)
    return bytes(compile_model(model, compile_options).to_bytes())


REGION_ATTRIBUTES = ("Compiler", "Primitive", "Inline", "global_symbol")
"""Attributes of a region function that its compilation drops."""


def _compile_c_region(region: Function) -> str:
    """Compile a region for the external compiler "ccompiler" (TVM's example) by the system's C
    compiler.
    """
    for mark in REGION_ATTRIBUTES:
        region = region.without_attr(mark)
    return encode_code(compile_to_bytes(IRModule({"main": region}), "c"))


register_compiler("ccompiler", ExternalCompiler(_compile_c_region))


@dump_if_requested("compile")
def compile_model(model: Model, options: CompileOptions) -> CompiledModel:
    """Compile a model within the PassContext of `options.context`. Of tier "quick" kernels may be
    general: `general` of what is returned gives them their own code.
    """
    config = compilation_config(options.targets)
    # Missing code generators are reported before the model is read, which may take minutes.
    for code_target in (*config.primitive_targets, *config.device_targets):
        get_code_generator(code_target, "compile")
    flushes = [flushes_denormals(variant_target) for variant_target in config.primitive_targets]
    with mapped_files.allow_mapped_borrowing() as files:
        module = import_model(model, options.inputs)
    imported = ImportResult.from_module(module)
    if "main" not in module or not isinstance(module["main"], Function):
        raise CompileError("compile: the module has no Relay function 'main'")
    check_entries(module)
    module = _declare_conditions(NameDimensions()(InferType()(module)))
    metadata: dict[str, object] = {"executor": options.executor, "main": describe_main(module)}
    if PassContext.current().config.get(BYOC_ENGINE_OPTION):
        with_engine = load_module("ekiden.compiler.engine_partitioning").partition_for_engine
        module, regions = with_engine(module, options.targets, config)
        metadata |= {"regions": regions} if regions else {}
    metadata |= _artifact_metadata(module, imported, config, options)
    metadata |= {"denormals": "flush"} if any(flushes) else {}
    concurrent = options.executor == "async"
    with _progress_bar() if options.progress is None else nullcontext(options.progress) as bar:
        # A generator: one variant is lowered, written and freed before the next one.
        variants = (
            (
                lower(module, target, config, in_place=options.in_place and not concurrent,
                      concurrent=concurrent, tier=options.tier, progress=bar),
                {**metadata, "target": str(target)},
            )
            for target in config.primitive_targets
        )  # fmt: skip
        # one that may have general kernels is one variant, and is kept for their own code
        held_variants = list(variants) if options.tier == "quick" else []
        general = held_variants[0][0].kernels.kernels.general_forms if held_variants else {}
        is_native = options.executor == "aot" and not general
        linked = compile_variants(held_variants or variants, is_native=is_native)
    # What the full tier needs is kept: the lowered module and the files that its weights are mapped
    # from.
    general_program: GeneralProgram | None = None
    if linked.general_forms:
        ((lowered, about),) = held_variants
        general_program = GeneralProgram(
            linked.general_forms, lowered, about, options.executor, files, current_dump()
        )
    return CompiledModel(
        linked.file, imported.weight_files, linked.external_sections, files, general_program
    )


def _artifact_metadata(
    module: IRModule, imported: ImportResult, config: CompilationConfig, options: CompileOptions
) -> dict[str, object]:
    """Return the metadata of an artifact other than its inputs and outputs."""
    metadata: dict[str, object] = {
        "weights": _constant_bytes(module),
        "producer": f"ekiden {package_version('ekiden')}",
        "mod_name": options.mod_name,
        "states": list(imported.states),
        "tensors": {name: [node, at] for name, node, at in imported.tensors},
        "device_targets": list(map(str, config.device_targets)),
    }
    if len(config.primitive_targets) > 1:
        metadata["variants"] = list(map(str, config.primitive_targets))
    return {key: value for key, value in metadata.items() if value or key == "weights"}


def _declare_conditions(module: IRModule) -> IRModule:
    """Declare the conditions that `main`'s operators impose on its named dimensions, unless the
    frontend has declared them.
    """
    if "constraints" in module.attrs:
        return module
    module = InferType()(module)
    main = module["main"]
    assert isinstance(main, Function)
    attrs = {**module.attrs, "constraints": tuple(shape_conditions(main))}
    return IRModule(dict(module.functions.items()), module.type_definitions, attrs)


def describe_main(module: IRModule) -> dict[str, object]:
    """Return the metadata of `main`: names, shapes and dtypes of inputs and outputs, and the
    symbols' upper bounds.
    """
    main = module["main"]
    assert isinstance(main, Function)
    kinds = [p.checked_type for p in main.params]
    results = _flatten_fields(main.body.checked_type)
    imported = ImportResult.from_module(module)
    names = imported.input_names or [p.name_hint for p in main.params]
    out_names = imported.output_names or [f"output{i}" for i in range(len(results))]
    inputs = [_describe_value(n, k, imported) for n, k in zip(names, kinds, strict=True)]
    outputs = [_describe_value(n, k, imported) for n, k in zip(out_names, results, strict=True)]
    return {
        "inputs": inputs,
        "outputs": outputs,
        "limits": symbol_bounds(kinds),
    }


def _constant_bytes(module: IRModule) -> int:
    """Return the bytes of the constants of a module, each counted once."""
    sizes: dict[int, int] = {}
    for function in module.functions.values():
        if isinstance(function, Function):
            for expr in post_order(function, into_functions=True):
                if isinstance(expr, Constant):
                    sizes[id(expr.data)] = expr.data.nbytes
    return sum(sizes.values())


def symbol_bounds(kinds: Sequence[Type]) -> dict[str, int]:
    """Return the upper bounds of the symbols that have one."""
    dims = [d for k in kinds if isinstance(k, TensorType) for d in k.shape]
    return {d.name: d.upper for d in dims if isinstance(d, SizeVar) and d.upper is not None}


def _flatten_fields(kind: Type) -> list[Type]:
    """Return the leaf types of a nested tuple type."""
    return list(kind.fields) if isinstance(kind, TupleType) else [kind]


def _describe_value(name: str, kind: Type, imported: ImportResult) -> dict[str, object]:
    if isinstance(kind, TensorType) and name in imported.texts:
        return {
            "name": name,
            "shape": [_describe_dim(d) for d in kind.shape[:-1]],
            "dtype": STRING_DTYPE,
        }
    maps = dict(imported.maps)
    if isinstance(kind, TensorType) and name in maps:
        keys, rows = list(maps[name]), [_describe_dim(kind.shape[0])]
        return {
            "name": name,
            "shape": rows,
            "dtype": f"{SEQUENCE_OF_MAPS_PREFIX}{kind.dtype}",
            "keys": keys,
        }
    if imported.sequences and is_sum_type(kind):
        tensor = kind.args[0] if isinstance(kind, TypeCall) else kind
        assert isinstance(tensor, TensorType), "an output is a tensor of one of several ranks"
        return {
            "name": name,
            "shape": list(ANY_RANK_SHAPE),
            "dtype": f"{ANY_RANK_PREFIX}{tensor.dtype}",
        }
    element = kind.args[0] if imported.sequences and isinstance(kind, TypeCall) else None
    if isinstance(element, TensorType):
        shape = [_describe_dim(d) for d in element.shape]
        return {"name": name, "shape": shape, "dtype": f"{SEQUENCE_PREFIX}{element.dtype}"}
    if not isinstance(kind, TensorType):
        return {"name": name, "shape": [], "dtype": OBJECT_DTYPE}
    _check_size(name, kind)
    return {"name": name, "shape": [_describe_dim(d) for d in kind.shape], "dtype": kind.dtype}


def _check_size(name: str, kind: TensorType) -> None:
    """Raise CompileError for a tensor of 2**63 bytes or more."""
    known_dims = [d.value for d in kind.shape if isinstance(d, IntImm)]
    if math.prod(known_dims) * itemsize(kind.dtype) >= 1 << 63:
        raise CompileError(
            f"compile: '{name}' is a {kind.dtype}{[_describe_dim(d) for d in kind.shape]}: "
            "a tensor of more than 2**63 bytes"
        )


def _describe_dim(dim: PrimExpr) -> Dim:
    return dim.value if isinstance(dim, IntImm) else format_prim_expr(dim)


def _progress_bar() -> AbstractContextManager[ProgressCallback | None]:
    """Return a progress bar over kernels where standard error is a terminal."""
    if not stderr_is_terminal():
        return nullcontext()
    bar: AbstractContextManager[ProgressCallback] = load_module(
        "ekiden.compiler.progress"
    ).CompileBar()
    return bar
