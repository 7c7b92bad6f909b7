"""Broken ONNX files: one error from `ekiden.compile`, never a crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from relay_networks import normal

import ekiden
from long_runs import sizes

pytestmark = pytest.mark.quick


def model(nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """x[n, 3] -> y, with a weight w[3, 4]; no checker has seen it."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_empty_tensor_value_info("y")
    weight = onnx.numpy_helper.from_array(normal(3, 4), "w")
    graph = helper.make_graph(list(nodes), "test", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def node(op_type: str, inputs: str, output: str, name: str) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=name)


GOOD = [node("MatMul", "x w", "a", "product"), node("Relu", "a", "y", "act")]


def message(
    given: onnx.ModelProto | bytes | Path, kind: type[Exception] = ekiden.ImportModelError
) -> str:
    with pytest.raises(ekiden.ImportModelError) as caught:
        ekiden.compile(given)
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.slow
def test_good_model_runs_from_each_form(tmp_path: Path) -> None:
    onnx.save(model(GOOD), tmp_path / "m.onnx")
    x = normal(2, 3)
    expected = np.maximum(x @ normal(3, 4), 0)
    for argument in (model(GOOD), model(GOOD).SerializeToString(), tmp_path / "m.onnx"):
        actual = ekiden.compile(argument)(x)
        assert isinstance(actual, ekiden.Tensor)
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_unknown_operators_are_listed_all_at_once() -> None:
    text = message(
        model([node("Wibble", "x", "b", "one"), node("Wobble", "b", "a", "two"), *GOOD[1:]]),
        ekiden.UnsupportedError,
    )
    assert "Wibble 'one'" in text
    assert "Wobble 'two'" in text


def test_cycle_names_its_nodes() -> None:
    text = message(
        model(
            [
                node("Add", "x b", "a", "first"),
                node("Relu", "a", "b", "second"),
                node("Relu", "b", "y", "out"),
            ]
        )
    )
    assert "cycle" in text
    assert "'first'" in text
    assert "'second'" in text


def test_missing_initializer_is_named() -> None:
    text = message(model([node("MatMul", "x lost", "y", "product")]))
    assert "'lost'" in text
    assert "'product'" in text


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x7fELF" + bytes(99), bytes(1000)])
def test_non_model_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    message(tmp_path / "m.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises((FileNotFoundError, ekiden.ImportModelError), match="m.onnx"):
        ekiden.compile(tmp_path / "m.onnx")


def attempt(content: bytes) -> None:
    """Compile and run, or one of Ekiden's errors about the program or its input."""
    try:
        exe = ekiden.compile(content)
        exe(
            *(
                np.zeros([d if isinstance(d, int) else 2 for d in i.shape], i.dtype)
                for i in exe.inputs
            )
        )
    except (ekiden.CompileError, ekiden.RunError):
        pass


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@sizes("one_of", 4, 1)
@pytest.mark.parametrize("kind", ["cut", "changed"])
def test_truncated_and_mutated_files_never_crash(kind: str, one_of: int) -> None:
    """A file without its end, from one byte in so many on; with one byte that is another."""
    whole = model(GOOD).SerializeToString()
    rng = np.random.default_rng(0)
    if kind == "cut":
        contents = [whole[:n] for n in range(0, len(whole), one_of)]
    else:
        contents = []
        for _ in range(160 // one_of):
            changed = bytearray(whole)
            changed[int(rng.integers(len(whole)))] ^= int(rng.integers(1, 256))
            contents.append(bytes(changed))
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        status = 1
        try:
            os.environ["EKIDEN_COMPILE_JOBS"] = "1"
            for content in contents:
                attempt(content)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
