"""Fusion stores a result that consumers would otherwise recompute too often."""

from __future__ import annotations

import numpy as np

import ekiden
from ekiden import relay

EXTENT = 64


def running_sum() -> ekiden.IRModule:
    """By doubling: each step adds what is 1, 2, 4, ... elements before."""
    x = relay.var("x", shape=(3, EXTENT), dtype="float32")
    result, step = x, 1
    while step < EXTENT:
        head = relay.strided_slice(result, [0], [step], axes=[1])
        later = relay.strided_slice(result, [step], [EXTENT], axes=[1])
        before = relay.strided_slice(result, [0], [EXTENT - step], axes=[1])
        result = relay.concatenate([head, relay.tanh(relay.add(later, before))], axis=1)
        step *= 2
    return ekiden.IRModule.from_expr(relay.Function([x], result))


def test_fusion_limits_recomputation() -> None:
    exe = ekiden.compile(running_sum())
    data = np.random.default_rng(0).standard_normal((3, EXTENT)).astype(np.float32)
    expected, step = data.copy(), 1
    while step < EXTENT:
        expected[:, step:] = np.tanh(expected[:, step:] + expected[:, :-step])
        step *= 2
    np.testing.assert_allclose(exe(data).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_elementwise_consumers_are_fused() -> None:
    x = relay.var("x", shape=(8, 8), dtype="float32")
    result = x
    for _ in range(40):  # each value is read twice, by elements that are the same
        result = relay.add(relay.tanh(result), result)
    module = relay.transform.InferType()(ekiden.IRModule.from_expr(relay.Function([x], result)))
    text = relay.transform.FuseOps(2)(module).astext()
    assert text.count("Primitive=1") == 1
