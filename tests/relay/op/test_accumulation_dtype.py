"""Sums and means beyond the range of their dtype."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.op import Array
from ekiden.ir.prim import SizeVar
from ekiden.relay import op
from ekiden.runtime.errors import InputError
from long_runs import share

pytestmark = pytest.mark.quick
HALVES = pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])


def both(
    build: Callable[..., relay.Expr], *arrays: Array, shape: tuple[object, ...] = ()
) -> list[object]:
    """What the interpreter and the virtual machine give, which must agree."""
    params = [
        relay.var(f"x{i}", shape=shape or a.shape, dtype=str(a.dtype)) for i, a in enumerate(arrays)
    ]
    module = relay.IRModule.from_expr(relay.Function(params, build(*params)))
    meant, result = (
        relay.create_executor(kind, module).evaluate()(*arrays).numpy().tolist()
        for kind in ("debug", "vm")
    )
    assert result == meant
    return list(result)


@HALVES
def test_collapse_sum_accumulates_in_float32(dtype: type) -> None:
    many, one = np.ones((4096, 2), dtype), np.ones(2, dtype)
    assert both(op.collapse_sum_like, many, one) == [4096, 4096]
    assert both(lambda x: op.collapse_sum_to(x, (1, 2)), many) == [[4096, 4096]]


@pytest.mark.slow
@HALVES
def test_interpreter_sums_in_float32(dtype: type) -> None:
    many = np.ones((3000, 2), dtype)
    assert both(lambda x: op.sum(x, 0), many) == [float(dtype(3000))] * 2
    assert both(lambda x: op.mean(x, 0), many) == [1, 1]
    assert both(lambda x: op.prod(x, 0), np.full((3000, 1), dtype(1.0078125)))[0] > 0


@HALVES
def test_cumsum_accumulates_in_float32(dtype: type) -> None:
    result = both(lambda x: op.cumsum(x, 0), np.ones(4097, dtype))
    assert result[255:258] == [256, 256 if dtype != np.float16 else 257, 258]
    assert result[4095] == 4096
    eighth = np.full(4096, 1.125, dtype)
    eighth[1:] = 1
    assert both(lambda x: op.cumprod(x, 0, exclusive=True), eighth)[:2] == [1, 1.125]


@share(2)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("is_symbol", [False, True])
def test_means_of_integers_do_not_wrap_around(dtype: str, is_symbol: bool) -> None:
    most = np.iinfo(dtype).max if dtype != "int64" else 2**40
    count = {1: 5, 2: 70_000}.get(np.dtype(dtype).itemsize, 3)
    shape = (SizeVar("n", "int64"), 1) if is_symbol else ()
    assert both(lambda x: op.mean(x, 0), np.full((count, 1), most, dtype), shape=shape) == [most]


@pytest.mark.slow
def test_fully_shifted_products_are_zero() -> None:
    numbers = np.array([5, -7, 2**31 - 1, -(2**31)], "int32")
    for shift in (-32, -33, -40, -100):
        build = lambda x, s=shift: op.fixed_point_multiply(x, 2**30, s)  # noqa: E731
        assert both(build, numbers) == [0, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_average_pool_of_padding_only_is_zero(dtype: str) -> None:
    def apart(x: relay.Expr) -> relay.Expr:
        """Taps that have the data between them."""
        return op.nn.avg_pool2d(x, (2, 2), (1, 1), (4, 4), (2, 2), count_include_pad=False)

    def around(x: relay.Expr) -> relay.Expr:
        return op.nn.avg_pool2d(x, (2, 2), (1, 1), padding=(1, 1), count_include_pad=False)

    assert both(apart, np.ones((1, 1, 1, 1), dtype)) == [[[[0]]]]
    nothing = np.ones((1, 1, 0, 3), dtype)
    shape = (1, 1, SizeVar("h", "int64"), 3)
    assert both(around, nothing, shape=shape) == [[[[0, 0, 0, 0]]]]


@pytest.mark.slow
def test_float16_matmul_accumulates_in_float32() -> None:
    """4096 terms of 1: where the sums have the dtype itself, they stop at 256."""
    dtype = ml_dtypes.bfloat16
    row, data = np.ones((1, 4096), dtype), np.ones(4096, dtype)
    places, starts = np.arange(4096, dtype="int32"), np.array([0, 4096], "int32")
    result = both(lambda x, d, i, p: op.nn.sparse_dense(x, (d, i, p)), row, data, places, starts)
    assert result == [[4096]]
    blocks = data.reshape(1024, 1, 4)
    places, starts = np.arange(1024, dtype="int32"), np.array([0, 1024], "int32")
    result = both(lambda x, d, i, p: op.nn.sparse_dense(x, (d, i, p)), row, blocks, places, starts)
    assert result == [[4096]]
    image = np.ones((1, 4096, 1, 1), dtype)
    assert both(lambda x: op.nn.correlation(x, x, 1, 0, 1, 1, 0, True), image) == [[[[1]]]]
    moved, weight = np.zeros((1, 2, 1, 1), dtype), np.ones((1, 4096, 1, 1), dtype)
    deform = lambda x, o, w: op.nn.deformable_conv2d(x, o, w, kernel_size=(1, 1), channels=1)  # noqa: E731
    assert both(deform, image, moved, weight) == [[[[4096]]]]


@pytest.mark.slow
def test_sums_over_symbols_broadcast_or_are_refused() -> None:
    """No other place is read than an operand's own."""
    n, m = SizeVar("n", "int64"), SizeVar("m", "int64")
    cases = ((5, ((5, 5), (1, 5), (7, 5), (3, 5))), (m, ((5, 5), (5, 1), (1, 5), (5, 7))))
    for inner, sizes in cases:
        a, b = relay.var("a", shape=(2, n)), relay.var("b", shape=(inner, 3))
        body = op.einsum((a, b), "ij,jk->ik")
        exe = ekiden.compile(relay.IRModule.from_expr(relay.Function([a, b], body)))
        for left, right in sizes:
            inputs = np.ones((2, left), "float32"), np.ones((right, 3), "float32")
            if left == right or 1 in (left, right):
                assert np.all(exe(*inputs).numpy() == max(left, right))
            else:
                with pytest.raises(InputError, match="einsum needs n == "):
                    exe(*inputs)
