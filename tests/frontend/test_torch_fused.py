"""Fused operators of PyTorch's fast paths, against PyTorch."""

from __future__ import annotations

import pytest

import ekiden
from long_runs import share

torch = pytest.importorskip("torch", reason="needs the package torch")
fused = pytest.importorskip("ekiden.frontend.torch.transformer_decompositions")


def masks(kind: str, batch: int, steps: int, heads: int) -> tuple[object, int | None]:
    result = torch.rand(batch, heads, steps, steps) > 0.7
    result[..., 0] = False  # a row without any key has no softmax
    return {
        "none": (None, None),
        "pairs": (result[0, 0], 0),
        "keys": (result[:, 0, 0], 1),
        "whole": (result, 2),
    }[kind]


@share(6)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("kind", ["none", "pairs", "keys", "whole"])
def test_fused_encoder_layer_matches_pytorch(kind: str, activation: str, norm_first: bool) -> None:
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(
        24, 4, 40, activation=activation, norm_first=norm_first, batch_first=True
    ).eval()
    x, (mask, mask_type) = torch.randn(3, 7, 24), masks(kind, 3, 7, 4)
    attention = layer.self_attn
    inputs = (
        x, 24, 4, attention.in_proj_weight, attention.in_proj_bias,
        attention.out_proj.weight, attention.out_proj.bias, activation == "gelu", norm_first,
        layer.norm1.eps, layer.norm1.weight, layer.norm1.bias, layer.norm2.weight,
        layer.norm2.bias, layer.linear1.weight, layer.linear1.bias, layer.linear2.weight,
        layer.linear2.bias, mask, mask_type,
    )  # fmt: skip
    with torch.no_grad():
        expected = torch.ops.aten._transformer_encoder_layer_fwd(*inputs)
        actual = fused.transformer_encoder_layer(*inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("average", [False, True])
def test_attention_gives_its_weights(average: bool) -> None:
    torch.manual_seed(4)
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    inputs = (
        x, x, x, 16, 2, module.in_proj_weight, module.in_proj_bias, module.out_proj.weight,
        module.out_proj.bias, None, True, average,
    )  # fmt: skip
    with torch.no_grad():
        expected = torch.ops.aten._native_multi_head_attention(*inputs)
        for a, b in zip(fused.multi_head_attention(*inputs), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_fast_path_of_an_encoder_layer_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """Without gradients PyTorch's layer is one operator; nothing of it runs eagerly."""
    torch.manual_seed(5)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 6, 16)
    with torch.no_grad(), caplog.at_level("WARNING", "ekiden"):
        result = torch.compile(layer, backend="ekiden")(x)
        torch.testing.assert_close(result, layer(x), rtol=1e-5, atol=1e-5)
        exe = ekiden.compile(layer, (x,))
        torch.testing.assert_close(torch.from_dlpack(exe(x)), layer(x), rtol=1e-5, atol=1e-5)
    assert "eagerly" not in caplog.text
