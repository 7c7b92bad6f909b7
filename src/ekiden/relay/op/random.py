"""Random numbers from a generator that is passed on (see ekiden.topi.random)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array
from ekiden.relay.expr import Call, Constant, Expr, const
from ekiden.relay.op._declare import call, check_range
from ekiden.relay.op._inventory import declare
from ekiden.topi.dimensions import Dim, Dims, as_attr, as_shape
from ekiden.topi.random import threefry_key as key_words


@node("relay.attrs.ThreefryGenerateAttrs")
class ThreefryGenerateAttrs(Attrs):
    """The shape of the result."""

    out_shape: Dims = ()


@node("relay.attrs.UniformAttrs")
class UniformAttrs(Attrs):
    """The shape and dtype of the result."""

    out_shape: Dims = ()
    out_dtype: str = "float32"


@node("relay.attrs.NormalAttrs")
class NormalAttrs(Attrs):
    """The shape and dtype of the result."""

    out_shape: Dims = ()
    out_dtype: str = "float32"


@node("relay.attrs.MultinomialAttrs")
class MultinomialAttrs(Attrs):
    """How often to draw."""

    num_samples: Dim = 1


declare("random.threefry_generate", ("key",),
        lambda attrs, key: topi.random.threefry_generate(key, as_shape(attrs.out_shape)),
        "a tuple: the generator afterwards, uint64 of `out_shape`", ThreefryGenerateAttrs,
        fields=2)  # fmt: skip
declare("random.threefry_split", ("key",), lambda attrs, key: topi.random.threefry_split(key),
        "a tuple of two generators", fields=2)  # fmt: skip
declare(
    "random.uniform",
    ("key", "low", "high"),
    lambda attrs, key, low, high: topi.random.uniform(
        key, low, high, as_shape(attrs.out_shape), attrs.out_dtype
    ),
    "a tuple: the generator afterwards, `out_dtype` of `out_shape`",
    UniformAttrs,
    fields=2,
)
declare(
    "random.normal",
    ("key", "mean", "scale"),
    lambda attrs, key, mean, scale: topi.random.normal(
        key, mean, scale, as_shape(attrs.out_shape), attrs.out_dtype
    ),
    "a tuple: the generator afterwards, `out_dtype` of `out_shape`",
    NormalAttrs,
    fields=2,
)
declare(
    "random.multinomial",
    ("key", "probs"),
    lambda attrs, key, probs: topi.random.multinomial(key, probs, attrs.num_samples),
    "a tuple: the generator afterwards, int32 of the shape of probs with `num_samples` last",
    MultinomialAttrs,
    fields=2,
)


def _constrain(
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
        past = np.unique(history[rows[n], : lengths[n]])
        past = past[(past >= 0) & (past < len(out))]
        if penalties[n] != 1:
            by = penalties[n]
            out[past] = np.where(out[past] > 0, out[past] / by, out[past] * by)
        if states[n] >= 0:
            out[moves[states[n]] < 0] = -np.inf
    return constrained


declare(
    "random.contrib_constrain",
    ("logits", "history", "rows", "lengths", "penalties", "moves", "states"),
    lambda attrs, *operands: topi.sampling.constrain_logits(*operands),
    "logits [n, tokens], those of tokens that came before smaller and those that an automaton does"
    " not take -inf",
    reference=_constrain,
    refuses=True,
)
declare(
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
    """Return logits reduced where a text makes them less likely, and -inf where an automaton
    forbids.

    See ekiden.topi.sampling.constrain_logits.
    """
    operands = (logits, history, rows, lengths, penalties, moves, states)
    return call("random.contrib_constrain", *operands)


def contrib_draw(weights: Expr, settings: Expr, seeds: Expr, places: Expr) -> Call:
    """Return a token for each row of weights; see ekiden.topi.sampling.draw_token."""
    return call("random.contrib_draw", weights, settings, seeds, places)


def threefry_key(seed: int) -> Constant:
    """Return a new generator."""
    return const(np.array(key_words(seed), np.uint64))


def threefry_generate(key: Expr, shape: Sequence[Dim]) -> Call:
    """Return a tuple of the generator afterwards and random words."""
    return call("random.threefry_generate", key, attrs=ThreefryGenerateAttrs(as_attr(shape)))


def threefry_split(key: Expr) -> Call:
    """Return a tuple of two independent generators."""
    return call("random.threefry_split", key)


def _scalar(value: Expr | float, dtype: str) -> Expr:
    return value if isinstance(value, Expr) else const(value, dtype)


def uniform(
    key: Expr,
    shape: Sequence[Dim],
    dtype: str = "float32",
    low: Expr | float = 0.0,
    high: Expr | float = 1.0,
) -> Call:
    """Return a tuple of the generator afterwards and numbers in [low, high)."""
    bounds = (_scalar(v, dtype) for v in (low, high))
    return call("random.uniform", key, *bounds, attrs=UniformAttrs(as_attr(shape), dtype))


def normal(
    key: Expr,
    shape: Sequence[Dim],
    dtype: str = "float32",
    mean: Expr | float = 0.0,
    scale: Expr | float = 1.0,
) -> Call:
    """Return a tuple of the generator afterwards and normally distributed numbers."""
    moments = (_scalar(v, dtype) for v in (mean, scale))
    return call("random.normal", key, *moments, attrs=NormalAttrs(as_attr(shape), dtype))


def multinomial(key: Expr, probs: Expr, num_samples: Dim) -> Call:
    """Return a tuple of the generator afterwards and indices drawn by the weights in the
    last axis.
    """
    return call("random.multinomial", key, probs, attrs=MultinomialAttrs(num_samples))


__all__ = [
    "contrib_constrain", "contrib_draw", "multinomial", "normal", "threefry_generate",
    "threefry_key", "threefry_split", "uniform",
]  # fmt: skip
