"""Guarantees of a run: memory, aliasing, threads, and one error for bad input."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from network_models import cached_model, compiled_entry, compiled_light
from relay_networks import Array, normal

import ekiden
from ekiden import relay, runtime
from ekiden.ir.prim import SizeVar
from ekiden.relay import op
from long_runs import LONG, alike


def compiled(params: list[relay.Var], body: relay.Expr) -> ekiden.Executable:
    return ekiden.compile(relay.IRModule.from_expr(relay.Function(tuple(params), body, None)))


def one(result: runtime.Tensor | tuple[runtime.Tensor, ...]) -> Array:
    assert isinstance(result, runtime.Tensor)
    return result.numpy()


@pytest.fixture(scope="module")
def dense() -> ekiden.Executable:
    """relu(x @ w.T) over x[n, 12]"""
    x = relay.var("x", relay.tensor_type((SizeVar("n", "int64"), 12)))
    return compiled([x], op.nn.relu(op.nn.dense(x, relay.const(normal(9, 12)))))


@pytest.fixture(scope="module")
def static() -> ekiden.Executable:
    """Several kernels over fixed shapes."""
    x = relay.var("x", relay.tensor_type((1, 8, 14, 14)))
    conv = op.nn.relu(op.nn.conv2d(x, relay.const(normal(16, 8, 3, 3)), padding=1))
    pooled = op.nn.global_avg_pool2d(conv)
    return compiled(
        [x], op.nn.softmax(op.nn.dense(op.nn.batch_flatten(pooled), relay.const(normal(10, 16))))
    )


@pytest.fixture(scope="module")
def two() -> ekiden.Executable:
    """x[n, m] + y[n, 1]"""
    n, m = SizeVar("n", "int64"), SizeVar("m", "int64")
    x = relay.var("x", relay.tensor_type((n, m)))
    y = relay.var("y", relay.tensor_type((n, 1)))
    return compiled([x, y], op.add(x, y))


@pytest.mark.slow
@pytest.mark.quick
def test_static_model_allocates_nothing_after_its_first_run(static: ekiden.Executable) -> None:
    x = runtime.tensor(normal(1, 8, 14, 14))
    static(x)
    before = runtime.allocation_count()
    for _ in range(1000):
        static(x)
    assert runtime.allocation_count() == before


def test_real_model_allocates_nothing_after_its_first_run() -> None:
    """The executable is this test's own: a shared one had its first run elsewhere, and what that
    put aside for a held result may have been taken since."""
    exe = ekiden.Executable(compiled_light("squeezenet").raw)
    x = runtime.tensor(normal(*map(int, exe.inputs[0].shape)))
    held = exe(x)
    before = runtime.allocation_count()
    for _ in range(50):
        held = exe(x)
    assert held is not None
    assert runtime.allocation_count() == before


@pytest.mark.quick
def test_live_results_are_not_overwritten(dense: ekiden.Executable) -> None:
    inputs = [normal(n % 7, 12, seed=n) for n in range(40)]
    results = [one(dense(x)) for x in inputs]
    for x, actual in zip(inputs, results, strict=True):
        expected = np.maximum(x @ normal(9, 12).T, 0)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.quick
def test_sizes_may_vary_in_any_order(dense: ekiden.Executable) -> None:
    for n in (1, 100, 0, 7, 100, 1, 33, 0, 64):
        x = normal(n, 12, seed=n)
        expected = np.maximum(x @ normal(9, 12).T, 0)
        np.testing.assert_allclose(one(dense(x)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.quick
def test_threads_run_separate_executables(dense: ekiden.Executable) -> None:
    raw = dense.raw
    wrong: list[int] = []

    def work(seed: int) -> None:
        result = ekiden.Executable(raw)
        for n in range(1, 60):
            x = normal(n, 12, seed=seed)
            if not np.allclose(one(result(x)), np.maximum(x @ normal(9, 12).T, 0), atol=1e-4):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.quick
def test_input_as_output_is_not_written_by_later_runs() -> None:
    """The result of an echo holds what was given, however it is passed on."""
    x = relay.var("x", relay.tensor_type((4,)))
    exe = compiled([x], relay.Tuple((x, op.add(x, relay.const(1.0)), x)))
    data = np.arange(4, dtype=np.float32)
    first = exe(data)
    assert isinstance(first, tuple)
    snapshot = [t.numpy().copy() for t in first]
    second = exe(first[1])
    assert isinstance(second, tuple)
    for tensor, before in zip(first, snapshot, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), before)
    np.testing.assert_array_equal(second[0].numpy(), np.arange(1, 5, dtype=np.float32))
    np.testing.assert_array_equal(data, np.arange(4, dtype=np.float32))


@pytest.mark.quick
def test_returned_input_outlives_the_argument() -> None:
    x = relay.var("x", relay.tensor_type((SizeVar("n", "int64"),)))
    exe = compiled([x], x)
    result = one(exe(np.arange(1000, dtype=np.float32)))
    for _ in range(50):
        np.full(1000, 7, np.float32)
    np.testing.assert_array_equal(result, np.arange(1000, dtype=np.float32))


@pytest.mark.quick
def test_constant_as_output_survives_the_executable() -> None:
    x = relay.var("x", relay.tensor_type((2,)))
    exe = compiled([x], relay.Tuple((relay.const(np.arange(6, dtype=np.float32)), op.tanh(x))))
    result = exe(normal(2))
    assert isinstance(result, tuple)
    constant = result[0].numpy()
    del exe, result
    np.testing.assert_array_equal(constant, np.arange(6, dtype=np.float32))


@pytest.mark.quick
def test_constant_as_output_cannot_be_changed_by_the_user() -> None:
    x = relay.var("x", relay.tensor_type((2,)))
    exe = compiled([x], relay.Tuple((relay.const(np.zeros(6, np.float32)), x)))
    result = exe(normal(2))
    assert isinstance(result, tuple)
    array = result[0].numpy()
    if array.flags.writeable:
        array[:] = 5
    again = exe(normal(2))
    assert isinstance(again, tuple)
    assert again[0].numpy().tolist() == [0.0] * 6


def misaligned(array: Array) -> Array:
    """The same values at an address that no element's size divides."""
    room = np.zeros(array.nbytes + 1, np.uint8)
    view = room[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def read_only(array: Array) -> Array:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


class Foreign:
    """An array of another library: nothing but DLPack."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)  # type: ignore[arg-type]

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


LAYOUTS = {
    "contiguous": lambda a: a,
    "fortran": np.asfortranarray,
    "every second row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "broadcast": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "read-only": read_only,
    "misaligned": misaligned,
    "dlpack": Foreign,
    "big-endian": lambda a: a.astype(">f4"),
    "list": lambda a: a.tolist(),
}


@pytest.mark.quick
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_strided_and_misaligned_inputs_are_accepted(
    dense: ekiden.Executable, layout: str, n: int
) -> None:
    x = normal(n, 12)
    argument = LAYOUTS[layout](x)
    if layout == "list":  # lists are float64, which is not what the model takes
        with pytest.raises(ekiden.InputError):
            dense(argument)
        return
    values = x if layout == "dlpack" else np.asarray(argument, np.float32)
    before = values.copy()
    expected = np.maximum(values @ normal(9, 12).T, 0)
    np.testing.assert_allclose(one(dense(argument)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(values, before)


def message(exe: ekiden.Executable, *args: object, **named: object) -> str:
    with pytest.raises(ekiden.InputError) as caught:
        exe(*args, **named)
    return str(caught.value)


@pytest.mark.quick
def test_wrong_input_messages(two: ekiden.Executable) -> None:
    x, y = normal(3, 4), normal(3, 1)
    assert message(two) == "run: expected 2 inputs ('x', 'y'), got 0"
    assert message(two, x) == "run: expected 2 inputs ('x', 'y'), got 1"
    assert message(two, x, y, y) == "run: expected 2 inputs ('x', 'y'), got 3"
    assert message(two, x, z=y) == "run: no input is named 'z'; there are 'x', 'y'"
    assert message(two, x, x=x) == "run: input 'x' is given twice"
    assert message(two, x=x) == "run: input 'y' is missing; there are 'x', 'y'"
    assert message(two, x.astype(np.float64), y) == (
        "input 'x': expected Tensor[(n, m), float32], got (3, 4) float64"
    )
    expected = "input 'y': expected Tensor[(n, 1), float32]"
    assert message(two, x, y[0]) == f"{expected}, got (1) float32"
    assert message(two, x, normal(3, 2)) == f"{expected}, got (3, 2) float32"
    assert message(two, x, normal(5, 1)) == (
        f"{expected} with n = 3 as in input 'x', got (5, 1) float32"
    )


@pytest.mark.quick
@pytest.mark.parametrize("junk", [None, "text", object(), {}, [[1.0], [2.0, 3.0]], lambda: None])
def test_non_array_input_is_an_input_error(two: ekiden.Executable, junk: object) -> None:
    text = message(two, junk, normal(3, 1))
    assert text.startswith("input 'x': expected ")


@pytest.mark.quick
def test_refused_run_has_no_effects(two: ekiden.Executable) -> None:
    message(two, normal(3, 4), normal(5, 1))
    x, y = normal(3, 4), normal(3, 1, seed=2)
    np.testing.assert_array_equal(one(two(x, y)), x + y)


@alike(4)
@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("minilm_l3_f32", {"s": 513}),
        ("minilm_l3_f32", {"s": 100_000}),
        pytest.param("ppocr4_det", {"h": 33, "w": 64}, marks=LONG),  # takes 11 s to compile
        pytest.param("ppocr4_det", {"h": 100, "w": 100}, marks=LONG),
    ],
)
def test_inadmissible_shapes_are_refused(name: str, dims: dict[str, int]) -> None:
    """One error that says so; the next good run is as before."""
    entry = cached_model(name)
    exe = compiled_entry(entry)
    good = min(entry.cases, key=lambda c: int(np.prod(list(c["dims"].values()))))
    wrong = {**good, "dims": {**good["dims"], **_named(good["dims"], dims)}}
    before = _bytes(exe, entry.feed(good))
    with pytest.raises(ekiden.RunError):
        exe(**entry.feed(wrong))
    assert _bytes(exe, entry.feed(good)) == before


def _named(known: dict[str, int], wanted: dict[str, int]) -> dict[str, int]:
    """The dimensions under the names that a manifest gives them, by their first letter."""
    return {next(k for k in known if k.startswith(w)): v for w, v in wanted.items()}


def _bytes(exe: ekiden.Executable, feed: dict[str, Array]) -> list[bytes]:
    result = exe(**feed)
    return [t.numpy().tobytes() for t in (result if isinstance(result, tuple) else (result,))]


def test_implied_dimension_equalities_are_checked() -> None:
    entry = cached_model("deepcut")
    exe = compiled_entry(entry)
    feed = entry.feed(entry.cases[0])
    last = list(feed)[-1]
    feed[last] = np.concatenate([feed[last], feed[last]])
    with pytest.raises(ekiden.InputError, match="as in input '"):
        exe(**feed)


@pytest.mark.quick
def test_failed_allocation_is_an_error(dense: ekiden.Executable) -> None:
    """A view of one row as 2^40 of them asks for terabytes."""
    x = np.broadcast_to(normal(1, 12), (1 << 40, 12))
    with pytest.raises((ekiden.RunError, MemoryError)):
        dense(x)
    assert one(dense(normal(2, 12))).shape == (2, 9)
