"""Statements as machine code: loops that carry registers, branches, parallel loops, scratch memory,
guarded accesses."""

from __future__ import annotations

import numpy as np
import pytest
from codegen_kernels import build

import ekiden
from ekiden import tir
from ekiden.codegen.llvm import assembly, emit_function
from ekiden.ir.dtype import to_numpy
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import Cast, FloorDiv, IntImm, SizeVar, Var, cast, const
from ekiden.runtime.errors import InternalError, RunError
from ekiden.target import Target
from ekiden.tir.expr import Broadcast, Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Prefetch,
    PrimFunc,
    Stmt,
    seq,
)

pytestmark = pytest.mark.quick
SERIAL, PARALLEL = ForKind.SERIAL, ForKind.PARALLEL


def function(params: tuple[Buffer, ...], body: Stmt) -> PrimFunc:
    return PrimFunc(params, body, {"global_symbol": "test"})


def vector(n: SizeVar | int = 16, dtype: str = "float32", name: str = "x") -> Buffer:
    return Buffer(name, (n if isinstance(n, SizeVar) else const(n),), dtype)


def test_registers_are_carried_around_loops_and_out_of_branches() -> None:
    n, i = SizeVar("n"), Var("i")
    x, out = vector(n), vector(2, name="out")
    acc = Buffer("acc", (const(2),), "float32", "register")
    larger = x[i].with_fields()
    update = seq(
        BufferStore(acc, acc[0] + larger, (const(0),)),
        IfThenElse(larger > acc[1], BufferStore(acc, larger, (const(1),))),
    )
    body = seq(
        BufferStore(acc, const(0.0), (const(0),)),
        BufferStore(acc, const(-1.0), (const(1),)),
        For(i, const(0), n, SERIAL, update),
        BufferStore(out, acc[0], (const(0),)),
        BufferStore(out, acc[1], (const(1),)),
    )
    func = function((x, out), Allocate(acc, body))
    kernel = build(func)
    for count in (0, 1, 7):
        values = np.arange(count, dtype="float32")
        result = np.zeros(2, "float32")
        kernel(values, result)
        assert result.tolist() == [values.sum(), values.max(initial=-1.0)]
    assert "alloca" not in emit_function(func, Target.host())


def tile_kernel() -> PrimFunc:
    """4 x 4 accumulators, the heart of a matrix product."""
    k, n = Var("k"), SizeVar("n")
    a, b, out = vector(n, name="a"), Buffer("b", (n, const(64))), vector(256, name="out")
    acc = Buffer("acc", (const(16),), "float32x16", "register")
    clear = [BufferStore(acc, broadcast(const(0.0), 16), (const(i),)) for i in range(16)]
    steps = []
    for i in range(4):
        for v in range(4):
            factor = BufferLoad(b, (ramp(k * 64 + v * 16, 1, 16),), "float32x16")
            value = call_intrin(
                "fma", broadcast(a[k], 16), factor, acc[i * 4 + v], dtype="float32x16"
            )
            steps.append(BufferStore(acc, value, (const(i * 4 + v),)))
    keep = [BufferStore(out, acc[i], (ramp(const(i * 16), 1, 16),)) for i in range(16)]
    return function(
        (a, b, out), Allocate(acc, seq(*clear, For(k, const(0), n, SERIAL, seq(*steps)), *keep))
    )


def test_tiles_never_touch_the_stack() -> None:
    """Where there are registers for 16 accumulators of 16 floats."""
    text = assembly([tile_kernel()], Target.parse("llvm -mcpu=x86-64-v4"))
    vectors = [line for line in text.splitlines() if "mm" in line and "(%rsp" in line]
    assert vectors == []
    assert text.count("vfmadd") == 16


def test_register_tile_matches_numpy() -> None:
    random = np.random.default_rng(0)
    a, b = (
        random.standard_normal(9).astype("float32"),
        random.standard_normal((9, 64)).astype("float32"),
    )
    out = np.zeros(256, "float32")
    build(tile_kernel())(a, b, out)
    np.testing.assert_allclose(out.reshape(4, 64), np.tile(a @ b, (4, 1)), rtol=1e-5, atol=1e-6)


def test_register_buffer_with_variable_index_falls_back_to_memory() -> None:
    i, j = Var("i"), Var("j")
    x, out = vector(8), vector(8, name="out")
    acc = Buffer("acc", (const(8),), "float32", "register")
    fill = For(i, const(0), const(8), SERIAL, BufferStore(acc, x[i], (i,)))
    drain = For(j, const(0), const(8), SERIAL, BufferStore(out, acc[7 - j], (j,)))
    values, result = np.arange(8, dtype="float32"), np.zeros(8, "float32")
    build(function((x, out), Allocate(acc, seq(fill, drain))))(values, result)
    assert np.array_equal(result, values[::-1])


