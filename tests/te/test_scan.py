"""te.scan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from te_programs import evaluate

import ekiden
from ekiden import runtime, te, tir
from ekiden.runtime.errors import ScheduleError
from ekiden.script import tir as T
from ekiden.te import Tensor

pytestmark = pytest.mark.quick


def normal(*shape: int) -> np.ndarray:
    """Random values of order one."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


@pytest.mark.parametrize("shape", [(5, 3), (1, 4), (9, 1), (4, 0)])
def test_running_sums(shape: tuple[int, int]) -> None:
    m, n = te.size_var("m"), te.size_var("n")
    x, state = te.placeholder((m, n), name="x"), te.placeholder((m, n), name="state")
    first = te.compute((1, n), lambda _, i: x[0, i], name="first")
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + x[t, i], name="update")
    sums = te.scan(first, update, state, inputs=[x])
    assert isinstance(sums, Tensor)
    array = normal(*shape)
    (result,) = evaluate([x], [sums], [array])
    np.testing.assert_allclose(result, np.cumsum(array, 0), rtol=1e-5, atol=1e-6)


def test_several_first_rows() -> None:
    """Fibonacci: a row needs the two before."""
    x, state = te.placeholder((2, 3), "int32", "x"), te.placeholder((10, 3), "int32", "state")
    first = te.compute((2, 3), lambda t, i: x[t, i], name="first")
    update = te.compute((10, 3), lambda t, i: state[t - 1, i] + state[t - 2, i], name="update")
    (result,) = evaluate([x], [te.scan(first, update, state)], [np.ones((2, 3), "int32")])
    np.testing.assert_array_equal(result[:, 0], [1, 1, 2, 3, 5, 8, 13, 21, 34, 55])


def test_several_states() -> None:
    """A running sum, and the running maximum of the sums before."""
    x = te.placeholder((6, 4), name="x")
    total, top = te.placeholder((6, 4), name="total"), te.placeholder((6, 4), name="top")
    first = te.compute((1, 4), lambda _, i: x[0, i], name="first")
    low = te.compute((1, 4), lambda _, i: x[0, i] * 0.0, name="low")
    sums = te.compute((6, 4), lambda t, i: total[t - 1, i] + x[t, i], name="sums")
    tops = te.compute((6, 4), lambda t, i: te.max(top[t - 1, i], total[t - 1, i]), name="tops")
    actual = te.scan([first, low], [sums, tops], [total, top])
    assert isinstance(actual, list)
    array = normal(6, 4)
    one, two = evaluate([x], actual, [array])
    expected = np.cumsum(array, 0)
    np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)
    highest = np.maximum.accumulate(np.maximum(expected, 0), 0)[:-1]
    np.testing.assert_allclose(two[1:], highest, rtol=1e-5, atol=1e-6)


def test_recurrent_network() -> None:
    """A matrix product between state and update, and a projection of the input before all."""
    steps, units = te.size_var("steps"), 8
    x, w, u = (
        te.placeholder(s, name=n)
        for s, n in (((steps, 5), "x"), ((5, units), "w"), ((units, units), "u"))
    )
    j, k = te.reduce_axis((0, 5), "j"), te.reduce_axis((0, units), "k")
    projected = te.compute((steps, units), lambda t, i: te.sum(x[t, j] * w[j, i], j), name="wx")
    state = te.placeholder((steps, units), name="state")
    first = te.compute((1, units), lambda _, i: te.tanh(projected[0, i]), name="first")
    product = te.compute(
        (steps, units), lambda t, i: te.sum(state[t - 1, k] * u[k, i], k), name="us"
    )
    update = te.compute((steps, units), lambda t, i: te.tanh(projected[t, i] + product[t, i]))
    arrays = [normal(7, 5), normal(5, units), normal(units, units)]
    (result,) = evaluate([x, w, u], [te.scan(first, update, state)], arrays)
    hidden = np.zeros(units)
    for t in range(7):
        hidden = np.tanh(arrays[0][t] @ arrays[1] + (hidden @ arrays[2] if t else 0))
        np.testing.assert_allclose(result[t], hidden, rtol=1e-4, atol=1e-5)


