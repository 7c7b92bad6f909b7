"""Syntax and index narrowing for kernels in WGSL, the language of WebGPU, where it differs from C.

It has no pointers, no integers of 64 bits and no storage of elements below 4 bytes. Memory is
bound: binding i is the i-th memory that a kernel is given, which is declared as read alone where it
is (one buffer may not be bound as both: whoever launches binds a copy of what is read then). The
last is a uniform structure of int32: how many blocks along x, y and z, then for each argument the
element at which its memory begins, or its number. Grids are launched as lines, folded where one is
longer than a dimension may be. Indices are computed in 32 bits, which whoever launches holds sizes
to; data of other types are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden.codegen.c.types import CSyntax, is_parenthesized
from ekiden.ir import dtype as dt
from ekiden.ir.prim import Cast, IntImm, Intrinsic, PrimExpr, Select, SizeVar, Var, cast
from ekiden.ir.prim_visitor import children, post_order, rebuild
from ekiden.runtime.errors import CompileError
from ekiden.tir.expr import Broadcast, Buffer, BufferLoad, Ramp
from ekiden.tir.stmt import Allocate, For, LetStmt, Stmt
from ekiden.tir.visitor import StmtMutator

WGSL_TYPES = {"bool": "bool", "int32": "i32", "uint32": "u32", "float32": "f32", "int": "i32"}
STORAGE_DTYPES = ("float32", "int32", "uint32")
"""Element dtypes of storage buffers."""
WIDE_DTYPE, NARROW_DTYPE = "int64", "int32"
INDEX_SAFE_CALLS = frozenset(("if_then_else", "call_packed", "call_function"))
"""Intrinsics whose int64 result is bounded by their operands; a shift's need not be."""

WGSL_HEADER = """\
var<private> ek_infinity : u32 = 0x7f800000u; /* a constant may not be one */
var<private> ek_nan : u32 = 0x7fc00000u;
fn ek_copysign(x : f32, y : f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
}
"""
WGSL_KEYWORDS = frozenset(
    "alias break case const const_assert continue continuing default diagnostic discard else "
    "enable false fn for if let loop override requires return struct switch true var while "
    "abs acos all any array atan bitcast bool ceil clamp cos cosh countOneBits cross degrees "
    "determinant distance dot exp exp2 extractBits f16 f32 faceForward floor fma fract frexp "
    "i32 insertBits inverseSqrt ldexp length log log2 mat2x2 max min mix modf normalize pow "
    "ptr radians reflect refract reverseBits round sampler saturate select sign sin sinh "
    "smoothstep sqrt step tan tanh transpose trunc u32 vec2 vec3 vec4 atomic active as async "
    "attribute auto await class compile constexpr delete demote do enum export extern filter "
    "final friend from get goto groupshared handle impl implements import inline instanceof "
    "interface layout macro match meta mod module move mut namespace new nil noexcept "
    "nointerpolation null nullptr of operator package packoffset pass patch pixelfragment "
    "precise precision premerge priv protected pub public readonly ref regardless register "
    "restrict self set shared static std subroutine super target template this throw trait "
    "try type typedef union unless unsafe unsized use using varying virtual volatile where "
    "with writeonly yield".split()
)


