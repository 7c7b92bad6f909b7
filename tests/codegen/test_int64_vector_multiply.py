"""Arithmetic of int64 between vectors of int32, in halves: the same numbers, and one instruction
for each product of half a vector.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from codegen_kernels import map_kernel, run_map

from ekiden.codegen import llvm
from ekiden.codegen.llvm.even_odd_multiply import split_even_odd
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, PrimExpr, Var, cast, const
from ekiden.target import Target
from ekiden.tir.expr import broadcast
from ekiden.tir.transform import lower

LANES = 8
Body = Callable[[PrimExpr, PrimExpr], PrimExpr]


def number(value: int) -> PrimExpr:
    """A vector of one int64."""
    return broadcast(const(value, "int64"), LANES)


def wide(x: PrimExpr) -> PrimExpr:
    """A vector as int64."""
    return cast(x, f"int64x{LANES}")


def shifted(x: PrimExpr, by: int) -> PrimExpr:
    """The lower words of a vector of int64, shifted to the right."""
    return cast(call_intrin("right_shift", x, number(by)), f"int32x{LANES}")


BODIES: dict[str, Body] = {
    "rounded": lambda x, y: shifted(wide(x) * wide(y) + number(1 << 30), 31),
    "upper": lambda x, y: shifted(wide(x) * wide(y), 32),
    "whole": lambda x, y: cast(wide(x) * wide(y) - wide(y), f"int32x{LANES}"),
    "by a constant": lambda x, y: shifted(wide(x) * number(2**31 - 7) + wide(y), 31),
    "far": lambda x, y: shifted(wide(x) * wide(y), 40),
}


@pytest.mark.parametrize("name", BODIES)
def test_int64_half_products_match_numpy(name: str) -> None:
    ends = [-(2**31), 1 - 2**31, -3, -1, 0, 1, 2, 2**31 - 1]
    x, y = (a.ravel().astype(np.int32) for a in np.meshgrid(ends, ends))
    actual = run_map(BODIES[name], [x, y], ["int32", "int32"], "int32", LANES)
    a, b = x.astype(np.int64), y.astype(np.int64)
    expected = {
        "rounded": a * b + (1 << 30) >> 31,
        "upper": a * b >> 32,
        "whole": a * b - b,
        "by a constant": a * (2**31 - 7) + b >> 31,
        "far": a * b >> 40,
    }
    np.testing.assert_array_equal(actual, expected[name].astype(np.int32))


@pytest.mark.parametrize("name", ["rounded", "by a constant"])
def test_half_vector_product_is_one_instruction(name: str) -> None:
    kernel = lower(map_kernel(BODIES[name], ["int32", "int32"], "int32", LANES, LANES))
    target = Target("llvm -mcpu=haswell -mtriple=x86_64-unknown-linux-gnu")
    text = llvm.assembly([kernel], target)
    assert text.count("vpmuldq") == 2
    assert not any(word in text for word in ("vpmuludq", "vpmovsxdq", "vpermq"))


def test_other_int64_arithmetic_is_unchanged() -> None:
    x = Var("x", f"int32x{LANES}")
    long = Var("y", f"int64x{LANES}")
    for value in (wide(x) + number(1), wide(x) * long, wide(x) // number(3) * wide(x)):
        result = cast(value, f"int32x{LANES}")
        assert isinstance(result, Cast) and split_even_odd(result) is None