def test_stages_after_a_scan_read_its_result() -> None:
    x, state = te.placeholder((4, 3), name="x"), te.placeholder((4, 3), name="state")
    doubled = te.compute((4, 3), lambda t, i: x[t, i] * 2.0, name="doubled")
    first = te.compute((1, 3), lambda _, i: doubled[0, i], name="first")
    update = te.compute((4, 3), lambda t, i: state[t - 1, i] + doubled[t, i], name="update")
    sums = te.scan(first, update, state)
    last = te.compute((3,), lambda i: sums[3, i] + 1.0, name="last")
    array = normal(4, 3)
    (result,) = evaluate([x], [last], [array])
    np.testing.assert_allclose(result, array.sum(0) * 2 + 1, rtol=1e-5)


X, S = te.placeholder((4, 3), name="x"), te.placeholder((4, 3), name="s")
FIRST = te.compute((1, 3), lambda _, i: X[0, i], name="first")


def update(body: Callable[..., object], shape: tuple[int, ...] = (4, 3)) -> Tensor:
    """An update of the state S."""
    return te.compute(shape, body, name="update")  # type: ignore[return-value, call-overload]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: te.scan([FIRST, FIRST], update(lambda t, i: S[t - 1, i]), S),
            "scan 'scan': init, update and state_placeholder must be equally many, got 2, 1 and 1",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: S[t, i]), S),
            "scan 'scan': 'update' must read the state 's' at a time before 't'",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: S[t - 1, i], (5, 3)), S),
            r"scan 'scan': init \(1, 3\) and update \(5, 3\) must have the shape of the state"
            r" \(4, 3\), but for the first axis of init",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: S[t - 1, i].astype("int32")), S),
            "must have one dtype, got float32, int32 and float32",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: X[t, i]), FIRST),
            "the state 'first' must be a placeholder",
        ),
    ],
)
def test_invalid_scans_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def network() -> tuple[list[Tensor], dict[str, Tensor], list[np.ndarray], np.ndarray]:
    """(arguments, computations by name, inputs, result) of tanh(state @ w^T + x)."""
    steps, rows, units = 5, 3, 16
    x, w = te.placeholder((steps, rows, units), name="x"), te.placeholder((units, units), name="w")
    state = te.placeholder((steps, rows, units), name="state")
    k = te.reduce_axis((0, units), "k")
    first = te.compute((1, rows, units), lambda _, b, h: x[0, b, h], name="first")
    product = te.compute(
        x.shape, lambda t, b, h: te.sum(state[t - 1, b, k] * w[h, k], k), name="product"
    )
    update = te.compute(x.shape, lambda t, b, h: te.tanh(product[t, b, h] + x[t, b, h]), "update")
    result = te.scan(first, update, state)
    assert isinstance(result, Tensor)
    inputs = [normal(steps, rows, units), normal(units, units) * 0.2]
    hidden = inputs[0].copy()
    for t in range(1, steps):
        hidden[t] = np.tanh(hidden[t - 1] @ inputs[1].T + inputs[0][t])
    named = {"first": first, "product": product, "update": update, "result": result}
    return [x, w, result], named, inputs, hidden


def split_and_vectors(s: te.Schedule, product: Tensor, update: Tensor) -> None:
    """The product of 8 units at a time, inside the loop of the update."""
    _, rows, units = s[update].op.axis
    outer, inner = s[update].split(units, 8)
    s[update].vectorize(inner)
    s[update].parallel(rows)
    s[product].compute_at(s[update], outer)
    _, few = s[product].split(s[product].op.reduce_axis[0], 4)
    s[product].unroll(few)


def one_by_one(s: te.Schedule, product: Tensor, update: Tensor) -> None:
    """The product of one unit, in registers."""
    s[product].set_scope("local")
    s[product].compute_at(s[update], s[update].op.axis[2])


def all_at_once(s: te.Schedule, product: Tensor, update: Tensor) -> None:
    """Rows and units as one parallel loop; a copy of the weights."""
    s[update].parallel(s[update].fuse(*s[update].op.axis[1:]))
    weights = next(t for t in product.op.input_tensors if t.name == "w")
    s.cache_read(weights, "global", [product])


