"""com.microsoft attention: Attention, QAttention, MultiHeadAttention, GroupQueryAttention,
RotaryEmbedding.

All become nn.attention; masks become an additive bias of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.onnx.converters.contrib import CONTRIB_DOMAIN, rms_normalize
from ekiden.frontend.onnx.converters.linear import convert_matmul
from ekiden.frontend.onnx.converters.quantize import convert_matmul_integer
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.prim import LE, PrimExpr, fold_binary, maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import are_equal_dims, as_dim, known_int, simplify_dim

LAYOUT_BSHD = "bshd"
LAYOUT_BHSD = "bhsd"
_MIN_FLOAT32 = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class ScoreModifiers:
    """Modifiers of attention scores before the softmax: additive bias, causal mask, soft cap."""

    bias: Expr | None = None
    causal: str = ""
    softcap: float = 0.0

    def with_bias(self, bias: Expr | None) -> ScoreModifiers:
        """Return the modifiers with a further bias added."""
        if self.bias is None or bias is None:
            return ScoreModifiers(
                bias if self.bias is None else self.bias, self.causal, self.softcap
            )
        return ScoreModifiers(op.add(self.bias, bias), self.causal, self.softcap)


def _split_heads(node: OnnxNode, data: Expr, heads: int) -> Expr:
    """Emit a reshape [batch, length, heads * depth] -> [batch, length, heads, depth]."""
    batch, length, width = node.tensor_type_of(data).shape
    extent = known_int(width)
    if extent is None or extent % heads:
        node.reject(f"expected a width that {heads} heads share, got {width!r}")
    return op.reshape(data, (batch, length, heads, extent // heads), allowzero=True)


def _emit_attention(
    node: OnnxNode, q: Expr, k: Expr, v: Expr, layouts: Sequence[str], scores: ScoreModifiers
) -> Expr:
    """Emit nn.attention of query, key and value: [batch, length, heads * depth], computed in
    float32 and cast to the query's dtype.
    """
    dtype = node.tensor_type_of(q).dtype
    q, k, v = (op.cast(t, "float32") if dtype != "float32" else t for t in (q, k, v))
    bias = scores.bias
    bias = op.cast(bias, "float32") if bias is not None and dtype != "float32" else bias
    # A scale of 0 means the default, 1 / sqrt(depth).
    scale = node.get_float("scale", 0.0) or None
    attended: Expr = op.nn.attention(
        q, k, v, bias, scale=scale, causal=scores.causal, softcap=scores.softcap,
        layouts=(layouts[0], layouts[1], layouts[2], LAYOUT_BSHD),
    )  # fmt: skip
    batch, length, heads, depth = node.tensor_type_of(attended).shape
    joined = op.reshape(attended, (batch, length, heads * depth), allowzero=True)
    return joined if dtype == "float32" else op.cast(joined, dtype)


def _swap_heads_axis(t: Expr) -> Expr:
    """Emit a transpose between head-last (bshd) and head-first (bhsd) layout."""
    return op.transpose(t, axes=[0, 2, 1, 3])


# Masks.


def _additive_mask(node: OnnxNode, allowed: Expr, axes: int) -> Expr:
    """Emit the additive mask: 0 where a key is visible, `mask_filter_value` elsewhere."""
    value = node.get_float("mask_filter_value", -10000.0)
    bias = op.where(allowed, const(0.0, "float32"), const(value, "float32"))
    return op.expand_dims(bias, axis=1, num_newaxis=axes) if axes else bias


def _key_length_mask(node: OnnxNode, index: int, batch: PrimExpr, total: PrimExpr) -> Expr:
    """Emit the visibility [batch, total] of keys from their ends, or ends and starts, per
    sequence.
    """
    count = node.shape(index)[0]
    key_positions = op.expand_dims(op.arange(0, total, 1, dtype="int32"), axis=0)
    vector = node.expr(index)
    if are_equal_dims(count, batch):
        return op.less(key_positions, op.expand_dims(vector, axis=1))
    if not are_equal_dims(count, batch * 2):
        node.reject(f"a mask of shape ({count!r},) needs {batch!r} or twice as many elements")
    ends, begins = (
        op.expand_dims(op.strided_slice(vector, begin=[b], end=[e], axes=[0]), axis=1)
        for b, e in ((0, batch), (batch, batch * 2))
    )
    return op.logical_and(op.less(key_positions, ends), op.greater_equal(key_positions, begins))


def _mask_bias(
    node: OnnxNode, index: int, batch: PrimExpr, rows: PrimExpr, total: PrimExpr
) -> Expr | None:
    """Emit the additive bias of a mask input of rank 1 to 4; None if it is absent."""
    if node.optional_value(index) is None:
        return None
    rank, one = node.rank(index), const(0, node.dtype(index))
    # Rank 1 holds key lengths ("mask_index"), higher ranks hold a flag for each key.
    if rank == 1:
        return _additive_mask(node, _key_length_mask(node, index, batch, total), 2)
    mask = node.expr(index)
    # A mask of rank 4 covers the longest sequence: the rows and columns of this call are sliced
    # out.
    if rank == 4:
        past = total - rows
        mask = op.strided_slice(mask, begin=[past, 0], end=[total, total], axes=[2, 3])
        return _additive_mask(node, op.not_equal(mask, one), 0)
    node.scope.require_equal_dims(node.shape(index)[-1:], (total,))
    return _additive_mask(node, op.not_equal(mask, one), {2: 2, 3: 1}[rank])


def _causal_scores(rows: PrimExpr, new: PrimExpr, total: PrimExpr) -> ScoreModifiers:
    """Return the causal score modifier for `rows` queries over `total` keys, of which the last
    `new` belong to this call.

    With as many new keys as queries, that is the triangle at the end. Otherwise ONNX Runtime lets a
    query see the keys up to its own place among the new ones, and the last query all of them.
    """
    # The kernel's own causal mask needs no tensor.
    if are_equal_dims(rows, new):
        return ScoreModifiers(causal="end")
    past = total - new
    spans = (past, past + rows - 1), (total - 1, total)
    ranges = [op.arange(begin, end, 1, dtype="int64") for begin, end in spans]
    last_seen = op.expand_dims(op.concatenate(ranges, axis=0), axis=1)
    is_visible = op.less_equal(op.arange(0, total, 1, dtype="int64"), last_seen)
    bias = op.where(is_visible, const(0.0, "float32"), const(_MIN_FLOAT32, "float32"))
    return ScoreModifiers(op.expand_dims(bias, axis=0, num_newaxis=2))


def _score_modifiers(
    node: OnnxNode, mask: int, bias: int, dims: tuple[PrimExpr, PrimExpr, PrimExpr, PrimExpr]
) -> ScoreModifiers:
    """Return a node's score modifiers; dims: (batch, queries, new keys, all keys)."""
    batch, rows, new, total = dims
    scores = (
        _causal_scores(rows, new, total) if node.get_int("unidirectional", 0) else ScoreModifiers()
    )
    scores = scores.with_bias(_mask_bias(node, mask, batch, rows, total))
    if node.optional_value(bias) is None:
        return scores
    added = node.expr(bias)
    return scores.with_bias(op.cast(added, "float32") if node.dtype(bias) != "float32" else added)


