"""verify() from Python and on artifacts, and its notebook output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from test_cli import fails

import ekiden
from ekiden.cli import main
from ekiden.compiler.verify import ComparisonTolerance
from ekiden.runtime.errors import InputError
from onnx_files import WEIGHT, arguments, model

pytestmark = pytest.mark.quick


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """The small model with other weights."""
    graph_model = model()
    graph_model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(WEIGHT + 1, "w"))
    path = tmp_path / "wrong.onnx"
    onnx.save(graph_model, path)
    return path


@pytest.mark.slow
def test_model_is_verified() -> None:
    result = ekiden.verify(model(), dims={"n": 3}, inputs=arguments(3))
    assert result and result.first_difference is None and result.against == "onnxruntime"
    assert str(result).splitlines()[-1].endswith(" agrees with onnxruntime in 1 tensors")
    assert [t.tensor for t in ekiden.verify(model(), layers=True, against="onnx").tensors] == [
        "product", "sum", "y"
    ]  # fmt: skip


def test_artifact_is_verified(artifact: Path, wrong: Path) -> None:
    for argument in (artifact, artifact.read_bytes(), ekiden.load(artifact)):
        assert ekiden.verify(model(), argument)
    result = ekiden.verify(wrong, artifact)
    assert not result and result.first_difference is result.tensors[0]
    assert json.loads(result.json())["first_difference"]["tensor"] == "y"
    assert ekiden.verify(wrong, artifact, tolerance=ComparisonTolerance(atol=1e3))
    html = result._repr_html_()
    assert "<td" in html and "Relu &#x27;last&#x27;" in html and "differs from onnxruntime" in html


def test_artifact_on_the_command_line(
    artifact: Path, wrong: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = tmp_path / "right.onnx"
    onnx.save(model(), right)
    assert main(["verify", str(artifact), "--model", str(right)]) == 0
    assert "agrees with onnxruntime in 1 tensors" in capsys.readouterr().out
    assert main(["verify", str(artifact), "--model", str(wrong), "--dim", "n=2"]) == 3
    assert "first in 'y', made by Relu 'last'" in capsys.readouterr().out
    message = f"'{artifact}' is an artifact; name its model: --model model.onnx"
    assert fails(capsys, "verify", str(artifact)) == message
    message = f"--model: '{right}' is a model itself"
    assert fails(capsys, "verify", str(right), "--model", str(wrong)) == message


def test_unverifiable_models_are_refused(artifact: Path) -> None:
    other = model()
    other.graph.output[0].name = other.graph.node[2].output[0] = "z"
    with pytest.raises(InputError, match="has inputs and outputs 'x', 'b', 'z', the artifact"):
        ekiden.verify(other, artifact)
    with pytest.raises(InputError, match="layers are outputs of their own"):
        ekiden.verify(model(), artifact, layers=True)
    with pytest.raises(InputError, match="no symbol is named 'm'; there are 'n'"):
        ekiden.verify(model(), artifact, dims={"m": 2})
    with pytest.raises(InputError, match="no input is named 'q'; there are 'x', 'b'"):
        ekiden.verify(model(), artifact, inputs={"q": np.zeros(1)})
