"""The names of `T` in scripts, after TVM 0.16's `tvm.script.tir`.

    from ekiden.script import tir as T

Expressions (`T.min`, `T.exp`, `T.Select`, `T.float32(x)`, ...) can be called anywhere; statement
forms (`T.grid`, `T.block`, `T.axis.remap`, ...) have a meaning only inside a function under
`@T.prim_func`, whose source is parsed, not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import ml_dtypes

from ekiden.ir import dtype as dt
from ekiden.ir import intrinsic, prim
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.prim import (
    AnyDim,
    BinaryExpr,
    Cast,
    Div,
    ExprLike,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Max,
    Min,
    PrimExpr,
    SizeVar,
    StringImm,
    Var,
    const,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.target.codegen import llvm_lookup_intrinsic_id
from ekiden.tir import expr as tir_expr
from ekiden.tir import op
from ekiden.tir.comm_reducer import reducer_from_function
from ekiden.tir.op import address_of, assume
from ekiden.tir.stmt import Evaluate

Argument = ExprLike | str | tir_expr.Buffer


def typed_constant(value: float, dtype: str | None) -> PrimExpr:
    """Return a number as a constant of a dtype (in every lane of a vector).

    Raises TypeError for a fraction where an integer is required.
    """
    kind = None if dtype is None else dt.element_dtype(dtype)
    if kind is not None and not dt.is_float(kind) and isinstance(value, float):
        raise TypeError(f"expected {dtype}, got the number {value!r}")
    return const(value, dtype)


def unfolded_binary(kind: type[BinaryExpr], a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return `kind(a, b)` without constant folding. Python numbers take the other side's dtype;
    integers of two widths are widened, other dtypes that differ raise TypeError.
    """
    if not isinstance(a, PrimExpr):
        a = typed_constant(a, b.dtype if isinstance(b, PrimExpr) else None)
    if not isinstance(b, PrimExpr):
        b = typed_constant(b, a.dtype)
    if a.dtype != b.dtype:
        if not (dt.is_int(a.dtype) and dt.is_int(b.dtype) and _have_same_lanes(a, b)):
            raise TypeError(
                f"operands of '{kind.symbol}' must have one dtype, got {a.dtype} and {b.dtype}"
            )
        wide = a.dtype if dt.itemsize(a.dtype) >= dt.itemsize(b.dtype) else b.dtype
        a, b = prim.cast(a, wide), prim.cast(b, wide)
    if kind in prim.BOOL_VALUED_OPS:
        return kind(a, b, dt.with_lanes("bool", dt.lanes_suffix(a.dtype)))
    return kind(a, b, a.dtype)


def _have_same_lanes(a: PrimExpr, b: PrimExpr) -> bool:
    return dt.lanes_suffix(a.dtype) == dt.lanes_suffix(b.dtype)


class DType:
    """`T.float32`: an annotation, a constant `T.float32(1.5)`, a cast `T.float32(x)`, a variable
    `n = T.int64()`.
    """

    def __init__(self, name: str) -> None:
        self.dtype = name

    def __call__(
        self,
        value: ExprLike | str | None = None,
        is_size_var: bool = False,
        upper: int | None = None,
        name: str = "",
    ) -> PrimExpr:
        """Return a value of this dtype; a fresh variable without `value`. "inf" and "nan" are
        floats.

        `T.handle("float32")` is the type of an address: its buffer declares the element type.
        """
        if self.dtype == "handle" and isinstance(value, (str, DType)):
            return Var(name, self.dtype)
        if value is None:
            if is_size_var:
                return SizeVar(name, self.dtype, upper=upper)
            return Var(name, self.dtype)
        if isinstance(value, str):
            value = float(value)
        if isinstance(value, PrimExpr):
            return prim.cast(value, self.dtype)
        return typed_constant(value, self.dtype)

    def __repr__(self) -> str:
        return f"T.{self.dtype}"


@dataclass(frozen=True, slots=True, eq=False)
class EnvThread:
    """`T.env_thread("threadIdx.x")`: an axis that `T.launch_thread` gives an extent."""

    axis: str


