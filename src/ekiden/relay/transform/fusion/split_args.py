"""Split concatenations and splits of many tensors into trees, to bound the number of kernel
arguments.

    concatenate((%a, %b, %c, %d))                            of at most 2 inputs
    ->  concatenate((stop_fusion(concatenate((%a, %b))), stop_fusion(concatenate((%c, %d)))))

    split(%x, 4)
    ->  %h = split(%x, [2]); split(stop_fusion(%h.0), [1]), split(stop_fusion(%h.1), [1])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.arith import simplify
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import PrimExpr, const, convert
from ekiden.ir.transform import Pass
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Tuple, TupleGetItem
from ekiden.relay.transform.graph.call_rewrites import CallRewrite, call_pass

if TYPE_CHECKING:
    import ekiden.relay.op.join as join
else:
    join = LazyModule("ekiden.relay.op.join")


def _concatenation_tree(limit: int) -> CallRewrite:
    def rewrite(call: Call) -> RelayExpr | None:
        """Rewrite a concatenation of more than `limit` tensors as a tree of concatenations.

        stop_fusion keeps the inner ones kernels of their own, or fusion would restore the many
        arguments.
        """
        tensors = call.args[0]
        if not isinstance(tensors, Tuple) or len(tensors.fields) <= limit:
            return None
        axis = int(getattr(call.attrs, "axis", 0))
        fields = list(tensors.fields)
        while len(fields) > limit:
            # stop_fusion keeps fusion from joining the tree into one kernel with all arguments
            # again.
            groups = [fields[i : i + limit] for i in range(0, len(fields), limit)]
            # Fences keep fusion from joining the steps into one kernel again.
            fields = [
                op.annotation.stop_fusion(op.concatenate(g, axis)) if len(g) > 1 else g[0]
                for g in groups
            ]
        return op.concatenate(fields, axis)

    return rewrite


def _split_tree(limit: int) -> CallRewrite:
    def rewrite(call: Call) -> RelayExpr | None:
        """Rewrite a split into more than `limit` tensors as a tree of splits."""
        attrs = call.attrs
        assert isinstance(attrs, join.SplitAttrs), call
        cuts, (data,) = attrs.indices_or_sections, call.args
        count = cuts if isinstance(cuts, int) else len(cuts) + 1
        if count <= limit:
            return None
        if isinstance(cuts, int):
            kind = data.checked_type
            assert isinstance(kind, TensorType), kind
            section_size = simplify(kind.shape[attrs.axis] // count)
            # Equal sections become cuts, which the recursion can group.
            cuts = tuple(simplify(section_size * n) for n in range(1, count))
        return Tuple(tuple(_split_slices(data, [convert(c) for c in cuts], attrs.axis, limit)))

    return rewrite


def _split_slices(data: RelayExpr, cuts: list[PrimExpr], axis: int, limit: int) -> list[RelayExpr]:
    """Return the slices between cuts, by a tree of splits whose depth is logarithmic in their
    number.
    """
    size = 1  # parts of one step
    while size * limit <= len(cuts):
        size *= limit
    outer = cuts[size - 1 :: size]
    call = op.split(data, outer, axis)
    groups: list[RelayExpr] = [TupleGetItem(call, n) for n in range(len(outer) + 1)]
    if size == 1:
        return groups
    slices: list[RelayExpr] = []
    for n, (group, begin) in enumerate(zip(groups, [const(0), *outer], strict=True)):
        # Relative to the group, which begins at 0.
        inner = [simplify(cut - begin) for cut in cuts[n * size : (n + 1) * size - 1]]
        fenced = op.annotation.stop_fusion(group)
        slices += _split_slices(fenced, inner, axis, limit) if inner else [fenced]
    return slices


def SplitArgs(max_function_args: int) -> Pass:  # noqa: N802
    """Return a pass that bounds the number of kernel arguments of concatenations and splits; 0 and
    -1 mean no limit.

    Raises:
        ValueError: For a limit of one, under which nothing can be joined.
    """
    if max_function_args in (0, -1):
        return call_pass("SplitArgs", 1, dict)
    if max_function_args < 2:
        raise ValueError(f"SplitArgs: expected 0 or at least 2 arguments, got {max_function_args}")
    rules = {"concatenate": _concatenation_tree(max_function_args)}
    rules["split"] = _split_tree(
        max_function_args
    )  # its opposite: a kernel writes to arguments too
    return call_pass("SplitArgs", 1, lambda: rules)
