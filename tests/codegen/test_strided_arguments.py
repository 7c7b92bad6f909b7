"""Kernels reject non-contiguous arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ekiden
from ekiden import te


def double(target: str) -> ekiden.runtime.Module:
    n = te.size_var("n")
    x = te.placeholder((n, 3), name="x")
    y = te.compute((n, 3), lambda i, j: x[i, j] * 2.0, name="y")
    return ekiden.build(te.create_prim_func([x, y]), target)


CASES = [
    (lambda: torch.ones(4, 3), True),
    (lambda: torch.ones(4, 4)[:, :3], False),
    (lambda: torch.ones(8, 3)[::2], False),
    (lambda: torch.ones(3, 4).T, False),
    (lambda: torch.ones(1, 3).expand(4, 3), False),
    (lambda: torch.ones(1, 6)[:, :3], True),  # the stride of a dimension of 1 does not matter
    (lambda: torch.ones(0, 6)[:, ::2], True),  # nor those of no elements
    (lambda: torch.ones(5, 3)[1:], True),
]


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_non_contiguous_arguments_are_refused(target: str) -> None:
    run = double(target)
    for make, fits in CASES:
        x = make()
        y = torch.zeros(x.shape)
        if fits:
            run(x, y)
            np.testing.assert_array_equal(y, x * 2)
        else:
            with pytest.raises(ValueError) as caught:
                run(x, y)
            assert str(caught.value) == (
                "main: argument 0 (x) must be contiguous, got strides; copy it first"
            )
