"""Multi-head latent attention (MLA): queries, keys and values through products of low rank.

A key is a part without a position, made of the latent vector of its token, and a part that turns
and that all heads share. The cache holds keys and values as the heads see them, values padded to
the length of keys; it is that of other families, and not the smaller one of latent vectors.

Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekiden.llm.decoder_config import DecoderConfig
from ekiden.llm.decoder_layers import DecoderLayers, slice_axis
from ekiden.relay import op
from ekiden.relay.expr import Expr, Var, const

__all__ = ["latent_projections"]

LATENT_NORM_EPSILON = 1e-6
"""Of the norms of latent vectors, whatever the configuration says of others."""


def latent_projections(
    x: Expr, prefix: str, config: DecoderConfig, layers: DecoderLayers,
    bind: Callable[[str, Expr], Var], rotate: Callable[[Expr], Expr],
) -> Expr:  # fmt: skip
    """Return queries, keys and values of tokens.

    Args:
        x: Tokens [n, hidden], normalised.
        prefix: What the names of the layer's attention begin with.
        config: The configuration, which has latent vectors.
        layers: The tensors.
        bind: Binds a value to a new variable of a name.
        rotate: Turns [n, heads, parts of a head that turn] by the positions.

    Returns:
        [n, 3 * heads, depth].

    Raises:
        ImportModelError: A tensor is missing, or has another shape.
    """
    latent = config.latent
    assert latent is not None
    heads, unrotated_depth, depth = config.heads, config.depth - latent.rope_depth, config.depth
    # Smaller models (DeepSeek-V2-Lite) project queries directly, without a latent vector.
    if latent.query_rank:
        low = layers.linear(x, [prefix + "q_a_proj"], latent.query_rank, config.hidden, False)
        low = layers.norm(low, prefix + "q_a_layernorm", (latent.query_rank,), LATENT_NORM_EPSILON)
        query = layers.linear(low, [prefix + "q_b_proj"], heads * depth, latent.query_rank, False)
    else:
        query = layers.linear(x, [prefix + "q_proj"], heads * depth, config.hidden, False)
    query = bind("query", op.reshape(query, (-1, heads, depth)))
    rotated = rotate(bind("turning", slice_axis(query, unrotated_depth, depth, 2)))
    query = op.concatenate([slice_axis(query, 0, unrotated_depth, 2), rotated], axis=2)

    rank = latent.key_rank
    both = bind(
        "latent",
        layers.linear(
            x, [prefix + "kv_a_proj_with_mqa"], rank + latent.rope_depth, config.hidden, False
        ),
    )
    low = layers.norm(
        slice_axis(both, 0, rank, 1), prefix + "kv_a_layernorm", (rank,), LATENT_NORM_EPSILON
    )
    rows = heads * (unrotated_depth + latent.value)
    expanded = layers.linear(low, [prefix + "kv_b_proj"], rows, rank, False)
    expanded = bind("expanded", op.reshape(expanded, (-1, heads, unrotated_depth + latent.value)))
    # All heads share one rotated key for each token, as in multi-query attention.
    shared = op.reshape(
        slice_axis(both, rank, rank + latent.rope_depth, 1), (-1, 1, latent.rope_depth)
    )
    # The product with ones broadcasts the shared key to all heads.
    turned_key = op.multiply(
        rotate(bind("turning", shared)), const(np.ones((1, heads, 1), np.float32))
    )
    key = op.concatenate([slice_axis(expanded, 0, unrotated_depth, 2), turned_key], axis=2)
    value = slice_axis(expanded, unrotated_depth, unrotated_depth + latent.value, 2)
    # Queries, keys and values share one tensor, so the values get the depth of the keys.
    if latent.value < depth:
        value = op.nn.pad(value, ((0, 0), (0, 0), (0, depth - latent.value)))
    return op.concatenate([query, key, value], axis=1)
