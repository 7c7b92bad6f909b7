"""Lower arithmetic on 8-bit and sub-byte types to bytes.

    B: float8_e4m3fn[n]    C[i] = cast(B[i], float32)  ->  C[i] = decode(B[i] as a byte)
    B: int4[n]             C[i] = cast(B[i], int8)     ->  C[i] = B as bytes[i // 2] >> 4 * (i % 2)
    ...

Sub-byte elements are packed, low bits first, so a store is a read-modify-write of its byte: loops
around such stores are serial.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import BinaryExpr, Cast, FloatImm, IntImm, Intrinsic, PrimExpr, cast, const
from ekiden.ir.prim_visitor import children, rebuild, rewrite
from ekiden.runtime.errors import InternalError
from ekiden.tir.contents import contents
from ekiden.tir.expr import BufferLoad
from ekiden.tir.small_types import SMALL_FLOAT_FORMATS, convert_small, sign_extend_low_bits
from ekiden.tir.stmt import BufferStore, For, ForKind, LetStmt, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, buffers_written


def _is_carried(e: PrimExpr) -> bool:
    """Return whether a small number is already written as its carrier."""
    return isinstance(e, Intrinsic) and e.op == "reinterpret" and dt.is_small(e.dtype)


def _as_carried(value: PrimExpr, dtype: str) -> PrimExpr:
    """Return a small number by its carrier: the intermediate form of every expression of a small
    type.
    """
    return Intrinsic("reinterpret", (value,), dtype)


def _carrier(e: PrimExpr) -> PrimExpr:
    return e.args[0] if isinstance(e, Intrinsic) and _is_carried(e) else e


class _Lower(StmtMutator):
    def __init__(self) -> None:
        self._memo: dict[int, PrimExpr] = {}
        self._alive: list[PrimExpr] = []

    def expr(self, expr: PrimExpr) -> PrimExpr:
        # The memo is keyed by id: the expression stays referenced so that its id is not reused.
        self._alive.append(expr)
        return rewrite(expr, self._change, self._memo)

    def _change(self, e: PrimExpr) -> PrimExpr:
        small = dt.is_small(e.dtype)
        if dt.lanes(e.dtype) > 1 and dt.is_small(dt.element(e.dtype)):
            raise InternalError(f"vectors of {e.dtype} cannot be computed with: {e!r}")
        match e:
            case Intrinsic(op="reinterpret") if small or _is_carried(e.args[0]):
                value = _carrier(e.args[0])
                return _as_carried(value, e.dtype) if small else cast(value, e.dtype)
            case Cast() if small or _is_carried(e.value):
                value = convert_small(_carrier(e.value), e.value.dtype, e.dtype)
                return _as_carried(value, e.dtype) if small else value
            case IntImm() | FloatImm() if small:
                return _as_carried(_constant_carrier(e.value, e.dtype), e.dtype)
            case BufferLoad() if small:
                return _as_carried(_loaded(e), e.dtype)
            case BinaryExpr() if _is_carried(e.a):
                return self._binary(e)
        if small:  # it chooses among small numbers
            return _as_carried(_with_dtype(_stripped(e), dt.carrier(e.dtype)), e.dtype)
        return e

    def _binary(self, e: BinaryExpr) -> PrimExpr:
        """Lower arithmetic and comparisons: floats as float32, integers as wrapping bytes."""
        kind = e.a.dtype
        wide = "float32" if kind in dt.SMALL_FLOATS else dt.carrier(kind)
        a, b = (convert_small(_carrier(x), kind, wide) for x in (e.a, e.b))
        if not dt.is_small(e.dtype):
            return e.with_fields(a=a, b=b)
        wide_result = e.with_fields(a=a, b=b, dtype=wide)
        return _as_carried(convert_small(wide_result, wide, kind), kind)

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Store a value as its carrier; a packed one changes only its bits of the byte."""
        kind = stmt.buffer.dtype
        visited = super().visit_store(stmt)
        if not isinstance(visited, BufferStore) or not dt.is_small(kind):
            return visited
        value, (index,) = _carrier(visited.value), visited.indices
        if not dt.is_packed(kind):
            return visited.with_fields(value=cast(value, "uint8"))
        byte, shift = _byte_and_shift(index, kind)
        mask = const((1 << dt.SCALAR_BITS[kind]) - 1, "uint8")
        old = BufferLoad(visited.buffer, (byte,), "uint8")
        hole = call_intrin("bitwise_xor", _shl(mask, shift), const(255, "uint8"))
        bits = _shl(call_intrin("bitwise_and", cast(value, "uint8"), mask), shift)
        new = call_intrin("bitwise_or", call_intrin("bitwise_and", old, hole), bits)
        return visited.with_fields(value=new, indices=(byte,))

    def visit_for(self, stmt: For) -> Stmt:
        """Serialise a loop that writes packed elements: two neighbours share a byte, whose
        read-modify-write would race.
        """
        if any(dt.is_packed(b.dtype) for b in buffers_written(stmt.body)):
            stmt = stmt.with_fields(kind=ForKind.SERIAL, annotations={})
        return super().visit_for(stmt)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Visit a let; raise InternalError for a variable of a small type: lets bind carriers."""
        if dt.is_small(stmt.var.dtype):
            raise InternalError(f"a variable of {stmt.var.dtype} has no carrier: {stmt.var!r}")
        return super().visit_let(stmt)


def _constant_carrier(value: int | float, dtype: str) -> PrimExpr:
    """Return a constant in its carrier."""
    if dtype in dt.SMALL_FLOATS:
        return const(int(dt.to_numpy(dtype).type(value).view("uint8")), "uint8")
    return const(int(dt.to_numpy(dtype).type(int(value))), dt.carrier(dtype))


def _byte_and_shift(index: PrimExpr, dtype: str) -> tuple[PrimExpr, PrimExpr]:
    """Return the byte index of an element and its bit shift in that byte."""
    bits = dt.SCALAR_BITS[dtype]
    return index // (8 // bits), cast(index % (8 // bits), "uint8") * const(bits, "uint8")


def _shl(value: PrimExpr, by: PrimExpr) -> PrimExpr:
    return call_intrin("left_shift", value, by)


def _loaded(load: BufferLoad) -> PrimExpr:
    (index,), kind = load.indices, load.dtype
    if not dt.is_packed(kind):
        return load.with_fields(dtype="uint8")
    byte, shift = _byte_and_shift(index, kind)
    moved = call_intrin("right_shift", BufferLoad(load.buffer, (byte,), "uint8"), shift)
    if kind in SMALL_FLOAT_FORMATS:
        mask = const((1 << dt.SCALAR_BITS[kind]) - 1, "uint8")
        return call_intrin("bitwise_and", moved, mask)
    return sign_extend_low_bits(moved, kind)


def _stripped(e: PrimExpr) -> PrimExpr:
    return rebuild(e, [_carrier(c) for c in children(e)])


def _with_dtype(e: PrimExpr, dtype: str) -> PrimExpr:
    return e.with_fields(dtype=dtype)


def lower_small_types(func: PrimFunc) -> PrimFunc:
    """Return the function without arithmetic on small types; its parameters keep them."""
    params = (dt.element(b.dtype) for b in func.params)
    if not contents(func.body).has_small_types and not any(map(dt.is_small, params)):
        return func
    return func.with_fields(body=_Lower().visit(func.body))
