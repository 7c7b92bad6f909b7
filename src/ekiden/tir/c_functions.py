"""Calls of the process's C functions by symbol, for the interpreter of loop programs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from ekiden.runtime.errors import RunError

_CTYPES_BY_DTYPE: dict[str, type[ctypes._SimpleCData[Any]]] = {
    "bool": ctypes.c_bool,
    "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint8": ctypes.c_uint8, "uint16": ctypes.c_uint16, "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float, "float64": ctypes.c_double,
    "handle": ctypes.c_void_p,
}  # fmt: skip


def call_c(name: str, result: str, kinds: Sequence[str], *args: object) -> object:
    """Call a C function of this process by its symbol and return its result.

    Args:
        name: its symbol.
        result: the dtype that it returns.
        kinds: the dtypes of its arguments; "handle" is the address of an array's first element, or
            a text.
        args: a number, an array or a text for each.

    Raises RunError where the process has no such function, or C no such type.
    """
    unknown = [kind for kind in (result, *kinds) if kind not in _CTYPES_BY_DTYPE]
    if unknown:
        raise RunError(f"call_extern {name!r}: C has no type for {unknown[0]}")
    try:
        function = ctypes.CDLL(None)[name]
    except AttributeError:
        raise RunError(f"call_extern: no C function {name!r} is loaded") from None
    function.restype = _CTYPES_BY_DTYPE[result]
    function.argtypes = [_CTYPES_BY_DTYPE[kind] for kind in kinds]
    return function(*map(_ctypes_argument, args))


def _ctypes_argument(value: object) -> object:
    """Convert an argument to the form that ctypes accepts."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value.ctypes.data
    if isinstance(value, str):
        return ctypes.cast(ctypes.c_char_p(value.encode()), ctypes.c_void_p)
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value
