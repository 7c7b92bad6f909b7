"""Comparison of programs' results: tensors in order, within rounding or bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekiden import runtime
from ekiden.relay.interpreter_values import ConstructorValue

Array = np.ndarray[Any, Any]


def flatten(value: object) -> list[Array]:
    """Return the tensors of a result in order; a constructor's tag stands before its fields, unless
    it is 0, the tag of tuples.
    """
    leaves: list[Array] = []
    work = [value]
    while work:
        item = work.pop()
        if isinstance(item, ConstructorValue):
            leaves += [np.asarray(item.tag)] if item.tag else []
            work.extend(reversed(item.fields))
        elif isinstance(item, (tuple, list)):
            if isinstance(item, runtime.ADT) and item.tag:
                leaves.append(np.asarray(item.tag))
            work.extend(reversed(item))
        elif hasattr(item, "numpy"):
            leaves.append(np.asarray(item.numpy()))
        else:
            leaves.append(np.asarray(item))
    return leaves


def agree(result: object, expected: object, rtol: float = 1e-4) -> None:
    """Assert the same structure, shapes and dtypes; values to within `rtol` and 1e-5 of the
    range.
    """
    actual, reference = flatten(result), flatten(expected)
    assert len(actual) == len(reference), f"{len(actual)} tensors, not {len(reference)}"
    for a, b in zip(actual, reference, strict=True):
        assert a.shape == b.shape, f"{a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        assert a.dtype == b.dtype, f"{a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        finite = np.abs(b[np.isfinite(b)])
        span = float(finite.max()) if finite.size else 0.0
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6 + 1e-5 * span)


def equal(result: object, expected: object) -> None:
    """Assert the same structure, shapes, dtypes and bits."""
    for a, b in zip(flatten(result), flatten(expected), strict=True):
        assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())
