"""Keras models are imported by the frontend of their backend."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ekiden.frontend.registry import find_frontend
from ekiden.runtime.errors import ImportModelError

Model = type("Model", (), {"__module__": "keras.src.models.model", "__qualname__": "Model"})


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment in which Keras is not loaded, and has no settings."""
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return monkeypatch


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_keras_model_uses_its_backends_frontend(
    backend: str, unloaded: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unloaded.setenv("KERAS_BACKEND", backend)
    row = find_frontend(Model())
    assert row is not None
    assert row.name == backend
    unloaded.delenv("KERAS_BACKEND")
    (tmp_path / "keras.json").write_text(f'{{"backend": "{backend}"}}')
    row = find_frontend(Model())
    assert row is not None
    assert row.name == backend


def test_without_settings_keras_computes_with_tensorflow(unloaded: pytest.MonkeyPatch) -> None:
    row = find_frontend(Model())
    assert row is not None
    assert row.name == "tensorflow"


def test_backend_without_a_frontend_is_named(unloaded: pytest.MonkeyPatch) -> None:
    unloaded.setenv("KERAS_BACKEND", "numpy")
    with pytest.raises(ImportModelError, match="Keras computes with 'numpy'; set KERAS_BACKEND"):
        find_frontend(Model())


def test_keras_file_uses_the_backends_frontend(
    unloaded: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "model.keras"
    path.write_bytes(b"PK\x03\x04")
    for backend in ("tensorflow", "jax"):
        unloaded.setenv("KERAS_BACKEND", backend)
        row = find_frontend(path)
        assert row is not None
        assert row.name == backend
    unloaded.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(ImportModelError, match="loaded by keras.saving.load_model, with example"):
        find_frontend(path)


PROGRAM = """
import sys
import keras
import numpy as np
import ekiden

first, second = keras.Input((8,), name="first"), keras.Input((None, 4), name="second")
both = keras.layers.Concatenate()([first, keras.layers.GRU(6)(second)])
y = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(keras.layers.Dense(3)(both)))
model = keras.Model({"first": first, "second": second}, {"y": y})
model.save(sys.argv[1])
rng = np.random.default_rng(0)
a, b = (rng.random(s).astype("float32") for s in ((2, 8), (2, 5, 4)))
wanted = np.asarray(model({"first": a, "second": b}, training=False)["y"])
for given in (model, sys.argv[1], open(sys.argv[1], "rb").read()):
    made = ekiden.compile(given)
    assert [str(i) for i in made.inputs] == [
        "first: float32[batch, 8]", "second: float32[batch, second_dim1, 4]"]
    np.testing.assert_allclose(made(a, b).numpy(), wanted, 1e-4, 1e-5)


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


own = Own()
own(a)
try:
    ekiden.compile(own)
except ekiden.ImportModelError as error:
    assert "model 'own': its inputs are not known: give example_inputs" in str(error), error
made = ekiden.compile(own, (a,), dynamic_shapes=("b, 8",))
assert str(made.inputs[0]) == "x: float32[b, 8]", made
np.testing.assert_allclose(made(a[:1]).numpy(), np.asarray(own(a[:1])), 1e-4, 1e-5)
"""


@pytest.mark.skipif(
    find_spec("keras") is None or find_spec("jax") is None,
    reason="the packages keras and jax are not installed",
)
def test_models_that_compute_with_jax(tmp_path: Path) -> None:
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONWARNINGS": "ignore"}
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "model.keras")]
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
