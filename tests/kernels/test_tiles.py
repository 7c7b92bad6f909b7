"""Register-tile kernels against NumPy: odd sizes, tails, empty dimensions, symbolic dimensions,
epilogues."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ekiden import te
from ekiden.codegen.llvm import assembly, compile_object, link_image
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, SizeVar, maximum
from ekiden.kernels import schedule
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.transform import lower
from ekiden.topi.nn import batch_matmul, dense_pack, matmul
from ekiden.topi.nn.weight_packing import pack_weight
from long_runs import alike, share
from rounding import LEAST, ULP, UNIT, expect_within, gamma, product

TARGET = Target.host()
WIDE = Target.parse("llvm -mcpu=x86-64-v4")
"""Whose code is looked at, not run: of it, what stays in registers is known."""
WIDTH = 4 * TARGET.lanes("float32")
Dim = int | SizeVar


def compiled(func: PrimFunc) -> Callable[..., object]:
    kernel: Callable[..., object] = load_image(
        link_image([compile_object([lower(func, TARGET)], TARGET)], [func.name])
    )[func.name]
    return kernel


def scheduled(inputs: list[te.Tensor], output: te.Tensor) -> PrimFunc:
    return schedule(inputs, [output], TARGET, "kernel")


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def product_kernel(a: Sequence[Dim], b: Sequence[Dim], ta: bool, tb: bool) -> Callable[..., object]:
    left, right = te.placeholder(tuple(a), name="a"), te.placeholder(tuple(b), name="b")
    op = batch_matmul if len(b) == 3 else matmul
    return compiled(scheduled([left, right], op(left, right, transpose_a=ta, transpose_b=tb)))


def swap(x: np.ndarray, transposed: bool) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(x, -1, -2)) if transposed else x


@share(4)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize(
    ("batch", "m", "n", "k"),
    [
        (3, 7, 5, 3),
        (2, 13, 64, 32),
        (1, 9, 70, 17),
        (2, 1, 130, 1),
        (2, 6, 16, 0),
        (1, 33, 100, 40),
        (2, 5, 0, 4),
    ],
)
def test_tiled_batch_matmul_matches_numpy(
    batch: int, m: int, n: int, k: int, ta: bool, tb: bool
) -> None:
    a, b = random(batch, m, k), random(batch, k, n)
    x, y = swap(a, ta), swap(b, tb)
    out = np.full((batch, m, n), np.nan, "float32")
    product_kernel(x.shape, y.shape, ta, tb)(x, y, out)
    expect_within(out, *product(a, b))


@pytest.mark.parametrize("tb", [False, True])
def test_symbolic_attention_shapes(tb: bool) -> None:
    h, s, t = SizeVar("h"), SizeVar("s"), SizeVar("t")
    shape = (h, t, 32) if tb else (h, 32, t)
    kernel = product_kernel((h, s, 32), shape, False, tb)
    for heads, rows, columns in [
        (1, 1, 1),
        (3, 5, 17),
        (2, 64, 64),
        (2, 70, 131),
        (2, 0, 3),
        (0, 3, 3),
    ]:
        a, b = random(heads, rows, 32), random(heads, 32, columns)
        out = np.full((heads, rows, columns), np.nan, "float32")
        kernel(a, swap(b, tb), out)
        expect_within(out, *product(a, b))


def test_symbolic_reduction_depth_matches_numpy() -> None:
    s = SizeVar("s")
    kernel = product_kernel((4, s, s), (4, s, 32), False, False)
    for rows in (1, 2, 31, 77):
        a, b = random(4, rows, rows), random(4, rows, 32)
        out = np.full((4, rows, 32), np.nan, "float32")
        kernel(a, b, out)
        expect_within(out, *product(a, b))


@pytest.mark.parametrize(("left", "right"), [(1, 3), (3, 1)])
def test_batch_of_one_is_shared(left: int, right: int) -> None:
    a, b = random(left, 5, 8), random(right, 8, 21)
    out = np.zeros((3, 5, 21), "float32")
    product_kernel(a.shape, b.shape, False, False)(a, b, out)
    expect_within(out, *product(a, b))


@pytest.mark.parametrize("leading", [(), (1,), (2, 3, 4)])
@pytest.mark.parametrize("tb", [False, True])
def test_matmul_with_leading_dimensions(leading: tuple[int, ...], tb: bool) -> None:
    a, b = random(*leading, 6, 9), random(9, 40)
    out = np.zeros((*leading, 6, 40), "float32")
    product_kernel(a.shape, swap(b, tb).shape, False, tb)(a, swap(b, tb), out)
    expect_within(out, *product(a, b))


def test_epilogue_of_batch_matmul() -> None:
    s = SizeVar("s")
    a, b = te.placeholder((2, s, 8), name="a"), te.placeholder((2, s, 8), name="b")
    mask = te.placeholder((s,), name="mask")
    scores = batch_matmul(a, b)
    out = te.compute(scores.shape, lambda i, j, k: scores[i, j, k] * 0.5 + mask[k], tag="broadcast")
    kernel = compiled(scheduled([a, b, mask], out))
    for rows in (3, 70):
        x, y, z = random(2, rows, 8), random(2, rows, 8), random(rows)
        actual = np.zeros((2, rows, rows), "float32")
        kernel(x, y, z, actual)
        exact, bound = product(x, swap(y, True))
        expected = exact * 0.5 + z
        # the scaled product and the sum are rounded once more each
        bound = bound * 0.5 + gamma(2) * (np.abs(exact * 0.5) + bound + np.abs(z))
        expect_within(actual, expected, bound)


# dense layers with packed weights


def dense_kernel(
    m: Dim,
    n: int,
    k: int,
    after: Callable[[te.Tensor], te.Tensor] | None = None,
    target: Target = TARGET,
) -> PrimFunc:
    width = 4 * target.lanes("float32")
    data = te.placeholder((m, k), name="data")
    weight = te.placeholder((-(-n // width), k, width), name="weight")
    anchor = dense_pack(data, weight, n, width)
    return schedule([data, weight], [anchor if after is None else after(anchor)], target, "kernel")


def run_dense(
    kernel: Callable[..., object], m: int, n: int, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a kernel gives, the product, and how far the two may be apart."""
    x, w = random(m, k), random(n, k)
    out = np.full((m, n), np.nan, "float32")
    kernel(x, pack_weight(w, "dense", WIDTH), out)
    return out, *product(x, w.T)


