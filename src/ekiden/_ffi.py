"""The functions and types of the runtime under the module that TVM has them in."""

from ekiden.runtime import (
    DataType,
    Device,
    convert,
    get_global_func,
    list_global_func_names,
    register_error,
    register_func,
    register_object,
    remove_global_func,
)

__all__ = [
    "DataType",
    "Device",
    "convert",
    "get_global_func",
    "list_global_func_names",
    "register_error",
    "register_func",
    "register_object",
    "remove_global_func",
]
