"""Scripts in which threads combine values by T.tvm_thread_allreduce, beside NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import relay, tir
from ekiden.ir.expr import GlobalVar
from ekiden.ir.structural import structural_equal
from ekiden.runtime import Device, Tensor
from ekiden.runtime.errors import CompileError, ParseError
from ekiden.script import tir as T
from ekiden.target import Target
from ekiden.tir.comm_reducer import CommReducer, reducer_from_function


@T.prim_func
def rows(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16,), "float32")) -> None:
    for i in T.thread_binding(16, thread="blockIdx.x"):
        for k in T.thread_binding(64, thread="threadIdx.x"):
            total = T.alloc_buffer((1,), "float32", scope="local")
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.float32(0)]),
                "reduce_scope",
                T.reinterpret("handle", T.uint64(0)),
            ):
                T.tvm_thread_allreduce(T.uint32(1), A[i, k], T.bool(True), total[0], k)
            if k == 0:
                B[i] = total[0]


@T.prim_func
def flat_rows(A: T.Buffer((128, 32), "float32"), B: T.Buffer(128, "float32")) -> None:
    A_flat = T.Buffer(4096, data=A.data)
    for i in range(128):
        threadIdx_x = T.launch_thread("threadIdx.x", 32)
        reduce_data = T.allocate([1], "float32", "local")
        reduce = T.Buffer(1, data=reduce_data, scope="local")
        with T.attr(
            T.comm_reducer(lambda x, y: x + y, [T.float32(0)]),
            "reduce_scope",
            T.reinterpret("handle", T.uint64(0)),
        ):
            T.tvm_thread_allreduce(
                T.uint32(1), A_flat[i * 32 + threadIdx_x], T.bool(True), reduce[0], threadIdx_x
            )
        if threadIdx_x == 0:
            B[i] = reduce[0]


@T.prim_func
def groups(A: T.Buffer((32, 8), "float32"), B: T.Buffer((32,), "float32")) -> None:
    threadIdx_y = T.launch_thread("threadIdx.y", 32)
    cross_thread_B = T.allocate([1], "float32", "local")
    threadIdx_x = T.launch_thread("threadIdx.x", 8)
    cross_thread_B_1 = T.Buffer((1,), data=cross_thread_B, scope="local")
    with T.attr(
        T.comm_reducer(lambda x0, y0: x0 + y0, [T.float32(0)]),
        "reduce_scope",
        T.reinterpret("handle", T.uint64(0)),
    ):
        A_1 = T.Buffer((256,), data=A.data)
        T.tvm_thread_allreduce(
            T.uint32(1),
            A_1[threadIdx_y * 8 + threadIdx_x],
            T.bool(True),
            cross_thread_B_1[0],
            threadIdx_x,
        )
    if threadIdx_x == 0:
        B_1 = T.Buffer((32,), data=B.data)
        B_1[threadIdx_y] = cross_thread_B_1[0]


@T.prim_func
def columns(A: T.Buffer((6, 4), "float32"), B: T.Buffer((4,), "float32")) -> None:
    """The threads of y combine, in the statement form of older scripts; the result is read by each
    of them, and the address names it."""
    for j in T.thread_binding(4, thread="threadIdx.x"):
        for k in T.thread_binding(6, thread="threadIdx.y"):
            total = T.alloc_buffer((1,), "float32", scope="local")
            T.attr(
                T.comm_reducer(lambda x, y: T.max(x, y), [T.min_value("float32")]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            )
            T.evaluate(
                T.tvm_thread_allreduce(T.uint32(1), A[k, j], True, total.data, k, dtype="handle")
            )
            if k == 5:
                B[j] = total[0]


@T.prim_func
def guarded(A: T.Buffer((3, 50), "float32"), B: T.Buffer((3, 64), "float32")) -> None:
    """Two combinations in each iteration of a loop, the second of what the first gave; the last 14
    threads have no value."""
    for k in T.thread_binding(64, thread="threadIdx.x"):
        top = T.alloc_buffer((1,), "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        for i in range(3):
            with T.attr(
                T.comm_reducer(lambda x, y: T.max(x, y), [T.min_value("float32")]),
                "reduce_scope",
                T.reinterpret("handle", T.uint64(0)),
            ):
                T.tvm_thread_allreduce(T.uint32(1), A[i, k], k < 50, top[0], k)
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.float32(0)]),
                "reduce_scope",
                T.reinterpret("handle", T.uint64(0)),
            ):
                T.tvm_thread_allreduce(T.uint32(1), A[i, k] - top[0], k < 50, total[0], k)
            B[i, k] = total[0]


@T.prim_func
def argmax(
    A: T.Buffer((5, 96), "float32"), at: T.Buffer((5,), "int32"), top: T.Buffer((5,), "float32")
) -> None:
    for i in T.thread_binding(5, thread="blockIdx.x"):
        for k in T.thread_binding(96, thread="threadIdx.x"):
            best = T.alloc_buffer((1,), "int32", scope="local")
            value = T.alloc_buffer((1,), "float32", scope="local")
            with T.attr(
                T.comm_reducer(
                    lambda i0, v0, i1, v1: (
                        T.Select(v0 >= v1, i0, i1),
                        T.Select(v0 >= v1, v0, v1),
                    ),
                    [T.int32(-1), T.min_value("float32")],
                ),
                "reduce_scope",
                T.reinterpret("handle", T.uint64(0)),
            ):
                T.tvm_thread_allreduce(
                    T.uint32(2), T.cast(k, "int32"), A[i, k], True, best[0], value[0], k
                )
            if k == 0:
                at[i] = best[0]
                top[i] = value[0]


def values(*shape: int) -> np.ndarray:
    """Whole numbers, whose sums are exact."""
    return np.random.default_rng(5).integers(-9, 10, shape).astype("float32")


def run(func: tir.PrimFunc, device: Device, x: np.ndarray) -> list[np.ndarray]:
    """The arguments behind the first, as the function leaves them."""
    outs = [
        ekiden.nd.array(np.full([int(d.value) for d in b.shape], 7, b.dtype), device)  # type: ignore[attr-defined]
        for b in func.buffers[1:]
    ]
    module = ekiden.build(func, target=str(device).partition("(")[0])
    module(ekiden.nd.array(x, device), *outs)
    return [out.numpy() for out in outs]


SUMS = [(rows, (16, 64)), (flat_rows, (128, 32)), (groups, (32, 8))]


@pytest.mark.parametrize(("func", "shape"), SUMS, ids=["rows", "flat", "groups"])
def test_allreduce_sums_rows(func: tir.PrimFunc, shape: tuple[int, int], device: Device) -> None:
    x = values(*shape)
    (result,) = run(func, device, x)
    np.testing.assert_array_equal(result, x.sum(1))


def test_threads_of_a_slow_axis_combine(device: Device) -> None:
    x = values(6, 4)
    (result,) = run(columns, device, x)
    np.testing.assert_array_equal(result, x.max(0))


def test_every_thread_reads_the_combination(device: Device) -> None:
    x = values(3, 50)
    (result,) = run(guarded, device, x)
    expected = (x - x.max(1, keepdims=True)).sum(1, keepdims=True)
    np.testing.assert_array_equal(result, np.broadcast_to(expected, (3, 64)))


def test_tuples_combine(device: Device) -> None:
    x = np.random.default_rng(2).permutation(5 * 96).reshape(5, 96).astype("float32")
    at, top = run(argmax, device, x)
    np.testing.assert_array_equal(at, x.argmax(1))
    np.testing.assert_array_equal(top, x.max(1))


@T.prim_func
def reversed_rows(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16, 64), "float32")) -> None:
    for i in T.thread_binding(16, thread="blockIdx.x"):
        exchanged = T.alloc_buffer((64,), "float32", scope="shared")
        for k in T.thread_binding(64, thread="threadIdx.x"):
            exchanged[k] = A[i, k]
            B[i, k] = exchanged[63 - k]


@T.prim_func
def doubled(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16, 64), "float32")) -> None:
    for i in T.thread_binding(16, thread="blockIdx.x"):
        for k in T.thread_binding(64, thread="threadIdx.x"):
            B[i, k] = A[i, k] * 2.0


@pytest.mark.parametrize(
    ("func", "reference"),
    [
        (rows, lambda x: x.sum(1)),
        (reversed_rows, lambda x: x[:, ::-1]),
        (doubled, lambda x: x * 2),
    ],
    ids=["allreduce", "shared", "plain"],
)
@pytest.mark.parametrize("is_alone", [True, False])
def test_relay_launches_prim_functions_as_their_threads_are_bound(
    device: Device,
    func: tir.PrimFunc,
    reference: Callable[[np.ndarray], np.ndarray],
    is_alone: bool,
) -> None:
    var, name = relay.var("x", shape=(16, 64)), GlobalVar(func.name)
    call = relay.Call(name, [var])
    main = relay.Function([var], call if is_alone else relay.negative(call))
    module = ekiden.IRModule({name: func, GlobalVar("main"): main})
    x = values(16, 64)
    result = ekiden.compile(module, str(device).partition("(")[0])(x)
    assert isinstance(result, Tensor)
    np.testing.assert_array_equal(result.numpy(), reference(x) * (1 if is_alone else -1))


@pytest.mark.parametrize("func", [rows, flat_rows, groups, columns, guarded, argmax])
def test_script_of_allreduce_parses_back(func: tir.PrimFunc) -> None:
    text = func.script()
    assert "T.tvm_thread_allreduce(" in text
    parsed = tir.script.from_source(text)
    assert structural_equal(parsed, func), text
    assert parsed.script() == text


@pytest.mark.parametrize("func", [rows, flat_rows, groups, guarded, argmax])
def test_warps_exchange_registers(func: tir.PrimFunc) -> None:
    lowered = ekiden.lower(ekiden.IRModule({func.name: func}), target=Target("cuda"))
    text = lowered.script()
    assert "tvm_warp_shuffle_down(" in text
    assert "tvm_thread_allreduce" not in text


def test_pass_lowers_allreduce_alone() -> None:
    module = tir.transform.LowerThreadAllreduce()(ekiden.IRModule({"rows": rows}))
    text = module.script()
    assert "tvm_thread_allreduce" not in text
    assert "reduce_scope" not in text
    assert 'T.tvm_storage_sync("shared")' in text
    assert tir.transform.LowerThreadAllreduce()(module)["rows"] is module["rows"]


def test_processor_refuses_allreduce() -> None:
    with pytest.raises(CompileError, match="threads combine their values, and a processor runs"):
        ekiden.build(rows, target="llvm")


def allreduce_of(call: str, attribute: str = "") -> tir.PrimFunc:
    """A function with a combination of 8 of 16 threads."""
    reducer = "T.comm_reducer(lambda x, y: x + y, [T.float32(0)])"
    attribute = attribute or f'T.attr({reducer}, "reduce_scope", T.uint64(0))'
    return tir.script.from_source(f"""