class ScriptForm:
    """A statement form that has a meaning only where a script is parsed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raise TypeError: the form was called as Python."""
        raise TypeError(f"T.{self.name} has a meaning only inside a function under @T.prim_func")

    def __getattr__(self, name: str) -> ScriptForm:
        if name.startswith("__"):
            raise AttributeError(name)
        return ScriptForm(f"{self.name}.{name}")

    def __repr__(self) -> str:
        return f"T.{self.name}"


def Buffer(  # noqa: N802 - TVM's name
    shape: ExprLike | Sequence[ExprLike],
    dtype: str | DType = "float32",
    *,
    scope: str = "global",
    strides: Sequence[ExprLike] = (),
    elem_offset: ExprLike | None = None,
    name: str = "",
    **promises: object,
) -> tir_expr.Buffer:
    """Return a buffer; `align`, `offset_factor` and other hints to TVM are accepted and ignored.
    Raises TypeError for other keywords.
    """
    unknown = set(promises) - {"align", "offset_factor", "buffer_type", "type", "data_alignment"}
    if unknown:
        raise TypeError(f"a buffer has no {', '.join(sorted(unknown))}")
    dims = shape if isinstance(shape, (tuple, list)) else (shape,)
    return tir_expr.Buffer(
        name,
        tuple(prim.convert(d, "int64") for d in dims),
        dtype if isinstance(dtype, str) else dtype.dtype,
        scope or "global",
        tuple(prim.convert(s, "int64") for s in strides),
        None
        if elem_offset is None or prim.is_const(elem_offset, 0)
        else prim.convert(elem_offset, "int64"),
    )


def _convert_call_arg(value: Argument) -> PrimExpr:
    if isinstance(value, str):
        return StringImm(value)
    if isinstance(value, tir_expr.Buffer):
        return value.access_ptr("rw")
    return prim.convert(value)


def call_intrin(*args: Argument, dtype: str | None = None) -> PrimExpr:
    """Return a call of an intrinsic by name with an explicit dtype, first or by keyword:
    `call_intrin("float32", "exp", x)`.
    """
    kind, op, *operands = args if dtype is None else (dtype, *args)
    return Intrinsic(
        str(op).removeprefix("tir."), tuple(map(_convert_call_arg, operands)), str(kind)
    )


def call_extern(*args: Argument, dtype: str | None = None, op: str = "call_extern") -> PrimExpr:
    """Return a call of a C function: the result dtype, first or by keyword, then the function's
    name; buffers are passed as addresses. The `op` "call_pure_extern" declares that it has no
    side effects.
    """
    kind, *name_and_operands = args if dtype is None else (dtype, *args)
    return call_intrin(kind, op, *name_and_operands)


def _call_llvm(call: Callable[..., PrimExpr]) -> Callable[..., PrimExpr]:
    def construct_call(*args: Argument, dtype: str | None = None) -> PrimExpr:
        return call(*args) if dtype is None else call(dtype, *args)

    return construct_call


def call_packed(*args: Argument, dtype: str | None = None) -> PrimExpr:
    """Return a call of a packed function by its name; buffers are passed as tensors."""
    return call_intrin(dtype or "int32", "call_packed", *args)


def type_annotation(dtype: str) -> PrimExpr:
    """Return a dtype as an argument of T.tvm_access_ptr."""
    return StringImm(dtype)


def tvm_access_ptr(
    ptype: PrimExpr | str,
    data: tir_expr.BufferAddress,
    offset: ExprLike,
    extent: ExprLike,
    rw_mask: int,
    dtype: str = "handle",
) -> PrimExpr:
    """Return `data.access_ptr`: a part of a buffer, by its linear offset and its number of
    elements.

    `dtype` is that of the result, a handle. Raises TypeError for anything but an address of a
    buffer of dtype `ptype`.
    """
    del dtype
    if not isinstance(data, tir_expr.BufferAddress):
        raise TypeError("T.tvm_access_ptr takes the address of a buffer: A.data")
    kind = ptype.value if isinstance(ptype, StringImm) else ptype
    if kind != data.buffer.dtype:
        raise TypeError(f"T.tvm_access_ptr: {data.buffer.name!r} holds {data.buffer.dtype}")
    return data.buffer.access_ptr(rw_mask, offset=offset, extent=extent)