def test_parallel_loop_captures_what_it_uses() -> None:
    n, i, j = SizeVar("n"), Var("i"), Var("j")
    scale = Var("scale", "float32")
    x, out = Buffer("x", (n, const(3))), Buffer("out", (n, const(3)))
    inner = For(
        j, const(0), const(3), PARALLEL, BufferStore(out, x[i * 3 + j] * scale, (i * 3 + j,))
    )
    loop = For(i, const(1), n - 1, PARALLEL, inner, {"grain": 2})
    kernel = build(function((x, out), LetStmt(scale, x[0] + 1.0, loop)))
    values = np.random.default_rng(0).standard_normal((501, 3)).astype("float32")
    result = np.zeros_like(values)
    kernel(values, result)
    np.testing.assert_array_equal(result[1:], values[1:] * (values[0, 0] + np.float32(1)))
    assert not result[0].any()


@pytest.mark.parametrize("where", [SERIAL, PARALLEL])
def test_outlined_loop_is_a_function(where: ForKind) -> None:
    n, i, j = SizeVar("n"), Var("i"), Var("j")
    scale, factor = Var("scale", "float32"), Var("factor", "float32x4")
    x, out = Buffer("x", (n, const(12))), Buffer("out", (n, const(12)))
    place = ramp(i * 12 + j * 4, 1, 4)
    value = BufferLoad(x, (place,), "float32x4") * factor + broadcast(scale, 4)
    inner = For(j, const(1), const(2), SERIAL, BufferStore(out, value, (place,)), {"apart": 1})
    body = LetStmt(factor, broadcast(x[i * 12], 4), inner)
    loop = For(i, const(0), n, where, body, {"grain": 1})
    func = function((x, out), LetStmt(scale, x[0] + 1.0, loop))
    values = np.random.default_rng(0).standard_normal((50, 12)).astype("float32")
    actual = np.zeros_like(values)
    build(func)(values, actual)
    expected = values * values[:, :1] + (values[0, 0] + np.float32(1))
    np.testing.assert_allclose(actual[:, 4:], expected[:, 4:], rtol=1e-6, atol=1e-6)
    assert not actual[:, :4].any()
    assert emit_function(func, Target.host()).count(".body") >= 2


def test_scratch_memory_in_and_around_a_parallel_loop() -> None:
    n, i, j = SizeVar("n"), Var("i"), Var("j")
    x, out = vector(n), vector(n, name="out")
    shared, own, stack = (
        vector(n, name="shared"),
        vector(4, name="own"),
        Buffer("s", (const(4),), scope="local"),
    )
    copy = For(j, const(0), n, SERIAL, BufferStore(shared, x[j] * 2.0, (j,)))
    work = seq(
        BufferStore(own, shared[i], (const(3),)),
        BufferStore(stack, own[3], (const(i.dtype == "x" or 1),)),
        BufferStore(out, stack[1], (i,)),
    )
    loop = For(i, const(0), n, PARALLEL, Allocate(own, Allocate(stack, work)), {"grain": 1})
    values, result = np.arange(100, dtype="float32"), np.zeros(100, "float32")
    build(function((x, out), Allocate(shared, seq(copy, loop))))(values, result)
    assert np.array_equal(result, values * 2)


@pytest.mark.parametrize("where", ["serial", "parallel"])
def test_assertion_is_an_error(where: str) -> None:
    n, i = SizeVar("n"), Var("i")
    x, out, scratch = vector(n), vector(n, name="out"), vector(n, name="scratch")
    check = seq(
        AssertStmt(x[i] >= 0.0, "values must not be negative"), BufferStore(out, x[i], (i,))
    )
    kind = PARALLEL if where == "parallel" else SERIAL
    kernel = build(
        function((x, out), Allocate(scratch, For(i, const(0), n, kind, check, {"grain": 1})))
    )
    good = np.arange(64, dtype="float32")
    result = np.zeros(64, "float32")
    for _ in range(3):
        kernel(good, result)
        with pytest.raises(RunError, match=r"^values must not be negative$"):
            kernel(-good, result)


def test_guarded_load_is_not_executed() -> None:
    n, i = SizeVar("n"), Var("i")
    x, out = vector(n), vector(64, name="out")
    index = if_then_else(i < n, x[i], const(-1.0))
    kernel = build(
        function((x, out), For(i, const(0), const(64), SERIAL, BufferStore(out, index, (i,))))
    )
    for count in (0, 5):
        result = np.zeros(64, "float32")
        kernel(np.ones(count, "float32"), result)
        assert result.tolist() == [1.0] * count + [-1.0] * (64 - count)


