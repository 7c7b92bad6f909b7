"""Programs of the replay that are modules of PyTorch, with weights that are set by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from recorder import import_model
from replay_programs import Program
from torch import nn

from ekiden.frontend.common.options import ImportOptions
from ekiden.ir.module import IRModule


class Decoder(nn.Module):
    """A step that keeps what it saw in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the result to the state, and return twice the sum."""
        seen = self.get_buffer("seen")
        seen.add_(torch.tanh(self.linear(x)))
        return seen * 2


def network() -> nn.Module:
    """Return a small network of convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 24, 1), nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
    )  # fmt: skip


def encoder() -> nn.Module:
    """Return a layer of a transformer's encoder."""
    return nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)


def torch_module(
    make: Callable[[], nn.Module], shape: tuple[int, ...], dynamic: Mapping[int, str] | None = None
) -> IRModule:
    """Export a module for an input of a shape, some of whose dimensions may be any, and import
    it."""
    module = make().eval()
    with torch.no_grad():
        for number, tensor in enumerate(module.state_dict().values()):
            if tensor.is_floating_point():
                tensor.copy_(torch.linspace(0.5, 1.5, tensor.numel()).reshape(tensor.shape))
            tensor.add_(number % 3 if tensor.is_floating_point() else 0)
    sizes = None if dynamic is None else ({a: torch.export.Dim(n) for a, n in dynamic.items()},)
    options = ImportOptions(example_inputs=(torch.zeros(shape),), dynamic_shapes=sizes)
    return import_model(module, options)


PROGRAMS: Mapping[str, Program] = {
    "network": Program(partial(torch_module, network, (1, 3, 16, 16))),
    "encoder": Program(
        partial(torch_module, encoder, (2, 6, 32), {0: "batch"}), targets=("vnni", "cuda")
    ),
    "state": Program(partial(torch_module, Decoder, (4, 8))),
}
