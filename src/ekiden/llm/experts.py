"""Mixture-of-experts (MoE) layers: a router chooses a few MLPs for each token, and only those are
read.

An expert that no token of a call has chosen is skipped by a branch, so that a step of decoding
reads the weights of the chosen ones alone; the tokens of another are gathered, go through it in one
product, and are added where they came from.

Source: Jiang and others, "Mixtral of Experts" (2024); DeepSeek-AI, "DeepSeek-V3" (2024) for groups,
shared experts and biases of the choice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekiden.llm.decoder_architecture import ExpertNames
from ekiden.llm.decoder_config import DecoderConfig, ExpertConfig
from ekiden.llm.decoder_layers import (
    ACTIVATION_FUNCTIONS,
    DecoderLayers,
    gated_product,
    slice_axis,
)
from ekiden.relay import op
from ekiden.relay.expr import Expr, If, Var, const

__all__ = ["mixture_of_experts"]

Bind = Callable[[str, Expr], Var]
"""Binds a value to a new variable of a name."""


def mixture_of_experts(
    x: Var, prefix: str, config: DecoderConfig, layers: DecoderLayers, bind: Bind
) -> Expr:
    """Emit the weighted sum of the routed experts' results, plus the shared expert's.

    Args:
        x: Tokens [n, hidden], normalised.
        prefix: What the names of the layer's tensors begin with.
        config: The configuration, which has experts.
        layers: The tensors.
        bind: Binds a value to a variable.

    Returns:
        [n, hidden].

    Raises:
        ImportModelError: A tensor is missing, or has another shape.
    """
    experts = config.experts
    assert experts is not None
    names = experts.names
    shares, chosen = _route_tokens(x, prefix, config, layers, bind)
    numbers = const(np.arange(experts.count, dtype=np.int32))
    is_hit = bind("hit", op.any(op.equal(op.reshape(chosen, (-1, 1)), numbers), axis=[0]))
    mixed = bind("mixed", op.multiply(x, const(np.float32(0))))
    for e in range(experts.count):
        is_needed = op.reshape(op.strided_slice(is_hit, [e], [e + 1], axes=[0]), ())
        is_chosen = op.equal(chosen, const(np.int32(e)))
        token_indices = op.strided_slice(op.argwhere(is_chosen), [0], [1], axes=[1])
        rows = op.reshape(token_indices, (-1,))
        # A token chooses an expert once, so this is its share.
        share = op.sum(op.where(is_chosen, shares, const(np.float32(0))), axis=[1], keepdims=True)
        expert_output = _gated_mlp(
            op.take(x, rows, axis=0), prefix + names.expert.format(e), names, experts.inner, config,
            layers,
        )  # fmt: skip
        added = op.scatter_nd(
            mixed, op.reshape(token_indices, (1, -1)),
            op.multiply(expert_output, op.take(share, rows, axis=0)), mode="add",
        )  # fmt: skip
        mixed = bind("mixed", If(is_needed, added, mixed))
    if not experts.shared_inner:
        return mixed
    shared = _gated_mlp(x, f"{prefix}{names.shared}.", names, experts.shared_inner, config, layers)
    if names.shared_gate:
        gate = layers.linear(x, [prefix + names.shared_gate], 1, config.hidden, False)
        shared = op.multiply(shared, op.sigmoid(gate))
    return op.add(mixed, shared)


def _route_tokens(
    x: Var, prefix: str, config: DecoderConfig, layers: DecoderLayers, bind: Bind
) -> tuple[Var, Var]:
    """Return the routing weights float32 [n, k] and the expert indices int32 [n, k] of each
    token.
    """
    experts = config.experts
    assert experts is not None
    router = [prefix + experts.names.router]
    logits = layers.linear(x, router, experts.count, config.hidden, experts.biased)
    is_sigmoid = experts.scoring == "sigmoid"
    scores = bind("scores", op.sigmoid(logits) if is_sigmoid else op.nn.softmax(logits, axis=-1))
    choice: Expr = scores
    if experts.names.correction:
        correction = layers.read_vector(prefix + experts.names.correction, experts.count)
        choice = op.add(choice, const(correction))
    if experts.groups > experts.chosen_groups:
        choice = _mask_outside_top_groups(bind("choice", choice), experts, bind)
    chosen = bind("chosen", op.topk(choice, experts.chosen, axis=1, ret_type="indices"))
    shares: Expr = op.gather(scores, 1, chosen)
    if experts.normalised:
        shares = bind("shares", shares)
        shares = op.divide(shares, op.sum(shares, axis=[1], keepdims=True))
    if experts.factor != 1.0:
        shares = op.multiply(shares, const(np.float32(experts.factor)))
    return bind("shares", shares), chosen


def _mask_outside_top_groups(choice: Var, experts: ExpertConfig, bind: Bind) -> Expr:
    """Return scores [n, experts] with -inf outside each token's top expert groups (group-limited
    routing).
    """
    by_group = op.reshape(choice, (-1, experts.groups, experts.count // experts.groups))
    best = op.topk(by_group, experts.scores_of_group, axis=2, ret_type="values")
    group_scores = op.sum(best, axis=[2])
    groups = bind(
        "groups", op.topk(group_scores, experts.chosen_groups, axis=1, ret_type="indices")
    )
    numbers = np.arange(experts.count, dtype=np.int32) // (experts.count // experts.groups)
    same = op.equal(op.expand_dims(groups, axis=2), const(numbers))
    return op.where(op.any(same, axis=[1]), choice, const(np.float32(-np.inf)))


def _gated_mlp(
    x: Expr, prefix: str, names: ExpertNames, inner: int, config: DecoderConfig,
    layers: DecoderLayers,
) -> Expr:  # fmt: skip
    """Emit an expert's gated MLP for tokens [m, hidden]."""
    experts = config.experts
    assert experts is not None
    up = layers.linear(
        x, [prefix + name for name in names.up], 2 * inner, config.hidden, experts.biased,
        is_adapted=False,
    )  # fmt: skip
    if experts.limit:
        product = _clamped_swiglu(up, inner, experts.limit, experts.slope)
    else:
        product = gated_product(up, ACTIVATION_FUNCTIONS[config.activation], inner)
    return layers.linear(
        product, [prefix + names.down], config.hidden, inner, experts.biased, is_adapted=False
    )


def _clamped_swiglu(both: Expr, inner: int, limit: float, slope: float) -> Expr:
    """Return clamped SwiGLU, g * sigmoid(slope * g) * (u + 1), of the halves g (at most the limit)
    and u (within it) of [n, 2 * inner] (OpenAI, "gpt-oss", 2025).
    """
    bound = const(np.float32(limit))
    gate = op.minimum(slice_axis(both, 0, inner, 1), bound)
    up = op.clip(slice_axis(both, inner, 2 * inner, 1), -limit, limit)
    activated = op.multiply(gate, op.sigmoid(op.multiply(gate, const(np.float32(slope)))))
    return op.multiply(op.add(up, const(np.float32(1))), activated)
