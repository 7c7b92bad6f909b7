"""Tensor expressions: how they are written, inlined, and turned into blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import FloatImm, IntImm, SizeVar, const
from ekiden.tir import interpreter
from ekiden.tir.transform import lower

pytestmark = pytest.mark.quick


def test_reduction_becomes_a_block_with_init() -> None:
    x = te.placeholder((2, 3), name="x")
    k = te.reduce_axis((0, 3), "k")
    y = te.compute((2,), lambda i: te.sum(x[i, k], k), name="y")
    assert tir.astext(te.create_prim_func([x, y], "row_sum")) == (
        "# from ekiden.script import tir as T\n"
        "\n"
        "@T.prim_func\n"
        'def row_sum(x: T.Buffer((2, 3), "float32"), y: T.Buffer((2,), "float32")):\n'
        '    T.func_attr({"num_outputs": 1})\n'
        "    for i, k in T.grid(2, 3):\n"
        '        with T.block("y"):\n'
        '            i_1, k_1 = T.axis.remap("SR", [i, k])\n'
        "            T.reads(x[i_1, k_1])\n"
        "            T.writes(y[i_1])\n"
        "            with T.init():\n"
        "                y[i_1] = 0.0\n"
        "            y[i_1] = y[i_1] + x[i_1, k_1]\n"
    )


def test_stages_run_in_order_with_intermediates_allocated() -> None:
    n = SizeVar("n")
    x = te.placeholder((n, 4), name="x")
    k = te.reduce_axis((0, 4), "k")
    top = te.compute((n,), lambda i: te.max(x[i, k], k), name="top")
    y = te.compute((n, 4), lambda i, j: x[i, j] - top[i], name="y")
    array = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    out = np.empty_like(array)
    interpreter.run_prim_func(lower(te.create_prim_func([x, y])), array, out)
    np.testing.assert_allclose(out, array - array.max(1, keepdims=True))


def test_inlining_shares_equal_elements() -> None:
    x = te.placeholder((8,), name="x")
    current = x
    for n in range(60):
        before = current
        current = te.compute(
            (8,), lambda i, t=before: t[i] * call_intrin("tanh", t[i]), name=f"s{n}"
        )
    (result,) = te.inline_injective([current])
    assert te.post_order_tensors([result]) == [x, result]
    array = np.linspace(-1, 1, 8, dtype="float32")
    out = np.empty_like(array)
    interpreter.run_prim_func(lower(te.create_prim_func([x, result])), array, out)
    expected = array
    for _ in range(60):
        expected = expected * np.tanh(expected)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-30)


def test_inlining_stops_at_outputs_and_kept_tensors() -> None:
    x = te.placeholder((4,), name="x")
    a = te.compute((4,), lambda i: x[i] + 1.0, name="a")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="b")
    c = te.compute((4,), lambda i: b[i] - x[i], name="c")
    new_a, new_c = te.inline_injective([a, c], keep=[b])
    names = [t.name for t in te.post_order_tensors([new_c])]
    assert names == ["x", "a", "b", "c"]
    assert new_a is te.post_order_tensors([new_c])[1]


def test_rank_zero_tensors_compute() -> None:
    x = te.placeholder((), name="x")
    y = te.compute((), lambda: x[()] + 1.0, name="y")
    out = np.zeros((), "float32")
    interpreter.run_prim_func(lower(te.create_prim_func([x, y])), np.array(2.0, "float32"), out)
    assert out == 3.0


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("sum", "float32", 0.0),
        ("prod", "int32", 1),
        ("max", "float32", -math.inf),
        ("max", "uint8", 0),
        ("min", "int8", 127),
        ("min", "bool", True),
    ],
)
def test_reducer_identity_elements_have_the_dtype(kind: str, dtype: str, expected: float) -> None:
    value = te.identity(kind, dtype)
    assert isinstance(value, (IntImm, FloatImm))
    assert value.value == expected
    assert value.dtype == dtype


def test_extern_writes_statements() -> None:
    from_tensor = te.placeholder((3,), name="x")

    def build(ins: list[tir.Buffer], outs: list[tir.Buffer]) -> tir.Stmt:
        return tir.BufferStore(outs[0], ins[0][2], (const(0),))

    (y,) = te.extern([(1,)], [from_tensor], build, name="last", dtype=["float32"])
    out = np.zeros(1, "float32")
    interpreter.run_prim_func(
        lower(te.create_prim_func([from_tensor, y])), np.arange(3, dtype="float32"), out
    )
    assert out[0] == 2.0


def test_te_errors_have_clear_messages() -> None:
    x = te.placeholder((3, 4), name="x")
    with pytest.raises(ValueError, match="tensor 'x': expected 2 indices, got 1"):
        x[0] + 1.0
    with pytest.raises(ValueError, match="expected a function of 1 indices, got one of 2"):
        te.compute((3,), lambda i, j: x[i, j])
    with pytest.raises(ValueError, match="input 'x' is not among the arguments"):
        te.create_prim_func([te.compute((3, 4), lambda i, j: x[i, j] + 1.0)])


def test_blocks_of_one_name_are_told_apart() -> None:
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] + 1.0)
    c = te.compute((4,), lambda i: b[i] * 2.0)
    d = te.compute((4,), lambda i: c[i] - 3.0, name="compute_1")
    sch = tir.Schedule(te.create_prim_func([a, te.compute((4,), lambda i: d[i] + c[i])]))
    names = ["compute", "compute_1", "compute_1_1", "compute_2"]
    assert [sch.get(sch.get_block(name)).name for name in names] == names
    sch.compute_inline("compute")


def test_chained_indexing_reads_elements() -> None:
    a = te.placeholder((2, 3, 4), name="a")
    b = te.compute((3, 4), lambda j, k: a[0][j][k] + a[1, j][k] + a[1][j, k])
    assert a[0].dtype == "float32" and str(a[0][1][2]) == str(a[0, 1, 2])
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    result = np.zeros((3, 4), "float32")
    interpreter.run_prim_func(lower(te.create_prim_func([a, b])), x, result)
    np.testing.assert_array_equal(result, x[0] + 2 * x[1])
    for wrong in (
        lambda: a[0] + 1.0,
        lambda: 2.0 * a[0][1],
        lambda: te.compute((2,), lambda i: a[i]),
    ):
        with pytest.raises(ValueError, match="tensor 'a': expected 3 indices, got [12]"):
            wrong()
    with pytest.raises(ValueError, match="expected 3 indices, got 4"):
        a[0][1][2, 3]