def tvm_stack_make_shape(*dims: ExprLike, dtype: str = "handle") -> tuple[PrimExpr, ...]:
    """Return the shape argument of T.tvm_stack_make_array."""
    del dtype
    return tuple(prim.convert(d, "int64") for d in dims)


def tvm_stack_make_array(
    data: tir_expr.BufferAddress,
    shape: Sequence[ExprLike],
    strides: ExprLike,
    ndim: int,
    element: ExprLike,
    elem_offset: ExprLike,
    dtype: str = "handle",
) -> PrimExpr:
    """Return a buffer as a call's argument: TVM's lowered form of `data.buffer.access_ptr("rw")`.

    Raises TypeError for anything but an address of a buffer, ValueError for another shape or offset
    than the buffer's.
    """
    del strides, ndim, element, dtype
    if not isinstance(data, tir_expr.BufferAddress):
        raise TypeError("T.tvm_stack_make_array takes the address of a buffer: A.data")
    data_pointer = data.buffer
    declared_shape, own_shape = (
        [getattr(d, "value", d) for d in dims] for dims in (shape, data_pointer.shape)
    )
    begins = prim.is_const(elem_offset, 0) or elem_offset is data_pointer.elem_offset
    if declared_shape != own_shape or not begins:
        raise ValueError(
            f"T.tvm_stack_make_array: {data_pointer.name!r} has another shape or offset"
        )
    return data_pointer.access_ptr("rw")


def target(config: str | Mapping[str, object], host: object = None) -> Target:
    """Return a target, for attributes of functions."""
    parsed = Target(config)
    return parsed if host is None else Target(parsed, host)  # type: ignore[arg-type]


def evaluate(value: ExprLike) -> Evaluate:
    """Return the statement that evaluates a value for its effects."""
    return Evaluate(prim.convert(value))


def _binary_constructor(kind: type[BinaryExpr]) -> Callable[[ExprLike, ExprLike], PrimExpr]:
    def construct(a: ExprLike, b: ExprLike) -> PrimExpr:
        return unfolded_binary(kind, a, b)

    return construct


def Not(a: ExprLike) -> PrimExpr:  # noqa: N802
    """Return the logical negation of a condition."""
    value = prim.convert(a, "bool")
    return prim.Not(value, value.dtype)


def Select(condition: ExprLike, true_value: ExprLike, false_value: ExprLike) -> PrimExpr:  # noqa: N802
    """Return a selection that may evaluate both sides; a Python number takes the other side's
    dtype.
    """
    test, yes, no = prim.convert(condition, "bool"), true_value, false_value
    if not isinstance(yes, PrimExpr):
        yes = typed_constant(yes, no.dtype if isinstance(no, PrimExpr) else None)
    if not isinstance(no, PrimExpr):
        no = typed_constant(no, yes.dtype)
    return prim.Select(test, yes, no, yes.dtype)


def Ramp(base: ExprLike, stride: ExprLike, lanes: ExprLike) -> PrimExpr:  # noqa: N802
    """Return the vector base, base + stride, ..."""
    low = prim.convert(base, "int64")
    return tir_expr.Ramp(low, prim.convert(stride, low.dtype), tir_expr.parse_lanes(lanes))


def Broadcast(value: ExprLike, lanes: ExprLike) -> PrimExpr:  # noqa: N802
    """Return the value in every lane."""
    return tir_expr.Broadcast(prim.convert(value), tir_expr.parse_lanes(lanes))


def VectorReduce(kind: str, value: PrimExpr) -> PrimExpr:  # noqa: N802
    """Combine the lanes of a vector by "sum", "max", "min" or "prod"."""
    return tir_expr.VectorReduce(value, kind, dt.element_dtype(value.dtype))


def _cast(dtype: str, value: ExprLike) -> PrimExpr:
    return Cast(prim.convert(value), dtype)


def Any(dtype: str = "int64") -> PrimExpr:  # noqa: N802
    """Return an unknown dimension."""
    return AnyDim(dtype)


