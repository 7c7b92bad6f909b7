"""Quantised programs of PyTorch: fake quantisation and the operators of exported ones; products of
both are products of bytes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn

import ekiden
from ekiden.compiler.build import import_model
from ekiden.ir.op import Op
from ekiden.relay.expr import Call
from ekiden.relay.transform import InferType
from ekiden.relay.transform.quantization.integer_products import IntegerProducts
from ekiden.relay.visitor import post_order

LIB = torch.ops.quantized_decomposed


class Fake(nn.Module):
    """As training with quantisation leaves it: weights by channel, data by tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(8, 12, 3, padding=1), nn.Linear(12, 5)
        scales = self.conv.weight.detach().abs().amax((1, 2, 3)) / 127
        self.register_buffer("scales", scales)
        self.register_buffer("points", torch.zeros(12, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, 0.05, 128, 0, 255)
        weight = torch.fake_quantize_per_channel_affine(
            self.conv.weight, self.scales, self.points, 0, -128, 127
        )
        y = torch.relu(nn.functional.conv2d(x, weight, self.conv.bias, padding=1)).mean((2, 3))
        y = torch.fake_quantize_per_tensor_affine(y, 0.01, 0, 0, 255)
        weight = torch.fake_quantize_per_tensor_affine(self.out.weight, 0.01, 0, -128, 127)
        return nn.functional.linear(y, weight, self.out.bias)


class Exported(nn.Module):
    """As torch.export's quantisation writes it: bytes, and what makes numbers of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (12, 8, 3, 3), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(12) / 50)
        self.register_buffer("points", torch.zeros(12, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        steps = 0.05, 3, -128, 127, torch.int8
        x = LIB.dequantize_per_tensor.default(LIB.quantize_per_tensor.default(x, *steps), *steps)
        weight = LIB.dequantize_per_channel.default(
            self.weight, self.scales, self.points, 0, -127, 127, torch.int8
        )
        return nn.functional.conv2d(x, weight, padding=1)


@pytest.mark.parametrize("kind", [Fake, Exported])
def test_products_are_of_bytes(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(2, 8, 7, 7) * 3
    program = torch.export.export(module, (x,))
    transformed = IntegerProducts()(InferType()(import_model(program)))
    calls = [
        e for e in post_order(transformed["main"]) if isinstance(e, Call) and isinstance(e.op, Op)
    ]
    names = {c.op.name for c in calls if c.op.definition.macs is not None}  # type: ignore[attr-defined]
    assert names == ({"qnn.conv2d", "qnn.dense"} if kind is Fake else {"qnn.conv2d"})
    expected = module(x).detach().numpy()
    actual = np.asarray(ekiden.compile(program)(x))
    # a value midway between two steps may be rounded either way
    step = 0.01 * float(np.abs(expected).max())
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=step)
    assert np.mean(np.abs(actual - expected) > 1e-3 * np.abs(expected).max()) < 0.05


def test_fake_quantize_mask_marks_clipped_values() -> None:
    x = torch.tensor([-100.0, -0.5, 0.24, 0.26, 100.0])

    class Masked(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            output = torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x, 0.5, 3, 0, 15)
            return output[0], output[1]

    result = ekiden.compile(torch.export.export(Masked(), (x,)))(x)
    for actual, reference in zip(result, Masked()(x), strict=True):
        np.testing.assert_array_equal(np.asarray(actual), reference.numpy())
