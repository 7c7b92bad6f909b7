"""Table of the pure intrinsics that scalar expressions may call.

Name -> arity and NumPy meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from ekiden.ir import dtype as dt
from ekiden.ir.op import OP_ATTRS, register_op_name
from ekiden.ir.op_name import OpName
from ekiden.ir.prim import ExprLike, Intrinsic, PrimExpr, const, convert, is_const, promote_operands
from ekiden.runtime import get_global_func
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class IntrinsicDef:
    """Intrinsic definition: name, arity, NumPy reference, result dtype and effects."""

    name: str
    arity: int
    reference: Callable[..., object]
    dtype: str | None = None
    """Result dtype; None for that of the last argument."""
    has_effects: bool = False
    """Whether a call has side effects, so that it neither moves nor merges."""
    is_compiled: bool = True
    """Whether code generators implement it; programs may contain others, which code generators
    reject.
    """
    tvm_name: str = ""
    """TVM's name where it differs."""
    has_exact_regions: bool = False
    """Whether the address arguments declare exactly the accessed regions and their layout, so that
    buffer layouts may change.
    """

    is_function_call: bool = False
    """Whether a call invokes a function, with strings and addresses among its arguments."""
    is_typed: bool = False
    """Whether each call states its result dtype, which nothing else determines."""

    @property
    def has_reference_semantics(self) -> bool:
        """Return whether the value depends only on the arguments, so that a reference exists."""
        return self.reference is not _raise_no_reference


DTYPE_OF_FIRST_ARG = "first"
"""Marker: the result has the dtype of the first argument."""

DTYPE_OF_SECOND_ARG = "second"
"""Marker: the result has the dtype of the second argument."""

WARP_SHUFFLES = ("tvm_warp_shuffle", "tvm_warp_shuffle_up", "tvm_warp_shuffle_down")
"""Warp shuffle intrinsics: by lane index, from a lower lane, from a higher lane."""
WARP_SIZE = 32
"""Number of threads in a warp, each of which has one bit in shuffle masks."""
FULL_WARP_MASK = (1 << WARP_SIZE) - 1
"""Shuffle mask with all threads of a warp active."""

ANY_ARITY = -1
"""Arity of variadic intrinsics."""


def _dot4_u8s8(total: object, a: object, b: object) -> object:
    """Return per int32 lane `total` plus the dot product of the four uint8 of `a` and the four int8
    of `b`.
    """
    # The words are viewed as their four bytes, lowest first.
    a_bytes = np.asarray(a, np.int32)[..., None].view(np.uint8).astype(np.int32)
    b_bytes = np.asarray(b, np.int32)[..., None].view(np.int8).astype(np.int32)
    return np.asarray(total, np.int32) + (a_bytes * b_bytes).sum(-1, dtype=np.int32)


def _dot4_s8s8(total: object, a: object, b: object) -> object:
    """Return per int32 lane `total` plus the dot product of the four int8 of `a` and of `b`."""
    a_bytes, b_bytes = (
        np.asarray(x, np.int32)[..., None].view(np.int8).astype(np.int32) for x in (a, b)
    )
    return np.asarray(total, np.int32) + (a_bytes * b_bytes).sum(-1, dtype=np.int32)


def _dot4_u8u8(total: object, a: object, b: object) -> object:
    """Return per int32 lane `total` plus the dot product of the four uint8 of `a` and of `b`."""
    a_bytes, b_bytes = (
        np.asarray(x, np.int32)[..., None].view(np.uint8).astype(np.int32) for x in (a, b)
    )
    return np.asarray(total, np.int32) + (a_bytes * b_bytes).sum(-1, dtype=np.int32)


