"""`ekiden inspect FILE --stage relay|decisions|schedule|tir|llvm|c|asm|bytecode`, and the module
before or after any pass.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ekiden
from ekiden import tir
from ekiden.backend.external import is_external_function
from ekiden.backend.kernels.build import check_decisions
from ekiden.backend.kernels.canonical_form import canonicalize
from ekiden.backend.kernels.lower import (
    Overrides,
    choose_primitive,
    decision_names,
    display_name,
    lower_primitive,
    schedule_primitive,
)
from ekiden.backend.vm.module_kernels import primitive_functions
from ekiden.backend.vm.pipeline import optimize_module, vm_pipeline
from ekiden.cli.options import add_decision_argument, decisions_config, is_artifact
from ekiden.codegen.build import get_code_generator
from ekiden.codegen.device.formats import ALL_KERNEL_FORMATS
from ekiden.compiler.build import import_model
from ekiden.ir.instrument import PassPrintingInstrument
from ekiden.ir.module import IRModule
from ekiden.ir.transform import PassContext
from ekiden.kernels.families import override_options
from ekiden.kernels.kernel_selection import decision_text, schedule_text
from ekiden.relay.expr import Function
from ekiden.relay.printer import astext
from ekiden.relay.transform.devices.plan_devices import device_table
from ekiden.runtime.artifact.container_format import read_sections
from ekiden.runtime.artifact.device_code import unpack_kernels
from ekiden.runtime.binding.layout import Section
from ekiden.runtime.errors import CompileError, InputError
from ekiden.target import Target, target_or_current
from ekiden.target.virtual_device import compilation_config
from ekiden.tir import transform as tir_transform
from ekiden.tir.stmt import PrimFunc

KERNEL_CODE_FORMATS = {
    "tir": "", "llvm": "ll", "asm": "asm", "c": "c", "opencl": "opencl", "cuda": "cuda",
    "wgsl": "webgpu", "ptx": "ptx", "spirv": "spirv", "vulkan": "vulkan",
    "metal": "metal",
}  # fmt: skip
"""Stage of a kernel -> the source of the target's code generator that shows it."""

BINARY_DISASSEMBLERS = dict.fromkeys(
    ("spirv", "vulkan"), ("spirv-dis", "apt-get install spirv-tools")
)
"""Format of kernels that is bytes -> what reads them from an artifact, and where it comes from."""

SCHEDULING_STAGES = ("decisions", "schedule")
"""Stages of a kernel that say how it is made."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", help="a model or an artifact")
    parser.add_argument(
        "--stage", choices=["relay", *SCHEDULING_STAGES, *KERNEL_CODE_FORMATS, "bytecode"]
    )
    parser.add_argument(
        "--before", metavar="PASS", help="print the module before this pass, such as FuseOps"
    )
    parser.add_argument("--after", metavar="PASS", help="print the module after this pass")
    parser.add_argument(
        "--kernel", default="", help="only kernels of nodes whose name contains this text"
    )
    parser.add_argument("--target", help="the target to compile for (default: this machine)")
    add_decision_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print the requested stage; by default the Relay text of a model, or the bytecode of an
    artifact. Raises InputError for a stage the target does not have, CompileError for one an
    artifact does not keep.
    """
    _validate_options(options)
    if is_artifact(options.file):
        if KERNEL_CODE_FORMATS.get(options.stage) in ALL_KERNEL_FORMATS:
            _print_device_code(options)
            return 0
        if options.stage not in (None, "bytecode") or options.before or options.after:
            raise CompileError(f"inspect '{options.file}': an artifact holds bytecode alone")
        _print_executable(ekiden.load(options.file))
        return 0
    target = target_or_current(options.target)
    sources = get_code_generator(target, "inspect").sources(target)
    stage = KERNEL_CODE_FORMATS.get(options.stage, "")
    if stage and stage not in sources:
        available = ", ".join(
            name for name, of in KERNEL_CODE_FORMATS.items() if not of or of in sources
        )
        kind = target.kind.name
        ask = next(
            (f"; -mtriple={t} asks for it" for t, of in target.kind.triples.items() if of == stage),
            "",
        )
        raise InputError(
            f"--stage {options.stage}: target kind {kind!r} has none; it has {available}{ask}"
        )
    if options.before or options.after:
        _print_around_pass(options, target)
    elif options.stage == "bytecode":
        _print_executable(ekiden.compile(options.file, target))
    elif options.stage in (*SCHEDULING_STAGES, *KERNEL_CODE_FORMATS):
        with PassContext(config=decisions_config(options)):
            module = optimize_module(import_model(options.file), target, compilation_config(target))
            _print_kernel_stages(_collect_kernels(module, target), options)
    else:
        print(astext(import_model(options.file), show_meta_data=False))
    return 0


