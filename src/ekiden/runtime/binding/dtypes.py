"""DLPack data type codes."""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.util import find_spec

import numpy

from ekiden.runtime.binding.layout import DTypeCode
from ekiden.runtime.errors import InternalError

DLPACK_KIND_CODES: dict[str, int] = {
    name: getattr(DTypeCode, name.upper())
    for name in ("int", "uint", "float", "bfloat", "complex", "bool")
}
SMALL_FLOAT_CODES = {
    "float8_e4m3fn": (DTypeCode.FLOAT8_E4M3FN, 8),
    "float8_e4m3fnuz": (DTypeCode.FLOAT8_E4M3FNUZ, 8),
    "float8_e5m2": (DTypeCode.FLOAT8_E5M2, 8),
    "float8_e5m2fnuz": (DTypeCode.FLOAT8_E5M2FNUZ, 8),
    "float8_e8m0fnu": (DTypeCode.FLOAT8_E8M0FNU, 8),
    "float4_e2m1fn": (DTypeCode.FLOAT4_E2M1FN, 4),
}
"""Floats whose name says more than their bits: (code, bits)."""
_DLPACK_KIND_NAMES = {code: name for name, code in DLPACK_KIND_CODES.items()}
_SMALL_FLOAT_NAMES = {code: name for name, (code, _) in SMALL_FLOAT_CODES.items()}


def dtype_code(dtype: str) -> tuple[int, int, int]:
    """Return (code, bits, lanes) of a scalar dtype in NumPy's spelling. InternalError for
    others.
    """
    if dtype == "bool":
        return DLPACK_KIND_CODES["bool"], 8, 1
    if dtype in SMALL_FLOAT_CODES:
        return (*SMALL_FLOAT_CODES[dtype], 1)
    kind = dtype.rstrip("0123456789")
    if kind not in DLPACK_KIND_CODES or kind == dtype:
        raise InternalError(f"a dtype such as 'float32' expected, got {dtype!r}")
    return DLPACK_KIND_CODES[kind], int(dtype[len(kind) :]), 1


def dtype_name(code: int, bits: int, lanes: int) -> str:
    """Return the dtype in NumPy's spelling; vectors add 'xN'."""
    name = _DLPACK_KIND_NAMES.get(code, f"dtype{code}_")
    scalar = _SMALL_FLOAT_NAMES.get(code) or (name if name == "bool" else f"{name}{bits}")
    return scalar if lanes == 1 else f"{scalar}x{lanes}"


def numpy_type(name: str) -> object | None:
    """Return NumPy's or ml_dtypes' scalar type of a dtype name, or None. ml_dtypes has bfloat16 and
    the types below 16 bits; a deployment may lack it.
    """
    scalar_type: object | None = getattr(numpy, name, None)
    return getattr(_ml_dtypes(), name, None) if scalar_type is None else scalar_type


@functools.cache
def _ml_dtypes() -> object | None:
    return import_module("ml_dtypes") if find_spec("ml_dtypes") else None


def missing_numpy_dtype_message(name: str) -> str:
    """Return the error message for a dtype that NumPy does not support, with what to install."""
    small = name in SMALL_FLOAT_CODES or name in ("bfloat16", "int2", "int4", "uint2", "uint4")
    help_text = "; pip install ml_dtypes" if small and _ml_dtypes() is None else ""
    return f"numpy: no such dtype in NumPy: {name}{help_text}"
