"""Functions of scalar expressions, by TVM's names: `tir.exp`, `tir.floordiv`, ...

Constants are folded: `tir.max(2, 3)` is 3. The classes (`tir.Max`, ...) build nodes as written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.ir import dtype as dt
from ekiden.ir.dtype import int_range
from ekiden.ir.intrinsic import (
    DTYPE_OF_FIRST_ARG,
    INTRINSICS,
    TVM_INTRINSIC_NAMES,
    find_intrinsic,
    if_then_else,
)
from ekiden.ir.intrinsic import call_intrin as _call
from ekiden.ir.op import OP_ATTRS
from ekiden.ir.prim import (
    Add,
    DeferredComparison,
    Div,
    ExprLike,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Mul,
    Or,
    PrimExpr,
    StringImm,
    Sub,
    cast,
    convert,
    convert_number_operand,
    fold_binary,
)
from ekiden.ir.prim import Not as _Not
from ekiden.ir.prim import const as _const
from ekiden.ir.prim import logical_and as _both
from ekiden.runtime.errors import ExpressionError
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad

if TYPE_CHECKING:
    import ekiden.target.codegen as llvm_facts
else:
    llvm_facts = LazyModule("ekiden.target.codegen")

Argument = ExprLike | str | Buffer


def _convert_call_arg(value: Argument) -> PrimExpr:
    """Return a call's argument: a string as StringImm, a buffer as its address."""
    if isinstance(value, str):
        return StringImm(value)
    return value.access_ptr("rw") if isinstance(value, Buffer) else convert(value)


def call_packed(*args: Argument) -> PrimExpr:
    """Return a call of a function registered with the runtime under the name in the first argument;
    buffers are passed as tensors. Its value is the function's, an int32.
    """
    return Intrinsic("call_packed", tuple(map(_convert_call_arg, args)), "int32")


VOID_DTYPE = "handle"
"""The dtype of calls without a value, as in TVM, where programs write "" or "void"."""


def _void_or_dtype(dtype: str) -> str:
    return VOID_DTYPE if dtype in ("", "void") else dtype


def call_extern(dtype: str, func_name: str, *args: Argument) -> PrimExpr:
    """Return a call of a C function; buffers are passed as addresses."""
    return Intrinsic(
        "call_extern", (StringImm(func_name), *map(_convert_call_arg, args)), _void_or_dtype(dtype)
    )


def call_pure_extern(dtype: str, func_name: str, *args: Argument) -> PrimExpr:
    """Return a call of a C function without side effects."""
    return Intrinsic(
        "call_pure_extern", (StringImm(func_name), *map(_convert_call_arg, args)), dtype
    )


def call_llvm_intrin(dtype: str, name: str | int | IntImm, *args: Argument) -> PrimExpr:
    """Return a call of an LLVM intrinsic, by its name or its number (`llvm_lookup_intrinsic_id`).

    The overload suffix may be left out: "llvm.sqrt", "llvm.x86.sse2.pmadd.wd". As in TVM, the
    number of operands that select the overload precedes the operands: `tir.const(1, "uint32"), x`.
    The dtype "" is that of an intrinsic without a value, "handle" in printed text; Python integers
    are int32, and buffers are passed as addresses. Raises ExpressionError where LLVM has no
    intrinsic of that name, and for another first argument.
    """
    return _call_llvm("call_llvm_intrin", dtype, name, args)


def call_llvm_pure_intrin(dtype: str, name: str | int | IntImm, *args: Argument) -> PrimExpr:
    """Return a call of an LLVM intrinsic without side effects; arguments as for
    `call_llvm_intrin`.
    """
    return _call_llvm("call_llvm_pure_intrin", dtype, name, args)


def _call_llvm(op: str, dtype: str, name: str | int | IntImm, args: Sequence[Argument]) -> PrimExpr:
    if not isinstance(name, str):
        number = name.value if isinstance(name, IntImm) else name
        name = llvm_facts.llvm_get_intrinsic_name(number) or str(number)
    if not llvm_facts.llvm_lookup_intrinsic_id(name):
        raise ExpressionError(f"{op}: Unknown llvm intrinsic function {name}")
    signature = args[0] if args else 0
    if not isinstance(signature, (int, IntImm)) or isinstance(signature, bool):
        raise ExpressionError(
            f"{op}: {name}: expected the number of operands that tell its overload first, "
            f'`tir.const(1, "uint32")`, got {signature!r}'
        )
    numbers = [
        const(a, "int32" if position else "uint32") if type(a) is int else _convert_call_arg(a)
        for position, a in enumerate(args)
    ]
    for kind in (dtype, *(a.dtype for a in numbers)):
        if kind and dt.is_byte_stored(dt.element_dtype(kind)):
            raise ExpressionError(f"{op}: {name}: LLVM has no type for {kind}")
    return Intrinsic(op, (StringImm(name), *numbers), _void_or_dtype(dtype))


