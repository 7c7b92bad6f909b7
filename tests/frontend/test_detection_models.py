"""Detection models with their post-processing agree with ONNX Runtime: sizes follow from images and
from what is found in them.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import Array

import ekiden
from long_runs import LONG, share
from onnx_runtime import run_onnx_runtime

torch = pytest.importorskip("torch", reason="the package torch is not installed")
detection_models = pytest.importorskip("detection_models")

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporter's own deprecations


def image(*shape: int) -> Array:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def same_rows(actual: list[Array], wanted: list[Array]) -> None:
    """As many detections, each of them (its box, label, score, mask) among the others': engines
    may order those of nearly one score in their own ways."""
    assert [(a.shape, a.dtype) for a in actual] == [(a.shape, a.dtype) for a in wanted]
    result, reference = (
        np.concatenate([a.reshape(len(a), -1).astype(np.float64) for a in many], 1)
        for many in (actual, wanted)
    )
    apart = np.abs(result[:, None] - reference[None]).max(2) / np.abs(reference).max()
    assert max(apart.min(0).max(), apart.min(1).max()) <= 1e-4, apart


def agree(model: onnx.ModelProto, *sizes: tuple[int, int]) -> None:
    exe = ekiden.compile(model)
    for height, width in sizes:
        x = image(3, height, width)
        expected = run_onnx_runtime(model, {"x": x})
        assert len(expected[0]) > 3, "some objects have to be found"
        actual = exe(x)
        same_rows([np.asarray(a) for a in actual], expected)


@pytest.mark.slow
@share(2, by=lambda name, dynamic: name)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", detection_models.SMALL)
def test_small_detection_models_match_onnxruntime(name: str, dynamic: bool) -> None:
    model = detection_models.exported(
        detection_models.small(name), torch.from_numpy(image(3, 70, 80)), dynamic
    )
    agree(model, (70, 80), *([(90, 64)] if dynamic else []))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=LONG) for n in detection_models.WHOLE])
def test_torchvision_detection_models_match_onnxruntime(name: str, dynamic: bool) -> None:
    model = detection_models.exported(
        detection_models.whole(name), torch.from_numpy(image(3, 320, 320)), dynamic
    )
    agree(model, (320, 320), *([(240, 352)] if dynamic else []))


@pytest.mark.parametrize("channels", [16, pytest.param(128, marks=LONG)])
def test_yolo_runs_at_any_image_size(channels: int) -> None:
    x = image(1, 3, 64, 96)
    model = detection_models.exported(
        detection_models.yolo(channels), torch.from_numpy(x), dynamic=True, listed=False
    )
    exe = ekiden.compile(model)
    for size in ((64, 96), (32, 160), (256, 256)):
        x = image(1, 3, *size)
        (expected,) = run_onnx_runtime(model, {"x": x})
        np.testing.assert_allclose(np.asarray(exe(x)), expected, rtol=1e-4, atol=1e-3)
