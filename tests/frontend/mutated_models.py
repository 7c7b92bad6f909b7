"""Models that are broken in one place or several: cut, with wrong types, cycles, names that nothing
makes, absurd shapes and attributes. The same number gives the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ABSURD = (-1, 0, 2**31, 2**62, -(2**63), 2**63 - 1, 7, 1000003)


def _value(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _weights(**arrays: np.ndarray) -> list[onnx.TensorProto]:  # type: ignore[type-arg]
    return [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items()]


def _convolution() -> onnx.GraphProto:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "g"], ["h"], alpha=0.5, transB=1),
        helper.make_node("Softmax", ["h"], ["y"], axis=1),
    ]
    weights = _weights(
        w=rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        b=np.zeros(4, np.float32),
        g=rng.normal(size=(5, 16)).astype(np.float32),
    )
    return helper.make_graph(
        nodes, "conv", [_value("x", FLOAT, ["n", 3, 8, 8])], [_value("y", FLOAT, ["n", 5])], weights
    )


def _shapes() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "four"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["r"]),
        helper.make_node("Transpose", ["r"], ["q"], perm=[1, 0]),
        helper.make_node("Slice", ["q", "zero", "four"], ["z"]),
        helper.make_node("ReduceSum", ["z", "zero"], ["y"], keepdims=0),
    ]
    weights = _weights(zero=np.array([0]), four=np.array([4]))
    inputs = [_value("x", FLOAT, ["n", 2, 2])]
    return helper.make_graph(nodes, "shapes", inputs, [_value("y", FLOAT, ["n"])], weights)


def _control() -> onnx.GraphProto:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_out"]),
            helper.make_node("Add", ["a", "x"], ["a_out"]),
            helper.make_node("Mul", ["a", "a"], ["part"]),
        ],
        "body",
        [_value("i", INT, []), _value("go", BOOL, []), _value("a", FLOAT, [3])],
        [_value(n, k, s) for n, k, s in (("go_out", BOOL, []), ("a_out", FLOAT, [3]))]
        + [_value("part", FLOAT, [3])],
    )
    then = helper.make_graph(
        [helper.make_node("Neg", ["last"], ["m"])], "then", [], [_value("m", FLOAT, [3])]
    )
    other = helper.make_graph(
        [helper.make_node("Exp", ["last"], ["e"])], "else", [], [_value("e", FLOAT, [3])]
    )
    nodes = [
        helper.make_node("Loop", ["n", "c", "x"], ["last", "parts"], body=body),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("SequenceConstruct", ["y", "last"], ["seq"]),
        helper.make_node("SequenceAt", ["seq", "one"], ["z"]),
    ]
    inputs = [_value("c", BOOL, []), _value("x", FLOAT, [3])]
    outputs = [_value("y", FLOAT, [3]), _value("z", FLOAT, [3]), _value("parts", FLOAT, ["k", 3])]
    weights = _weights(n=np.array(4), one=np.array(1))
    return helper.make_graph(nodes, "control", inputs, outputs, weights)


BASES = (_convolution, _shapes, _control)


def base(number: int) -> onnx.ModelProto:
    """One of the models that are sound."""
    graph = BASES[number % len(BASES)]()
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


# Mutations: each changes the model in place.


def _all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    result, graphs = [], [model.graph]
    while graphs:
        for node in graphs.pop().node:
            result.append(node)
            graphs.extend(a.g for a in node.attribute if a.HasField("g"))
    return result


def _rename_input(model: onnx.ModelProto, rng: Random) -> None:
    node = rng.choice([n for n in _all_nodes(model) if n.input])
    names = [i for n in _all_nodes(model) for i in (*n.input, *n.output)]
    node.input[rng.randrange(len(node.input))] = rng.choice([*names, "nothing makes this", ""])


def _rename_output(model: onnx.ModelProto, rng: Random) -> None:
    node = rng.choice([n for n in _all_nodes(model) if n.output])
    names = [i for n in _all_nodes(model) for i in (*n.input, *n.output)]
    node.output[rng.randrange(len(node.output))] = rng.choice([*names, "unused", ""])


def _change_operator(model: onnx.ModelProto, rng: Random) -> None:
    names = [s.name for s in onnx.defs.get_all_schemas()]
    rng.choice(_all_nodes(model)).op_type = rng.choice([*names, "", "Nonsense"])


def _change_attribute(model: onnx.ModelProto, rng: Random) -> None:
    nodes = [n for n in _all_nodes(model) if n.attribute]
    attribute = rng.choice(rng.choice(nodes).attribute)
    choice = rng.randrange(4)
    if choice == 0:
        attribute.name = rng.choice(["axis", "nonsense", "", "pads", "body"])
    elif choice == 1:
        attribute.type = rng.randrange(0, 15)  # type: ignore[assignment]
    elif choice == 2 and attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(ABSURD)
    else:
        attribute.i = rng.choice(ABSURD)


def _change_weight(model: onnx.ModelProto, rng: Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    choice = rng.randrange(4)
    if choice == 0 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(ABSURD)
    elif choice == 1:
        tensor.data_type = rng.randrange(0, 30)
    elif choice == 2:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    else:
        tensor.dims.append(rng.choice(ABSURD))


def _change_input(model: onnx.ModelProto, rng: Random) -> None:
    kind = rng.choice(model.graph.input).type.tensor_type
    choice = rng.randrange(3)
    if choice == 0:
        kind.elem_type = rng.randrange(0, 30)
    elif choice == 1 and kind.shape.dim:
        rng.choice(kind.shape.dim).dim_value = rng.choice(ABSURD)
    else:
        kind.shape.dim.add().dim_param = rng.choice(["n", "", "a b", "é"])


def _drop_node(model: onnx.ModelProto, rng: Random) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


def _copy_node(model: onnx.ModelProto, rng: Random) -> None:
    model.graph.node.add().CopyFrom(rng.choice(model.graph.node))


def _change_opset(model: onnx.ModelProto, rng: Random) -> None:
    model.opset_import[0].version = rng.choice([0, 7, 9, 11, 13, 99, *ABSURD])


MUTATIONS: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    _rename_input, _rename_output, _change_operator, _change_attribute, _change_weight,
    _change_input, _drop_node, _copy_node, _change_opset,
)  # fmt: skip


def mutated(number: int) -> bytes:
    """A broken model: one to three mutations of the message, or of its bytes."""
    rng = Random(number)
    model = base(number)
    if rng.random() < 0.7:
        for _ in range(rng.randrange(1, 4)):
            rng.choice(MUTATIONS)(model, rng)
        return bytes(model.SerializeToString())
    data = bytearray(model.SerializeToString())
    if rng.random() < 0.4:
        return bytes(data[: rng.randrange(len(data))])
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)
