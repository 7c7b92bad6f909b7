"""A small model, and the workspace size stored in a model library."""

from __future__ import annotations

import json
import tarfile

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Function, var
from ekiden.relay.op.nn.conv import conv2d
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.runtime.errors import LoadError
from ekiden.runtime.files import PathName


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


__all__ = ["get_conv2d_relay_module", "mlf_extract_workspace_size_bytes"]
