"""Whole models, compiled once each, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from network_models import (
    Array,
    cached_model,
    compiled_entry,
    compiled_light,
    light_model,
    reference,
)

import ekiden
from long_runs import LONG, alike

pytestmark = pytest.mark.early

LIGHT = ("squeezenet", "shufflenet", "inception_v1", "resnet50", "densenet121")
LARGE = ("shufflenet", "inception_v1", "densenet121", "bvlc_alexnet", "zfnet512", "vgg19")
"""What takes seconds each, for layers that others have too."""
CACHED = (
    "oww_hey_jarvis", "silero_vad", "silero_vad_half", "silero_vad_16k_op15",
    "silero_vad_ov_static", "oww_alexa_mlp", "oww_timer_mlp", "magika_v3_3", "attacut_c",
    "minilm_l3_f32", *(
        pytest.param(name, marks=LONG)
        for name in ("deepcut", "ppocr2_cls", "ppocr4_det", "ddddocr_det", "silero_vad_half")
    ),
)  # fmt: skip


def outputs(exe: ekiden.Executable, feed: dict[str, Array]) -> list[Array]:
    result = exe(**feed)
    return [t.numpy() for t in (result if isinstance(result, tuple) else (result,))]


def assert_close(
    actual: Sequence[Array], wanted: Sequence[Array], rtol: float, of_range: float
) -> None:
    """Within `rtol` of each element and `of_range` of the largest of its tensor."""
    assert [a.shape for a in actual] == [a.shape for a in wanted]
    for result, reference_result in zip(actual, wanted, strict=True):
        assert result.dtype == reference_result.dtype
        span = (
            float(np.abs(reference_result).max())
            if reference_result.size and reference_result.dtype.kind == "f"
            else 0.0
        )
        np.testing.assert_allclose(result, reference_result, rtol=rtol, atol=1e-6 + of_range * span)


@pytest.mark.parametrize(
    "name", [*(n for n in LIGHT if n not in LARGE), *(pytest.param(n, marks=LONG) for n in LARGE)]
)
def test_light_models_match_onnxruntime(name: str) -> None:
    model = light_model(name)
    exe = compiled_light(name) if name in LIGHT else ekiden.compile(model)
    (info,) = exe.inputs
    rng = np.random.default_rng(1)
    feed = {info.name: rng.normal(size=info.shape).astype(np.float32)}
    assert_close(outputs(exe, feed), reference(model, feed), 1e-4, 1e-5)


@alike(2)
@pytest.mark.parametrize("name", CACHED)
def test_cached_models_match_onnxruntime(name: str) -> None:
    entry = cached_model(name)
    exe = compiled_entry(entry)
    for case in entry.cases:
        feed = entry.feed(case)
        assert_close(outputs(exe, feed), reference(entry.path, feed), 1e-3, 1e-4)
