"""Programs of JAX with a symbolic batch: equal to JAX at several sizes, compiled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ekiden

jax = pytest.importorskip("jax", reason="the package jax is not installed")
jnp, lax, export = jax.numpy, jax.lax, pytest.importorskip("jax.export")

Program = Callable[..., Any]
SIZES = (1, 4, 7)
PROGRAMS: dict[str, tuple[Program, Sequence[str], Sequence[str]]] = {}


def program(*shapes: str, dtypes: Sequence[str] = ()) -> Callable[[Program], Program]:
    """A decorator: the shapes of a program's inputs, of symbols and numbers."""

    def add(function: Program) -> Program:
        PROGRAMS[function.__name__] = (function, shapes, dtypes or ("float32",) * len(shapes))
        return function

    return add


def weights(*shape: int, seed: int = 0) -> Any:  # noqa: ANN401 - an array of JAX
    """Weights that are the same each time."""
    size = np.prod(shape[:-1]) or 1
    result = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(size)
    return jnp.asarray(result, jnp.float32)


@program("b, 16")
def mlp(x: Any) -> Any:  # noqa: ANN401
    x = jax.nn.gelu(x @ weights(16, 32) + weights(32, seed=1))
    x = jax.nn.relu(x @ weights(32, 32, seed=2))
    return jax.nn.log_softmax(x @ weights(32, 10, seed=3))


def conv(x: Any, kernel: Any, stride: int = 1, padding: str = "SAME", groups: int = 1) -> Any:  # noqa: ANN401
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=numbers, feature_group_count=groups
    )


@program("b, 16, 16, 3")
def cnn(x: Any) -> Any:  # noqa: ANN401
    x = jax.nn.relu(conv(x, weights(3, 3, 3, 8)))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(conv(x, weights(3, 3, 8, 16, seed=1), 2))
    x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return x.reshape(x.shape[0], -1) @ weights(64, 10, seed=2)


def batch_norm(x: Any, seed: int) -> Any:  # noqa: ANN401
    count = x.shape[-1]
    scale = weights(count, seed=seed) / jnp.sqrt(1.1 + weights(count, seed=seed + 1) ** 2)
    return (x - weights(count, seed=seed + 2)) * scale + weights(count, seed=seed + 3)


@program("b, 8, 8, 16")
def resnet_block(x: Any) -> Any:  # noqa: ANN401
    y = jax.nn.relu(batch_norm(conv(x, weights(3, 3, 16, 32), 2), 10))
    y = batch_norm(conv(y, weights(3, 3, 32, 32, seed=1)), 20)
    short = conv(x, weights(1, 1, 16, 32, seed=2), 2)
    return jax.nn.relu(y + short).mean((1, 2))


