"""Python implementations of hybrid script's built-in names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import INTRINSICS


def _output_tensor(
    shape: Sequence[int], dtype: str = "float32", scope: str = "global"
) -> np.ndarray:
    """Return an array for `output_tensor` and `allocate`."""
    del scope
    return np.zeros(tuple(int(d) for d in shape), dtype)


def _serialized_bind(thread: str, extent: int) -> Iterable[int]:
    """Return the iterations of a thread axis, serialised."""
    del thread
    return range(extent)


def max_num_threads(allow_none: bool = True) -> int:
    """Return the maximum number of threads of a block, 1024."""
    del allow_none
    return 1024


LOOP_NAMES = ("range", "serial", "parallel", "vectorize", "unroll", "const_range")
MATH_INTRINSICS = {
    **{name: name for name in (
        "exp log sqrt rsqrt tanh sigmoid erf sin cos tan floor ceil round trunc abs log2 log10"
        " log1p atan sinh cosh popcount power isnan isinf").split()},
    "power": "pow",
}  # fmt: skip
"""Intrinsic of each math function of hybrid scripts."""
CAST_NAMES = tuple(name for name in dt.SCALAR_BITS if name != "handle")


def _numpy_reference(op: str) -> Callable[..., object]:
    return INTRINSICS[op].reference


HYBRID_GLOBALS: dict[str, object] = {
    **dict.fromkeys(LOOP_NAMES, range),
    "bind": _serialized_bind,
    "output_tensor": _output_tensor,
    "allocate": _output_tensor,
    "likely": lambda condition: condition,
    "max_num_threads": max_num_threads,
    "max": max,
    "min": min,
    "len": len,
    "ceil_div": lambda a, b: math.ceil(a / b),
    **{name: _numpy_reference(op) for name, op in MATH_INTRINSICS.items()},
    **{name: dt.to_numpy(name).type for name in CAST_NAMES},
}
"""Global names available in hybrid scripts."""
