"""Programs of the replay that are models of TensorFlow Lite."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from recorder import import_model
from replay_programs import Program, weights
from tflite_models import Op, Part, Spec, model


def quantised_network() -> bytes:
    """Return a convolution, an average and a softmax of int8."""
    bias = Spec(data=weights("w_b", (8,), "int32"), scale=[0.001] * 8, point=[0] * 8)
    kernel = Spec(
        data=weights("w_k", (8, 3, 3, 4), "int8"), scale=[0.02] * 8, point=[0] * 8, axis=0
    )
    tensors = [
        Spec((1, 8, 8, 4), "int8", scale=[0.05], point=[-1]), kernel, bias,
        Spec((1, 4, 4, 8), "int8", scale=[0.2], point=[3]),
        Spec((1, 1, 1, 8), "int8", scale=[0.2], point=[3]),
        Spec((1, 1, 1, 8), "int8", scale=[1 / 256], point=[-128]),
    ]  # fmt: skip
    convolution = ("Conv2DOptions", {
        "Padding": 0, "StrideH": 2, "StrideW": 2, "FusedActivationFunction": 1,
        "DilationHFactor": 1, "DilationWFactor": 1,
    })  # fmt: skip
    pool = ("Pool2DOptions", {
        "Padding": 1, "StrideH": 1, "StrideW": 1, "FilterHeight": 4, "FilterWidth": 4,
        "FusedActivationFunction": 0,
    })  # fmt: skip
    ops = [
        Op("CONV_2D", [0, 1, 2], [3], convolution),
        Op("AVERAGE_POOL_2D", [3], [4], pool),
        Op("SOFTMAX", [4], [5], ("SoftmaxOptions", {"Beta": 1.0})),
    ]
    return model(tensors, ops, [0], [5])


def hybrid_dense() -> bytes:
    """Return a product of floats with weights of int8."""
    kernel = Spec(data=weights("w_k", (24, 32), "int8"), scale=[0.01], point=[0])
    bias = Spec(data=weights("w_b", (24,), "float32"))
    table = ("FullyConnectedOptions", {"FusedActivationFunction": 1})
    tensors = [Spec((4, 32)), kernel, bias, Spec((4, 24))]
    return model(tensors, [Op("FULLY_CONNECTED", [0, 1, 2], [3], table)], [0], [3])


def accumulator() -> bytes:
    """Return a graph that adds what it is given to a variable."""
    handle = ("VarHandleOptions", {"Container": "", "SharedName": "total"})
    resource = Spec((), "resource", name="handle")
    first = Part(
        [resource, Spec(data=np.zeros(4, np.float32))],
        [Op("VAR_HANDLE", [], [0], handle), Op("ASSIGN_VARIABLE", [0, 1], [])], [], [],
    )  # fmt: skip
    ops = [
        Op("CALL_ONCE", [], [], ("CallOnceOptions", {"InitSubgraphIndex": 1})),
        Op("VAR_HANDLE", [], [1], handle),
        Op("READ_VARIABLE", [1], [2]),
        Op("ADD", [2, 0], [3], ("AddOptions", {"FusedActivationFunction": 0})),
        Op("ASSIGN_VARIABLE", [1, 3], []),
    ]
    return model([Spec((4,)), resource, Spec((4,)), Spec((4,))], ops, [0], [3], more=[first])


PROGRAMS: Mapping[str, Program] = {
    "quantised": Program(lambda: import_model(quantised_network())),
    "hybrid": Program(lambda: import_model(hybrid_dense())),
    "variable": Program(lambda: import_model(accumulator())),
}
