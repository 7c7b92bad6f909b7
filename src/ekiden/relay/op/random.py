"""Random number operators over an explicit generator state (see ekiden.topi.random)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array
from ekiden.relay.expr import Call, Constant, Expr, const
from ekiden.relay.op._declare import call_op, check_range
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.topi.dimensions import Dim, Dims, as_shape, to_attr_dims
from ekiden.topi.random import threefry_key as key_words


@node("relay.attrs.ThreefryGenerateAttrs")
class ThreefryGenerateAttrs(Attrs):
    """Attributes of threefry_generate: the output shape."""

    out_shape: Dims = ()


@node("relay.attrs.UniformAttrs")
class UniformAttrs(Attrs):
    """Attributes of uniform: output shape and dtype."""

    out_shape: Dims = ()
    out_dtype: str = "float32"


@node("relay.attrs.NormalAttrs")
class NormalAttrs(Attrs):
    """Attributes of normal: output shape and dtype."""

    out_shape: Dims = ()
    out_dtype: str = "float32"


@node("relay.attrs.MultinomialAttrs")
class MultinomialAttrs(Attrs):
    """Attributes of multinomial: the number of samples."""

    num_samples: Dim = 1


declare_topi_op("random.threefry_generate", ("key",),
        lambda attrs, key: topi.random.threefry_generate(key, as_shape(attrs.out_shape)),
        "a tuple: the generator afterwards, uint64 of `out_shape`", ThreefryGenerateAttrs,
        fields=2)  # fmt: skip
declare_topi_op(
    "random.threefry_split",
    ("key",),
    lambda attrs, key: topi.random.threefry_split(key),
    "a tuple of two generators",
    fields=2,
)
declare_topi_op(
    "random.uniform",
    ("key", "low", "high"),
    lambda attrs, key, low, high: topi.random.uniform(
        key, low, high, as_shape(attrs.out_shape), attrs.out_dtype
    ),
    "a tuple: the generator afterwards, `out_dtype` of `out_shape`",
    UniformAttrs,
    fields=2,
)
declare_topi_op(
    "random.normal",
    ("key", "mean", "scale"),
    lambda attrs, key, mean, scale: topi.random.normal(
        key, mean, scale, as_shape(attrs.out_shape), attrs.out_dtype
    ),
    "a tuple: the generator afterwards, `out_dtype` of `out_shape`",
    NormalAttrs,
    fields=2,
)
declare_topi_op(
    "random.multinomial",
    ("key", "probs"),
    lambda attrs, key, probs: topi.random.multinomial(key, probs, attrs.num_samples),
    "a tuple: the generator afterwards, int32 of the shape of probs with `num_samples` last",
    MultinomialAttrs,
    fields=2,
)


def _constrain_reference(
    attrs: Attrs | None, logits: Array, history: Array, rows: Array, lengths: Array,
    penalties: Array, moves: Array, states: Array,
) -> Array:  # fmt: skip
    constrained = logits.copy()
    if not constrained.size:
        return constrained
    check_range("constrain: row", rows, (0, len(history)))
    check_range("constrain: length", lengths, (0, history.shape[1] + 1))
    check_range("constrain: state", states, (-(2**31), len(moves)))
    for n, out in enumerate(constrained):
        # The repetition penalty counts each token once, however often it occurred.
        past = np.unique(history[rows[n], : lengths[n]])
        # Numbers outside the vocabulary are no tokens, and have no logit.
        past = past[(past >= 0) & (past < len(out))]
        # A penalty of 1 leaves the bits as they are.
        if penalties[n] != 1:
            by = penalties[n]
            # A penalty above 1 makes every logit smaller: dividing would make negative ones larger.
            out[past] = np.where(out[past] > 0, out[past] / by, out[past] * by)
        # A negative state marks a row that no grammar constrains.
        if states[n] >= 0:
            out[moves[states[n]] < 0] = -np.inf
    return constrained


declare_topi_op(
    "random.contrib_constrain",
    ("logits", "history", "rows", "lengths", "penalties", "moves", "states"),
    lambda attrs, *operands: topi.sampling.constrain_logits(*operands),
    "logits [n, tokens], those of tokens that came before smaller and those that an automaton does"
    " not take -inf",
    reference=_constrain_reference,
    refuses=True,
)
declare_topi_op(
    "random.contrib_draw",
    ("weights", "settings", "seeds", "places"),
    lambda attrs, *operands: topi.sampling.draw_token(*operands),
    "int32 [n]: a token drawn by each row of weights [n, tokens], which begin at 0 and end at 1; -1"
    " where none is above 0",
)


def contrib_constrain(
    logits: Expr, history: Expr, rows: Expr, lengths: Expr, penalties: Expr, moves: Expr,
    states: Expr,
) -> Call:  # fmt: skip
    """Return logits with repetition penalties applied, and -inf where a grammar automaton forbids
    the token.

    See ekiden.topi.sampling.constrain_logits.
    """
    operands = (logits, history, rows, lengths, penalties, moves, states)
    return call_op("random.contrib_constrain", *operands)


def contrib_draw(weights: Expr, settings: Expr, seeds: Expr, places: Expr) -> Call:
    """Sample a token per row of weights; see ekiden.topi.sampling.draw_token."""
    return call_op("random.contrib_draw", weights, settings, seeds, places)


def threefry_key(seed: int) -> Constant:
    """Return a Threefry generator key for a seed."""
    return const(np.array(key_words(seed), np.uint64))


def threefry_generate(key: Expr, shape: Sequence[Dim]) -> Call:
    """Return the advanced generator and random words."""
    return call_op(
        "random.threefry_generate", key, attrs=ThreefryGenerateAttrs(to_attr_dims(shape))
    )


def threefry_split(key: Expr) -> Call:
    """Split a generator into two independent ones."""
    return call_op("random.threefry_split", key)


def _scalar_expr(value: Expr | float, dtype: str) -> Expr:
    return value if isinstance(value, Expr) else const(value, dtype)


def uniform(
    key: Expr,
    shape: Sequence[Dim],
    dtype: str = "float32",
    low: Expr | float = 0.0,
    high: Expr | float = 1.0,
) -> Call:
    """Return the advanced generator and uniform samples in [low, high)."""
    bounds = (_scalar_expr(v, dtype) for v in (low, high))
    return call_op("random.uniform", key, *bounds, attrs=UniformAttrs(to_attr_dims(shape), dtype))


def normal(
    key: Expr,
    shape: Sequence[Dim],
    dtype: str = "float32",
    mean: Expr | float = 0.0,
    scale: Expr | float = 1.0,
) -> Call:
    """Return the advanced generator and normally distributed samples."""
    moments = (_scalar_expr(v, dtype) for v in (mean, scale))
    return call_op("random.normal", key, *moments, attrs=NormalAttrs(to_attr_dims(shape), dtype))


def multinomial(key: Expr, probs: Expr, num_samples: Dim) -> Call:
    """Return the advanced generator and indices sampled by the weights in the last axis."""
    return call_op("random.multinomial", key, probs, attrs=MultinomialAttrs(num_samples))


__all__ = [
    "contrib_constrain", "contrib_draw", "multinomial", "normal", "threefry_generate",
    "threefry_key", "threefry_split", "uniform",
]  # fmt: skip
