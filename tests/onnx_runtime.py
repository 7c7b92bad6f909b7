"""ONNX Runtime as a reference; tests create its sessions here only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

Array = np.ndarray[Any, Any]
EXACT = "session.x64quantprecision"
"""Where a processor has no VNNI, ONNX Runtime adds products of uint8 and int8 in 16 bits, which
saturate; with this entry "1" it takes exact instructions instead.
"""


def session(
    model: onnx.ModelProto | Path, threads: int = 1, **settings: object
) -> onnxruntime.InferenceSession:
    """A session on the CPU, whose products of bytes are exact on every processor.

    `settings` are attributes of SessionOptions. Of what it logs, only failures are shown.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry(EXACT, "1")
    for name, value in settings.items():
        setattr(options, name, value)
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_onnx_runtime(
    model: onnx.ModelProto | Path, feed: Mapping[str, Array], threads: int = 1
) -> list[Any]:
    """All outputs of a model: arrays, or lists and maps of them."""
    return list(session(model, threads).run(None, dict(feed)))
