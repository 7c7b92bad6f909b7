"""Small ONNX models for tests, run by Ekiden's interpreter and by reference engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ekiden
from ekiden.frontend.onnx import from_onnx
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.interpreter_values import ConstructorValue
from onnx_runtime import run_onnx_runtime

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]


def element_type(array: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def graph_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Feed,
    outputs: Sequence[str],
    weights: Feed | None = None,
    opset: int = 17,
    symbolic: bool = False,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model whose inputs have the shapes of `inputs`, or a symbol per axis; of further domains it
    imports version 1.
    """
    infos = [
        helper.make_tensor_value_info(
            name,
            element_type(a),
            [f"{name}_{i}" for i in range(a.ndim)] if symbolic else list(a.shape),
        )
        for name, a in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(o) for o in outputs]
    initializers = [onnx.numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "test", infos, results, initializers)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def interpret(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    """The model's outputs by way of `from_onnx` and the Relay interpreter."""
    return evaluated(Interpreter(from_onnx(model)), inputs)


def evaluated(interpreter: Interpreter, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of an imported model; of values of several ranks what they hold."""
    result = interpreter.evaluate("main", *inputs)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    return [v.fields[0] if isinstance(v, ConstructorValue) and v.fields else v for v in outputs]


def expected(model: onnx.ModelProto, feed: Feed, reference: bool) -> list[Array]:
    """The model's outputs by ONNX Runtime, or by ONNX's own reference."""
    if reference:
        return list(ReferenceEvaluator(model).run(None, dict(feed)))
    return run_onnx_runtime(model, feed)


def compare(
    model: onnx.ModelProto, feed: Feed, reference: bool = False, rtol: float = 1e-5
) -> None:
    """Ekiden's outputs have the shapes, dtypes and values of the others'."""
    expected_value = expected(model, feed, reference)
    actual = interpret(model, list(feed.values()))
    assert len(actual) == len(expected_value)
    for result, reference_result in zip(actual, expected_value, strict=True):
        assert result.dtype == reference_result.dtype
        assert result.shape == reference_result.shape
        np.testing.assert_allclose(result, reference_result, rtol=rtol, atol=rtol)


def check_node(
    op_type: str,
    inputs: Sequence[Array | None],
    opset: int = 17,
    constants: Sequence[int] = (),
    outputs: int = 1,
    symbolic: bool = False,
    reference: bool = False,
    rtol: float = 1e-5,
    **attributes: object,
) -> None:
    """One node agrees; inputs at the positions `constants` are initializers."""
    names = [f"i{at}" if a is not None else "" for at, a in enumerate(inputs)]
    present = {n: a for n, a in zip(names, inputs, strict=True) if a is not None}
    fixed = {names[at] for at in constants}
    result = [f"o{at}" for at in range(outputs)]
    node = helper.make_node(op_type, names, result, **attributes)
    feed = {n: a for n, a in present.items() if n not in fixed}
    weights = {n: a for n, a in present.items() if n in fixed}
    model = graph_model([node], feed, result, weights, opset, symbolic)
    compare(model, feed, reference, rtol)


def named_node(
    op_type: str, inputs: str, outputs: str = "y", **attributes: object
) -> onnx.NodeProto:
    """A node of inputs and outputs separated by blanks, "-" for one that is absent."""
    names = ["" if n == "-" else n for n in inputs.split()]
    called = f"{op_type} of {outputs}"
    return helper.make_node(op_type, names, outputs.split(), name=called, **attributes)


def agree(
    nodes: list[onnx.NodeProto],
    feed: Feed,
    weights: Feed | None = None,
    opset: int = 18,
    symbolic: bool = False,
    reference: bool = False,
    targets: tuple[str, ...] = ("llvm",),
) -> None:
    """The interpreter and each target's code say what ONNX Runtime says, or ONNX's reference."""
    outputs = list(nodes[-1].output)
    model = graph_model(nodes, feed, outputs, weights, opset, symbolic)
    expected_value = expected(model, feed, reference)
    runs = [interpret(model, list(feed.values()))]
    for target in targets:
        actual = ekiden.compile(model, target=target)(**feed)
        many = actual if isinstance(actual, tuple) else (actual,)
        runs.append([item.numpy() for item in many])
    for run in runs:
        assert [a.shape for a in run] == [a.shape for a in expected_value]
        assert [a.dtype for a in run] == [a.dtype for a in expected_value]
        for result, want in zip(run, expected_value, strict=True):
            np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


FLOAT = TensorProto.FLOAT
