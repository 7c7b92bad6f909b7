"""Test helpers for boards: targets, C headers of arrays, a small model, and the workspace size in a
model library.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Function, var
from ekiden.relay.op.nn.conv import conv2d
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.runtime.errors import InputError, LoadError
from ekiden.runtime.files import PathName
from ekiden.target.board_targets import micro
from ekiden.target.target import Target


def mlf_extract_workspace_size_bytes(mlf_tar_path: PathName) -> int:
    """Return the workspace size of all models in a model library."""
    try:
        with tarfile.open(mlf_tar_path) as archive:
            file = archive.extractfile("./metadata.json")
            assert file is not None
            modules = json.load(file)["modules"].values()
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        raise LoadError(f"read '{mlf_tar_path}': a model library expected: {error!r}") from error
    return sum(m["memory"]["functions"]["main"][0]["workspace_size_bytes"] for m in modules)


def get_conv2d_relay_module() -> IRModule:
    """Return an int8-to-int32 convolution: 8 windows of 5x5 over 3 channels of 64x64."""
    data, weight = (
        var("data", shape=(1, 3, 64, 64), dtype="int8"),
        var("weight", shape=(8, 3, 5, 5), dtype="int8"),
    )
    y = conv2d(data, weight, padding=(2, 2), channels=8, kernel_size=(5, 5), out_dtype="int32")
    return InferType()(IRModule.from_expr(Function((data, weight), y)))


_BOARD_MODELS = {
    "disco_l475vg": "stm32l4r5zi",
    "due": "sam3x8e",
    "mimxrt1050_evk": "imxrt10xx",
    "mps2_an521": "mps2_an521",
    "mps3_an547": "mps3_an547",
    "nano33ble": "nrf52840",
    "nrf5340dk_nrf5340_cpuapp": "nrf5340dk",
    "nucleo_f746zg": "stm32f746xx",
    "nucleo_h743zi": "stm32h7xx",
    "nucleo_l4r5zi": "stm32l4r5zi",
    "spresense": "cxd5602gg",
    "stm32f746g_disco": "stm32f746xx",
    "wioterminal": "atsamd51",
}
"""Board -> the microcontroller on it."""
_C_TYPES = {"int8": "int8_t", "uint8": "uint8_t", "int32": "int32_t", "float32": "float"}


def get_target(platform: str, board: str | None = None) -> Target:
    """Return the target of a board.

    Args:
        platform: "crt", which is this machine, or "zephyr" or "arduino".
        board: The name of the board there.

    Raises:
        InputError: A board is not known.
    """
    if platform == "crt":
        return micro("host")
    if board not in _BOARD_MODELS:
        raise InputError(
            f"get_target {platform!r}: board {board!r} is not known; there are"
            f" {', '.join(_BOARD_MODELS)}"
        )
    return micro(_BOARD_MODELS[board])


def create_header_file(
    tensor_name: str,
    npy_data: np.ndarray[Any, np.dtype[Any]],
    output_path: PathName,
    tar_file: tarfile.TarFile,
) -> None:
    """Add a C header with an array's elements to a tar file.

    Args:
        tensor_name: The name of the array in C, and of the header.
        npy_data: The array.
        output_path: The folder of the header in the tar file.
        tar_file: The tar file.

    Raises:
        InputError: The dtype is none of int8, uint8, int32 and float32.
    """
    if npy_data.dtype.name not in _C_TYPES:
        raise InputError(
            f"create_header_file {tensor_name!r}: a dtype of {', '.join(_C_TYPES)} expected, got"
            f" {npy_data.dtype}"
        )
    elements = ", ".join(map(repr, npy_data.ravel().tolist()))
    text = (
        "#include <stddef.h>\n#include <stdint.h>\n"
        f"const size_t {tensor_name}_len = {npy_data.size};\n"
        f"{_C_TYPES[npy_data.dtype.name]} {tensor_name}[] = {{{elements}}};\n"
    )
    data = text.encode()
    about = tarfile.TarInfo(str(PurePosixPath(output_path) / f"{tensor_name}.h"))
    about.size, about.mode = len(data), 0o644
    tar_file.addfile(about, io.BytesIO(data))


__all__ = [
    "create_header_file",
    "get_conv2d_relay_module",
    "get_target",
    "mlf_extract_workspace_size_bytes",
]
