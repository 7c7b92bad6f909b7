"""Model compilation: from a model to the bytes of an artifact."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, cast

from ekiden._lazy import load_module
from ekiden.backend.external import ExternalCompiler, register_compiler
from ekiden.backend.kernels.tiered_compilation import FullTierRequest, OnKernel
from ekiden.backend.vm.compile import LinkedExecutable, compile_variants
from ekiden.backend.vm.pipeline import LoweredModule, lower, lower_full_tier
from ekiden.codegen.build import get_code_generator
from ekiden.codegen.parallel import CancellationToken, ProgressCallback
from ekiden.compiler.artifact_metadata import describe_artifact
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.common.options import NO_OPTIONS, ImportOptions
from ekiden.frontend.registry import ModelSource, identify_model
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.pass_context import (
    BYOC_ENGINE_OPTION,
    PassContext,
    PassInstrument,
    attach_dump,
    current_dump,
    dump_if_requested,
    time_phase,
)
from ekiden.relay.expr import Function
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.remove_unused_functions import check_entries
from ekiden.relay.transform.shapes.declare_conditions import DeclareConditions
from ekiden.relay.transform.shapes.name_dimensions import NameDimensions
from ekiden.runtime.artifact import mapped_files
from ekiden.runtime.artifact.container_format import ArtifactFile, Seekable
from ekiden.runtime.devices.engines import encode_code
from ekiden.runtime.errors import CompileError
from ekiden.runtime.files import Writer
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.terminal import stderr_is_terminal
from ekiden.target.virtual_device import CompilationConfig, Targets, compilation_config

Model: TypeAlias = str | os.PathLike[str] | bytes | IRModule | Function | Any
"""Accepted model: a path, bytes, a module, a Relay function, or an object of a supported framework.
"""


@time_phase("import")
def import_model(model: Model, options: ImportOptions = NO_OPTIONS) -> IRModule:
    """Import anything that `compile` accepts as a module; the frontend's declarations become its
    attributes. Raises CompileError for anything else, and for options that the model does not know.
    """
    return identify_model(model).import_model(options).to_module()


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
        self.mapped_weight_files.check_unchanged("compile")
        return contents

    @time_phase("write")
    def write(self, file: Writer) -> None:
        """Write the artifact to a seekable file. Raises as `to_bytes` does; the file must then be
        discarded.
        """
        self.artifact.write_seekable(cast("Seekable", file))
        self.mapped_weight_files.check_unchanged("compile")


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
    return bytes(compile_model(identify_model(model), compile_options).to_bytes())


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
def compile_model(source: ModelSource, options: CompileOptions) -> CompiledModel:
    """Compile a model within the PassContext of `options.context`. With tier "quick", kernels may
    be general; `general_program` of the result then compiles the specialised ones.
    """
    config = compilation_config(options.targets)
    # Missing code generators are reported before the model is read, which may take minutes.
    for code_target in (*config.primitive_targets, *config.device_targets):
        get_code_generator(code_target, "compile")
    with mapped_files.allow_mapped_borrowing() as files, time_phase("import"):
        imported = source.import_model(options.inputs)
    module = _infer_types(imported.to_module())
    regions: Mapping[str, object] = {}
    if PassContext.current().config.get(BYOC_ENGINE_OPTION):
        partition = load_module("ekiden.compiler.engine_partitioning").partition_for_engine
        module, regions = partition(module, options.targets, config)
    metadata = describe_artifact(module, imported, config, options)
    metadata |= {"regions": regions} if regions else {}
    linked, general_program = _lower_and_link(module, metadata, config, options, files)
    return CompiledModel(
        linked.file, imported.weight_files, linked.external_sections, files, general_program
    )


def _infer_types(module: IRModule) -> IRModule:
    """Return the module with types and named dimensions, and with the conditions that `main`'s
    operators impose on those, unless the frontend has declared them.

    Raises CompileError if `main` is no Relay function.
    """
    if "main" not in module or not isinstance(module["main"], Function):
        raise CompileError("compile: the module has no Relay function 'main'")
    check_entries(module)
    return DeclareConditions()(NameDimensions()(InferType()(module)))


def _lower_and_link(
    module: IRModule,
    metadata: dict[str, object],
    config: CompilationConfig,
    options: CompileOptions,
    files: mapped_files.MappedFiles,
) -> tuple[LinkedExecutable, GeneralProgram | None]:
    """Lower the module for each target, and link the variants to one artifact; with tier "quick",
    also return the program whose specialised kernels remain to be compiled.
    """
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
        # The quick tier has one variant, which is kept for the specialised kernels.
        held_variants = list(variants) if options.tier == "quick" else []
        general = held_variants[0][0].kernels.kernels.general_forms if held_variants else {}
        is_native = options.executor == "aot" and not general
        linked = compile_variants(held_variants or variants, is_native=is_native)
    if not linked.general_forms:
        return linked, None
    ((lowered, variant_metadata),) = held_variants
    return linked, GeneralProgram(
        linked.general_forms, lowered, variant_metadata, options.executor, files, current_dump()
    )


def _progress_bar() -> AbstractContextManager[ProgressCallback | None]:
    """Return a progress bar over kernels where standard error is a terminal."""
    if not stderr_is_terminal():
        return nullcontext()
    bar: AbstractContextManager[ProgressCallback] = load_module(
        "ekiden.compiler.progress"
    ).CompileBar()
    return bar
