"""Products of bytes that a run computes: in words of bytes where sizes are known, else in floats
that hold the sums.
"""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, SizeVar
from ekiden.relay.expr import Call, Expr
from ekiden.relay.transform import FoldConstant, InferType
from ekiden.relay.transform.precision.product_precision import ProductPrecision
from ekiden.relay.visitor import post_order
from ekiden.target import Target
from long_runs import alike
from processor import processors

Array = np.ndarray


def levels(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """All bytes, a third of them the least or the largest."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng([seed, *shape])
    result = rng.integers(info.min, info.max + 1, shape)
    return np.where(
        rng.random(shape) < 1 / 3, rng.choice([info.min, info.max], shape), result
    ).astype(dtype)


def batched(
    a: str, b: str, shapes: tuple[tuple[PrimExpr | int, ...], ...], points: tuple[int, int]
) -> IRModule:
    """(a - point) times the transposes of (b - point) in int32."""
    x, y = (relay.var(n, shape=s, dtype=d) for n, s, d in zip("xy", shapes, (a, b), strict=True))
    wide: list[Expr] = [
        relay.subtract(relay.cast(v, "int32"), relay.const(np.int32(p)))
        for v, p in zip((x, y), points, strict=True)
    ]
    return IRModule.from_expr(relay.Function([x, y], relay.nn.batch_matmul(*wide)))


def product_of(module: IRModule, processor: str = "x86-64-v3") -> Call:
    """Return the one product that the pass leaves for a processor."""
    transformed = ProductPrecision(Target.parse(f"llvm -mcpu={processor}"))(InferType()(module))
    calls = [
        e
        for e in post_order(InferType()(FoldConstant()(transformed))["main"])
        if isinstance(e, Call)
    ]
    (result,) = (c for c in calls if c.op.definition.macs is not None)
    return result


@pytest.mark.quick
@pytest.mark.parametrize(
    ("processor", "dtypes"),
    [("cascadelake", ["uint8", "int8"]), ("x86-64-v3", ["int16", "int16"])],
)
def test_static_sizes_use_integer_products(processor: str, dtypes: list[str]) -> None:
    module = batched("int8", "uint8", ((2, 9, 8), (2, 7, 8)), (3, 5))
    assert [a.checked_type.dtype for a in product_of(module, processor).args] == dtypes


@pytest.mark.quick
@pytest.mark.parametrize(
    ("depth", "dtype"), [(256, "float32"), (300, "float64"), (SizeVar("k"), "float64")]
)
def test_dynamic_sizes_use_exact_float_sums(depth: PrimExpr | int, dtype: str) -> None:
    n = SizeVar("n")
    result = product_of(batched("uint8", "uint8", ((2, 9, depth), (2, n, depth)), (0, 255)))
    assert [a.checked_type.dtype for a in result.args] == [dtype] * 2


@pytest.mark.quick
def test_unknown_zero_point_stays_integer() -> None:
    n = SizeVar("n")
    x, y = (relay.var(v, shape=(2, n, 8), dtype="int8") for v in "xy")
    point = relay.var("p", shape=(), dtype="int32")
    moved = relay.subtract(relay.cast(x, "int32"), point)
    output = relay.nn.batch_matmul(moved, relay.cast(y, "int32"))
    result = product_of(IRModule.from_expr(relay.Function([x, y, point], output)))
    assert [a.checked_type.dtype for a in result.args] == ["int32"] * 2


@alike(4)
@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize(
    ("a", "b", "b_rows", "depth", "points"),
    [
        ("uint8", "int8", 7, 8, (0, 0)),
        ("int8", "uint8", 70, 13, (-128, 255)),
        ("uint8", "uint8", 33, 300, (3, 128)),
        ("int8", "int8", 16, 1040, (0, 0)),
    ],
)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_dynamic_products_match_integers(
    text: str, a: str, b: str, b_rows: int, depth: int, points: tuple[int, int], is_dynamic: bool
) -> None:
    n = SizeVar("n") if is_dynamic else b_rows
    executable = ekiden.compile(batched(a, b, ((2, 9, depth), (2, n, depth)), points), text)
    x, y = levels(a, (2, 9, depth), 0), levels(b, (2, b_rows, depth), 1)
    wide = (x.astype(np.int64) - points[0]) @ (y.astype(np.int64) - points[1]).swapaxes(1, 2)
    np.testing.assert_array_equal(executable(x, y).numpy(), wide)


@pytest.mark.parametrize("transposed", [False, True])
def test_broadcast_matrix_products_match_integers(transposed: bool) -> None:
    x = relay.var("x", shape=(2, SizeVar("m"), 12), dtype="uint8")
    y = relay.var("y", shape=(20, 12) if transposed else (12, 20), dtype="uint8")
    wide = [relay.cast(v, "int32") for v in (x, y)]
    result = relay.nn.dense(*wide) if transposed else relay.nn.matmul(*wide)
    executable = ekiden.compile(IRModule.from_expr(relay.Function([x, y], result)))
    data, weight = (
        levels("uint8", (2, 9, 12), 0),
        levels("uint8", (20, 12) if transposed else (12, 20), 1),
    )
    expected = data.astype(np.int64) @ (weight.T if transposed else weight).astype(np.int64)
    np.testing.assert_array_equal(executable(data, weight).numpy(), expected)