def ret(val: ExprLike) -> PrimExpr:
    """Return from the function with a value: `tir.Evaluate(tir.ret(x))`.

    Programs may contain it, but code generators reject it: compiled functions write their results
    to buffers.
    """
    return _call("ret", convert(val))


def call_intrin(dtype: str, func_name: str, *args: Argument) -> PrimExpr:
    """Return a call of an intrinsic by Ekiden's or TVM's name, with a result dtype, which Python
    integers take where the intrinsic's result has its operands' dtype. Raises KeyError for an
    unknown name that `ir.register_op_attr` has given no "TCallEffectKind".
    """
    name = func_name.removeprefix("tir.")
    name = TVM_INTRINSIC_NAMES.get(name, name)
    if name not in INTRINSICS and f"tir.{name}" not in OP_ATTRS["TCallEffectKind"]:
        raise KeyError(f"call_intrin: no intrinsic {func_name!r}")
    is_integer_op = find_intrinsic(name).dtype in (None, DTYPE_OF_FIRST_ARG) and dt.is_int(dtype)
    operands = [
        const(a, dtype) if is_integer_op and type(a) is int else _convert_call_arg(a) for a in args
    ]
    return Intrinsic(name, tuple(operands), dtype)


def address_of(load: BufferLoad | Buffer) -> BufferAddress:
    """Return the address of an element or a buffer, as a call's argument."""
    if isinstance(load, Buffer):
        return load.access_ptr("rw")
    return load.buffer.access_ptr("rw", load.indices, [1] * len(load.indices))


def _intrinsic_function(op: str) -> Callable[..., PrimExpr]:
    row = INTRINSICS[op]

    def call(*args: ExprLike) -> PrimExpr:
        return _call(op, *unify_operands(args))

    call.__name__ = call.__qualname__ = op
    count = "scalar expressions" if row.arity != 1 else "a scalar expression"
    call.__doc__ = f"`{op}` of {count} (see ekiden.ir.intrinsic)."
    return call


def unify_operands(values: Sequence[ExprLike]) -> list[PrimExpr]:
    """Convert values to expressions; Python numbers take the dtype of the first expression, but a
    float among integers is float32 and makes the other numbers so.
    """
    like = next((v.dtype for v in values if isinstance(v, PrimExpr)), None)
    converted = [v if isinstance(v, PrimExpr) else convert_number_operand(v, like) for v in values]
    number_dtypes = [
        m.dtype for m, v in zip(converted, values, strict=True) if not isinstance(v, PrimExpr)
    ]
    wide = next((d for d in number_dtypes if d != like and dt.is_float(d)), None) if like else None
    return (
        converted
        if wide is None
        else [cast(m, wide) if dt.is_int(m.dtype) else m for m in converted]
    )


exp, exp2, exp10, log, log2, log10 = map(
    _intrinsic_function, "exp exp2 exp10 log log2 log10".split()
)
log1p, sqrt, rsqrt, erf, sigmoid = map(_intrinsic_function, "log1p sqrt rsqrt erf sigmoid".split())
sin, cos, tan, asin, acos, atan = map(_intrinsic_function, "sin cos tan asin acos atan".split())
sinh, cosh, tanh, asinh, acosh, atanh = map(
    _intrinsic_function, "sinh cosh tanh asinh acosh atanh".split()
)
abs, floor, ceil, round, trunc = map(_intrinsic_function, "abs floor ceil round trunc".split())
isnan, isinf, isfinite, nearbyint = map(
    _intrinsic_function, "isnan isinf isfinite nearbyint".split()
)
power, fma, fmod, atan2, hypot = map(_intrinsic_function, "pow fma fmod atan2 hypot".split())
copysign, ldexp, popcount, clz = map(_intrinsic_function, "copysign ldexp popcount clz".split())
nextafter, q_multiply_shift = map(_intrinsic_function, "nextafter q_multiply_shift".split())
bitwise_not = _intrinsic_function("bitwise_not")
bitwise_and, bitwise_or, bitwise_xor = map(
    _intrinsic_function, "bitwise_and bitwise_or bitwise_xor".split()
)
shift_left, shift_right = map(_intrinsic_function, "left_shift right_shift".split())
pow = power


