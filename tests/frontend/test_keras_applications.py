"""Applications of Keras with random weights, at a small size and any batch: equal to TensorFlow."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import ekiden

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
pytest.importorskip("tensorflow", reason="the package 'tensorflow' is missing")
keras: Any = pytest.importorskip("keras", reason="the package 'keras' is missing")

EXTENTS = {
    "MobileNetV2": 64, "MobileNetV3Small": 64, "ResNet50": 64, "ResNet50V2": 64,
    "DenseNet121": 64, "EfficientNetB0": 64, "EfficientNetV2B0": 64, "InceptionV3": 75,
    "Xception": 71, "NASNetMobile": 64, "ConvNeXtTiny": 64, "VGG16": 64,
}  # fmt: skip
"""Application -> extent of its images."""


@pytest.mark.long
@pytest.mark.parametrize("name", EXTENTS)
def test_keras_applications_match_tensorflow(name: str) -> None:
    keras.utils.set_random_seed(3)
    shape = (EXTENTS[name], EXTENTS[name], 3)
    model = getattr(keras.applications, name)(weights=None, include_top=False, input_shape=shape)
    made = ekiden.compile(model)
    rng = np.random.default_rng(0)
    for batch in (1, 2):
        x = rng.uniform(-1, 1, (batch, *shape)).astype(np.float32)
        expected = np.asarray(model(x, training=False))
        actual = made(x).numpy()
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
