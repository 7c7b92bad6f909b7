"""Lowering rules that users register for intrinsics, their own and Ekiden's."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.ir import register_intrin_lowering, register_op_attr
from ekiden.ir.intrinsic_rules import lowering_rules_key
from ekiden.runtime.errors import CompileError

pytestmark = pytest.mark.quick


def test_registered_rules_lower_intrinsics_for_their_target() -> None:
    register_op_attr("tir.softsign", "TCallEffectKind", tir.CallEffectKind.Pure)
    a = te.placeholder((5,), name="a")
    b = te.compute((5,), lambda i: tir.call_intrin("float32", "tir.softsign", a[i]), name="b")
    schedule = te.create_schedule(b.op)
    with pytest.raises(CompileError, match="no code generator has the call softsign"):
        ekiden.build(schedule, [a, b], "llvm")

    def lower_softsign(call: tir.Call) -> tir.PrimExpr:
        assert call.op.name == "tir.softsign"
        return call.args[0] / (tir.abs(call.args[0]) + 1.0)

    register_intrin_lowering("tir.softsign", "llvm", f=lower_softsign)
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    out = ekiden.nd.array(np.zeros(5, np.float32))
    ekiden.build(schedule, [a, b], "llvm")(ekiden.nd.array(x), out)
    assert np.allclose(out.numpy(), x / (1 + np.abs(x)), rtol=1e-6)
    with pytest.raises(CompileError, match="no code generator has the call softsign"):
        ekiden.build(schedule, [a, b], "c")
    register_intrin_lowering("tir.softsign", "llvm", f=lambda call: tir.const(1))
    with pytest.raises(CompileError, match=r"'tir.softsign': expected an expression of float32"):
        ekiden.build(schedule, [a, b], "llvm")


def test_text_of_a_call_of_a_users_intrinsic_parses_back() -> None:
    register_op_attr("tir.gumbel", "TCallEffectKind", tir.CallEffectKind.Pure)
    a = te.placeholder((5,), name="a")
    b = te.compute((5,), lambda i: tir.call_intrin("float32", "tir.gumbel", a[i]), name="b")
    func = te.create_prim_func([a, b])
    assert 'T.call_intrin("float32", "gumbel", a[' in func.script()
    assert ekiden.ir.structural_equal(tir.parse(func.script()), func)


def test_registered_rules_lower_intrinsics_of_device_code() -> None:
    n = te.var("n")
    a = te.placeholder((n,), name="a")
    register_op_attr("tir.fast_log", "TCallEffectKind", tir.CallEffectKind.Pure)
    b = te.compute((n,), lambda i: tir.call_intrin("float32", "tir.fast_log", a[i]), name="b")
    schedule = te.create_schedule(b.op)
    block, thread = schedule[b].split(b.op.axis[0], factor=64)
    schedule[b].bind(block, te.thread_axis("blockIdx.x"))
    schedule[b].bind(thread, te.thread_axis("threadIdx.x"))
    register_intrin_lowering(
        "tir.fast_log",
        target="cuda",
        f=lambda call: tir.call_pure_extern("float32", "__logf", call.args[0]),
        level=99,
    )
    source = ekiden.build(schedule, [a, b], "cuda").imported_modules[0].get_source()
    assert "__logf(" in source


def test_rules_of_a_target_are_part_of_the_key_of_its_kernels() -> None:
    # None is left of the tests above: a rule of one test would rename the kernels of the next.
    assert lowering_rules_key("llvm") == lowering_rules_key("cuda") == ""
    register_op_attr("tir.softsign", "TCallEffectKind", tir.CallEffectKind.Pure)
    register_intrin_lowering("tir.softsign", "llvm", f=lambda call: tir.const(1.0))
    assert lowering_rules_key("llvm").startswith("rules ")
    assert lowering_rules_key("c") == ""
