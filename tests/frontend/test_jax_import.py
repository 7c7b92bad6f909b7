"""JAX import: accepted inputs, names and sizes, rare operations, errors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekiden
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError

jax = pytest.importorskip("jax", reason="the package jax is not installed")
jnp, lax, export = jax.numpy, jax.lax, pytest.importorskip("jax.export")

WIDE = (
    partial(jax.enable_x64, True)
    if hasattr(jax, "enable_x64")
    else pytest.importorskip("jax.experimental").enable_x64
)
"""A context in which JAX has 64 bits, where its version has it."""
ROW = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def agree(function: Any, *argument: Any, exact: bool = False) -> None:  # noqa: ANN401
    """Compare a function with JAX for these inputs."""
    actual = ekiden.compile(function, argument)(*argument)
    actual = actual if isinstance(actual, tuple) else (actual,)
    expected = jax.tree_util.tree_leaves(function(*map(jnp.asarray, argument)))
    for result, reference in zip(actual, expected, strict=True):
        assert (np.asarray(result).shape, np.asarray(result).dtype) == (
            reference.shape,
            reference.dtype,
        )
        tolerance = 0 if exact else 2e-6
        np.testing.assert_allclose(np.asarray(result), np.asarray(reference), tolerance, tolerance)


def doubled(x: Any) -> Any:  # noqa: ANN401
    return x * 2 + jnp.sum(x)


def test_jax_artifact_from_path_and_bytes(tmp_path: Path) -> None:
    (rows,) = export.symbolic_shape("rows")
    transformed = export.export(jax.jit(doubled))(jax.ShapeDtypeStruct((rows, 4), np.float32))
    path = tmp_path / "model.jax"
    path.write_bytes(transformed.serialize())
    for model in (path, str(path), transformed):
        result = ekiden.compile(model)
        assert str(result.inputs[0]) == "x: float32[rows, 4]"
        for count in (1, 3):
            np.testing.assert_allclose(result(ROW[:count]).numpy(), doubled(ROW[:count]), rtol=1e-6)


def test_dynamic_shapes_are_given_as_text() -> None:
    result = ekiden.compile(doubled, (ROW,), dynamic_shapes=("n, ...",))
    assert str(result.inputs[0]) == "x: float32[n, 4]"
    np.testing.assert_allclose(result(ROW[:2]).numpy(), doubled(ROW[:2]), rtol=1e-6)


def test_size_that_is_computed_from_a_symbol() -> None:
    result = ekiden.compile(lambda x: x.reshape(2, -1).sum(0), (ROW,), dynamic_shapes="(2*k, 4)")
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    np.testing.assert_array_equal(result(x).numpy(), x.reshape(2, -1).sum(0))
    with pytest.raises(ValueError, match="x"):
        result(x[:3])


def test_input_names_are_pytree_paths() -> None:
    def model(params: Any, x: Any, *, scale: Any) -> Any:  # noqa: ANN401
        return {"y": x @ params["w"] * scale, "z": [x]}

    params = {"w": np.ones((4, 2), np.float32)}
    result = ekiden.compile(model, (params, ROW), example_kwargs={"scale": np.float32(2)})
    assert [item.name for item in result.inputs] == ["params['w']", "x", "scale"]
    assert [item.name for item in result.outputs] == ["result['y']", "result['z'][0]"]
    np.testing.assert_allclose(
        result(params["w"], ROW, np.float32(2))[0].numpy(), ROW @ params["w"] * 2
    )


def test_relay_from_jax_imports_functions() -> None:
    module, params = ekiden.relay.frontend.from_jax(doubled, (ROW,))
    assert params == {}
    assert "sum" in str(module["main"])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((5, 3), np.uint32), ((3, 4), np.uint32), ((), np.uint32), ((7,), np.uint64)],
)
def test_threefry_bits_equal_jax(shape: tuple[int, ...], dtype: type) -> None:
    def bits(state: Any) -> Any:  # noqa: ANN401
        algorithm = lax.RandomAlgorithm.RNG_THREE_FRY
        return lax.rng_bit_generator(state, shape, dtype=dtype, algorithm=algorithm)

    with WIDE():
        agree(bits, np.array([3, 2**32 - 2], np.uint64), exact=True)


def test_random_keys_may_be_results() -> None:
    """Which JAX constrains to no mesh."""
    function = jax.jit(lambda seed: jax.random.split(jax.random.key(seed), 3))
    seed = np.int32(7)
    expected = jax.random.key_data(function(seed))
    np.testing.assert_array_equal(ekiden.compile(function, (seed,))(seed).numpy(), expected)


def test_window_reductions_match_jax() -> None:
    x = np.random.default_rng(0).standard_normal((2, 9, 7, 3)).astype(np.float32)
    start = jnp.float32(1.5)

    def windows(x: Any) -> Any:  # noqa: ANN401
        size, steps = (1, 3, 2, 1), (1, 2, 1, 1)
        own = lax.reduce_window(x, start, lambda a, b: a * b, (1, 2, 1, 1), steps, "VALID")
        small = lax.reduce_window(x, jnp.inf, lax.min, size, steps, "SAME")
        wide = lax.reduce_window(
            x, 0.0, lax.add, size, steps, [(0, 0), (1, 2), (0, 3), (0, 0)],
            base_dilation=(1, 2, 1, 1), window_dilation=(1, 1, 2, 1),
        )  # fmt: skip
        return own, small, wide

    agree(windows, x)


def test_convolution_dimension_numbers_match_jax() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 6, 9, 8)).astype(np.float32)
    kernel = rng.standard_normal((4, 6, 3, 2)).astype(np.float32)

    def convolutions(x: Any) -> Any:  # noqa: ANN401
        numbers = ("NCHW", "OIHW", "NHWC")
        plain = lax.conv_general_dilated(
            x, kernel, (2, 1), [(2, 1), (-1, 3)], (2, 1), (1, 2), numbers
        )
        grouped = lax.conv_general_dilated(
            x, kernel[:, :3], (1, 1), "VALID", (1, 1), (1, 1), numbers, feature_group_count=2
        )
        batches = lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", (1, 1), (1, 1), numbers, batch_group_count=2
        )
        line = lax.conv_general_dilated(x[:, :, 0], kernel[:, :, 0], (1,), "SAME")
        return plain, grouped, batches, line

    agree(convolutions, x)


def test_dot_general_axes_match_jax() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4, 2, 5), (5, 3, 4, 6)))

    def products(x: Any, y: Any) -> Any:  # noqa: ANN401
        result = [lax.dot_general(x, y, (((1, 3), (2, 0)), ((0,), (1,))))]
        result += [jnp.tensordot(x, y, ((3, 1), (0, 2))), jnp.vdot(x, x), x[0, 0] @ y[:, 0, 0]]
        small = (x * 9).astype(jnp.int8).reshape(-1, 5)
        return [*result, lax.dot(small, small.T, preferred_element_type=jnp.int32)]

    agree(products, x, y)


def test_sort_comparators_match_jax() -> None:
    x = np.array([3, -1, 2, -2, 1, 7, -7], np.int32)

    def by_size(x: Any) -> Any:  # noqa: ANN401
        return lax.sort(x)[::-1], jnp.sort(x, descending=True), jnp.argsort(jnp.abs(x), stable=True)

    agree(by_size, x, exact=True)


def test_interior_and_negative_padding_match_jax() -> None:
    agree(lambda x: lax.pad(x, jnp.float32(7), [(-1, 2, 1), (3, -2, 2)]), ROW, exact=True)


def test_nan_in_sort_and_top_k_match_jax() -> None:
    x = np.array([[2, np.nan, -1, 0, -0.0, np.inf, -np.inf]], np.float32)
    agree(lambda x: (jnp.sort(x), lax.top_k(x, 3)[1], jnp.argmax(x, 1), jnp.argmin(x, 1)), x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: jnp.fft.fft(x),
            r"output 'result' is of complex numbers, .* jnp\.real and jnp\.imag",
        ),
        (
            lambda x: lax.linalg.hessenberg(x[:, :3]),
            r"the function 'lapack_sgehrd\w*' outside of the program is not known",
        ),
    ],
)
def test_unsupported_features_are_named(function: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(UnsupportedError, match=message):
        ekiden.compile(function, (ROW,))


def test_errors_name_the_cause(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="function 'doubled': example_inputs are missing"):
        ekiden.compile(doubled)
    with pytest.raises(ImportModelError, match=r"function 'doubled': jax\.export: "):
        ekiden.compile(doubled, example_inputs=("text",))
    (tmp_path / "broken.jax").write_bytes(b"no program")
    with pytest.raises(ImportModelError, match="program 'broken.jax': no program of jax.export"):
        ekiden.compile(tmp_path / "broken.jax")
    transformed = export.export(jax.jit(doubled))(ROW)
    with pytest.raises(CompileError, match="is already exported: it takes no 'example_inputs'"):
        ekiden.compile(transformed, (ROW,))
    with pytest.raises(CompileError, match="a JAX program takes no 'shape'"):
        ekiden.compile(doubled, (ROW,), shape={"x": (2, 4)})


def test_python_numbers_are_example_inputs() -> None:
    assert ekiden.compile(doubled, (1.5,))(np.float32(1.5)).numpy() == 4.5


def test_operations_can_be_registered() -> None:
    from ekiden.frontend.jax import register
    from ekiden.frontend.jax.registry import CONVERTER_TABLE

    name = "custom_call:taught"
    try:
        register(name)(lambda node: ekiden.relay.op.multiply(node.expr(0), node.expr(0)))
        with pytest.raises(ValueError, match="it is there"):
            register(name)(lambda node: node.expr(0))
        shape = jax.ShapeDtypeStruct(ROW.shape, ROW.dtype)
        program = export.export(
            jax.jit(lambda x: jax.ffi.ffi_call("taught", shape)(x)),
            disabled_checks=[export.DisabledSafetyCheck.custom_call("taught")],
        )(ROW)
        np.testing.assert_array_equal(ekiden.compile(program)(ROW).numpy(), ROW * ROW)
    finally:
        CONVERTER_TABLE.pop(name, None)


def test_float_to_integer_casts_saturate() -> None:
    kinds = ["int8", "uint8", "int16", "int32", "uint32", "bool"]
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 5e9, 300, -129, -1.5, 127.9, 0], np.float32)
    agree(lambda x: tuple(x.astype(k) for k in kinds), x, exact=True)
    with np.errstate(over="ignore"):
        halves = x.astype(np.float16)
    agree(lambda x: tuple(x.astype(k) for k in kinds), halves, exact=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_integer_limits_match_jax(dtype: str) -> None:
    """Divided by 0, and shifted by the width and more, or by less than nothing."""
    ends = np.iinfo(dtype)
    some = np.array([ends.min, ends.max, 0, 1, 7, 31, 100, ends.max - 1], dtype)
    x, y = np.repeat(some, some.size), np.tile(some, some.size)

    def function(x: Any, y: Any) -> Any:  # noqa: ANN401
        shifts = lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic
        return lax.div(x, y), lax.rem(x, y), x // y, x % 7, *(shift(x, y) for shift in shifts)

    agree(function, x, y, exact=True)
