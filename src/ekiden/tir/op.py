"""Functions of scalar expressions, by TVM's names: `tir.exp`, `tir.floordiv`, ...

What may be folded is: `tir.max(2, 3)` is 3. The classes (`tir.Max`, ...) make nodes as written.
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
from ekiden.ir.intrinsic import INTRINSICS, LIKE_FIRST, NAMES, if_then_else
from ekiden.ir.intrinsic import call_intrin as _call
from ekiden.ir.prim import (
    Add,
    Comparison,
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
    binary,
    cast,
    convert,
    number_beside,
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


def _argument(value: Argument) -> PrimExpr:
    """What a call gets: a string as its text, a buffer as its address."""
    if isinstance(value, str):
        return StringImm(value)
    return value.access_ptr("rw") if isinstance(value, Buffer) else convert(value)


def call_packed(*args: Argument) -> PrimExpr:
    """A call of a function that the runtime knows by name, the first argument; buffers go as
    tensors. Its value is the function's, an int32.
    """
    return Intrinsic("call_packed", tuple(map(_argument, args)), "int32")


NO_VALUE = "handle"
"""The dtype of calls without a value, as in TVM, where programs write "" or "void"."""


def _result(dtype: str) -> str:
    return NO_VALUE if dtype in ("", "void") else dtype


def call_extern(dtype: str, func_name: str, *args: Argument) -> PrimExpr:
    """A call of a C function; buffers go as addresses."""
    return Intrinsic("call_extern", (StringImm(func_name), *map(_argument, args)), _result(dtype))


def call_pure_extern(dtype: str, func_name: str, *args: Argument) -> PrimExpr:
    """The same of one that does nothing but give its value."""
    return Intrinsic("call_pure_extern", (StringImm(func_name), *map(_argument, args)), dtype)


def call_llvm_intrin(dtype: str, name: str | int | IntImm, *args: Argument) -> PrimExpr:
    """A call of an intrinsic of LLVM, by its name or its number (`llvm_lookup_intrinsic_id`), whose
    overload may be left out: "llvm.sqrt", "llvm.x86.sse2.pmadd.wd". As in TVM the number of
    operands that the overload is told by comes before them: `tir.const(1, "uint32"), x`. The dtype
    "" is that of an intrinsic without a value, and "handle" in texts; Python's integers are
    int32, and buffers go as addresses.

    Raises ExpressionError where LLVM has no intrinsic of that name, and for another first argument.
    """
    return _call_llvm("call_llvm_intrin", dtype, name, args)


def call_llvm_pure_intrin(dtype: str, name: str | int | IntImm, *args: Argument) -> PrimExpr:
    """The same of one that does nothing but give its value."""
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
        const(a, "int32" if at else "uint32") if type(a) is int else _argument(a)
        for at, a in enumerate(args)
    ]
    for kind in (dtype, *(a.dtype for a in numbers)):
        if kind and dt.is_small(dt.element(kind)):
            raise ExpressionError(f"{op}: {name}: LLVM has no type for {kind}")
    return Intrinsic(op, (StringImm(name), *numbers), _result(dtype))


def ret(val: ExprLike) -> PrimExpr:
    """The value of the function, which ends there: `tir.Evaluate(tir.ret(x))`. It stands in
    programs; code generators refuse it, as what a compiled function gives it writes."""
    return _call("ret", convert(val))


def call_intrin(dtype: str, func_name: str, *args: Argument) -> PrimExpr:
    """A call of an intrinsic by name, ours or TVM's, of a dtype, which written numbers take where
    the result has that of its operands. Raises KeyError for an unknown one.
    """
    name = func_name.removeprefix("tir.")
    name = NAMES.get(name, name)
    if name not in INTRINSICS:
        raise KeyError(f"call_intrin: no intrinsic {func_name!r}")
    alike = INTRINSICS[name].dtype in (None, LIKE_FIRST) and dt.is_int(dtype)
    given = [const(a, dtype) if alike and type(a) is int else _argument(a) for a in args]
    return Intrinsic(name, tuple(given), dtype)


def address_of(load: BufferLoad | Buffer) -> BufferAddress:
    """Where an element, or a buffer, is; for calls."""
    if isinstance(load, Buffer):
        return load.access_ptr("rw")
    return load.buffer.access_ptr("rw", load.indices, [1] * len(load.indices))


def _named(op: str) -> Callable[..., PrimExpr]:
    row = INTRINSICS[op]

    def apply(*args: ExprLike) -> PrimExpr:
        return _call(op, *beside(args))

    apply.__name__ = apply.__qualname__ = op
    count = "scalar expressions" if row.arity != 1 else "a scalar expression"
    apply.__doc__ = f"`{op}` of {count} (see ekiden.ir.intrinsic)."
    return apply


def beside(values: Sequence[ExprLike]) -> list[PrimExpr]:
    """Values as expressions; Python numbers take the dtype of the first expression, but floats
    beside integers are float32, and make these so.
    """
    like = next((v.dtype for v in values if isinstance(v, PrimExpr)), None)
    made = [v if isinstance(v, PrimExpr) else number_beside(v, like) for v in values]
    given = [m.dtype for m, v in zip(made, values, strict=True) if not isinstance(v, PrimExpr)]
    wide = next((d for d in given if d != like and dt.is_float(d)), None) if like else None
    return made if wide is None else [cast(m, wide) if dt.is_int(m.dtype) else m for m in made]


exp, exp2, exp10, log, log2, log10 = map(_named, "exp exp2 exp10 log log2 log10".split())
log1p, sqrt, rsqrt, erf, sigmoid = map(_named, "log1p sqrt rsqrt erf sigmoid".split())
sin, cos, tan, asin, acos, atan = map(_named, "sin cos tan asin acos atan".split())
sinh, cosh, tanh, asinh, acosh, atanh = map(_named, "sinh cosh tanh asinh acosh atanh".split())
abs, floor, ceil, round, trunc = map(_named, "abs floor ceil round trunc".split())
isnan, isinf, isfinite, nearbyint = map(_named, "isnan isinf isfinite nearbyint".split())
power, fma, fmod, atan2, hypot = map(_named, "pow fma fmod atan2 hypot".split())
copysign, ldexp, popcount, clz = map(_named, "copysign ldexp popcount clz".split())
q_multiply_shift = _named("q_multiply_shift")
bitwise_not = _named("bitwise_not")
bitwise_and, bitwise_or, bitwise_xor = map(_named, "bitwise_and bitwise_or bitwise_xor".split())
shift_left, shift_right = map(_named, "left_shift right_shift".split())
pow = power


def assume(cond: ExprLike) -> PrimExpr:
    """A promise that a condition holds from here to the end of the statements it stands among:
    `tir.Evaluate(tir.assume(n % 16 == 0))`. `transform.Simplify` uses what it says of variables,
    lowering uses it and drops it; where it does not hold what a compiled program does is not said.

    Raises TypeError for what is no bool. TVM: tir.assume.
    """
    condition = convert(cond)
    if condition.dtype != "bool":
        raise TypeError(f"assume: a condition is a bool, got {condition.dtype}")
    return _call("assume", condition)


def undef(dtype: str = "int32") -> PrimExpr:
    """No value in particular: storing it says that nobody reads what is there.
    `transform.RemoveStoreUndef` drops such stores; code generators refuse what is left.

    TVM: tir.undef, an int32.
    """
    return Intrinsic("undef", (), dtype)


def vscale() -> PrimExpr:
    """Of how many times their least width the scalable vectors of the processor are, an int64:
    `tir.Ramp(0, 1, 4 * tir.vscale())`.
    """
    return _call("vscale")


def likely(cond: ExprLike) -> PrimExpr:
    """A condition that loop partition makes true in a loop of its own."""
    return _call("likely", convert(cond))


def vectorlow(dtype: str, vec: PrimExpr) -> PrimExpr:
    """The first half of the lanes of a vector, of type `dtype`. Raises TypeError for another."""
    return _half("vectorlow", dtype, vec)


def vectorhigh(dtype: str, vec: PrimExpr) -> PrimExpr:
    """The second half of the lanes of a vector, of type `dtype`. Raises TypeError for another."""
    return _half("vectorhigh", dtype, vec)


def vectorcombine(dtype: str, vec1: PrimExpr, vec2: PrimExpr) -> PrimExpr:
    """The lanes of two vectors of one type behind one another, of type `dtype`. Raises TypeError
    for others."""
    whole = dt.with_lanes(dt.element(vec1.dtype), 2 * dt.lanes(vec1.dtype))
    if vec1.dtype != vec2.dtype or dtype != whole:
        given = f"{vec1.dtype} and {vec2.dtype}"
        raise TypeError(f"vectorcombine: two halves of {dtype} expected, got {given}")
    return Intrinsic("vectorcombine", (vec1, vec2), dtype)


def _half(op: str, dtype: str, vec: PrimExpr) -> PrimExpr:
    lanes = dt.lanes(vec.dtype)
    if lanes < 4 or lanes % 2 or dtype != dt.with_lanes(dt.element(vec.dtype), lanes // 2):
        raise TypeError(f"{op}: {dtype} is not half of a vector of {vec.dtype}")
    return Intrinsic(op, (vec,), dtype)


def _of_threads(op: str) -> Callable[..., PrimExpr]:
    """A call for the threads of a device, which stands in programs; no generator has it."""

    def apply(*args: Argument) -> PrimExpr:
        return Intrinsic(op, tuple(map(_argument, args)), INTRINSICS[op].dtype or "int32")

    apply.__name__ = apply.__qualname__ = op
    apply.__doc__ = f"The call `{op}` of NVIDIA's threads; it stands in programs alone."
    return apply


def _typed_of_threads(op: str) -> Callable[..., PrimExpr]:
    """The same, of a dtype that comes first."""

    def apply(dtype: str, *args: Argument) -> PrimExpr:
        return Intrinsic(op, tuple(map(_argument, args)), dtype)

    apply.__name__ = apply.__qualname__ = op
    apply.__doc__ = f"The call `{op}` of NVIDIA's threads, of a dtype; it stands in programs alone."
    return apply


tvm_fill_fragment, tvm_load_matrix_sync, tvm_store_matrix_sync = map(
    _of_threads, "tvm_fill_fragment tvm_load_matrix_sync tvm_store_matrix_sync".split()
)
tvm_mma_sync, tvm_bmma_sync, tvm_thread_allreduce, create_barriers = map(
    _of_threads, "tvm_mma_sync tvm_bmma_sync tvm_thread_allreduce create_barriers".split()
)
ptx_commit_group, ptx_wait_group, ptx_cp_async_barrier, ptx_wait_barrier = map(
    _of_threads, "ptx_commit_group ptx_wait_group ptx_cp_async_barrier ptx_wait_barrier".split()
)
ptx_init_barrier_thread_count = _of_threads("ptx_init_barrier_thread_count")
ptx_arrive_barrier = _of_threads("ptx_arrive_barrier")
ptx_arrive_barrier_expect_tx = _of_threads("ptx_arrive_barrier_expect_tx")
ptx_mma, ptx_mma_sp, ptx_ldmatrix, mma_store, mma_fill, ptx_cp_async, ptx_cp_async_bulk = map(
    _typed_of_threads,
    "ptx_mma ptx_mma_sp ptx_ldmatrix mma_store mma_fill ptx_cp_async ptx_cp_async_bulk".split(),
)


def _shuffle(op: str, lane: str) -> Callable[..., PrimExpr]:
    """A call by which a thread has what another of its warp calls it with."""

    def apply(
        mask: ExprLike, value: ExprLike, lane: ExprLike, width: int, warp_size: int
    ) -> PrimExpr:
        """The call; what it gives is said below."""
        return _call(op, mask, value, lane, width, warp_size)

    apply.__name__ = apply.__qualname__ = op
    apply.__doc__ = (
        f"The value of the thread {lane}, of `width` neighbours in a warp of `warp_size` threads; "
        "all whose bits are set in `mask` make the call. Of a thread that does not, the value is "
        "none in particular."
    )
    return apply


tvm_warp_shuffle = _shuffle("tvm_warp_shuffle", "whose number among them is `lane`")
tvm_warp_shuffle_up = _shuffle("tvm_warp_shuffle_up", "`lane` before, one's own where none is")
tvm_warp_shuffle_down = _shuffle("tvm_warp_shuffle_down", "`lane` behind, one's own where none is")


def tvm_warp_activemask() -> PrimExpr:
    """The threads of the warp that are here, as the bits of a uint32."""
    return _call("tvm_warp_activemask")


def reinterpret(dtype: str, value: ExprLike) -> PrimExpr:
    """The bits of a value as another type of the same size. Raises TypeError for other sizes."""
    given = convert(value)
    if dt.itemsize(given.dtype) * dt.lanes(given.dtype) != dt.itemsize(dtype) * dt.lanes(dtype):
        raise TypeError(f"reinterpret: {given.dtype} and {dtype} are of two sizes")
    return Intrinsic("reinterpret", (given,), dtype)


def all(*args: PrimExpr) -> PrimExpr:
    """Whether every condition holds. Raises ValueError when there is none."""
    return _joined("all", _both, args)


def any(*args: PrimExpr) -> PrimExpr:
    """Whether some condition holds. Raises ValueError when there is none."""
    return _joined("any", lambda a, b: binary(Or, a, b), args)


def _joined(
    name: str, join: Callable[[PrimExpr, PrimExpr], PrimExpr], conditions: tuple[PrimExpr, ...]
) -> PrimExpr:
    if not conditions:
        raise ValueError(f"{name}: expected at least one condition")
    found = convert(conditions[0])
    for each in conditions[1:]:
        found = join(found, convert(each))
    return found


def add(a: ExprLike, b: ExprLike) -> PrimExpr:
    """`a + b`."""
    return binary(Add, a, b)


def subtract(a: ExprLike, b: ExprLike) -> PrimExpr:
    """`a - b`."""
    return binary(Sub, a, b)


def multiply(a: ExprLike, b: ExprLike) -> PrimExpr:
    """`a * b`."""
    return binary(Mul, a, b)


def div(a: ExprLike, b: ExprLike) -> PrimExpr:
    """`a / b` as C does: integers are truncated towards zero."""
    return binary(Div, a, b)


def truncdiv(a: ExprLike, b: ExprLike) -> PrimExpr:
    """The integer quotient, truncated towards zero."""
    return binary(Div, a, b)


def truncmod(a: ExprLike, b: ExprLike) -> PrimExpr:
    """What `truncdiv` leaves, with the sign of a."""
    left, right = beside((a, b))
    return binary(Sub, left, binary(Mul, binary(Div, left, right), right))


def Mod(a: ExprLike, b: ExprLike) -> PrimExpr:  # noqa: N802 - a class in TVM
    """`truncmod`, under the name that it has as a class in TVM."""
    return truncmod(a, b)


def floordiv(a: ExprLike, b: ExprLike) -> PrimExpr:
    """The integer quotient, rounded down."""
    return binary(FloorDiv, a, b)


def floormod(a: ExprLike, b: ExprLike) -> PrimExpr:
    """What `floordiv` leaves, with the sign of b."""
    return binary(FloorMod, a, b)


def ceildiv(a: ExprLike, b: ExprLike) -> PrimExpr:
    """The integer quotient, rounded up."""
    left, right = beside((a, b))
    return binary(FloorDiv, left + right - 1, right)


indexdiv, indexmod = floordiv, floormod


def min(a: ExprLike, b: ExprLike, *more: ExprLike) -> PrimExpr:
    """The smallest of values; over axes see te.min."""
    return reduce(partial(binary, Min), more, binary(Min, a, b))


def max(a: ExprLike, b: ExprLike, *more: ExprLike) -> PrimExpr:
    """The largest of values; over axes see te.max."""
    return reduce(partial(binary, Max), more, binary(Max, a, b))


def const(value: float | Comparison, dtype: str | None = None) -> PrimExpr:
    """A constant; see `ir.prim.const`. Raises ExpressionError if its dtype has no such number."""
    made = _const(value, dtype)  # type: ignore[arg-type]
    if isinstance(made, IntImm) and (ends := int_range(made.dtype)) is not None:
        if not ends[0] <= made.value <= ends[1]:
            raise ExpressionError(
                f"const {value}: {made.dtype} has numbers from {ends[0]} to {ends[1]}"
            )
    elif isinstance(made, FloatImm) and made.dtype in ("float16", "float32"):
        largest = float(np.finfo(made.dtype).max)
        if math.isfinite(made.value) and math.fabs(made.value) > largest:
            raise ExpressionError(f"const {value}: the largest number of {made.dtype} is {largest}")
    return made


def infinity(dtype: str) -> PrimExpr:
    """The infinity of a floating-point dtype."""
    return const(float("inf"), dtype)


def logical_not(a: ExprLike) -> PrimExpr:
    """Whether a condition does not hold."""
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