@T.prim_func
def f(A: T.Buffer((2, 8), "float32"), B: T.Buffer((2,), "float32")):
    for y in T.thread_binding(2, thread="threadIdx.y"):
        total = T.alloc_buffer((1,), "float32", scope="local")
        for k in T.thread_binding(8, thread="threadIdx.x"):
            {attribute}
            {call}
            if k == 0:
                B[y] = total[0]
""")  # type: ignore[return-value]


CALL = "T.tvm_thread_allreduce(T.uint32(1), A[y, k], True, total[0], k)"


@pytest.mark.parametrize(
    ("call", "attribute", "message"),
    [
        (CALL, 'T.attr("x", "y", 1)', "no T.attr.*is around it"),
        (CALL.replace("uint32(1)", "uint32(2)"), "", r"the reducer combines 1 values: expected"),
        (CALL.replace("total[0], k", "total[0]"), "", None),
        (CALL.replace("total[0], k", "total[0], y + k"), "", "is no thread of a loop around it"),
        (CALL.replace("total[0]", "T.float32(1)"), "", "a result is an element of a buffer"),
        (f"if k < 3:\n                {CALL}", "", "where not all of them come: in a condition"),
    ],
)
def test_faulty_allreduce_is_refused_by_name(
    call: str, attribute: str, message: str | None
) -> None:
    func = allreduce_of(call, attribute)
    if message is None:  # no threads combine: each has its own value
        assert ekiden.build(func, target="cuda") is not None
        return
    with pytest.raises(CompileError, match=message):
        ekiden.build(func, target="cuda")


def test_reducer_takes_tuples() -> None:
    reducer = reducer_from_function(
        lambda i, v, j, w: (T.Select(v >= w, i, j), T.max(v, w)), [T.int32(0), T.float32(0)]
    )
    assert isinstance(reducer, CommReducer)
    assert [v.dtype for v in (*reducer.lhs, *reducer.rhs)] == ["int32", "float32"] * 2


@pytest.mark.parametrize(
    ("reducer", "message"),
    [
        ("T.comm_reducer(lambda x: x, [T.float32(0)])", "need a function of 2 parameters, got 1"),
        ("T.comm_reducer(lambda x, y: (x, y), [T.float32(0)])", "must return 1 values, got 2"),
        ("T.comm_reducer(lambda x, y: x < y, [T.float32(0)])", "must return float32, got bool"),
        ("T.comm_reducer(lambda x, y: x + y, [])", "0 identity values need"),
    ],
)
def test_faulty_reducer_is_refused_at_its_line(reducer: str, message: str) -> None:
    with pytest.raises(ParseError, match=message) as error:
        allreduce_of(CALL, f'T.attr({reducer}, "reduce_scope", T.uint64(0))')
    assert "T.attr" in str(error.value)
