"""Products with matrices that are not known when code is made: few rows, panel by panel, stored
transposed, against NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ekiden import te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import SizeVar, const
from ekiden.ir.transform import PassContext
from ekiden.kernels import schedule, select_kernel
from ekiden.kernels.cpu.skinny_gemm import SkinnyGemm
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.te.tensor import Tensor
from ekiden.tir.transform import lower
from ekiden.topi.nn import batch_matmul, matmul
from long_runs import share

HOST = Target.host()
Dim = int | SizeVar


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def compiled(inputs: list[Tensor], output: Tensor, target: Target) -> Callable[..., object]:
    func = schedule(inputs, [output], target, "kernel")
    image = link_image([compile_object([lower(func, target)], target)], ["kernel"])
    kernel: Callable[..., object] = load_image(image)["kernel"]
    return kernel


def product(
    a: Sequence[Dim], b: Sequence[Dim], tb: bool = False, target: Target = HOST
) -> Callable[..., object]:
    left, right = te.placeholder(tuple(a), name="a"), te.placeholder(tuple(b), name="b")
    op = batch_matmul if len(b) == 3 else matmul
    return compiled([left, right], op(left, right, transpose_b=tb), target)


def check(kernel: Callable[..., object], x: np.ndarray, y: np.ndarray, tb: bool = False) -> None:
    expected = x.astype(np.float64) @ (np.swapaxes(y, -1, -2) if tb else y)
    out = np.full(expected.shape, np.nan, "float32")
    kernel(x, y, out)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


either_way = pytest.mark.parametrize("tb", [False, True], ids=["plain", "transposed"])


def stored(k: int, n: int, tb: bool) -> np.ndarray:
    """A matrix of k rows, or of n where it is stored transposed."""
    return random(n, k) if tb else random(k, n)


@share(4)
@either_way
@pytest.mark.parametrize("m", [1, 3, 7])
@pytest.mark.parametrize(("n", "k"), [(16, 8), (1, 9), (37, 1), (1000, 19), (5000, 3), (40, 0)])
def test_few_row_matmul_matches_numpy(m: int, n: int, k: int, tb: bool) -> None:
    y = stored(k, n, tb)
    check(product((m, k), y.shape, tb), random(m, k), y, tb)


@either_way
@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3"])
def test_few_rows_on_narrower_vectors(cpu: str, tb: bool) -> None:
    target = Target.parse(f"llvm -mcpu={cpu} -cores=2")
    y = stored(21, 300, tb)
    check(product((2, 21), y.shape, tb, target), random(2, 21), y, tb)


@either_way
def test_few_rows_of_a_matrix_of_any_size(tb: bool) -> None:
    n, k = SizeVar("n"), SizeVar("k")
    kernel = product((2, k), (n, k) if tb else (k, n), tb)
    for columns, depth in ((1, 1), (70, 9), (3000, 16), (64, 0), (5, 67)):
        check(kernel, random(2, depth), stored(depth, columns, tb), tb)


@either_way
def test_few_row_batch_matmul_matches_numpy(tb: bool) -> None:
    y = random(3, 50, 20) if tb else random(3, 20, 50)
    check(product((3, 2, 20), y.shape, tb), random(3, 2, 20), y, tb)


def test_few_row_matmul_does_not_pack_the_matrix() -> None:
    for tb, how in ((True, "dots"), (False, "streamed")):
        for rows in (7, 8):
            tensor = matmul(te.placeholder((rows, 64)), te.placeholder((64, 64)), transpose_b=tb)
            assert (select_kernel([tensor], HOST).decision["rhs_access"] == how) == (rows == 7)


@either_way
@pytest.mark.parametrize(("m", "k"), [(2, 64), (300, 77), (17, 5), (5, 0)])
def test_single_column_matmul_matches_numpy(m: int, k: int, tb: bool) -> None:
    y = stored(k, 1, tb)
    check(product((m, k), y.shape, tb), random(m, k), y, tb)
    y = random(3, 1, k) if tb else random(3, k, 1)
    check(product((3, m, k), y.shape, tb), random(3, m, k), y, tb)


@pytest.mark.parametrize("cpu", ["nehalem", "znver3"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_column_beside_narrower_vectors(cpu: str, dtype: str) -> None:
    target, m, k = Target.parse(f"llvm -mcpu={cpu}"), SizeVar("m"), SizeVar("k")
    for is_left_turned in (False, True):
        shape = (2, k, m) if is_left_turned else (2, m, k)
        left, right = te.placeholder(shape, dtype), te.placeholder((2, k, 1), dtype)
        result = batch_matmul(left, right, transpose_a=is_left_turned, transpose_b=False)
        kernel = compiled([left, right], result, target)
        for rows, depth in ((1, 3), (37, 70), (0, 4)):
            x, y = random(2, rows, depth).astype(dtype), random(2, depth, 1).astype(dtype)
            data = np.ascontiguousarray(x.swapaxes(1, 2)) if is_left_turned else x
            out = np.full((2, rows, 1), np.nan, dtype)
            kernel(data, y, out)
            np.testing.assert_allclose(out, x @ y, rtol=1e-4, atol=1e-4)


def test_single_column_matmul_does_not_pack_the_left_matrix() -> None:
    for shape, turned, how in (((9, 64), False, "dots"), ((64, 9), True, "streamed")):
        left, right = te.placeholder((2, *shape)), te.placeholder((2, 64, 1))
        result = batch_matmul(left, right, transpose_a=turned, transpose_b=False)
        assert select_kernel([result], HOST).decision["rhs_access"] == how


def test_single_column_matmul_with_every_decision_and_epilogue() -> None:
    a, b = te.placeholder((3, 45, 30), name="a"), te.placeholder((3, 30, 1), name="b")
    bias = te.placeholder((45, 1), name="bias")
    result = batch_matmul(a, b, transpose_b=False)
    output = te.compute(
        (3, 45, 1),
        lambda i, j, n: call_intrin("tanh", result[i, j, n] + bias[j, n], dtype="float32"),
    )
    x, y, z = random(3, 45, 30), random(3, 30, 1), random(45, 1)
    for how in ("dots", "panels", "whole"):
        with PassContext(config={"kernels.decisions": {"batch_matmul": {"rhs_access": how}}}):
            kernel = compiled([a, b, bias], output, HOST)
        out = np.zeros((3, 45, 1), "float32")
        kernel(x, y, z, out)
        np.testing.assert_allclose(out, np.tanh(x @ y + z), rtol=1e-4, atol=1e-5)


@either_way
def test_few_rows_with_an_epilogue(tb: bool) -> None:
    a, b = te.placeholder((2, 30), name="a"), te.placeholder((45, 30) if tb else (30, 45), name="b")
    bias = te.placeholder((45,), name="bias")
    tensor = matmul(a, b, transpose_b=tb)
    output = te.compute(
        (2, 45), lambda i, j: call_intrin("tanh", tensor[i, j] + bias[j], dtype="float32"), name="y"
    )
    x, y, z = random(2, 30), stored(30, 45, tb), random(45)
    out = np.zeros((2, 45), "float32")
    compiled([a, b, bias], output, HOST)(x, y, z, out)
    expected = np.tanh(x @ (y.T if tb else y) + z)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@share(6)
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize(("m", "n", "k"), [(9, 300, 35), (50, 260, 16), (8, 192, 3)])
def test_panelwise_matmul_matches_numpy(m: int, n: int, k: int, cores: int, tb: bool) -> None:
    target = replace(HOST, cores=cores)
    shape = (n, k) if tb else (k, n)
    check(product((m, k), shape, tb, target), random(m, k), random(*shape), tb)


@pytest.mark.parametrize("tb", [False, True])
def test_panelwise_batch_matmul_matches_numpy(tb: bool) -> None:
    n, k = SizeVar("n"), SizeVar("k")
    kernel = product((2, 11, k), (2, n, k) if tb else (2, k, n), tb)
    for columns, depth in ((200, 40), (5, 1), (64, 17)):
        y = random(2, columns, depth) if tb else random(2, depth, columns)
        check(kernel, random(2, 11, depth), y, tb)


@share(4)
@pytest.mark.parametrize("cpu", ["host", "x86-64", "x86-64-v3"])
@pytest.mark.parametrize(
    ("a", "b", "tb"),
    [
        ((2, 21), (21, 300), False),
        ((2, 21), (300, 21), True),
        ((37, 70), (70, 301), False),
        ((37, 70), (301, 70), True),
        ((3, 9, 20), (3, 20, 16), False),
        (("m", "k"), ("k", "n"), False),
    ],
)
def test_float64_matmul_matches_numpy(
    a: tuple[Dim | str, ...], b: tuple[Dim | str, ...], tb: bool, cpu: str
) -> None:
    """Tiles of float64, to the precision of float64."""
    target = HOST if cpu == "host" else Target.parse(f"llvm -mcpu={cpu} -cores=2")
    sizes = {name: SizeVar(name) for name in "mkn"}
    numbers = {"m": 13, "k": 35, "n": 75}
    left, right = (
        te.placeholder([sizes[d] if isinstance(d, str) else d for d in shape], "float64")
        for shape in (a, b)
    )
    op = batch_matmul if len(b) == 3 else matmul
    result = op(left, right, transpose_b=tb)
    assert select_kernel([result], target).anchor is result
    kernel = compiled([left, right], te.compute(result.shape, lambda *i: result[i] + 1.0), target)
    x, y = (
        np.random.default_rng(len(shape)).standard_normal(
            [numbers[d] if isinstance(d, str) else int(str(d)) for d in shape]
        )
        for shape in (a, b)
    )
    expected = x @ (np.swapaxes(y, -1, -2) if tb else y) + 1.0
    out = np.full(expected.shape, np.nan)
    kernel(x, y, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


def test_sums_of_few_rows_stay_in_the_first_cache() -> None:

    for rows in (1, 2, 7):
        shape = SkinnyGemm(const(8), const(1 << 20), [const(0)] * rows, const(1), const(0))
        run = shape.columns_per_run(HOST)
        assert run % HOST.lanes("float32") == 0
        assert 4 * run * rows <= 4 * 4096 + 4 * rows * HOST.lanes("float32")
        assert rows * shape.matrix_rows_per_step(HOST) <= 24
