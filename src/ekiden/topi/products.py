"""Sums of products over named or counted axes."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.prim import PrimExpr, Var, cast
from ekiden.te import Tensor
from ekiden.topi.broadcast import broadcast_indices
from ekiden.topi.reduce import accumulator, narrowed
from ekiden.topi.shape import (
    Shape,
    broadcast_dim,
    broadcast_shape,
    known,
    normalize_axis,
    unify_dim,
)


def matmul(a: Tensor, b: Tensor, transp_a: bool = False, transp_b: bool = False) -> Tensor:
    """The products of matrices in the last two axes, either transposed; axes before broadcast.

    Raises ValueError when they do not, or the summed extents are known to differ.
    """
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    if a.ndim < 2 or b.ndim < 2 or batch is None:
        raise ValueError(f"matmul: expected matrices that broadcast, got {a.shape} and {b.shape}")
    rows, depth = a.shape[-2:][::-1] if transp_a else a.shape[-2:]
    inner, columns = b.shape[-2:][::-1] if transp_b else b.shape[-2:]
    joint = unify_dim(depth, inner)
    if joint is None:
        raise ValueError(f"matmul: {known(depth)} columns and {known(inner)} rows do not match")
    k, count = te.reduce_axis((0, joint), "k"), len(batch)
    wide = accumulator(a.dtype)

    def body(*i: Var) -> PrimExpr:
        """The product over k in the wide dtype; a batch of 1 is read again for each."""
        left = broadcast_indices(i[:count], a.shape[:-2], batch)
        right = broadcast_indices(i[:count], b.shape[:-2], batch)
        x = a[(*left, *((k, i[-2]) if transp_a else (i[-2], k)))]
        y = b[(*right, *((i[-1], k) if transp_b else (k, i[-1])))]
        return te.sum(cast(x, wide) * cast(y, wide), k)

    total = te.compute((*batch, rows, columns), body, name="matmul", tag="matmul_nd")
    return narrowed(total, a.dtype)


def tensordot(a: Tensor, b: Tensor, axes: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """NumPy's tensordot: the sum over the last `axes` of a and first of b, or over pairs of axes.

    Raises ValueError when the lists of axes differ in length.
    """
    if isinstance(axes, int):
        left, right = list(range(a.ndim - axes, a.ndim)), list(range(axes))
    else:
        left = [normalize_axis(n, a.ndim, "tensordot") for n in axes[0]]
        right = [normalize_axis(n, b.ndim, "tensordot") for n in axes[1]]
    if len(left) != len(right):
        raise ValueError(f"tensordot: expected as many axes on both sides, got {axes}")
    names = [chr(ord("a") + n) for n in range(a.ndim + b.ndim)]
    second = names[a.ndim :]
    for mine, yours in zip(left, right, strict=True):
        second[yours] = names[mine]
    first = names[: a.ndim]
    free = [n for at, n in enumerate(first) if at not in left]
    free += [n for at, n in enumerate(second) if at not in right]
    return einsum(f"{''.join(first)},{''.join(second)}->{''.join(free)}", a, b)


def einsum_labels(subscripts: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The label of every axis of every operand and of the result; those of an ellipsis are numbers,
    aligned at its last axis. Raises ValueError where they do not fit the ranks of the operands.
    """
    text = subscripts.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"einsum: {subscripts!r} names {len(terms)} operands, got {len(ranks)}")
    hidden = 0
    found: list[list[str]] = []
    for term, rank in zip(terms, ranks, strict=True):
        before, dots, after = term.partition("...")
        free = rank - len(before) - len(after)
        if free < 0 or (free and not dots):
            raise ValueError(f"einsum: {term!r} does not name the {rank} axes of an operand")
        hidden = max(hidden, free)
        found.append([*before, *(str(-n) for n in range(free, 0, -1)), *after])
    ellipsis = [str(-n) for n in range(hidden, 0, -1)]
    if arrow:
        before, dots, after = output.partition("...")
        return found, [*before, *(ellipsis if dots else []), *after]
    every = [label for each in found for label in each if not label.startswith("-")]
    return found, [*ellipsis, *sorted(n for n in set(every) if every.count(n) == 1)]


def _extents(labels: Sequence[Sequence[str]], operands: Sequence[Tensor]) -> dict[str, PrimExpr]:
    found: dict[str, PrimExpr] = {}
    for names, tensor in zip(labels, operands, strict=True):
        for name, dim in zip(names, tensor.shape, strict=True):
            joint = broadcast_dim(found.get(name, dim), dim)
            if joint is None:
                old = found[name]
                raise ValueError(f"einsum: axis {name!r} has extents {known(old)} and {known(dim)}")
            found[name] = joint
    return found


def einsum(subscripts: str, *operand: Tensor | Sequence[Tensor]) -> Tensor:
    """Einstein's sum: "ij,jk->ik"; axes of an ellipsis broadcast, without an arrow the labels that
    occur once are kept in alphabetic order. NumPy's einsum.

    One sum over all other labels of the product of all operands. Raises ValueError for an axis of
    the result that no operand has."""
    many: list[Tensor] = []
    for each in operand:
        many.extend([each] if isinstance(each, Tensor) else each)
    labels, output = einsum_labels(subscripts, [t.ndim for t in many])
    extents = _extents(labels, many)
    missing = [n for n in output if n not in extents]
    if missing:
        raise ValueError(f"einsum: no operand has the axis {missing[0]!r} of the result")
    summed = [n for n in extents if n not in output]
    axes = {n: te.reduce_axis((0, extents[n]), f"k_{n.strip('-')}") for n in summed}
    dtype = many[0].dtype
    wide = accumulator(dtype)

    def body(*i: Var) -> PrimExpr:
        """The product of all operands under one assignment of numbers to labels."""
        values: dict[str, PrimExpr] = {**dict(zip(output, i, strict=True)), **axes}
        total: PrimExpr | None = None
        for names, tensor in zip(labels, many, strict=True):
            here, joint = [values[n] for n in names], tuple(extents[n] for n in names)
            factor = cast(tensor[broadcast_indices(here, tensor.shape, joint)], wide)
            total = factor if total is None else total * factor
        assert total is not None
        return te.sum(total, list(axes.values()))

    shape: Shape = tuple(extents[n] for n in output)
    return narrowed(te.compute(shape, body, name="einsum", tag="einsum"), dtype)


__all__ = ["einsum", "matmul", "tensordot"]
