"""64-bit indices become 32-bit where all values fit; data keeps its dtype."""

import numpy as np

import ekiden
from ekiden import te, tir
from ekiden.codegen.c.freestanding import emit_freestanding
from ekiden.codegen.c.helpers import HelperFunctions
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.tir.transform.narrow_data_type import narrow_data_type

TARGET = Target("c -mcpu=cortex-m7")


def narrowed(*tensors: te.Tensor) -> tir.PrimFunc:
    return narrow_data_type(lower(te.create_prim_func(list(tensors)), TARGET))


def test_loops_over_little_data_have_variables_of_32_bits() -> None:
    x = te.placeholder((6, 7), "float32", "x")
    y = te.compute((6, 7), lambda i, j: x[5 - i, (j * 3) % 7] + te.if_then_else(i > 2, 1.0, 0.0))
    text = emit_freestanding(narrowed(x, y), "kernel", HelperFunctions(TARGET)).text
    assert "int32_t i" in text and "int64_t" not in text


def test_data_of_64_bits_is_computed_in_64_bits() -> None:
    x = te.placeholder((4,), "int64", "x")
    y = te.compute((4,), lambda i: x[i] * 3_000_000_000 + i)
    func = narrowed(x, y)
    assert "3000000000" in emit_freestanding(func, "kernel", HelperFunctions(TARGET)).text
    values = np.array([1, -2, 3, 1 << 33], np.int64)
    result = ekiden.nd.array(np.zeros(4, np.int64))
    ekiden.build(func, "llvm", name="kernel")["kernel"](ekiden.nd.array(values), result)
    np.testing.assert_array_equal(result.numpy(), values * 3_000_000_000 + np.arange(4))


def test_indices_beyond_32_bits_stay_wide() -> None:
    x = te.placeholder((1 << 20, 1 << 13), "int8", "x")
    y = te.compute((1 << 20, 1 << 13), lambda i, j: x[i, j])
    assert "int64_t" in emit_freestanding(narrowed(x, y), "kernel", HelperFunctions(TARGET)).text
