"""Programs for devices that this machine has no driver for: compiled, saved and looked into here as
`export` writes them, and refused when they run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.cli import main
from ekiden.ir.module import IRModule
from ekiden.runtime import Device, cpu
from ekiden.runtime.errors import DeviceError, LoadError

X = np.ones((2, 4), "float32")
METAL = Device(8, 0)


@pytest.fixture(autouse=True)
def no_driver() -> None:
    if METAL.exist:
        pytest.skip("there is a driver of Metal")


def product() -> IRModule:
    x = relay.var("x", shape=(2, 4))
    weight = relay.const(np.arange(12, dtype="float32").reshape(3, 4))
    return IRModule.from_expr(relay.Function([x], relay.nn.dense(x, weight)))


def test_driverless_program_compiles_and_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exe = ekiden.compile(product(), "metal")
    assert exe.raw.devices == [cpu(0), METAL]
    exe.save(tmp_path / "compiled.eki")
    ekiden.export(product(), tmp_path / "exported.eki", "metal")
    assert (tmp_path / "compiled.eki").read_bytes() == (tmp_path / "exported.eki").read_bytes()
    again = ekiden.load(tmp_path / "compiled.eki")
    assert again.disassemble() == exe.disassemble()
    assert main(["inspect", str(tmp_path / "compiled.eki")]) == 0
    assert "Devices: metal(0): 1 kernel; cpu(0): no kernels" in capsys.readouterr().out


def test_exporting_says_what_runs_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "metal(0): 1 kernel; cpu(0): no kernels"
    with caplog.at_level("INFO", "ekiden"):
        ekiden.export(product(), tmp_path / "product.eki", "metal")
    assert f"compile: {line}" in caplog.messages
    (tmp_path / "product.relay").write_text(product().astext())
    words = ["compile", str(tmp_path / "product.relay"), "-o", str(tmp_path / "again.eki")]
    assert main([*words, "--target", "metal"]) == 0
    assert f"  devices {line}\n" in capsys.readouterr().out


def test_driverless_run_names_missing_driver() -> None:
    exe = ekiden.compile(product(), "metal")
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"metal\(0\): there is no driver"):
            exe(X)
    with pytest.raises(DeviceError, match=r"metal\(0\): there is no driver"):
        exe.profile(X)


def test_fewer_devices_than_asked_for_are_refused(opencl: Device) -> None:
    with pytest.raises(LoadError, match=r"opencl\(40\) is not here: this machine has opencl\(0\)"):
        ekiden.compile(product(), {ekiden.opencl(40): "opencl"})