def assume(cond: ExprLike) -> PrimExpr:
    """Return a promise that a condition holds from here to the end of the enclosing statements:
    `tir.Evaluate(tir.assume(n % 16 == 0))`.

    `transform.Simplify` uses what it implies about variables; lowering uses it and drops it. A
    program whose assumption is false has undefined behaviour. Raises TypeError unless the condition
    is a bool. TVM: tir.assume.
    """
    condition = convert(cond)
    if condition.dtype != "bool":
        raise TypeError(f"assume: a condition is a bool, got {condition.dtype}")
    return _call("assume", condition)


def undef(dtype: str = "int32") -> PrimExpr:
    """Return an undefined value: storing it declares that nobody reads the element.

    `transform.RemoveStoreUndef` drops such stores; code generators refuse what is left.

    TVM: tir.undef, an int32.
    """
    return Intrinsic("undef", (), dtype)


def vscale() -> PrimExpr:
    """Return the runtime vector-length multiplier of scalable vectors, an int64: `tir.Ramp(0, 1, 4
    * tir.vscale())`.
    """
    return _call("vscale")


def likely(cond: ExprLike) -> PrimExpr:
    """Return a condition that loop partitioning may isolate in a main loop where it is true."""
    return _call("likely", convert(cond))


def vectorlow(dtype: str, vec: PrimExpr) -> PrimExpr:
    """Return the low half of a vector's lanes, of type `dtype`. Raises TypeError for
    another dtype.
    """
    return _vector_half("vectorlow", dtype, vec)


def vectorhigh(dtype: str, vec: PrimExpr) -> PrimExpr:
    """Return the high half of a vector's lanes, of type `dtype`. Raises TypeError for another
    dtype.
    """
    return _vector_half("vectorhigh", dtype, vec)


def vectorcombine(dtype: str, vec1: PrimExpr, vec2: PrimExpr) -> PrimExpr:
    """Concatenate two vectors of one type into one of type `dtype`. Raises TypeError for others."""
    combined_dtype = dt.with_lanes(dt.element_dtype(vec1.dtype), 2 * dt.lanes(vec1.dtype))
    if vec1.dtype != vec2.dtype or dtype != combined_dtype:
        operand_dtypes = f"{vec1.dtype} and {vec2.dtype}"
        raise TypeError(f"vectorcombine: two halves of {dtype} expected, got {operand_dtypes}")
    return Intrinsic("vectorcombine", (vec1, vec2), dtype)


