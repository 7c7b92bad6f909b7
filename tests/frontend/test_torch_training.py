"""Gradients, random numbers and checks in torch.compile graphs, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ekiden.frontend.torch import backend
from long_runs import alike

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own deprecations
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing that PyTorch compiled before, and nothing counted."""
    torch._dynamo.reset()
    backend.counters.clear()
    yield
    torch._dynamo.reset()


def _gradient(function: Function, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A result and the gradient of its weighted sum."""
    torch.manual_seed(5)
    leaf = x.detach().as_strided(x.shape, x.stride()).requires_grad_()
    result = function(leaf)
    (result * torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)).sum().backward()
    assert leaf.grad is not None
    return result.detach(), leaf.grad


def _check(function: Function, x: torch.Tensor) -> None:
    compiled = torch.compile(function, backend="ekiden")
    for _ in range(2):
        result, reference = _gradient(compiled, x), _gradient(function, x)
        torch.testing.assert_close(result, reference, rtol=1e-4, atol=1e-5)
    assert not backend.counters["eager"]


MATRICES = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[2.0, 1.0], [5.0, 7.0]]])


@alike(2)
@pytest.mark.parametrize("x", [MATRICES, MATRICES.mT, MATRICES[0], MATRICES[0].t()])
@pytest.mark.parametrize(
    "function", [torch.linalg.det, lambda x: torch.linalg.slogdet(x)[1]], ids=["det", "slogdet"]
)
def test_gradients_of_determinants(function: Function, x: torch.Tensor) -> None:
    _check(function, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (1j * x).imag,
        lambda x: (x * (2 + 3j)).abs(),
        lambda x: ((x + 1j) / (x - 2j)).real,
        lambda x: (1j * x).conj().imag,
    ],
)
def test_gradients_through_complex_constants(function: Function) -> None:
    _check(function, torch.tensor([0.5, -1.0, 2.0]))


@alike(3)
@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_gradients_of_embedding_bags(mode: str, padding: int | None) -> None:
    """A bag that is empty, a row that is there twice, and of equal rows the first is largest."""
    indices, offsets = torch.tensor([0, 1, 1, 2, 5]), torch.tensor([0, 2, 2])
    table = torch.arange(18.0).reshape(6, 3) % 5

    def bags(weight: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=padding)

    _check(bags, table)
    _check(bags, torch.ones(6, 3))


@alike(2)
@alike(3)
@pytest.mark.parametrize("x", [torch.ones(6, 9), torch.ones(9, 6).t(), torch.ones(6, 18)[:, ::2]])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.3),
        lambda x: F.dropout(F.dropout(x, 0.3).t().relu(), 0.2),
        lambda x: F.dropout(x, 1.0),
        lambda x: F.alpha_dropout(x.contiguous(), 0.3, True),
        lambda x: torch.native_dropout(x, 0.3, True)[0],
        lambda x: x + torch.empty_like(x).exponential_(2.0),
        lambda x: x + torch.empty_like(x).log_normal_(),
        lambda x: x * torch.rand_like(x) + torch.randn(9)[0],
        lambda x: x * torch.normal(x.detach(), 2.0),
    ],
)
def test_random_numbers_are_those_of_eager(function: Function, x: torch.Tensor) -> None:
    _check(function, x)
    compiled = torch.compile(function, backend="ekiden")
    states = []
    for call in (compiled, function):
        torch.manual_seed(3)
        call(x)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_layers_with_dropouts_draw_as_eager() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    _check(layer, torch.randn(2, 5, 8))


INVERTIBLE = torch.eye(3) * 2


@alike(2)
@pytest.mark.parametrize("has_gradient", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        torch.linalg.cholesky,
        lambda a: torch.linalg.lu_factor(a)[0],
        lambda a: torch.linalg.solve(a, a + 1),
        lambda a: torch.linalg.inv(torch.linalg.cholesky(a)),
    ],
)
def test_error_checks_in_graphs_match_eager(function: Function, has_gradient: bool) -> None:
    if has_gradient:
        _check(function, INVERTIBLE)
        return
    compiled = torch.compile(function, backend="ekiden")
    torch.testing.assert_close(compiled(INVERTIBLE), function(INVERTIBLE))
    assert backend.counters == {"compiled": 1}


def test_singular_matrix_is_pytorchs_own_error() -> None:
    compiled = torch.compile(torch.linalg.inv, backend="ekiden")
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):  # type: ignore[attr-defined]
        compiled(torch.zeros(3, 3))
