"""Tensor contractions over named or numbered axes: matmul, tensordot, einsum."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.prim import PrimExpr, Var, cast
from ekiden.te import Tensor
from ekiden.topi.broadcast import broadcast_indices
from ekiden.topi.dimensions import (
    Shape,
    broadcast_dim,
    broadcast_shape,
    known_int,
    normalize_axis,
    unify_dim,
)
from ekiden.topi.reduce import accumulator_dtype, round_accumulated


def matmul(a: Tensor, b: Tensor, transp_a: bool = False, transp_b: bool = False) -> Tensor:
    """Multiply the matrices in the last two axes, either transposed; leading axes broadcast. Raises
    ValueError if they do not, or the summed extents are known to differ.
    """
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    if a.ndim < 2 or b.ndim < 2 or batch is None:
        raise ValueError(f"matmul: expected matrices that broadcast, got {a.shape} and {b.shape}")
    rows, depth = a.shape[-2:][::-1] if transp_a else a.shape[-2:]
    inner, columns = b.shape[-2:][::-1] if transp_b else b.shape[-2:]
    joint = unify_dim(depth, inner)
    if joint is None:
        raise ValueError(
            f"matmul: {known_int(depth)} columns and {known_int(inner)} rows do not match"
        )
    k, count = te.reduce_axis((0, joint), "k"), len(batch)
    wide = accumulator_dtype(a.dtype)

    def sum_over_k(*i: Var) -> PrimExpr:
        """Return the sum over k in the wide dtype; a batch of 1 is shared."""
        left_batch = broadcast_indices(i[:count], a.shape[:-2], batch)
        right_batch = broadcast_indices(i[:count], b.shape[:-2], batch)
        x = a[(*left_batch, *((k, i[-2]) if transp_a else (i[-2], k)))]
        y = b[(*right_batch, *((i[-1], k) if transp_b else (k, i[-1])))]
        return te.sum(cast(x, wide) * cast(y, wide), k)

    total = te.compute((*batch, rows, columns), sum_over_k, name="matmul", tag="matmul_nd")
    return round_accumulated(total, a.dtype)


def tensordot(a: Tensor, b: Tensor, axes: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """Return NumPy's tensordot: the sum over the last `axes` of a and first of b, or over pairs of
    axes. Raises ValueError if the lists of axes differ in length.
    """
    if isinstance(axes, int):
        left_axes, right_axes = list(range(a.ndim - axes, a.ndim)), list(range(axes))
    else:
        left_axes = [normalize_axis(n, a.ndim, "tensordot") for n in axes[0]]
        right_axes = [normalize_axis(n, b.ndim, "tensordot") for n in axes[1]]
    if len(left_axes) != len(right_axes):
        raise ValueError(f"tensordot: expected as many axes on both sides, got {axes}")
    names = [chr(ord("a") + n) for n in range(a.ndim + b.ndim)]
    second = names[a.ndim :]
    for left_axis, right_axis in zip(left_axes, right_axes, strict=True):
        second[right_axis] = names[left_axis]
    first = names[: a.ndim]
    free = [n for index, n in enumerate(first) if index not in left_axes]
    free += [n for index, n in enumerate(second) if index not in right_axes]
    return einsum(f"{''.join(first)},{''.join(second)}->{''.join(free)}", a, b)


def einsum_labels(subscripts: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Return the labels of every operand's axes and of the result's; those of an ellipsis are
    numbers, aligned at its last axis. Raises ValueError if they do not match the operands'
    ranks.
    """
    text = subscripts.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"einsum: {subscripts!r} names {len(terms)} operands, got {len(ranks)}")
    hidden = 0
    labels: list[list[str]] = []
    for term, rank in zip(terms, ranks, strict=True):
        before, dots, after = term.partition("...")
        free = rank - len(before) - len(after)
        if free < 0 or (free and not dots):
            raise ValueError(f"einsum: {term!r} does not name the {rank} axes of an operand")
        hidden = max(hidden, free)
        labels.append([*before, *(str(-n) for n in range(free, 0, -1)), *after])
    ellipsis = [str(-n) for n in range(hidden, 0, -1)]
    if arrow:
        before, dots, after = output.partition("...")
        return labels, [*before, *(ellipsis if dots else []), *after]
    every = [
        label for operand_labels in labels for label in operand_labels if not label.startswith("-")
    ]
    return labels, [*ellipsis, *sorted(n for n in set(every) if every.count(n) == 1)]


def _label_extents(
    labels: Sequence[Sequence[str]], operands: Sequence[Tensor]
) -> dict[str, PrimExpr]:
    extents: dict[str, PrimExpr] = {}
    for names, tensor in zip(labels, operands, strict=True):
        for name, dim in zip(names, tensor.shape, strict=True):
            joint = broadcast_dim(extents.get(name, dim), dim)
            if joint is None:
                old = extents[name]
                raise ValueError(
                    f"einsum: axis {name!r} has extents {known_int(old)} and {known_int(dim)}"
                )
            extents[name] = joint
    return extents


def einsum(subscripts: str, *operand: Tensor | Sequence[Tensor]) -> Tensor:
    """Return Einstein's sum, such as "ij,jk->ik" (NumPy's einsum). Axes of an ellipsis broadcast;
    without an arrow, labels that occur once are kept in alphabetic order. All other labels are
    summed at once. Raises ValueError for an axis of the result that no operand has.
    """
    operands: list[Tensor] = []
    for entry in operand:
        operands.extend([entry] if isinstance(entry, Tensor) else entry)
    labels, output = einsum_labels(subscripts, [t.ndim for t in operands])
    extents = _label_extents(labels, operands)
    missing = [n for n in output if n not in extents]
    if missing:
        raise ValueError(f"einsum: no operand has the axis {missing[0]!r} of the result")
    summed = [n for n in extents if n not in output]
    axes = {n: te.reduce_axis((0, extents[n]), f"k_{n.strip('-')}") for n in summed}
    dtype = operands[0].dtype
    wide = accumulator_dtype(dtype)

    def multiply_operands(*i: Var) -> PrimExpr:
        """Return the product of all operands for one assignment of indices to labels."""
        values: dict[str, PrimExpr] = {**dict(zip(output, i, strict=True)), **axes}
        total: PrimExpr | None = None
        for names, tensor in zip(labels, operands, strict=True):
            own_indices, joint = [values[n] for n in names], tuple(extents[n] for n in names)
            factor = cast(tensor[broadcast_indices(own_indices, tensor.shape, joint)], wide)
            total = factor if total is None else total * factor
        assert total is not None
        return te.sum(total, list(axes.values()))

    shape: Shape = tuple(extents[n] for n in output)
    return round_accumulated(
        te.compute(shape, multiply_operands, name="einsum", tag="einsum"), dtype
    )


__all__ = ["einsum", "matmul", "tensordot"]
