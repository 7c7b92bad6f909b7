"""Programs on which schedules are rejected."""

from __future__ import annotations

from ekiden import te
from ekiden.ir.prim import SizeVar, maximum
from ekiden.script import tir as T
from ekiden.tir import PrimFunc, TensorIntrin


def product(symbolic: bool = False) -> PrimFunc:
    """relu(a @ b) + 1 in three blocks."""
    rows = SizeVar("n") if symbolic else 5
    a, b = te.placeholder((rows, 7), name="a"), te.placeholder((7, 19), name="b")
    k = te.reduce_axis((0, 7), "k")
    c = te.compute((rows, 19), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    d = te.compute((rows, 19), lambda i, j: maximum(c[i, j], 0.0), name="d")
    e = te.compute((rows, 19), lambda i, j: d[i, j] + 1.0, name="e")
    return te.create_prim_func([a, b, e], "product")


def symbolic() -> PrimFunc:
    """The product with any number of rows."""
    return product(symbolic=True)


def window() -> PrimFunc:
    """A sum over windows of an intermediate, and a difference of neighbours."""
    x = te.placeholder((20,), name="x")
    y = te.compute((20,), lambda i: x[i] * 2.0, name="y")
    k = te.reduce_axis((0, 3), "k")
    z = te.compute((18,), lambda i: te.sum(y[i + k], k), name="z")
    w = te.compute((17,), lambda i: z[i + 1] - z[i], name="w")
    return te.create_prim_func([x, w], "window")


def rows() -> PrimFunc:
    """Two reductions of rows."""
    x, y = te.placeholder((5, 7), name="x"), te.placeholder((5,), name="y")
    k, r = te.reduce_axis((0, 7), "k"), te.reduce_axis((0, 7), "r")
    largest = te.compute((5,), lambda i: te.max(x[i, k], k), name="largest")
    weighted = te.compute((5,), lambda i: te.sum(x[i, r] * y[i], r), name="weighted")
    return te.create_prim_func([x, y, largest, weighted], "rows")


@T.prim_func
def shared(
    x: T.Buffer((8,), "float32"), right: T.Buffer((8,), "float32"), last: T.Buffer((8,), "float32")
) -> None:
    base = T.alloc_buffer((8,), "float32")
    left = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("base"):
            v = T.axis.spatial(8, i)
            base[v] = x[v] * T.float32(2)
    for i in range(8):
        with T.block("left"):
            v = T.axis.spatial(8, i)
            left[v] = base[v] + T.float32(1)
    for i in range(8):
        with T.block("right"):
            v = T.axis.spatial(8, i)
            right[v] = base[v] - T.float32(1)
    for i in range(8):
        with T.block("last"):
            v = T.axis.spatial(8, i)
            last[v] = left[v] * right[v]


@T.prim_func
def half_read(
    x: T.Buffer((8,), "float32"), right: T.Buffer((8,), "float32"), last: T.Buffer((4,), "float32")
) -> None:
    for i in range(8):
        with T.block("right"):
            v = T.axis.spatial(8, i)
            right[v] = x[v] - T.float32(1)
    for i in range(4):
        with T.block("last"):
            v = T.axis.spatial(4, i)
            last[v] = right[v] * T.float32(2)


@T.prim_func
def padded(x: T.Buffer((8,), "float32"), pad: T.Buffer((10,), "float32")) -> None:
    base = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("base"):
            v = T.axis.spatial(8, i)
            base[v] = x[v] * T.float32(2)
    for i in range(10):
        with T.block("pad"):
            v = T.axis.spatial(10, i)
            pad[v] = T.if_then_else(v >= 1 and v < 9, base[v - 1], T.float32(0))


@T.prim_func
def scan(
    a: T.Buffer((8, 6), "float32"),
    after: T.Buffer((7, 6), "float32"),
    t: T.Buffer((6,), "float32"),
    u: T.Buffer((6,), "float32"),
) -> None:
    b = T.alloc_buffer((8, 6), "float32")
    for i, j in T.grid(7, 6):
        with T.block("prefix"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi + 1, vj] = b[vi, vj] + a[vi, vj]
    for i, j in T.grid(7, 6):
        with T.block("after"):
            vi, vj = T.axis.remap("SS", [i, j])
            after[vi, vj] = b[vi, vj]
    for i, j in T.grid(8, 6):
        with T.block("horner"):
            vi, vj = T.axis.remap("RS", [i, j])
            with T.init():
                t[vj] = T.float32(0)
            t[vj] = t[vj] * a[vi, vj] + T.float32(1)
    for i, j in T.grid(8, 6):
        with T.block("same"):
            vi, vj = T.axis.remap("SS", [i, j])
            u[vj] = a[vi, vj]


@T.prim_func
def ordered(
    rows: T.Buffer((2, 4), "int64"),
    x: T.Buffer((2, 4, 6), "float32"),
    h: T.Buffer((8, 6), "float32"),
    sums: T.Buffer((8, 6), "float32"),
    mixed: T.Buffer((8, 6), "float32"),
    relu: T.Buffer((5, 6), "float32"),
) -> None:
    out = T.alloc_buffer((5, 6), "float32")
    for i, j in T.grid(5, 6):
        with T.block("start"):
            vi, vj = T.axis.remap("SS", [i, j])
            out[vi, vj] = T.float32(0)
    for d, e, j in T.grid(2, 4, 6):
        with T.block("scatter"):
            vd = T.axis.scan(2, d)
            ve = T.axis.scan(4, e)
            vj = T.axis.spatial(6, j)
            out[rows[vd, ve], vj] = out[rows[vd, ve], vj] + x[vd, ve, vj]
    for t, j in T.grid(7, 6):
        with T.block("recurrence"):
            vt = T.axis.scan(7, t)
            vj = T.axis.spatial(6, j)
            h[vt + 1, vj] = h[vt, vj] * T.float32(2)
    for t, j in T.grid(7, 6):
        with T.block("mirrored"):
            vt = T.axis.scan(7, t)
            vj = T.axis.spatial(6, j)
            sums[vt + 1, vj] = sums[vt, 5 - vj]
    for t, j in T.grid(7, 6):
        with T.block("turning"):
            vt = T.axis.scan(7, t)
            vj = T.axis.spatial(6, (t + j) % 6)
            mixed[vt + 1, vj] = mixed[vt, vj] + T.float32(1)
    for i, j in T.grid(5, 6):
        with T.block("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            relu[vi, vj] = T.max(out[vi, vj], T.float32(0))


@T.prim_func
def changed(a: T.Buffer((6,), "float32"), out: T.Buffer((6,), "float32")) -> None:
    copy = T.alloc_buffer((6,), "float32")
    unread = T.alloc_buffer((6,), "float32")
    for i in range(6):
        with T.block("copy"):
            v = T.axis.spatial(6, i)
            copy[v] = a[v]
    for i in range(6):
        with T.block("change"):
            v = T.axis.spatial(6, i)
            a[v] = T.float32(1)
    for i in range(6):
        with T.block("out"):
            v = T.axis.spatial(6, i)
            out[v] = copy[v]
    for i in range(6):
        with T.block("unread"):
            v = T.axis.spatial(6, i)
            unread[v] = out[v]


@T.prim_func
def sums(a: T.Buffer((6, 4), "float32"), out: T.Buffer((6,), "float32")) -> None:
    for i in range(6):
        with T.block("start"):
            v = T.axis.spatial(6, i)
            out[v] = a[v, 0]
    for i, j in T.grid(6, 4):
        with T.block("sum"):
            v, w = T.axis.remap("SR", [i, j])
            out[v] = out[v] + a[v, w]


@T.prim_func
def part(a: T.Buffer((6, 4), "float32"), out: T.Buffer((6,), "float32")) -> None:
    for i in range(6):
        with T.block("zero"):
            v = T.axis.spatial(6, i)
            out[v] = T.float32(0)
    for i, j in T.grid(5, 4):
        with T.block("sum"):
            v = T.axis.spatial(6, i)
            w = T.axis.reduce(4, j)
            out[v] = out[v] + a[v, w]


@T.prim_func
def pair(a: T.Buffer((6,), "float32"), out: T.Buffer((6,), "float32")) -> None:
    one = T.alloc_buffer((6,), "float32")
    two = T.alloc_buffer((6,), "float32")
    for i in range(6):
        with T.block("pair"):
            v = T.axis.spatial(6, i)
            one[v] = a[v]
            two[v] = a[v]
    for i in range(6):
        with T.block("out"):
            v = T.axis.spatial(6, i)
            out[v] = one[v] + two[v]


@T.prim_func
def triangle(a: T.Buffer((6, 6), "float32"), out: T.Buffer((6, 6), "float32")) -> None:
    for i in range(6):
        for j in range(i + 1):
            with T.block("t"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = a[vi, vj]
    for i in range(1, 6):
        for j in range(6):
            with T.block("from_one"):
                vi = T.axis.spatial(6, i)
                vj = T.axis.spatial(6, j)
                out[vi, vj] = a[vi, vj]


@T.prim_func
def bare(a: T.Buffer((6, 6), "float32"), out: T.Buffer((6, 6), "float32")) -> None:
    for i, j in T.grid(6, 6):
        out[i, j] = T.float32(0)
        with T.block("inner"):
            vi, vj = T.axis.remap("SS", [i, j])
            out[vi, vj] = a[vi, vj]


@T.prim_func
def dot8(
    a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32"), c: T.Buffer((1,), "float32")
) -> None:
    for k in range(8):
        with T.block("dot"):
            v = T.axis.reduce(8, k)
            c[0] = c[0] + a[v] * b[v]


TensorIntrin.register("test.dot8", dot8, dot8, override=True)
