"""Devices that tests need: skipped, with what to install, where they are not there."""

from __future__ import annotations

import pytest

from ekiden import runtime
from ekiden.runtime import Device


@pytest.fixture(scope="session")
def opencl() -> Device:
    """The first OpenCL device."""
    found = runtime.device("opencl", 0)
    try:
        runtime.get_global_func("ek.device.open")(found)
    except runtime.errors.DeviceError as error:
        pytest.skip(f"needs an OpenCL driver: apt-get install pocl-opencl-icd ({error})")
    return found
