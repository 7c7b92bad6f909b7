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
from ekiden.tir.expr import BufferLoad
from ekiden.tir.small_types import SMALL_FLOAT_FORMATS, convert_small_dtype, sign_extend_low_bits
from ekiden.tir.stmt import BufferStore, For, ForKind, LetStmt, PrimFunc, Stmt
from ekiden.tir.stmt_summary import summarize_stmt
from ekiden.tir.visitor import StmtMutator, buffers_written


def _is_storage_value(e: PrimExpr) -> bool:
    """Return whether a value of a narrow dtype is already in its storage dtype."""
    return isinstance(e, Intrinsic) and e.op == "reinterpret" and dt.is_byte_stored(e.dtype)


def _wrap_storage(value: PrimExpr, dtype: str) -> PrimExpr:
    """Return a small number by its carrier: the intermediate form of every expression of a small
    type.
    """
    return Intrinsic("reinterpret", (value,), dtype)


def _unwrap_storage(e: PrimExpr) -> PrimExpr:
    return e.args[0] if isinstance(e, Intrinsic) and _is_storage_value(e) else e


class _SmallTypeLowerer(StmtMutator):
    def __init__(self) -> None:
        self._memo: dict[int, PrimExpr] = {}
        self._keepalive: list[PrimExpr] = []

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Lower an expression; results are cached by identity."""
        # The memo is keyed by id: the expression stays referenced so that its id is not reused.
        self._keepalive.append(expr)
        return rewrite(expr, self._lower_node, self._memo)

    def _lower_node(self, e: PrimExpr) -> PrimExpr:
        small = dt.is_byte_stored(e.dtype)
        if dt.lanes(e.dtype) > 1 and dt.is_byte_stored(dt.element_dtype(e.dtype)):
            raise InternalError(f"vectors of {e.dtype} cannot be computed with: {e!r}")
        match e:
            case Intrinsic(op="reinterpret") if small or _is_storage_value(e.args[0]):
                value = _unwrap_storage(e.args[0])
                return _wrap_storage(value, e.dtype) if small else cast(value, e.dtype)
            case Cast() if small or _is_storage_value(e.value):
                value = convert_small_dtype(_unwrap_storage(e.value), e.value.dtype, e.dtype)
                return _wrap_storage(value, e.dtype) if small else value
            case IntImm() | FloatImm() if small:
                return _wrap_storage(_constant_storage(e.value, e.dtype), e.dtype)
            case BufferLoad() if small:
                return _wrap_storage(_lower_load(e), e.dtype)
            case BinaryExpr() if _is_storage_value(e.a):
                return self._lower_binary(e)
        if small:  # it chooses among small numbers
            return _wrap_storage(
                _relabel_dtype(_strip_likely(e), dt.storage_dtype(e.dtype)), e.dtype
            )
        return e

    def _lower_binary(self, e: BinaryExpr) -> PrimExpr:
        """Lower arithmetic and comparisons: floats as float32, integers as wrapping bytes."""
        kind = e.a.dtype
        # Every value of a small float type is exact in float32.
        wide = "float32" if kind in dt.SMALL_FLOATS else dt.storage_dtype(kind)
        a, b = (convert_small_dtype(_unwrap_storage(x), kind, wide) for x in (e.a, e.b))
        if not dt.is_byte_stored(e.dtype):
            return e.with_fields(a=a, b=b)
        wide_result = e.with_fields(a=a, b=b, dtype=wide)
        return _wrap_storage(convert_small_dtype(wide_result, wide, kind), kind)

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Store a value as its carrier; a packed one changes only its bits of the byte."""
        kind = stmt.buffer.dtype
        visited = super().visit_store(stmt)
        if not isinstance(visited, BufferStore) or not dt.is_byte_stored(kind):
            return visited
        value, (index,) = _unwrap_storage(visited.value), visited.indices
        if not dt.is_packed(kind):
            return visited.with_fields(value=cast(value, "uint8"))
        byte, shift = _byte_and_shift(index, kind)
        mask = const((1 << dt.SCALAR_BITS[kind]) - 1, "uint8")
        old = BufferLoad(visited.buffer, (byte,), "uint8")
        hole = call_intrin("bitwise_xor", _shift_left(mask, shift), const(255, "uint8"))
        bits = _shift_left(call_intrin("bitwise_and", cast(value, "uint8"), mask), shift)
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
        if dt.is_byte_stored(stmt.var.dtype):
            raise InternalError(f"a variable of {stmt.var.dtype} has no carrier: {stmt.var!r}")
        return super().visit_let(stmt)


def _constant_storage(value: int | float, dtype: str) -> PrimExpr:
    """Return a constant in its carrier."""
    if dtype in dt.SMALL_FLOATS:
        return const(int(dt.to_numpy(dtype).type(value).view("uint8")), "uint8")
    return const(int(dt.to_numpy(dtype).type(int(value))), dt.storage_dtype(dtype))


def _byte_and_shift(index: PrimExpr, dtype: str) -> tuple[PrimExpr, PrimExpr]:
    """Return the byte index of an element and its bit shift in that byte."""
    bits = dt.SCALAR_BITS[dtype]
    return index // (8 // bits), cast(index % (8 // bits), "uint8") * const(bits, "uint8")


def _shift_left(value: PrimExpr, by: PrimExpr) -> PrimExpr:
    return call_intrin("left_shift", value, by)


def _lower_load(load: BufferLoad) -> PrimExpr:
    (index,), kind = load.indices, load.dtype
    if not dt.is_packed(kind):
        return load.with_fields(dtype="uint8")
    byte, shift = _byte_and_shift(index, kind)
    moved = call_intrin("right_shift", BufferLoad(load.buffer, (byte,), "uint8"), shift)
    # Codes of floats are zero-extended: decoding reads the sign from its own bit.
    if kind in SMALL_FLOAT_FORMATS:
        mask = const((1 << dt.SCALAR_BITS[kind]) - 1, "uint8")
        return call_intrin("bitwise_and", moved, mask)
    return sign_extend_low_bits(moved, kind)


def _strip_likely(e: PrimExpr) -> PrimExpr:
    return rebuild(e, [_unwrap_storage(c) for c in children(e)])


def _relabel_dtype(e: PrimExpr, dtype: str) -> PrimExpr:
    return e.with_fields(dtype=dtype)


def lower_small_types(func: PrimFunc) -> PrimFunc:
    """Return the function without arithmetic on small types; its parameters keep them."""
    params = (dt.element_dtype(b.dtype) for b in func.params)
    if not summarize_stmt(func.body).has_small_types and not any(map(dt.is_byte_stored, params)):
        return func
    return func.with_fields(body=_SmallTypeLowerer().visit(func.body))
