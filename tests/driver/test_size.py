"""Artifacts no larger than their models: size="small", and what inspect says of weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ekiden
from ekiden.cli import main
from ekiden.runtime.errors import CompileError

pytestmark = pytest.mark.quick
WEIGHT = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32) / 24


@pytest.fixture
def convolution(tmp_path: Path) -> Path:
    """A 3x3 convolution of 64 channels, which is fastest by Winograd's method."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    infos = [helper.make_tensor_value_info(n, 1, [1, 64, 32, 32]) for n in "xy"]
    weights = [numpy_helper.from_array(WEIGHT, "w")]
    graph = helper.make_graph([node], "conv", infos[:1], infos[1:], weights)
    path = tmp_path / "conv.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_small_weights_stay_as_they_are(convolution: Path) -> None:
    x = np.random.default_rng(1).standard_normal((1, 64, 32, 32)).astype(np.float32)
    fast, small = (ekiden.compile(convolution, size=size) for size in ("", "small"))
    assert fast.weight_bytes[0] == small.weight_bytes[0] == WEIGHT.nbytes
    assert small.weight_bytes[1] < 1.01 * WEIGHT.nbytes < 2 * WEIGHT.nbytes < fast.weight_bytes[1]
    np.testing.assert_allclose(small(x).numpy(), fast(x).numpy(), rtol=1e-3, atol=1e-4)


def test_small_on_the_command_line(
    convolution: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small.eki"
    assert main(["compile", str(convolution), "-o", str(small), "--size", "small"]) == 0
    assert main(["inspect", str(small)]) == 0
    _, held = ekiden.load(small).weight_bytes
    line = f"Weights: {WEIGHT.nbytes} bytes in the model, {held} as the kernels take them"
    assert line in capsys.readouterr().out.splitlines()


def test_another_size_is_refused(convolution: Path) -> None:
    with pytest.raises(CompileError) as caught:
        ekiden.compile(convolution, size="tiny")
    assert str(caught.value) == "compile: size 'small' or '' expected, got 'tiny'"
