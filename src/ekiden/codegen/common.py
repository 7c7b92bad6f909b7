"""Queries that every code generator makes of a loop program."""

from __future__ import annotations

from collections.abc import Container

from ekiden.codegen.warp_shuffle import is_warp_shuffle
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.prim import (
    Add,
    AnyDim,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Mul,
    PrimExpr,
    SizeVar,
    StringImm,
    Var,
    cast,
    const,
    is_const,
)
from ekiden.runtime.binding.dtypes import dtype_code
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Broadcast, Buffer, BufferAddress, BufferLoad, Ramp
from ekiden.tir.stmt import BufferStore, PrimFunc


def is_nonnegative(e: PrimExpr, positive: Container[Var], depth: int = 12) -> bool:
    """Return whether an index expression is provably >= 0; `positive` are variables that are.
    Non-negative integers divide without the corrections of floor division.
    """

    def is_nonnegative_pair(x: Add | Mul | FloorDiv | Min | Max) -> tuple[bool, bool]:
        """Return for each operand whether it is known to be 0 or more."""
        return is_nonnegative(x.a, positive, depth - 1), is_nonnegative(x.b, positive, depth - 1)

    match e:
        case IntImm():
            return e.value >= 0
        case SizeVar():
            return True
        case Var():
            return e in positive or dt.is_unsigned(e.dtype)
        case Add() | Mul() | FloorDiv() | Min() if depth:
            return all(is_nonnegative_pair(e))
        case FloorMod() if depth:
            # Floor modulo has the sign of the divisor, so the dividend does not matter.
            return is_nonnegative(e.b, positive, depth - 1)
        case Max() if depth:
            return any(is_nonnegative_pair(e))
        case Broadcast() if depth:
            return is_nonnegative(e.value, positive, depth - 1)
        case Ramp() if depth:
            return is_nonnegative(e.base, positive, depth - 1) and is_nonnegative(
                e.stride, positive, depth - 1
            )
    return False


def undefined_symbol_error(generator: str, symbol: Var | Buffer) -> CompileError:
    """Build the CompileError for a variable or buffer that a program uses but does not define."""
    kind = "buffer" if isinstance(symbol, Buffer) else "variable"
    of = "allocated" if isinstance(symbol, Buffer) else "a size of one, nor a loop's"
    return CompileError(f"{generator}: {kind} {symbol.name!r} is no argument, nor {of}")


def not_contiguous_message(label: str) -> str:
    """Return the error message for an argument that is not contiguous."""
    return f"{label} must be contiguous, got strides; copy it first"


def contract_fma(s: BufferStore) -> PrimExpr:
    """Contract `x = x + a * b` in a store to a fused multiply-add. It is the one contraction that
    is always allowed, because every generator lowers reductions the same way.
    """
    update = s.value
    if isinstance(update, Add) and dt.element_dtype(update.dtype) in ("float32", "float64"):
        # Addition commutes: the accumulator may be on either side.
        for old, product in ((update.a, update.b), (update.b, update.a)):
            if isinstance(old, BufferLoad) and old.buffer is s.buffer and isinstance(product, Mul):
                return Intrinsic("fma", (product.a, product.b, old), update.dtype)
    return update


def check_supported_call(e: Intrinsic) -> None:
    """Raise CompileError for a call that no code generator implements."""
    if find_intrinsic(e.op).is_compiled:
        return
    if e.op == "tvm_storage_sync":
        raise CompileError(
            "threads wait for each other, and a processor runs them one after another: build the"
            " schedule for it, not what was lowered for threads"
        )
    if e.op == "tvm_thread_allreduce":
        raise CompileError(
            "threads combine their values, and a processor runs them one after another: build it"
            " for a device"
        )
    called = repr(e.args[0].value) if e.args and isinstance(e.args[0], StringImm) else ""
    hint = "; threads of devices that have warps make it" if is_warp_shuffle(e) else ""
    raise CompileError(f"no code generator has the call {e.op} {called}".rstrip() + hint)


