"""Compile LLVM IR to machine code.

No IR passes run: the emitter writes SSA form and shares values itself, and measured run time is the
same, at half the compile time.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, cast

from ekiden._lazy import LazyModule
from ekiden._locks import register_fork_guard
from ekiden.codegen.compile_task import CompileTask
from ekiden.codegen.llvm.image import EXTERN_PREFIX
from ekiden.codegen.llvm.program_intrinsics import PROGRAM_INTRINSICS, user_intrinsics
from ekiden.codegen.worker_process import compile_isolated
from ekiden.ir.package_versions import package_version
from ekiden.ir.pass_context import DEBUG_LEVEL, time_phase
from ekiden.runtime import environment
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.target import Target
from ekiden.target.features import BASELINE_FEATURES, RISCV
from ekiden.target.triple import object_triple
from ekiden.tir.stmt import IMPORT_LLVM_ATTR, PrimFunc

if TYPE_CHECKING:
    import llvmlite.binding as llvm

    import ekiden.codegen.llvm.module_emitter as emit
    from ekiden.codegen.llvm.debug_info import DebugInfo
else:
    emit = LazyModule("ekiden.codegen.llvm.module_emitter")
    llvm = LazyModule(
        "llvmlite.binding"
    )  # 15 ms that a program with general kernels does not wait for

LLVM_VERSION = f"llvmlite {package_version('llvmlite')}"
"""LLVM version, part of the key of cached object code."""


@functools.cache
def _initialize_llvm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def llvm_lock() -> AbstractContextManager[object]:
    """Hold the lock that keeps all other threads of the process out of LLVM."""
    # Not loaded, so no thread can be in it; it is not loaded for a lock that nobody holds.
    if "llvmlite.binding" not in sys.modules:
        return nullcontext()
    lock: AbstractContextManager[object] = getattr(llvm.ffi.lib, "_lock", nullcontext())
    return lock


# any fork waits until no thread is inside LLVM: the child would find its lock closed, for ever, and
# what it guards between two states
register_fork_guard(llvm_lock)


LLVM_ABI_NAMES = {RISCV: "lp64d"}
"""ABI name of each architecture whose LLVM default differs from the runtime's."""


def check_target(target: Target, what: str) -> None:
    """Raise CompileError, naming `what`, if this LLVM has no code generator for a target."""
    if target.architecture == Target.host().architecture:
        return  # which llvmlite is built for
    check_triple(target.triple, what)


def check_triple(triple: str, what: str) -> None:
    """Raise CompileError, naming `what`, if this LLVM has no code generator for a triple."""
    _initialize_llvm()
    try:
        llvm.Target.from_triple(triple)
    except RuntimeError as error:
        message = f"LLVM makes no code for {triple!r} in {LLVM_VERSION} as it was built here"
        raise CompileError(f"{what}: {message}: {error}") from error


def _target_machine(target: Target) -> llvm.TargetMachine:
    base = BASELINE_FEATURES[target.architecture] if target.architecture in LLVM_ABI_NAMES else ()
    named = (*sorted(base), *target.features, *(f"-{f}" for f in sorted(target.idle)))
    features = ",".join(f if f[0] == "-" else f"+{f}" for f in named)
    return cached_target_machine(
        object_triple(target.triple),
        target.cpu,
        features,
        LLVM_ABI_NAMES.get(target.architecture, ""),
    )


@functools.lru_cache(maxsize=8)
def cached_target_machine(
    triple: str, cpu: str, features: str = "", abi: str = ""
) -> llvm.TargetMachine:
    """Return the cached target machine of a processor; creating one takes 0.5 ms, a twentieth of
    compiling a small kernel (Zen 4).
    """
    return create_target_machine(triple, cpu, features, abi)


def create_target_machine(
    triple: str, cpu: str, features: str = "", abi: str = "", opt: int = 3
) -> llvm.TargetMachine:
    """Create a target machine that no other caller shares."""
    _initialize_llvm()
    # Images are loaded at any address: position-independent code, with all references within 2 GiB.
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small", abiname=abi
    )


def parse_ir(text: str) -> llvm.ModuleRef:
    """Parse and verify LLVM IR.

    Raises:
        CompileError: if a program calls an intrinsic with operands that it does not have.
        InternalError: if the emitter is wrong.
    """
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        # An invalid module is the user's error if the program calls intrinsics itself, else ours.
        names = user_intrinsics(text)
        if names:
            raise CompileError(f"llvm: call of {names}: {_describe_ir_error(error)}") from error
        raise InternalError(f"llvm: the emitter wrote wrong code: {error}") from error
    return module


