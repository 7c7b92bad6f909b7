"""Ekiden compiles deep-learning models to native code and runs them.

    exe = ekiden.compile("model.onnx")
    y = exe(x)

Names are loaded when they are first used, so that `import ekiden` takes no time and a program that
only runs compiled models never loads the compiler.
"""

from importlib import import_module
from time import time_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ekiden.compiler.compile import compile, export
    from ekiden.compiler.lowering import build, lower
    from ekiden.compiler.quantize import quantize
    from ekiden.compiler.verify import verify
    from ekiden.error import TVMError
    from ekiden.ir.json import load_json, save_json
    from ekiden.ir.module import IRModule
    from ekiden.ir.structural import structural_equal, structural_hash
    from ekiden.runtime import (
        DataType,
        Object,
        PackedFunc,
        Tensor,
        VirtualMachine,
        cl,
        convert,
        cpu,
        cuda,
        device,
        ext_dev,
        from_dlpack,
        get_global_func,
        gpu,
        hexagon,
        list_global_func_names,
        load_params,
        metal,
        mtl,
        nd,
        opencl,
        register_error,
        register_func,
        register_object,
        remove_global_func,
        rocm,
        save_params,
        tensor,
        vpi,
        vulkan,
        webgpu,
    )
    from ekiden.runtime.errors import (
        CompileError,
        EkidenError,
        ImportModelError,
        InputError,
        InternalError,
        LoadError,
        ParseError,
        RunError,
        ScheduleError,
        TypeInferenceError,
        UnsupportedError,
    )
    from ekiden.runtime.executable.executable import Executable
    from ekiden.runtime.executable.loading import load

__version__ = "0.1.0"
IMPORTED_NS = time_ns()
"""When this process began to import Ekiden: sources that changed later are not all that runs."""

__all__ = [
    "CompileError",
    "DataType",
    "EkidenError",
    "Executable",
    "IRModule",
    "ImportModelError",
    "InputError",
    "InternalError",
    "LoadError",
    "Object",
    "PackedFunc",
    "ParseError",
    "RunError",
    "ScheduleError",
    "TVMError",
    "Tensor",
    "TypeInferenceError",
    "UnsupportedError",
    "VirtualMachine",
    "__version__",
    "build",
    "cl",
    "compile",
    "convert",
    "cpu",
    "cuda",
    "device",
    "export",
    "ext_dev",
    "from_dlpack",
    "get_global_func",
    "gpu",
    "hexagon",
    "list_global_func_names",
    "load",
    "load_json",
    "load_params",
    "lower",
    "metal",
    "mtl",
    "nd",
    "opencl",
    "quantize",
    "register_error",
    "register_func",
    "register_object",
    "remove_global_func",
    "rocm",
    "save_json",
    "save_params",
    "structural_equal",
    "structural_hash",
    "tensor",
    "verify",
    "vpi",
    "vulkan",
    "webgpu",
]

_ERRORS = "ekiden.runtime.errors"
_DEFINING_MODULES = {
    "build": "ekiden.compiler.lowering",
    "lower": "ekiden.compiler.lowering",
    "compile": "ekiden.compiler.compile",
    "export": "ekiden.compiler.compile",
    "load": "ekiden.runtime.executable.loading",
    "quantize": "ekiden.compiler.quantize",
    "verify": "ekiden.compiler.verify",
    "Executable": "ekiden.runtime.executable.executable",
    "IRModule": "ekiden.ir.module",
    "Tensor": "ekiden.runtime",
    "VirtualMachine": "ekiden.runtime",
    "from_dlpack": "ekiden.runtime",
    "tensor": "ekiden.runtime",
    "Object": "ekiden.runtime",
    "TVMError": "ekiden.error",
    "PackedFunc": "ekiden.runtime",
    "DataType": "ekiden.runtime",
    "convert": "ekiden.runtime",
    "cpu": "ekiden.runtime",
    **dict.fromkeys(
        "cl cuda ext_dev gpu hexagon metal mtl opencl rocm vpi vulkan webgpu".split(),
        "ekiden.runtime",
    ),
    "device": "ekiden.runtime",
    "get_global_func": "ekiden.runtime",
    "list_global_func_names": "ekiden.runtime",
    "load_json": "ekiden.ir.json",
    "save_json": "ekiden.ir.json",
    "load_params": "ekiden.runtime",
    "save_params": "ekiden.runtime",
    "nd": "ekiden.runtime",
    "register_error": "ekiden.runtime",
    "register_func": "ekiden.runtime",
    "register_object": "ekiden.runtime",
    "remove_global_func": "ekiden.runtime",
    "structural_equal": "ekiden.ir.structural",
    "structural_hash": "ekiden.ir.structural",
}
_FOLDERS = frozenset(
    "_ffi arith auto_scheduler autotvm backend byoc codegen compiler container contrib driver error"
    " frontend instrument ir kernels meta_schedule micro parser relay rpc runtime script support"
    " target te testing tir topi transform tune".split()
)


def __getattr__(name: str) -> object:
    """Load a public name or subpackage on first use."""
    if name in _FOLDERS:
        return _module(f"ekiden.{name}", name)
    if name not in __all__:
        raise AttributeError(f"module 'ekiden' has no attribute {name!r}")
    value: object = getattr(_module(_DEFINING_MODULES.get(name, _ERRORS), name), name)
    globals()[name] = value
    return value


def _module(home: str, name: str) -> object:
    """Import the module that defines a public name. Raises MissingCompilerError if the compiler is
    not installed.
    """
    try:
        return import_module("ekiden._lazy").load_module(home)
    except ModuleNotFoundError:
        return import_module("ekiden.runtime.compiler_import").compiler_module(
            home, f"ekiden.{name}"
        )


def __dir__() -> list[str]:
    """Return the public names and subpackages."""
    return sorted(_FOLDERS.union(__all__))
