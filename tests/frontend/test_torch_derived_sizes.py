"""Derived dimensions of torch.export, such as 2 * Dim("h"), whose symbol no input has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import ekiden
from ekiden import relay
from ekiden.runtime.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own deprecations


class Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = x[:, : x.shape[1] // 2 * 2].reshape(x.shape[0], -1, 2)
        return pairs.sum(-1), x * x.shape[1]


class Next(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


H = Dim("h", min=2, max=64)


@pytest.mark.parametrize(
    ("dim", "size", "other", "refused", "shown"),
    [
        (2 * H, 8, 12, 13, "h * 2"),
        (2 * H + 1, 9, 13, 12, "h * 2 + 1"),
        (3 * H - 1, 8, 11, 12, "h * 3 - 1"),
    ],
)
def test_derived_sizes_are_solved_for_their_symbol(
    dim: object, size: int, other: int, refused: int, shown: str
) -> None:
    example = (torch.randn(3, size),)
    exe = ekiden.compile(Halves(), example, dynamic_shapes=({1: dim},))
    x = torch.randn(3, other)
    results = [torch.utils.dlpack.from_dlpack(item) for item in exe(x)]
    torch.testing.assert_close(results, list(Halves()(x)))
    with pytest.raises(InputError, match=f"'x' to be {shown.replace('*', '.')}".split(" +")[0]):
        exe(torch.randn(3, refused))
    with pytest.raises(InputError, match="h <= 64"):
        exe(torch.randn(3, size + (other - size) * 300))


def test_layers_over_sizes_made_of_a_symbol() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(3, 4, 3, 2, 1)
            self.up = nn.ConvTranspose2d(4, 3, 2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.up(self.down(x))

    model = Both().eval()
    spec = ({2: 2 * H, 3: 2 * Dim("w", min=2, max=64)},)
    exe = ekiden.compile(model, (torch.randn(1, 3, 8, 8),), dynamic_shapes=spec)
    x = torch.randn(1, 3, 12, 16)
    torch.testing.assert_close(torch.utils.dlpack.from_dlpack(exe(x)), model(x).detach())


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (torch.tensor([2**24 + 2, -5]), "int64"),
        (torch.tensor([250, 255], dtype=torch.uint8), "uint8"),
        (torch.tensor([1e300, 0.1], dtype=torch.float64), "float64"),
        (torch.tensor([1.5, 2.0]), "float32"),
    ],
)
def test_inputs_of_a_trace_have_its_dtypes(data: torch.Tensor, dtype: str) -> None:
    traced = torch.jit.trace(Next(), (data,))
    module, params = relay.frontend.from_pytorch(traced, [("x", tuple(data.shape))])
    assert module["main"].params[0].checked_type.dtype == dtype
    for kind in ("graph", "vm"):
        run = relay.create_executor(kind, module, ekiden.cpu(), "llvm", params).evaluate()
        assert run(data.numpy()).numpy().tolist() == (data + 1).tolist()


@pytest.mark.parametrize(
    ("result", "info", "dtype"),
    [
        (lambda: torch.jit.trace(Next(), (torch.tensor([True]),)), ((1,), "int32"), "int32"),
        (lambda: torch.jit.trace(Next(), (torch.tensor([1]),)), (1,), "int64"),
        (lambda: torch.jit.script(Next()), (1,), "float32"),
    ],
)
def test_stated_dtype_overrides_trace(
    result: Callable[[], object], info: tuple[object, ...], dtype: str
) -> None:
    module, _ = relay.frontend.from_pytorch(result(), [("x", info)])
    assert module["main"].params[0].checked_type.dtype == dtype
