"""`build()`: compile loop programs to a module of native functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.codegen import c, device, llvm
from ekiden.codegen.cache import KernelCache, kernel_key
from ekiden.codegen.device.formats import KERNEL_FORMATS, kernel_format
from ekiden.codegen.parallel import CompileTask, ProgressCallback, compile_tasks
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import dump_if_requested, notify_product, with_instruments
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.user_extensions import has_extensions
from ekiden.runtime import Module, environment, get_global_func, load_device_code, tensor
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target, TargetLike, target_or_current
from ekiden.target.virtual_device import with_context_bounds
from ekiden.tir import transform as tir_transform
from ekiden.tir.stmt import PrimFunc, Stmt

if TYPE_CHECKING:
    from pathlib import Path

    import ekiden.codegen.llvm.gpu_backends as gpu_backends
    from ekiden.codegen import debug_library
else:
    gpu_backends = LazyModule("ekiden.codegen.llvm.gpu_backends")
    debug_library = LazyModule("ekiden.codegen.debug_library")


SOURCE_FORMATS = {"ll": "LLVM IR", "asm": "assembly", "c": "C"}
"""Description of each source format of CPU code."""
Sources = Mapping[str, Callable[[Sequence[PrimFunc], Target], str]]


@dataclass(frozen=True, slots=True)
class CodeGenerator:
    """Code generator of one target kind: compiles lowered functions to objects and prints their
    source.
    """

    compile: Callable[[Sequence[PrimFunc], Target], bytes]
    """Function that compiles lowered functions to a relocatable object."""
    sources: Callable[[Target], Sources]
    """Source printers by format, for `Module.get_source`; the first is the default."""
    version: Callable[[], str]
    """Version of external tools on which the generated code depends."""
    check: Callable[[Target, str], None]
    """Function that raises CompileError where the target is unsupported."""
    debug: Callable[[Sequence[PrimFunc], Target, Path, Mapping[Stmt, int]], bytes]
    """Function that compiles with debug lines that refer to a text file."""


def _compile_c(funcs: Sequence[PrimFunc], target: Target) -> bytes:
    return c.compile_c(c.emit_module(funcs, target), target)


def _debug_c(
    funcs: Sequence[PrimFunc], target: Target, path: Path, lines: Mapping[Stmt, int]
) -> bytes:
    """Compile C with debug lines that refer to the C file, which is written next to the loop
    program's text.
    """
    return c.compile_c(c.emit_module(funcs, target), target, path.with_suffix(".kernel.c"))


def _debug_llvm(
    funcs: Sequence[PrimFunc], target: Target, path: Path, lines: Mapping[Stmt, int]
) -> bytes:
    return llvm.compile_ir(llvm.program_ir(funcs, target, llvm.DebugInfo(path, lines)), target)


def _emit_c(funcs: Sequence[PrimFunc], target: Target) -> str:
    return c.emit_module(funcs, target)


def _check_c_target(target: Target, what: str) -> None:
    c.check_target(target, what)


def _c_version() -> str:
    return c.compiler_version()


def _emit_llvm(funcs: Sequence[PrimFunc], target: Target) -> str:
    return llvm.program_ir(funcs, target)


def _llvm_sources(target: Target) -> Sources:
    return {"ll": _emit_llvm, "asm": llvm.assembly}


def _c_sources(target: Target) -> Sources:
    return {"c": _emit_c}


def _compile_gpu_host(funcs: Sequence[PrimFunc], target: Target) -> bytes:
    """Compile the host part of split GPU programs for the target's host."""
    host = target.code_host
    return CODE_GENERATORS[host.kind.name].compile(funcs, host)


def _debug_gpu_host(
    funcs: Sequence[PrimFunc], target: Target, path: Path, lines: Mapping[Stmt, int]
) -> bytes:
    raise CompileError(f"target {target.kind.name!r}: EKIDEN_DEBUG_DIR is for processors alone")


def _check_gpu_target(target: Target, what: str) -> None:
    get_code_generator(target.code_host, what)
    backend = gpu_backends.GPU_BACKENDS.get(kernel_format(target))
    if backend is not None:
        llvm.check_triple(backend.triple_of(target), what)


def _gpu_codegen_version() -> str:
    return ",".join(sorted(KERNEL_FORMATS))


def device_sources(funcs: Sequence[PrimFunc], target: Target) -> str:
    """Return the device source of scheduled programs as the driver receives it; binary formats
    (SPIR-V) are disassembled.
    """
    kernels = [
        k for f in funcs for k in device.split_host_and_device(f, target, readable=True).kernels
    ]
    return "\n".join(k.code.decode() for k in kernels)


