"""Functions and types of the runtime at TVM's module path."""

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