def _validate_options(options: argparse.Namespace) -> None:
    """Raise InputError for combinations of arguments that have no effect."""
    around = options.before or options.after
    if options.kernel and (
        around or options.stage not in (*SCHEDULING_STAGES, *KERNEL_CODE_FORMATS)
    ):
        stages = ", ".join((*SCHEDULING_STAGES, *KERNEL_CODE_FORMATS))
        raise InputError(f"--kernel: expected --stage {stages} with it")
    if around and options.stage:
        raise InputError(
            "--stage: --before and --after print Relay modules, which have no other stages"
        )
    if options.target and is_artifact(options.file):
        raise InputError("--target: an artifact is already compiled")


def _print_device_code(options: argparse.Namespace) -> None:
    """Print an artifact's device kernels of one format."""
    data = Path(options.file).read_bytes()
    ekiden.runtime.Executable.from_bytes(data)  # refuses what is damaged
    sections = [bytes(p) for kind, _, p in read_sections(data) if kind is Section.DEVICE_CODE]
    kernel_format = KERNEL_CODE_FORMATS[options.stage]
    kernels = [
        k for section in sections for k in unpack_kernels(section) if k.format == kernel_format
    ]
    if not kernels:
        raise InputError(f"--stage {options.stage}: the artifact has no kernels of that format")
    for kernel in kernels:
        print(_disassemble_kernel(kernel.code, kernel_format))


def _disassemble_kernel(code: bytes, form: str) -> str:
    """Return a kernel's code as text. Raises InputError if its disassembler is missing or fails."""
    if form not in BINARY_DISASSEMBLERS:
        return code.decode()
    tool, source = BINARY_DISASSEMBLERS[form]
    if shutil.which(tool) is None:
        raise InputError(
            f"--stage {form}: the artifact has bytes, which {tool!r} reads, and it is not here: "
            f"{source}; of a model --stage {form} needs nothing"
        )
    read = subprocess.run([tool], input=code, capture_output=True, check=False)
    if read.returncode:
        message = read.stderr.decode(errors="replace").strip()
        raise InputError(
            f"--stage {form}: {tool!r} does not read a kernel of the artifact: {message}"
        )
    return read.stdout.decode()


def _print_executable(executable: ekiden.Executable) -> None:
    """Print an executable's bytecode, weights, placement and variants."""
    print(executable.disassemble())
    in_model, in_file = executable.weight_bytes
    if in_model is not None:
        stored = executable.stored_weight_bytes
        if stored == in_file:
            print(f"Weights: {in_model} bytes in the model, {in_file} as the kernels take them")
        else:
            print(f"Weights: {in_model} bytes in the model, {stored} in the artifact, {in_file}"
                  " with what is made of these when it is loaded")  # fmt: skip
    if executable.placement:
        print(f"Devices: {executable.placement}")
    if executable.peak_memory is not None:
        print(f"Peak memory of a run: {executable.peak_memory} bytes, inputs and weights aside")
    if len(executable.variants) > 1:
        print("Variants, and which one this machine runs:")
        for variant in executable.variants:
            print(f"{'*' if variant == executable.target else ' '} {variant}")


