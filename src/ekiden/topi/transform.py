"""Computations that move elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, is_const
from ekiden.te import Tensor
from ekiden.topi.layout import parse, transform_shape
from ekiden.topi.shape import Shape, as_dim, equal, replaced, tidy


def _injective(
    shape: Shape, x: Tensor, name: str, index: Callable[..., Sequence[PrimExpr]]
) -> Tensor:
    return te.compute(shape, lambda *i: x[index(*i)], name=name, tag="injective")


def reshape(x: Tensor, shape: Shape) -> Tensor:
    """The elements of `x` in order, in another shape."""
    return _injective(shape, x, "reshape", lambda *i: unravel(ravel(i, shape), x.shape))


def ravel(indices: Sequence[PrimExpr], shape: Shape) -> PrimExpr:
    """The flat position of an element."""
    flat: PrimExpr = as_dim(0)
    for index, dim in zip(indices, shape, strict=True):
        flat = flat * dim + index
    return flat


def unravel(flat: PrimExpr, shape: Shape) -> list[PrimExpr]:
    """Indices of the element at a flat position."""
    found: list[PrimExpr] = []
    for at, dim in reversed(list(enumerate(shape))):
        if is_const(dim, 1):
            found.append(as_dim(0))
        else:
            found.append(flat % dim if at else flat)
            flat = flat // dim
    return found[::-1]


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Result axis n is axis axes[n] of `x`."""
    position = {axis: n for n, axis in enumerate(axes)}
    shape = tuple(x.shape[a] for a in axes)
    return _injective(shape, x, "transpose", lambda *i: [i[position[a]] for a in range(x.ndim)])


def concatenate(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors joined along an axis. The chain of guards is what loop partition takes apart."""
    edges: list[PrimExpr] = [as_dim(0)]
    for each in tensors:
        edges.append(tidy(edges[-1] + each.shape[axis]))
    shape = replaced(tensors[0].shape, axis, edges[-1])

    def body(*i: Var) -> PrimExpr:
        value: PrimExpr | None = None
        for each, begin, end in reversed(list(zip(tensors, edges, edges[1:], strict=False))):
            load = each[replaced(i, axis, i[axis] - begin)]
            value = load if value is None else if_then_else(i[axis] < end, load, value)
        assert value is not None
        return value

    return te.compute(shape, body, name="concatenate", tag="concatenate", attrs={"axis": axis})


def stack(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors of one shape joined along a new axis."""
    shape = (*tensors[0].shape[:axis], as_dim(len(tensors)), *tensors[0].shape[axis:])

    def body(*i: Var) -> PrimExpr:
        rest = (*i[:axis], *i[axis + 1 :])
        value: PrimExpr = tensors[-1][rest]
        for n in range(len(tensors) - 2, -1, -1):
            value = if_then_else(i[axis].equal(n), tensors[n][rest], value)
        return value

    return te.compute(shape, body, name="stack", tag="injective")


def split(x: Tensor, ranges: Sequence[tuple[PrimExpr, PrimExpr]], axis: int) -> list[Tensor]:
    """Parts of `x` along an axis, given as (begin, extent)."""
    return [strided_slice(x, _one_range(x.shape, axis, begin, extent)) for begin, extent in ranges]


def _one_range(
    shape: Shape, axis: int, begin: PrimExpr, extent: PrimExpr
) -> list[tuple[PrimExpr, int, PrimExpr]]:
    return [(begin, 1, extent) if i == axis else (as_dim(0), 1, d) for i, d in enumerate(shape)]


def strided_slice(x: Tensor, ranges: Sequence[tuple[PrimExpr, int, PrimExpr]]) -> Tensor:
    """Elements first + n * stride along each axis, given as (first, stride, extent)."""
    shape = tuple(extent for _, _, extent in ranges)
    return _injective(
        shape,
        x,
        "strided_slice",
        lambda *i: [n * stride + first for n, (first, stride, _) in zip(i, ranges, strict=True)],
    )


def tile(x: Tensor, shape: Shape) -> Tensor:
    """`x` repeated as a whole to `shape`."""
    dims = x.shape
    start = len(shape) - len(dims)

    def index(*i: Var) -> list[PrimExpr]:
        return [
            n if equal(d, s) else n % d
            for n, d, s in zip(i[start:], dims, shape[start:], strict=True)
        ]

    return _injective(shape, x, "tile", index)


def repeat(x: Tensor, repeats: int, axis: int) -> Tensor:
    """Each element repeated along an axis."""
    shape = replaced(x.shape, axis, tidy(x.shape[axis] * repeats))
    return _injective(shape, x, "repeat", lambda *i: replaced(i, axis, i[axis] // max(repeats, 1)))


def reverse(x: Tensor, axes: Sequence[int]) -> Tensor:
    """`x` backwards along axes."""
    return _injective(
        x.shape,
        x,
        "reverse",
        lambda *i: [x.shape[a] - 1 - n if a in axes else n for a, n in enumerate(i)],
    )


def layout_transform(x: Tensor, source: str, target: str) -> Tensor:
    """`x` from one layout to another."""
    sizes = {letter: size for letter, size in parse(target) if size}
    inner = {letter: size for letter, size in parse(source) if size}

    def index(*i: Var) -> list[PrimExpr]:
        at = dict(zip([letter for letter, _ in parse(target)], i, strict=True))
        whole: dict[str, PrimExpr] = {
            letter: at[letter] * sizes[letter.lower()] + at[letter.lower()]
            if letter.lower() in sizes
            else at[letter]
            for letter in at
            if letter.isupper()
        }
        return [
            whole[letter.upper()] % size if size else whole[letter] // inner.get(letter.lower(), 1)
            for letter, size in parse(source)
        ]

    return _injective(transform_shape(x.shape, source, target), x, "layout_transform", index)