class WgslSyntax(CSyntax):
    """Syntax of WGSL: its types, declarations and conversions."""

    def type(self, dtype: str) -> str:
        """Return the type of one lane. Raises CompileError where there is none."""
        name = WGSL_TYPES.get(dt.element_dtype(dtype))
        if name is None:
            raise CompileError(f"WGSL has no {dt.element_dtype(dtype)}")
        return name

    def integer(self, dtype: str, unsigned: bool) -> str:
        """Return the 32-bit integer type. Raises CompileError for another width."""
        bits = dt.SCALAR_BITS[dt.element_dtype(dtype)]
        if bits != 32:
            raise CompileError(f"WGSL has no integers of {bits} bits")
        return "u32" if unsigned else "i32"

    def constant(self, value: int | float, dtype: str) -> str:
        """Return a typed constant."""
        kind = self.type(dtype)
        if kind == "bool":
            return "true" if value else "false"
        if kind != "f32":
            return _wgsl_integer_constant(int(value), kind)
        with np.errstate(over="ignore"):
            single = np.float32(value)
        # WGSL refuses constant expressions that are NaN or infinite: the bits are in variables.
        if math.isnan(single):
            return "bitcast<f32>(ek_nan)"
        if math.isinf(single):
            text = "bitcast<f32>(ek_infinity)"
        else:
            text = str(abs(single))
            text = (text if any(c in text for c in ".e") else f"{text}.0") + "f"
        return f"(-{text})" if single < 0 or math.copysign(1, single) < 0 else text

    def cast(self, kind: str, x: str) -> str:
        """Return a conversion such as `i32(x)`."""
        return f"{kind}{x}" if is_parenthesized(x) else f"{kind}({x})"

    def conditional(self, condition: str, yes: str, no: str) -> str:
        """Return `select(no, yes, condition)`; both sides are evaluated, and WGSL clamps reads to
        memory.
        """
        return f"select({no}, {yes}, {condition})"

    def let(self, kind: str, name: str, value: str) -> str:
        """Return `let x : i32 = ...;`."""
        return f"let {name} : {kind} = {value};"

    def var(self, kind: str, name: str, *extents: int) -> str:
        """Return `var x : array<f32, 4>;`."""
        for extent in reversed(extents):
            kind = f"array<{kind}, {extent}>"
        return f"var {name} : {kind};"

    def for_header(self, kind: str, name: str, low: str, high: str) -> str:
        """Return `for (var i : i32 = ...`."""
        kind = WGSL_TYPES.get(kind, kind)
        return f"for (var {name} : {kind} = {low}; {name} < {high}; {name}++) {{"

    def shift(self, kind: str, x: str, symbol: str, by: str) -> str:
        """Return a shift by an unsigned amount."""
        return f"{self.cast(kind, x)} {symbol} {self.cast('u32', by)}"

    def remainder(self, x: str, y: str) -> str:
        """Return the remainder, computed from the quotient: drivers treat a negative divisor of `%`
        as a large unsigned one (lavapipe 22.3: 7 % -2 is 7).
        """
        return f"{x} - {x} / {y} * {y}"

    def discard(self, value: str) -> str:
        """Return `_ = x;`."""
        return f"_ = {value};"

    def function_header(self, name: str, parameters: Sequence[tuple[str, str]], result: str) -> str:
        """Return `fn f(x : f32) -> f32 {`."""
        return f"fn {name}({', '.join(f'{x} : {kind}' for kind, x in parameters)}) -> {result} {{"

    def math(self, name: str, dtype: str) -> str:
        """Return WGSL's name of a <math.h> function."""
        self.type(dtype)
        return {"rint": "round", "fabs": "abs", "copysign": "ek_copysign"}.get(name, name)


def _wgsl_integer_constant(value: int, kind: str) -> str:
    wrapped = value & 0xFFFFFFFF
    if kind == "u32":
        return f"{wrapped}u"
    signed = wrapped - (1 << 32) if wrapped >> 31 else wrapped
    # WGSL reads 2147483648i before its sign, and that is out of range.
    if signed == -(1 << 31):
        return "(-2147483647i - 1i)"
    return f"({signed}i)" if signed < 0 else f"{signed}i"