def truncmod(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return the remainder of truncating division: `a - truncdiv(a, b) * b`."""
    return prim.fold_binary(prim.Sub, a, prim.fold_binary(prim.Mul, prim.fold_binary(Div, a, b), b))


def _integer_limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer dtype."""
    if dtype == "bool":
        return 0, 1
    bits = dt.SCALAR_BITS[dtype]
    return (0, 2**bits - 1) if dt.is_unsigned(dtype) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def max_value(dtype: str) -> PrimExpr:
    """Return the largest finite value of a dtype."""
    if dt.is_float(dtype):
        return const(float(ml_dtypes.finfo(dt.to_numpy(dtype)).max), dtype)
    return const(_integer_limits(dtype)[1], dtype)


def min_value(dtype: str) -> PrimExpr:
    """Return the smallest finite value of a dtype: the identity element of max."""
    if dt.is_float(dtype):
        return const(float(ml_dtypes.finfo(dt.to_numpy(dtype)).min), dtype)
    return const(_integer_limits(dtype)[0], dtype)


def infinity(dtype: str) -> PrimExpr:
    """Return positive infinity of a floating-point dtype."""
    return const(float("inf"), dtype)


def ceildiv(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return the quotient rounded up, for b > 0."""
    return (prim.convert(a) + b - 1) // b


def _intrinsic_function(op: str) -> Callable[..., PrimExpr]:
    row = intrinsic.INTRINSICS[op]
    if row.arity == intrinsic.ANY_ARITY and row.has_effects:
        return lambda *args, dtype=None: call_intrin(dtype or row.dtype or "int32", op, *args)

    def call(*args: Argument, dtype: str | None = None) -> PrimExpr:
        """Return the call with an inferred dtype unless one is given.

        TVM's form with the dtype as the first argument is accepted too. Raises TypeError for
        another number of arguments.
        """
        if dtype is None and len(args) == row.arity + 1 and isinstance(args[0], str):
            dtype, *args = args  # type: ignore[assignment]  # T.reinterpret("float32", x)
        if row.arity >= 0 and len(args) != row.arity:
            raise TypeError(f"T.{op} takes {row.arity} arguments, got {len(args)}")
        apart = row.dtype == intrinsic.DTYPE_OF_SECOND_ARG
        values = tuple(map(_convert_call_arg, args) if apart else _unify_arguments(args))
        return Intrinsic(op, values, dtype or intrinsic.infer_intrinsic_dtype(op, values))

    return call


def _unify_arguments(args: Sequence[Argument]) -> Sequence[PrimExpr]:
    """Return arguments as expressions; integers among floats become floats."""
    floats = [a for a in args if isinstance(a, PrimExpr) and dt.is_float(a.dtype)]
    like = floats[0].dtype if floats else None
    return [
        typed_constant(a, like)
        if like is not None and isinstance(a, (int, float)) and not isinstance(a, bool)
        else _convert_call_arg(a)
        for a in args
    ]


def _shift(op: str, a: ExprLike, b: ExprLike, dtype: str | None) -> PrimExpr:
    """Return a shift; Python numbers take the other side's dtype, or the requested one."""
    like = next((x.dtype for x in (a, b) if isinstance(x, PrimExpr)), dtype)
    x, y = (v if isinstance(v, PrimExpr) else typed_constant(v, like) for v in (a, b))
    return Intrinsic(op, (x, y), dtype or x.dtype)


_BUILTINS_BY_NAME: dict[str, Callable[..., PrimExpr]] = {
    "Cast": _cast,
    "cast": lambda value, dtype: prim.cast(prim.convert(value), dtype),
    "min": _binary_constructor(Min),
    "max": _binary_constructor(Max),
    "floordiv": _binary_constructor(FloorDiv),
    "floormod": _binary_constructor(FloorMod),
    "truncdiv": _binary_constructor(Div),
    "Mod": truncmod,
    "Div": _binary_constructor(Div),
    "power": lambda a, b: _intrinsic_function("pow")(a, b),
    "ramp": Ramp,
    "broadcast": Broadcast,
    "tvm_call_packed": call_packed,
    "tvm_call_cpacked": call_packed,
    "call_cpacked": call_packed,
    "call_pure_extern": lambda *args, dtype=None: call_extern(
        *args, dtype=dtype, op="call_pure_extern"
    ),
    "call_llvm_intrin": _call_llvm(op.call_llvm_intrin),
    "call_llvm_pure_intrin": _call_llvm(op.call_llvm_pure_intrin),
    "shift_left": lambda a, b, dtype=None: _shift("left_shift", a, b, dtype),
    "shift_right": lambda a, b, dtype=None: _shift("right_shift", a, b, dtype),
    **{
        kind.__name__: _binary_constructor(kind)
        for kind in (prim.Add, prim.Sub, prim.Mul, FloorDiv, FloorMod, Min, Max, prim.And, prim.Or)
    },
    **{kind.__name__: _binary_constructor(kind) for kind in prim.COMPARISON_OPS},
}


_STATEMENT_FORM_NAMES = (
    "grid serial parallel vectorized unroll thread_binding block init axis where reads writes "
    "block_attr func_attr alloc_buffer allocate decl_buffer match_buffer launch_thread LetStmt "
    "meta_var prefetch attr"
)


class Namespace:
    """The namespace `T`; its attributes are created on first use."""

    prim_func: object
    """The decorator; set where it is defined."""

    def __init__(self) -> None:
        for name in _STATEMENT_FORM_NAMES.split():
            setattr(self, name, ScriptForm(name))
        for function in (
            Any, Broadcast, Buffer, Not, Ramp, Select, VectorReduce, call_extern, call_intrin,
            tvm_stack_make_array, tvm_stack_make_shape,
            call_packed, target, tvm_access_ptr, type_annotation, address_of, assume, ceildiv,
            evaluate, infinity, llvm_lookup_intrinsic_id, max_value, min_value, truncmod,
        ):  # fmt: skip
            setattr(self, function.__name__, function)
        for name, builtin in _BUILTINS_BY_NAME.items():
            setattr(self, name, builtin)
        self.buffer_decl = Buffer  # the name of older scripts
        self.comm_reducer = reducer_from_function
        self.env_thread = EnvThread

    def __getattr__(self, name: str) -> object:
        if name in intrinsic.INTRINSICS:
            attribute: object = _intrinsic_function(name)
        elif dt.element_dtype(name) in dt.SCALAR_BITS and _is_vector_dtype_name(name):
            attribute = DType(name)
        else:
            raise AttributeError(f"T has no {name!r}")
        setattr(self, name, attribute)
        return attribute

    def __repr__(self) -> str:
        return "T"


def _is_vector_dtype_name(name: str) -> bool:
    return "x" not in name or name.partition("x")[2].isdigit()


class ModuleNamespace:
    """The namespace `I`, for building modules; `relay` and `module_attrs` are used in their class
    body.
    """

    def __init__(self) -> None:
        self.ir_module: object = None
        """The decorator; set where it is defined."""

    def relay(self, text: str) -> RelayText:
        """Return the text of Relay functions and types, which may call the module's loop programs.
        Raises ValueError before `ekiden.relay` is loaded.
        """
        if IRModule.relay_reader is None:
            raise ValueError("I.relay: import ekiden.relay first")
        return RelayText(text)

    def module_attrs(self, attrs: Mapping[str, object]) -> ModuleAttrs:
        """Return the attributes of a module."""
        return ModuleAttrs(convert_attrs(attrs))

    def __repr__(self) -> str:
        return "I"


@dataclass(frozen=True, slots=True)
class RelayText:
    """The text that I.relay declares, parsed when the loop programs of the module are known."""

    text: str

    def parse(self, functions: Mapping[GlobalVar | str, BaseFunc]) -> IRModule:
        """Return the module of these functions and of the text's. Raises ParseError."""
        assert IRModule.relay_reader is not None
        return IRModule.relay_reader(self.text, "text", IRModule(functions))


@dataclass(frozen=True, slots=True)
class ModuleAttrs:
    """The attributes that I.module_attrs declares."""

    values: Mapping[str, object]


T = Namespace()
I = ModuleNamespace()  # noqa: E741


def convert_attrs(values: Mapping[str, object]) -> dict[str, object]:
    """Return a script's attributes: lists as tuples, constants (`T.bool(True)`) as Python
    values.
    """
    return {key: _convert_attr(value) for key, value in values.items()}


def _convert_attr(value: object) -> object:
    match value:
        case IntImm(value=number, dtype="bool"):
            return bool(number)
        case IntImm(value=number) | FloatImm(value=number):
            return number
        case list() | tuple():
            return tuple(_convert_attr(element) for element in value)
        case dict():
            return {key: _convert_attr(element) for key, element in value.items()}
        case _:
            return value
