"""The default rule keeps meaning: any group, scheduled and lowered, computes what its unscheduled
form does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekiden
from ekiden import kernels, te, topi
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import PrimExpr, SizeVar, logical_and, maximum
from ekiden.kernels.cpu.default import schedule_default
from ekiden.runtime.errors import IndexRangeError
from ekiden.target import Target
from ekiden.te import Tensor
from ekiden.tir import ForKind, PrimFunc, verify
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.stmt import For
from ekiden.tir.transform import lower
from ekiden.tir.visitor import pre_order_stmts
from ekiden.topi.nn.softmax_stages import log_softmax, softmax
from long_runs import share

RNG = np.random.default_rng(3)
TARGET = Target(cpu="x86-64-v4", vector_bits=512, registers=32)


def compare(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], arrays: Sequence[np.ndarray]
) -> PrimFunc:
    """Run both forms; the scheduled one is given back."""
    plain = lower(te.create_prim_func([*inputs, *outputs]))
    scheduled = schedule_default(list(inputs), list(outputs), TARGET, "kernel")
    sizes = {
        d: n
        for t, a in zip(inputs, arrays, strict=True)
        for d, n in zip(t.shape, a.shape, strict=True)
    }
    shapes = [tuple(int(sizes.get(d, getattr(d, "value", 0))) for d in t.shape) for t in outputs]
    expected = [np.zeros(s, t.dtype) for s, t in zip(shapes, outputs, strict=True)]
    actual = [np.full(s, 7, t.dtype) for s, t in zip(shapes, outputs, strict=True)]
    run_prim_func(plain, *arrays, *expected)
    run_prim_func(verify(lower(scheduled)), *arrays, *actual)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
    return scheduled


def declare(array: np.ndarray, symbolic: bool, name: str = "x") -> Tensor:
    """A placeholder for an array; a symbol for each dimension if asked."""
    shape = [SizeVar(f"{name}{i}") if symbolic else d for i, d in enumerate(array.shape)]
    return te.placeholder(shape, str(array.dtype), name)


def random_array(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Values of order one."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def pad(x: Tensor) -> Tensor:
    """One row before and two after the last axis, of ones."""
    size = x.shape[-1]

    def body(*i: PrimExpr) -> PrimExpr:
        inside = logical_and(i[-1] >= 1, i[-1] < size + 1)
        return if_then_else(inside, x[(*i[:-1], i[-1] - 1)], x[tuple([0] * x.ndim)] * 0.0 + 1.0)

    return te.compute((*x.shape[:-1], size + 3), body, name="pad")


Step = Callable[[Tensor], Tensor]
# fmt: off
STEPS: dict[str, Step] = {
    "relu":      lambda x: te.compute(x.shape, lambda *i: maximum(x[i], 0.0), name="relu"),
    "exp":       lambda x: te.compute(x.shape, lambda *i: call_intrin("exp", x[i]), name="exp"),
    "transpose": lambda x: topi.transform.transpose(x, range(x.ndim)[::-1]),
    "swap":      lambda x: topi.transform.transpose(x, (1, 0, *range(2, x.ndim))),
    "double":    lambda x: topi.transform.concatenate([x, x], x.ndim - 1),
    "stack":     lambda x: topi.transform.concatenate([x, x], 0),
    "softmax":   lambda x: softmax(x, x.ndim - 1),
    "softmax0":  lambda x: softmax(x, 0),
    "log":       lambda x: log_softmax(x, x.ndim - 1),
    "center":    lambda x: topi.broadcast.subtract(x, topi.reduce.mean(x, (x.ndim - 1,), True)),
    "center0":   lambda x: topi.broadcast.subtract(x, topi.reduce.mean(x, (0,), True)),
    "max_all":   lambda x: topi.broadcast.add(x, topi.reduce.max(x, tuple(range(x.ndim)), True)),
    "position":  lambda x: te.compute(x.shape, lambda *i: x[i] + i[-1].astype("float32")),
}
# fmt: on
extents = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 33])


@given(
    st.lists(extents, min_size=2, max_size=3),
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_default_schedule_preserves_chains(
    shape: list[int], steps: list[str], symbolic: bool
) -> None:
    array = random_array(shape)
    x = declare(array, symbolic and not {"double", "stack"} & set(steps))
    result = x
    for step in steps:
        result = STEPS[step](result)
    if not all(hasattr(d, "value") or d in x.shape for d in result.shape):
        return
    compare([x], [result], [array])


@share(6)
@pytest.mark.quick
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize(
    "shape", [(2, 3, 37), (5, 1, 4), (1, 70, 16), (0, 2, 3), (2, 0, 3), (2, 3, 0)]
)
def test_default_schedule_preserves_reductions(
    shape: tuple[int, ...], axes: tuple[int, ...], symbolic: bool
) -> None:
    array = random_array(shape)
    x = declare(array, symbolic)
    compare([x], [topi.reduce.sum(x, axes)], [array])


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(3, 40), (1, 1), (0, 5), (4, 16)])
def test_padding_reads_nothing_outside(shape: tuple[int, ...]) -> None:
    array = random_array((*shape[:-1], shape[-1]))
    if array.size == 0:
        return
    x = declare(array, False)
    scheduled = compare([x], [pad(x)], [array])
    loops = [
        s
        for s in pre_order_stmts(scheduled.body)
        if isinstance(s, For) and s.kind is ForKind.VECTORIZED
    ]
    assert len(loops) >= 1


@pytest.mark.quick
def test_multiple_outputs_share_a_row_loop() -> None:
    array = random_array((6, 20))
    x = declare(array, False)
    total = topi.reduce.sum(x, (1,), True)
    compare([x], [topi.broadcast.divide(x, total), total], [array])


@pytest.mark.quick
def test_input_as_output_is_copied() -> None:
    array = random_array((2, 3))
    x = declare(array, False)
    compare([x], [te.compute(x.shape, lambda *i: x[i], name="copy")], [array])
    scheduled = schedule_default([x], [x, x], TARGET, "kernel")
    outs = [np.zeros_like(array), np.zeros_like(array)]
    run_prim_func(lower(scheduled), array, *outs)
    assert all(np.array_equal(o, array) for o in outs)


@pytest.mark.quick
def test_neighbouring_axes_become_one_loop() -> None:
    x = te.placeholder((4, 8, 100), name="x")
    y = te.compute(x.shape, lambda *i: x[i] * 2.0, name="y")
    scheduled = schedule_default([x], [y], TARGET, "kernel")
    assert [s.extent.value for s in pre_order_stmts(scheduled.body) if isinstance(s, For)] == [3200]


@pytest.mark.quick
def test_much_work_is_parallel_and_little_is_not() -> None:
    for rows, parallel in ((8, False), (4096, True)):
        x = te.placeholder((rows, 128), name="x")
        scheduled = schedule_default([x], [softmax(x, 1)], TARGET, "kernel")
        kinds = [s.kind for s in pre_order_stmts(scheduled.body) if isinstance(s, For)]
        assert (ForKind.PARALLEL in kinds) == parallel


@pytest.mark.quick
def test_concatenation_has_a_nest_per_input() -> None:
    parts = [te.placeholder((10, n), name=f"x{n}") for n in (3, 40, 5)]
    arrays = [random_array((10, n)) for n in (3, 40, 5)]
    out = topi.transform.concatenate(parts, 1)
    compare(parts, [out], arrays)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (7, 60)])
def test_programs_of_threads_refuse_indices(shape: tuple[int, ...], symbolic: bool) -> None:
    """Each thread looks at one, in a launch before those that read or write at them."""
    data, at = random_array((5, 4)), np.full(shape, -5, "int64")
    inputs = [declare(data, symbolic, "data"), declare(at, symbolic and bool(shape), "at")]
    target = Target(kind="cuda")
    taken = topi.take(inputs[0], inputs[1], 0, mode="raise")
    func = lower(kernels.schedule(inputs, [taken], target, "kernel"), target)
    out = np.full((*shape, 4), 7, data.dtype)
    run_prim_func(func, data, at, out)
    np.testing.assert_array_equal(out, np.broadcast_to(data[0], out.shape))
    at[(-1,) * len(shape)] = 5
    out[...] = 7
    with pytest.raises(IndexRangeError, match=r"^take: index 5 .*axis 0 of size 5 \(\[-5, 4\]"):
        run_prim_func(func, data, at, out)
    assert (out == 7).all()


def loops(func: PrimFunc) -> list[tuple[str, ForKind]]:
    """The name and kind of each loop of scalars, outermost first."""
    return [(s.loop_var.name, s.kind) for s in pre_order_stmts(func.body) if isinstance(s, For)]


def test_stage_takes_several_rows_before_the_next() -> None:
    x = te.placeholder((64, 64), "float32", "x")
    result = schedule_default([x], [softmax(x)], TARGET, "kernel")
    rows = [
        s for s in pre_order_stmts(result.body) if isinstance(s, For) and s.loop_var.name == "row"
    ]
    assert len(rows) == 3  # maximum; powers and their sum; quotients


@pytest.mark.parametrize("shape", [(1, 5), (3, 33), (7, 20), (2, 9, 16)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_row_groups_with_remainder_match(shape: tuple[int, ...], symbolic: bool) -> None:
    array = random_array(shape)
    x = declare(array, symbolic)
    compare([x], [softmax(x)], [array])
    compare([x], [log_softmax(x)], [array])


def test_long_rows_are_taken_one_by_one() -> None:
    """What a stage leaves in the first cache is what the next one reads."""
    x = te.placeholder((64, 8192), "float32", "x")
    result = schedule_default([x], [softmax(x)], TARGET, "kernel")
    assert not any(name == "row" for name, _ in loops(result))


def test_maximum_of_a_part_caps_no_powers() -> None:
    array = np.arange(64, dtype=np.float32).reshape(2, 32) / 8
    x = te.placeholder((2, 32), "float32", "x")
    k = te.reduce_axis((0, 16), "k")
    most = te.compute((2,), lambda i: te.max(x[i, k], axis=k), "most")
    power = te.compute((2, 32), lambda i, j: te.exp(x[i, j] - most[i]), "power")
    r = te.reduce_axis((0, 32), "r")
    total = te.compute((2,), lambda i: te.sum(power[i, r], axis=r), "total")
    tensor = te.compute((2, 32), lambda i, j: power[i, j] / total[i], "made")
    compare([x], [tensor], [array])


def test_powers_below_a_maximum_are_capped() -> None:
    """Also where what they are of is computed, and read under a mask; others are left alone."""
    x, mask = (te.placeholder((8, 32), "float32", n) for n in ("x", "mask"))
    scaled = te.compute((8, 32), lambda i, j: x[i, j] * 0.25 + mask[i, j], "scaled")
    for tensor in (softmax(x), log_softmax(x), softmax(scaled)):
        result = str(schedule_default([x, mask], [tensor], TARGET, "kernel"))
        assert "T.exp(T.min(" in result, result
    k = te.reduce_axis((0, 32), "k")
    other = te.compute((8,), lambda i: te.max(mask[i, k], axis=k), "other")
    powers = te.compute((8, 32), lambda i, j: call_intrin("exp", x[i, j] - other[i]), "powers")
    assert "T.min(" not in str(schedule_default([x, mask], [powers], TARGET, "kernel"))


def quotients(shape: tuple[int, int], axis: int, dtype: str) -> tuple[Tensor, list[Tensor]]:
    """Powers below the maximum of each row, their sums along an axis, and quotients of both."""
    rows, columns = shape
    x = te.placeholder(shape, dtype, "x")
    k = te.reduce_axis((0, columns), "k")
    most = te.compute((rows,), lambda i: te.max(x[i, k], axis=k), "most")
    powers = te.compute(shape, lambda i, j: te.exp(x[i, j] - most[i]), "powers")
    r = te.reduce_axis((0, shape[axis]), "r")

    def summed(i: PrimExpr) -> PrimExpr:
        return te.sum(powers[i, r] if axis else powers[r, i], axis=r)

    total = te.compute((shape[1 - axis],), summed, "total")
    tensor = te.compute(shape, lambda i, j: powers[i, j] / total[i if axis else j], "made")
    return x, [powers, total, tensor]


@pytest.mark.skipif(not Target().has("fma"), reason="needs a processor with FMA")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_are_divided_by_their_sum_as_by_a_division(dtype: str) -> None:
    """Bit for bit, without one; infinite values and none among them. Below the normal numbers the
    last bit may be another."""
    x, outputs = quotients((40, 37), 1, dtype)
    func = schedule_default([x], outputs, Target(), "kernel")
    assert "] / total[" not in str(func)
    array = RNG.standard_normal((40, 37)).astype(dtype) * np.geomspace(0.1, 100, 40)[:, None]
    array[3, 4], array[5, 6], array[7, 8], array[9] = -np.inf, np.inf, np.nan, -np.inf
    data = ekiden.runtime.tensor(array.astype(dtype))
    actual = [ekiden.runtime.tensor(np.zeros([int(d) for d in t.shape], dtype)) for t in outputs]
    ekiden.build(func)["kernel"](data, *actual)
    powers, total, result = (t.numpy() for t in actual)
    with np.errstate(invalid="ignore"):
        expected = powers / total[:, None]
    tiny = np.finfo(dtype).tiny
    normal = ~(expected < tiny)
    np.testing.assert_array_equal(result[normal], expected[normal])
    assert (abs(result - expected)[~normal] <= np.finfo(dtype).smallest_subnormal).all()
    assert normal.sum() > 1000 and not normal.all()


@pytest.mark.parametrize(("axis", "cpu"), [(0, "x86-64-v4"), (1, "x86-64-v2")])
def test_quotients_that_stay_divisions(axis: int, cpu: str) -> None:
    """Of a sum across rows, which may be as small as numbers are; without FMA."""
    x, outputs = quotients((8, 8), axis, "float32")
    func = schedule_default([x], outputs, Target(cpu=cpu), "kernel")
    assert str(func).count("] / total[") == 1
