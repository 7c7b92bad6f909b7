"""Decompositions of PyTorch's fused transformer operators.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call them where no gradient is wanted;
meanings after aten/src/ATen/native/transformers (PyTorch 2).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

PAIRS, KEYS, WHOLE = 0, 1, 2
"""What a mask is of: (queries, keys), (batch, keys), (batch, heads, queries, keys)."""


def _mask_scores(scores: Tensor, mask: Tensor | None, mask_type: int | None) -> Tensor:
    """Return scores [batch, heads, queries, keys] with -inf where a mask is set."""
    if mask is None:
        return scores
    hidden = mask.to(torch.bool)
    if mask_type == KEYS:
        # (batch, keys) broadcasts over heads and queries.
        hidden = hidden[:, None, None, :]
    return scores.masked_fill(hidden, float("-inf"))


def _qkv_projections(
    sources: tuple[Tensor, Tensor, Tensor], weight: Tensor, bias: Tensor
) -> tuple[Tensor, ...]:
    """Return queries, keys and values; one product where all three come from the same tensor."""
    query, key, value = sources
    if query is key is value:
        return F.linear(query, weight, bias).chunk(3, -1)
    projections = zip(sources, weight.chunk(3), bias.chunk(3), strict=True)
    return tuple(F.linear(x, w, b) for x, w, b in projections)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `aten::_native_multi_head_attention`: [batch, queries, embed_dim], and the attention
    weights.

    The weights are of all heads or their mean; without elements if `need_weights` is false.
    """
    batch, size = query.shape[0], embed_dim // num_head
    q, k, v = (
        x.reshape(batch, -1, num_head, size).transpose(1, 2)
        for x in _qkv_projections((query, key, value), qkv_weight, qkv_bias)
    )
    # As in ATen the query is scaled, not the scores.
    scores = _mask_scores(torch.matmul(q * size**-0.5, k.transpose(2, 3)), mask, mask_type)
    weights = torch.softmax(scores, -1)
    joined = torch.matmul(weights, v).transpose(1, 2).reshape(batch, -1, embed_dim)
    projected = F.linear(joined, proj_weight, proj_bias)
    if not need_weights:
        return projected, query.new_empty((0,))
    return projected, weights.mean(1) if average_attn_weights else weights


def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Return `aten::_transformer_encoder_layer_fwd`: self-attention and a two-layer MLP.

    Each has a residual connection and a layer normalisation before it (`norm_first`) or after.
    """

    def self_attention(x: Tensor) -> Tensor:
        """Return the self-attention of a sequence under the layer's mask."""
        attended, _ = multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias,
            mask, need_weights=False, mask_type=mask_type,
        )  # fmt: skip
        return attended

    def feed_forward(x: Tensor) -> Tensor:
        """Return the feed-forward block: two linear layers with an activation between."""
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        inner = F.gelu(inner) if use_gelu else F.relu(inner)
        return F.linear(inner, ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        """Normalise before, or after, the attention."""
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        """Normalise before, or after, the linear layers."""
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        inside = src + self_attention(norm_1(src))
        return inside + feed_forward(norm_2(inside))
    inside = norm_1(src + self_attention(src))
    return norm_2(inside + feed_forward(inside))


__all__ = ["multi_head_attention", "transformer_encoder_layer"]
