"""CarryDimensions: kernels whose attributes need dimensions that none of their tensors has."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.relay.transform import (
    CarryDimensions,
    FuseOps,
    HoistDimensions,
    InferType,
    LambdaLift,
    ToANormalForm,
)

pytestmark = pytest.mark.quick

SLICE = """def @main(%c: Tensor[(p, 2), float32], %x: Tensor[(n, 3), float32],
                     %t: Tensor[(64, 3), float32]) {
             add(strided_slice(%t, begin=[p], end=[p + n], strides=[1], axes=[0]), %x) }"""


def carried(text: str) -> str:
    module = InferType()(relay.parse(text))
    for item in (FuseOps(), ToANormalForm(), LambdaLift(), InferType(), HoistDimensions()):
        module = item(module)
    return str(CarryDimensions()(module))


def test_tensor_with_the_dimension_becomes_an_argument() -> None:
    text = carried(SLICE)
    assert "(%t, %x, %c)" in text
    assert "Tensor[(p, 2), float32], Primitive=1" in text


def test_dimensions_known_from_types_are_not_carried() -> None:
    text = carried("def @main(%x: Tensor[(n, 3), float32]) { reshape(%x, newshape=[3, n]) }")
    assert "(%x)" in text


def test_expression_that_is_a_dimension_is_not_carried() -> None:
    text = carried(
        """def @main(%n: Tensor[(n, 1), float32], %x: Tensor[(4 * n, 3), float32]) {
             reshape(%x, newshape=[3, 4 * n]) }"""
    )
    assert "(%x)" in text


@pytest.mark.parametrize(("p", "n"), [(0, 1), (3, 5), (20, 44)])
def test_kernel_reads_it(p: int, n: int) -> None:
    exe = ekiden.compile(relay.parse(SLICE))
    rng = np.random.default_rng(p)
    cache, x, table = (rng.normal(size=s).astype(np.float32) for s in ((p, 2), (n, 3), (64, 3)))
    np.testing.assert_array_equal(exe(cache, x, table).numpy(), table[p : p + n] + x)


@pytest.mark.parametrize(("p", "n"), [(0, 1), (3, 5)])
def test_ranges_and_paddings_by_dimensions_of_other_tensors(p: int, n: int) -> None:
    exe = ekiden.compile(
        relay.parse(
            """def @main(%c: Tensor[(p, 2), float32], %x: Tensor[(n, 2), float32]) {
                 (arange(start=p, stop=p + n, step=1, dtype="float32"),
                  nn.pad(%x, 0f, pad_width=[[p, n], [0, 0]])) }"""
        )
    )
    x = np.random.default_rng(n).normal(size=(n, 2)).astype(np.float32)
    result = exe(np.zeros((p, 2), np.float32), x)
    np.testing.assert_array_equal(result[0].numpy(), np.arange(p, p + n, dtype=np.float32))
    np.testing.assert_array_equal(result[1].numpy(), np.pad(x, ((p, n), (0, 0))))


@pytest.mark.slow
def test_dimension_that_is_data_is_carried_by_a_tensor_of_no_elements() -> None:
    text = """def @main(%x: Tensor[(1, n), float32], %s: Tensor[(2,), int64]) {
      add(dyn.broadcast_to(%x, %s), %x) }"""
    run = ekiden.compile(relay.parse(text))
    x = np.random.default_rng(0).normal(size=(1, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(x, np.array([3, 4])).numpy(), np.repeat(x, 3, axis=0) + x)


@pytest.mark.slow
def test_dimension_that_a_fused_kernel_hides_is_carried() -> None:
    text = """def @main(%x: Tensor[(5, 3), float32], %v: Tensor[(5,), float32]) {
      let %p = argwhere(greater(%v, 0f));
      let %y = take(%x, take(%p, 0, axis=1), axis=0);
      take(%y, arange(start=0, stop=1, step=1, dtype="int32"), axis=0) }"""
    run = ekiden.compile(relay.parse(text))
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    v = np.array([-1, 1, 0, 2, 3], np.float32)
    np.testing.assert_array_equal(run(x, v).numpy(), x[1:2])
