"""Calls of LLVM intrinsics by name (`call_llvm_intrin`, `call_llvm_pure_intrin`).

The name is written as the program has it, and nothing is declared: LLVM's parser adds the overload
that the operands tell and the declaration, and refuses what it does not have.
"""

from __future__ import annotations

from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.extern_call import ExternCallEmitter
from ekiden.codegen.llvm.types import register_type
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.prim import Intrinsic, PrimExpr, StringImm
from ekiden.runtime.errors import CompileError
from ekiden.tir.expr import BufferAddress
from ekiden.tir.op import VOID_DTYPE


class IntrinsicCallEmitter(ExternCallEmitter):
    """Emitter of `call_llvm_intrin`."""

    def call_llvm(self, e: Intrinsic) -> Operand:
        """Emit the call of an LLVM intrinsic; the result is "undef" if it returns void."""
        name = e.args[0].value if e.args and isinstance(e.args[0], StringImm) else ""
        if not name.startswith("llvm."):
            raise CompileError(f"llvm: {e.op}: expected the name of an intrinsic first, got {e!r}")
        b, effects = self.builder, find_intrinsic(e.op).has_effects
        b.module.intrinsics.add(name)
        operands = ", ".join(" ".join(self._emit_operand(name, a)) for a in e.args[2:])
        if e.dtype == VOID_DTYPE:
            b.append_void(f"call void @{name}({operands})")
            b.touch_memory()
            return "undef"
        call = f"call {_llvm_type(e.dtype)} @{name}({operands})"
        value = b.append_value(call) if effects else b.pure(call)
        if effects:
            b.touch_memory()
        return self._bitcast_bfloat16(value, e.dtype, is_result=True)

    def _emit_operand(self, name: str, a: PrimExpr) -> tuple[str, Operand]:
        if isinstance(a, StringImm):
            raise CompileError(f"llvm: {name}: expected numbers and buffers, got {a!r}")
        if isinstance(a, BufferAddress):
            return self.region_address(a)
        return _llvm_type(a.dtype), self._bitcast_bfloat16(
            self.emit_expr(a), a.dtype, is_result=False
        )

    def _bitcast_bfloat16(self, value: Operand, dtype: str, *, is_result: bool) -> Operand:
        """Bitcast between uint16, which holds our bfloat16, and LLVM's bfloat type."""
        if dt.element_dtype(dtype) != "bfloat16":
            return value
        kinds = [register_type(dtype), _llvm_type(dtype)]
        source, to = reversed(kinds) if is_result else kinds
        return self.builder.pure(f"bitcast {source} {value} to {to}")


def _llvm_type(dtype: str) -> str:
    """Return LLVM's type of a dtype."""
    kind = register_type(dtype)
    return kind.replace("i16", "bfloat") if dt.element_dtype(dtype) == "bfloat16" else kind


__all__ = ["IntrinsicCallEmitter"]
