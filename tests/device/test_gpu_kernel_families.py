"""Families of kernels for devices of many threads, against NumPy: through OpenCL's driver, and as
CUDA C on fibers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay.expr import RelayExpr
from ekiden.runtime import Device
from ekiden.target import Target
from long_runs import alike

RNG = np.random.default_rng(5)
EPS = float(np.finfo("float32").eps)
Case = tuple[Callable[..., RelayExpr], tuple[np.ndarray, ...], Callable[..., np.ndarray], int]
"""The program, what it is given, what it means in float64, terms of each sum."""


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def _conv(x: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    """Stride 1, borders of 1."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))
    n, c, h, v = windows.shape[:4]
    windows = windows.reshape(n, groups, c // groups, h, v, *w.shape[2:])
    weights = w.reshape(groups, -1, *w.shape[1:])
    return np.einsum("ngchvij,gocij->ngohv", windows, weights).reshape(n, -1, h, v)


def conv(x: RelayExpr, w: RelayExpr, groups: int) -> RelayExpr:
    taps = {"padding": (1, 1), "kernel_size": (3, 3), "groups": groups}
    return relay.nn.relu(relay.nn.conv2d(x, w, **taps))


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, shift: int) -> np.ndarray:
    """Each query sees the keys up to its own place and so many more; none, and it gives 0."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = np.einsum("bhsd,bhtd->bhst", q, k) / np.sqrt(q.shape[3])
    rows, keys = np.ogrid[: q.shape[2], : k.shape[2]]
    shares = np.where(keys <= rows + shift, np.exp(scores - scores.max(3, keepdims=True)), 0)
    totals = shares.sum(3, keepdims=True)
    return np.einsum("bhst,bhtd->bhsd", shares / np.where(totals == 0, 1, totals), v)


# fmt: off
CASES: dict[str, Case] = {
    "dense": (lambda x, w: relay.tanh(relay.nn.dense(x, w)), (numbers(7, 33), numbers(19, 33)),
              lambda x, w: np.tanh(x @ w.T), 33),
    "dense of one row": (relay.nn.dense, (numbers(1, 130), numbers(70, 130)),
                         lambda x, w: x @ w.T, 130),
    "batch_matmul": (relay.nn.batch_matmul, (numbers(3, 17, 9), numbers(3, 66, 9)),
                     lambda x, y: np.einsum("zmk,znk->zmn", x, y), 9),
    "matmul of neighbours": (relay.nn.matmul, (numbers(20, 40), numbers(40, 36)),
                             lambda x, y: x @ y, 40),
    "conv2d of neighbours": (
        lambda x, w: relay.nn.conv2d(x, w, kernel_size=(1, 1)),
        (numbers(2, 20, 4, 8), numbers(12, 20, 1, 1)),
        lambda x, w: np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]), 20),
    "conv2d": (lambda x, w: conv(x, w, 1), (numbers(2, 3, 9, 7), numbers(5, 3, 3, 3)),
               lambda x, w: np.maximum(_conv(x, w, 1), 0), 27),
    "grouped conv2d": (lambda x, w: conv(x, w, 2), (numbers(2, 4, 5, 11), numbers(6, 2, 3, 3)),
                       lambda x, w: np.maximum(_conv(x, w, 2), 0), 18),
    "conv2d of many channels": (lambda x, w: conv(x, w, 1),
                                (numbers(1, 9, 5, 7), numbers(37, 9, 3, 3)),
                                lambda x, w: np.maximum(_conv(x, w, 1), 0), 81),
    "sum": (lambda x: relay.sqrt(relay.sum(x * x, axis=1)), (numbers(3, 1001),),
            lambda x: np.sqrt((x * x).sum(1)), 1001),
    "max": (relay.max, (numbers(5, 257),), lambda x: x.max(), 1),
    "softmax": (relay.nn.softmax, (numbers(3, 70),),
                lambda x: (e := np.exp(x - x.max(1, keepdims=True))) / e.sum(1, keepdims=True), 70),
    "layer_norm": (lambda x: relay.nn.layer_norm(x, relay.const(np.ones(40, "float32")),
                                                 relay.const(np.zeros(40, "float32"))),
                   (numbers(6, 40),),
                   lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(
                       x.var(1, keepdims=True) + 1e-5), 40),
    "softmax of short rows": (
        relay.nn.softmax, (numbers(4, 5, 7),),
        lambda x: (e := np.exp(x - x.max(2, keepdims=True))) / e.sum(2, keepdims=True), 7),
    "log_softmax of columns": (
        lambda x: relay.nn.log_softmax(x, axis=1), (numbers(9, 41, 3),),
        lambda x: x - np.log(np.exp(x).sum(1, keepdims=True)), 41),
    "softmax of rows that no block keeps": (
        relay.nn.softmax, (numbers(2, 2051),),
        lambda x: (e := np.exp(x - x.max(1, keepdims=True))) / e.sum(1, keepdims=True), 2051),
    "instance_norm": (lambda x: relay.nn.instance_norm(x, relay.const(np.ones(4, "float32")),
                                                       relay.const(np.zeros(4, "float32"))),
                      (numbers(3, 4, 5, 7),),
                      lambda x: (x - x.mean((2, 3), keepdims=True)) / np.sqrt(
                          x.var((2, 3), keepdims=True) + 1e-5), 35),
    "attention": (relay.nn.attention, (numbers(2, 3, 19, 12), numbers(2, 3, 48, 12),
                                       numbers(2, 3, 48, 16)),
                  lambda q, k, v: attended(q, k, v, 48), 60),
    "attention of one query": (relay.nn.attention, (numbers(1, 4, 1, 16), numbers(1, 2, 70, 16),
                                                    numbers(1, 2, 70, 16)),
                               lambda q, k, v: attended(q, k, v, 70), 90),
    "attention without keys": (
        lambda q, k, v: relay.nn.attention(q, k, v, causal="end", nan_as_zero=True),
        (numbers(1, 2, 40, 8), numbers(1, 2, 5, 8), numbers(1, 2, 5, 8)),
        lambda q, k, v: attended(q, k, v, -35), 16),
    "max_pool2d": (lambda x: relay.nn.max_pool2d(x, (2, 2), (2, 2)), (numbers(1, 3, 8, 6),),
                   lambda x: x.reshape(1, 3, 4, 2, 3, 2).max((3, 5)), 1),
    "cumsum": (lambda x: relay.cumsum(x, axis=1), (numbers(5, 37),), lambda x: x.cumsum(1), 37),
    "sort": (lambda x: relay.sort(x, axis=1), (numbers(5, 37),), lambda x: np.sort(x, 1), 1),
    "gather": (lambda x: relay.take(x, relay.const(np.array([4, 0, 2, 2])), axis=0),
               (numbers(5, 7),), lambda x: x[[4, 0, 2, 2]], 1),
    "scatter_add": (lambda x, u: relay.scatter_elements(
                        x, relay.const(np.array([[1, 1, 0, 2]])), u, axis=0, reduction="add"),
                    (numbers(3, 4), numbers(1, 4)), lambda x, u: _scattered(x, u), 2),
    "scatter of rows that meet": (
        lambda x, u: relay.scatter_nd(x, relay.const(np.array([[1, -1, 1, 0, 1]])), u, "mean"),
        (numbers(3, 48), numbers(5, 48)), lambda x, u: _averaged(x, u), 5),
    "scatter of elements that meet": (
        lambda x, u: relay.scatter_nd(x, relay.const(np.array([[1, 2, 1, 0, 1]])), u, "update"),
        (numbers(3), numbers(5)), lambda x, u: u[[3, 4, 1]], 1),
    "scatter of images": (
        lambda x, u: relay.scatter_nd(x, relay.const(np.array([[1, 0, 1]])), u, "update"),
        (numbers(2, 5, 7), numbers(3, 5, 7)), lambda x, u: u[[1, 2]], 1),
    "channels": (lambda x, b: relay.nn.relu(x + b), (numbers(2, 5, 7, 9), numbers(5, 1, 1)),
                 lambda x, b: np.maximum(x + b, 0), 1),
    "neighbours": (lambda x, b: relay.nn.relu(x + b), (numbers(3, 11, 8, 12), numbers(11, 1, 1)),
                   lambda x, b: np.maximum(x + b, 0), 1),
    "pad": (lambda x: relay.nn.pad(x, ((0, 0), (1, 2), (3, 1))), (numbers(2, 11, 13),),
            lambda x: np.pad(x, ((0, 0), (1, 2), (3, 1))), 1),
    "max of columns": (lambda x: relay.max(x, axis=0), (numbers(12, 40),), lambda x: x.max(0), 1),
    "mean of columns": (lambda x: relay.mean(x, axis=0), (numbers(12, 33),),
                        lambda x: x.mean(0), 12),
    "long rows": (lambda x: relay.max(x, axis=(1, 2)), (numbers(3, 2, 131),),
                  lambda x: x.max((1, 2)), 1),
    "stride 2": (lambda x: relay.nn.avg_pool2d(x, (3, 3), (2, 2)), (numbers(1, 2, 9, 35),),
                 lambda x: np.lib.stride_tricks.sliding_window_view(
                     x, (3, 3), (2, 3))[:, :, ::2, ::2].mean((4, 5)), 9),
    "types": (lambda x: relay.cast(relay.cast(x, "int8"), "float64"), (numbers(7, 33) * 20,),
              lambda x: x.astype("int8").astype("float64"), 1),
    "transpose": (lambda x: relay.transpose(x, (2, 0, 1)), (numbers(3, 5, 70),),
                  lambda x: x.transpose(2, 0, 1), 1),
}
# fmt: on


def _scattered(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    result = x.copy()
    np.add.at(result, (np.array([[1, 1, 0, 2]]), np.arange(4)[None]), u)
    return result


def _averaged(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Each update averages a row with itself, in order."""
    result = x.copy()
    for row, update in zip([1, -1, 1, 0, 1], u, strict=True):
        result[row] = (result[row] + update) / 2
    return result


