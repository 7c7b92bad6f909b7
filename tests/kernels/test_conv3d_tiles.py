"""Convolutions over three axes, plain and transposed, against NumPy: strides, padding, dilation,
groups, symbolic sizes, constant and later weights. They run in register tiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.prim import SizeVar
from long_runs import share

Ints = tuple[int, ...]
ONE = (1, 1, 1)


def convolve(
    x: np.ndarray, w: np.ndarray, strides: Ints, padding: Ints, dilation: Ints, groups: int
) -> np.ndarray:
    """NCDHW data, OIDHW weights: a sum over taps."""
    around = tuple(zip(padding[:3], padding[3:], strict=True))
    x = np.pad(x, ((0, 0), (0, 0), *around)).astype(np.float64)
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    steps = zip(x.shape[2:], reach, strides, strict=True)
    counts = [(size - r) // s + 1 for size, r, s in steps]
    result = np.zeros((len(x), len(w), *counts))
    for tap in np.ndindex(*w.shape[2:]):
        at = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, counts, strides, strict=True)
        )
        parts = zip(np.split(x[:, :, *at], groups, 1), np.split(w[:, :, *tap], groups), strict=True)
        result += np.concatenate([np.einsum("ncdhw,oc->nodhw", a, b) for a, b in parts], 1)
    return result


def scatter(
    x: np.ndarray, w: np.ndarray, strides: Ints, padding: Ints, dilation: Ints, groups: int,
    extra: Ints,
) -> np.ndarray:  # fmt: skip
    """NCDHW data, IODHW weights: every pixel adds its multiple of the weights to the result."""
    sizes = x.shape[2:]
    whole = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(sizes, strides, w.shape[2:], dilation, extra, strict=True)
    ]
    result = np.zeros((len(x), w.shape[1] * groups, *whole))
    for tap in np.ndindex(*w.shape[2:]):
        at = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, sizes, strides, strict=True)
        )
        parts = zip(np.split(x, groups, 1), np.split(w[:, :, *tap], groups), strict=True)
        output = [np.einsum("ncdhw,co->nodhw", a, b) for a, b in parts]
        result[:, :, *at] += np.concatenate(output, 1)
    ends = zip(padding[:3], whole, padding[3:], strict=True)
    return result[:, :, *(slice(before, n - after) for before, n, after in ends)]


def run(
    call: relay.Expr, data: relay.Var, weight: relay.Expr, x: np.ndarray, w: np.ndarray,
    expected: np.ndarray,
) -> None:  # fmt: skip
    """relu(call + 0.5) is as expected, from a tiled kernel."""
    is_given = isinstance(weight, relay.Var)
    out = relay.nn.relu(relay.add(call, relay.const(np.float32(0.5))))
    function = relay.Function([data, weight] if is_given else [data], out)
    program = ekiden.compile(ekiden.IRModule.from_expr(function))
    actual = program(*([x, w] if is_given else [x])).numpy()
    np.testing.assert_allclose(actual, np.maximum(expected + 0.5, 0), rtol=1e-4, atol=1e-4)


def parameters(
    shape: Sequence[int], weights: Sequence[int], kind: str
) -> tuple[relay.Var, relay.Expr, np.ndarray, np.ndarray]:
    """Data and weight as expressions and as arrays; `kind` says what is known when."""
    random = np.random.default_rng(0)
    x, w = random.standard_normal(shape, np.float32), random.standard_normal(weights, np.float32)
    sizes = [SizeVar(n) for n in "dhw"] if kind == "symbolic" else shape[2:]
    data = relay.var("x", shape=(*shape[:2], *sizes), dtype="float32")
    if kind == "later":
        return data, relay.var("w", shape=weights, dtype="float32"), x, w
    return data, relay.const(w), x, w


# fmt: off
PLAIN = [
    # data            weight              strides    padding             dilation   groups
    ((1, 5, 6, 7, 20),  (20, 5, 3, 3, 3),  ONE,       (1,) * 6,           ONE,       1),
    ((2, 5, 6, 7, 20),  (70, 5, 3, 3, 3),  (2, 1, 2), (1, 0, 2, 0, 1, 1), ONE,       1),
    ((2, 5, 6, 7, 20),  (7, 5, 2, 1, 3),   (1, 2, 2), (0,) * 6,           (2, 1, 1), 1),
    ((1, 5, 3, 4, 5),   (20, 5, 1, 1, 1),  ONE,       (0,) * 6,           ONE,       1),
    ((1, 1, 8, 9, 20),  (16, 1, 3, 3, 3),  (2, 2, 2), (1,) * 6,           ONE,       1),
    ((2, 40, 3, 4, 5),  (70, 40, 3, 3, 3), ONE,       (1,) * 6,           ONE,       1),
    ((1, 8, 6, 7, 20),  (12, 2, 3, 3, 3),  (2, 1, 1), (1,) * 6,           ONE,       4),
    ((2, 8, 6, 7, 20),  (8, 1, 3, 3, 3),   (2, 1, 1), (1,) * 6,           (1, 1, 2), 8),
    ((2, 8, 6, 7, 20),  (8, 1, 3, 3, 3),   (1, 1, 2), (0,) * 6,           (2, 1, 1), 8),
    ((2, 1, 6, 7, 20),  (16, 1, 2, 2, 2),  (2, 1, 1), (0, 2, 1, 2, 1, 1), (2, 1, 2), 1),
    ((2, 8, 6, 7, 20),  (8, 1, 3, 3, 3),   (1, 1, 2), (1,) * 6,           (2, 1, 1), 8),
    ((3, 8, 2, 3, 4),   (16, 8, 3, 3, 3),  ONE,       (1,) * 6,           ONE,       1),
    ((2, 8, 3, 20, 21), (16, 8, 3, 3, 3),  (2, 1, 1), (2, 9, 8, 3, 9, 8), (2, 9, 8), 1),
    ((2, 8, 1, 5, 16),  (16, 4, 5, 3, 3),  (1, 2, 1), (2, 1, 6, 2, 1, 6), (1, 1, 6), 2),
]
TRANSPOSED = [
    # data            weight              strides    padding             dilation   groups extra
    ((1, 5, 4, 5, 14),  (5, 20, 2, 2, 2),  (2, 2, 2), (0,) * 6,           ONE,       1, (0, 0, 0)),
    ((1, 5, 4, 5, 14),  (5, 20, 4, 4, 4),  (2, 2, 2), (1,) * 6,           ONE,       1, (0, 0, 0)),
    ((2, 8, 3, 5, 14),  (8, 2, 3, 2, 4),   (2, 2, 3), (1, 0, 1, 0, 1, 2), (1, 2, 1), 4, (1, 1, 0)),
    ((2, 8, 3, 5, 14),  (8, 1, 3, 2, 4),   (2, 2, 3), (1, 0, 1, 0, 1, 2), (1, 2, 1), 8, (1, 1, 0)),
    ((2, 8, 3, 5, 14),  (8, 6, 3, 3, 3),   ONE,       (1,) * 6,           ONE,       1, (0, 0, 0)),
    ((1, 40, 3, 4, 5),  (40, 36, 4, 4, 4), (2, 2, 2), (1,) * 6,           ONE,       1, (0, 0, 0)),
]
# fmt: on


@share(4)
@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("kind", ["known", "symbolic"])
def test_tiled_conv3d_matches_numpy(
    case: tuple[Ints, Ints, Ints, Ints, Ints, int], kind: str
) -> None:
    shape, weights, strides, padding, dilation, groups = case
    data, weight, x, w = parameters(shape, weights, kind)
    call = relay.nn.conv3d(data, weight, strides, padding, dilation, groups)
    run(call, data, weight, x, w, convolve(x, w, strides, padding, dilation, groups))


@share(4)
@pytest.mark.parametrize("case", TRANSPOSED)
@pytest.mark.parametrize("kind", ["known", "symbolic"])
def test_tiled_conv3d_transpose_matches_numpy(
    case: tuple[Ints, Ints, Ints, Ints, Ints, int, Ints], kind: str
) -> None:
    shape, weights, strides, padding, dilation, groups, extra = case
    data, weight, x, w = parameters(shape, weights, kind)
    call = relay.nn.conv3d_transpose(
        data, weight, strides, padding, dilation, groups, output_padding=extra
    )
    run(call, data, weight, x, w, scatter(x, w, strides, padding, dilation, groups, extra))


@pytest.mark.parametrize("case", [PLAIN[1], PLAIN[6]])
def test_conv3d_weights_may_be_inputs(case: tuple[Ints, Ints, Ints, Ints, Ints, int]) -> None:
    shape, weights, strides, padding, dilation, groups = case
    data, weight, x, w = parameters(shape, weights, "later")
    call = relay.nn.conv3d(data, weight, strides, padding, dilation, groups)
    run(call, data, weight, x, w, convolve(x, w, strides, padding, dilation, groups))