def _dot2_u8s8_int16(total: object, a: object, b: object) -> object:
    """Return per int16 lane `total` plus the dot product of two uint8 of `a` and two int8 of `b`
    (pmaddubsw).
    """
    a_bytes = np.asarray(a, np.int32)[..., None].view(np.uint8).astype(np.int16)
    b_bytes = np.asarray(b, np.int32)[..., None].view(np.int8).astype(np.int16)
    pairs = (a_bytes * b_bytes).reshape(*a_bytes.shape[:-1], 2, 2).sum(-1, dtype=np.int16)
    sums = np.asarray(total, np.int16)
    return sums + pairs.reshape(sums.shape)


def _dot2_int16(total: object, a: object, b: object) -> object:
    """Return per int32 lane `total` plus the dot product of the two int16 of `a` and of `b`
    (pmaddwd).
    """
    a_halves, b_halves = (
        np.asarray(x, np.int32)[..., None].view(np.int16).astype(np.int32) for x in (a, b)
    )
    return np.asarray(total, np.int32) + (a_halves * b_halves).sum(-1, dtype=np.int32)


def _dot2_bfloat16(total: object, a: object, b: object) -> object:
    """Return per float32 lane `total` plus the dot product of the two bfloat16 of `a` and
    of `b`.
    """
    a_bits, b_bits = (np.asarray(x, np.float32)[..., None].view(np.uint32) for x in (a, b))
    # A bfloat16 is the upper half of a float32: shifted up, or masked, each half is one.
    products = [
        (a_bits << shift & 0xFFFF0000).view(np.float32)
        * (b_bits << shift & 0xFFFF0000).view(np.float32)
        for shift in (np.uint32(16), np.uint32(0))
    ]
    return np.asarray(total, np.float32) + (products[0] + products[1])[..., 0]


def _shuffle_vectors(a: object, b: object, *order: object) -> object:
    """Select elements of the concatenation of two vectors by index."""
    return np.concatenate([np.asarray(a), np.asarray(b)])[np.asarray(order, np.int64)]


def _has_same_address(a: object, b: object) -> object:
    """Return whether two arrays start at the same address."""
    first, second = np.asarray(a), np.asarray(b)
    return first.ctypes.data == second.ctypes.data


def _raise_no_reference(*args: object) -> object:
    raise TypeError("this intrinsic has no meaning without what is around it")


def _check_assumption(condition: object) -> object:
    if not np.all(np.asarray(condition)):
        raise ValueError("T.assume: the condition does not hold")
    return condition


def _call_packed(name: str, *args: object) -> object:
    result = get_global_func(name)(*args)
    return 0 if result is None else result


def _popcount(x: object) -> object:
    """Return the number of set bits."""
    # NumPy counts the bits of the absolute value of signed numbers.
    return np.bitwise_count(_view_unsigned(x)).astype(np.asarray(x).dtype)[()]


def _clz(x: object) -> object:
    """Return the number of leading zero bits."""
    bits = _view_unsigned(x)
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < 8 * bits.itemsize:
            # Every bit below the highest set one becomes 1, so that counting ones gives the length
            # of the number.
            bits = bits | bits >> np.asarray(shift, bits.dtype)
    return (8 * bits.itemsize - np.bitwise_count(bits)).astype(np.asarray(x).dtype)[()]


def _view_unsigned(x: object) -> np.ndarray[Any, Any]:
    array = np.asarray(x)
    return array.view(f"u{array.itemsize}")


def _erf(x: object) -> object:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _q_multiply_shift(x: object, y: object, q: object, s: object) -> object:
    """Return the fixed-point product x * y * 2**-(q + s), rounded to nearest.

    Halves are rounded up.
    """
    shifted = np.asarray(x, np.int64) << np.maximum(-np.asarray(s), 0)
    total = np.maximum(np.asarray(s), 0) + np.asarray(q)
    # Half of what the shift drops is added first: to nearest, halves upward.
    return (shifted * np.asarray(y, np.int64) + (np.int64(1) << (total - 1))) >> total


def _q_multiply_shift_per_axis(
    x: object, y: object, left_shift: object, right_shift: object, q: object, *_: object
) -> object:
    """Return the fixed-point product with separate left and right shifts per channel."""
    shifted = np.asarray(x, np.int64) << np.asarray(left_shift)
    return _q_multiply_shift(shifted, y, q, right_shift)


