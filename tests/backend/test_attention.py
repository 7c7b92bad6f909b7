"""Attention in one kernel, against its formula in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ekiden
from ekiden import relay
from ekiden.relay import op
from ekiden.runtime.errors import TypeInferenceError
from long_runs import alike

Array = npt.NDArray[Any]
PLAIN = ("bhsd",) * 4


def formula(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    scale: float | None = None,
    causal: str = "",
    softcap: float = 0.0,
    layouts: tuple[str, ...] = PLAIN,
) -> Array:
    """One query at a time, in float64."""
    axes = zip((query, key, value), layouts[:3], strict=True)
    q, k, v = (np.einsum(f"{n}->bhsd", a.astype(np.float64)) for a, n in axes)
    batch, heads, rows, depth = q.shape
    columns, group = k.shape[2], heads // k.shape[1]
    result = np.zeros((batch, heads, rows, v.shape[3]))
    for b, h, i in np.ndindex(batch, heads, rows):
        scores = k[b, h // group] @ q[b, h, i] * (1 / math.sqrt(depth) if scale is None else scale)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if bias is not None:
            scores = scores + np.broadcast_to(bias, (batch, heads, rows, columns))[b, h, i]
        last = {"": columns, "start": i + 1, "end": i + 1 + columns - rows}[causal]
        shares = np.exp(scores[:last] - scores[:last].max())
        result[b, h, i] = shares @ v[b, h // group][:last] / shares.sum()
    return np.einsum(f"bhsd->{layouts[3]}", result)


def compiled(
    sizes: dict[str, int],
    bias: str,
    symbols: str,
    options: dict[str, Any],
) -> ekiden.Executable:
    """b, h heads of queries, g of keys, s queries, t keys, d and e the depths; those of `symbols`
    are not known."""
    dims = {n: relay.SizeVar(n, "int64") if n in symbols else size for n, size in sizes.items()}
    shapes = shaped(dims, bias, options.get("layouts", PLAIN))
    params = [relay.var(f"x{i}", shape=shape) for i, shape in enumerate(shapes)]
    body = op.nn.attention(*params, **options)
    return ekiden.compile(relay.IRModule.from_expr(relay.Function(params, body)))


def shaped(dims: dict[str, Any], bias: str, layouts: tuple[str, ...]) -> list[list[Any]]:
    names = ({}, {"h": "g", "s": "t"}, {"h": "g", "s": "t", "d": "e"})
    shapes = [
        [dims[rename.get(axis, axis)] for axis in layout]
        for rename, layout in zip(names, layouts[:3], strict=True)
    ]
    return shapes + ([[1 if n == "1" else dims[n] for n in bias]] if bias else [])


def check(
    exe: ekiden.Executable, sizes: dict[str, int], bias: str, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(sum(sizes.values()))
    shapes = shaped(sizes, bias, options.get("layouts", PLAIN))
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    expected = formula(*arrays, **options)
    np.testing.assert_allclose(exe(*arrays).numpy(), expected, rtol=1e-5, atol=2e-6)


def sizes_of(text: str) -> dict[str, int]:
    return dict(zip("bhgstde", map(int, text.split()), strict=True))


@pytest.mark.parametrize(
    ("sizes", "bias", "options"),
    [
        ("1 2 2 7 9 64 64", "", {}),
        ("2 4 2 13 70 20 36", "bhst", {}),
        ("1 3 1 33 64 8 80", "1hs1", {"layouts": ("bshd", "bhds", "bshd", "bshd")}),
        ("1 1 1 1 1 1 1", "1111", {"scale": 2.0}),
        ("2 1 1 50 50 16 16", "", {"causal": "start"}),
        ("1 2 2 3 17 16 7", "b11t", {"causal": "end", "softcap": 2.0}),
        ("1 2 2 9 5 4 16", "", {"layouts": ("sbhd", "hbsd", "dhsb", "bhds")}),
    ],
)
def test_attention_matches_formula_at_fixed_sizes(
    sizes: str, bias: str, options: dict[str, Any]
) -> None:
    dims = sizes_of(sizes)
    check(compiled(dims, bias, "", options), dims, bias, options)


@alike(4)
@pytest.mark.parametrize(
    ("bias", "options"),
    [
        ("b11t", {}),
        ("bhst", {"layouts": ("bshd", "bshd", "bshd", "bshd")}),
        ("", {"causal": "start"}),
        ("11st", {"causal": "end", "scale": 0.5}),
    ],
)
def test_attention_kernel_serves_all_lengths(bias: str, options: dict[str, Any]) -> None:
    exe = compiled(sizes_of("1 4 2 1 1 8 16"), bias, "bst", options)
    for batch, queries, keys in ((1, 1, 1), (2, 5, 16), (1, 13, 63), (1, 6, 65), (3, 12, 129)):
        dims = sizes_of(f"{batch} 4 2 {queries} {keys} 8 16")
        check(exe, dims, bias, options)


def test_queries_without_visible_keys_give_nan() -> None:
    exe = compiled(sizes_of("1 1 1 1 1 4 16"), "", "st", {"causal": "end"})
    query, key = np.ones((1, 1, 3, 4), np.float32), np.ones((1, 1, 1, 4), np.float32)
    result = exe(query, key, np.full((1, 1, 1, 16), 3, np.float32)).numpy()
    assert np.isnan(result[0, 0, :2]).all()
    np.testing.assert_array_equal(result[0, 0, 2], np.full(16, 3, np.float32))


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ("1 3 2 4 4 8 8", {}, "3 heads of 'query' are no multiple of 2 of 'key'"),
        ("1 2 2 4 4 8 8", {"causal": "yes"}, "causal must be one of '', 'start', 'end'"),
        ("1 2 2 4 4 8 8", {"layouts": ("bhss", *PLAIN[1:])}, "a layout is an order of the letters"),
    ],
)
def test_unsupported_attention_is_refused(
    sizes: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        compiled(sizes_of(sizes), "", "", options)


@pytest.mark.parametrize("keys", [5, 40])
def test_nan_probabilities_count_as_zero(keys: int) -> None:
    """Of rows whose scores are all -inf, and of those with a NaN; a NaN of a value stays."""
    rng, shape = np.random.default_rng(keys), (1, 2, 7, 16)
    query, key, value = (rng.normal(size=(1, 2, n, 16)).astype("float32") for n in (7, keys, keys))
    bias = np.where(rng.random((7, keys)) < 0.3, -np.inf, 0).astype("float32")[None, None]
    bias[..., (1, 4), :] = -np.inf
    query[0, 1, 3, 5] = np.nan
    value[0, 0, 2, 9] = np.nan
    arrays = query, key, value, bias
    params = [relay.var(f"x{i}", shape=a.shape) for i, a in enumerate(arrays)]
    body = op.nn.attention(*params, nan_as_zero=True)
    run = ekiden.compile(relay.IRModule.from_expr(relay.Function(tuple(params), body)))
    with np.errstate(invalid="ignore"):
        expected = formula(*arrays)
    expected[0, :, (1, 4)] = expected[0, 1, 3] = 0
    expected[0, 0, :, 9] = np.nan
    actual = run(*arrays).numpy()
    assert actual.shape == shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
