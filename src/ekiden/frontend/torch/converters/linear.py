"""Matrix products and attention."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

from ekiden.frontend.common import matmul
from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.torch.complex_rules import bilinear_rule, custom_complex_rule
from ekiden.frontend.torch.node import ComplexResult, Converter, ConverterRow, FxNode, Operand
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import are_equal_dims, known_int


def matmul_by_weight(node: FxNode, a: Value, b: Value) -> Expr:
    """Emit [..., m, k] @ [k, n]; a constant right side becomes the weight [n, k] of nn.dense."""
    dtype = a.type.dtype
    if b.array is not None and b.array.ndim == 2:
        # A transposed view of the constant, without a copy: nn.dense takes its weight as [n, k].
        weight = constant_value(b.array.T)
        return op.nn.dense(node.to_expr(a), node.to_expr(weight, dtype), units=b.array.shape[1])
    return op.nn.matmul(node.to_expr(a), node.to_expr(b, dtype))


def _mm(node: FxNode, a: Value, b: Value) -> Expr:
    node.scope.require_equal_dims(a.type.shape[1:], b.type.shape[:1])
    return matmul_by_weight(node, a, b)


def _int_mm(node: FxNode, a: Value, b: Value) -> Expr:
    """Convert _int_mm: int8 products accumulated in int32."""
    node.scope.require_equal_dims(a.type.shape[1:], b.type.shape[:1])
    if b.array is not None:
        weight = node.to_expr(constant_value(b.array.T))
    else:
        weight = op.transpose(node.to_expr(b), axes=[1, 0])
    return op.nn.dense(node.to_expr(a), weight, out_dtype="int32")


def _bmm(node: FxNode, a: Value, b: Value) -> Expr:
    node.scope.require_equal_dims((a.type.shape[0], a.type.shape[2]), b.type.shape[:2])
    return op.nn.batch_matmul(node.to_expr(a), node.to_expr(b), transpose_b=False)


def _mv(node: FxNode, a: Value, b: Value) -> Expr:
    row = op.expand_dims(node.to_expr(b), axis=0)
    return op.squeeze(op.nn.dense(node.to_expr(a), row, units=1), axis=[-1])


def _dot(node: FxNode, a: Value, b: Value) -> Expr:
    return op.sum(op.multiply(node.to_expr(a), node.to_expr(b)), axis=[0], keepdims=False)


def _scale_and_add(node: FxNode, product: Expr, bias: Value, beta: Operand, alpha: Operand) -> Expr:
    dtype = node.out_dtype
    if alpha != 1:
        product = op.multiply(product, node.to_expr(alpha, dtype))
    # BLAS convention: with beta = 0 the bias is not read, so its NaN do not propagate.
    if beta == 0:
        return product
    extra = node.to_expr(bias, dtype)
    if beta != 1:
        extra = op.multiply(extra, node.to_expr(beta, dtype))
    return op.add(product, extra)


def _addmm_converter(product: Callable[[FxNode, Value, Value], Expr]) -> Converter:
    """Return the converter of beta * bias + alpha * product (addmm and relatives)."""

    def convert(
        node: FxNode, bias: Value, a: Value, b: Value, *, beta: Operand = 1, alpha: Operand = 1
    ) -> Expr:
        """Return beta * bias + alpha * (a product of a and b)."""
        return _scale_and_add(node, product(node, a, b), bias, beta, alpha)

    return convert


def _linear(node: FxNode, x: Value, weight: Value, bias: Value | None = None) -> Expr:
    product: Expr = op.nn.dense(node.to_expr(x), node.to_expr(weight))
    return product if bias is None else op.add(product, node.to_expr(bias))


def _matmul(node: FxNode, a: Value, b: Value) -> Expr:
    left_shape, right_shape = a.type.shape, b.type.shape
    if len(left_shape) == 1 and len(right_shape) == 1:
        return _dot(node, a, b)
    if len(right_shape) == 1:
        return _mv(node, a, b)
    if len(right_shape) == 2:
        return matmul_by_weight(node, a, b)
    if len(left_shape) == 1:
        row_value = node.as_value(node.scope.attach_span(op.expand_dims(node.to_expr(a), axis=0)))
        return op.squeeze(batched_product(node, row_value, b), axis=[-2])
    return batched_product(node, a, b)


def batched_product(node: FxNode, a: Value, b: Value, transpose_b: bool = False) -> Expr:
    """Emit the product of two tensors of rank 2 or more; leading axes broadcast."""
    return matmul.batched_matmul(node, node.to_expr(a), node.to_expr(b), transpose_b)


def _scaled_dot_product_attention(
    node: FxNode,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Expr:
    """Emit softmax(scale query key' + mask) value; 0 for a query whose keys are all masked.

    Query heads may share key heads (grouped-query attention).
    """
    if dropout:
        node.reject("dropout inside of attention")
    dtype = query.type.dtype
    if enable_gqa:
        key, value = _repeat_kv_heads(node, query, key), _repeat_kv_heads(node, query, value)
    width = known_int(query.type.shape[-1])
    if scale is None and width is None:
        node.reject("the width of a head must be constant")
    factor = 1 / math.sqrt(width or 1) if scale is None else scale
    # Scaling the query costs queries * columns products, scaling the scores queries * keys.
    scaled = node.as_value(
        node.scope.attach_span(op.multiply(node.to_expr(query), const(factor, dtype)))
    )
    scores = batched_product(node, scaled, key, transpose_b=True)
    if is_causal:
        rows, columns = query.type.shape[-2], key.type.shape[-2]
        # PyTorch aligns the causal mask at the top left, whatever the lengths.
        row = op.expand_dims(op.arange(0, rows, 1, dtype="int64"), axis=1)
        column = op.expand_dims(op.arange(0, columns, 1, dtype="int64"), axis=0)
        scores = op.where(op.greater_equal(row, column), scores, const(-math.inf, dtype))
    if mask is not None and mask.type.dtype == "bool":
        scores = op.where(node.to_expr(mask), scores, const(-math.inf, dtype))
    elif mask is not None:
        scores = op.add(scores, node.to_expr(mask, dtype))
    weights = node.as_value(node.scope.attach_span(op.nn.softmax(scores, axis=-1)))
    attended = batched_product(node, weights, value)
    is_seen = None if mask is None else _visible_queries(node, mask)
    return attended if is_seen is None else op.where(is_seen, attended, const(0, dtype))


def _visible_queries(node: FxNode, mask: Value) -> Expr | None:
    """Emit [..., queries, 1]: whether a query has a visible key; None if all are known to.

    Only the mask is read, not infinities in the scores, so that scores need not be stored.
    """
    if mask.array is not None:
        is_open = mask.array if mask.type.dtype == "bool" else mask.array != -math.inf
        if is_open.any(axis=-1).all():
            return None
    visible = node.to_expr(mask)
    if mask.type.dtype != "bool":
        visible = op.not_equal(visible, const(-math.inf, mask.type.dtype))
    return op.any(visible, axis=[-1], keepdims=True)


def _repeat_kv_heads(node: FxNode, query: Value, x: Value) -> Value:
    heads, key_heads = known_int(query.type.shape[-3]), known_int(x.type.shape[-3])
    if heads is None or key_heads is None or heads % key_heads:
        node.reject("the numbers of heads must be constant and divide")
    axis = len(x.type.shape) - 3
    if heads == key_heads:
        return x
    return node.as_value(
        node.scope.attach_span(op.repeat(node.to_expr(x), heads // key_heads, axis=axis))
    )


def _flash_attention(node: FxNode, query: Value, key: Value, value: Value, dropout: float = 0.0,
                     is_causal: bool = False, *, attn_mask: Value | None = None,
                     scale: float | None = None) -> list[Expr | Value | None]:  # fmt: skip
    if node.is_output_used(1):
        node.reject("the logarithms of the sums of attention")
    attended = _scaled_dot_product_attention(
        node, query, key, value, attn_mask, dropout, is_causal, scale=scale,
        enable_gqa=not are_equal_dims(query.type.shape[-3], key.type.shape[-3]),
    )  # fmt: skip
    return [attended, None]


def _einsum(node: FxNode, equation: str, operands: Sequence[Value], *, path: object = None) -> Expr:
    return op.einsum([node.to_expr(v) for v in operands], equation.replace(" ", ""))


def _outer(node: FxNode, a: Value, b: Value) -> Expr:
    column = op.expand_dims(node.to_expr(a, node.out_dtype), axis=1)
    return op.multiply(column, op.expand_dims(node.to_expr(b, node.out_dtype), axis=0))


def _trilinear(
    node: FxNode, a: Value, b: Value, c: Value, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sums: Sequence[int], unroll: int = 1,
) -> Expr:  # fmt: skip
    """Emit the product of three expanded tensors, summed over some axes."""
    wide: list[Expr] = []
    for value, axes in ((a, expand1), (b, expand2), (c, expand3)):
        data = node.to_expr(value)
        for axis in sorted(axes):
            data = op.expand_dims(data, axis=axis)
        wide.append(data)
    product = op.multiply(op.multiply(wide[0], wide[1]), wide[2])
    return op.sum(product, axis=list(sums), keepdims=False) if sums else product


def _grouped_mm(
    node: FxNode, x: Value, weights: Value, ends: Value, bias: Value | None = None, *_: object
) -> Expr:
    """Convert _grouped_mm: rows [rows, k] times the matrix [k, n] of their group, which ends at
    `ends`.

    Each group is computed for all rows and its own rows are selected: no weight is copied.
    """
    if len(x.type.shape) != 2 or len(weights.type.shape) != 3 or bias is not None:
        node.reject("expected rows of two axes, weights of three and no bias")
    total: Expr = const(0, x.type.dtype)
    # Group boundaries are data: every group's product covers all rows, and a mask keeps its own.
    for index, is_own in enumerate(_group_masks(node, x, weights, ends)):
        group_product = matmul_by_weight(node, x, _select_group_weight(node, weights, index))
        # Rows that belong to no group stay 0.
        total = op.where(is_own, group_product, total)
    return total


def _group_masks(node: FxNode, x: Value, weights: Value, ends: Value) -> list[Expr]:
    """Emit, per group, the mask [rows, 1] of its rows."""
    (count,) = node.static_shape(weights.type.shape[:1], "the groups")
    rows = op.arange(0, x.type.shape[0], 1, dtype="int64")
    group_index = op.searchsorted(node.to_expr(ends, "int64"), rows, right=True, dtype="int64")
    group = node.scope.attach_span(op.expand_dims(group_index, axis=1))
    return [op.equal(group, const(index, "int64")) for index in range(count)]


def _grouped_mm_backward(
    node: FxNode, x: Value, weights: Value, ends: Value, grad: Value
) -> list[Expr]:
    """Emit the gradients of the rows and of the weights."""
    total: Expr = const(0, x.type.dtype)
    weight_grads: list[Expr] = []
    for index, is_own in enumerate(_group_masks(node, x, weights, ends)):
        turned = op.transpose(node.to_expr(_select_group_weight(node, weights, index)), axes=[1, 0])
        group_grad = matmul_by_weight(node, grad, node.as_value(node.scope.attach_span(turned)))
        total = op.where(is_own, group_grad, total)
        rows = op.transpose(op.where(is_own, node.to_expr(x), const(0, x.type.dtype)), axes=[1, 0])
        weight_grads.append(
            matmul_by_weight(node, node.as_value(node.scope.attach_span(rows)), grad)
        )
    return [total, op.stack(weight_grads, axis=0)]


def _select_group_weight(node: FxNode, weights: Value, index: int) -> Value:
    if weights.array is not None:
        return constant_value(weights.array[index])
    weight = op.take(node.to_expr(weights), const(index, "int64"), axis=0)
    return node.as_value(node.scope.attach_span(weight))


def _complex_einsum(
    node: FxNode, equation: str, operands: Sequence[Value | ComplexValue], *, path: object = None
) -> ComplexResult:
    """Convert a complex einsum: real products of all combinations of parts, summed with their
    signs.
    """
    sides = [(v.real, v.imaginary) if isinstance(v, ComplexValue) else (v,) for v in operands]
    terms: list[list[Expr]] = [[], []]
    for choice in itertools.product(*(range(len(s)) for s in sides)):
        term = _einsum(node, equation, [s[i] for s, i in zip(sides, choice, strict=True)])
        i_power = sum(choice)  # a factor i each: 1, i, -1, -i
        terms[i_power % 2].append(op.negative(term) if i_power % 4 > 1 else term)
    real, imaginary = (functools.reduce(op.add, side) for side in terms)
    return real, imaginary


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    ("_int_mm", _int_mm),
    ("mm", _mm, bilinear_rule),
    ("bmm", _bmm, bilinear_rule),
    ("mv", _mv),
    ("dot", _dot),
    ("addmm", _addmm_converter(_mm)),
    ("baddbmm", _addmm_converter(_bmm)),
    ("addmv", _addmm_converter(_mv)),
    ("linear", _linear),
    ("matmul", _matmul, bilinear_rule),
    ("scaled_dot_product_attention", _scaled_dot_product_attention),
    ("_scaled_dot_product_flash_attention_for_cpu", _flash_attention),
    ("einsum", _einsum, custom_complex_rule(_complex_einsum)),
    ("_trilinear", _trilinear),
    ("outer", _outer),
    ("_grouped_mm", _grouped_mm),
    ("transformers::grouped_mm_fallback", _grouped_mm),
    ("transformers::grouped_mm_fallback_backward", _grouped_mm_backward),
)
# fmt: on
