"""LLVM IR that a schedule imports with the pragma "import_llvm"."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.runtime.errors import CompileError

pytestmark = pytest.mark.quick


GEMV_IR = """
define i32 @gemv_row(ptr %out, ptr %a, ptr %b, i32 %n) {
entry:
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  %pa = getelementptr float, ptr %a, i32 %i
  %pb = getelementptr float, ptr %b, i32 %i
  %x = load float, ptr %pa
  %y = load float, ptr %pb
  %product = fmul float %x, %y
  %old = load float, ptr %out
  %new = fadd float %old, %product
  store float %new, ptr %out
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
"""


def schedule_with_import(ir: str) -> tuple[te.Schedule, list[te.Tensor]]:
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="b")
    extern = te.extern(
        (1,),
        [b, a],
        lambda ins, outs: tir.call_extern(
            "int32",
            "gemv_row",
            outs[0].access_ptr("rw"),
            ins[0].access_ptr("r"),
            ins[1].access_ptr("r"),
            4,
        ),
        name="c",
        dtype="float32",
    )
    assert isinstance(extern, te.Tensor)
    s = te.create_schedule(extern.op)
    s[b].pragma(s[b].split(b.op.axis[0], 4)[0], "import_llvm", ir)
    return s, [a, extern]


def test_imported_ir_defines_functions_of_call_extern() -> None:
    s, args = schedule_with_import(GEMV_IR)
    module = ekiden.build(s, args, "llvm")
    x, out = np.arange(4, dtype="float32"), ekiden.nd.array(np.zeros(1, "float32"))
    module(ekiden.nd.array(x), out)
    assert out.numpy() == 2 * (x * x).sum()


def test_invalid_imported_ir_is_refused() -> None:
    s, args = schedule_with_import("define i32 @gemv_row(")
    with pytest.raises(CompileError, match="import_llvm: "):
        ekiden.build(s, args, "llvm")
    s, args = schedule_with_import(f'target triple = "wasm32-unknown-unknown"\n{GEMV_IR}')
    with pytest.raises(CompileError, match="import_llvm: expected code for x86_64, got wasm32"):
        ekiden.build(s, args, "llvm -mtriple=x86_64-unknown-linux-gnu")


def test_two_imported_texts_may_define_one_function() -> None:
    s, args = schedule_with_import(GEMV_IR)
    b = s.stages[1]
    b.pragma(b.leaf_iter_vars[1], "import_llvm", f"; the same once more\n{GEMV_IR}")
    x, out = np.arange(4, dtype="float32"), ekiden.nd.array(np.zeros(1, "float32"))
    ekiden.build(s, args, "llvm")(ekiden.nd.array(x), out)
    assert out.numpy() == 2 * (x * x).sum()
