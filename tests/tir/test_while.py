"""While loops: every code generator, text, rejections."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.codegen.build import build
from ekiden.runtime.errors import ScheduleError, VerifyError
from ekiden.tir import PrimFunc, interpreter
from ekiden.tir.transform import lower


def collatz() -> PrimFunc:
    """How many steps each number takes to 1."""
    n = te.placeholder((9,), "int64", "n")

    def steps(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        source, count = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, 9, "i") as i:
            at = ib.allocate("int64", (1,), "at", "local")
            at[0] = source[i]
            count[i] = 0
            with ib.while_loop(at[0] > 1):
                with ib.if_scope((at[0] % 2).equal(0)):
                    at[0] = at[0] // 2
                with ib.else_scope():
                    at[0] = at[0] * 3 + 1
                ib.increase(count, i)
        return ib.get()

    out = te.extern((9,), [n], steps, "steps", "int64")
    assert isinstance(out, te.Tensor)
    return te.create_prim_func([n, out])


NUMBERS = np.array([1, 2, 3, 4, 5, 6, 7, 27, 0])
STEPS = [0, 1, 7, 2, 5, 8, 16, 111, 0]


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_compiled_while_matches_python(target: str) -> None:
    out = np.full(9, -1)
    result = ekiden.nd.array(out)
    build(collatz(), target, name="f")["f"](ekiden.nd.array(NUMBERS), result)
    assert result.numpy().tolist() == STEPS


def test_interpreted_while_matches_python() -> None:
    out = np.full(9, -1)
    interpreter.run_prim_func(lower(collatz()), NUMBERS, out)
    assert out.tolist() == STEPS


def test_while_text_round_trips() -> None:
    func = collatz()
    again = tir.parse(func.script())
    assert "while at[0] > 1:" in func.script()
    assert ekiden.structural_equal(func, again)


@pytest.mark.parametrize("scope", ["register", "local"])
def test_while_carries_registers(scope: str) -> None:
    """Sums of powers of two, in SSA values or on the stack."""
    func = tir.parse(f'''
@T.prim_func
def f(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
    T.func_attr({{"num_outputs": 1}})
    for i in range(4):
        s = T.alloc_buffer((2,), "float32", scope="{scope}")
        s[0] = T.float32(1)
        s[1] = a[i]
        while s[0] < s[1]:
            s[0] = s[0] * T.float32(2)
        b[i] = s[0]
''')
    assert isinstance(func, PrimFunc)
    data = np.array([0.5, 1, 5, 64], "float32")
    for target in ("llvm", "c"):
        result = ekiden.nd.array(np.zeros(4, "float32"))
        build(func, target, name="f")["f"](ekiden.nd.array(data), result)
        assert result.numpy().tolist() == [1, 1, 8, 64]


def test_while_condition_is_scalar() -> None:
    func = tir.parse("""
@T.prim_func
def f(a: T.Buffer((16,), "int32")):
    for i in T.vectorized(16):
        while a[i] < 5:
            a[i] = a[i] + 1
""")
    assert isinstance(func, PrimFunc)
    with pytest.raises(ScheduleError, match="differs between lanes"):
        lower(func)


def test_while_condition_must_be_bool() -> None:
    a = tir.decl_buffer((1,), "int32", "a")
    body = tir.BufferStore(a, tir.const(0, "int32"), (tir.const(0),))
    with pytest.raises(VerifyError, match="bool"):
        tir.verify(PrimFunc((a,), tir.While(a[0], body)))


def test_false_while_is_removed() -> None:
    a = tir.decl_buffer((1,), "int32", "a")
    body = tir.BufferStore(a, tir.const(0, "int32"), (tir.const(0),))
    lowered = lower(PrimFunc((a,), tir.While(tir.const(False), body)))
    assert "while" not in lowered.script()
