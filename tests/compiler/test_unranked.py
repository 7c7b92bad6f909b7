"""Models with inputs of unknown rank: one program per rank, compiled at its first run."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ekiden
from ekiden.compiler.unranked_executable import UnrankedExecutable
from ekiden.frontend.common.options import Dims
from ekiden.ir.transform import PassContext
from ekiden.runtime.errors import ExportError, ImportModelError, InputError

Array = np.ndarray[Any, Any]


def unranked_model(second: bool = False) -> onnx.ModelProto:
    """Softmax(x), or Softmax(Relu(x + y)): of inputs without a shape."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "y")]
    nodes = [helper.make_node("Softmax", ["s" if second else "x"], ["z"], axis=-1)]
    if second:
        nodes.insert(0, helper.make_node("Add", ["x", "y"], ["a"]))
        nodes.insert(1, helper.make_node("Relu", ["a"], ["s"]))
    result = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "unranked", infos[: 1 + second], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def softmax(x: Array) -> Array:
    powers: Array = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def compiled(model: onnx.ModelProto, executor: str = "vm", **shapes: Dims) -> UnrankedExecutable:
    exe = ekiden.compile(model, executor=executor, shape=shapes, num_threads=1)
    assert isinstance(exe, UnrankedExecutable)
    return exe


def check(exe: Callable[..., object], expected: Array, *args: object, **named: object) -> None:
    result = exe(*args, **named)
    assert isinstance(result, ekiden.Tensor)
    np.testing.assert_allclose(np.asarray(result.numpy()), np.asarray(expected), rtol=1e-5)


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_each_rank_is_compiled_at_its_first_run_and_kept(executor: str) -> None:
    exe = compiled(unranked_model(), executor)
    assert [str(i) for i in (*exe.inputs, *exe.outputs)] == ["x: float32[...]", "z: float32[...]"]
    programs = []
    for shape in ((4,), (2, 3), (5, 3), (2, 1, 4)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        check(exe, softmax(x), x)
        check(exe, softmax(x), x=x)
        programs.append(exe.for_inputs(x))
    assert programs[1] is programs[2] and len(set(map(id, programs))) == 3


def test_each_combination_of_input_ranks_has_a_program() -> None:
    exe = compiled(unranked_model(second=True))
    x, y = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    check(exe, softmax(x + y), x, y)
    check(exe, softmax(x + y), y, x)
    assert exe.for_inputs(x, y) is not exe.for_inputs(y, x)


def test_given_rank_makes_a_plain_executable(tmp_path: Path) -> None:
    exe = ekiden.compile(unranked_model(), shape={"x": ("n", 3)})
    assert str(exe.inputs[0]) == "x: float32[n, 3]"
    exe.save(tmp_path / "model.eki")
    x = np.ones((2, 3), np.float32)
    check(ekiden.load(tmp_path / "model.eki"), softmax(x), x)


def test_unstated_ranks_are_determined_at_run_time() -> None:
    exe = compiled(unranked_model(second=True), x=(2, 3))
    assert [str(i) for i in exe.inputs] == ["x: float32[2, 3]", "y: float32[...]"]
    x, y = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    check(exe, softmax(x + y), x, y)


def test_single_program_operations_name_the_unranked_input(tmp_path: Path) -> None:
    exe = compiled(unranked_model())
    exe(np.ones(3, np.float32))
    for use in (
        lambda: exe.save(tmp_path / "model.eki"),
        lambda: exe.save(io.BytesIO()),
        lambda: exe.export_library(tmp_path / "model.so"),
        exe.disassemble,
    ):
        with pytest.raises(ExportError, match=r"rank of its input 'x', .*shape=\{'x': \(...\)\}"):
            use()
    with pytest.raises(ImportModelError, match=r"'x' has no shape; give one with shape="):
        ekiden.export(unranked_model(), tmp_path / "model.eki")


def test_wrong_arguments_are_refused_by_the_name_of_the_input() -> None:
    exe = compiled(unranked_model())
    with pytest.raises(InputError, match=r"expected 1 inputs \('x'\), got 2"):
        exe(np.ones(3, np.float32), np.ones(3, np.float32))
    with pytest.raises(InputError, match="no input is named 'q'"):
        exe(q=1)
    with pytest.raises(InputError, match="'x': expected an array of float32"):
        exe([[1.0], [1.0, 2.0]])
    with pytest.raises(InputError, match="'x'"):
        exe(np.ones(3, np.int32))


def test_runs_of_threads_share_the_programs() -> None:
    exe = compiled(unranked_model())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(exe(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    out = np.zeros((2, 3), np.float32)
    exe(x, out=out)
    np.testing.assert_allclose(out, softmax(x), rtol=1e-5)
    bound = exe.bind(x)
    check(
        bound,
        softmax(x),
    )
    check(lambda: exe.run_async(x).result(), softmax(x))


def test_options_of_the_compilation_hold_for_programs_that_are_made_later() -> None:
    with PassContext(config={"relay.FuseOps.max_depth": 1}):
        exe = compiled(unranked_model(second=True))
    x = np.ones((2, 3), np.float32)
    program, usual = exe.for_inputs(x, x), compiled(unranked_model(second=True))
    assert program.num_threads == 1
    assert len(program.primitive_ops) > len(usual.for_inputs(x, x).primitive_ops)