class IndexNarrower(StmtMutator):
    """Mutator that narrows indices and sizes from int64 to int32 wherever they are not data."""

    def __init__(self) -> None:
        self.variables: dict[Var, Var] = {}
        self.buffers: dict[Buffer, Buffer] = {}
        """Narrowed thread-local and shared buffers, which hold indices because kernels have no
        64-bit data.
        """
        self._memo: dict[int, PrimExpr] = {}
        self._keepalive: list[PrimExpr] = []

    def narrow_var(self, var: Var) -> Var:
        """Return the narrow replacement of a variable."""
        if dt.element_dtype(var.dtype) != WIDE_DTYPE:
            return var
        if var not in self.variables:
            kind = SizeVar if isinstance(var, SizeVar) else Var
            self.variables[var] = kind(var.name, _narrow_dtype(var.dtype))
        return self.variables[var]

    def rewrite_buffer(self, buffer: Buffer) -> Buffer:
        """Return the replacement of a buffer."""
        return self.buffers.get(buffer, buffer)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Narrow the extents of an allocation."""
        buffer = stmt.buffer
        if dt.element_dtype(buffer.dtype) == WIDE_DTYPE:
            self.buffers[buffer] = buffer.with_fields(dtype=_narrow_dtype(buffer.dtype))
        return super().visit_allocate(stmt)

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression with int32 in place of int64."""
        # The memo is keyed by id: its nodes stay alive, or an id could be used again.
        self._keepalive.append(expr)
        for node in post_order(expr):
            if id(node) not in self._memo:
                new = self._narrow_node(node)
                self._memo[id(node)] = new
                self._keepalive += (node, new)
        return self._memo[id(expr)]

    def _narrow_node(self, e: PrimExpr) -> PrimExpr:
        operands = [self._memo[id(c)] for c in children(e)]
        is_wide = dt.element_dtype(e.dtype) == WIDE_DTYPE
        match e:
            case Var():
                return self.narrow_var(e)
            case IntImm() if is_wide:
                if not -(1 << 31) <= e.value < 1 << 31:
                    raise CompileError(f"WGSL has no integers of 64 bits: {e.value}")
                return IntImm(e.value, NARROW_DTYPE)
            case Cast():
                if is_wide and dt.is_float(e.value.dtype):
                    raise CompileError("WGSL has no integers of 64 bits: a float is made one")
                return cast(operands[0], _narrow_dtype(e.dtype))
            case BufferLoad() if e.buffer in self.buffers:
                rebuilt = rebuild(e, operands)
                assert isinstance(rebuilt, BufferLoad)
                return rebuilt.with_fields(buffer=self.buffers[e.buffer])
            case BufferLoad() if is_wide:
                raise CompileError(f"WGSL has no integers of 64 bits: buffer {e.buffer.name!r}")
            case Select():  # the operands already have the narrowed dtype
                return Select(operands[0], operands[1], operands[2])
            case Broadcast():
                return Broadcast(operands[0], e.lanes)
            case Ramp():
                return Ramp(operands[0], operands[1], e.lanes)
            case Intrinsic() if is_wide and e.op not in INDEX_SAFE_CALLS:
                raise CompileError(f"WGSL has no integers of 64 bits: {e.op} of int64")
            case Intrinsic():
                return (
                    Intrinsic(e.op, tuple(operands), _narrow_dtype(e.dtype)) if children(e) else e
                )
        return rebuild(e, operands)

    def visit_for(self, stmt: For) -> Stmt:
        """Narrow a loop's variable."""
        loop = super().visit_for(stmt)
        if not isinstance(loop, For):
            return loop
        return loop.with_fields(loop_var=self.narrow_var(stmt.loop_var))

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Narrow a let variable."""
        binding = super().visit_let(stmt)
        assert isinstance(binding, LetStmt)
        return binding.with_fields(var=self.narrow_var(stmt.var))


def _narrow_dtype(dtype: str) -> str:
    return (
        dt.with_lanes(NARROW_DTYPE, dt.lanes(dtype))
        if dt.element_dtype(dtype) == WIDE_DTYPE
        else dtype
    )


__all__ = ["STORAGE_DTYPES", "WGSL_HEADER", "WGSL_KEYWORDS", "IndexNarrower", "WgslSyntax"]
