"""Matrix products and attention."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

from ekiden.frontend.common import products
from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.torch.complex import bilinear, own
from ekiden.frontend.torch.node import Converter, Found, Node, Operand, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import equal, known


def product_of(node: Node, a: Value, b: Value) -> Expr:
    """Return [.., m, k] @ [k, n]; a constant right side becomes the weight [n, k] of nn.dense."""
    dtype = a.type.dtype
    if b.array is not None and b.array.ndim == 2:
        # A transposed view of the constant, without a copy: nn.dense takes its weight as [n, k].
        weight = constant(b.array.T)
        return op.nn.dense(node.of(a), node.of(weight, dtype), units=b.array.shape[1])
    return op.nn.matmul(node.of(a), node.of(b, dtype))


def _mm(node: Node, a: Value, b: Value) -> Expr:
    node.scope.same(a.type.shape[1:], b.type.shape[:1])
    return product_of(node, a, b)


def _int_mm(node: Node, a: Value, b: Value) -> Expr:
    """Return int8 products accumulated in int32."""
    node.scope.same(a.type.shape[1:], b.type.shape[:1])
    if b.array is not None:
        weight = node.of(constant(b.array.T))
    else:
        weight = op.transpose(node.of(b), axes=[1, 0])
    return op.nn.dense(node.of(a), weight, out_dtype="int32")


def _bmm(node: Node, a: Value, b: Value) -> Expr:
    node.scope.same((a.type.shape[0], a.type.shape[2]), b.type.shape[:2])
    return op.nn.batch_matmul(node.of(a), node.of(b), transpose_b=False)


def _mv(node: Node, a: Value, b: Value) -> Expr:
    row = op.expand_dims(node.of(b), axis=0)
    return op.squeeze(op.nn.dense(node.of(a), row, units=1), axis=[-1])


def _dot(node: Node, a: Value, b: Value) -> Expr:
    return op.sum(op.multiply(node.of(a), node.of(b)), axis=[0], keepdims=False)


def _added(node: Node, product: Expr, bias: Value, beta: Operand, alpha: Operand) -> Expr:
    dtype = node.out_dtype
    if alpha != 1:
        product = op.multiply(product, node.of(alpha, dtype))
    # BLAS convention: with beta = 0 the bias is not read, so its NaN do not propagate.
    if beta == 0:
        return product
    extra = node.of(bias, dtype)
    if beta != 1:
        extra = op.multiply(extra, node.of(beta, dtype))
    return op.add(product, extra)


def _plus(product: Callable[[Node, Value, Value], Expr]) -> Converter:
    """Return the converter of beta * bias + alpha * product."""

    def convert(
        node: Node, bias: Value, a: Value, b: Value, *, beta: Operand = 1, alpha: Operand = 1
    ) -> Expr:
        return _added(node, product(node, a, b), bias, beta, alpha)

    return convert


def _linear(node: Node, x: Value, weight: Value, bias: Value | None = None) -> Expr:
    product: Expr = op.nn.dense(node.of(x), node.of(weight))
    return product if bias is None else op.add(product, node.of(bias))


def _matmul(node: Node, a: Value, b: Value) -> Expr:
    left_shape, right_shape = a.type.shape, b.type.shape
    if len(left_shape) == 1 and len(right_shape) == 1:
        return _dot(node, a, b)
    if len(right_shape) == 1:
        return _mv(node, a, b)
    if len(right_shape) == 2:
        return product_of(node, a, b)
    if len(left_shape) == 1:
        row_value = node.value_of(node.scope.spanned(op.expand_dims(node.of(a), axis=0)))
        return op.squeeze(batched(node, row_value, b), axis=[-2])
    return batched(node, a, b)


def batched(node: Node, a: Value, b: Value, transpose_b: bool = False) -> Expr:
    """Return the product of two tensors of rank >= 2; leading axes broadcast to one batch of
    nn.batch_matmul.
    """
    return products.batched(node, node.of(a), node.of(b), transpose_b)


def _attention(
    node: Node,
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
    """Return softmax(query key' scale + mask) value; 0 for a query whose keys are all masked.

    Query heads may share key heads (grouped-query attention).
    """
    if dropout:
        node.unsupported("dropout inside of attention")
    dtype = query.type.dtype
    if enable_gqa:
        key, value = _repeated(node, query, key), _repeated(node, query, value)
    width = known(query.type.shape[-1])
    if scale is None and width is None:
        node.unsupported("the width of a head must be constant")
    factor = 1 / math.sqrt(width or 1) if scale is None else scale
    scaled = node.value_of(node.scope.spanned(op.multiply(node.of(query), const(factor, dtype))))
    scores = batched(node, scaled, key, transpose_b=True)
    if is_causal:
        rows, columns = query.type.shape[-2], key.type.shape[-2]
        # PyTorch aligns the causal mask at the top left, whatever the lengths.
        row = op.expand_dims(op.arange(0, rows, 1, dtype="int64"), axis=1)
        column = op.expand_dims(op.arange(0, columns, 1, dtype="int64"), axis=0)
        scores = op.where(op.greater_equal(row, column), scores, const(-math.inf, dtype))
    if mask is not None and mask.type.dtype == "bool":
        scores = op.where(node.of(mask), scores, const(-math.inf, dtype))
    elif mask is not None:
        scores = op.add(scores, node.of(mask, dtype))
    weights = node.value_of(node.scope.spanned(op.nn.softmax(scores, axis=-1)))
    attended = batched(node, weights, value)
    is_seen = None if mask is None else _seen(node, mask)
    return attended if is_seen is None else op.where(is_seen, attended, const(0, dtype))


def _seen(node: Node, mask: Value) -> Expr | None:
    """Return [.., queries, 1]: whether a query has a visible key; None if all are known to.

    Only the mask is read, not infinities in the scores, so that scores need not be stored.
    """
    if mask.array is not None:
        is_open = mask.array if mask.type.dtype == "bool" else mask.array != -math.inf
        if is_open.any(axis=-1).all():
            return None
    visible = node.of(mask)
    if mask.type.dtype != "bool":
        visible = op.not_equal(visible, const(-math.inf, mask.type.dtype))
    return op.any(visible, axis=[-1], keepdims=True)


def _repeated(node: Node, query: Value, x: Value) -> Value:
    heads, own = known(query.type.shape[-3]), known(x.type.shape[-3])
    if heads is None or own is None or heads % own:
        node.unsupported("the numbers of heads must be constant and divide")
    axis = len(x.type.shape) - 3
    if heads == own:
        return x
    return node.value_of(node.scope.spanned(op.repeat(node.of(x), heads // own, axis=axis)))


def _flash(node: Node, query: Value, key: Value, value: Value, dropout: float = 0.0,
           is_causal: bool = False, *, attn_mask: Value | None = None,
           scale: float | None = None) -> list[Expr | Value | None]:  # fmt: skip
    if node.wants(1):
        node.unsupported("the logarithms of the sums of attention")
    attended = _attention(
        node, query, key, value, attn_mask, dropout, is_causal, scale=scale,
        enable_gqa=not equal(query.type.shape[-3], key.type.shape[-3]),
    )  # fmt: skip
    return [attended, None]


def _einsum(node: Node, equation: str, operands: Sequence[Value], *, path: object = None) -> Expr:
    return op.einsum([node.of(v) for v in operands], equation.replace(" ", ""))


def _outer(node: Node, a: Value, b: Value) -> Expr:
    column = op.expand_dims(node.of(a, node.out_dtype), axis=1)
    return op.multiply(column, op.expand_dims(node.of(b, node.out_dtype), axis=0))


def _trilinear(
    node: Node, a: Value, b: Value, c: Value, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sums: Sequence[int], unroll: int = 1,
) -> Expr:  # fmt: skip
    """Return the product of three expanded tensors, summed over some axes."""
    wide: list[Expr] = []
    for value, axes in ((a, expand1), (b, expand2), (c, expand3)):
        data = node.of(value)
        for axis in sorted(axes):
            data = op.expand_dims(data, axis=axis)
        wide.append(data)
    product = op.multiply(op.multiply(wide[0], wide[1]), wide[2])
    return op.sum(product, axis=list(sums), keepdims=False) if sums else product


def _grouped_mm(
    node: Node, x: Value, weights: Value, ends: Value, bias: Value | None = None, *_: object
) -> Expr:
    """Return [rows, k] times one of [groups, k, n]: group i has the rows from `ends[i - 1]` to
    `ends[i]`.

    Each group is computed for all rows and its own rows are selected: no weight is copied.
    """
    if len(x.type.shape) != 2 or len(weights.type.shape) != 3 or bias is not None:
        node.unsupported("expected rows of two axes, weights of three and no bias")
    total: Expr = const(0, x.type.dtype)
    for index, is_own in enumerate(_rows_of_groups(node, x, weights, ends)):
        group_product = product_of(node, x, _weight_of(node, weights, index))
        # Rows that belong to no group stay 0.
        total = op.where(is_own, group_product, total)
    return total


def _rows_of_groups(node: Node, x: Value, weights: Value, ends: Value) -> list[Expr]:
    """Return [rows, 1] for each group: whether a row belongs to it."""
    (count,) = node.static(weights.type.shape[:1], "the groups")
    rows = op.arange(0, x.type.shape[0], 1, dtype="int64")
    group_index = op.searchsorted(node.of(ends, "int64"), rows, right=True, dtype="int64")
    group = node.scope.spanned(op.expand_dims(group_index, axis=1))
    return [op.equal(group, const(index, "int64")) for index in range(count)]


def _grouped_mm_backward(
    node: Node, x: Value, weights: Value, ends: Value, grad: Value
) -> list[Expr]:
    """Return the gradients of the rows and of the weights."""
    total: Expr = const(0, x.type.dtype)
    weight_grads: list[Expr] = []
    for index, is_own in enumerate(_rows_of_groups(node, x, weights, ends)):
        turned = op.transpose(node.of(_weight_of(node, weights, index)), axes=[1, 0])
        group_grad = product_of(node, grad, node.value_of(node.scope.spanned(turned)))
        total = op.where(is_own, group_grad, total)
        rows = op.transpose(op.where(is_own, node.of(x), const(0, x.type.dtype)), axes=[1, 0])
        weight_grads.append(product_of(node, node.value_of(node.scope.spanned(rows)), grad))
    return [total, op.stack(weight_grads, axis=0)]


def _weight_of(node: Node, weights: Value, index: int) -> Value:
    if weights.array is not None:
        return constant(weights.array[index])
    weight = op.take(node.of(weights), const(index, "int64"), axis=0)
    return node.value_of(node.scope.spanned(weight))


def _einsum_of_parts(
    node: Node, equation: str, operands: Sequence[Value | Complex], *, path: object = None
) -> Found:
    """Return a complex einsum: the real products of all combinations of parts, summed with their
    signs.
    """
    sides = [(v.real, v.imaginary) if isinstance(v, Complex) else (v,) for v in operands]
    terms: list[list[Expr]] = [[], []]
    for choice in itertools.product(*(range(len(s)) for s in sides)):
        term = _einsum(node, equation, [s[i] for s, i in zip(sides, choice, strict=True)])
        i_power = sum(choice)  # a factor i each: 1, i, -1, -i
        terms[i_power % 2].append(op.negative(term) if i_power % 4 > 1 else term)
    real, imaginary = (functools.reduce(op.add, side) for side in terms)
    return real, imaginary


# fmt: off
ROWS: tuple[Row, ...] = (
    ("_int_mm", _int_mm),
    ("mm", _mm, bilinear),
    ("bmm", _bmm, bilinear),
    ("mv", _mv),
    ("dot", _dot),
    ("addmm", _plus(_mm)),
    ("baddbmm", _plus(_bmm)),
    ("addmv", _plus(_mv)),
    ("linear", _linear),
    ("matmul", _matmul, bilinear),
    ("scaled_dot_product_attention", _attention),
    ("_scaled_dot_product_flash_attention_for_cpu", _flash),
    ("einsum", _einsum, own(_einsum_of_parts)),
    ("_trilinear", _trilinear),
    ("outer", _outer),
    ("_grouped_mm", _grouped_mm),
    ("transformers::grouped_mm_fallback", _grouped_mm),
    ("transformers::grouped_mm_fallback_backward", _grouped_mm_backward),
)
# fmt: on