@pytest.mark.parametrize("change", [split_and_vectors, one_by_one, all_at_once])
def test_steps_have_stages(change: Callable[[te.Schedule, Tensor, Tensor], None]) -> None:
    args, named, argument, expected = network()
    s = te.create_schedule(named["result"].op)
    change(s, named["product"], named["update"])
    out = np.zeros_like(expected)
    ekiden.build(s, args, "llvm")(*(runtime.from_dlpack(a) for a in (*argument, out)))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=nehalem", "c"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_update_that_reads_the_state_has_vectors(dtype: str, target: str) -> None:
    """The running sum of TVM's tutorial, of data that a stage before it makes and lays out."""
    x, state = te.placeholder((6, 4), dtype, "x"), te.placeholder((6, 4), dtype, "state")
    more = te.compute((6, 4), lambda t, i: x[t, i] + x[t, i], "more")
    first = te.compute((1, 4), lambda _, i: more[0, i], "first")
    update = te.compute((6, 4), lambda t, i: state[t - 1, i] + more[t, i], "update")
    result = te.scan(first, update, state)
    assert isinstance(result, Tensor)
    s = te.create_schedule(result.op)
    s[update].vectorize(update.op.axis[1])
    s[x].transform_layout(lambda t, i: [i, t])
    array, out = np.arange(24).reshape(6, 4).astype(dtype), np.zeros((6, 4), dtype)
    data = runtime.from_dlpack(np.ascontiguousarray(array.T))
    ekiden.build(s, [x, result], target)(data, runtime.from_dlpack(out))
    np.testing.assert_array_equal(out, (2 * array).cumsum(0).astype(dtype))


def test_computations_without_names() -> None:
    """Blocks of a scan and of what is around it get names of their own."""
    x, state = te.placeholder((6, 4)), te.placeholder((6, 4))
    first = te.compute((1, 4), lambda _, i: x[0, i])
    half = te.compute((6, 4), lambda t, i: state[t - 1, i] * 0.5)
    update = te.compute((6, 4), lambda t, i: half[t, i] + x[t, i])
    result = te.scan(first, update, state)
    assert isinstance(result, Tensor)
    s = te.create_schedule(result.op)
    s[half].compute_at(s[update], s[update].op.axis[1])
    array, out = normal(6, 4), np.zeros((6, 4), "float32")
    ekiden.build(s, [x, result], "llvm")(runtime.from_dlpack(array), runtime.from_dlpack(out))
    expected = array.copy()
    for t in range(1, 6):
        expected[t] = expected[t - 1] * 0.5 + array[t]
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    s = te.create_schedule(result.op)
    s[half].compute_inline()
    ekiden.build(s, [x, result], "llvm")(runtime.from_dlpack(array), runtime.from_dlpack(out))
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_unsupported_scan_schedules_are_refused() -> None:
    args, named, _, _ = network()
    update, product = named["update"], named["product"]
    s = te.create_schedule(named["result"].op)
    with pytest.raises(ScheduleError, match="split of 'update': 't' is the time of 'scan', whose"):
        s[update].split(update.op.axis[0], 2)
    for refused in (s.cache_write, lambda t, _: s.rfactor(t, product.op.reduce_axis[0])):
        with pytest.raises(ScheduleError, match="of 'product': it is a step of 'scan'"):
            refused(product, "local")
    s[update].compute_inline()
    with pytest.raises(ScheduleError, match="'scan' is an output"):
        ekiden.lower(s, args)


def test_scan_input_at_current_step_is_computed_before() -> None:
    """A row that is read where it was written just now is computed before what overwrites it."""

    @T.prim_func
    def shifted(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")) -> None:
        before = T.alloc_buffer((4, 8), "float32")
        for t in range(4):
            for i in range(8):
                with T.block("before"):
                    a, b = T.axis.remap("SS", [t, i])
                    before[a, b] = y[a, 7 - b]
            for i in range(8):
                with T.block("after"):
                    a, b = T.axis.remap("SS", [t, i])
                    y[a, b] = before[a, b] + x[a, b]

    s = tir.Schedule(shifted)
    with pytest.raises(ScheduleError, match="writes 'y', which it reads, again later"):
        s.compute_at(s.get_block("before"), s.get_loops(s.get_block("after"))[1])
