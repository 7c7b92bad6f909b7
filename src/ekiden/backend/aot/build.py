"""Compile bytecode functions to native code."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ekiden.backend.aot.native_emitter import NATIVE_SYMBOL_PREFIX, emit_functions
from ekiden.backend.vm.write_executable import VMFunction
from ekiden.codegen import llvm
from ekiden.codegen.parallel import LOCAL_COMPILE_LOCK
from ekiden.ir.pass_context import notify_product
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.target.features import WASM


@dataclass(frozen=True, slots=True)
class NativeObjects:
    """Object code and the names that it exports."""

    objects: tuple[bytes, ...] = ()
    exports: tuple[str, ...] = ()


def compile_native(
    functions: Sequence[VMFunction],
    primitives: Sequence[str],
    kernels: Collection[str],
    target: Target,
    *,
    is_checked: bool = False,
) -> NativeObjects:
    """Compile bytecode functions to object code.

    Args:
        functions: the functions.
        primitives: names of all primitives of the executable.
        kernels: primitives that are linked with the code and called directly; the others are looked
            up in the executable at run time.
        target: the host's target.
        is_checked: the executable uses several devices.

    Returns:
        The objects and the exported names.

    Raises:
        CompileError: for WebAssembly.
    """
    if target.architecture == WASM:
        raise CompileError(f"compile: there is no native code of functions (aot) for {WASM}")
    with LOCAL_COMPILE_LOCK:
        text = emit_functions(functions, primitives, kernels, target, is_checked=is_checked)
        notify_product("native.ll", "the native code of bytecode, as LLVM IR", lambda: text)
        notify_product(
            "native.asm", "the same as assembly", lambda: llvm.ir_to_assembly(text, target)
        )
        code = llvm.compile_ir(text, target)
    return NativeObjects(
        (code,), tuple(NATIVE_SYMBOL_PREFIX + function.name for function in functions)
    )


__all__ = ["NativeObjects", "compile_native"]
