"""Layouts and numbers of the C runtime, for Python that writes code and reads bytes.

Generated from the headers by scripts/generate_layout.py, and held by the C compiler in
runtime/src/ek_layout.c. Do not edit.
"""

from enum import IntEnum


class Object:
    """Struct layout of ek_object: its size and member offsets in bytes."""

    BYTES = 24
    REFS = 0
    TYPE_INDEX = 8
    PAD = 12
    DELETER = 16


class DType:
    """Struct layout of ek_dtype: its size and member offsets in bytes."""

    BYTES = 4
    CODE = 0
    BITS = 1
    LANES = 2


class Device:
    """Struct layout of ek_device: its size and member offsets in bytes."""

    BYTES = 8
    TYPE = 0
    ID = 4


class Value:
    """Struct layout of ek_value: its size and member offsets in bytes."""

    BYTES = 16
    TYPE_INDEX = 0
    SMALL_LEN = 4
    V = 8


class Function:
    """Struct layout of ek_function: its size and member offsets in bytes."""

    BYTES = 40
    BASE = 0
    CALL = 24
    CPP_CALL = 32


class ADT:
    """Struct layout of ek_adt: its size and member offsets in bytes."""

    BYTES = 32
    BASE = 0
    TAG = 24
    SIZE = 28
    FIELDS = 32


class DLTensor:
    """Struct layout of ek_dltensor: its size and member offsets in bytes."""

    BYTES = 48
    DATA = 0
    DEVICE = 8
    NDIM = 16
    DTYPE = 20
    SHAPE = 24
    STRIDES = 32
    BYTE_OFFSET = 40


class DLTensor32:
    """Struct layout of ek_dltensor with 4-byte pointers: its size and member offsets in bytes."""

    BYTES = 40
    DATA = 0
    DEVICE = 4
    NDIM = 12
    DTYPE = 16
    SHAPE = 20
    STRIDES = 24
    BYTE_OFFSET = 32


class Tensor:
    """Struct layout of ek_tensor: its size and member offsets in bytes."""

    BYTES = 104
    BASE = 0
    DL = 24
    FLAGS = 72
    OWNER = 80
    DISPOSE = 88
    MANAGED = 96
    DIMS = 104


class Native:
    """Struct layout of ek_native: its size and member offsets in bytes."""

    BYTES = 48
    CODE = 0
    POINTS = 8
    CONSTANTS = 16
    LINKED = 24
    RUN = 32
    OWNER = 40


class Native32:
    """Struct layout of ek_native with 4-byte pointers: its size and member offsets in bytes."""

    BYTES = 24
    CODE = 0
    POINTS = 4
    CONSTANTS = 8
    LINKED = 12
    RUN = 16
    OWNER = 20


class TypeIndex:
    """Type indices of ek_value, numbered as in runtime.h."""

    ANY = -1
    NONE = 0
    INT = 1
    BOOL = 2
    FLOAT = 3
    OPAQUE_PTR = 4
    DTYPE = 5
    DEVICE = 6
    DLTENSOR_PTR = 7
    RAW_STR = 8
    BYTE_ARRAY_PTR = 9
    OBJECT_RVALUE_REF = 10
    SMALL_STR = 11
    SMALL_BYTES = 12
    OBJECT = 64
    STR = 65
    BYTES = 66
    ERROR = 67
    FUNCTION = 68
    SHAPE = 69
    TENSOR = 70
    ARRAY = 71
    MAP = 72
    MODULE = 73
    DYNAMIC = 128
    STORAGE = 128
    ADT = 129
    CLOSURE = 130
    EXECUTABLE = 131
    VM = 132
    REFERENCE = 133
    FIRST_FREE = 134


class DTypeCode:
    """Type codes of ek_dtype, numbered as in runtime.h."""

    INT = 0
    UINT = 1
    FLOAT = 2
    OPAQUE = 3
    BFLOAT = 4
    COMPLEX = 5
    BOOL = 6
    FLOAT8_E3M4 = 7
    FLOAT8_E4M3 = 8
    FLOAT8_E4M3B11FNUZ = 9
    FLOAT8_E4M3FN = 10
    FLOAT8_E4M3FNUZ = 11
    FLOAT8_E5M2 = 12
    FLOAT8_E5M2FNUZ = 13
    FLOAT8_E8M0FNU = 14
    FLOAT6_E2M3FN = 15
    FLOAT6_E3M2FN = 16
    FLOAT4_E2M1FN = 17


class DeviceType:
    """Device types, numbered as in runtime.h."""

    CPU = 1
    CUDA = 2
    OPENCL = 4


class Section(IntEnum):
    """Section kinds of an artifact, numbered as in ek_executable.c."""

    GLOBALS = 1
    CONSTANTS = 2
    PRIMITIVES = 3
    CODE = 4
    IMAGE = 5
    METADATA = 6
    DEVICES = 7
    TYPES = 8
    DERIVED = 9
    DEVICE_CODE = 10


class TypeWord:
    """Words of an encoded type, numbered as in ek_signature.h."""

    ANY = 0
    TENSOR = 1
    TUPLE = 2


class TypeLimit:
    """Limits of encoded types, numbered as in ek_signature.h."""

    NESTING = 16
    STACK = 16


class DimWord:
    """Words of an encoded dimension, numbered as in ek_signature.h."""

    CONST = 0
    SYMBOL = 1
    ADD = 2
    SUB = 3
    MUL = 4
    FLOORDIV = 5
    FLOORMOD = 6
    MIN = 7
    MAX = 8


class Event:
    """Event kinds of a profile, numbered as in ek_vm_step.h."""

    CALL = 0
    ENTER = 1
    LEAVE = 2
    PLACE = 3


SERVICES = (
    "ek_call_packed",
    "ek_device_workspace_alloc",
    "ek_device_workspace_free",
    "ek_kernel_error",
    "ek_kernel_error_values",
    "ek_parallel_for",
    "ek_workspace_alloc",
    "ek_workspace_free",
    "ek_value_drop",
    "memcpy",
    "memmove",
    "memset",
    "ek_native_choose",
    "ek_native_poll",
    "ek_object_release",
)
"""Runtime functions that compiled code may import."""

ABI_SERVICES = (
    "__aeabi_d2lz",
    "__aeabi_d2ulz",
    "__aeabi_f2lz",
    "__aeabi_f2ulz",
    "__aeabi_idiv",
    "__aeabi_idivmod",
    "__aeabi_l2d",
    "__aeabi_l2f",
    "__aeabi_ldivmod",
    "__aeabi_uidiv",
    "__aeabi_uidivmod",
    "__aeabi_ul2d",
    "__aeabi_ul2f",
    "__aeabi_uldivmod",
)
"""Run-time ABI helpers that code for Armv7 may import besides."""
