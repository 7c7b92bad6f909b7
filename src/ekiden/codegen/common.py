"""What every code generator asks of a loop program."""

from __future__ import annotations

from collections.abc import Container

from ekiden.codegen.shuffles import is_exchange
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import row_of
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
    """Whether an index expression is certainly >= 0; `positive` are variables that are.

    Integers known to be non-negative divide without the corrections of floor division.
    """

    def both(x: Add | Mul | FloorDiv | Min | Max) -> tuple[bool, bool]:
        return is_nonnegative(x.a, positive, depth - 1), is_nonnegative(x.b, positive, depth - 1)

    match e:
        case IntImm():
            return e.value >= 0
        case SizeVar():
            return True
        case Var():
            return e in positive or dt.is_unsigned(e.dtype)
        case Add() | Mul() | FloorDiv() | Min() if depth:
            return all(both(e))
        case FloorMod() if depth:
            return is_nonnegative(e.b, positive, depth - 1)
        case Max() if depth:
            return any(both(e))
        case Broadcast() if depth:
            return is_nonnegative(e.value, positive, depth - 1)
        case Ramp() if depth:
            return is_nonnegative(e.base, positive, depth - 1) and is_nonnegative(
                e.stride, positive, depth - 1
            )
    return False


def undefined(generator: str, thing: Var | Buffer) -> CompileError:
    """That a program names what nothing in it defines."""
    kind = "buffer" if isinstance(thing, Buffer) else "variable"
    of = "allocated" if isinstance(thing, Buffer) else "a size of one, nor a loop's"
    return CompileError(f"{generator}: {kind} {thing.name!r} is no argument, nor {of}")


def gaps(label: str) -> str:
    """What is said of an argument whose elements do not lie one after the other."""
    return f"{label} must be contiguous, got strides; copy it first"


def stored_value(s: BufferStore) -> PrimExpr:
    """The value to store; x = x + a * b becomes one fused multiply-add: the one contraction that
    is always allowed, because it is what a reduction is lowered to everywhere.
    """
    update = s.value
    if isinstance(update, Add) and dt.element(update.dtype) in ("float32", "float64"):
        for old, product in ((update.a, update.b), (update.b, update.a)):
            if isinstance(old, BufferLoad) and old.buffer is s.buffer and isinstance(product, Mul):
                return Intrinsic("fma", (product.a, product.b, old), update.dtype)
    return update


def check_compiled(e: Intrinsic) -> None:
    """Raises CompileError for a call that no code generator has."""
    if row_of(e.op).is_compiled:
        return
    if e.op == "tvm_storage_sync":
        raise CompileError(
            "threads wait for each other, and a processor runs them one after another: build the"
            " schedule for it, not what was lowered for threads"
        )
    called = repr(e.args[0].value) if e.args and isinstance(e.args[0], StringImm) else ""
    hint = "; threads of devices that have warps make it" if is_exchange(e) else ""
    raise CompileError(f"no code generator has the call {e.op} {called}".rstrip() + hint)


def called_with(e: Intrinsic) -> tuple[PrimExpr, ...]:
    """Return the arguments of a call of a function that are values: no texts and no addresses,
    whose indices are evaluated with the call."""
    return tuple(a for a in e.args if not isinstance(a, (StringImm, BufferAddress)))


def extern_name(e: Intrinsic, generator: str) -> str:
    """Return the symbol of the C function that a call names. Raises CompileError for what is no C
    identifier, and for types that C cannot pass."""
    name = e.args[0].value if e.args and isinstance(e.args[0], StringImm) else ""
    if not (name.isidentifier() and name.isascii()) or len(name) > MAX_SYMBOL:
        raise CompileError(
            f"{generator}: {e.op}: expected the name of a C function first, got {name or e!r}"
        )
    for dtype in (e.dtype, *(a.dtype for a in e.args[1:])):
        if dtype != "handle" and dt.element(dtype) not in _C_TYPES:
            raise CompileError(f"{generator}: {e.op} {name!r}: C has no type for {dtype}")
    return name


MAX_SYMBOL = 200
"""Characters of the name of a C function; the loader of images holds them on its stack."""
_C_TYPES = frozenset(
    ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
     "float32", "float64")
)  # fmt: skip


def dtype_word(dtype: str) -> int:
    """A DLDataType of one lane as the 32-bit integer it is in memory."""
    code, bits, _ = dtype_code(dt.element(dtype))
    return code | bits << 8 | 1 << 16


@dataclass(frozen=True, slots=True)
class Dimension:
    """Dimension `axis` of argument `index`: it binds `extent` (a variable not seen before), or must
    equal it, else ValueError with `message`.
    """

    index: int
    axis: int
    extent: PrimExpr
    binds: bool
    message: str


def argument_label(func: PrimFunc, index: int, param: Buffer | Var) -> str:
    """How messages name an argument."""
    return f"{func.name}: argument {index} ({param.name})"


