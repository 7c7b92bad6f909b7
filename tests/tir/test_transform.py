"""Lowering passes: text in, text out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekiden
from ekiden import te, tir
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, SizeVar, Var, const
from ekiden.ir.transform import PassContext
from ekiden.runtime.errors import ScheduleError
from ekiden.tir import (
    Allocate,
    Buffer,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Stmt,
    seq,
)
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import (
    compact_buffers,
    flatten_buffers,
    hoist_invariants,
    lower,
    lower_blocks,
    simplify,
    unroll_loops,
    vectorize_loops,
)

pytestmark = pytest.mark.quick

I, J = Var("i"), Var("j")  # noqa: E741
N = SizeVar("n")


def program(body: Stmt, *params: Buffer) -> PrimFunc:
    """A function f over buffers."""
    return PrimFunc(params, body, {"global_symbol": "f"})


def body_text(func: PrimFunc) -> str:
    """The statements, without the header, its attributes and the declarations of sizes."""
    lines = tir.astext(func).splitlines()
    head = next(n for n, line in enumerate(lines) if line.endswith("):"))
    declared = ("T.func_attr(", "T.match_buffer(", "is_size_var=True")
    body = [line[4:] for line in lines[head + 1 :]]
    return "\n".join(line for line in body if not any(word in line for word in declared))


def loop(var: Var, extent: object, body: Stmt, kind: ForKind = ForKind.SERIAL, **notes: int) -> For:
    """A loop from 0."""
    count = const(extent) if isinstance(extent, int) else extent
    return For(var, const(0), count, kind, body, notes or None)


def buffers(*shape: object) -> tuple[Buffer, Buffer]:
    """An input a and an output b of one shape."""
    dims = tuple(const(d) if isinstance(d, int) else d for d in shape)
    return Buffer("a", dims), Buffer("b", dims)


def test_lower_blocks_puts_the_init_before_the_reduction() -> None:
    x = te.placeholder((2, 3), name="x")
    k = te.reduce_axis((0, 3), "k")
    y = te.compute((2,), lambda i: te.sum(x[i, k], k), name="y")
    assert body_text(lower_blocks(te.create_prim_func([x, y]))) == (
        "for i in range(2):\n    y[i] = 0.0\n    for k in range(3):\n        y[i] = y[i] + x[i, k]"
    )


def test_buffers_flatten_and_indices_simplify() -> None:
    a, b = buffers(4, N, 8)
    i, j, k = Var("i"), Var("j"), Var("k")
    store = BufferStore(b, a[i, j, k] + 1.0, (i, j, k))
    func = program(loop(i, 4, loop(j, N, loop(k, 8, store))), a, b)
    assert body_text(flatten_buffers(func)) == (
        "for i, j, k in T.grid(4, n, 8):\n"
        "    b[i * n * 8 + j * 8 + k] = a[i * n * 8 + j * 8 + k] + 1.0"
    )


def test_simplify_removes_what_cannot_happen() -> None:
    a, b = buffers(8)
    never = IfThenElse(I < 0, BufferStore(b, const(0.0), (I,)))
    always = IfThenElse(I < 8, BufferStore(b, a[I], (I,)))
    func = program(seq(loop(I, 8, seq(never, always)), loop(J, 0, always)), a, b)
    assert body_text(simplify(func)) == "for i in range(8):\n    b[i] = a[i]"


def test_simplify_puts_the_one_step_of_a_loop_in_place() -> None:
    a, b = buffers(8)
    func = program(For(I, const(3), const(1), ForKind.SERIAL, BufferStore(b, a[I], (I,))), a, b)
    assert body_text(simplify(func)) == "b[3] = a[3]"


def test_vectorize_masks_the_rest() -> None:
    a, b = buffers(10)
    func = program(loop(I, 10, BufferStore(b, a[I] * 2.0, (I,)), ForKind.VECTORIZED, lanes=4), a, b)
    assert body_text(vectorize_loops(func)) == (
        "for i in range(2):\n"
        "    b[T.Ramp(i * 4, 1, 4)] = a[T.Ramp(i * 4, 1, 4)] * T.Broadcast(2.0, 4)\n"
        "b[T.Ramp(8, 1, 2)] = a[T.Ramp(8, 1, 2)] * T.Broadcast(2.0, 2)"
    )


def test_lane_invariant_values_stay_scalar() -> None:
    """The group of a channel, o // 32 for lanes of one group, makes one load, no gather."""
    a, b = buffers(64)
    channel = J * 8 + I
    copy = BufferStore(b, a[channel // 32] + a[channel % 16], (channel,))
    func = program(loop(J, 8, loop(I, 8, copy, ForKind.VECTORIZED, lanes=8)), a, b)
    result = body_text(vectorize_loops(func))
    assert "// T.Broadcast" not in result and "% T.Broadcast" not in result
    array, out = np.arange(64, dtype="float32"), np.zeros(64, "float32")
    run_prim_func(tir.verify(lower(func)), array, out)
    at = np.arange(64)
    np.testing.assert_array_equal(out, array[at // 32] + array[at % 16])
    two = loop(J, 8, loop(I, 8, BufferStore(b, a[I], (channel // 8,)), ForKind.VECTORIZED, lanes=8))
    with pytest.raises(ScheduleError, match="to one element of 'b'"):
        vectorize_loops(program(two, a, b))


def test_vectorize_of_a_symbolic_extent() -> None:
    a, b = buffers(N)
    func = program(loop(I, N, BufferStore(b, a[I], (I,)), ForKind.VECTORIZED, lanes=8), a, b)
    for size in (0, 1, 7, 8, 9, 16, 21):
        array, out = np.arange(size, dtype="float32"), np.zeros(size, "float32")
        run_prim_func(tir.verify(lower(func)), array, out)
        np.testing.assert_array_equal(out, array)


def test_vectorize_widens_accumulators_and_lets() -> None:
    a, b = buffers(4, 6)
    total = Buffer("total", (const(1),), "float32", "register")
    twice = Var("twice", "float32")
    update = LetStmt(twice, a[J, I] * 2.0, BufferStore(total, total[0] + twice, (const(0),)))
    body = seq(
        BufferStore(total, const(0.0), (const(0),)),
        loop(J, 4, update),
        BufferStore(b, total[0], (const(0), I)),
    )
    func = program(loop(I, 6, Allocate(total, body), ForKind.VECTORIZED, lanes=4), a, b)
    array, out = np.arange(24, dtype="float32").reshape(4, 6), np.zeros((4, 6), "float32")
    lowered = tir.verify(lower(func))
    run_prim_func(lowered, array, out)
    np.testing.assert_allclose(out[0], 2 * array.sum(0))
    assert 'T.alloc_buffer((1,), "float32x4", scope="register") as total' in tir.astext(lowered)


def test_guards_stay_guards_in_vectors() -> None:
    a, b = buffers(9)
    value = if_then_else(I >= 3, a[I - 3], const(0.0))
    func = program(loop(I, 9, BufferStore(b, value, (I,)), ForKind.VECTORIZED, lanes=4), a, b)
    array, out = np.arange(1, 10, dtype="float32"), np.zeros(9, "float32")
    run_prim_func(tir.verify(lower(func)), array, out)
    np.testing.assert_array_equal(out, [0, 0, 0, 1, 2, 3, 4, 5, 6])


def test_vectorized_loops_stay_loops_where_that_is_asked() -> None:
    a, b = buffers(N)
    func = program(loop(I, N, BufferStore(b, a[I], (I,)), ForKind.VECTORIZED, lanes=4), a, b)
    with PassContext(config={"tir.disable_vectorize": True}):
        assert body_text(vectorize_loops(func)) == "for i in range(n):\n    b[i] = a[i]"
        assert "T.vectorized" not in lower(func).script()


def test_unroll_expands_loops() -> None:
    a, b = buffers(2)
    func = program(loop(I, 2, BufferStore(b, a[I], (I,)), ForKind.UNROLLED), a, b)
    assert body_text(unroll_loops(func)) == "b[0] = a[0]\nb[1] = a[1]"
    wrong = program(loop(I, N, BufferStore(b, a[I], (I,)), ForKind.UNROLLED), a, b)
    with pytest.raises(ValueError, match="unroll 'i': the extent must be a constant"):
        unroll_loops(wrong)


def test_hoist_names_what_is_invariant() -> None:
    a, b = buffers(N, 8)
    store = BufferStore(b, a[I, J] + 1.0, (I, J))
    func = flatten_buffers(program(loop(I, N, loop(J, 8, store)), a, b))
    assert body_text(hoist_invariants(func)) == (
        "for i in range(n):\n"
        "    base: T.int64 = i * 8\n"
        "    for j in range(8):\n"
        "        b[base + j] = a[base + j] + 1.0"
    )


def test_hoist_leaves_guarded_loads_where_they_are() -> None:
    a, b = buffers(8)
    value = if_then_else(I > 3, a[N], const(0.0))
    func = program(loop(I, 8, BufferStore(b, value, (I,))), a, b)
    assert body_text(hoist_invariants(func)).startswith("for i in range(8):")


@pytest.mark.parametrize("divide", [tir.truncdiv, tir.floordiv, tir.truncmod, tir.floormod])
def test_hoist_leaves_guarded_divisions_where_they_are(
    divide: Callable[[PrimExpr, PrimExpr], PrimExpr],
) -> None:
    out = Buffer("out", (const(8),), "int64")
    value = if_then_else(I > 8, divide(const(100), N), const(0))
    func = program(loop(I, 8, BufferStore(out, value, (I,))), out)
    assert body_text(hoist_invariants(func)).startswith("for i in range(8):")


def test_hoist_does_not_move_loads_over_stores() -> None:
    a, b = buffers(8)
    store = BufferStore(b, b[0] + a[I], (I,))
    func = program(loop(I, 8, store), a, b)
    array, out = np.ones(8, "float32"), np.ones(8, "float32")
    run_prim_func(hoist_invariants(func), array, out)
    np.testing.assert_array_equal(out, [2, 3, 3, 3, 3, 3, 3, 3])


def test_division_towards_zero_is_of_integers() -> None:
    a, b, c = (Buffer(n, (const(6),), "int64") for n in "abc")
    func = program(loop(I, 6, BufferStore(c, tir.truncdiv(a[I], b[I]), (I,))), a, b, c)
    dividends = [7, -7, 7, -7, 2**62 + 1, -(2**63)]
    divisors = [2, 2, -2, -2, 1, 3]
    out = np.zeros(6, np.int64)
    run_prim_func(func, np.array(dividends), np.array(divisors), out)
    exact = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
             for x, y in zip(dividends, divisors, strict=True)]  # fmt: skip
    assert out.tolist() == exact


def test_compact_shrinks_to_one_step() -> None:
    a, b = buffers(4, 8)
    middle = Buffer("middle", (const(4), const(8)))
    first = loop(J, 8, BufferStore(middle, a[I, J] * 2.0, (I, J)))
    k = Var("k")
    second = loop(k, 8, BufferStore(b, middle[I, k] + 1.0, (I, k)))
    func = program(Allocate(middle, loop(I, 4, seq(first, second))), a, b)
    assert body_text(compact_buffers(func)).splitlines()[:2] == [
        "for i in range(4):",
        '    middle = T.alloc_buffer((1, 8), "float32")',
    ]


def test_compact_keeps_what_is_carried_between_steps() -> None:
    a, b = buffers(5)
    middle = Buffer("middle", (const(5),))
    write = BufferStore(middle, a[I], (I,))
    read = BufferStore(b, middle[I] + if_then_else(I > 0, middle[I - 1], const(0.0)), (I,))
    func = program(Allocate(middle, loop(I, 5, seq(write, read))), a, b)
    assert "alloc_buffer((5,)" in body_text(compact_buffers(func)).splitlines()[0]


@pytest.mark.slow
@given(st.integers(1, 40), st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 5), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_any_vector_loop_means_the_same(count: int, lanes: int, low: int, stride: int) -> None:
    size = (low + count) * stride
    a, b = buffers(size)
    value = if_then_else(I % 3 < 2, a[I * stride], a[low]) + I.astype("float32")
    store = BufferStore(b, value, (I * stride,))
    serial = For(I, const(low), const(count), ForKind.SERIAL, store)
    vector = For(I, const(low), const(count), ForKind.VECTORIZED, store, {"lanes": lanes})
    array = np.arange(size, dtype="float32")
    outs = [np.zeros(size, "float32") for _ in range(2)]
    for body, out in zip((serial, vector), outs, strict=True):
        run_prim_func(tir.verify(lower(program(body, a, b))), array, out)
    np.testing.assert_array_equal(*outs)


def test_hoisted_loads_do_not_touch_what_is_empty() -> None:
    a, b = buffers(2, N)
    store = BufferStore(b, a[I, J] + a[I, 0], (I, J))
    func = lower(program(loop(I, 2, loop(J, N, store)), a, b))
    for size in (0, 3):
        array, out = np.ones((2, size), "float32"), np.zeros((2, size), "float32")
        run_prim_func(tir.verify(func), array, out)
        assert (out == 2).all()


def test_passes_by_the_names_of_older_programs() -> None:
    text = """@T.prim_func
def main(A: T.Buffer((4, 8), "float32")):
    for i, j in T.grid(4, 8):
        A[i, j] = 1.0
"""
    module = ekiden.IRModule({"main": tir.parse(text)})
    flat = tir.transform.StorageFlatten(64)(module)["main"]
    assert "A[i * 8 + j] = 1.0" in str(flat)
    narrow = tir.transform.NarrowDataType(32)(module)["main"]
    assert narrow.body.loop_var.dtype == "int32"
    with pytest.raises(ValueError, match="32 bits wide, not 16"):
        tir.transform.NarrowDataType(16)
