"""te.extern, and loop programs called on tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from te_programs import evaluate

import ekiden
from ekiden import te, tir
from ekiden.ir.prim import const
from ekiden.te.range_checks import check_site, range_check

pytestmark = pytest.mark.quick


def reversed_rows(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
    """Each row backwards, and its largest element."""
    ib = tir.ir_builder.create()
    source, target, top = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0]), ib.buffer_ptr(outs[1])
    rows, columns = ins[0].shape
    with ib.for_range(0, rows, "row", kind="parallel") as row:
        top[row] = te.min_value("float32")
        with ib.for_range(0, columns, "column") as column:
            value = ib.let("value", source[row, column])
            target[row, columns - 1 - column] = value
            with ib.if_scope(value > top[row]):
                top[row] = value
    return ib.get()


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4)])
def test_statements_fill_several_outputs(shape: tuple[int, int]) -> None:
    m, n = te.size_var("m"), te.size_var("n")
    x = te.placeholder((m, n), name="x")
    outputs = te.extern([(m, n), (m,)], [x], reversed_rows, name="reverse")
    assert isinstance(outputs, list)
    array = np.random.default_rng(0).normal(size=shape).astype("float32")
    backwards, top = evaluate([x], outputs, [array])
    np.testing.assert_array_equal(backwards, array[:, ::-1])
    np.testing.assert_array_equal(top, array.max(1))


def test_ir_builder_scopes_nest() -> None:
    """Conditions with both sides, allocations that end with their scope, flat indices."""
    x = te.placeholder((2, 3), "int32", "x")

    def build(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        source, target = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, 6) as i:
            with ib.if_scope(source[i] > 2):
                total = ib.allocate("int32", 1, "total", "local")
                total[0] = 0
                with ib.for_range(0, source[i].astype("int64")) as k:
                    ib.increase(total, 0, k)
                target[i] = total[0]
            with ib.else_scope():
                target[i] = -1
        return ib.get()

    y = te.extern((2, 3), [x], build, name="sums")
    array = np.arange(6, dtype="int32").reshape(2, 3)
    (result,) = evaluate([x], [y], [array])  # type: ignore[list-item]
    np.testing.assert_array_equal(result, [[-1, -1, -1], [3, 6, 10]])


def test_loop_program_on_tensors() -> None:
    n = te.size_var("n")
    a = te.placeholder((n,), name="a")
    func = te.create_prim_func([a, te.compute((n,), lambda i: a[i] + 1.0, name="b")], "increase")
    x = te.placeholder((2, 3), name="x")
    row = te.compute((3,), lambda i: x[1, i], name="row")
    called = te.extern_primfunc([row], func)
    assert isinstance(called, te.Tensor)
    twice = te.compute((3,), lambda i: called[i] * 2.0, name="twice")
    array = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(evaluate([x], [twice], [array])[0], (array[1] + 1) * 2)


X = te.placeholder((3,), name="x")
Y = te.placeholder((3,), "int32", "y")
NOTHING: Callable[..., tir.Stmt] = lambda ins, outs: tir.Evaluate(const(0))  # noqa: E731


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: te.extern((3,), [X, Y], NOTHING),
            r"dtype must be given, inputs have \['float32', 'int32'\]",
        ),
        (
            lambda: te.extern([(3,), (2,)], [X], NOTHING, dtype=["int8"]),
            r"2 outputs need as many dtypes, got \['int8'\]",
        ),
        (
            lambda: te.extern((3,), [X], lambda i, o: None),  # type: ignore[arg-type, return-value]
            "extern 'extern': the function must give a statement, got NoneType",
        ),
        (
            lambda: te.extern((3,), [X], NOTHING, in_buffers=[]),
            "extern 'extern': expected 1 in_buffers, got 0",
        ),
        (
            lambda: te.create_prim_func([X, X]),
            "create_prim_func 'main': a tensor or variable is among the arguments twice",
        ),
        (
            lambda: te.create_prim_func([te.var("n") + 1, X]),  # type: ignore[list-item]
            "create_prim_func 'main': expected tensors and variables, got Add",
        ),
        (lambda: te.placeholder((-1,)), "placeholder 'placeholder': a dimension must not be neg"),
        (lambda: te.placeholder((1.5,)), "a dimension must be an integer, got 1.5"),
        (lambda: te.placeholder((1,), "float31"), "dtype must be one of bool, int8"),
        (lambda: X[1.5], "tensor 'x'|not iterable"),
        (lambda: te.placeholder((3, 4))[0.5, 0], "an index must be an integer, got 0.5"),
        (lambda: te.compute((3,), lambda i: X), "the function must give expressions, got Tensor"),
        (lambda: te.compute((3,), lambda i: None), "must give expressions, got NoneType"),
        (lambda: tir.ir_builder.create().buffer_ptr(X_BUFFER)[0, 0], "expected 1 indices"),
    ],
)
def test_invalid_extern_use_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


X_BUFFER = tir.Buffer("x", (const(3),))


def test_tag_scope_sets_tags() -> None:
    with te.tag_scope(tag="mine"):
        a = te.compute((3,), lambda i: X[i] + 1.0)
        b = te.compute((3,), lambda i: X[i] + 1.0, tag="own")
    c = te.compute((3,), lambda i: X[i] + 1.0)
    assert [t.op.tag for t in (a, b, c)] == ["mine", "own", ""]
    with (
        pytest.raises(ValueError, match="scopes must not nest"),
        te.tag_scope("a"),
        te.tag_scope("b"),
    ):
        pass


def test_tag_scopes_are_per_thread() -> None:
    """Of a tag, and of the operator that checks are said to be of."""
    data = te.placeholder((4,), name="x")

    def elsewhere() -> tuple[str, int | None]:
        with te.tag_scope("other"), check_site(7):
            inside.set()
            left.wait()
            tensor = te.compute((4,), lambda i: data[i])
            return tensor.op.tag, range_check("x", data, 0, 1).site

    inside, left = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(elsewhere)
        inside.wait()
        with te.tag_scope("own"), check_site(3):
            assert te.compute((4,), lambda i: data[i]).op.tag == "own"
            assert range_check("x", data, 0, 1).site == 3
            left.set()
            assert other.result() == ("other", 7)
    assert te.compute((4,), lambda i: data[i]).op.tag == ""


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=nehalem", "c"])
@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_likely_condition_may_have_another_side(kind: str, target: str) -> None:
    """What is marked `likely` decides where a loop is cut; behind the cut the other side runs."""
    n = te.size_var("n")
    a = te.placeholder((n,), name="a")

    def write(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        source, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, n, "i", kind=kind) as i:
            with ib.if_scope(ib.likely(i < 3)):
                out[i] = source[i] + 1.0
            with ib.else_scope():
                out[i] = source[i] * 4.0
        return ib.get()

    b = te.extern(a.shape, [a], write, name="b", dtype="float32")
    module = ekiden.build(te.create_schedule(b.op), [a, b], target)
    for size in (0, 2, 3, 9):
        x = np.arange(size, dtype="float32")
        out = ekiden.nd.array(np.full(size, 7, "float32"))
        module(ekiden.nd.array(x), out)
        np.testing.assert_array_equal(out.numpy(), np.where(np.arange(size) < 3, x + 1, x * 4))


def test_float_of_a_whole_value_is_a_dimension() -> None:
    packed = te.compute((64 / 32, 3, 32), lambda i, j, k: X[0] + i + j + k, name="packed")
    assert [int(d) for d in packed.shape] == [2, 3, 32]