# Attention with its projection.


def _qkv_widths(node: OnnxNode, total: PrimExpr) -> tuple[int, int]:
    """Return the widths of query and key, and of value."""
    if node.has("qkv_hidden_sizes"):
        q, k, v = node.get_ints("qkv_hidden_sizes")
        if q != k:
            node.reject(f"query and key must have one width, got {q} and {k}")
        return q, v
    columns = known_int(total)
    if columns is None or columns % 3:
        node.reject(f"expected weights for query, key and value, got {total!r} columns")
    return columns // 3, columns // 3


def _self_attention(node: OnnxNode, projected: Expr, mask: int, past: int, bias: int) -> Result:
    """Emit self-attention of projections [batch, length, query + key + value]; output 1 holds the
    present keys and values.
    """
    heads = node.get_int("num_heads")
    batch, length, total = node.tensor_type_of(projected).shape
    width, depth = _qkv_widths(node, total)
    cuts = (0, width, 2 * width, 2 * width + depth)
    q, k, v = (
        _split_heads(node, op.strided_slice(projected, begin=[b], end=[e], axes=[2]), heads)
        for b, e in pairwise(cuts)
    )
    if node.optional_value(past) is None and not node.is_output_used(1):
        scores = _score_modifiers(node, mask, bias, (batch, length, length, length))
        return _emit_attention(node, q, k, v, (LAYOUT_BSHD,) * 3, scores)
    k, v = _swap_heads_axis(k), _swap_heads_axis(v)
    present: list[Expr] = []
    if node.optional_value(past) is not None:
        buffers = [op.take(node.expr(past), const(i, "int64"), axis=0) for i in range(2)]
        shares = bool(node.get_int("past_present_share_buffer", 0))
        room = _new_key_range(node, 6, node.shape(past)[3], length) if shares else None
        pairs = list(zip(buffers, (k, v), strict=True))
        present = [] if room is None else [_write_to_buffer(node, b, t, room) for b, t in pairs]
        k, v = (op.concatenate([_slice_filled_part(b, room), t], axis=2) for b, t in pairs)
    keys = node.tensor_type_of(k).shape[2]
    scores = _score_modifiers(node, mask, bias, (batch, length, length, keys))
    attended = _emit_attention(node, q, k, v, (LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_BHSD), scores)
    return [attended, op.stack(present or [k, v], axis=0) if node.is_output_used(1) else None]


