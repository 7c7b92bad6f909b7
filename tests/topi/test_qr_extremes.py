"""QR decompositions of matrices whose squares overflow or vanish."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("magnitude", [0.25, 0.01, -0.01, -0.25], ids=lambda m: f"max**{m}")
def test_qr_of_extreme_magnitudes_keeps_its_precision(dtype: str, magnitude: float) -> None:
    # Powers of two scale exactly, so that the factors are those of the unscaled matrix.
    exponent = int(magnitude * 3.6 * np.finfo(dtype).maxexp)
    matrix = np.random.default_rng(0).normal(size=(5, 3)).astype(dtype)
    x = relay.var("x", shape=matrix.shape, dtype=dtype)
    packed = relay.TupleGetItem(relay.op.linalg.geqrf(x), 0)
    tau = relay.TupleGetItem(relay.op.linalg.geqrf(x), 1)
    program = ekiden.compile(relay.Function([x], relay.Tuple([packed, tau])))
    expected, expected_tau = (t.numpy() for t in program(matrix))
    actual, actual_tau = (t.numpy() for t in program(np.ldexp(matrix, exponent)))
    epsilon = 16 * np.finfo(dtype).eps
    scale = np.where(np.tri(5, 3, -1) > 0, 0, exponent)  # R is scaled, reflections are not
    np.testing.assert_allclose(np.ldexp(actual, -scale), expected, rtol=epsilon, atol=epsilon)
    np.testing.assert_allclose(actual_tau, expected_tau, rtol=epsilon)


def test_qr_of_zeros_has_no_reflections() -> None:
    x = relay.var("x", shape=(3, 2))
    tau = relay.TupleGetItem(relay.op.linalg.geqrf(x), 1)
    result = ekiden.compile(relay.Function([x], tau))(np.zeros((3, 2), "float32"))
    assert result.numpy().tolist() == [0, 0]
