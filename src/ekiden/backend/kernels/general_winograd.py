"""Winograd's convolutions as stages that general kernels run: one sum over everything is what they
mean, and would take as many times longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ekiden import te
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.topi.nn.conv import guarded, inside
from ekiden.topi.nn.winograd import TAPS, matrices, matrix_element
from ekiden.topi.rule.scheduled import replaced
from ekiden.topi.shape import as_dim


def staged(outputs: list[te.Tensor]) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """The outputs with such convolutions taken apart, and the computations that must be stored."""
    kept: list[te.Tensor] = []
    found = [t for t in te.post_order_tensors(outputs) if t.op.tag == "winograd_conv2d"]
    for tensor in found:
        made, matrix = _stages(tensor)
        outputs = replaced(outputs, tensor, made)
        kept += matrix
    return outputs, kept


def _matrix(values: object, name: str) -> te.Tensor:
    rows, columns = values.shape  # type: ignore[attr-defined]
    return te.compute(
        (as_dim(rows), as_dim(columns)),
        lambda i, j: matrix_element(values, i, j, "float32"),  # type: ignore[arg-type]
        name=name,
    )


def _stages(conv: te.Tensor) -> tuple[te.Tensor, list[te.Tensor]]:
    """out = A (U * (B d B')) A', a factor of each transform at a time."""
    attrs = conv.op.attrs
    data, weight = cast("Sequence[te.Tensor]", attrs["inputs"])
    m = cast(int, attrs["m"])
    top, left = cast("Sequence[int]", attrs["padding"])[:2]
    a_values, b_values, _ = matrices(m)
    a, b = _matrix(a_values, "winograd_a"), _matrix(b_values, "winograd_b")
    size, tile = m + TAPS - 1, weight.shape[3]
    n, height, width, depth = data.shape
    _, rows, columns, channels = conv.shape
    down, across = (rows + (m - 1)) // m, (columns + (m - 1)) // m

    def pad(image: Var, y: Var, x: Var, c: Var) -> PrimExpr:
        held = inside(y - top, height, True, True) + inside(x - left, width, True, True)
        return guarded(data, (image, y - top, x - left, c), held, const(0, data.dtype))

    around = (n, down * m + (TAPS - 1), across * m + (TAPS - 1), depth)
    padded = te.compute(around, pad, name="winograd_padded")

    def half(u: Var, j: Var, image: Var, y: Var, x: Var, c: Var) -> PrimExpr:
        i = te.reduce_axis((0, size), "i")
        return te.sum(b[u, i] * padded[image, y * m + i, x * m + j, c], i)

    shape = (as_dim(size), as_dim(size), n, down, across, depth)
    rows_done = te.compute(shape, half, name="winograd_rows")

    def whole(u: Var, v: Var, image: Var, y: Var, x: Var, c: Var) -> PrimExpr:
        j = te.reduce_axis((0, size), "j")
        return te.sum(b[v, j] * rows_done[u, j, image, y, x, c], j)

    inner = te.compute(shape, whole, name="winograd_inner")

    def multiply(u: Var, v: Var, image: Var, y: Var, x: Var, o: Var) -> PrimExpr:
        c = te.reduce_axis((0, depth), "c")
        factor = weight[u * size + v, o // tile, c, o % tile]
        return te.sum(inner[u, v, image, y, x, c] * factor, c)

    products = te.compute((*shape[:-1], channels), multiply, name="winograd_products")

    def back(i: Var, v: Var, image: Var, y: Var, x: Var, o: Var) -> PrimExpr:
        u = te.reduce_axis((0, size), "u")
        return te.sum(a[i, u] * products[u, v, image, y, x, o], u)

    some = te.compute((as_dim(m), *shape[1:-1], channels), back, name="winograd_back")

    def both(image: Var, y: Var, i: Var, x: Var, j: Var, o: Var) -> PrimExpr:
        v = te.reduce_axis((0, size), "v")
        return te.sum(a[j, v] * some[i, v, image, y, x, o], v)

    tiles = te.compute(
        (n, down, as_dim(m), across, as_dim(m), channels), both, name="winograd_tiles"
    )

    def result(image: Var, y: Var, x: Var, o: Var) -> PrimExpr:
        return tiles[image, y // m, y % m, x // m, x % m, o]

    return te.compute(conv.shape, result, name="winograd"), [a, b, padded]


__all__ = ["staged"]
