"""Layouts and numbers that Python takes from the C headers: as the C compiler has them, and as the
DLPack of other packages has them.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ekiden import runtime
from ekiden.runtime.binding import layout
from ekiden.runtime.binding.opcodes import OPCODES

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[2]
PROPERTIES = {
    "ends", "frames", "long", "kernel", "works", "allocates", "fails", "pure", "plain", "keeps",
}  # fmt: skip


@pytest.mark.parametrize("script", ["generate_layout.py", "generate_opcodes.py"])
def test_generated_files_are_up_to_date(script: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_tensor_of_this_process_lies_as_the_layout_says() -> None:
    """Read by address what a capsule of DLPack points to."""
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    capsule = runtime.tensor(array).__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = get(capsule, b"dltensor")

    def word(kind: type[ctypes._SimpleCData[int]], offset: int) -> int:
        return kind.from_address(at + offset).value

    dl = layout.DLTensor
    assert word(ctypes.c_int32, dl.NDIM) == 2
    dtype = [word(ctypes.c_uint8, dl.DTYPE + item) for item in (0, 1)]
    assert dtype == [layout.DTypeCode.INT, 16]
    shape = word(ctypes.c_int64, dl.SHAPE)
    assert [ctypes.c_int64.from_address(shape + 8 * i).value for i in (0, 1)] == [2, 3]
    data = word(ctypes.c_int64, dl.DATA) + word(ctypes.c_uint64, dl.BYTE_OFFSET)
    assert [ctypes.c_int16.from_address(data + 2 * i).value for i in range(6)] == list(range(6))
    assert word(ctypes.c_int32, dl.DEVICE) == layout.DeviceType.CPU


def test_runtime_services_exist() -> None:
    names = [*layout.SERVICES, *(f"ek_op_{opcode.name}" for opcode in OPCODES)]
    assert all(runtime.service_address(name) for name in names)


def test_opcode_properties_match_definitions() -> None:
    """Each is of the list, and no two that cannot be together are."""
    for opcode in OPCODES:
        result = opcode.properties
        assert result <= PROPERTIES
        assert not {"pure", "ends"} <= result and not {"kernel", "long"} <= result
        jumps = not {*"jJ"}.isdisjoint(opcode.format)
        assert not jumps or "ends" in result
        names_primitive = "p" in opcode.format
        assert names_primitive == bool({"kernel"} & result or opcode.name == "InvokePackedValue")
    assert {p for opcode in OPCODES for p in opcode.properties} == PROPERTIES
