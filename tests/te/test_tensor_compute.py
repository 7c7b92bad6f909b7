"""te.compute by an instruction: a function of fewer indices than there are axes."""

from collections.abc import Sequence

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.ir.prim import Var
from ekiden.runtime.errors import ScheduleError
from ekiden.te import Tensor
from ekiden.te.schedule import Schedule
from ekiden.te.tensor_intrin import TensorIntrin
from long_runs import share

TARGETS = ["llvm", "llvm -mcpu=nehalem", "c"]
Buffers = Sequence[tir.Buffer]


def adding(n: int, dtype: str = "float32") -> TensorIntrin:
    x, y = (te.placeholder((n,), dtype, name=name) for name in "xy")
    z = te.compute((n,), lambda i: x[i] + y[i], name="z")

    def write(ins: Buffers, outs: Buffers) -> tir.Stmt:
        ib = tir.ir_builder.create()
        a, b, c = (ib.buffer_ptr(item) for item in (*ins, *outs))
        with ib.for_range(0, n, "lane") as i:
            c[i] = a[i] + b[i]
        return ib.get()

    return te.decl_tensor_intrin(z.op, write, name="adding")


def gemv(m: int, depth: int) -> TensorIntrin:
    a, b = te.placeholder((depth,), name="a"), te.placeholder((m, depth), name="b")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((m,), lambda i: te.sum(a[k] * b[i, k], k), name="c")

    def part(ins: Buffers, outs: Buffers, begins: bool, adds: bool) -> tir.Stmt:
        ib = tir.ir_builder.create()
        row, matrix, out = (ib.buffer_ptr(item) for item in (*ins, *outs))
        with ib.for_range(0, m, "lane") as i:
            if begins:
                out[i] = 0.0
            if adds:
                with ib.for_range(0, depth, "step") as n:
                    out[i] = out[i] + row[n] * matrix[i, n]
        return ib.get()

    def write(ins: Buffers, outs: Buffers) -> tuple[tir.Stmt, ...]:
        kinds = ((True, True), (True, False), (False, True))
        return tuple(part(ins, outs, begins, adds) for begins, adds in kinds)

    strides = [te.var("s"), 1]
    rows = tir.decl_buffer(b.shape, b.dtype, name="b", strides=strides, offset_factor=1)
    return te.decl_tensor_intrin(c.op, write, name="gemv", binds={b: rows})


def run(s: Schedule, args: Sequence[Tensor], target: str, *inputs: np.ndarray) -> np.ndarray:
    out = ekiden.nd.array(np.full([int(d) for d in args[-1].shape], 77, args[-1].dtype))
    ekiden.build(s, args, target)(*map(ekiden.nd.array, inputs), out)
    return out.numpy()


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(-9, 9, shape)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_instruction_computes_the_last_axes(dtype: str, target: str) -> None:
    a, b = (te.placeholder((6, 32), dtype, name=name) for name in "ab")
    add = adding(16, dtype)
    c = te.compute(
        (6, 2, 16),
        lambda i, j: add(a[i, j * 16 : j * 16 + 16], b[5 - i, j * 16 : j * 16 + 16]),
        name="c",
    )
    assert c.op.attrs == {} and [x.var.name for x in c.op.axis] == ["i", "j", "i0"]
    s = te.create_schedule(c.op)
    outer, _ = s[c].split(c.op.axis[0], 4)
    s[c].parallel(outer)
    assert 'T.block("c_o")' in str(ekiden.lower(s, [a, b, c], simple_mode=True))
    x, y = numbers(6, 32).astype(dtype), numbers(6, 32).astype(dtype)
    expected = (x + y[::-1]).reshape(6, 2, 16)
    np.testing.assert_array_equal(run(s, [a, b, c], target, x, y), expected)


@share(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("at_reader", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_intrinsic_calls_accumulate(parts: int, at_reader: bool, target: str) -> None:
    size = 32 // parts
    p, q = te.placeholder((6, 32), name="p"), te.placeholder((8, 32), name="q")
    multiply, k = gemv(8, size), te.reduce_axis((0, parts), "k")

    def call(i: Var) -> object:
        cut = slice(k * size, k * size + size) if parts > 1 else slice(None)
        return multiply(p[i, cut], q[0:8, cut], reduce_axis=k if parts > 1 else None)

    d = te.compute((6, 8), call, name="d")
    e = te.compute((6, 8), lambda i, j: d[i, j] + 1.0, name="e")
    s = te.create_schedule(e.op)
    if at_reader:
        s[d].compute_at(s[e], e.op.axis[0])
    x, y = numbers(6, 32).astype("float32"), numbers(8, 32).astype("float32")
    np.testing.assert_array_equal(run(s, [p, q, e], target, x, y), x @ y.T + 1)


def test_mismatched_intrinsics_are_refused() -> None:
    a, b = (te.placeholder((6, 32), name=name) for name in "ab")
    add = adding(16)
    with pytest.raises(ValueError, match=r"the part of 'a' has the shape \(8,\)"):
        te.compute((6, 16), lambda i: add(a[i, 0:8], b[i, 0:16]))
    with pytest.raises(ValueError, match="'a' has 2 axes, got 1 indices of a part"):
        te.compute((6, 16), lambda i: add(a[0:16], b[i, 0:16]))
    with pytest.raises(ValueError, match="has 1 axes, and 2 are left to it"):
        te.compute((6, 1, 16), lambda i: add(a[i, 0:16], b[i, 0:16]))
    with pytest.raises(ValueError, match="a part of a tensor has step 1, got 2"):
        te.compute((6, 16), lambda i: add(a[i, 0:32:2], b[i, 0:16]))
    with pytest.raises(ValueError, match="'z' is no sum"):
        k = te.reduce_axis((0, 2), "k")
        te.compute((6, 16), lambda i: add(a[i, 0:16], b[i, 0:16], reduce_axis=k))
    with pytest.raises(ScheduleError, match="call of 'adding': a part of a tensor"):
        te.compute((6, 16), lambda i: add(a[i, 0:16]))
    with pytest.raises(ValueError, match="expected a function of 2 indices, got one of 1"):
        te.compute((6, 16), lambda i: a[i, 0])
    c = te.compute((6, 16), lambda i: add(a[i, 0:16], b[i, 0:16]), name="c")
    s = te.create_schedule(c.op)
    with pytest.raises(ScheduleError, match="cache_write of 'c': an instruction computes it"):
        s.cache_write(c, "local")
