"""Engines under test; engines that a test registers are removed after it."""

import pytest

from ekiden.byoc import backend
from ekiden.runtime.devices.engines import ENGINE_FOLDERS, missing_engine_message


@pytest.fixture(params=ENGINE_FOLDERS)
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that is here."""
    if lacks := missing_engine_message(str(request.param)):
        pytest.skip(f"needs an engine: {lacks}")
    return str(request.param)


@pytest.fixture
def onnx_engine(engine: str) -> str:
    """Each that takes models of ONNX."""
    if not isinstance(backend._REGISTERED_BACKENDS[engine], backend.OnnxEngine):
        pytest.skip(f"'{engine}' takes no models of ONNX")
    return engine


@pytest.fixture(autouse=True)
def known_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_REGISTERED_BACKENDS", dict(backend._REGISTERED_BACKENDS))