def _describe_ir_error(error: RuntimeError) -> str:
    """Return LLVM's error message for IR, with the line that it refers to."""
    says, *lines = str(error).strip().splitlines()
    if lines and "error: " in lines[0]:  # <string>:7:21: error: ..., the line, a caret
        says, lines = lines[0].partition("error: ")[2], lines[1:]
    return f"{says}: {lines[-2 if len(lines) > 1 else 0].strip()}" if lines else says


def run_isolated(
    function: Callable[..., bytes], text: str, *arguments: object, name: str = "llvm"
) -> bytes:
    """Run `function(text, *arguments)` in a process of its own and return its result. LLVM ends the
    process at what a processor does not have, and at some calls of intrinsics by wrong operands.
    `name` says what for, in messages.

    Raises CompileError where the process ends.
    """
    task = CompileTask("", f"{name}: call of {user_intrinsics(text)}", function, (text, *arguments))
    return compile_isolated(task, environment.kernel_timeout_s())


def compile_ir(text: str, target: Target) -> bytes:
    """Compile LLVM IR to a relocatable ELF object."""
    if user_intrinsics(text):
        return run_isolated(_compile_ir, text, target)
    return _compile_ir(text, target)


def _compile_ir(text: str, target: Target) -> bytes:
    with time_phase("llvm read", DEBUG_LEVEL):
        module = parse_ir(text)
    with time_phase("llvm compile", DEBUG_LEVEL):
        data: bytes = _target_machine(target).emit_object(module)
    return data


def program_ir(funcs: Sequence[PrimFunc], target: Target, debug: DebugInfo | None = None) -> str:
    """Return the LLVM IR of lowered functions, linked with the IR that they import (TVM's pragma
    "import_llvm").

    A function that the imported IR defines is the one of that name which `call_extern` calls.
    Raises CompileError for imported IR that is invalid or made for another architecture.
    """
    text = emit.emit_module(funcs, target, debug)
    texts = [cast("tuple[str, ...]", (f.attrs or {}).get(IMPORT_LLVM_ATTR, ())) for f in funcs]
    imports = list(dict.fromkeys(chain.from_iterable(texts)))
    if not imports:
        return text
    linked = run_isolated(_link_imports, text, imports, target.triple, name="import_llvm").decode()
    names = user_intrinsics(text)
    return f"{PROGRAM_INTRINSICS}{names}\n{linked}" if names else linked


def _link_imports(text: str, imports: Sequence[str], triple: str) -> bytes:
    module = parse_ir(text)
    for imported in imports:
        module.link_in(_parse_import(imported, triple))
    for function in module.functions:
        if function.name.startswith(EXTERN_PREFIX) and not function.is_declaration:
            function.linkage = "internal"  # several objects of one image may import one text
    return str(module).encode()


def _parse_import(text: str, triple: str) -> llvm.ModuleRef:
    """Parse imported IR, whose functions take the symbols under which programs call them. What it
    calls itself is found when the code is loaded, like every C function.
    """
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"import_llvm: {_describe_ir_error(error)}") from error
    architecture = triple.partition("-")[0]
    if module.triple and module.triple.partition("-")[0] != architecture:
        raise CompileError(f"import_llvm: expected code for {architecture}, got {module.triple}")
    module.triple = triple
    for function in module.functions:
        if not function.name.startswith("llvm."):
            function.name = f"{EXTERN_PREFIX}{function.name}"
        # Texts that define one name must agree, like inline functions of C++.
        if not function.is_declaration:
            function.linkage = "linkonce_odr"
    return module


def compile_object(funcs: Sequence[PrimFunc], target: Target) -> bytes:
    """Compile lowered functions to one relocatable ELF object."""
    with time_phase("llvm text", DEBUG_LEVEL):
        text = program_ir(funcs, target)
    return compile_ir(text, target)


def ir_to_assembly(text: str, target: Target) -> str:
    """Return the assembly of LLVM IR."""
    if user_intrinsics(text):
        return run_isolated(_ir_to_assembly, text, target).decode()
    return _ir_to_assembly(text, target).decode()


def _ir_to_assembly(text: str, target: Target) -> bytes:
    assembly_text: str = _target_machine(target).emit_assembly(parse_ir(text))
    return assembly_text.encode()


def assembly(funcs: Sequence[PrimFunc], target: Target) -> str:
    """Return the assembly of lowered functions."""
    return ir_to_assembly(program_ir(funcs, target), target)
