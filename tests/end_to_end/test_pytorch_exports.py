"""Networks exported by torch.onnx.export (dynamo), compiled once each, give what PyTorch gives at
further sizes of every dimension that varies.

Long runs take them at the size of the published networks.
"""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="needs torch, the source of the models")
pytest.importorskip("onnxscript", reason="needs onnxscript, torch's exporter to ONNX")

import pytorch_models  # noqa: E402 - needs torch
from onnxruntime import GraphOptimizationLevel  # noqa: E402
from pytorch_models import Example  # noqa: E402

import ekiden  # noqa: E402
from long_runs import LONG  # noqa: E402
from onnx_runtime import session  # noqa: E402

pytestmark = pytest.mark.early

FULL = ("gpt2", "t5", "vit", "unet", "lstm")
SLOW = ("gpt2", "t5", "vit", "unet", "mamba", "mamba_unrolled")
"""Left to long runs: an export takes some seconds. GPT-2's is compiled as optimised."""


@cache
def exported(name: str, full: bool = False) -> tuple[Example, onnx.ModelProto]:
    example = pytorch_models.MODELS[name](full=full)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch's own code
        return example, pytorch_models.export(example)


def check(example: Example, exe: ekiden.Executable) -> None:
    """Compare at all sizes."""
    for at in range(len(example.sizes)):
        arguments = example.arguments(at)
        with torch.no_grad():
            expected = example.network(*arguments)
        actual = exe(*[a.numpy() for a in arguments])
        result = actual if isinstance(actual, tuple) else (actual,)
        reference = expected if isinstance(expected, tuple) else (expected,)
        assert len(result) == len(reference)
        for a, b in zip(result, reference, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=LONG if n in SLOW else ()) for n in pytorch_models.MODELS]
)
def test_export_agrees_with_pytorch_at_every_size(name: str) -> None:
    example, model = exported(name)
    check(example, ekiden.compile(model))


@pytest.mark.parametrize("name", [pytest.param(n, marks=LONG) for n in FULL])
def test_full_size_exports_match_pytorch(name: str) -> None:
    example, model = exported(name, full=True)
    check(example, ekiden.compile(model))


def test_onnxruntime_agrees_on_exports(tmp_path: Path) -> None:
    example, model = exported("gpt2")
    path, level = tmp_path / "optimised.onnx", GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session(model, optimized_model_filepath=str(path), graph_optimization_level=level)
    optimised = onnx.load(path)
    fused = Counter(n.op_type for n in optimised.graph.node if n.domain == "com.microsoft")
    assert fused["FusedMatMul"] and fused["FastGelu"] and fused["SkipLayerNormalization"]
    check(example, ekiden.compile(path))