@pytest.mark.parametrize("lanes", [3, 16])
@pytest.mark.parametrize("dtype", ["float32", "bool", "int8", "float16", "bfloat16", "int64"])
def test_masked_tail_stores_valid_elements_only(lanes: int, dtype: str) -> None:
    """out[0:n] = x[0:n] by whole masked vectors, and nothing beyond."""
    n, i = SizeVar("n"), Var("i")
    x, out = vector(n, dtype), vector(80, dtype, "out")
    position = ramp(i * lanes, 1, lanes)
    mask = position < broadcast(n, lanes)
    zero = broadcast(const(0, dtype), lanes)
    value = if_then_else(mask, BufferLoad(x, (position,), f"{dtype}x{lanes}"), zero)
    loop = For(
        i,
        const(0),
        FloorDiv(n + (lanes - 1), const(lanes), "int64"),
        SERIAL,
        BufferStore(out, value, (position,), mask),
    )
    kernel = build(function((x, out), loop))
    import ml_dtypes

    storage = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    for count in (0, 1, lanes - 1, lanes, 37):
        values = np.ones(count, storage)
        result = np.zeros(80, storage)
        kernel(values, result)
        assert result.astype("float32").sum() == count
        assert not result[count:].any()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("first", [0, 16])
def test_mask_of_one_lane_stores_one_element(dtype: str, first: int) -> None:
    """What is narrowed and stored under a constant mask keeps its neighbours."""
    x, out = vector(16, "float32" if "float" in dtype else "int32"), vector(40, dtype, "out")
    lane = ramp(const(0), 1, 16)
    value = Cast(BufferLoad(x, (lane,), f"{x.dtype}x16"), f"{dtype}x16")
    mask = ramp(const(first), 1, 16) < broadcast(const(first + 1), 16)
    kernel = build(function((x, out), BufferStore(out, value, (ramp(const(3), 1, 16),), mask)))
    storage = to_numpy(dtype)
    result = np.full(40, 7, storage)
    kernel(np.arange(16, 32).astype(to_numpy(x.dtype)), result)
    assert result.astype("float32").tolist() == [7] * 3 + [16] + [7] * 36


def test_gather_scatter_and_strided_accesses_match_numpy() -> None:
    lanes = 16
    x, where = vector(64), vector(lanes, "int64", "where")
    out, spread = vector(lanes, name="out"), vector(64, name="spread")
    index = BufferLoad(where, (ramp(const(0), 1, lanes),), f"int64x{lanes}")
    gathered = BufferLoad(x, (index,), f"float32x{lanes}")
    strided = BufferLoad(x, (ramp(const(3), 2, lanes),), f"float32x{lanes}")
    reverse = BufferLoad(x, (ramp(const(20), -1, lanes),), f"float32x{lanes}")
    body = seq(
        BufferStore(out, gathered + strided + reverse, (ramp(const(0), 1, lanes),)),
        BufferStore(spread, gathered, (index,)),
        BufferStore(spread, Broadcast(const(7.0), 3, "float32x3"), (ramp(const(0), 31, 3),)),
    )
    values = np.random.default_rng(0).standard_normal(64).astype("float32")
    positions = np.random.default_rng(1).permutation(np.arange(1, 30))[:lanes]
    result, scattered = np.zeros(lanes, "float32"), np.zeros(64, "float32")
    build(function((x, where, out, spread), body))(values, positions, result, scattered)
    np.testing.assert_array_equal(result, values[positions] + values[3:35:2] + values[20:4:-1])
    want = np.zeros(64, "float32")
    want[positions] = values[positions]
    want[[0, 31, 62]] = 7
    np.testing.assert_array_equal(scattered, want)


def test_masked_gather_reads_active_lanes_only() -> None:
    n = SizeVar("n")
    x, out = vector(n), vector(16, name="out")
    lane = ramp(const(0), 1, 16)
    far = lane * broadcast(const(1 << 40), 16)
    mask = lane < broadcast(n, 16)
    value = if_then_else(
        mask,
        BufferLoad(x, (lane + far - far * broadcast(const(1), 16),), "float32x16"),
        broadcast(const(5.0), 16),
    )
    result = np.zeros(16, "float32")
    build(function((x, out), BufferStore(out, value, (lane,))))(np.zeros(2, "float32"), result)
    assert result.tolist() == [0.0, 0.0] + [5.0] * 14


def test_loads_are_not_reused_across_stores() -> None:
    i = Var("i")
    x = vector(4)
    double = BufferStore(x, x[0] + x[0], (const(0),))
    twice = seq(double, double.with_fields(value=x[0] + x[0]))
    func = function((x,), For(i, const(0), const(3), SERIAL, twice))
    result = np.ones(4, "float32")
    build(func)(result)
    assert result[0] == 2.0**6


