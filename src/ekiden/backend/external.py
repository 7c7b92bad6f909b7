"""External compilers (BYOC) and their registry, for the functions that PartitionGraph outlined.

    def for_test(function):                  # a relay.Function with global_symbol
        def kernel(*tensors): ...            # the inputs, then the tensors it writes
        return kernel

    register_external("test", for_test)

An executable stores the result of `ExternalCompiler.compile`; loading the executable creates a
kernel from it. `ekiden.byoc` serves engines that compile to bytes. Only modules that a user has
annotated and partitioned have such functions; the default pipeline creates none.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.json import load_json, save_json
from ekiden.ir.structural import structural_digest
from ekiden.ir.user_extensions import record_extension
from ekiden.relay.expr import Function
from ekiden.relay.transform.memory.manifest_alloc import flatten_tensor_types
from ekiden.runtime import Module, get_global_func, register_func
from ekiden.runtime.devices.engines import ENGINE_FOLDERS, read_region, wrap_region
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

ExternalKernel = Callable[..., object]
"""Function that computes a region from its input and output tensors."""
ExternalCodegen = Callable[[Function], ExternalKernel]


@dataclass(frozen=True, slots=True)
class ExternalCompiler:
    """External compiler, which compiles a function to the text that an executable stores."""

    compile: Callable[[Function], str]


_EXTERNAL_COMPILERS: dict[str, ExternalCompiler] = {}


def register_external(compiler: str, codegen: ExternalCodegen) -> None:
    """Register the code generator of an external compiler, replacing an earlier one.

    Executables that need it can be loaded from then on: they keep the functions, and have them
    compiled when they are loaded.
    """
    record_extension(codegen)

    def load_kernel(symbol: str, metadata: str) -> ExternalKernel:
        """Compile a function that an executable stores as JSON and return its kernel."""
        function = load_json(read_region(symbol, metadata))
        assert isinstance(function, Function)
        return wrap_region(compiler, symbol, codegen(function))

    register_func(f"ek.external.{compiler}", load_kernel, override=True)
    register_compiler(compiler, ExternalCompiler(save_json))


def register_compiler(name: str, external: ExternalCompiler) -> None:
    """Register an external compiler, whose global function ek.external.<name> loads its kernels."""
    _EXTERNAL_COMPILERS[name] = external


def _register_tvm_codegen(compiler: str) -> bool:
    """Register the global function relay.ext.<compiler> as code generator if it exists; return
    whether it does.
    """
    make = get_global_func(f"relay.ext.{compiler}", allow_missing=True)
    if make is None:
        return False

    def compile_with_tvm_codegen(function: Function) -> ExternalKernel:
        """Return the function of the symbol in the module that TVM's generator returns. Raises
        CompileError for another result.
        """
        symbol, module = str(function.attr("global_symbol")), make(function)
        if not isinstance(module, Module):
            type_name = type(module).__name__
            raise CompileError(f"relay.ext.{compiler}: it should give a module, got {type_name}")
        return module.get_function(symbol)

    register_external(compiler, compile_with_tvm_codegen)
    return True


def is_external_function(function: Function) -> bool:
    """Return whether a function is for an external compiler."""
    return function.attr("Compiler") is not None


def build_external(function: Function) -> tuple[str, list[str | int]]:
    """Compile a function externally. Return its name in the executable, the symbol with a digest so
    that programs do not collide, and what the executable stores: the compiler's name, a text and,
    of an engine without a library of Ekiden's, the number of its results. Raises CompileError if
    its compiler is not registered.
    """
    compiler, symbol = str(function.attr("Compiler")), str(function.attr("global_symbol"))
    if compiler not in _EXTERNAL_COMPILERS and not _register_tvm_codegen(compiler):
        registered = ", ".join(sorted(_EXTERNAL_COMPILERS)) or "none is"
        raise CompileError(
            f"function {symbol!r} is for the external compiler {compiler!r}, which has no code "
            f"generator (registered: {registered}); register one with backend.external."
            f"register_external, as the global function relay.ext.{compiler} or with "
            "byoc.register, or bring the function back with "
            "relay.transform.Inline() and DefuseOps()"
        )
    name = f"{symbol}_{structural_digest(function)[:12]}"
    artifact: list[str | int] = [compiler, _EXTERNAL_COMPILERS[compiler].compile(function)]
    if compiler not in ENGINE_FOLDERS:
        artifact.append(len(flatten_tensor_types(function.body.checked_type)))
    return name, artifact