def _int_or_float_power(base: object, exponent: object) -> object:
    """Return base**exponent; for negative integer exponents the truncated quotient 1 /
    base**-exponent.

    That is 0, but for 1 and -1.
    """
    a, b = np.asarray(base), np.asarray(exponent)
    if b.dtype.kind != "i":
        return np.power(a, b)
    # NumPy refuses negative integer exponents: -1 and 1 have their powers by parity.
    power = np.power(a, np.where(b < 0, b & 1, b).astype(b.dtype))
    return np.where((b < 0) & (a != 1) & (a != -1), np.zeros_like(power), power)[()]


# fmt: off
INTRINSICS: dict[str, IntrinsicDef] = {row.name: row for row in (
    IntrinsicDef("exp",         1, np.exp),
    IntrinsicDef("log",         1, np.log),
    IntrinsicDef("sqrt",        1, np.sqrt),
    IntrinsicDef("rsqrt",       1, lambda x: 1 / np.sqrt(x)),
    IntrinsicDef("tanh",        1, np.tanh),
    IntrinsicDef("erf",         1, _erf),
    IntrinsicDef("sigmoid",     1, lambda x: 1 / (1 + np.exp(-x))),
    IntrinsicDef("sin",         1, np.sin),
    IntrinsicDef("cos",         1, np.cos),
    IntrinsicDef("pow",         2, _int_or_float_power),
    IntrinsicDef("abs",         1, np.abs, tvm_name="fabs"),
    IntrinsicDef("floor",       1, np.floor),
    IntrinsicDef("ceil",        1, np.ceil),
    IntrinsicDef("round",       1, np.round),     # halves to even
    IntrinsicDef("trunc",       1, np.trunc),
    IntrinsicDef("isnan",       1, np.isnan,            "bool"),
    IntrinsicDef("isinf",       1, np.isinf,            "bool"),
    IntrinsicDef("fma",         3, lambda a, b, c: a * b + c),
    IntrinsicDef("if_then_else", 3, np.where),     # evaluates the chosen side alone: guards loads
    IntrinsicDef("dot4_u8s8",   3, _dot4_u8s8),           # acc + 4 products of bytes in words a, b
    IntrinsicDef("dot4_s8s8",   3, _dot4_s8s8),    # the same, both with a sign
    IntrinsicDef("dot4_u8u8",   3, _dot4_u8u8),  # neither
    IntrinsicDef("madd_u8s8",   3, _dot4_u8s8),           # of bytes whose sums of two fit int16
    IntrinsicDef("madd_s8s8",   3, _dot4_s8s8),    # both signed; not both operands -128
    IntrinsicDef("sum2_u8s8",   3, _dot2_u8s8_int16),   # acc int16 + 2 products of bytes, which fit
    IntrinsicDef("madd_s16",    3, _dot2_int16),          # acc + 2 products of int16 in words a, b
    # The first of two values; code generators place what reads it behind the second.
    IntrinsicDef("in_order",    2, lambda value, other: value),
    IntrinsicDef("dot2_bf16",   3, _dot2_bfloat16),    # acc + 2 products of bfloat16 in words a, b
    # Registers that hold matrices of at most 16 rows of 64 bytes (x86-64's AMX), by number. shape:
    # rows and bytes of each. load: number, address, bytes between rows. dot: the sum, its factors.
    IntrinsicDef("matrix_shape", ANY_ARITY, _raise_no_reference, "int32", has_effects=True),
    IntrinsicDef("matrix_zero", 1, _raise_no_reference, "int32", has_effects=True),
    IntrinsicDef("matrix_load", 3, _raise_no_reference, "int32", has_effects=True),
    IntrinsicDef("matrix_dot4_u8s8", 3, _raise_no_reference, "int32", has_effects=True),
    IntrinsicDef("matrix_dot2_bf16", 3, _raise_no_reference, "int32", has_effects=True),
    # a whole matrix register as a value, to be stored
    IntrinsicDef("matrix_value", 1, _raise_no_reference, has_effects=True),
    IntrinsicDef("shuffle", ANY_ARITY, _shuffle_vectors),    # elements of two vectors, by numbers
    IntrinsicDef("same_memory", 2, _has_same_address,   "bool"),  # compares two buffers' addresses
    # the bits as another type; the dtype is given
    IntrinsicDef("reinterpret", 1, _raise_no_reference),
    IntrinsicDef("call_packed", ANY_ARITY, _call_packed, "int32", has_effects=True,
        is_function_call=True),
    # calls a function of the same module
    IntrinsicDef("call_function", ANY_ARITY, _raise_no_reference, "int32", has_effects=True,
        is_function_call=True),
    # barrier of a block's threads; makes their writes to a memory scope visible to each other
    IntrinsicDef("tvm_storage_sync", 1, _raise_no_reference, "int32", True, is_compiled=False),
    # warp shuffle: mask of the participating threads, all of which must call it; value; lane or
    # distance; width of the exchanging group; warp size
    *(IntrinsicDef(name, 5, _raise_no_reference, DTYPE_OF_SECOND_ARG, True, is_compiled=False)
      for name in WARP_SHUFFLES),
    IntrinsicDef("tvm_warp_activemask", 0, _raise_no_reference, "uint32", True, is_compiled=False),
    # multiple of the minimum width that the processor's scalable vectors have
    IntrinsicDef("vscale",      0, _raise_no_reference, "int64", is_compiled=False),
    # call of a C function by its symbol, which the linker or loader resolves
    IntrinsicDef("call_extern", ANY_ARITY, _raise_no_reference, "int32", has_effects=True,
        is_function_call=True,
        is_typed=True),
    IntrinsicDef("call_pure_extern", ANY_ARITY, _raise_no_reference, "int32", is_function_call=True,
        is_typed=True),
    # call of an LLVM intrinsic: its name, the number of operands, the operands
    IntrinsicDef("call_llvm_intrin", ANY_ARITY, _raise_no_reference, has_effects=True,
        is_function_call=True,
        is_typed=True),
    IntrinsicDef("call_llvm_pure_intrin", ANY_ARITY, _raise_no_reference, is_function_call=True,
        is_typed=True),
    IntrinsicDef("ret",         1, lambda x: x, has_effects=True, is_compiled=False),  # the end
    # offset of a region's first element and stride along an axis, which FlattenBuffer resolves once
    # buffers have layouts
    IntrinsicDef("region_offset", 1, _raise_no_reference, "int64", is_compiled=False,
        has_exact_regions=True),
    IntrinsicDef("region_stride", 2, _raise_no_reference, "int64", is_compiled=False,
        has_exact_regions=True),
    # matrix fragments of a warp (NVIDIA tensor cores), emitted in CUDA C
    *(IntrinsicDef(name, ANY_ARITY, _raise_no_reference, "handle", True, is_compiled=False,
                   has_exact_regions=True)
      for name in ("tvm_fill_fragment", "tvm_load_matrix_sync", "tvm_mma_sync",
                   "tvm_store_matrix_sync")),
    # further builtins of CUDA threads: programs may contain them, no code generator implements them
    *(IntrinsicDef(name, ANY_ARITY, _raise_no_reference, "handle", True, is_compiled=False)
      for name in (
        "tvm_bmma_sync", "ptx_mma", "ptx_mma_sp", "ptx_ldmatrix", "mma_store", "mma_fill",
        "ptx_cp_async", "ptx_cp_async_bulk", "ptx_commit_group", "ptx_wait_group",
        "ptx_cp_async_barrier", "ptx_init_barrier_thread_count", "ptx_arrive_barrier",
        "ptx_arrive_barrier_expect_tx", "ptx_wait_barrier", "create_barriers",
        "tvm_thread_allreduce")),
    IntrinsicDef("likely",      1, lambda x: x),  # a condition that loop partition makes true
    # no value in particular: RemoveStoreUndef drops what stores it
    IntrinsicDef("undef",       0, _raise_no_reference, "int32", is_compiled=False),
    # a promise that a condition holds: Simplify uses it, lowering drops it
    IntrinsicDef("assume",      1, _check_assumption,   "bool", has_effects=True,
        is_compiled=False),
    IntrinsicDef("bitwise_and", 2, np.bitwise_and),
    IntrinsicDef("bitwise_or",  2, np.bitwise_or),
    IntrinsicDef("bitwise_xor", 2, np.bitwise_xor),
    IntrinsicDef("left_shift",  2, np.left_shift, tvm_name="shift_left"),
    IntrinsicDef("right_shift", 2, np.right_shift, tvm_name="shift_right"),
    # Written in terms of those above by tir's LowerIntrin.
    IntrinsicDef("exp2",        1, np.exp2),
    IntrinsicDef("exp10",       1, lambda x: np.power(10.0, x)),
    IntrinsicDef("log2",        1, np.log2),
    IntrinsicDef("log10",       1, np.log10),
    IntrinsicDef("log1p",       1, np.log1p),
    IntrinsicDef("tan",         1, np.tan),
    IntrinsicDef("asin",        1, np.arcsin),
    IntrinsicDef("acos",        1, np.arccos),
    IntrinsicDef("atan",        1, np.arctan),
    IntrinsicDef("sinh",        1, np.sinh),
    IntrinsicDef("cosh",        1, np.cosh),
    IntrinsicDef("asinh",       1, np.arcsinh),
    IntrinsicDef("acosh",       1, np.arccosh),
    IntrinsicDef("atanh",       1, np.arctanh),
    IntrinsicDef("atan2",       2, np.arctan2),
    IntrinsicDef("hypot",       2, np.hypot),
    IntrinsicDef("fmod",        2, np.fmod),
    IntrinsicDef("copysign",    2, np.copysign),
    IntrinsicDef("nextafter",   2, np.nextafter),
    IntrinsicDef("ldexp",       2, np.ldexp,            DTYPE_OF_FIRST_ARG),
    IntrinsicDef("nearbyint",   1, np.round),     # halves to even
    IntrinsicDef("isfinite",    1, np.isfinite,         "bool"),
    IntrinsicDef("bitwise_not", 1, np.invert),
    # x * y * 2**-(q + s)
    IntrinsicDef("q_multiply_shift", 4, _q_multiply_shift, DTYPE_OF_FIRST_ARG),
    # by two shifts
    IntrinsicDef("q_multiply_shift_per_axis", 7, _q_multiply_shift_per_axis, DTYPE_OF_FIRST_ARG),
    IntrinsicDef("vectorlow",   1, lambda x: np.split(np.asarray(x), 2)[0]),  # its first half
    IntrinsicDef("vectorhigh",  1, lambda x: np.split(np.asarray(x), 2)[1]),
    IntrinsicDef("vectorcombine", 2, lambda a, b: np.concatenate([a, b])),
    IntrinsicDef("popcount",    1, _popcount),
    IntrinsicDef("clz",         1, _clz),         # of 0 the number of bits
)}
# fmt: on


