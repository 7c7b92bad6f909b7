"""Casts between strings and numbers, beside ONNX Runtime and Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ekiden
from ekiden.frontend.onnx import from_onnx
from ekiden.relay.interpreter import Interpreter
from ekiden.runtime.errors import RunError
from ekiden.runtime.string_tensors import decode_strings, encode_strings
from long_runs import sizes
from onnx_runtime import run_onnx_runtime

Array = np.ndarray[Any, Any]
STRING = TensorProto.STRING


def kind_of(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def cast(before: int, after: int, rank: int = 1) -> onnx.ModelProto:
    shape = [f"d{n}" for n in range(rank)]
    infos = [helper.make_tensor_value_info(n, k, shape) for n, k in (("x", before), ("y", after))]
    node = helper.make_node("Cast", ["x"], ["y"], to=after)
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


NUMBERS = {
    "float16": [1.5, 0.1, 65504, 1e-7, np.inf, -np.inf, np.nan, -0.0, 0.0],
    "float32": [
        1.5, 0.1, 1 / 3, 1e8, 99999999, 123456789, 1e-4, 1e-5, 1.234e-10, 3.4e38, 1e-45, 0, -0.0,
        100, 1e7, 12345678, -1234567.8, np.nan, np.inf, -np.inf, 9.9999998e9, 0.00012345,
    ],
    "float64": [1.5, 0.1, 1 / 3, 1e16, 1e17, 5e-324, 1.7976931348623157e308, 2.0**53 + 1, -1e-300],
    "int8": [-128, 127, 0], "uint8": [255, 10], "int32": [-(2**31), 5],
    "int64": [-(2**63), 2**63 - 1, 100], "uint64": [2**64 - 1, 0], "bool": [True, False],
}  # fmt: skip


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_become_strings_as_onnx_runtime_writes_them(dtype: str) -> None:
    x = np.array(NUMBERS[dtype], dtype)
    model = cast(kind_of(dtype), STRING)
    (expected,) = run_onnx_runtime(model, {"x": x})
    (actual,) = [decode_strings(np.asarray(Interpreter(from_onnx(model)).evaluate("main", x)))]
    assert actual.tolist() == expected.tolist()
    if dtype in ("float32", "int64", "uint64"):
        assert np.asarray(ekiden.compile(model)(x)).tolist() == expected.tolist()


@sizes("count", 2_000, 200_000)
def test_floats_of_all_sizes_become_strings(count: int) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    actual = np.asarray(ekiden.compile(cast(kind_of("float32"), STRING))(x)).tolist()
    special = {"nan": "NaN", "inf": "INF", "-inf": "-INF", "-nan": "NaN"}
    expected = [f"{float(v):.8g}" for v in x]
    assert actual == [special.get(w, w) for w in expected]


WORDS = [
    "1", "2.5", "-3e2", " 7", "7 ", "+7", "inf", "-INF", "nan", "NaN", "300", ".5", "5.", "1E+05",
    "infinity", "9223372036854775807", "0.1", "123456.789", "-0", "1e-30", "0.000123", "1e22",
    "12345678901234567890123", "0.30000000000000004", "4.35", "1e-320", "1e300",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_strings_become_floats(dtype: str) -> None:
    x = np.array(WORDS, object).reshape(3, 9)
    with np.errstate(over="ignore"):
        expected = np.array([float(w) for w in WORDS]).astype(dtype).reshape(3, 9)
    model = cast(STRING, kind_of(dtype), 2)
    exact = {"float16": 0, "float32": 0, "float64": 3e-16}[dtype]
    results = [ekiden.compile(model)(x).numpy()]
    results.append(np.asarray(Interpreter(from_onnx(model)).evaluate("main", encode_strings(x))))
    for actual in results:
        np.testing.assert_allclose(actual, expected, exact, 1e-323 if dtype == "float64" else 0)
        assert (np.signbit(actual) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_strings_become_integers(dtype: str) -> None:
    words = ["0", "1", " 12 ", "+7", "100", "2.75"]
    words += {"int64": ["-9223372036854775808"], "uint64": ["18446744073709551615"]}.get(dtype, [])
    x = np.array(words, object)
    model = cast(STRING, kind_of(dtype))
    (expected,) = run_onnx_runtime(model, {"x": x})
    assert ekiden.compile(model)(x).numpy().tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("word", "dtype"),
    [("abc", "float32"), ("", "float32"), ("1e", "float32"), ("1.2.3", "float64"),
     ("3e2", "int64"), ("x1", "int64"), ("nan", "int32"), ("--1", "int64")],
)  # fmt: skip
def test_strings_that_are_no_numbers_end_the_run(word: str, dtype: str) -> None:
    exe = ekiden.compile(cast(STRING, kind_of(dtype)))
    with pytest.raises(RunError, match=f"Cast 'y' .a string is no number of type {dtype}"):
        exe(np.array(["1", word], object))


def test_cast_like_converts_strings_and_numbers() -> None:
    kinds = {"x": STRING, "n": TensorProto.FLOAT, "y": TensorProto.FLOAT, "z": STRING}
    infos = [helper.make_tensor_value_info(n, k, [None]) for n, k in kinds.items()]
    nodes = [helper.make_node("CastLike", ["x", "n"], ["y"]),
             helper.make_node("CastLike", ["n", "x"], ["z"])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", infos[:2], infos[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    y, z = ekiden.compile(model)(np.array(["2.5", "-1"], object), np.array([0.25, 3], np.float32))
    assert y.numpy().tolist() == [2.5, -1.0]
    assert np.asarray(z).tolist() == ["0.25", "3"]
