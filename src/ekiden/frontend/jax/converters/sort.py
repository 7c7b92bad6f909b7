"""Sort by an arbitrary comparator, and top-k."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jaxlib.mlir import ir

from ekiden.frontend.common.converters.stablehlo import emit_iota
from ekiden.frontend.common.node import Result
from ekiden.frontend.jax.converters.elementwise import total_order_key
from ekiden.frontend.jax.converters.reduction_bodies import (
    apply_real_body,
    block_operations,
    compare_direction,
    is_total_order,
)
from ekiden.frontend.jax.node import (
    ImportedValues,
    StablehloNode,
    StablehloRow,
    custom_complex_rule,
)
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import Dim, as_dim, to_attr_dims


def _sort(node: StablehloNode) -> ImportedValues:
    axis = node.axis(node.int_attribute("dimension"), node.rank(0))
    block = node.region_block()
    keys = _match_sort_keys(node, block)
    permutation = (
        _argsort_by_keys(node, keys, axis)
        if keys is not None
        else _argsort_by_ranks(node, block, axis)
    )
    at = node.scope.expr(node.bind_shared(op.cast(permutation, "int64")))
    return [node.map_parts(v, lambda expr: op.gather(expr, axis, at)) for v in node.whole]


SortKey = tuple[Expr, bool]
"""(integers or floats, whether the smallest comes first)."""


def _match_sort_keys(node: StablehloNode, block: ir.Block) -> list[SortKey] | None:
    """Match a comparator that compares sort keys lexicographically; return the keys, most
    significant first, or None.

    None for a comparator that is not of the form a < b, or a < b or (a = b and <remainder>).
    """
    *operations, end = block_operations(block)
    makers = {result: operation for operation in operations for result in operation.results}
    keys: list[SortKey] = []
    test = end.operands[0]
    while True:
        maker = makers.get(test)
        if maker is None:
            return None
        remainder = None
        if maker.name == "stablehlo.or":
            split = _match_lexicographic(makers, maker)
            if split is None:
                return None
            maker, remainder = split
        key = _match_sort_key(node, block, makers, maker)
        if key is None:
            return None
        keys.append(key)
        if remainder is None:
            return keys
        test = remainder


def _match_lexicographic(
    makers: dict[ir.Value, ir.Operation], maker: ir.Operation
) -> tuple[ir.Operation, ir.Value] | None:
    """Match a < b or (a = b and remainder); return the comparison and the remainder."""
    first, both = (makers.get(o) for o in maker.operands)
    if first is None or both is None or both.name != "stablehlo.and":
        return None
    same = makers.get(both.operands[0])
    if first.name != "stablehlo.compare" or same is None or same.name != "stablehlo.compare":
        return None
    if list(same.operands) != list(first.operands) or compare_direction(same) != "EQ":
        return None
    return first, both.operands[1]


def _match_sort_key(
    node: StablehloNode, block: ir.Block, makers: dict[ir.Value, ir.Operation], maker: ir.Operation
) -> SortKey | None:
    """Match a comparison of one function of both elements; return that function of the whole tensor
    as a key.
    """
    if maker.name != "stablehlo.compare" or compare_direction(maker) not in ("LT", "GT"):
        return None
    left_arguments, right_arguments = (_argument_indices(block, makers, o) for o in maker.operands)
    if len(left_arguments) != 1 or len(right_arguments) != 1:
        return None
    (first,), (second,) = left_arguments, right_arguments
    if first == second or first // 2 != second // 2:
        return None
    texts = [_canonical_text(block, makers, o) for o in maker.operands]
    if texts[0] != texts[1]:
        return None
    node.graph.import_block(block, [value for value in node.whole for _ in range(2)])
    key_value = node.graph.real_value(maker.operands[0])
    if key_value is None:
        node.reject("its comparator is not supported")
    expr = node.scope.expr(key_value)
    dtype = key_value.type.dtype
    key = total_order_key(expr, dtype) if is_total_order(maker) and is_float(dtype) else expr
    return key, (compare_direction(maker) == "LT") == (first % 2 == 0)


def _argument_indices(
    block: ir.Block, makers: dict[ir.Value, ir.Operation], value: ir.Value
) -> set[int]:
    """Return the indices of the comparator's arguments that a value depends on."""
    waiting, indices = [value], set()
    while waiting:
        visited = waiting.pop()
        if visited in makers:
            waiting += list(makers[visited].operands)
        else:
            indices |= {i for i, a in enumerate(block.arguments) if a == visited}
    return indices


