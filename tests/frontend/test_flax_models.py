"""Modules of flax, their weights closed over, with a symbolic batch: equal to JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import ekiden

jax = pytest.importorskip("jax", reason="the package jax is not installed")
nn = pytest.importorskip("flax.linen", reason="the package flax is not installed")
jnp, export = jax.numpy, pytest.importorskip("jax.export")


class Residual(nn.Module):  # type: ignore[name-defined, misc]
    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:  # noqa: ANN401
        y = nn.Conv(16, (3, 3), strides=2, use_bias=False)(x)
        y = nn.relu(nn.BatchNorm(use_running_average=True)(y))
        y = nn.max_pool(nn.GroupNorm(4)(y), (2, 2), strides=(2, 2))
        y = nn.ConvTranspose(8, (2, 2), strides=(2, 2))(y)
        return nn.Dense(5)(nn.avg_pool(y, (2, 2), strides=(2, 2)).reshape(x.shape[0], -1))


class Encoder(nn.Module):  # type: ignore[name-defined, misc]
    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, tokens: Any) -> Any:  # noqa: ANN401
        x = nn.Embed(30, 16)(tokens)
        mask = nn.make_attention_mask(tokens > 0, tokens > 0)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x), mask=mask)
        x = x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))
        return nn.RNN(nn.LSTMCell(8))(x)


@pytest.mark.parametrize(
    ("model", "shape", "dtype"), [(Residual(), (8, 8, 3), "float32"), (Encoder(), (6,), "int32")]
)
def test_flax_modules_match_jax(model: Any, shape: tuple[int, ...], dtype: str) -> None:  # noqa: ANN401
    rng = np.random.default_rng(0)

    def sample(count: int) -> Any:  # noqa: ANN401
        return (rng.random((count, *shape)) * 20).astype(dtype)

    variables = model.init(jax.random.key(0), jnp.asarray(sample(1)))
    apply = partial(model.apply, variables)
    text = ", ".join(["b", *map(str, shape)])
    made = ekiden.compile(apply, (sample(2),), dynamic_shapes=(text,))
    for count in (1, 3):
        x = sample(count)
        expected = np.asarray(apply(jnp.asarray(x)))
        np.testing.assert_allclose(made(x).numpy(), expected, rtol=1e-4, atol=1e-5)
