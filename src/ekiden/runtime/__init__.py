"""The runtime: tensors, functions, modules, executables and the virtual machine.

This is the deployment package: it loads and runs what Ekiden compiled, and imports neither the
compiler nor anything the compiler needs.
"""

from ekiden.runtime._core import (
    ADT,
    Device,
    Executable,
    Module,
    Object,
    PackedFunc,
    Tensor,
    VirtualMachine,
    allocation_count,
    convert_to_function,
    empty,
    from_dlpack,
    get_global_func,
    list_global_func_names,
    load_image,
    load_module,
    num_threads,
    pool_stats,
    register_func,
    register_object,
    remove_global_func,
    service_address,
    tensor,
    trim_pools,
)
from ekiden.runtime.paths import include_dir, library_path

__all__ = [
    "ADT",
    "Device",
    "Executable",
    "Module",
    "Object",
    "PackedFunc",
    "Tensor",
    "VirtualMachine",
    "allocation_count",
    "convert_to_function",
    "empty",
    "from_dlpack",
    "get_global_func",
    "include_dir",
    "library_path",
    "list_global_func_names",
    "load_image",
    "load_module",
    "num_threads",
    "pool_stats",
    "register_func",
    "register_object",
    "remove_global_func",
    "service_address",
    "tensor",
    "trim_pools",
]