def value_arguments(e: Intrinsic) -> tuple[PrimExpr, ...]:
    """Return the value arguments of a call, without strings and buffer addresses, whose indices are
    evaluated with the call.
    """
    return tuple(a for a in e.args if not isinstance(a, (StringImm, BufferAddress)))


def extern_symbol(e: Intrinsic, generator: str) -> str:
    """Return the symbol of the C function that a call names. Raises CompileError for what is no C
    identifier, and for types that C cannot pass."""
    name = e.args[0].value if e.args and isinstance(e.args[0], StringImm) else ""
    if not (name.isidentifier() and name.isascii()) or len(name) > MAX_SYMBOL_CHARS:
        raise CompileError(
            f"{generator}: {e.op}: expected the name of a C function first, got {name or e!r}"
        )
    for dtype in (e.dtype, *(a.dtype for a in e.args[1:])):
        if dtype != "handle" and dt.element_dtype(dtype) not in _C_TYPES:
            raise CompileError(f"{generator}: {e.op} {name!r}: C has no type for {dtype}")
    return name


MAX_SYMBOL_CHARS = 200
"""Maximum length of a C symbol; the image loader keeps it on its stack."""
_C_TYPES = frozenset(
    ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
     "float32", "float64")
)  # fmt: skip


def pack_dtype(dtype: str) -> int:
    """Return a one-lane DLDataType as the 32-bit integer that it is in memory."""
    code, bits, _ = dtype_code(dt.element_dtype(dtype))
    # DLPack: the code is byte 0, the bits are byte 1, and the lanes, here 1, bytes 2 and 3.
    return code | bits << 8 | 1 << 16


@dataclass(frozen=True, slots=True)
class ShapeCheck:
    """Shape check of dimension `axis` of argument `index`: it binds the variable `extent`, or must
    equal it, else ValueError with `message`.
    """

    index: int
    axis: int
    extent: PrimExpr
    binds_var: bool
    message: str


def argument_label(func: PrimFunc, index: int, param: Buffer | Var) -> str:
    """Return the name of an argument for messages."""
    return f"{func.name}: argument {index} ({param.name})"


def expected_scalar(param: Var, func: PrimFunc) -> str:
    """Return the expected kind of a scalar parameter for messages: "an integer" or "a number".

    Raises:
        CompileError: for a pointer (callers need not share the memory layout), a vector, or a dtype
            that processors do not compute with.
    """
    if dt.is_byte_stored(dt.element_dtype(param.dtype)) or dt.lanes(param.dtype) > 1:
        raise CompileError(
            f"{func.name}: parameter {param.name!r} is {param.dtype}; numbers that are passed are"
            " bool, integers of 8 to 64 bits or floats of 16 to 64; a buffer may hold it"
        )
    if param.dtype == "handle":
        raise CompileError(
            f"{func.name}: parameter {param.name!r} is an address; compiled functions take buffers"
            " (T.match_buffer) and numbers"
        )
    return "a number" if dt.is_float(param.dtype) else "an integer"


def out_of_range_message(param: Var) -> str:
    """Return the error message for an integer that its parameter's dtype cannot represent."""
    return f"must fit {param.dtype}"


def shape_checks(func: PrimFunc) -> list[ShapeCheck]:
    """Return the shape checks of a function's entry: first all that bind variables."""
    # Scalar parameters are bound before any dimension, so that dimensions only check them.
    bound: set[Var] = set(func.scalars)
    binding: list[ShapeCheck] = []
    checked: list[ShapeCheck] = []
    for i, buffer in enumerate(func.params):
        if isinstance(buffer, Var):
            continue
        for axis, extent in enumerate(buffer.shape):
            if isinstance(extent, AnyDim):
                continue
            # The first dimension that mentions a variable defines it, later ones must be equal.
            if isinstance(extent, Var) and extent not in bound:
                bound.add(extent)
                binding.append(ShapeCheck(i, axis, extent, True, ""))
                continue
            message = (
                f"{func.name}: argument {i}: dimension {axis} must be {_format_extent(extent)}"
            )
            checked.append(ShapeCheck(i, axis, extent, False, message))
    return binding + checked


