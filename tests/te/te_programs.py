"""Helpers of te tests: evaluation, interpreted and compiled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.kernels import schedule
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.te import Tensor
from ekiden.tir import interpreter, verify
from ekiden.tir.transform import lower


def evaluate(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Run the plain program in the interpreter and the scheduled one natively; both agree."""
    sizes = {
        d: n
        for t, a in zip(inputs, arrays, strict=True)
        for d, n in zip(t.shape, a.shape, strict=True)
    }
    shapes = [tuple(int(sizes.get(d, getattr(d, "value", 0))) for d in t.shape) for t in outputs]
    plain = [np.full(s, 7, t.dtype) for s, t in zip(shapes, outputs, strict=True)]
    native = [a.copy() for a in plain]
    interpreter.run_prim_func(lower(te.create_prim_func([*inputs, *outputs])), *arrays, *plain)
    target = Target.host()
    func = verify(lower(schedule(list(inputs), list(outputs), target, "kernel"), target))
    load_image(link_image([compile_object([func], target)], ["kernel"]))["kernel"](*arrays, *native)
    for a, b in zip(plain, native, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return native