@program("b, 8, 8, 8")
def depthwise_and_transposed(x: Any) -> Any:  # noqa: ANN401
    x = conv(x, weights(3, 3, 1, 16), groups=8)
    return lax.conv_transpose(
        x, weights(3, 3, 16, 4, seed=1), (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def layer_norm(x: Any) -> Any:  # noqa: ANN401
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


@program("b, 6, 16")
def transformer_block(x: Any) -> Any:  # noqa: ANN401
    def heads(name: int) -> Any:  # noqa: ANN401
        return jnp.einsum("bsd,dhk->bhsk", layer_norm(x), weights(16, 4, 4, seed=name))

    scores = jnp.einsum("bhqk,bhsk->bhqs", heads(1), heads(2)) / 2
    mask = jnp.tril(jnp.ones((6, 6), bool))
    result = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    x = x + jnp.einsum("bhqs,bhsk,hkd->bqd", result, heads(3), weights(4, 4, 16, seed=4))
    return x + jax.nn.gelu(layer_norm(x) @ weights(16, 64, seed=5)) @ weights(64, 16, seed=6)


@program("b, s, 16", "b, s", dtypes=("float32", "bool"))
def attention_with_a_mask(x: Any, valid: Any) -> Any:  # noqa: ANN401
    scores = jnp.einsum("bqd,bsd->bqs", x @ weights(16, 16), x @ weights(16, 16, seed=1))
    scores = jnp.where(valid[:, None, :], scores, jnp.finfo(jnp.float32).min)
    return jnp.einsum("bqs,bsd->bqd", jax.nn.softmax(scores, axis=-1), x)


@program("b, 5, 8")
def lstm_by_scan(x: Any) -> Any:  # noqa: ANN401
    kernel, inner = weights(8, 48), weights(12, 48, seed=1)

    def cell(state: Any, row: Any) -> Any:  # noqa: ANN401
        h, c = state
        i, f, g, o = jnp.split(row @ kernel + h @ inner, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((x.shape[0], 12)), jnp.zeros((x.shape[0], 12))
    last, rows = lax.scan(cell, start, x.swapaxes(0, 1))
    return last[0], rows


@program("b, t, 8")
def gru_of_any_length(x: Any) -> Any:  # noqa: ANN401
    def cell(h: Any, row: Any) -> Any:  # noqa: ANN401
        z, r = jnp.split(jax.nn.sigmoid(row @ weights(8, 16) + h @ weights(8, 16, seed=1)), 2, -1)
        result = jnp.tanh(row @ weights(8, 8, seed=2) + (r * h) @ weights(8, 8, seed=3))
        h = (1 - z) * h + z * result
        return h, h.sum(-1)

    return lax.scan(cell, jnp.zeros((x.shape[0], 8)), x.swapaxes(0, 1))


@program("b, 16")
def vae_with_a_key(x: Any) -> Any:  # noqa: ANN401
    hidden = jnp.tanh(x @ weights(16, 8))
    mean, spread = hidden @ weights(8, 4, seed=1), hidden @ weights(8, 4, seed=2)
    noise = jax.random.normal(jax.random.key(7), mean.shape)
    return jax.nn.sigmoid((mean + jnp.exp(spread / 2) * noise) @ weights(4, 16, seed=3))


@program("2", "b", dtypes=("uint32", "float32"))
def random_numbers_of_a_key(key: Any, x: Any) -> Any:  # noqa: ANN401
    first, second = jax.random.split(jax.random.wrap_key_data(key))
    bits = jax.random.randint(first, x.shape, 0, 100)
    return bits, jax.random.uniform(second, x.shape), jax.random.bernoulli(first, 0.3, x.shape)


@program("b, 12")
def sorted_and_largest(x: Any) -> Any:  # noqa: ANN401
    values, places = lax.top_k(x, 3)
    order = jnp.argsort(x, axis=-1)
    return jnp.sort(x, axis=0), jnp.sort(-x, axis=1), values, places, order


@program("b", "b", dtypes=("int32", "float32"))
def sorted_by_two_keys(a: Any, x: Any) -> Any:  # noqa: ANN401
    return lax.sort((a % 3, x, jnp.arange(x.shape[0])), num_keys=2)


@program("b, 5", "b", dtypes=("float32", "int32"))
def scattered(x: Any, index: Any) -> Any:  # noqa: ANN401
    place = index % 7
    table = jnp.zeros((6, 5)).at[place].add(x)  # a row beyond the last one is left out
    return table, x.at[:, 2].set(1.0), x.at[0, 1:3].multiply(2.0), table.at[place % 6, 1].max(3.0)


@program("b, 5", "b", dtypes=("float32", "int32"))
def gathered(x: Any, index: Any) -> Any:  # noqa: ANN401
    rows = x[index % x.shape[0]]
    table = weights(7, 4)
    single = jnp.take_along_axis(x, (index % 5)[:, None], axis=1)
    return rows, table[index % 7], single, x[:, index[0] % 5], x[-1], table[index % 9 - 1, 1:3]


@program("b, 6")
def running(x: Any) -> Any:  # noqa: ANN401
    y = jnp.cumsum(x, axis=0), jnp.cumprod(x, axis=1), lax.cummax(x, axis=0)
    y += lax.cummin(x, axis=0, reverse=True), lax.cummax(x, axis=1)
    y += lax.cumlogsumexp(x, axis=1), lax.cumlogsumexp(x[:, :5], axis=1, reverse=True)
    return (*y, lax.cumsum(x, axis=1, reverse=True), lax.associative_scan(jnp.maximum, x, axis=1))


@program("b")
def fibonacci(x: Any) -> Any:  # noqa: ANN401
    def step(state: Any) -> Any:  # noqa: ANN401
        count, a, b = state
        return count + 1, b, a + b

    _, result, _ = lax.while_loop(lambda s: s[0] < 20 + x.shape[0], step, (0, x, x + 1))
    total = lax.while_loop(lambda v: jnp.sum(v) < 1e4, lambda v: v * 2 + 1, jnp.abs(x) + 1)
    return result, total


@program("b, 4", "", dtypes=("float32", "int32"))
def branches(x: Any, index: Any) -> Any:  # noqa: ANN401
    chosen = lax.switch_node(index % 3, [jnp.sin, jnp.cos, lambda v: v * v], x)
    return chosen, lax.cond(index > 2, lambda v: v + 1, lambda v: v - 1, x)


@program("b, 9")
def reductions(x: Any) -> Any:  # noqa: ANN401
    both = (
        jnp.argmax(x, 1),
        jnp.argmin(x, 0),
        jnp.any(x > 2, 1),
        jnp.all(x > -2, 0),
        x.std(1),
    )
    own = lax.reduce(x, 1.0, lambda a, b: a * b + 0.0 * (a + b), (1,))
    return (*both, own, jnp.median(x, 1), jax.scipy.special.logsumexp(x, 1), jnp.prod(x, 1))


@program("b, 8")
def special_functions(x: Any) -> Any:  # noqa: ANN401
    y = jnp.abs(x)
    result = [jnp.expm1(x), jnp.log1p(y), jnp.arctan2(x, y + 1), jnp.cbrt(x), jax.lax.erf(x)]
    result += [jax.lax.erf_inv(jnp.tanh(x)), jnp.round(x * 3), x % 2, x // 0.7, jnp.sign(x)]
    result += [jax.lax.lgamma(y + 1), jnp.float_power(y + 0.5, x), jnp.arcsinh(x), jnp.sinh(x)]
    return result


@program("b, 8", dtypes=("int32",))
def integers(x: Any) -> Any:  # noqa: ANN401
    result = [
        x // 3,
        x % 5,
        x >> 2,
        x << 3,
        lax.shift_right_logical(x, 40),
        lax.population_count(x),
    ]
    result += [lax.clz(x), x ^ 21, ~x, x & 12, x | 3, lax.rem(x, -4), lax.div(x, -3), x**3, -x]
    return [*result, jnp.abs(x), jnp.sign(x), lax.bitcast_convert_type(x, jnp.float32)]


@program("b, 8", dtypes=("bfloat16",))
def half_precision(x: Any) -> Any:  # noqa: ANN401
    y = (x * 2 + jnp.array([1.5, 2.5] * 4, jnp.bfloat16)).astype(jnp.float32)
    return y, lax.reduce_precision(y, 5, 10), x.astype(jnp.float16), x > 0


@program("b, 8, 8, 2")
def gradient_of_a_network(x: Any) -> Any:  # noqa: ANN401
    def loss(kernel: Any, dense: Any) -> Any:  # noqa: ANN401
        y = jnp.tanh(conv(x, kernel))
        y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.mean((y.reshape(y.shape[0], -1) @ dense) ** 2)

    return jax.value_and_grad(loss, (0, 1))(weights(3, 3, 2, 4), weights(64, 3, seed=1))


def sample(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Any:  # noqa: ANN401
    """An input of JAX."""
    if dtype == "bool":
        result = rng.random(shape) < 0.7
        result[..., 0] = True
        return result
    if "int" in dtype:
        return rng.integers(0, 50, shape).astype(dtype)
    return np.asarray(jnp.asarray(rng.standard_normal(shape), dtype))


@program("b, 4, 4")
def systems(x: Any) -> Any:  # noqa: ANN401
    regular = x + 4 * jnp.eye(4)
    positive = x @ jnp.swapaxes(x, 1, 2) + jnp.eye(4)
    sides = jnp.linalg.solve(regular, x), jnp.linalg.inv(regular)
    turned = lax.linalg.triangular_solve(regular, x, lower=True, transpose_a=True)
    return *sides, jnp.linalg.cholesky(positive), turned, *jnp.linalg.slogdet(regular)


@program("b, 5, 3")
def factors(x: Any) -> Any:  # noqa: ANN401
    q, r = jnp.linalg.qr(x)
    left, values, right = jnp.linalg.svd(x, full_matrices=False)
    squares, vectors = jnp.linalg.eigh(jnp.swapaxes(x, 1, 2) @ x)
    return q, r, values, (left * values[:, None]) @ right, squares, jnp.abs(vectors)


@program("b, 4, 6")
def spectra(x: Any) -> Any:  # noqa: ANN401
    """Fourier transforms and arithmetic of complex numbers."""
    half = jnp.fft.rfft(x)
    echo = jnp.fft.irfft(half * jnp.conj(half), n=6)
    turned = jnp.fft.fft2(x) * jnp.exp(1j * jnp.arange(6)) / (1 + 2j)
    mixed = jnp.einsum("bij,bkj->bik", turned, turned[:, ::-1]).sum(-1)
    return jnp.abs(half), echo, jnp.fft.ifft2(turned).real, mixed.imag


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_agree_at_all_sizes_of_one_compilation(name: str) -> None:
    function, shapes, dtypes = PROGRAMS[name]
    scope = export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(s, scope=scope), jnp.dtype(d))
        for s, d in zip(shapes, dtypes, strict=True)
    ]
    made = ekiden.compile(function, specs)
    rng = np.random.default_rng(3)
    for size in SIZES:
        numbers = {"b": size, "s": size + 2, "t": 2 * size}
        inputs = [
            sample(rng, [numbers.get(str(d), 0) or int(d) for d in spec.shape], dtype)
            for spec, dtype in zip(specs, dtypes, strict=True)
        ]
        expected = jax.tree_util.tree_leaves(function(*map(jnp.asarray, inputs)))
        actual = made(*inputs)
        actual = actual if isinstance(actual, tuple) else (actual,)
        assert len(actual) == len(expected)
        for index, (result, reference) in enumerate(zip(actual, expected, strict=True)):
            result, reference = np.asarray(result), np.asarray(reference)
            assert (result.shape, result.dtype) == (reference.shape, reference.dtype), index
            if reference.dtype.kind in "iub":
                np.testing.assert_array_equal(result, reference, f"result {index}")
            else:
                wide = [item.astype(np.float64) for item in (result, reference)]
                np.testing.assert_allclose(*wide, rtol=3e-5, atol=3e-5, err_msg=f"result {index}")


def test_running_extremes_of_a_million_elements_take_linear_memory() -> None:
    """A mask of all pairs of elements and prefixes would have 10^12."""
    x = np.random.default_rng(1).standard_normal(1_000_000).astype(np.float32)

    def running(x: Any) -> Any:  # noqa: ANN401
        return lax.cummax(x), lax.cummin(x, reverse=True), lax.cumlogsumexp(x)

    exe = ekiden.compile(running, [jax.ShapeDtypeStruct(x.shape, x.dtype)])
    highest, lowest, sums = (np.asarray(y) for y in exe(x))
    np.testing.assert_array_equal(highest, np.maximum.accumulate(x))
    np.testing.assert_array_equal(lowest, np.minimum.accumulate(x[::-1])[::-1])
    reference = np.log(np.cumsum(np.exp(x.astype(np.float64))))
    np.testing.assert_allclose(sums, reference, rtol=1e-5, atol=1e-5)