def _gpu_sources(target: Target) -> Sources:
    return {kernel_format(target): device_sources}


# fmt: off
CODE_GENERATORS: dict[str, CodeGenerator] = {
    "llvm": CodeGenerator(llvm.compile_object, _llvm_sources, str, llvm.check_target, _debug_llvm),
    "c":    CodeGenerator(_compile_c, _c_sources, _c_version, _check_c_target, _debug_c),
    **{name: CodeGenerator(_compile_gpu_host, _gpu_sources, _gpu_codegen_version, _check_gpu_target,
                           _debug_gpu_host)
       for name in KERNEL_FORMATS},
}
# fmt: on


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Compiled form of a program: the lowered host function, its object code, and the device
    kernels that it launches.
    """

    lowered: PrimFunc
    object: bytes
    kernels: tuple[device.DeviceKernel, ...] = ()


def compile_lowered(funcs: Sequence[PrimFunc], target: Target, stem: str = "code") -> bytes:
    """Compile lowered functions to object code and hand the LLVM IR, assembly or C text to the
    instruments; `stem` is the prefix of the dumped files.
    """
    generator = CODE_GENERATORS[target.kind.name]
    for form, text in generator.sources(target).items():
        what = f"the code as {SOURCE_FORMATS.get(form, form)}"
        notify_product(f"{stem}.{form}", what, partial(text, funcs, target))
    return generator.compile(funcs, target)


def compile_function(func: PrimFunc, target: Target) -> CompiledKernel:
    """Lower and compile one scheduled program."""
    if not target.kind.has_threads:
        lowered = tir_transform.lower(func, target)
        return CompiledKernel(lowered, compile_lowered([lowered], target))
    form = kernel_format(target)
    notify_product(
        f"device.{form}", f"its kernels for {target}", lambda: _uninstrumented_source(func, target)
    )
    # Device kernels are code of the target; the host function that launches them is code of its
    # host.
    split = device.split_host_and_device(func, target)
    return CompiledKernel(
        split.host, compile_lowered([split.host], target.code_host), tuple(split.kernels)
    )


def _uninstrumented_source(func: PrimFunc, target: Target) -> str:
    """Return the device kernels of a program as text, without instruments: they have seen its
    passes when the code was made.
    """
    with with_instruments(()):
        return device_sources([func], target)


def serialize_kernel(code: CompiledKernel) -> bytes:
    """Serialise object code and kernels for the cache: one line of JSON, then the object code."""
    # JSON escapes line breaks in strings, so the first line break ends the head.
    head = json.dumps([k.to_json() for k in code.kernels])
    return head.encode() + b"\n" + code.object


def deserialize_kernel(packed: bytes) -> tuple[bytes, list[device.DeviceKernel]]:
    """Split a cache entry into its object code and its device kernels."""
    head, _, object_code = packed.partition(b"\n")
    return object_code, [device.DeviceKernel.from_json(row) for row in json.loads(head)]


def get_code_generator(target: Target, what: str) -> CodeGenerator:
    """Return the code generator of a target.

    Raises:
        CompileError: if the generator cannot be used; the message names `what`.
    """
    target.check_usable(what)
    generator = CODE_GENERATORS[target.kind.name]
    generator.check(target, what)
    return generator


def _prim_funcs(program: PrimFunc | IRModule, name: str | None) -> list[PrimFunc]:
    """Return the loop programs to build, each with the symbol under which it is exported."""
    if isinstance(program, PrimFunc):
        return [_with_global_symbol(program, name or program.name)]
    by_name = {g.name_hint: f for g, f in program.functions.items()}
    funcs = [
        _with_global_symbol(f, _global_symbol(f, hint))
        for hint, f in by_name.items()
        if isinstance(f, PrimFunc)
    ]
    if len(funcs) != len(by_name) or not funcs:
        non_prim_funcs = sorted(n for n, f in by_name.items() if not isinstance(f, PrimFunc))
        raise CompileError(
            "build: expected a module of PrimFuncs, got "
            f"{', '.join(non_prim_funcs) or 'an empty one'}; "
            "ekiden.compile takes Relay functions"
        )
    symbols: dict[str, str] = {}
    for func, hint in zip(funcs, by_name, strict=True):
        first_name = symbols.setdefault(func.name, hint)
        if first_name != hint:
            raise CompileError(
                f"build: '{first_name}' and '{hint}' are both exported as '{func.name}', by their "
                "attribute global_symbol: give each its own"
            )
    return funcs


def _global_symbol(func: PrimFunc, name: str) -> str:
    return str((func.attrs or {}).get("global_symbol", name))


def _with_global_symbol(func: PrimFunc, name: str) -> PrimFunc:
    return func.with_fields(attrs={**(func.attrs or {}), "global_symbol": name})


def _cache_key(func: PrimFunc, target: Target, generator: CodeGenerator) -> str:
    """Return the cache key of a function's code: digest of the function, the target and the code
    generator's version. Names are part of it because error messages show them.
    """
    dims = [v.name for b in func.buffers for v in free_vars(*b.shape)]
    names = [func.name, *(b.name for b in func.params), *dims]
    return kernel_key(func, target, generator.version(), *names)


@dump_if_requested("build")
def build(
    program: PrimFunc | IRModule,
    target: TargetLike | None = None,
    *,
    name: str | None = None,
    cache: KernelCache | None = None,
    progress: ProgressCallback | None = None,
) -> Module:
    """Compile loop programs: `module["name"]` is a function over tensors, outputs last.

    `program`: a PrimFunc (exported as `name`, by default its own), or a module of them, compiled in
    parallel processes through the cache of kernels. `target`: "llvm" (this machine), "c" (through
    the system's C compiler), or either with options; None is the current target.
    `module.get_source("ll" | "asm" | "c")` shows the code. With EKIDEN_DEBUG_DIR set, the code is a
    shared library there with debug lines, which gdb and perf show. What is built for another
    machine is exported, and loaded there; calling it here is a LoadError.

    Raises CompileError for anything else than loop programs, and for a target without a code
    generator; ScheduleError and InternalError where lowering fails. TVM: `tvm.build(mod, target)`.
    """
    if not isinstance(program, (PrimFunc, IRModule)):
        raise CompileError(
            f"build: expected a PrimFunc or an IRModule, got {type(program).__name__}"
        )
    chosen = with_context_bounds(target_or_current(target))
    generator = get_code_generator(chosen, "build")
    funcs = _prim_funcs(program, name)
    folder = environment.debug_dir()
    # Debug builds bypass the cache, because cached objects carry no line tables.
    if folder is None or chosen.kind.has_threads:
        tasks = [_compile_task(f, chosen, generator) for f in funcs]
        compiled = compile_tasks(tasks, cache or KernelCache.default(), progress)
        module = _link_module(
            [deserialize_kernel(packed) for packed in compiled.values()], funcs, chosen
        )
    else:
        lowered = [tir_transform.lower(f, chosen) for f in funcs]
        module = debug_library.build_debug_library(
            lowered, folder, lambda path, lines: generator.debug(lowered, chosen, path, lines)
        )
    shown = generator.sources(chosen)
    module.sources = {n: partial(_get_source, show, funcs, chosen) for n, show in shown.items()}
    return module


def _link_module(
    unpacked: Sequence[tuple[bytes, list[device.DeviceKernel]]],
    funcs: Sequence[PrimFunc],
    target: Target,
) -> Module:
    """Link the host objects of a program and import its device kernels into the resulting module.
    Code for another machine is held unloaded, so that it can be exported.
    """
    objects = [code for code, _ in unpacked]
    image = llvm.link_image(objects, [f.name for f in funcs], target.code_host)
    module = get_global_func("ek.image.hold")(tensor(np.frombuffer(image, np.uint8)))
    assert isinstance(module, Module)
    kernels = [kernel for _, device_kernels in unpacked for kernel in device_kernels]
    if kernels:
        module.import_module(load_device_code(device.pack_kernels(kernels)))
    return module


def _get_source(
    show: Callable[[Sequence[PrimFunc], Target], str], funcs: Sequence[PrimFunc], target: Target
) -> str:
    if target.kind.has_threads:
        return show(funcs, target)
    return show([tir_transform.lower(f, target) for f in funcs], target)


def _compile_task(func: PrimFunc, target: Target, generator: CodeGenerator) -> CompileTask:
    key = _cache_key(func, target, generator)
    # a program's extensions, such as lowering rules of intrinsics, exist in this process only
    return CompileTask(
        key, func.name, _compile_and_serialize, (func, target), is_local=has_extensions()
    )


def _compile_and_serialize(func: PrimFunc, target: Target) -> bytes:
    return serialize_kernel(compile_function(func, target))