def _attention(node: OnnxNode) -> Result:
    """Convert com.microsoft.Attention. Where past and present share a buffer, the buffer has room
    behind `past_sequence_length`.
    """
    if node.get_int("past_present_share_buffer", 0) and None in (node.peek(4), node.peek(6)):
        node.reject("'past_present_share_buffer' needs 'past' and 'past_sequence_length'")
    projected = convert_matmul(node.with_inputs(node.inputs[:2]))
    if node.optional_value(2) is not None:
        projected = op.add(projected, node.expr(2))
    return _self_attention(node, projected, mask=3, past=4, bias=5)


def _q_attention(node: OnnxNode) -> Result:
    """Convert QAttention, with 8-bit input and weights."""
    sides = [node.value(0), node.value(1), node.optional_value(6), node.optional_value(7)]
    total = convert_matmul_integer(node.with_inputs(sides))
    scale = op.multiply(*(_scalar_scale(node, i) for i in (3, 4)))
    projected = op.multiply(op.cast(total, "float32"), scale)
    return _self_attention(node, op.add(projected, node.expr(2)), mask=5, past=8, bias=9)


def _scalar_scale(node: OnnxNode, index: int) -> Expr:
    """Return a scale as a scalar where it has one element."""
    shape = node.shape(index)
    return (
        op.reshape(node.expr(index), ()) if shape and known_int(shape[0]) == 1 else node.expr(index)
    )


# Attention of given queries, keys and values.


