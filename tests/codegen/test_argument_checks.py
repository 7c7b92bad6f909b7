"""Argument checks of kernels, and their messages."""

from __future__ import annotations

import numpy as np
import pytest
from codegen_kernels import build

from ekiden.ir.prim import SizeVar, const
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, Evaluate, PrimFunc

pytestmark = pytest.mark.quick

N = SizeVar("n")
X = Buffer("x", (N, const(4)))
Y = Buffer("y", (N + 1, N), "int64")


@pytest.fixture(scope="module")
def kernel() -> object:
    return build(PrimFunc((X, Y), BufferStore(Y, N, (const(0),)), {"global_symbol": "add"}))


def array(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


OUT = array(4, 3, dtype="int64")
FIT = "argument 1: dimension 0 must be a function of the other dimensions"

# fmt: off
WRONG = [
    ((array(3, 4),),                       TypeError,  "expected 2 arguments"),
    ((array(3, 4), 5),                     TypeError,  "argument 1 (y) must be a tensor"),
    ((array(3), OUT),                      ValueError, "argument 0 (x) must have 2 dimensions"),
    ((array(3, 4, dtype="int32"), OUT),    TypeError,  "argument 0 (x) must have dtype float32"),
    ((array(3, 5), OUT),                   ValueError, "argument 0: dimension 1 must be 4"),
    ((array(3, 4), array(4, 4, dtype="int64")), ValueError, "argument 1: dimension 1 must be n"),
    ((array(3, 4), array(5, 3, dtype="int64")), ValueError, FIT),
]
# fmt: on


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG, ids=[w[2] for w in WRONG])
def test_wrong_kernel_arguments_are_refused(
    kernel: object, arguments: tuple[object, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        kernel(*arguments)  # type: ignore[operator]
    assert str(raised.value) == f"add: {message}"


def test_symbolic_dimension_is_bound_by_first_use(kernel: object) -> None:
    out = array(8, 7, dtype="int64")
    kernel(array(7, 4), out)  # type: ignore[operator]
    assert out[0, 0] == 7


def test_names_of_any_spelling() -> None:
    func = PrimFunc((X,), Evaluate(const(0)), {"global_symbol": "a.b/c-1 é"})
    build(func)(array(2, 4))
