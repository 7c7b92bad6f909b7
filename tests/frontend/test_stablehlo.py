"""StableHLO as text and bytecode: what the specification says of its operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import ekiden
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError

jax = pytest.importorskip("jax", reason="the package jax is not installed")
jnp, lax, export = jax.numpy, jax.lax, pytest.importorskip("jax.export")
Array: TypeAlias = "np.ndarray[Any, Any]"
RNG = np.random.default_rng(0)


def program(body: str, takes: str, gives: str) -> bytes:
    """Return a function `main` of arguments %a, %b, ... as text; %r is its result."""
    names = "abcdef"
    kinds = [kind.strip() for kind in takes.split(";") if kind.strip()]
    arguments = ", ".join(f"%{name}: {kind}" for name, kind in zip(names, kinds, strict=False))
    return f"func.func @main({arguments}) -> {gives} {{\n{body}\nreturn %r : {gives}\n}}".encode()


def run(body: str, takes: str, gives: str, *inputs: Any) -> Array:  # noqa: ANN401
    """Return what such a program gives."""
    return np.asarray(ekiden.compile(program(body, takes, gives))(*inputs))


def _array(result: Any) -> Any:  # noqa: ANN401
    return np.asarray(result)


def values(compiled: Any, *inputs: Any) -> Any:  # noqa: ANN401
    """Return the one result of a program as an array."""
    return np.asarray(compiled(*inputs))


def agree(function: Any, *argument: Any, tolerance: float = 0.0) -> None:  # noqa: ANN401
    """Compare a function with what XLA makes of it, equal NaN and signs of zero with it."""
    actual = ekiden.compile(function, argument)(*argument)
    expected = jax.tree_util.tree_leaves(jax.jit(function)(*argument))
    for result, reference in zip(
        actual if isinstance(actual, tuple) else (actual,), expected, strict=True
    ):
        x, y = _array(result), _array(reference)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if tolerance:
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(x, y)
            np.testing.assert_array_equal(np.signbit(x), np.signbit(y))


# What is taken.


TANH = program("%r = stablehlo.tanh %a : tensor<?x3xf32>", "tensor<?x3xf32>", "tensor<?x3xf32>")


def test_text_and_bytecode_of_any_kind_are_programs(tmp_path: Path) -> None:
    from ekiden.frontend.jax.stablehlo_parser import make_context, parse_module, write_bytecode

    x = np.ones((2, 3), np.float32)
    with make_context() as within:
        module = parse_module(TANH, "tanh", within)
        plain = write_bytecode(module)
        paths = [tmp_path / "model.mlir", tmp_path / "model.stablehlo"]
        for path, data in zip(paths, (b"// a comment\n" + TANH, plain), strict=True):
            path.write_bytes(data)
        for model in (TANH, plain, bytearray(plain), module, *paths):
            compiled = ekiden.compile(model)
            assert [str(i) for i in compiled.inputs] == ["arg0: float32[arg0_dim0, 3]"]
            np.testing.assert_allclose(values(compiled, x), np.tanh(x), rtol=1e-6)


def test_jax_serialized_programs_are_accepted() -> None:
    transformed = export.export(jax.jit(lambda x: {"y": jnp.tanh(x)}))(np.ones((2, 3), np.float32))
    for model in (transformed, transformed.serialize(), bytes(transformed.serialize())):
        assert [i.name for i in ekiden.compile(model).inputs] == ["x"]
    for model in (transformed.mlir_module().encode(), bytes(transformed.mlir_module_serialized)):
        assert [o.name for o in ekiden.compile(model).outputs] == ["result['y']"]


def test_program_entry_function_can_be_selected() -> None:
    both = b"\n".join(
        program("%r = stablehlo.abs %a : tensor<2xf32>", "tensor<2xf32>", "tensor<2xf32>").replace(
            b"@main", name
        )
        for name in (b"@first", b"@second")
    )
    assert ekiden.compile(both, signature="second").inputs[0].shape == (2,)
    with pytest.raises(ImportModelError, match="no function 'main'; there are 'first', 'second'"):
        ekiden.compile(both)
    with pytest.raises(ImportModelError, match="no function 'third'"):
        ekiden.compile(both, signature="third")
    with pytest.raises(CompileError, match="it takes no 'example_inputs'"):
        ekiden.compile(both, (np.ones(2, np.float32),))


def test_name_that_is_no_text_is_refused() -> None:
    """The bindings of MLIR ended the process as they quoted it."""
    text = program("%r = stablehlo.abs %a : tensor<2xf32>", "tensor<2xf32>", "tensor<2xf32>")
    with pytest.raises(ImportModelError, match="no StableHLO: .*utf-8"):
        ekiden.compile(text.replace(b"stablehlo.abs %a", b'"stablehlo.\xe1bs"(%a)'))


WINDOW = """
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %r = "stablehlo.reduce_window"(%a, %z) ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %0 = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %0 : tensor<f32>
    }}) {{window_dimensions = array<i64: {size}>, window_strides = array<i64: {stride}>,
        window_dilations = array<i64: {dilation}>}}
        : (tensor<4xf32>, tensor<f32>) -> tensor<3xf32>"""


@pytest.mark.parametrize(
    "options", [{"size": -(2**63)}, {"size": 0}, {"stride": -1}, {"dilation": -(2**61)}]
)
def test_zero_window_extents_and_strides_are_refused(options: dict[str, int]) -> None:
    text = WINDOW.format(**{"size": 2, "stride": 1, "dilation": 1, **options})
    with pytest.raises((UnsupportedError, ImportModelError)):
        ekiden.compile(program(text, "tensor<4xf32>", "tensor<3xf32>"))


@pytest.mark.parametrize("text", [b"module { func.func @main() { ", b"ML\xefR\rcut short"])
def test_what_is_no_program_is_refused_in_one_line(text: bytes) -> None:
    with pytest.raises(ImportModelError, match="no StableHLO: ") as result:
        ekiden.compile(text)
    assert "\n" not in str(result.value)


def test_operation_without_a_row_is_named() -> None:
    text = program(
        '%r = "my.operation"(%a) : (tensor<2xf32>) -> tensor<2xf32>',
        "tensor<2xf32>",
        "tensor<2xf32>",
    )
    with pytest.raises(UnsupportedError, match=r"my\.operation.*the operation is not supported"):
        ekiden.compile(text)


def test_operation_without_a_rule_of_complex_numbers_is_named() -> None:
    kind = "tensor<2x2xcomplex<f32>>"
    text = f"""
      %0 = stablehlo.complex %a, %a : {kind}
      %1 = stablehlo.cholesky %0, lower = true : {kind}
      %r = stablehlo.real %1 : ({kind}) -> tensor<2x2xf32>"""
    with pytest.raises(UnsupportedError, match=r"cholesky.*complex numbers are not supported here"):
        ekiden.compile(program(text, "tensor<2x2xf32>", "tensor<2x2xf32>"))


# Arguments.


def test_unused_arguments_stay_inputs() -> None:
    params = {"w": np.ones((3,), np.float32), "unused": np.ones(5, np.float32)}
    x = np.arange(3, dtype=np.float32)

    def model(params: Any, x: Any, seed: Any) -> Any:  # noqa: ANN401
        return x * params["w"] * 2

    compiled = ekiden.compile(model, (params, x, np.int32(0)))
    names = [item.name for item in compiled.inputs]
    assert names == ["params['unused']", "params['w']", "x", "seed"]
    result = values(compiled, params["unused"], params["w"], x, np.int32(1))
    np.testing.assert_array_equal(result, x * 2)
    exported = export.export(jax.jit(model))(params, x, np.int32(0))
    assert [item.name for item in ekiden.compile(exported).inputs] == [*names[:3], "arg2"]


def test_random_keys_are_inputs() -> None:
    x = np.ones((2, 3), np.float32)

    def noisy(keys: Any, x: Any) -> Any:  # noqa: ANN401
        return x + jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)

    keys = jax.random.split(jax.random.key(0), 2)
    compiled = ekiden.compile(noisy, (keys, x))
    assert str(compiled.inputs[0]) == "keys: uint32[2, 2]"
    result = values(compiled, np.asarray(jax.random.key_data(keys)), x)
    np.testing.assert_allclose(result, np.asarray(noisy(keys, x)), rtol=1e-5, atol=1e-6)


# Products and scatters.

PRODUCTS = [
    ("abc,abc->abc", (2, 3, 3), (2, 3, 3)),
    ("abi,abj->abij", (3, 4, 2), (3, 4, 2)),
    ("bhd,bhd->bh", (2, 3, 4), (2, 3, 4)),
    ("bij,bij->b", (2, 3, 4), (2, 3, 4)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("ij,kl->ijkl", (2, 3), (4, 5)),
    ("i,i->i", (3,), (3,)),
    ("i,j->ij", (3,), (4,)),
    ("abcd,abcd->ad", (2, 3, 2, 3), (2, 3, 2, 3)),
    ("abc,dcb->ad", (2, 2, 2), (2, 2, 2)),
]


@pytest.mark.parametrize(("rule", "left", "right"), PRODUCTS, ids=[p[0] for p in PRODUCTS])
def test_dot_general_axes_are_grouped_by_kind(
    rule: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    x, y = (RNG.standard_normal(s).astype(np.float32) for s in (left, right))
    compiled = ekiden.compile(lambda x, y: jnp.einsum(rule, x, y), (x, y))
    np.testing.assert_allclose(values(compiled, x, y), np.einsum(rule, x, y), 1e-5, 1e-5)


def test_products_of_vectors_in_batches_of_any_rank() -> None:
    x, y = (RNG.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2))
    agree(lambda x, y: (jax.vmap(jax.vmap(jnp.dot))(x, y), jnp.vecdot(x, y)), x, y, tolerance=1e-5)
    agree(lambda x, y: jnp.tensordot(x, y, axes=0), x, y, tolerance=1e-5)


def test_product_has_symbolic_axes_of_each_kind() -> None:
    compiled = ekiden.compile(
        lambda x, y: jnp.einsum("abc,abc->ab", x, y),
        (np.ones((2, 3, 4), np.float32),) * 2,
        dynamic_shapes=("a, b, c", "a, b, c"),
    )
    x, y = (RNG.standard_normal((3, 2, 5)).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(values(compiled, x, y), np.einsum("abc,abc->ab", x, y), 1e-5, 1e-5)


def test_windows_that_cover_an_axis_are_dropped_where_they_do_not_begin_at_0() -> None:
    ids = np.array([0, 1, 2, 0, -1], np.int32)
    agree(lambda i: jax.ops.segment_sum(jnp.ones(5, np.float32), i, num_segments=1), ids)
    agree(lambda i: jnp.bincount(i, length=1), ids[:4])
    agree(lambda i: jnp.zeros((1, 2)).at[i, 0].set(7.0), ids)
    numbers = lax.ScatterDimensionNumbers((0,), (), (0,))
    for at in (-1, 0, 1):
        agree(
            lambda x, i: lax.scatter(x, i, jnp.ones(2), numbers, mode="drop"),
            np.zeros(2, np.float32),
            np.array([at], np.int32),
        )


def test_scatter_with_arbitrary_body() -> None:
    x = np.array([1, -2, 3, -4, 5], np.float32)
    ids = np.array([[1], [1], [4], [9], [0], [1], [-1], [2], [3], [3]], np.int32)
    updates = RNG.standard_normal(10).astype(np.float32)
    text = """
      %r = "stablehlo.scatter"(%a, %b, %c) ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %0 = stablehlo.multiply %x, %x : tensor<f32>
          %1 = stablehlo.subtract %0, %y : tensor<f32>
          stablehlo.return %1 : tensor<f32>
      }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
          scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
        : (tensor<5xf32>, tensor<10x1xi32>, tensor<10xf32>) -> tensor<5xf32>"""
    actual = run(
        text, "tensor<5xf32>; tensor<10x1xi32>; tensor<10xf32>", "tensor<5xf32>", x, ids, updates
    )
    expected = x.copy()
    for (at,), update in zip(ids, updates, strict=True):
        if 0 <= at < 5:
            expected[at] = expected[at] * expected[at] - update
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_scatters_of_complex_numbers() -> None:
    x = RNG.standard_normal((4, 2)).astype(np.float32)

    def function(x: Any, i: Any) -> Any:  # noqa: ANN401
        z = x[:, 0] + 1j * x[:, 1]
        turned = z.at[i].multiply(2j), z.at[i].add(1 - 1j), z.at[i].set(3j)
        return [part for item in turned for part in (item.real, item.imag)]

    agree(function, x, np.array([1, 1, 3, 7], np.int32), tolerance=1e-6)


def test_windows_are_selected_by_any_body() -> None:
    """By the smallest element, which no padding is, and scattered by a product."""
    text = """
      %z = stablehlo.constant dense<2.0> : tensor<f32>
      %r = "stablehlo.select_and_scatter"(%a, %b, %z) ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %0 = stablehlo.compare LE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %0 : tensor<i1>
      }, {
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %0 = stablehlo.multiply %x, %y : tensor<f32>
          stablehlo.return %0 : tensor<f32>
      }) {window_dimensions = array<i64: 3>, window_strides = array<i64: 2>,
          padding = dense<[[1, 1]]> : tensor<1x2xi64>}
        : (tensor<5xf32>, tensor<3xf32>) -> tensor<5xf32>""".replace(
        "(tensor<5xf32>, tensor<3xf32>) ->", "(tensor<5xf32>, tensor<3xf32>, tensor<f32>) ->"
    )
    x, source = np.array([5, 4, 1, 2, 7], np.float32), np.array([3, 5, 7], np.float32)
    result = run(text, "tensor<5xf32>; tensor<3xf32>", "tensor<5xf32>", x, source)
    np.testing.assert_array_equal(result, [2, 2 * 3, 2 * 5, 2 * 7, 2])


# Bits.


@pytest.mark.parametrize("bits", [(5, 10), (8, 7), (4, 3), (3, 0), (8, 10), (2, 23), (11, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_reduce_precision_matches_xla(bits: tuple[int, int], dtype: type) -> None:
    scales = np.exp2(RNG.integers(-30, 16, 200).astype(np.float32))
    ends = [0, -0.0, np.inf, -np.inf, 65519, 65520, 3e-6, -3e-5, 6.1e-5, 5.96e-8]
    with np.errstate(over="ignore"):
        x: Array = np.concatenate([RNG.standard_normal(200) * scales, ends]).astype(dtype)
    agree(lambda x: lax.reduce_precision(x, *bits), x)


def test_rounding_keeps_the_sign_of_zero() -> None:
    x = np.array([3e-6, -3e-5, -0.0, 0.0, -0.5, 0.5, 2.5, -2.5, 0.49999997, 8388609], np.float32)
    agree(lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), x)
    agree(lambda x: (lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), jnp.trunc(x)), x)


def test_bitcast_changes_element_width() -> None:
    x = RNG.integers(0, 255, (3, 4)).astype(np.uint8)
    for kinds in (("ui8", "ui32", 4), ("ui8", "f32", 4), ("i8", "ui16", 2)):
        source, expected, count = kinds
        data = x[:, :count].astype(np.int8) if source == "i8" else x[:, :count]
        dtypes = {"ui32": np.uint32, "f32": np.float32, "ui16": np.uint16}
        ahead = f"(tensor<3x{count}x{source}>) -> tensor<3x{expected}>"
        actual = run(f"%r = stablehlo.bitcast_convert %a : {ahead}",
                    f"tensor<3x{count}x{source}>", f"tensor<3x{expected}>", data)  # fmt: skip
        whole = np.ascontiguousarray(data).view(dtypes[expected])[:, 0]
        np.testing.assert_array_equal(actual.view(np.uint8), whole.view(np.uint8))
        back = f"(tensor<3x{expected}>) -> tensor<3x{count}x{source}>"
        actual = run(f"%r = stablehlo.bitcast_convert %a : {back}",
                    f"tensor<3x{expected}>", f"tensor<3x{count}x{source}>", whole)  # fmt: skip
        np.testing.assert_array_equal(actual, data)


def test_not_flips_the_bits_of_constant_integers() -> None:
    text = """
      %0 = stablehlo.constant dense<[-128, 1]> : tensor<2xi8>
      %r = stablehlo.not %0 : tensor<2xi8>"""
    np.testing.assert_array_equal(run(text, "", "tensor<2xi8>"), [127, -2])


@pytest.mark.parametrize("kind", ["i32", "ui8", "i8"])
def test_integers_are_raised_to_powers_of_each_element(kind: str) -> None:
    dtype = {"i32": np.int32, "ui8": np.uint8, "i8": np.int8}[kind]
    some = np.array([0, 1, 2, 3, 5, 7, 100], dtype)
    if kind != "ui8":
        some = np.concatenate([some, -some[1:]])
    x, y = np.repeat(some, some.size), np.tile(some, some.size)
    shape = f"tensor<{x.size}x{kind}>"
    actual = run(f"%r = stablehlo.power %a, %b : {shape}", f"{shape}; {shape}", shape, x, y)
    width = 8 * x.itemsize
    expected = []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        exact = pow(a, b) if b >= 0 else (a ** (b % 2) if abs(a) == 1 else 0)
        expected.append(exact % (1 << width))
    np.testing.assert_array_equal(actual.astype(np.int64) % (1 << width), expected)


NARROW = [name for name in ("int4", "uint4", "int2", "uint2") if hasattr(ml_dtypes, name)]


@pytest.mark.parametrize("name", NARROW)
def test_narrow_integers_wrap_and_shift_in_their_width(name: str) -> None:
    kind, width = ("ui" if name[0] == "u" else "i") + name[-1], int(name[-1])
    dtype = getattr(ml_dtypes, name)
    low = 0 if name[0] == "u" else -(1 << (width - 1))
    some = np.arange(low, low + (1 << width))
    x, y = np.repeat(some, some.size), np.tile(some, some.size)
    shape = f"tensor<{x.size}x{kind}>"

    def both(operation: str) -> Array:
        result = run(f"%r = stablehlo.{operation} %a, %b : {shape}", f"{shape}; {shape}", shape,
                    x.astype(dtype), y.astype(dtype))  # fmt: skip
        assert result.dtype == dtype
        return result.astype(np.int64)

    def wrapped(exact: Array) -> Array:
        return (exact - low) % (1 << width) + low

    np.testing.assert_array_equal(both("add"), wrapped(x + y))
    np.testing.assert_array_equal(both("multiply"), wrapped(x * y))
    np.testing.assert_array_equal(both("maximum"), np.maximum(x, y))
    inside = (y >= 0) & (y < width)
    shifted = np.where(inside, (x % (1 << width)) >> np.where(inside, y, 0), 0)
    np.testing.assert_array_equal(both("shift_right_logical"), wrapped(shifted))
    one = run(f"%r = stablehlo.popcnt %a : {shape}", shape, shape, x.astype(dtype))
    counts = np.array([bin(v % (1 << width)).count("1") for v in x.tolist()])
    np.testing.assert_array_equal(one.astype(np.int64), wrapped(counts))


@pytest.mark.parametrize(
    "kind", ["f8E4M3FN", "f8E5M2", "f8E3M4", "f8E4M3B11FNUZ", "f6E2M3FN", "f4E2M1FN"]
)
def test_small_floats_are_rounded_after_each_operation(kind: str) -> None:
    from ekiden.frontend.jax.narrow_dtypes import NARROW_DTYPES as TABLE

    dtype = getattr(ml_dtypes, TABLE[kind].name)
    x, y = (RNG.standard_normal(64).astype(np.float32) * 2 for _ in range(2))
    text = "\n".join(
        [f"%x = stablehlo.convert %a : (tensor<64xf32>) -> tensor<64x{kind}>",
         f"%y = stablehlo.convert %b : (tensor<64xf32>) -> tensor<64x{kind}>",
         f"%z = stablehlo.multiply %x, %y : tensor<64x{kind}>",
         f"%w = stablehlo.add %z, %y : tensor<64x{kind}>",
         f"%r = stablehlo.convert %w : (tensor<64x{kind}>) -> tensor<64xf32>"]
    )  # fmt: skip
    result = run(text, "tensor<64xf32>; tensor<64xf32>", "tensor<64xf32>", x, y)

    def fit(v: Array) -> Array:
        held: Array = v.astype(dtype).astype(np.float32)
        return held

    np.testing.assert_array_equal(result, fit(fit(fit(x) * fit(y)) + fit(y)))


# Complex numbers.


def test_elementary_functions_of_complex_numbers() -> None:
    x = (RNG.standard_normal((60, 2)) * 3).astype(np.float32)

    def functions(x: Any) -> Any:  # noqa: ANN401
        z = x[:, 0] + 1j * x[:, 1]
        output = [jnp.sin, jnp.cos, jnp.tan, jnp.tanh, jnp.sinh, jnp.cosh, jnp.sqrt, jnp.log1p]
        output += [jnp.expm1, jax.nn.sigmoid, jnp.sign, jnp.arcsin, jnp.arctan, jnp.arccosh]
        result = [f(z) for f in output] + [z ** (1.5 - 0.5j), lax.rsqrt(z)]
        return [part for item in result for part in (item.real, item.imag)]

    agree(functions, x, tolerance=3e-4)


def test_complex_numbers_in_control_flow_sorts_and_reductions() -> None:
    x = RNG.standard_normal((7, 2)).astype(np.float32)

    def function(x: Any, n: Any) -> Any:  # noqa: ANN401
        z = x[:, 0] + 1j * x[:, 1]
        turned = lax.fori_loop(0, n, lambda i, v: v * (0.5 + 1j) + i, z)
        chosen = lax.cond(n > 2, lambda v: v * 1j, lambda v: v, turned)
        result = [turned, chosen, jnp.sort(z), jnp.prod(z), jnp.cumprod(z), jnp.cumsum(z)]
        result.append(lax.scan(lambda c, v: (c * v, c), 1 + 0j, z)[1])
        return [part for item in result for part in (item.real, item.imag)]

    agree(function, x, np.int32(3), tolerance=1e-4)


# Others.


def test_chlo_operations_are_decomposed() -> None:
    x = np.abs(RNG.standard_normal(20)).astype(np.float32) + 0.1
    agree(
        lambda x: (
            lax.lgamma(x),
            lax.digamma(x),
            lax.erf_inv(x / 9),
            lax.erfc(x),
            lax.nextafter(x, -x),
        ),
        x,
        tolerance=1e-5,
    )
    compiled = ekiden.compile(lax.lgamma, (x,), dynamic_shapes=("n",))
    np.testing.assert_allclose(values(compiled, x[:7]), np.asarray(lax.lgamma(x[:7])), 1e-5, 1e-5)


def test_comparison_type_is_optional() -> None:
    text = """
      %r = "stablehlo.sort"(%a) ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %0 = "stablehlo.compare"(%x, %y) {
            comparison_direction = #stablehlo<comparison_direction LT>}
            : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %0 : tensor<i1>
      }) {dimension = 0 : i64, is_stable = true} : (tensor<5xf32>) -> tensor<5xf32>"""
    x = np.array([3, 1, 2, 5, 4], np.float32)
    np.testing.assert_array_equal(run(text, "tensor<5xf32>", "tensor<5xf32>", x), np.sort(x))


def test_body_is_mapped_over_elements() -> None:
    text = """
      %r = "stablehlo.map"(%a, %b) ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %one = stablehlo.constant dense<1.0> : tensor<f32>
          %0 = stablehlo.reshape %x : (tensor<f32>) -> tensor<f32>
          %1 = stablehlo.multiply %0, %y : tensor<f32>
          %2 = stablehlo.add %1, %one : tensor<f32>
          stablehlo.return %2 : tensor<f32>
      }) {dimensions = array<i64: 0, 1>}
        : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>"""
    x, y = (RNG.standard_normal((2, 3)).astype(np.float32) for _ in range(2))
    kind = "tensor<2x3xf32>"
    np.testing.assert_allclose(run(text, f"{kind}; {kind}", kind, x, y), x * y + 1, rtol=1e-6)


@pytest.mark.parametrize("size", [(7, 8), (9, 5)])
def test_same_padding_of_symbolic_sizes(size: tuple[int, int]) -> None:
    kernel = RNG.standard_normal((4, 1, 3, 3)).astype(np.float32)

    def convolved(x: Any) -> Any:  # noqa: ANN401
        return lax.conv_general_dilated(x, kernel, (2, 2), "SAME")

    example = np.ones((1, 1, 8, 8), np.float32)
    compiled = ekiden.compile(convolved, (example,), dynamic_shapes=("b, 1, h, w",))
    x = RNG.standard_normal((2, 1, *size)).astype(np.float32)
    np.testing.assert_allclose(values(compiled, x), np.asarray(convolved(x)), 1e-4, 1e-5)


def test_tuples_and_device_ids_are_supported() -> None:
    text = """
      %0 = stablehlo.tuple %a, %b : tuple<tensor<2xf32>, tensor<2xf32>>
      %1 = stablehlo.get_tuple_element %0[1]
        : (tuple<tensor<2xf32>, tensor<2xf32>>) -> tensor<2xf32>
      %2 = stablehlo.replica_id : tensor<ui32>
      %3 = stablehlo.convert %2 : (tensor<ui32>) -> tensor<f32>
      %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %r = stablehlo.add %1, %4 : tensor<2xf32>"""
    x, y = np.ones(2, np.float32), np.array([5, 6], np.float32)
    kind = "tensor<2xf32>"
    np.testing.assert_array_equal(run(text, f"{kind}; {kind}", kind, x, y), y)


# Random numbers.

BITS = [
    ((5,), "ui8"), ((4,), "ui16"), ((2, 3), "ui32"), ((5,), "ui32"), ((), "ui32"), ((0,), "ui32"),
    ((3, 2), "ui64"), ((3,), "i32"),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ["PHILOX", "THREE_FRY", "DEFAULT"])
@pytest.mark.parametrize(("shape", "kind"), BITS, ids=str)
def test_random_bits_are_those_of_xla(shape: tuple[int, ...], kind: str, algorithm: str) -> None:
    text = "x".join([*map(str, shape), kind])
    body = f"""
      %r, %bits = stablehlo.rng_bit_generator %a, algorithm = {algorithm}
        : (tensor<2xui64>) -> (tensor<2xui64>, tensor<{text}>)"""
    whole = program(body, "tensor<2xui64>", "tensor<2xui64>").decode()
    whole = whole.replace("-> tensor<2xui64> {", f"-> (tensor<2xui64>, tensor<{text}>) {{")
    whole = whole.replace(
        "return %r : tensor<2xui64>", f"return %r, %bits : tensor<2xui64>, tensor<{text}>"
    )
    state = np.array([0x123456789ABCDEF, 2**32 - 1], np.uint64)
    made = ekiden.compile(whole.encode())(state)
    assert isinstance(made, tuple)
    if not shape or 0 in shape:
        assert made[1].shape == shape
        return
    names = {"PHILOX": "RNG_PHILOX", "THREE_FRY": "RNG_THREE_FRY", "DEFAULT": "RNG_DEFAULT"}
    chosen = getattr(lax.RandomAlgorithm, names[algorithm])
    dtype = {"ui8": np.uint8, "ui16": np.uint16, "ui64": np.uint64}.get(kind, np.uint32)
    wide = (
        jax.enable_x64(True)
        if hasattr(jax, "enable_x64")
        else pytest.importorskip("jax.experimental").enable_x64()
    )
    with wide:
        expected = jax.jit(
            lambda s: lax.rng_bit_generator(s, shape, dtype=dtype, algorithm=chosen)
        )(state)
    for result, reference in zip(made, expected, strict=True):
        actual = np.asarray(result)
        np.testing.assert_array_equal(
            actual.astype(np.asarray(reference).dtype), np.asarray(reference)
        )


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "i32"])
def test_random_numbers_have_the_distribution_they_are_drawn_from(kind: str) -> None:
    size = 20000
    shape = f"tensor<{size}x{kind}>"
    ends = f"""
      %low = stablehlo.constant dense<-2{"" if kind == "i32" else ".0"}> : tensor<{kind}>
      %high = stablehlo.constant dense<6{"" if kind == "i32" else ".0"}> : tensor<{kind}>
      %shape = stablehlo.constant dense<[{size}]> : tensor<1xi64>"""

    def drawn(distribution: str) -> Array:
        call = f"""
      %r = stablehlo.rng %low, %high, %shape, distribution = {distribution}
        : (tensor<{kind}>, tensor<{kind}>, tensor<1xi64>) -> {shape}"""
        return run(ends + call, "", shape).astype(np.float64)

    uniform = drawn("UNIFORM")
    assert uniform.min() >= -2
    assert uniform.max() <= 6
    middle = 1.5 if kind == "i32" else 2
    assert abs(uniform.mean() - middle) < 0.1
    assert abs(uniform.std() - 8 / np.sqrt(12)) < 0.1
    if kind != "i32":
        normal = drawn("NORMAL")
        assert abs(normal.mean() + 2) < 0.2
        assert abs(normal.std() - 6) < 0.2