TVM_INTRINSIC_NAMES = {row.tvm_name: row.name for row in INTRINSICS.values() if row.tvm_name}
"""TVM's name of an intrinsic -> ours, where they differ."""
OpName.tvm_names = {ours: theirs for theirs, ours in TVM_INTRINSIC_NAMES.items()}


def find_intrinsic(op: str) -> IntrinsicDef:
    """Return an intrinsic's definition. An unknown one has any arity, and the effects of its
    attribute "TCallEffectKind"; without the attribute it is assumed opaque.
    """
    if op in INTRINSICS:
        return INTRINSICS[op]
    effect = OP_ATTRS["TCallEffectKind"].get(f"tir.{op}", CallEffectKind.Opaque)
    return IntrinsicDef(
        op,
        ANY_ARITY,
        _raise_no_reference,
        None,
        effect not in (CallEffectKind.ExprAnnotation, CallEffectKind.Pure),
        is_compiled=False,
    )


class CallEffectKind(IntEnum):
    """Effects of a call, the values of the attribute "TCallEffectKind" (TVM's names and numbers).
    A call that reads memory is treated like one that writes it.
    """

    ExprAnnotation = 0
    Pure = 1
    ReadState = 2
    UpdateState = 3
    Opaque = 3
    SpecialCallArg = 4
    EmbedInfo = 5
    ControlJump = 6


