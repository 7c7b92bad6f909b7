"""`ekiden inspect FILE --stage relay|tir|llvm|asm|bytecode`, and the module before or after any
pass
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import ekiden
from ekiden.backend.kernels.canonical import canonicalize
from ekiden.backend.kernels.lower import lower_primitive
from ekiden.backend.vm.compile import primitive_functions
from ekiden.backend.vm.pipeline import optimize, pipeline
from ekiden.codegen import llvm
from ekiden.driver.build import import_model
from ekiden.ir.instrument import PrintIR
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.printer import astext
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir import transform as tir_transform
from ekiden.tir.stmt import PrimFunc

Emit = Callable[[PrimFunc, Target], str]
KERNEL_STAGES: dict[str, Emit] = {
    "tir": lambda function, target: tir.astext(function),
    "llvm": lambda function, target: llvm.emit(tir_transform.lower(function, target), target),
    "asm": lambda function, target: llvm.assembly([tir_transform.lower(function, target)], target),
}
"""Stage -> text of one kernel."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("file", help="a model, or for --stage bytecode an artifact")
    parser.add_argument("--stage", choices=["relay", *KERNEL_STAGES, "bytecode"], default="relay")
    parser.add_argument(
        "--before", metavar="PASS", help="print the module before this pass, for instance FuseOps"
    )
    parser.add_argument("--after", metavar="PASS", help="print the module after this pass")
    parser.add_argument("--kernel", default="", help="only kernels whose name contains this")
    parser.add_argument("--target", default="llvm")


def run(options: argparse.Namespace) -> int:
    """Print the stage asked for."""
    target = Target.parse(options.target)
    if options.before or options.after:
        _print_passes(options, target)
    elif options.stage == "bytecode":
        is_artifact = str(options.file).endswith(".eki")
        print(
            (
                ekiden.load(options.file) if is_artifact else ekiden.compile(options.file, target)
            ).disassemble()
        )
    elif options.stage == "relay":
        print(astext(import_model(options.file)))
    else:
        _print_kernels(optimize(import_model(options.file), target), options, target)
    return 0


def _print_passes(options: argparse.Namespace, target: Target) -> None:
    names = {p.name for p in pipeline(target).passes if isinstance(p, Pass)}
    for wanted in filter(None, (options.before, options.after)):
        if wanted not in names:
            raise CompileError(
                f"inspecting a pass: no pass {wanted!r}; there are {', '.join(sorted(names))}"
            )
    instrument = PrintIR(before=filter(None, [options.before]), after=filter(None, [options.after]))
    with PassContext(instruments=(instrument,)).scope():
        optimize(import_model(options.file), target)


def _print_kernels(module: IRModule, options: argparse.Namespace, target: Target) -> None:
    for function in primitive_functions(module):
        lowered = lower_primitive(canonicalize(function), "kernel", target)
        text = KERNEL_STAGES[options.stage](lowered, target)
        if options.kernel in text or options.kernel in str(function.span):
            print(f"// {function.span or 'kernel'}\n{text}\n")
