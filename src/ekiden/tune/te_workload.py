"""Ten benchmark computations for tuners, at the sizes of TVM's collection of the same name.

Each gives its tensors, inputs first, the result last; data is in NHWC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, const
from ekiden.te.tensor import Tensor
from ekiden.tir.op import all as all_of

Tensors = list[Tensor]


def _zero_pad(x: Tensor, before: int, after: int, first: int, last: int) -> Tensor:
    """Zero-pad the axes first, ..., last - 1."""
    axes = range(first, last)
    shape = [d + before + after if n in axes else d for n, d in enumerate(x.shape)]

    def padded_element(*indices: PrimExpr) -> PrimExpr:
        """Return the element shifted by `before`, or 0 outside."""
        inside = [c for n in axes for c in (indices[n] >= before, indices[n] < x.shape[n] + before)]
        moved = [i - before if n in axes else i for n, i in enumerate(indices)]
        return if_then_else(all_of(*inside), x[tuple(moved)], const(0, x.dtype))

    return te.compute(shape, padded_element, name="padded")


def matmul(batch: int = 1, n: int = 128, m: int = 128, k: int = 128) -> Tensors:
    """Return the computation GMM: a batch of matrix products."""
    a = te.placeholder((batch, n, k), name="a")
    b = te.placeholder((batch, k, m), name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute(
        (batch, n, m), lambda s, i, j: te.sum(a[s, i, r] * b[s, r, j], axis=r), name="product"
    )
    return [a, b, c]


def conv1d(
    n: int = 1, length: int = 256, ci: int = 64, co: int = 128, kernel: int = 3, stride: int = 2
) -> Tensors:
    """Return the computation C1D: a one-dimensional convolution."""
    pad = kernel // 2
    x = te.placeholder((n, length, ci), name="x")
    w = te.placeholder((kernel, ci, co), name="w")
    padded = _zero_pad(x, pad, pad, 1, 2)
    out = (length + 2 * pad - kernel) // stride + 1
    r, c = te.reduce_axis((0, kernel), name="r"), te.reduce_axis((0, ci), name="c")
    y = te.compute(
        (n, out, co),
        lambda b, i, o: te.sum(padded[b, i * stride + r, c] * w[r, c, o], axis=[r, c]),
        name="conv",
    )
    return [x, w, y]


def conv2d(
    n: int = 1, size: int = 224, ci: int = 3, co: int = 64, kernel: int = 7, stride: int = 2,
    pad: int = 3, dilation: int = 1, groups: int = 1,
) -> Tensors:  # fmt: skip
    """Return the computation C2D: a two-dimensional convolution; with a dilation DIL, with groups
    GRP.
    """
    x = te.placeholder((n, size, size, ci), name="x")
    w = te.placeholder((kernel, kernel, ci // groups, co), name="w")
    padded = _zero_pad(x, pad, pad, 1, 3)
    out = (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    p, q = te.reduce_axis((0, kernel), name="p"), te.reduce_axis((0, kernel), name="q")
    c = te.reduce_axis((0, ci // groups), name="c")

    def output_element(b: PrimExpr, i: PrimExpr, j: PrimExpr, o: PrimExpr) -> PrimExpr:
        """Return the sum over the window and the channels of the output's group."""
        channel = c + (o // (co // groups)) * (ci // groups) if groups > 1 else c
        position = padded[b, i * stride + p * dilation, j * stride + q * dilation, channel]
        return te.sum(position * w[p, q, c, o], axis=[p, q, c])

    return [x, w, te.compute((n, out, out, co), output_element, name="conv")]


def conv3d(
    n: int = 1, depth: int = 16, size: int = 224, ci: int = 3, co: int = 64, kernel: int = 7,
    stride: int = 2, pad: int = 3,
) -> Tensors:  # fmt: skip
    """Return the computation C3D: a three-dimensional convolution."""
    x = te.placeholder((n, depth, size, size, ci), name="x")
    w = te.placeholder((kernel, kernel, kernel, ci, co), name="w")
    padded = _zero_pad(x, pad, pad, 1, 4)
    deep, out = ((d + 2 * pad - kernel) // stride + 1 for d in (depth, size))
    o, p, q = (te.reduce_axis((0, kernel), name=name) for name in "opq")
    c = te.reduce_axis((0, ci), name="c")
    y = te.compute(
        (n, deep, out, out, co),
        lambda b, d, i, j, f: te.sum(
            padded[b, d * stride + o, i * stride + p, j * stride + q, c] * w[o, p, q, c, f],
            axis=[o, p, q, c],
        ),
        name="conv",
    )
    return [x, w, y]


def depthwise(
    n: int = 1, size: int = 112, channels: int = 32, kernel: int = 3, stride: int = 1, pad: int = 1
) -> Tensors:
    """Return the computation DEP: a depthwise convolution."""
    x = te.placeholder((n, size, size, channels), name="x")
    w = te.placeholder((kernel, kernel, channels), name="w")
    padded = _zero_pad(x, pad, pad, 1, 3)
    out = (size + 2 * pad - kernel) // stride + 1
    p, q = te.reduce_axis((0, kernel), name="p"), te.reduce_axis((0, kernel), name="q")
    y = te.compute(
        (n, out, out, channels),
        lambda b, i, j, c: te.sum(
            padded[b, i * stride + p, j * stride + q, c] * w[p, q, c], axis=[p, q]
        ),
        name="conv",
    )
    return [x, w, y]


def conv2d_transpose(
    n: int = 1, size: int = 4, ci: int = 512, co: int = 256, kernel: int = 4, stride: int = 2,
    pad: int = 1,
) -> Tensors:  # fmt: skip
    """Return the computation T2D: a transposed convolution."""
    x = te.placeholder((n, size, size, ci), name="x")
    w = te.placeholder((kernel, kernel, ci, co), name="w")
    around = kernel - 1 - pad
    wide = (size - 1) * stride + 1 + 2 * around

    def dilated_input(b: PrimExpr, i: PrimExpr, j: PrimExpr, c: PrimExpr) -> PrimExpr:
        """Return the input with `stride` - 1 zeros between elements and a zero border."""
        y, z = i - around, j - around
        inside = (y >= 0, y < (size - 1) * stride + 1, z >= 0, z < (size - 1) * stride + 1)
        on_grid = ((y % stride).equal(0), (z % stride).equal(0))
        value = x[b, y // stride, z // stride, c]
        return if_then_else(all_of(*inside, *on_grid), value, const(0, x.dtype))

    padded = te.compute((n, wide, wide, ci), dilated_input, name="padded")
    out = wide - kernel + 1
    p, q = te.reduce_axis((0, kernel), name="p"), te.reduce_axis((0, kernel), name="q")
    c = te.reduce_axis((0, ci), name="c")
    y = te.compute(
        (n, out, out, co),
        lambda b, i, j, o: te.sum(
            padded[b, i + p, j + q, c] * w[kernel - 1 - p, kernel - 1 - q, c, o], axis=[p, q, c]
        ),
        name="conv",
    )
    return [x, w, y]


def norm(batch: int = 1, m: int = 256, n: int = 256) -> Tensors:
    """Return the computation NRM: the Frobenius norm of each matrix of a batch."""
    x = te.placeholder((batch, m, n), name="x")
    i, j = te.reduce_axis((0, m), name="i"), te.reduce_axis((0, n), name="j")
    squares = te.compute(
        (batch,), lambda b: te.sum(x[b, i, j] * x[b, i, j], axis=[i, j]), name="squares"
    )
    return [x, te.compute((batch,), lambda b: te.sqrt(squares[b]), name="norm")]


def softmax(m: int = 256, n: int = 256) -> Tensors:
    """Return the computation SFM: softmax over rows."""
    x = te.placeholder((m, n), name="x")
    r, k = te.reduce_axis((0, n), name="r"), te.reduce_axis((0, n), name="k")
    row_max = te.compute((m,), lambda i: te.max(x[i, r], axis=r), name="most")
    powers = te.compute((m, n), lambda i, j: te.exp(x[i, j] - row_max[i]), name="powers")
    total = te.compute((m,), lambda i: te.sum(powers[i, k], axis=k), name="total")
    return [x, te.compute((m, n), lambda i, j: powers[i, j] / total[i], name="softmax")]


WORKLOADS: Mapping[str, Callable[[], Tensors]] = {
    "GMM": matmul,
    "C1D": conv1d,
    "C2D": conv2d,
    "C3D": conv3d,
    "DEP": depthwise,
    "DIL": lambda: conv2d(dilation=2),
    "GRP": lambda: conv2d(size=56, ci=64, co=128, kernel=3, stride=2, pad=1, groups=4),
    "T2D": conv2d_transpose,
    "NRM": norm,
    "SFM": softmax,
}
"""By TVM's names."""