def check(name: str, target: Target, shared: int | None) -> None:
    """A case on a target, its products with memory of the block or without."""
    program, argument, meaning, terms = CASES[name]
    params = [relay.var(f"x{i}", shape=g.shape) for i, g in enumerate(argument)]
    module = IRModule.from_expr(relay.Function(params, program(*params)))
    fixed = {} if shared is None else {"thread_product": {"shared": shared}}
    actual = ekiden.compile(module, target, decisions=fixed)(*argument).numpy()
    wide = [g.astype("float64") for g in argument]
    expected = meaning(*wide)
    bound = (terms + 8) * EPS * max(1.0, float(np.abs(meaning(*map(np.abs, wide))).max()))
    assert actual.shape == expected.shape and float(np.abs(actual - expected).max()) <= bound


PRODUCTS = [n for n, (*_, terms) in CASES.items() if "dense" in n or "conv" in n or "matmul" in n]
SHARED = [(n, s) for n in PRODUCTS for s in (0, 1)]
OTHERS = [(n, None) for n in CASES if n not in PRODUCTS]


@alike(4)
@pytest.mark.parametrize(("name", "shared"), SHARED + OTHERS)
def test_kernel_families_on_opencl_match_numpy(
    opencl: Device, name: str, shared: int | None
) -> None:
    check(name, Target("opencl"), shared)


@alike(6)
@pytest.mark.parametrize("name", CASES)
def test_vectorized_kernel_families_match_numpy(opencl: Device, name: str) -> None:
    """Of another width than the device prefers."""
    check(name, Target("opencl -device=any -vector-bits=256"), None)


@alike(4)
@pytest.mark.parametrize(("name", "shared"), SHARED + OTHERS)
def test_kernel_families_as_cuda_match_numpy(
    fake_cuda: Device, name: str, shared: int | None
) -> None:
    assert fake_cuda.exist
    check(name, Target("cuda"), shared)
