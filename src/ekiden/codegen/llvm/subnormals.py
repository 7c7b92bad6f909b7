"""Flush subnormal numbers to zero inside functions: arithmetic on values that decay in a loop takes
100 cycles and more.

        save the mode; set FTZ and DAZ; ...; restore the mode; return

The mode is also restored before the runtime is called for a parallel loop: a worker thread that is
created then inherits the mode of its creator, and would keep it for ever.
"""

from __future__ import annotations

from ekiden.codegen.llvm.builder import FunctionBuilder, Operand
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.features import ARM, X86

MXCSR_FTZ_DAZ = (1 << 15) | (1 << 6)
"""MXCSR bits: flush-to-zero (FTZ) and denormals-are-zero (DAZ)."""
FPCR_FZ = 1 << 24
"""FPCR bit: flush-to-zero (FZ)."""


@dataclass(frozen=True, slots=True)
class FlushToZeroMode:
    """Control-register setting: the instruction, and its operands outside and inside of the
    flushing region.
    """

    intrinsic: str
    saved_mode: Operand
    flush_mode: Operand

    def restore_mode(self, b: FunctionBuilder) -> None:
        """Restore the previous setting."""
        b.append_void(f"call void @{self.intrinsic}({self.saved_mode})")

    def set_flush_to_zero(self, b: FunctionBuilder) -> None:
        """Set flush-to-zero, as at the begin."""
        b.append_void(f"call void @{self.intrinsic}({self.flush_mode})")


def enter_flush_to_zero(b: FunctionBuilder) -> FlushToZeroMode | None:
    """Set flush-to-zero from this point on; return None on processors where subnormals cost
    nothing.
    """
    target = b.module.target
    if target is None or not target.has("flush_subnormals"):
        return None
    make = {X86: _enter_x86, ARM: _enter_aarch64}[target.architecture]
    setting = make(b)
    setting.set_flush_to_zero(b)
    return setting


def _enter_x86(b: FunctionBuilder) -> FlushToZeroMode:
    for name in ("stmxcsr", "ldmxcsr"):
        b.module.declare(f"llvm.x86.sse.{name}", "void", ["ptr"])
    saved, changed = f"%{b.fresh_name('kept')}", f"%{b.fresh_name('changed')}"
    # LLVM frees allocas outside the entry block only when the function returns.
    b.entry += [f"  {slot} = alloca i32, align 4" for slot in (saved, changed)]
    # STMXCSR and LDMXCSR have memory operands only, so the words pass through the stack.
    b.append_void(f"call void @llvm.x86.sse.stmxcsr(ptr {saved})")
    before = b.append_value(f"load i32, ptr {saved}, align 4")
    # The other bits, such as rounding and exception masks, stay as the caller set them.
    b.append_void(
        f"store i32 {b.append_value(f'or i32 {before}, {MXCSR_FTZ_DAZ}')}, ptr {changed}, align 4"
    )
    return FlushToZeroMode("llvm.x86.sse.ldmxcsr", f"ptr {saved}", f"ptr {changed}")


def _enter_aarch64(b: FunctionBuilder) -> FlushToZeroMode:
    b.module.declare("llvm.aarch64.get.fpcr", "i64", [])
    b.module.declare("llvm.aarch64.set.fpcr", "void", ["i64"])
    saved = b.append_value("call i64 @llvm.aarch64.get.fpcr()")
    # OR keeps the caller's rounding mode and trap bits.
    changed = b.append_value(f"or i64 {saved}, {FPCR_FZ}")
    return FlushToZeroMode("llvm.aarch64.set.fpcr", f"i64 {saved}", f"i64 {changed}")


__all__ = ["FlushToZeroMode", "enter_flush_to_zero"]