@alike(4)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (1, 1000, 31),
        (5, 63, 7),
        (6, 64, 8),
        (7, 65, 9),
        (37, 130, 33),
        (70, 17, 5),
        (300, 128, 16),
        (3, 5, 0),
        (0, 5, 3),
    ],
)
def test_tiled_dense_matches_numpy(m: int, n: int, k: int) -> None:
    expect_within(*run_dense(compiled(dense_kernel(m, n, k)), m, n, k))


def test_dense_with_any_number_of_rows() -> None:
    kernel = compiled(dense_kernel(SizeVar("m"), 100, 13))
    for m in range(71):
        expect_within(*run_dense(kernel, m, 100, 13))


def test_deep_tiled_dense_matches_numpy() -> None:
    expect_within(*run_dense(compiled(dense_kernel(19, 96, 4100)), 19, 96, 4100))


@pytest.mark.parametrize("cores", [1, 2, 7])
@pytest.mark.parametrize("cpu", ["znver4", "znver3", "nehalem"])
def test_tile_sizes_follow_runtime_sizes(cpu: str, cores: int) -> None:
    """Of columns those of a panel, and of the last one, however many threads share them out; of
    rows as many kinds. Each takes LLVM as long as the whole of a kernel without tails."""
    target = Target.parse(f"llvm -mcpu={cpu} -cores={cores}")
    one = dense_kernel(1, 1000, 64, target=target).astext()
    assert one.count("for k in") <= 2
    many = dense_kernel(130, 1000, 64, target=target).astext()
    assert many.count("for k in") <= 8  # two heights in each thread's rows, twice two widths


FUNCTIONS: dict[str, tuple[Callable[[float], float], float]] = {
    "relu": (lambda x: max(x, 0.0), 1.0),
    "tanh": (math.tanh, 1.0),
    "erf": (math.erf, 2 / math.sqrt(math.pi)),
}
"""What follows a product, and its steepest slope."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_epilogue_of_dense(name: str) -> None:
    def after(x: te.Tensor) -> te.Tensor:
        if name == "relu":
            return te.compute(x.shape, lambda i, j: maximum(x[i, j], 0.0), tag="elemwise")
        return te.compute(x.shape, lambda i, j: call_intrin(name, x[i, j]), tag="elemwise")

    kernel = compiled(dense_kernel(SizeVar("m"), 70, 20, after))
    actual, want, bound = run_dense(kernel, 11, 70, 20)
    function, steepest = FUNCTIONS[name]
    expected = np.vectorize(function)(want)
    # the error of the product times the steepest slope, then those of the function itself
    own = 2 * ULP[name][0] * UNIT * np.abs(expected) if name in ULP else 0.0
    expect_within(actual, expected, steepest * bound + own + LEAST)


@pytest.mark.parametrize("m", [37, 1024, SizeVar("m")])
def test_tiles_stay_in_registers(m: Dim) -> None:
    text = assembly([lower(dense_kernel(m, 256, 128, target=WIDE), WIDE)], WIDE)
    assert "zmm" in text
    loops = [line for line in text.splitlines() if "zmm" in line and "rsp" in line]
    assert loops == []


def test_tiles_stay_in_registers_where_much_is_computed_on_the_way_out() -> None:
    """Two sizes of tiles, and the many constants of GELU."""

    def after(x: te.Tensor) -> te.Tensor:
        def gelu(i: PrimExpr, j: PrimExpr) -> PrimExpr:
            return x[i, j] * (call_intrin("erf", x[i, j] / 1.4142135) + 1.0) * 0.5

        return te.compute(x.shape, gelu, tag="elemwise")

    text = assembly([lower(dense_kernel(16, 384, 512, after, WIDE), WIDE)], WIDE)
    assert "zmm" in text
    assert [line for line in text.splitlines() if "(%rsp), %zmm" in line] == []