def scalar_kind(param: Var, func: PrimFunc) -> str:
    """What a parameter that is a number must be: "an integer" or "a number". Raises CompileError
    for an address, which only a caller with the same layout of memory could give, for a vector, and
    for a type that processors do not compute with."""
    if dt.is_small(dt.element(param.dtype)) or dt.lanes(param.dtype) > 1:
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


def misfit(param: Var) -> str:
    """What is said of an integer that its parameter cannot hold."""
    return f"must fit {param.dtype}"


def dimensions(func: PrimFunc) -> list[Dimension]:
    """What the entry of a function does with the shapes of its arguments: first all that bind."""
    bound: set[Var] = set(func.scalars)
    binding: list[Dimension] = []
    checked: list[Dimension] = []
    for i, buffer in enumerate(func.params):
        if isinstance(buffer, Var):
            continue
        for axis, extent in enumerate(buffer.shape):
            if isinstance(extent, AnyDim):
                continue
            if isinstance(extent, Var) and extent not in bound:
                bound.add(extent)
                binding.append(Dimension(i, axis, extent, True, ""))
                continue
            message = f"{func.name}: argument {i}: dimension {axis} must be {_wanted(extent)}"
            checked.append(Dimension(i, axis, extent, False, message))
    return binding + checked


def _wanted(extent: PrimExpr) -> str:
    if isinstance(extent, IntImm):
        return str(extent.value)
    return extent.name if isinstance(extent, Var) else "a function of the other dimensions"


def in_place(func: PrimFunc) -> tuple[int, ...]:
    """The numbers of the parameters that may lie in the bytes of the last one, the output: the
    attribute `tir.in_place`.
    """
    found = (func.attrs or {}).get("tir.in_place", ())
    assert isinstance(found, tuple)
    return tuple(int(str(n)) for n in found)


DEVICE_TYPE = "tir.device_type"
"""The attribute of functions of the host that launch kernels: DLPack's number of their device, on
which their arguments lie and what they allocate."""
DEVICE_ID = Var("device_id", "int64")
"""In such functions the number of the device of the first argument."""


def device_of(func: PrimFunc) -> int | None:
    """DLPack's number of the kind of device that a function launches kernels on, if it does."""
    found = (func.attrs or {}).get(DEVICE_TYPE)
    return int(str(found)) if found is not None else None


def lies_on_device(func: PrimFunc, buffer: Buffer) -> bool:
    """Whether an argument of such a function must lie there: of one known to have no elements only
    the shape is read, unless all are such."""
    return not _is_empty(buffer) or all(map(_is_empty, func.buffers))


def _is_empty(buffer: Buffer) -> bool:
    return any(is_const(d, 0) for d in buffer.shape)


FLUSH = "tir.flush_subnormals"
"""The attribute of functions in which subnormal numbers are 0."""


def flushes(func: PrimFunc) -> bool:
    """Whether subnormal numbers are 0 in a function."""
    return bool((func.attrs or {}).get(FLUSH))


BOUNDS_ERROR = "BoundsError"
"""The error of an access outside of a buffer."""


def addressed(e: Intrinsic) -> list[Buffer]:
    """The buffers of a call whose arguments are addresses of whole ones. Raises InternalError for
    another argument.
    """
    found = [a.buffer for a in e.args if isinstance(a, BufferAddress) and not a.indices]
    if len(found) != len(e.args):
        raise InternalError(f"{e.op}: addresses of whole buffers expected, got {e!r}")
    return found


def shuffle_order(e: Intrinsic) -> list[int]:
    """The numbers of the elements that a shuffle takes."""
    return [a.value for a in e.args[2:] if isinstance(a, IntImm)]


def flat_extent(buffer: Buffer) -> PrimExpr:
    """How many elements from its first one on a buffer has."""
    extent: PrimExpr = const(1)
    if buffer.strides:
        for size, stride in zip(buffer.shape, buffer.strides, strict=True):
            extent = extent + (cast(size, "int64") - 1) * cast(stride, "int64")
        return extent
    for size in buffer.shape:
        extent = extent * cast(size, "int64")
    return extent


def check_lanes(access: str, buffer: Buffer, index: PrimExpr, dtype: str) -> None:
    """Refuse an access of more or fewer elements than its index has lanes. `bounds="check"` and
    masks look at the lanes of an index alone: such an access would be seen by neither, and write
    past its buffer. A vector of a buffer that holds vectors is one element.

    Raises InternalError naming the buffer.
    """
    lanes, held = dt.lanes(index.dtype), dt.lanes(buffer.dtype)
    if dt.lanes(dtype) != lanes * held:
        raise InternalError(
            f"{access} {buffer.name!r} is of {dtype} at an index of {lanes} lanes: {index!r}"
        )


def bounds_message(kernel: str, buffer: Buffer) -> str:
    """The message of such an error, a format of C: of the index and the extent."""
    text = f"kernel '{kernel}': access of buffer '{buffer.name}' at index "
    return text.replace("%", "%%") + "%lld of %lld elements"