def _print_around_pass(options: argparse.Namespace, target: Target) -> None:
    """Print the module immediately before or after a named pass."""
    names = dict.fromkeys(p.name for p in vm_pipeline(target).passes)
    for pass_name in filter(None, (options.before, options.after)):
        if pass_name not in names:
            raise CompileError(f"inspect: no pass '{pass_name}'; there are {', '.join(names)}")
    instrument = PassPrintingInstrument(
        filter(None, [options.before]), filter(None, [options.after]), file=sys.stdout
    )
    with PassContext(instruments=(instrument,)):
        optimize_module(import_model(options.file), target, compilation_config(target))


def _collect_kernels(module: IRModule, target: Target) -> list[tuple[Function, Target]]:
    """Return the distinct kernels of an optimized module, each with the target of its device.
    External code has no loops of ours and is left out.
    """
    config = compilation_config(target)
    targets = {
        index: config.by_kind.get(d.device_type_int) for index, d in enumerate(device_table(module))
    }
    (host, *_) = config.primitive_targets
    # Identical kernels of several nodes are printed once.
    placed = dict.fromkeys(primitive_functions(module))
    return [(f, targets[index] or host) for f, index in placed if not is_external_function(f)]


def _print_kernel_stages(
    kernels: Sequence[tuple[Function, Target]], options: argparse.Namespace
) -> None:
    """Print one stage of each kernel; a source language only for the targets that are compiled
    through it.
    """
    source = KERNEL_CODE_FORMATS.get(options.stage, "")
    if source:
        kernels = [
            (f, t) for f, t in kernels if source in get_code_generator(t, "inspect").sources(t)
        ]
    functions = [f for f, _ in kernels]
    nodes, decisions = [str(f.span or "") for f in functions], override_options()
    check_decisions(functions, decisions)
    if options.kernel and not any(options.kernel in node for node in nodes):
        known_nodes = ", ".join(dict.fromkeys(filter(None, nodes))) or "none that are known"
        raise InputError(f"no kernel is of a node '{options.kernel}'; there are {known_nodes}")
    for number, (function, target) in enumerate(kernels):
        if options.kernel not in nodes[number]:
            continue
        form = canonicalize(function)
        if options.stage == "decisions":
            print(_format_decisions(form, target, decisions))
            continue
        if options.stage == "schedule":
            print(_format_schedule(form, f"kernel{number}", target, decisions))
            continue
        lowered = lower_primitive(form, f"kernel{number}", target, decisions)
        print(f"// {function.span or ''}\n{_format_kernel_stage(lowered, options.stage, target)}\n")


def _format_kernel_stage(kernel: PrimFunc, stage: str, target: Target) -> str:
    if not KERNEL_CODE_FORMATS[stage]:
        return tir.astext(kernel)
    show = get_code_generator(target, "inspect").sources(target)[KERNEL_CODE_FORMATS[stage]]
    if target.kind.has_threads:
        return show([kernel], target)
    return show([tir_transform.lower(kernel, target)], target)


def _format_schedule(function: Function, name: str, target: Target, decisions: Overrides) -> str:
    """Return a kernel's schedule as Python statements, or why it has none."""
    schedule = schedule_primitive(function, name, target, decisions)
    family = choose_primitive(function, target, decisions).family
    head = "\n".join([*decision_names(function)[1:], f"{display_name(function)}: {family.name}"])
    return f"{head}\n{schedule_text(schedule)}"


def _format_decisions(function: Function, target: Target, decisions: Overrides) -> str:
    """Return a kernel's family, its tuned decision, and the domain of every knob."""
    chosen = choose_primitive(function, target, decisions)
    head = "\n".join([*decision_names(function)[1:], f"{display_name(function)}: "])
    return head + decision_text(chosen, target)
