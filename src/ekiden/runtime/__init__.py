"""Runtime: run compiled programs from Python; tensors, functions, modules, executables and the
virtual machine.

This is the deployment package: it loads and runs what Ekiden compiled, and imports neither the
compiler nor anything the compiler needs. What running a model does not need is loaded when it is
first used.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach
from ekiden.runtime.artifact import archive, late_bound  # noqa: F401  # registers functions
from ekiden.runtime.binding._core import (
    ADT,
    DataType,
    Device,
    Executable,
    Module,
    PackedFunc,
    Ref,
    Shape,
    Tensor,
    VirtualMachine,
    WeakRef,
    allocation_count,
    close_sandbox,
    convert,
    convert_to_function,
    cpu,
    define_node_class,
    device,
    empty,
    error_from,
    fields_of,
    from_dlpack,
    get_global_func,
    is_defined,
    is_node_type,
    kind_of_error,
    list_global_func_names,
    load_device_code,
    load_image,
    load_module,
    make_node,
    module_from_bytes,
    num_threads,
    object_class,
    register_error,
    register_func,
    register_object,
    registered_callables,
    remove_global_func,
    run_arguments,
    sandbox_lack,
    serve_session,
    service_address,
    set_node_hooks,
    start_session,
    structural_equal,
    structural_hash,
    tensor,
    trim_pools,
    wait_for,
)
from ekiden.runtime.binding._core import Shape as ShapeTuple
from ekiden.runtime.binding.objects import Object
from ekiden.runtime.devices import engines  # noqa: F401  # registers functions

if TYPE_CHECKING:
    from ekiden.runtime import container, executor, vm  # noqa: F401
    from ekiden.runtime import ndarray as nd  # noqa: F401
    from ekiden.runtime.artifact.graph_json import load_json, save_json
    from ekiden.runtime.devices.device_constructors import (
        check_devices,
        cl,
        cuda,
        enabled,
        ext_dev,
        gpu,
        hexagon,
        metal,
        mtl,
        opencl,
        rocm,
        vpi,
        vulkan,
        webgpu,
    )
    from ekiden.runtime.devices.memory import (
        MemoryStats,
        memory_limit,
        memory_stats,
        reset_peak_memory,
    )
    from ekiden.runtime.ndarray import NDArray
    from ekiden.runtime.object_path import ObjectPath
    from ekiden.runtime.params import (
        load_param_dict,
        load_param_dict_from_file,
        load_params,
        save_param_dict,
        save_param_dict_to_file,
        save_params,
    )
    from ekiden.runtime.paths import cmake_dir, include_dir, library_path, static_library_path
    from ekiden.runtime.profile.timing import BenchmarkResult

__all__ = [
    "ADT",
    "BenchmarkResult",
    "DataType",
    "Device",
    "Executable",
    "MemoryStats",
    "Module",
    "NDArray",
    "Object",
    "ObjectPath",
    "PackedFunc",
    "Ref",
    "Shape",
    "ShapeTuple",
    "Tensor",
    "VirtualMachine",
    "WeakRef",
    "allocation_count",
    "check_devices",
    "cl",
    "close_sandbox",
    "cmake_dir",
    "convert",
    "convert_to_function",
    "cpu",
    "cuda",
    "define_node_class",
    "device",
    "empty",
    "enabled",
    "error_from",
    "ext_dev",
    "fields_of",
    "from_dlpack",
    "get_global_func",
    "gpu",
    "hexagon",
    "include_dir",
    "is_defined",
    "is_node_type",
    "kind_of_error",
    "library_path",
    "list_global_func_names",
    "load_device_code",
    "load_image",
    "load_json",
    "load_module",
    "load_param_dict",
    "load_param_dict_from_file",
    "load_params",
    "make_node",
    "memory_limit",
    "memory_stats",
    "metal",
    "module_from_bytes",
    "mtl",
    "num_threads",
    "object_class",
    "opencl",
    "register_error",
    "register_func",
    "register_object",
    "registered_callables",
    "remove_global_func",
    "reset_peak_memory",
    "rocm",
    "run_arguments",
    "sandbox_lack",
    "save_json",
    "save_param_dict",
    "save_param_dict_to_file",
    "save_params",
    "serve_session",
    "service_address",
    "set_node_hooks",
    "start_session",
    "static_library_path",
    "structural_equal",
    "structural_hash",
    "tensor",
    "trim_pools",
    "vpi",
    "vulkan",
    "wait_for",
    "webgpu",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "": "artifact binding container debug devices executable executor files module ndarray"
            " object_path params paths profile profiling vm nd:ndarray"
            " expression:artifact.expression flame:profile.flame graph_json:artifact.graph_json"
            " html:profile.html memory:devices.memory opcodes:binding.opcodes"
            " stepping:debug.stepping timing:profile.timing",
            "devices.device_constructors": "check_devices cl cuda enabled ext_dev gpu hexagon metal"
            " mtl opencl rocm vpi vulkan webgpu",
            "artifact.graph_json": "load_json save_json",
            "devices.memory": "MemoryStats memory_limit memory_stats reset_peak_memory",
            "ndarray": "NDArray",
            "object_path": "ObjectPath",
            "params": "load_param_dict load_param_dict_from_file load_params save_param_dict"
            " save_param_dict_to_file save_params",
            "paths": "cmake_dir include_dir library_path static_library_path",
            "profile.timing": "BenchmarkResult",
        },
    )