def test_prefetch_and_evaluate_do_nothing() -> None:
    i = Var("i")
    x, out = vector(4), vector(4, name="out")
    body = seq(Prefetch(x, (i + 1000,), 2), Evaluate(const(0)), BufferStore(out, x[i], (i,)))
    result = np.zeros(4, "float32")
    build(function((x, out), For(i, const(0), const(4), SERIAL, body)))(
        np.arange(4, dtype="float32"), result
    )
    assert result.tolist() == [0, 1, 2, 3]


def test_division_by_a_dimension_of_zero_does_not_trap() -> None:
    n, m = SizeVar("n"), SizeVar("m")
    x, y, out = vector(n), vector(m, name="y"), vector(2, "int64", "out")
    body = seq(BufferStore(out, n // m, (const(0),)), BufferStore(out, n % m, (const(1),)))
    kernel = build(function((x, y, out), body))
    result = np.zeros(2, "int64")
    kernel(np.zeros(7, "float32"), np.zeros(3, "float32"), result)
    assert result.tolist() == [2, 1]
    kernel(np.zeros(7, "float32"), np.zeros(0, "float32"), result)


@pytest.mark.slow
def test_deep_programs_need_no_recursion() -> None:
    x, out = vector(1), vector(1, name="out")
    value = x[0].with_fields()
    for _ in range(20000):
        value = value + 1.0
    body: Stmt = BufferStore(out, value, (const(0),))
    for i in range(20000):
        body = LetStmt(Var(f"v{i}"), IntImm(i), body)
    text = emit_function(function((x, out), body), Target.host())
    assert text.count("fadd") == 20000


def test_unlowered_forms_are_refused() -> None:
    i, x = Var("i"), Buffer("x", (const(4), const(4)))
    loop = For(i, const(0), const(4), ForKind.VECTORIZED, BufferStore(x, const(0.0), (i,)))
    with pytest.raises(InternalError, match=r"^llvm: loop over 'i' is vectorized; lower it first$"):
        emit_function(function((x,), loop), Target.host())
    with pytest.raises(
        InternalError, match=r"^llvm: store to 'x' has 2 indices; flatten buffers first$"
    ):
        emit_function(
            function((x,), BufferStore(x, const(0.0), (const(0), const(1)))), Target.host()
        )


def test_int32_loop_variables_work() -> None:
    i = Var("i", "int32")
    x, out = vector(5), vector(5, name="out")
    loop = For(
        i,
        const(0, "int32"),
        const(5, "int32"),
        SERIAL,
        BufferStore(out, x[i] + cast(i, "float32"), (i,)),
    )
    result = np.zeros(5, "float32")
    build(function((x, out), loop))(np.ones(5, "float32"), result)
    assert result.tolist() == [1, 2, 3, 4, 5]


def test_registers_of_a_loop_by_numbers_that_are_not_constant() -> None:
    """They are memory, which there is none of before the loop: this did not end."""
    func = tir.parse("""@T.prim_func
def f(a: T.Buffer((4, 8), "float32"), b: T.Buffer((4, 8), "float32")):
    for k in range(4):
        r = T.alloc_buffer((8,), "float32", scope="register")
        for j in range(8):
            r[j] = a[k, j] * 2.0
        for j in range(8):
            b[k, j] = r[7 - j]
""")
    data = np.arange(32, dtype="float32").reshape(4, 8)
    result = ekiden.runtime.tensor(np.zeros_like(data))
    ekiden.build(func, "llvm")["f"](ekiden.runtime.tensor(data), result)
    np.testing.assert_array_equal(result.numpy(), 2 * data[:, ::-1])


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_adjacent_loads_of_two_buffers_are_vectorized(target: str) -> None:
    """Their place, which both have, is that of the first neighbour."""
    i = Var("i")
    x, y, out = vector(64, "int8"), vector(64, "int8", "y"), vector(16, "int32", "out")
    place = ramp(i * 4, 1, 4)
    one, other = (
        call_intrin("reinterpret", BufferLoad(b, (place,), "int8x4"), dtype="int32") for b in (x, y)
    )
    body = For(i, const(0), const(16), SERIAL, BufferStore(out, one - other, (i,)))
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-128, 128, 64).astype("int8") for _ in range(2)]
    result = np.zeros(16, "int32")
    ekiden.build(function((x, y, out), body), target)["test"](*inputs, result)
    np.testing.assert_array_equal(result, inputs[0].view("int32") - inputs[1].view("int32"))
