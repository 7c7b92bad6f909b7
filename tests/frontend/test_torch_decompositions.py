"""Operators that are taken apart by definitions of ours, and what only programs of many users have:
layers on odd shapes, distinct elements, exported programs by TVM's name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ekiden
from ekiden import relay
from long_runs import alike, share

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> object:
        return self.function(*args)


def check(module: nn.Module, *args: torch.Tensor) -> None:
    """Compiled, it gives what PyTorch gives."""
    module.eval()
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(module(*args))
        actual = torch.utils._pytree.tree_leaves(ekiden.compile(module, args)(*args))
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(torch.from_dlpack(a), b, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.5, float("inf")])
def test_cdist_of_any_order_matches_pytorch(p: float) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 4, 3), torch.randn(2, 5, 3)
    y[0, 0] = x[0, 0]
    check(Apply(lambda a, b: torch.cdist(a, b, p=p)), x, y)


@share(6)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_bags_match_pytorch(mode: str, padding: int | None) -> None:
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(10, 4, mode=mode, padding_idx=padding)
    check(bag, torch.tensor([[1, 2, 5], [2, 2, 2], [9, 0, 2]]))
    check(bag, torch.tensor([1, 2, 4, 5, 4]), torch.tensor([0, 2, 2, 4]))  # one bag is empty


TARGETS = torch.tensor([[1, 1, 3, 5], [2, 4, 1, 0], [5, 5, 5, 5]])


@alike(4)
@pytest.mark.parametrize(
    ("targets", "lengths", "options"),
    [
        (TARGETS, ([9, 7, 3], [4, 3, 4]), {"reduction": "none"}),
        (TARGETS[:, :3], ([9, 7, 6], [3, 0, 3]), {"zero_infinity": True, "reduction": "sum"}),
        (TARGETS.flatten()[:7], ([9, 7, 6], [4, 2, 1]), {"reduction": "sum", "blank": 4}),
    ],
)
@pytest.mark.parametrize("is_data", [False, True])
def test_ctc_losses_match_pytorch(
    targets: torch.Tensor, lengths: tuple[list[int], list[int]], options: object, is_data: bool
) -> None:
    """Equal neighbours, targets that are empty, too long for their input, or one after the other;
    lengths that are numbers and those that are data."""
    x = torch.randn(9, 3, 6, generator=torch.Generator().manual_seed(3)).log_softmax(2)
    if is_data:
        check(Apply(lambda *a: F.ctc_loss(*a, **options)), x, targets, *map(torch.tensor, lengths))
    else:
        check(Apply(lambda a, b: F.ctc_loss(a, b, *lengths, **options)), x, targets)


def test_embedding_bags_with_weights_and_a_last_offset() -> None:
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(10, 4, mode="sum", include_last_offset=True)
    indices, offsets = torch.tensor([1, 2, 4, 5, 4]), torch.tensor([0, 3, 5])
    check(Apply(lambda i, o, w: F.embedding_bag(
        i, bag.weight, o, mode="sum", per_sample_weights=w, include_last_offset=True
    )), indices, offsets, torch.randn(5))  # fmt: skip


@share(8)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(5, 9), (3, 3), (1, 16), (11, 20)])
@pytest.mark.parametrize("align", [False, True])
def test_antialiased_resize_matches_pytorch(mode: str, size: tuple[int, int], align: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 13)
    check(
        Apply(lambda v: F.interpolate(v, size, mode=mode, antialias=True, align_corners=align)), x
    )


def test_integer_shifts_match_pytorch() -> None:
    check(Apply(lambda x: (x >> 1, x << 2, x >> x.abs())), torch.arange(-6, 7))


CHOSEN: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "masked_select": lambda x, n: (x.masked_select(x > 0), n.masked_select(n[:1] > 2)),
    "kthvalue": lambda x, n: (x.kthvalue(3, 0), x.kthvalue(2, keepdim=True)),
    "mode": lambda x, n: n.mode(1),
    "nanmedian": lambda x, n: (torch.nanmedian(x, 1), torch.nanmedian(x)),
    "unique_consecutive": lambda x, n: torch.unique_consecutive(
        n, return_inverse=True, return_counts=True),
    "nonzero_static": lambda x, n: (torch.nonzero_static(n > 2, size=4),
                                    torch.nonzero_static(n > 1, size=30)),
    "index_reduce": lambda x, n: x.nan_to_num().index_reduce(
        0, n[:, 0] % 4, x.nan_to_num(), "amax"),
    "put": lambda x, n: n.put(torch.tensor([0, 7, -1]), torch.tensor([5, 6, 9])),
    "as_strided_scatter": lambda x, n: (
        torch.as_strided_scatter(n, n[:2, :3] * 0, (2, 3), (6, 2), 1),
        torch.as_strided_scatter(x[0], x[0, 0], (), ())),
    "pdist": lambda x, n: F.pdist(x.nan_to_num()),
    "addbmm": lambda x, n: torch.addbmm(x[:, :4], x[None], x.mT[None], beta=2, alpha=3),
    "places of adaptive pools": lambda x, n: (
        F.adaptive_max_pool2d(x.nan_to_num()[None], (3, 4), return_indices=True),
        F.adaptive_max_pool1d(n[:, None] * 1.0 + x.nan_to_num()[:, None], 4, return_indices=True)),
    "borders below 0": lambda x, n: (
        F.pad(x[None], (-1, 2, 1, -2), mode="replicate"),
        F.pad(x.nan_to_num()[None], (8, -9, -7, 9), mode="replicate")),
    "nothing gathered": lambda x, n: x.gather(0, torch.zeros(2, 0, 3, dtype=torch.int64)),
    "hypot": lambda x, n: torch.hypot(x * 1e30, x.flip(0) * 1e30),
    "cholesky": lambda x, n: torch.cholesky(2 * torch.eye(3)),
    "triangular_solve": lambda x, n: torch.triangular_solve(
        n[:, :2] * 1.0, n[:, :4] + 5.0 * torch.eye(4), transpose=True)[0],
}  # fmt: skip


@alike(4)
@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's own, of its old names
@pytest.mark.parametrize("first", range(4))
def test_selection_and_placement_operators_match_pytorch(first: int) -> None:
    """A fourth of them in one program."""
    torch.manual_seed(0)
    x, n = torch.randn(4, 6), torch.randint(0, 5, (4, 6))
    x[1, 2] = torch.nan
    some = dict(list(CHOSEN.items())[first::4])
    check(Apply(lambda x, n: {k: f(x, n) for k, f in some.items()}), x, n)


def test_unique_operators_match_pytorch() -> None:
    x = torch.tensor([[3, 1, 2], [1, 3, 7]])
    check(Apply(torch.unique), x)
    check(Apply(lambda v: torch.unique(v, return_inverse=True, return_counts=True)), x)
    check(Apply(torch.unique), torch.tensor([0.5, -1.0, 0.5]))


@alike(4)
@pytest.mark.parametrize("shape", [(5, 2, 8), (2, 7, 8), (3, 2, 2, 8), (2, 7, 3, 8)])
def test_layers_on_batched_rows(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    check(nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 50)), torch.randn(shape))


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's own, of exporting a GRU
def test_recurrent_layers_and_encoders_of_small_sizes() -> None:
    torch.manual_seed(0)
    check(nn.GRU(8, 16), torch.randn(5, 2, 8))
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    check(nn.TransformerEncoder(layer, 2), torch.randn(2, 7, 32))


def test_exported_program_by_tvms_name() -> None:
    torch.manual_seed(0)
    module, x = nn.Linear(8, 48).eval(), torch.randn(5, 2, 8)
    program = torch.export.export(module, (x,))
    result, params = relay.frontend.from_pytorch(program, [("x", (5, 2, 8))])
    exe = ekiden.compile(relay.build_module.bind_params_in_module(result, params))
    torch.testing.assert_close(torch.from_dlpack(exe(x)), module(x), rtol=1e-5, atol=1e-5)
