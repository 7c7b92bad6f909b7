"""torch.linalg: results where factors are unique, reconstruction elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import ekiden
from ekiden.runtime.errors import LinAlgError, RunError
from long_runs import alike

Compiled = Callable[..., object]


class Program(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Tensor) -> object:
        return self.function(*x)


def compiled(function: Callable[..., object], *x: Tensor, batched: bool = False) -> Compiled:
    batch = {0: Dim("batch")}
    sizes = ((batch,) * len(x),) if batched else None
    return ekiden.compile(Program(function), tuple(x), dynamic_shapes=sizes)


def results(result: object) -> list[np.ndarray]:
    many: Sequence[object] = result if isinstance(result, (tuple, list)) else [result]
    return [np.asarray(item) for item in many]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def positive_definite(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


UNIQUE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "inv": lambda a, b: torch.linalg.inv(a),
    "inv_ex": lambda a, b: torch.linalg.inv_ex(a),
    "solve": torch.linalg.solve,
    "solve from the right": lambda a, b: torch.linalg.solve(a, b.mT, left=False),
    "det": lambda a, b: torch.linalg.det(a),
    "slogdet": lambda a, b: torch.linalg.slogdet(a),
    "logdet": lambda a, b: torch.logdet(positive_definite(a)),
    "cholesky": lambda a, b: torch.linalg.cholesky(positive_definite(a)),
    "upper cholesky": lambda a, b: torch.linalg.cholesky(positive_definite(a), upper=True),
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(
        positive_definite(a))),
    "cholesky_inverse": lambda a, b: torch.cholesky_inverse(positive_definite(a).tril()),
    "upper triangle": lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
    "lower, from the right": lambda a, b: torch.linalg.solve_triangular(
        a, b.mT, upper=False, left=False, unitriangular=True),
    "qr": lambda a, b: torch.linalg.qr(b),
    "complete qr": lambda a, b: torch.linalg.qr(b, mode="complete"),
    "wide qr": lambda a, b: torch.linalg.qr(b.mT),
    "householder_product": lambda a, b: torch.linalg.householder_product(b, b[..., 0, :2]),
    "lu": lambda a, b: torch.linalg.lu(b),
    "lu_factor": lambda a, b: torch.linalg.lu_factor(a),
    "lu_solve": lambda a, b: [torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, adjoint=t)
                              for t in (False, True)],
    "lu_solve from the right": lambda a, b: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(a), b.mT, left=False),
    "lu_unpack": lambda a, b: torch.lu_unpack(*torch.linalg.lu_factor(b)),
    "singular values": lambda a, b: torch.linalg.svdvals(b),
    "eigenvalues": lambda a, b: torch.linalg.eigvalsh(a, UPLO="U"),
    "norms": lambda a, b: (torch.linalg.matrix_norm(a, 2), torch.linalg.cond(a)),
    "matrix_rank": lambda a, b: torch.linalg.matrix_rank(b @ b.mT),
    "pinv": lambda a, b: torch.linalg.pinv(b),
    "pinv of a triangle": lambda a, b: torch.linalg.pinv(a, hermitian=True),
    "pinv above each": lambda a, b: torch.linalg.pinv(b, atol=b[:, 0, 0].abs()),
    "lstsq": lambda a, b: torch.linalg.lstsq(b.mT, b[:, 0]),
    "lstsq of full rank": lambda a, b: torch.linalg.lstsq(b, a[..., 0], driver="gels"),
    "matrix_exp": lambda a, b: torch.matrix_exp(a),
    "matrix_power": lambda a, b: torch.linalg.matrix_power(a, -2),
}  # fmt: skip


OF_ONE_BATCH = (
    "norms", "pinv", "pinv of a triangle", "pinv above each", "lstsq", "lstsq of full rank",
)  # fmt: skip
"""What torch.export takes for a known batch alone."""


@alike(4)
@pytest.mark.parametrize("name", UNIQUE)
def test_linalg_results_match_pytorch(name: str) -> None:
    """One compile for every batch."""
    is_fixed = name in OF_ONE_BATCH
    exe = compiled(UNIQUE[name], normal(2, 4, 4), normal(2, 4, 3), batched=not is_fixed)
    for batch in (2,) if is_fixed else (3, 1):
        a, b = normal(batch, 4, 4, seed=batch), normal(batch, 4, 3, seed=7)
        expected = results(UNIQUE[name](a, b))
        for have, want in zip(results(exe(a, b)), expected, strict=True):
            assert have.dtype == want.dtype and have.shape == want.shape
            np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-3)


def test_absolute_tolerance_alone_has_no_relative_one_beside_it() -> None:
    """4 eps * 1 is above the second singular value."""
    x = torch.diag(torch.tensor([1.0, 1e-7]))
    exe = compiled(lambda a: torch.linalg.pinv(a, atol=1e-9), x, batched=False)
    (result,) = results(exe(x))
    np.testing.assert_allclose(result, np.diag([1.0, 1e7]), rtol=1e-3)


@alike(4)
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("shape", [(4, 4), (5, 2), (2, 19), (1, 1)])
def test_svd_factors_reconstruct_the_matrix(shape: tuple[int, int], full: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return torch.linalg.svd(x, full_matrices=full)

    x = normal(*shape).double()
    x[-1] = 2 * x[0] if shape[0] > 2 else x[-1]  # a singular value of 0
    left, values, right = results(compiled(function, x)(x))
    assert [r.shape for r in (left, values, right)] == [tuple(r.shape) for r in function(x)]
    count = len(values)
    np.testing.assert_allclose(left[:, :count] * values @ right[:count], x, atol=1e-12)
    for turned in (left.T, right):
        np.testing.assert_allclose(turned @ turned.T, np.eye(len(turned)), atol=1e-12)
    np.testing.assert_allclose(values, torch.linalg.svdvals(x), atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 17])
def test_eigenvectors_satisfy_the_eigenvalue_equation(size: int) -> None:
    x = normal(2, size, size)
    x[1] = 3 * torch.eye(size)  # one eigenvalue, many times
    values, vectors = results(compiled(torch.linalg.eigh, x)(x))
    symmetric = np.tril(x) + np.tril(x, -1).swapaxes(1, 2)
    back = vectors * values[:, None] @ vectors.swapaxes(1, 2)
    np.testing.assert_allclose(back, symmetric, atol=2e-5)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(symmetric), atol=2e-5)


def test_matrices_of_large_and_small_numbers() -> None:
    """Squares of elements are beyond float32."""
    x = normal(5, 5)
    for scale in (1e25, 1e-25):
        result = np.asarray(compiled(torch.linalg.svdvals, x)(x * scale))
        np.testing.assert_allclose(result, torch.linalg.svdvals(x) * scale, rtol=1e-5)


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.linalg.inv, "pivot 2 at position 1 is 0: the matrix is singular"),
        (torch.linalg.cholesky, "the leading minor of order 2 at position 1 is not positive: the "
         "matrix is not positive definite"),
    ],
)  # fmt: skip
def test_failing_decomposition_names_node_and_matrix(
    function: Callable[[Tensor], Tensor], message: str, executor: str
) -> None:
    good = torch.eye(3).repeat(2, 1, 1)
    exe = ekiden.compile(Program(function), (good,), executor=executor)
    np.testing.assert_allclose(np.asarray(exe(good)), good)
    bad = good.clone()
    bad[1, 1, 1] = -0.0 if function is torch.linalg.inv else -1.0
    with pytest.raises(LinAlgError, match=message) as caught:
        exe(bad)
    assert "linalg_" in str(caught.value) and isinstance(caught.value, RunError)
    np.testing.assert_allclose(np.asarray(exe(good)), good)  # and goes on


def test_decomposition_with_info_does_not_raise() -> None:
    def function(x: Tensor) -> object:
        inverse, info = torch.linalg.inv_ex(x)
        return torch.where(info[..., None, None] == 0, inverse, 0.0), info

    result, info = results(compiled(function, torch.eye(2))(torch.ones(2, 2)))
    assert info == 2 and not result.any()


def test_checked_decomposition_raises() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.inv_ex(x, check_errors=True).inverse

    with pytest.raises(LinAlgError, match="pivot 2 is 0: the matrix is singular"):
        compiled(function, torch.eye(2))(torch.ones(2, 2))
