"""Stages of a group of tensor expressions: which computations are inlined, and which get loop
nests.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.arith import prove_equal
from ekiden.ir.intrinsic import EXPENSIVE_INTRINSICS
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, is_const
from ekiden.ir.prim_visitor import post_order
from ekiden.te.inline import (
    ProducerInliner,
    input_tensors,
    is_injective,
    is_stored,
    post_order_tensors,
)
from ekiden.te.tensor import ComputeOp, PlaceholderOp, ProducerLoad, Tensor


def is_anchor_with_epilogue(anchor: Tensor, outputs: Sequence[Tensor]) -> bool:
    """Return whether a group's only output is an elementwise epilogue of the anchor, in its
    shape.
    """
    if len(outputs) != 1:
        return False
    output = outputs[0]
    consumers = [
        t
        for t in post_order_tensors(outputs)
        if t is not anchor and not isinstance(t.op, PlaceholderOp)
    ]
    # Kernels read an anchor's inputs from memory: the group must not compute them.
    if any(not isinstance(t.op, PlaceholderOp) for t in input_tensors(anchor)) or not all(
        map(is_injective, consumers)
    ):
        return False
    return output is anchor or _reads_same_index(anchor, output, consumers)


def has_known_weights(anchor: Tensor) -> bool:
    """Return whether every input of an anchor but its data has a static shape.

    The data are the first of those it names, or that it reads: a list of word indices may be read
    before them.
    """
    named = anchor.op.attrs.get("inputs")
    data = named[0] if isinstance(named, tuple) else input_tensors(anchor)[0]
    weights = (t for t in input_tensors(anchor) if t is not data)
    return all(isinstance(d, IntImm) for t in weights for d in t.shape)


def _reads_same_index(anchor: Tensor, output: Tensor, consumers: Sequence[Tensor]) -> bool:
    if output.ndim != anchor.ndim or not all(map(prove_equal, output.shape, anchor.shape)):
        return False
    op = output.op
    assert isinstance(op, ComputeOp)
    axes = [a.var for a in op.axis]
    body = ProducerInliner(set(consumers)).rewrite_expr(op.body[output.value_index])
    return all(
        _is_axis_or_zero(index, axis, dim)
        for load in post_order(body)
        if isinstance(load, ProducerLoad) and load.producer is anchor
        for index, axis, dim in zip(load.indices, axes, anchor.shape, strict=True)
    )


def _is_axis_or_zero(index: PrimExpr, axis: PrimExpr, dim: PrimExpr) -> bool:
    return index is axis or (is_const(index, 0) and isinstance(dim, IntImm) and dim.value == 1)


def _is_costly_to_recompute(tensor: Tensor) -> bool:
    op = tensor.op
    assert isinstance(op, ComputeOp)
    return any(
        isinstance(e, Intrinsic) and e.op in EXPENSIVE_INTRINSICS for e in post_order(*op.body)
    )


def inline_cheap_stages(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Inline cheap computations; return outputs whose remaining tensors are placeholders and
    stages.

    An expensive computation with several consumers, one of them a reduction, stays a stage, as does
    one that is marked as stored.
    """
    order = post_order_tensors(outputs)
    consumers: dict[Tensor, list[Tensor]] = {t: [] for t in order}
    for tensor in order:
        for producer in input_tensors(tensor):
            consumers[producer].append(tensor)
    keep = [
        t
        for t in order
        if is_stored(t)
        or (
            is_injective(t)
            and len(consumers[t]) > 1
            # A reduction would recompute it for every element; elementwise consumers share one
            # loop.
            and not all(map(is_injective, consumers[t]))
            and _is_costly_to_recompute(t)
        )
    ]
    return te.inline_injective(outputs, keep)


def copy_repeated_outputs(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return distinct outputs: an input or repeated tensor among them is copied."""
    visited: set[Tensor] = set()
    results: list[Tensor] = []
    for tensor in outputs:
        if tensor in visited or isinstance(tensor.op, PlaceholderOp):
            source = tensor
            tensor = te.compute(
                source.shape, lambda *i, s=source: s[i], name="copy", tag="injective"
            )
        visited.add(tensor)
        results.append(tensor)
    return results


def stages_of(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the stages of a group, producers first."""
    return [t for t in post_order_tensors(outputs) if not isinstance(t.op, PlaceholderOp)]