def _vector_half(op: str, dtype: str, vec: PrimExpr) -> PrimExpr:
    lanes = dt.lanes(vec.dtype)
    if lanes < 4 or lanes % 2 or dtype != dt.with_lanes(dt.element_dtype(vec.dtype), lanes // 2):
        raise TypeError(f"{op}: {dtype} is not half of a vector of {vec.dtype}")
    return Intrinsic(op, (vec,), dtype)


def _gpu_builtin(op: str) -> Callable[..., PrimExpr]:
    """Return the constructor of a GPU builtin call; programs may contain it, code generators reject
    it.
    """

    def call(*args: Argument) -> PrimExpr:
        return Intrinsic(op, tuple(map(_convert_call_arg, args)), INTRINSICS[op].dtype or "int32")

    call.__name__ = call.__qualname__ = op
    call.__doc__ = f"The call `{op}` of NVIDIA's threads; it stands in programs alone."
    return call


def _typed_gpu_builtin(op: str) -> Callable[..., PrimExpr]:
    """Return the constructor of a GPU builtin call whose first argument is the result dtype."""

    def call(dtype: str, *args: Argument) -> PrimExpr:
        return Intrinsic(op, tuple(map(_convert_call_arg, args)), dtype)

    call.__name__ = call.__qualname__ = op
    call.__doc__ = f"The call `{op}` of NVIDIA's threads, of a dtype; it stands in programs alone."
    return call


tvm_fill_fragment, tvm_load_matrix_sync, tvm_store_matrix_sync = map(
    _gpu_builtin, "tvm_fill_fragment tvm_load_matrix_sync tvm_store_matrix_sync".split()
)
tvm_mma_sync, tvm_bmma_sync, tvm_thread_allreduce, create_barriers = map(
    _gpu_builtin, "tvm_mma_sync tvm_bmma_sync tvm_thread_allreduce create_barriers".split()
)
ptx_commit_group, ptx_wait_group, ptx_cp_async_barrier, ptx_wait_barrier = map(
    _gpu_builtin, "ptx_commit_group ptx_wait_group ptx_cp_async_barrier ptx_wait_barrier".split()
)
ptx_init_barrier_thread_count = _gpu_builtin("ptx_init_barrier_thread_count")
ptx_arrive_barrier = _gpu_builtin("ptx_arrive_barrier")
ptx_arrive_barrier_expect_tx = _gpu_builtin("ptx_arrive_barrier_expect_tx")
ptx_mma, ptx_mma_sp, ptx_ldmatrix, mma_store, mma_fill, ptx_cp_async, ptx_cp_async_bulk = map(
    _typed_gpu_builtin,
    "ptx_mma ptx_mma_sp ptx_ldmatrix mma_store mma_fill ptx_cp_async ptx_cp_async_bulk".split(),
)


def _warp_shuffle(op: str, lane: str) -> Callable[..., PrimExpr]:
    """Return the constructor of a warp shuffle, by which a thread reads the value that another
    thread of its warp passes.
    """

    def call(
        mask: ExprLike, value: ExprLike, lane: ExprLike, width: int, warp_size: int
    ) -> PrimExpr:
        """Return the shuffle call; its documentation is set below."""
        return _call(op, mask, value, lane, width, warp_size)

    call.__name__ = call.__qualname__ = op
    call.__doc__ = (
        f"The value of the thread {lane}, of `width` neighbours in a warp of `warp_size` threads; "
        "all whose bits are set in `mask` make the call. Of a thread that does not, the value is "
        "none in particular."
    )
    return call


tvm_warp_shuffle = _warp_shuffle("tvm_warp_shuffle", "whose number among them is `lane`")
tvm_warp_shuffle_up = _warp_shuffle("tvm_warp_shuffle_up", "`lane` before, one's own where none is")
tvm_warp_shuffle_down = _warp_shuffle(
    "tvm_warp_shuffle_down", "`lane` behind, one's own where none is"
)


def tvm_warp_activemask() -> PrimExpr:
    """Return the mask of the warp's active threads, a uint32."""
    return _call("tvm_warp_activemask")


def reinterpret(dtype: str, value: ExprLike) -> PrimExpr:
    """Bit-cast a value to another type of the same size. Raises TypeError for other sizes."""
    operand = convert(value)
    if dt.itemsize(operand.dtype) * dt.lanes(operand.dtype) != dt.itemsize(dtype) * dt.lanes(dtype):
        raise TypeError(f"reinterpret: {operand.dtype} and {dtype} are of two sizes")
    return Intrinsic("reinterpret", (operand,), dtype)


def all(*args: PrimExpr) -> PrimExpr:
    """Return the conjunction of conditions. Raises ValueError when there is none."""
    return _fold_conditions("all", _both, args)


def any(*args: PrimExpr) -> PrimExpr:
    """Return the disjunction of conditions. Raises ValueError when there is none."""
    return _fold_conditions("any", lambda a, b: fold_binary(Or, a, b), args)


def _fold_conditions(
    name: str, join: Callable[[PrimExpr, PrimExpr], PrimExpr], conditions: tuple[PrimExpr, ...]
) -> PrimExpr:
    if not conditions:
        raise ValueError(f"{name}: expected at least one condition")
    result = convert(conditions[0])
    for condition in conditions[1:]:
        result = join(result, convert(condition))
    return result


def add(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return `a + b`."""
    return fold_binary(Add, a, b)


def subtract(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return `a - b`."""
    return fold_binary(Sub, a, b)


def multiply(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return `a * b`."""
    return fold_binary(Mul, a, b)


def div(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return `a / b` with C's semantics: integer quotients truncate towards zero."""
    return fold_binary(Div, a, b)


def truncdiv(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return the integer quotient, truncated towards zero."""
    return fold_binary(Div, a, b)


def truncmod(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return the remainder of `truncdiv`, which has the sign of a."""
    dividend, divisor = unify_operands((a, b))
    return fold_binary(
        Sub, dividend, fold_binary(Mul, fold_binary(Div, dividend, divisor), divisor)
    )


def Mod(a: ExprLike, b: ExprLike) -> PrimExpr:  # noqa: N802 - a class in TVM
    """Return `truncmod`; a class of this name in TVM."""
    return truncmod(a, b)


def floordiv(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return the integer quotient, rounded down."""
    return fold_binary(FloorDiv, a, b)


def floormod(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return the remainder of `floordiv`, which has the sign of b."""
    return fold_binary(FloorMod, a, b)


def ceildiv(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return the integer quotient, rounded up."""
    dividend, divisor = unify_operands((a, b))
    return fold_binary(FloorDiv, dividend + divisor - 1, divisor)


indexdiv, indexmod = floordiv, floormod


def min(a: ExprLike, b: ExprLike, *more: ExprLike) -> PrimExpr:
    """Return the smallest of the values; over axes see te.min."""
    return reduce(partial(fold_binary, Min), more, fold_binary(Min, a, b))


def max(a: ExprLike, b: ExprLike, *more: ExprLike) -> PrimExpr:
    """Return the largest of the values; over axes see te.max."""
    return reduce(partial(fold_binary, Max), more, fold_binary(Max, a, b))


def const(value: float | DeferredComparison, dtype: str | None = None) -> PrimExpr:
    """Return a constant; see `ir.prim.const`. Raises ExpressionError if its dtype cannot represent
    the number.
    """
    constant = _const(value, dtype)  # type: ignore[arg-type]
    if isinstance(constant, IntImm) and (limits := int_range(constant.dtype)) is not None:
        if not limits[0] <= constant.value <= limits[1]:
            raise ExpressionError(
                f"const {value}: {constant.dtype} has numbers from {limits[0]} to {limits[1]}"
            )
    elif isinstance(constant, FloatImm) and constant.dtype in ("float16", "float32"):
        largest = float(np.finfo(constant.dtype).max)
        if math.isfinite(constant.value) and math.fabs(constant.value) > largest:
            raise ExpressionError(
                f"const {value}: the largest number of {constant.dtype} is {largest}"
            )
    return constant


def infinity(dtype: str) -> PrimExpr:
    """Return positive infinity of a floating-point dtype."""
    return const(float("inf"), dtype)


def logical_not(a: ExprLike) -> PrimExpr:
    """Return the negation of a condition."""
    value = convert(a, "bool")
    return _Not(value, value.dtype)


__all__ = [
    "Mod",
    "abs",
    "acos",
    "acosh",
    "add",
    "address_of",
    "all",
    "any",
    "asin",
    "asinh",
    "assume",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "call_extern",
    "call_intrin",
    "call_llvm_intrin",
    "call_llvm_pure_intrin",
    "call_packed",
    "call_pure_extern",
    "ceil",
    "ceildiv",
    "clz",
    "const",
    "copysign",
    "cos",
    "cosh",
    "create_barriers",
    "div",
    "erf",
    "exp",
    "exp2",
    "exp10",
    "floor",
    "floordiv",
    "floormod",
    "fma",
    "fmod",
    "hypot",
    "if_then_else",
    "indexdiv",
    "indexmod",
    "infinity",
    "isfinite",
    "isinf",
    "isnan",
    "ldexp",
    "likely",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_not",
    "max",
    "min",
    "mma_fill",
    "mma_store",
    "multiply",
    "nearbyint",
    "nextafter",
    "popcount",
    "pow",
    "power",
    "ptx_arrive_barrier",
    "ptx_arrive_barrier_expect_tx",
    "ptx_commit_group",
    "ptx_cp_async",
    "ptx_cp_async_barrier",
    "ptx_cp_async_bulk",
    "ptx_init_barrier_thread_count",
    "ptx_ldmatrix",
    "ptx_mma",
    "ptx_mma_sp",
    "ptx_wait_barrier",
    "ptx_wait_group",
    "q_multiply_shift",
    "reinterpret",
    "ret",
    "round",
    "rsqrt",
    "shift_left",
    "shift_right",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "truncdiv",
    "truncmod",
    "tvm_bmma_sync",
    "tvm_fill_fragment",
    "tvm_load_matrix_sync",
    "tvm_mma_sync",
    "tvm_store_matrix_sync",
    "tvm_thread_allreduce",
    "tvm_warp_activemask",
    "tvm_warp_shuffle",
    "tvm_warp_shuffle_down",
    "tvm_warp_shuffle_up",
    "undef",
    "vectorcombine",
    "vectorhigh",
    "vectorlow",
    "vscale",
]  # fmt: skip