def _unpack_qkv(node: OnnxNode, heads: int) -> list[tuple[Expr, str]]:
    """Return (expression, layout) of query, key and value, unpacked where inputs hold several of
    them.
    """
    if node.rank(0) == 3 and node.optional_value(1) is None:
        width = known_int(node.shape(0)[2])
        if width is None or width % 3:
            node.reject(f"expected query, key and value in 'query', got {width} columns")
        cuts = [(i * width // 3, (i + 1) * width // 3) for i in range(3)]
        slices = [op.strided_slice(node.expr(0), [b], [e], axes=[2]) for b, e in cuts]
        return [(_project_heads(node, t, i), LAYOUT_BSHD) for i, t in enumerate(slices)]
    if node.rank(0) == 5:
        unpacked = (op.take(node.expr(0), const(i, "int64"), axis=3) for i in range(3))
        return [(p, LAYOUT_BSHD) for p in unpacked]
    query = (_project_heads(node, node.expr(0), 0), LAYOUT_BSHD)
    if node.rank(1) == 5:
        unpacked = (op.take(node.expr(1), const(i, "int64"), axis=3) for i in range(2))
        return [query, *((p, LAYOUT_BSHD) for p in unpacked)]
    return [query, *(_read_key_or_value(node, i) for i in (1, 2))]


def _read_key_or_value(node: OnnxNode, index: int) -> tuple[Expr, str]:
    """Return a key or value with its layout: [batch, length, width], or head-first as in a
    cache.
    """
    if node.rank(index) == 4:
        return node.expr(index), LAYOUT_BHSD
    return _project_heads(node, node.expr(index), index), LAYOUT_BSHD


def _project_heads(node: OnnxNode, data: Expr, index: int) -> Expr:
    """Add the query, key or value part of the bias (input 3), and split into heads."""
    heads = node.get_int("num_heads")
    if node.optional_value(3) is not None:
        width = known_int(node.shape(0)[2])
        end = known_int(node.shape(3)[0])
        if width is None or end is None:
            node.reject("the widths of 'query' and 'bias' must be constant")
        # The bias is [query | key | value]; value may have another width than the others.
        cuts = (0, width, 2 * width, end)
        bias_slice = op.strided_slice(
            node.expr(3), begin=[cuts[index]], end=[cuts[index + 1]], axes=[0]
        )
        data = op.add(data, bias_slice)
    return _split_heads(node, data, heads)


def _multi_head_attention(node: OnnxNode) -> Result:
    """Convert MultiHeadAttention, with past keys and values ahead of the new ones. With
    `past_sequence_length`, `past_key` is a buffer with room after that many keys, which the new
    ones fill.
    """
    heads = node.get_int("num_heads")
    if heads < 1:
        node.reject(f"attribute 'num_heads' must be at least 1, got {heads}")
    qkv = _unpack_qkv(node, heads)
    (q, _), (k, k_layout), (v, v_layout) = qkv
    new = node.tensor_type_of(k).shape[k_layout.index("s")]
    if (node.optional_value(6) is None) != (node.optional_value(7) is None):
        node.reject("'past_key' and 'past_value' must come together")
    present: list[Expr] = []
    if node.optional_value(6) is not None or node.is_output_used(1) or node.is_output_used(2):
        k, v = (
            t if layout == LAYOUT_BHSD else _swap_heads_axis(t)
            for t, layout in ((k, k_layout), (v, v_layout))
        )
        k_layout = v_layout = LAYOUT_BHSD
        if node.optional_value(6) is not None:
            room = None
            if node.optional_value(8) is not None:
                room = _new_key_range(node, 8, node.shape(6)[2], new)
                present = [
                    _write_to_buffer(node, node.expr(i), t, room) for i, t in ((6, k), (7, v))
                ]
            k, v = (_concat_past(node, i, t, room) for i, t in ((6, k), (7, v)))
    batch, rows = node.tensor_type_of(q).shape[:2]
    keys = node.tensor_type_of(k).shape[k_layout.index("s")]
    scores = _score_modifiers(node, 4, 5, (batch, rows, new, keys))
    layouts = (LAYOUT_BSHD, k_layout, v_layout)
    attended = _emit_attention(node, q, k, v, layouts, scores)
    qk = _attention_scores(node, q, k, layouts, scores) if node.is_output_used(3) else None
    return [attended, *(present or (k, v)), qk]


@dataclass(frozen=True, slots=True)
class _NewKeyRange:
    """Range of a key buffer that new keys occupy, in keys."""

    begin: PrimExpr
    end: PrimExpr


def _new_key_range(node: OnnxNode, index: int, length: PrimExpr, new: PrimExpr) -> _NewKeyRange:
    """Return the range that new keys occupy in a buffer of this length; input `index` holds the
    number of past keys. The program raises at run time where the buffer is too short.
    """
    begin = as_dim(node.dims(index, "past_sequence_length", 1)[0])
    end = simplify_dim(begin + new)
    node.scope.require_condition(
        fold_binary(LE, end, length), " (the past has no room for the new keys)"
    )
    return _NewKeyRange(begin, end)


def _slice_filled_part(buffer: Expr, room: _NewKeyRange | None) -> Expr:
    """Slice the filled part of a key or value buffer; the whole buffer if there is no spare
    room.
    """
    if room is None:
        return buffer
    return op.strided_slice(buffer, begin=[0], end=[room.begin], axes=[2])


def _write_to_buffer(node: OnnxNode, buffer: Expr, new: Expr, room: _NewKeyRange) -> Expr:
    """Emit a buffer with the new keys or values written after the past ones."""
    shape = node.tensor_type_of(buffer).shape
    behind = op.strided_slice(buffer, begin=[room.end], end=[shape[2]], axes=[2])
    filled = op.concatenate([_slice_filled_part(buffer, room), new, behind], axis=2)
    # The concatenation's extent is begin + new + rest, which the solver need not prove equal to the
    # buffer's.
    return op.reshape(filled, shape, allowzero=True)


def _concat_past(node: OnnxNode, index: int, new: Expr, room: _NewKeyRange | None) -> Expr:
    """Emit past and new keys or values, concatenated; `cache_indirection` [batch, beams, positions]
    selects for each past key the beam of its batch that it comes from.
    """
    past = _slice_filled_part(node.expr(index), room)
    if node.optional_value(9) is not None:
        batch, heads, length, depth = node.tensor_type_of(past).shape
        groups, beams, _ = node.shape(9)
        node.scope.require_equal_dims((batch,), (simplify_dim(groups * beams),))
        chosen = op.strided_slice(node.expr(9), begin=[0], end=[length], axes=[2])
        first = op.arange(0, groups, 1, dtype="int32")
        first = op.multiply(first, op.cast(node.scope.emit_dim(beams), "int32"))
        rows = op.add(chosen, op.reshape(first, (groups, 1, 1)))
        rows = op.reshape(rows, (batch, 1, length, 1), allowzero=True)
        past = op.gather(past, 0, op.broadcast_to(rows, (batch, heads, length, depth)))
    return op.concatenate([past, new], axis=2)


def _attention_scores(
    node: OnnxNode, q: Expr, k: Expr, layouts: Sequence[str], scores: ScoreModifiers
) -> Expr:
    """Emit the scores before the softmax, [batch, heads, queries, keys]."""
    if scores.causal:
        node.reject("output 3 (the scores) of an attention with a triangle is not supported")
    keys = layouts[1].replace("s", "t")
    products: Expr = op.einsum((q, k), f"{layouts[0]},{keys}->bhst")
    scale = node.get_float("scale", 0.0)
    depth = known_int(node.tensor_type_of(q).shape[layouts[0].index("d")])
    if not scale and depth is None:
        node.reject("the depth of a head must be constant")
    factor = scale or float(depth or 1) ** -0.5
    products = op.multiply(products, const(factor, node.tensor_type_of(products).dtype))
    return products if scores.bias is None else op.add(products, scores.bias)


def _decoder_masked_attention(node: OnnxNode) -> Result:
    """Convert DecoderMaskedMultiHeadAttention, one decoding step, as MultiHeadAttention."""
    # The input order of MultiHeadAttention: query, key, value, bias, masks, past, past length,
    # indirection.
    order = (0, 1, 2, 10, 3, 4, 5, 6, 7, 9)
    if node.optional_value(8) is not None and node.optional_value(9) is not None:
        beams = as_dim(node.dims(8, "beam_width", 1)[0])
        node.scope.require_equal_dims((beams,), node.shape(9)[1:2])
    share = bool(node.get_int("past_present_share_buffer", 0))
    if share != (node.optional_value(7) is not None) and node.optional_value(5) is not None:
        node.reject("'past_sequence_length' must be there where the past has room behind it")
    return _multi_head_attention(node.with_inputs([node.optional_value(i) for i in order]))


# Rotary positions.


def apply_rotary_embedding(
    node: OnnxNode, data: Expr, cos: Expr, sin: Expr, interleaved: bool
) -> Expr:
    """Emit rotary position embedding (Su et al. 2021) of data [batch, length, heads, depth], with
    the angles' cosines and sines [batch, length, depth / 2], or fewer: further columns are
    unchanged.

    Args:
        node: the node.
        data: queries or keys.
        cos: cosines of the angles.
        sin: sines of the angles.
        interleaved: whether pairs are adjacent columns rather than halves.
    """
    depth = known_int(node.tensor_type_of(data).shape[3])
    half = known_int(node.tensor_type_of(cos).shape[-1])
    if depth is None or half is None:
        node.reject("the depth of a head must be constant")
    cos, sin = (
        op.cast(op.expand_dims(t, axis=2), node.tensor_type_of(data).dtype) for t in (cos, sin)
    )
    rotary_part = _slice_depth(data, 0, 2 * half)
    if interleaved:
        real, imaginary = (_slice_depth(rotary_part, position, 2 * half, 2) for position in (0, 1))
    else:
        real, imaginary = (
            _slice_depth(rotary_part, 0, half),
            _slice_depth(rotary_part, half, 2 * half),
        )
    rotated_real = op.subtract(op.multiply(real, cos), op.multiply(imaginary, sin))
    rotated_imaginary = op.add(op.multiply(real, sin), op.multiply(imaginary, cos))
    if interleaved:
        embedded: Expr = op.stack([rotated_real, rotated_imaginary], axis=4)
        embedded = op.reshape(embedded, node.tensor_type_of(rotary_part).shape, allowzero=True)
    else:
        embedded = op.concatenate([rotated_real, rotated_imaginary], axis=3)
    if 2 * half == depth:
        return embedded
    return op.concatenate([embedded, _slice_depth(data, 2 * half, depth)], axis=3)


def _slice_depth(data: Expr, begin: int, end: int, step: int = 1) -> Expr:
    """Emit a slice of the last axis."""
    return op.strided_slice(data, begin=[begin], end=[end], strides=[step], axes=[3])


def _rotary_embedding(node: OnnxNode) -> Expr:
    """Convert RotaryEmbedding."""
    data, heads = node.expr(0), node.get_int("num_heads", 0)
    is_first = node.rank(0) == 4
    if is_first:
        data = _swap_heads_axis(data)
    else:
        if not heads:
            depth = node.get_int("rotary_embedding_dim", 0) or 2 * (
                known_int(node.shape(2)[1]) or 0
            )
            heads = (known_int(node.shape(0)[2]) or 0) // max(depth, 1)
        data = _split_heads(node, data, max(heads, 1))
    length = node.tensor_type_of(data).shape[1]
    positions = node.expr(1)
    # A scalar position is the offset of the first row; the rest follow.
    if node.rank(1) == 1:
        steps = op.arange(0, length, 1, dtype="int64")
        positions = op.expand_dims(op.add(steps, op.reshape(positions, ())), axis=0)
    cos, sin = (op.take(node.expr(i), positions, axis=0, mode="raise") for i in (2, 3))
    embedded = apply_rotary_embedding(node, data, cos, sin, bool(node.get_int("interleaved", 0)))
    if is_first:
        return _swap_heads_axis(embedded)
    return op.reshape(embedded, node.shape(0), allowzero=True)


# Groups of queries that share keys, with a cache.


@dataclass(frozen=True, slots=True)
class _KeyCacheLayout:
    """The key cache layout of grouped-query attention: past lengths, total lengths, rows and
    capacity.

    before: [batch], how many keys each sequence has had; lengths: [batch], how many it has
    including the new ones, of which the rest of a shorter prompt is padding; rows: how many are
    new; total: the capacity in keys.
    """

    past_lengths: Expr
    lengths: Expr
    rows: PrimExpr
    total: PrimExpr


def _key_cache_layout(node: OnnxNode, batch: PrimExpr, rows: PrimExpr) -> _KeyCacheLayout:
    """Return the cache layout: a prompt begins at 0, later calls after the previous keys."""
    # Input 5, seqlens_k, is the length less 1.
    lengths = op.add(op.reshape(node.expr(5), (batch,)), const(1, "int32"))
    total_length = as_dim(node.dims(6, "total_sequence_length")[0])
    total = rows if node.optional_value(3) is None else maximum(node.shape(3)[2], total_length)
    count = node.scope.emit_dim(total_length)
    is_first = op.equal(op.cast(count, "int64"), node.scope.emit_dim(rows))
    later = op.subtract(lengths, _int32_dim(node, rows))
    before = op.where(is_first, const(0, "int32"), later)
    return _KeyCacheLayout(op.reshape(before, (batch,)), lengths, rows, total)


def _update_cache(node: OnnxNode, past: int, new: Expr, cache: _KeyCacheLayout) -> Expr:
    """Emit the updated cache [batch, heads, total, depth], with `new` written from each sequence's
    length on.
    """
    if node.optional_value(past) is None:
        return new
    batch, heads, _, depth = node.tensor_type_of(new).shape
    shape = (batch, heads, cache.total, depth)
    positions = op.reshape(op.arange(0, cache.total, 1, dtype="int32"), (1, 1, cache.total, 1))
    position = op.subtract(positions, op.reshape(cache.past_lengths, (batch, 1, 1, 1)))
    zero, rows = const(0, "int32"), _int32_dim(node, cache.rows)
    # Indices are clamped before the gather, as out-of-range elements are masked only after it.
    inside = op.minimum(op.maximum(position, zero), op.subtract(rows, const(1, "int32")))
    fresh = op.gather(new, 2, op.broadcast_to(inside, shape))
    # with a place of zeros behind it, which is looked at where nothing was kept
    widths = [(0, 0), (0, 0), (0, 1), (0, 0)]
    padded_past = op.nn.pad(node.expr(past), widths, const(0.0, node.dtype(past)))
    past_length = _int32_dim(node, node.shape(past)[2])
    past_index = op.where(op.less(position, zero), op.minimum(positions, past_length), past_length)
    old = op.gather(padded_past, 2, op.broadcast_to(past_index, shape))
    is_new = op.logical_and(op.greater_equal(position, zero), op.less(position, rows))
    return op.where(is_new, fresh, old)


def _int32_dim(node: OnnxNode, dim: PrimExpr) -> Expr:
    """Emit a dimension as an int32 scalar."""
    return op.cast(node.scope.emit_dim(dim), "int32")


def _grouped_query_mask(node: OnnxNode, cache: _KeyCacheLayout, batch: PrimExpr) -> Expr:
    """Emit the mask [batch, 1, rows, total]: causal, within the local window, and without
    padding.
    """
    key = op.reshape(op.arange(0, cache.total, 1, dtype="int32"), (1, 1, 1, cache.total))
    row = op.reshape(op.arange(0, cache.rows, 1, dtype="int32"), (1, 1, cache.rows, 1))
    # The position of a query is its row behind the keys that its sequence already has.
    query_position = op.add(row, op.reshape(cache.past_lengths, (batch, 1, 1, 1)))
    is_visible: Expr = op.less_equal(key, query_position)
    window = node.get_int("local_window_size", -1)
    if window >= 0:
        near = op.greater(key, op.subtract(query_position, const(window, "int32")))
        is_visible = op.logical_and(is_visible, near)
    is_there = op.less(key, op.reshape(cache.lengths, (batch, 1, 1, 1)))
    if node.get_int("causal", 1):
        is_visible = op.logical_and(is_visible, is_there)
    else:
        is_visible = op.broadcast_to(is_there, (batch, 1, cache.rows, cache.total))
    return op.where(is_visible, const(0.0, "float32"), const(_MIN_FLOAT32, "float32"))


def _split_query_key_value(node: OnnxNode) -> tuple[Expr, Expr, Expr]:
    """Return query, key and value, split into heads; packed ones are slices of input 0."""
    query_heads, kv_heads = node.get_int("num_heads"), node.get_int("kv_num_heads")
    if node.optional_value(1) is not None:
        return (
            _split_heads(node, node.expr(0), query_heads),
            _split_heads(node, node.expr(1), kv_heads),
            _split_heads(node, node.expr(2), kv_heads),
        )
    packed = _split_heads(node, node.expr(0), query_heads + 2 * kv_heads)
    cuts = (0, query_heads, query_heads + kv_heads, query_heads + 2 * kv_heads)
    q, k, v = (op.strided_slice(packed, begin=[b], end=[e], axes=[2]) for b, e in pairwise(cuts))
    return q, k, v


def _group_query_attention(node: OnnxNode) -> Result:
    """Convert GroupQueryAttention."""
    for index, what in ((12, "k_scale"), (13, "v_scale")):
        if node.optional_value(index) is not None:
            node.reject(f"input {index} ({what!r}) is not supported")
    if node.is_output_used(3):
        node.reject("output 3 (the scores) is not supported")
    q, k, v = _split_query_key_value(node)
    batch, rows = node.tensor_type_of(q).shape[:2]
    cache = _key_cache_layout(node, batch, rows)
    # Per-head RMS normalisation of query and key comes before the rotation.
    if node.optional_value(14) is not None:
        epsilon = node.get_float("qk_norm_epsilon", np.float32(1e-6))
        q, k = (rms_normalize(node, t, node.expr(i), epsilon) for t, i in ((q, 14), (k, 15)))
    if node.get_int("do_rotary", 0):
        cos, sin = _rotary_cos_sin(node, cache)
        is_interleaved = bool(node.get_int("rotary_interleaved", 0))
        q, k = (apply_rotary_embedding(node, t, cos, sin, is_interleaved) for t in (q, k))
    keys, values = (_update_cache(node, i, _swap_heads_axis(t), cache) for i, t in ((3, k), (4, v)))
    scores = ScoreModifiers(softcap=node.get_float("softcap", 0.0)).with_bias(
        _grouped_query_mask(node, cache, batch)
    )
    if node.optional_value(10) is not None:
        scores = scores.with_bias(op.cast(node.expr(10), "float32"))
    sides = (keys, values)
    if node.optional_value(11) is not None or node.get_int("smooth_softmax", 0):
        sides = (_append_zero_key(node, keys), _append_zero_key(node, values))
        scores = replace(scores, bias=_append_sink_score(node, scores.bias, batch))
    attended = _emit_attention(node, q, *sides, (LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_BHSD), scores)
    return [attended, keys, values]


def _append_zero_key(node: OnnxNode, data: Expr) -> Expr:
    """Emit a key or value of zeros appended to [batch, heads, total, depth]."""
    return op.nn.pad(
        data, [(0, 0), (0, 0), (0, 1), (0, 0)], const(0.0, node.tensor_type_of(data).dtype)
    )


def _append_sink_score(node: OnnxNode, bias: Expr | None, batch: PrimExpr) -> Expr:
    """Emit the bias with a column for the attention sink, whose score is 0 (smooth softmax) or per
    head.
    """
    # softmax with a sink: exp(s_i) / (exp(sink) + sum exp(s_j)), as one more key whose value is 0.
    assert bias is not None
    heads = node.get_int("num_heads")
    rows, total = node.tensor_type_of(bias).shape[2:]
    score: Expr = const(np.zeros(heads, np.float32))
    if node.optional_value(11) is not None:
        score = op.cast(node.expr(11), "float32")
    sink = op.broadcast_to(op.reshape(score, (1, heads, 1, 1)), (batch, heads, rows, 1))
    return op.concatenate([op.broadcast_to(bias, (batch, heads, rows, total)), sink], axis=3)


def _rotary_cos_sin(node: OnnxNode, cache: _KeyCacheLayout) -> list[Expr]:
    """Emit the cosines and sines at each row's position."""
    if node.optional_value(9) is not None:
        positions = node.expr(9)
    else:
        steps = op.expand_dims(op.arange(0, cache.rows, 1, dtype="int32"), axis=0)
        positions = op.add(steps, op.expand_dims(cache.past_lengths, axis=1))
    return [op.take(node.expr(i), positions, axis=0, mode="raise") for i in (7, 8)]


_COMMON_ATTRIBUTES = "mask_filter_value num_heads scale unidirectional"
_UNSUPPORTED_OPTIONS = {"do_rotary": (0,), "past_present_share_buffer": (0,)}

# fmt: off
ROWS = (
    OnnxRow("Attention",           _attention, domain=CONTRIB_DOMAIN,
        supported_values={"do_rotary": (0,)},
        ignorable_inputs="past_sequence_length",
        attributes=f"{_COMMON_ATTRIBUTES} do_rotary past_present_share_buffer qkv_hidden_sizes "
        "rotary_embedding_dim"),
    OnnxRow("QAttention",          _q_attention, domain=CONTRIB_DOMAIN,
        supported_values=_UNSUPPORTED_OPTIONS,
        attributes=f"{_COMMON_ATTRIBUTES} do_rotary past_present_share_buffer"),
    OnnxRow("MultiHeadAttention",  _multi_head_attention, domain=CONTRIB_DOMAIN,
        attributes=_COMMON_ATTRIBUTES),
    OnnxRow("DecoderMaskedMultiHeadAttention", _decoder_masked_attention, domain=CONTRIB_DOMAIN,
        attributes="mask_filter_value num_heads output_qk past_present_share_buffer scale"),
    OnnxRow("RotaryEmbedding",     _rotary_embedding, domain=CONTRIB_DOMAIN,
        supported_values={"is_packed_batching": (0,), "scale": (1.0,)},
        attributes="interleaved is_packed_batching num_heads rotary_embedding_dim scale"),
    OnnxRow("GroupQueryAttention", _group_query_attention, domain=CONTRIB_DOMAIN,
        supported_values={"kv_cache_bit_width": (0,), "qk_output": (0,),
                "k_quant_type": ("NONE",), "v_quant_type": ("NONE",), "sliding_window_cache": (0,)},
        attributes="causal do_rotary k_quant_type kv_cache_bit_width kv_num_heads local_window_size"
        " num_heads qk_norm_epsilon qk_output rotary_interleaved scale sliding_window_cache"
        " smooth_softmax softcap v_quant_type"),
)
# fmt: on
