"""`relay.frontend`: importers with TVM's signatures, which give a module and its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from ekiden.frontend.onnx import from_onnx as import_onnx
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array

Dim = int | str


def from_onnx(
    model: onnx.ModelProto | str | bytes, shape: Mapping[str, Sequence[Dim]] | None = None
) -> tuple[IRModule, dict[str, Array]]:
    """A module, and no parameters: the weights are constants in it (TVM's `freeze_params=True`).

    `shape` replaces the declared shapes of inputs by name.
    """
    return import_onnx(model, shape), {}


__all__ = ["from_onnx"]