def _canonical_text(block: ir.Block, makers: dict[ir.Value, ir.Operation], value: ir.Value) -> str:
    """Return a canonical text of a comparator's value that does not distinguish its two
    elements.
    """
    maker = makers.get(value)
    if maker is None:
        at = [i for i, a in enumerate(block.arguments) if a == value]
        return f"argument {at[0] // 2}" if at else str(hash(value))
    inner = ", ".join(_canonical_text(block, makers, o) for o in maker.operands)
    stated = sorted(str(maker.attributes[n]) for n in _attribute_names(maker))
    return f"{maker.name}{stated}({inner})"


def _attribute_names(operation: ir.Operation) -> list[str]:
    return [a if isinstance(a, str) else a.name for a in operation.attributes]


def _argsort_by_keys(node: StablehloNode, keys: Sequence[SortKey], axis: int) -> Expr:
    """Emit the sorting permutation by stable sorts, least significant key first (LSD radix
    order).
    """
    permutation: Expr | None = None
    for key, is_ascending in reversed(keys):
        if node.scope.tensor_type_of(key).dtype == "bool":
            key = op.cast(key, "int8")
        ordered_key = key if permutation is None else op.gather(key, axis, permutation)
        order = op.argsort(ordered_key, axis=axis, is_ascend=is_ascending, dtype="int64")
        order_expr = node.scope.expr(node.bind_shared(order))
        permutation = (
            order_expr if permutation is None else op.gather(permutation, axis, order_expr)
        )
    assert permutation is not None, "a comparator has a key"
    return permutation


def _argsort_by_ranks(node: StablehloNode, block: ir.Block, axis: int) -> Expr:
    """Emit the sorting permutation under any comparator: the rank of each element by comparison
    with all others.
    """
    pairs: ImportedValues = []
    shape = node.shape(0)
    # n * n comparisons: only for comparators that no key describes.
    wide = to_attr_dims((*shape[: axis + 1], shape[axis], *shape[axis + 1 :]))
    for value in node.whole:
        for at in (axis + 1, axis):  # the other element, this one
            pairs.append(node.map_parts(value, partial(_broadcast_new_axis, axis=at, shape=wide)))
    # Arguments alternate between the two elements: i ^ 1 swaps them, for the comparison the other
    # way round.
    turned = [pairs[i ^ 1] for i in range(len(pairs))]
    (less,) = apply_real_body(node, block, pairs, [])
    before = node.bind_shared(op.cast(node.scope.expr(less), "int64"))
    (more,) = apply_real_body(node, block, turned, [])
    extent = as_dim(shape[axis])
    first = node.scope.expr(emit_iota(node, (extent, 1), 0, "int64"))
    second = node.scope.expr(emit_iota(node, (1, extent), 1, "int64"))
    earlier = op.reshape(
        op.less(first, second), to_attr_dims((extent, extent, *(1,) * (len(shape) - axis - 1))),
        allowzero=True,
    )  # fmt: skip
    # Ties are ranked by position, which keeps the sort stable.
    tied = op.logical_not(op.logical_or(node.scope.expr(less), node.scope.expr(more)))
    ties = op.cast(op.logical_and(tied, earlier), "int64")
    ranks = op.sum(op.add(node.scope.expr(before), ties), axis=[axis], keepdims=False)
    return op.argsort(ranks, axis=axis, is_ascend=True, dtype="int64")


def _broadcast_new_axis(expr: Expr, axis: int, shape: Sequence[Dim]) -> Expr:
    """Broadcast a tensor along a new axis."""
    return op.broadcast_to(op.expand_dims(expr, axis=axis), shape)


def _top_k(node: StablehloNode) -> Result:
    k = int(node.composite["k"]) if node.composite else node.int_attribute("k")
    return emit_top_k(node, k)


def emit_top_k(node: StablehloNode, k: object) -> list[Expr]:
    """Emit the k largest elements along the last axis and their int32 indices; NaN ranks
    above all.
    """
    data, dtype = node.expr(0), node.dtype(0)
    key = total_order_key(data, dtype) if is_float(dtype) else data
    indices = op.topk(key, k, axis=-1, ret_type="indices", dtype="int32")  # type: ignore[arg-type]
    at = node.scope.expr(node.bind_shared(indices))
    return [op.gather(data, node.rank(0) - 1, op.cast(at, "int64")), at]


def mhlo_top_k(node: StablehloNode) -> list[Expr]:
    """Convert the custom call `mhlo.topk`, which JAX before 0.7 emits."""
    options = ir.DictAttr(node.attribute("mhlo.attributes"))
    if "largest" in options and not options["largest"].value:
        node.reject("the smallest elements of 'mhlo.topk'")
    return emit_top_k(node, int(options["k"].value))


def dynamic_top_k(node: StablehloNode) -> Result:
    """Convert the custom call `stablehlo.dynamic_top_k`."""
    (k,) = node.sizes(1)
    return emit_top_k(node, k)


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.sort", _sort, make_complex_rule=custom_complex_rule(_sort)),
    StablehloRow("chlo.top_k", _top_k),
)