_EFFECTS = {n: r.has_effects for r in INTRINSICS.values() for n in (r.name, r.tvm_name) if n}
_EFFECTS |= {"address_of": False, "tvm_access_ptr": False}  # tir.BufferAddress
for _name, _effects in _EFFECTS.items():  # in the one registry, beside the operators of Relay
    OP_ATTRS.setdefault("TCallEffectKind", {})[register_op_name(f"tir.{_name}").name] = (
        CallEffectKind.Opaque if _effects else CallEffectKind.Pure
    )

EXPENSIVE_INTRINSICS = frozenset(("exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "pow"))
"""Intrinsics that cost much more than reading an operand.

Worth storing when they are read twice.
"""
LATENCY_BOUND_INTRINSICS = frozenset(("log", "tanh", "sigmoid"))
"""Intrinsics with dependency chains so long that interleaving two vectors pays; sin, cos and pow,
computed in a wider type, already fill all registers.
"""


def call_intrin(op: str, *args: ExprLike, dtype: str | None = None) -> PrimExpr:
    """Build a call of an intrinsic.

    The result dtype defaults to that of the last argument (bool for isnan and isinf). Values to
    choose from are brought into one dtype; raises TypeError where that cannot be.
    """
    row = INTRINSICS[op]
    if len(args) != row.arity and row.arity != ANY_ARITY:
        raise TypeError(f"intrinsic {op!r}: expected {row.arity} arguments, got {len(args)}")
    if op == "if_then_else":
        # The condition is bool and takes no part in the promotion of the two values.
        args = (args[0], *promote_operands(op, *args[1:]))
    values = tuple([a if isinstance(a, PrimExpr) else convert(a) for a in args])
    if op == "if_then_else" and is_const(values[0]):
        # A known condition takes its branch, so that the other one is never built.
        return values[1] if values[0].value else values[2]  # type: ignore[attr-defined]
    return Intrinsic(op, values, dtype or infer_intrinsic_dtype(op, values))


def infer_intrinsic_dtype(op: str, args: Sequence[PrimExpr]) -> str:
    """Infer the dtype of an intrinsic call from its arguments."""
    row = INTRINSICS.get(op)
    if row is None or row.dtype is None:
        return args[-1].dtype if args else "int32"
    if row.dtype == DTYPE_OF_FIRST_ARG:
        return args[0].dtype
    if row.dtype == DTYPE_OF_SECOND_ARG:
        return args[1].dtype
    # A predicate of a vector is a vector of bools with the same lanes.
    return (
        dt.with_lanes("bool", dt.lanes_suffix(args[-1].dtype)) if row.dtype == "bool" else row.dtype
    )


def shuffle(a: PrimExpr, b: PrimExpr, order: Sequence[int]) -> PrimExpr:
    """Return a vector shuffle of two vectors of one dtype; indices of `b` follow those of `a`."""
    assert a.dtype == b.dtype, f"{a.dtype} and {b.dtype}"
    dtype = dt.with_lanes(dt.element_dtype(a.dtype), len(order))
    return Intrinsic("shuffle", (a, b, *map(const, order)), dtype)


def if_then_else(condition: PrimExpr, true_value: PrimExpr, false_value: PrimExpr) -> PrimExpr:
    """Return the guarded select, which evaluates only the chosen side."""
    return call_intrin("if_then_else", condition, true_value, false_value)