def _format_extent(extent: PrimExpr) -> str:
    if isinstance(extent, IntImm):
        return str(extent.value)
    return extent.name if isinstance(extent, Var) else "a function of the other dimensions"


def in_place_params(func: PrimFunc) -> tuple[int, ...]:
    """Return the indices of the parameters that may alias the last one, the output (attribute
    `tir.in_place`).
    """
    indices = (func.attrs or {}).get("tir.in_place", ())
    assert isinstance(indices, tuple)
    return tuple(int(str(n)) for n in indices)


DEVICE_TYPE_ATTR = "tir.device_type"
"""Attribute of host functions that launch kernels: the DLPack device type of their arguments and
buffers.
"""
DEVICE_ID_VAR = Var("device_id", "int64")
"""Variable with the device id of the first argument in such host functions."""


def device_type_of(func: PrimFunc) -> int | None:
    """Return DLPack's device type on which a host function launches kernels, or None."""
    device_type = (func.attrs or {}).get(DEVICE_TYPE_ATTR)
    return int(str(device_type)) if device_type is not None else None


def is_device_argument(func: PrimFunc, buffer: Buffer) -> bool:
    """Return whether an argument of a host function must be in device memory. Only the shape of an
    argument without elements is read, unless all arguments are empty.
    """
    return not _is_empty(buffer) or all(map(_is_empty, func.buffers))


def _is_empty(buffer: Buffer) -> bool:
    return any(is_const(d, 0) for d in buffer.shape)


FLUSH_SUBNORMALS_ATTR = "tir.flush_subnormals"
"""Attribute of functions that flush subnormal numbers to zero."""


def flushes_subnormals(func: PrimFunc) -> bool:
    """Return whether a function flushes subnormal numbers to zero."""
    return bool((func.attrs or {}).get(FLUSH_SUBNORMALS_ATTR))


BOUNDS_ERROR_KIND = "BoundsError"
"""Error kind of an out-of-bounds access."""


def buffer_address_args(e: Intrinsic) -> list[Buffer]:
    """Return the buffers of a call whose arguments are all addresses of whole buffers. Raises
    InternalError for another argument.
    """
    buffers = [a.buffer for a in e.args if isinstance(a, BufferAddress) and not a.indices]
    if len(buffers) != len(e.args):
        raise InternalError(f"{e.op}: addresses of whole buffers expected, got {e!r}")
    return buffers


def shuffle_indices(e: Intrinsic) -> list[int]:
    """Return the element indices of a shuffle."""
    return [a.value for a in e.args[2:] if isinstance(a, IntImm)]


def flat_buffer_extent(buffer: Buffer) -> PrimExpr:
    """Return the number of elements from a buffer's first to its last one, strides included."""
    extent: PrimExpr = const(1)
    if buffer.strides:
        for size, stride in zip(buffer.shape, buffer.strides, strict=True):
            # The last element is at offset sum((size - 1) * stride).
            extent = extent + (cast(size, "int64") - 1) * cast(stride, "int64")
        return extent
    for size in buffer.shape:
        extent = extent * cast(size, "int64")
    return extent


def check_lanes(access: str, buffer: Buffer, index: PrimExpr, dtype: str) -> None:
    """Raise InternalError for an access of more or fewer elements than its index has lanes.

    `bounds="check"` and masks look at the lanes of an index alone: neither would see such an
    access, and it would write past its buffer. A vector of a buffer of vectors is one element. The
    error names the buffer.
    """
    # An index counts elements of the buffer, which may be vectors themselves.
    lanes, held = dt.lanes(index.dtype), dt.lanes(buffer.dtype)
    if dt.lanes(dtype) != lanes * held:
        raise InternalError(
            f"{access} {buffer.name!r} is of {dtype} at an index of {lanes} lanes: {index!r}"
        )


def bounds_error_format(kernel: str, buffer: Buffer) -> str:
    """Return the message of a bounds error, a printf format of the index and the extent."""
    text = f"kernel '{kernel}': access of buffer '{buffer.name}' at index "
    return text.replace("%", "%%") + "%lld of %lld elements"
