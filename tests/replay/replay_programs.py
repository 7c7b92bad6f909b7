"""What the programs of the replay have in common: a maker, an executor, and weights that are the
same everywhere.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from recorder import TARGETS, record

from ekiden.ir.module import IRModule

Array = np.ndarray[Any, Any]
# models of TensorFlow Lite and decoders are written with what the tests of these are written with
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("frontend", "llm")]

GROUPS = ("relay", "onnx", "torch", "tflite", "llm")
"""Groups of programs: each is the table PROGRAMS of a module, `<group>_replays`."""
WEIGHT_PREFIX = "w_"
"""Parameters of texts whose names begin so are constants."""


@dataclass(frozen=True)
class Program:
    """A program of the replay."""

    module: Callable[[], IRModule]
    """Imports it."""
    executor: str = "vm"
    is_quick: bool = False
    """Whether it belongs to the quick group: less than half a second on all targets."""
    targets: Sequence[str] = tuple(TARGETS)
    """Those it is compiled for."""

    def texts(self) -> dict[str, dict[str, str]]:
        """Return target -> item -> text: what `record` gives for each target."""
        module = self.module()
        return {name: record(module, TARGETS[name], self.executor) for name in self.targets}


def weights(name: str, shape: tuple[int, ...], dtype: str) -> Array:
    """Return numbers for a weight, of no generator, whose streams versions of NumPy may change: of
    floats in [0.5, 1.5), which variances may be too, of integers in [0, 4), which scales of bytes,
    zero points and indices may be."""
    numbers = (np.arange(math.prod(shape)) * 7 + sum(name.encode())).reshape(shape)
    if np.dtype(dtype).kind == "f":
        return (0.5 + (numbers % 64) / 64).astype(dtype)
    return (numbers % 4).astype(dtype)
