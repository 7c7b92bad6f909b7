# ruff: noqa: E501 - a table of cases reads better in lines
"""Every converter against ONNX Runtime (or ONNX's reference), with constant and with symbolic
shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_models import Array, check_node, graph_model, interpret, ints, normal

pytestmark = pytest.mark.quick


@dataclass
class Case:
    """One node: its inputs, which of them are constant, and how it is compared."""

    op_type: str
    inputs: list[Array | None]
    constants: tuple[int, ...] = ()
    opset: int = 17
    outputs: int = 1
    symbolic: bool = True
    reference: bool = False
    rtol: float = 1e-5
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        texts = [f"{k}={v}" for k, v in self.attributes.items()]
        return "-".join([self.op_type, str(self.opset), *texts])[:80]

    def run(self, symbolic: bool) -> None:
        check_node(
            self.op_type, self.inputs, self.opset, self.constants, self.outputs, symbolic,
            self.reference, self.rtol, **self.attributes,
        )  # fmt: skip


def case(
    op_type: str,
    *inputs: Array | None,
    attrs: dict[str, Any] | None = None,
    **options: Any,  # noqa: ANN401
) -> Case:
    return Case(op_type, list(inputs), attributes=attrs or {}, **options)


X = normal(2, 3, 4)
IMAGE = normal(2, 4, 9, 8)
POSITIVE = np.abs(X) + np.float32(0.1)
WHOLE = np.array([[7, -7, 3], [-8, 5, 2]], np.int32)
BY = np.array([[2, 2, -2], [3, -3, 2]], np.int32)
FLAGS = X > 0
NOTHING = np.zeros(0, np.float32)


def scalar(value: float, dtype: type = np.float32) -> Array:
    return np.asarray(value, dtype)


UNARY = [
    "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Exp", "Sin", "Cos", "Tan", "Tanh", "Erf", "Sigmoid", "Relu", "IsNaN",
    "IsInf", "Reciprocal", "HardSigmoid", "HardSwish", "LeakyRelu", "Elu", "Selu", "Celu", "Softplus", "Softsign",
    "ThresholdedRelu", "Shrink", "Identity", "Size",
]  # fmt: skip

ELEMENTWISE = [
    *[case(name, X) for name in UNARY],
    *[case(name, POSITIVE) for name in ("Log", "Sqrt")],
    *[case(name, X, normal(3, 1, seed=1)) for name in ("Add", "Sub", "Mul", "Div")],
    *[case(n, X, normal(4, seed=1)) for n in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")],
    *[case(name, FLAGS, FLAGS[:, :1]) for name in ("And", "Or", "Xor")],
    *[case(n, WHOLE, BY, opset=18) for n in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal")],
    *[case(n, X, normal(3, 4, seed=1), normal(4, seed=2)) for n in ("Sum", "Max", "Min", "Mean")],
    *[case(name, X) for name in ("Sum", "Max", "Min", "Mean")],
    case("Not", FLAGS),
    case("Div", WHOLE, BY),
    case("Mod", WHOLE, BY),
    case("Mod", WHOLE, BY, attrs={"fmod": 1}),
    case("Mod", X, normal(2, 3, 4, seed=1), attrs={"fmod": 1}, rtol=1e-4),
    case("Pow", POSITIVE, normal(4, seed=1)),
    case("Pow", X, scalar(2), constants=(1,)),
    case("Pow", POSITIVE, scalar(0.5), constants=(1,)),
    case("Pow", POSITIVE, scalar(3, np.int64), constants=(1,)),
    case("Pow", np.array([4, 9, 16, -3], np.int32), np.array([0.5, 1.5, 1, 3], np.float32)),
    case("Where", FLAGS, X, normal(4, seed=1)),
    case("IsInf", np.array([1, np.inf, -np.inf], np.float32), attrs={"detect_negative": 0}),
    case("Cast", X, attrs={"to": TensorProto.INT64}),
    case("Cast", X, attrs={"to": TensorProto.BOOL}),
    case("Cast", FLAGS, attrs={"to": TensorProto.FLOAT}),
    case("Cast", X, attrs={"to": TensorProto.FLOAT}),
    case("CastLike", X, WHOLE),
    case("Clip", X, opset=10, attrs={"min": -0.5, "max": 0.25}),
    case("Clip", X, opset=10),
    case("Clip", X, scalar(-0.5), scalar(0.25), constants=(1, 2)),
    case("Clip", X, None, scalar(0.25), constants=(2,)),
    case("Clip", X, scalar(-0.5), scalar(0.25)),
    case("Clip", WHOLE.astype(np.int64), scalar(-2, np.int64), None, constants=(1,)),
    case("Clip", X),
    case("HardSigmoid", X, attrs={"alpha": 0.3, "beta": 0.4}),
    case("LeakyRelu", X, attrs={"alpha": 0.3}),
    case("PRelu", X, normal(3, 1, seed=1)),
    case("Celu", X, attrs={"alpha": 0.7}),
    case("Mish", X, opset=18),
    case("Gelu", X, opset=20),
    case("Gelu", X, opset=20, attrs={"approximate": "tanh"}),
    case("Swish", X, opset=24, attrs={"alpha": 0.8}, reference=True),
]

REDUCTIONS = [
    *[
        case(f"Reduce{kind}", POSITIVE, opset=11, attrs={"axes": [-1, 0], "keepdims": keep})
        for kind in (
            "Max",
            "Min",
            "Sum",
            "Mean",
            "Prod",
            "L1",
            "L2",
            "SumSquare",
            "LogSum",
            "LogSumExp",
        )
        for keep in (0, 1)
    ],
    case("ReduceSum", X),
    case("ReduceSum", X, ints(1), constants=(1,), attrs={"keepdims": 0}),
    *[
        case(f"Reduce{kind}", POSITIVE, opset=18, attrs={"noop_with_empty_axes": 1})
        for kind in ("Sum", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
    ],
    case("ReduceMax", X, ints(1), constants=(1,), opset=18),
    case("ReduceLogSumExp", X * 100, ints(-1), constants=(1,), opset=18, attrs={"keepdims": 0}),
    case(
        "ReduceLogSumExp",
        np.array([[-np.inf, -np.inf], [1, -np.inf]], np.float32),
        ints(1),
        constants=(1,),
        opset=18,
    ),
    *[
        case(n, X, attrs={"axis": a, "keepdims": k})
        for n in ("ArgMax", "ArgMin")
        for a in (0, -1)
        for k in (0, 1)
    ],
    case("ArgMax", np.ones((3, 4), np.float32), attrs={"axis": 1, "select_last_index": 1}),
]

SHAPES = [
    case("Shape", X),
    case("Shape", X, attrs={"start": -2}),
    case("Shape", X, attrs={"start": 1, "end": 2}),
    case("Reshape", X, ints(0, -1), constants=(1,)),
    case("Reshape", X, ints(4, 6), constants=(1,)),
    case(
        "Reshape", normal(0, 3), ints(3, 0), constants=(1,), attrs={"allowzero": 1}, symbolic=False
    ),
    *[case("Flatten", X, attrs={"axis": axis}) for axis in (0, 1, 2, 3, -1)],
    case("Squeeze", normal(1, 3, 1), opset=11, attrs={"axes": [0, -1]}),
    case("Squeeze", normal(1, 3, 1), ints(2), constants=(1,)),
    case("Squeeze", normal(1, 3, 1), symbolic=False),
    case("Unsqueeze", X, opset=11, attrs={"axes": [0, 2]}),
    case("Unsqueeze", X, ints(-1, 0), constants=(1,)),
    case("Expand", normal(3, 1), ints(2, 1, 4), constants=(1,), symbolic=False),
    case("Expand", normal(1, 4), ints(2, 3, 4), constants=(1,), symbolic=False),
    case("ConstantOfShape", ints(2, 3), constants=(0,)),
    case("Tile", X, ints(1, 2, 3), constants=(1,)),
    case(
        "Range", scalar(2, np.int64), scalar(11, np.int64), scalar(3, np.int64), constants=(0, 1, 2)
    ),
    case("Range", scalar(0.5), scalar(3), scalar(0.5), constants=(0, 1, 2)),
]

MOVEMENT = [
    case("Transpose", X),
    case("Transpose", X, attrs={"perm": [1, 2, 0]}),
    case("Concat", X, normal(2, 5, 4, seed=1), attrs={"axis": 1}, symbolic=False),
    case("Concat", X, normal(2, 3, 1, seed=1), attrs={"axis": -1}),
    case("Concat", X, attrs={"axis": 0}),
    case("Split", X, outputs=3, attrs={"axis": 1}, symbolic=False),
    case("Split", X, opset=11, outputs=2, attrs={"axis": 2, "split": [1, 3]}),
    case("Split", X, ints(1, 2), constants=(1,), outputs=2, attrs={"axis": 1}),
    case("Split", X, opset=18, outputs=2, attrs={"axis": 1, "num_outputs": 2}),
    case("Split", X, opset=18, outputs=3, attrs={"axis": 2, "num_outputs": 3}, symbolic=False),
    case("Split", normal(2, 7), opset=18, outputs=3, attrs={"axis": 1, "num_outputs": 3}),
    case("Slice", X, opset=9, attrs={"starts": [1, -2], "ends": [2, 100], "axes": [1, 2]}),
    case("Slice", X, ints(0, -3), ints(2**62, -1), ints(0, 2), constants=(1, 2, 3)),
    case("Slice", X, ints(-1), ints(-(2**62)), ints(2), ints(-1), constants=(1, 2, 3, 4)),
    case("Slice", X, ints(3), ints(0), ints(-1), ints(-2), constants=(1, 2, 3, 4)),
    case("Slice", X, ints(0), ints(2**31 - 1), ints(2), ints(2), constants=(1, 2, 3, 4)),
    case("Slice", X, ints(0, 0), ints(10**9, 10**9), ints(0, 1), constants=(1, 2, 3)),
    case("Gather", X, np.array([[0, -1], [1, 0]], np.int64), constants=(1,), attrs={"axis": 1}),
    case("Gather", X, scalar(-1, np.int64), constants=(1,), attrs={"axis": 2}),
    case("Gather", X, np.array([[0, -1], [1, 0]], np.int32), attrs={"axis": 1}),
    case("Gather", X, ints(1, -2)),
    case(
        "GatherElements",
        X,
        np.array([[[0, 1, 2, -1]]], np.int64),
        attrs={"axis": 2},
        symbolic=False,
    ),
    case("Pad", X, opset=10, attrs={"pads": [0, 1, 0, 0, 0, 2], "value": 3.0}),
    case("Pad", X, ints(0, 1, 0, 0, 0, 2), constants=(1,)),
    case("Pad", X, ints(0, 1, 0, 0, 0, 2), scalar(5), constants=(1, 2)),
    case("Pad", X, ints(0, -1, 0, 0, 0, -2), constants=(1,)),
    case("Pad", X, ints(0, 1, 1, 0, 1, 2), constants=(1,), attrs={"mode": "reflect"}),
    case("Pad", X, ints(0, 1, 1, 0, 1, 2), constants=(1,), attrs={"mode": "edge"}),
    case("Pad", X, ints(1, 2), None, ints(-1), constants=(1, 3), opset=18),
    case(
        "OneHot",
        ints(0, 2, -1),
        scalar(4, np.int64),
        np.array([0, 1], np.float32),
        constants=(1, 2),
    ),
    case(
        "OneHot", ints(0, 2), ints(3), np.array([5, 9], np.int64), constants=(1,), attrs={"axis": 0}
    ),
    case("DepthToSpace", IMAGE, attrs={"blocksize": 2}),
    case("DepthToSpace", IMAGE, attrs={"blocksize": 2, "mode": "CRD"}),
    case("SpaceToDepth", normal(1, 2, 4, 6), attrs={"blocksize": 2}),
    *[
        case("CumSum", X, scalar(1, np.int64), constants=(1,), attrs={"reverse": r, "exclusive": e})
        for r in (0, 1)
        for e in (0, 1)
    ],
]

RESIZES = [
    case("Upsample", IMAGE, opset=7, attrs={"scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"}),
    case("Upsample", IMAGE, np.array([1, 1, 2, 2], np.float32), constants=(1,), opset=9, attrs={"mode": "linear"}),
    case("Resize", IMAGE, np.array([1, 1, 2, 2], np.float32), constants=(1,), opset=10, attrs={"mode": "nearest"}),
    case("Resize", IMAGE, NOTHING, np.array([1, 1, 2, 2], np.float32), constants=(1, 2), opset=11,
         attrs={"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    case("Resize", IMAGE, None, np.array([1, 1, 0.5, 0.5], np.float32), constants=(2,), opset=13, attrs={"mode": "linear"}),
    case("Resize", IMAGE, None, None, ints(2, 4, 5, 17), constants=(3,), opset=13, attrs={"mode": "linear"}, symbolic=False),
    case("Resize", IMAGE, None, None, ints(2, 4, 5, 17), constants=(3,), opset=13, symbolic=False,
         attrs={"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    case("Resize", IMAGE, None, np.array([1, 1, 1.5, 1.3], np.float32), constants=(2,), opset=13, attrs={"mode": "cubic"},
         rtol=1e-4, symbolic=False),
    case("Resize", IMAGE, None, np.array([2, 2], np.float32), constants=(2,), opset=18, attrs={"mode": "nearest", "axes": [2, 3]}),
    case("Resize", normal(2, 3, 5), None, np.array([1, 1, 2], np.float32), constants=(2,), opset=13, attrs={"mode": "linear"}),
]  # fmt: skip

LINEAR = [
    case("MatMul", normal(2, 3), np.zeros((3, 0), np.float32), constants=(1,)),
    case("MatMul", normal(5, 4), normal(4, 6, seed=1), constants=(1,)),
    case("MatMul", X, normal(4, 6, seed=1), constants=(1,)),
    case("MatMul", normal(4), normal(4, 6, seed=1), constants=(1,)),
    case("MatMul", normal(5, 4), normal(4, 6, seed=1)),
    case("MatMul", X, normal(4, 6, seed=1)),
    case("MatMul", X, normal(4, seed=1)),
    case("MatMul", normal(4), normal(4, seed=1)),
    case("MatMul", normal(4), normal(2, 4, 3, seed=1)),
    case("MatMul", X, normal(2, 4, 5, seed=1), symbolic=False),
    case("MatMul", X, normal(1, 4, 5, seed=1), symbolic=False),
    case("MatMul", normal(5, 4), normal(2, 4, 3, seed=1), symbolic=False),
    case("MatMul", normal(2, 3, 5, 4), normal(2, 3, 4, 6, seed=1), symbolic=False),
    case("MatMul", normal(2, 3, 5, 4), normal(3, 4, 6, seed=1), symbolic=False),
    case("MatMul", normal(2, 1, 5, 4), normal(1, 3, 4, 6, seed=1), symbolic=False),
    *[
        case("Gemm", normal(*a), normal(*b, seed=1), normal(*c, seed=2), constants=fixed,
             attrs={"transA": a == (4, 3), "transB": b == (5, 4), "alpha": 0.5, "beta": 2.0})
        for a in ((3, 4), (4, 3))
        for b in ((4, 5), (5, 4))
        for c in ((5,), (3, 1), (1, 5), ())
        for fixed in ((1, 2), ())
    ],
    case("Gemm", normal(3, 4), normal(4, 5, seed=1)),
    case("Gemm", normal(3, 4), normal(4, 5, seed=1), constants=(1,), opset=7 + 4),
]  # fmt: skip


def conv(data: Array, weight: Array, bias: bool = False, **options: Any) -> Case:  # noqa: ANN401
    """A convolution with constant weights."""
    inputs: list[Array | None] = [data, weight]
    if bias:
        inputs.append(normal(weight.shape[0], seed=3))
    return case("Conv", *inputs, constants=tuple(range(1, len(inputs))), rtol=1e-4, **options)


CONVOLUTIONS = [
    conv(IMAGE, normal(6, 4, 3, 3, seed=1), bias=True, attrs={"pads": [1, 1, 1, 1]}),
    conv(IMAGE, normal(6, 4, 3, 2, seed=1), attrs={"strides": [2, 1], "pads": [0, 1, 2, 0], "dilations": [2, 1]}),
    conv(IMAGE, normal(4, 1, 3, 3, seed=1), attrs={"group": 4, "pads": [1, 1, 1, 1]}),
    conv(IMAGE, normal(6, 2, 1, 1, seed=1), bias=True, attrs={"group": 2}),
    *[
        conv(IMAGE, normal(3, 4, 3, 4, seed=1), attrs={"auto_pad": auto, "strides": strides})
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for strides in ([1, 1], [2, 3])
    ],
    conv(X, normal(5, 3, 3, seed=1), bias=True, attrs={"pads": [1, 2]}),
    conv(X, normal(6, 1, 2, seed=1), attrs={"group": 3, "dilations": [2]}),
    case("Conv", IMAGE, normal(6, 4, 3, 3, seed=1), rtol=1e-4, symbolic=False),
    *[
        case("ConvTranspose", normal(2, 4, 5, 6), normal(4, 3 // groups if groups == 1 else 2, 3, 3, seed=1), constants=(1,),
             rtol=1e-4, attrs={"group": groups, "strides": strides, "pads": pads, "output_padding": extra})
        for groups, strides, pads, extra in (
            (1, [2, 2], [1, 1, 1, 1], [1, 1]), (1, [1, 1], [0, 0, 0, 0], [0, 0]), (2, [2, 3], [0, 1, 1, 0], [0, 1]),
        )
    ],
    case("ConvTranspose", normal(2, 4, 5, 6), normal(4, 3, 2, 2, seed=1), normal(3, seed=2), constants=(1, 2), rtol=1e-4,
         attrs={"strides": [2, 2]}),
    case("ConvTranspose", normal(2, 4, 5), normal(4, 3, 3, seed=1), constants=(1,), rtol=1e-4, attrs={"strides": [2]}),
    case("ConvTranspose", normal(2, 4, 5, 6), normal(4, 3, 3, 3, seed=1), constants=(1,), rtol=1e-4, symbolic=False,
         attrs={"strides": [2, 2], "output_shape": [10, 12]}),
    *[
        case("ConvTranspose", normal(2, 4, 5, 6), normal(4, 3, 3, 3, seed=1), constants=(1,), rtol=1e-4,
             attrs={"strides": [2, 2], "auto_pad": auto})
        for auto in ("SAME_UPPER", "SAME_LOWER")
    ],
]  # fmt: skip

POOLS = [
    *[
        case(
            name,
            IMAGE,
            attrs={"kernel_shape": [3, 2], "strides": [2, 2], "pads": pads, "ceil_mode": ceil},
        )
        for name in ("MaxPool", "AveragePool")
        for pads in ([0, 0, 0, 0], [1, 0, 1, 1])
        for ceil in (0, 1)
    ],
    *[
        case(
            name,
            IMAGE,
            attrs={"kernel_shape": [3, 3], "strides": strides, "auto_pad": auto},
        )
        for name in ("MaxPool", "AveragePool", "LpPool")
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for strides in ([1, 1], [2, 2])
    ],
    *[
        case(
            "LpPool",
            IMAGE,
            opset=18,
            attrs={"kernel_shape": [3, 2], "strides": [2, 3], "pads": pads, "ceil_mode": 1, "p": p},
        )
        for pads in ([0, 0, 0, 0], [1, 0, 1, 1])
        for p in (1, 3)
    ],
    case("MaxPool", IMAGE, attrs={"kernel_shape": [2, 2], "dilations": [2, 3]}),
    case("MaxPool", X, attrs={"kernel_shape": [2], "pads": [1, 0]}),
    case("AveragePool", X, attrs={"kernel_shape": [2], "pads": [1, 1]}),
    case(
        "AveragePool",
        IMAGE,
        attrs={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    *[
        case(n, a)
        for n in ("GlobalAveragePool", "GlobalMaxPool")
        for a in (X, IMAGE, normal(2, 3, 2, 2, 2))
    ],
]

CHANNELS = [
    normal(4, seed=1),
    normal(4, seed=2),
    normal(4, seed=3),
    np.abs(normal(4, seed=4)) + np.float32(0.1),
]

NORMS = [
    case("BatchNormalization", IMAGE, *CHANNELS, constants=(1, 2, 3, 4), opset=9, rtol=1e-4),
    case("BatchNormalization", IMAGE, *CHANNELS, opset=15, attrs={"epsilon": 1e-3}, rtol=1e-4, symbolic=False),
    case("BatchNormalization", normal(5, 4), *CHANNELS, constants=(1, 2, 3, 4), opset=7, rtol=1e-4),
    case("LayerNormalization", X, normal(4, seed=1), normal(4, seed=2), constants=(1, 2), rtol=1e-4),
    case("LayerNormalization", X, normal(4, seed=1), constants=(1,), rtol=1e-4),
    case("LayerNormalization", X, normal(3, 4, seed=1), normal(3, 4, seed=2), constants=(1, 2), attrs={"axis": 1},
         rtol=1e-4, symbolic=False),
    case("LayerNormalization", X, normal(4, seed=1), normal(4, seed=2), constants=(1, 2), outputs=3, rtol=1e-4),
    case("LayerNormalization", X, normal(4, seed=1), rtol=1e-4),
    case("LayerNormalization", X, normal(3, 4, seed=1), attrs={"axis": 1}, rtol=1e-4),
    case("InstanceNormalization", IMAGE, *CHANNELS[:2], constants=(1, 2), rtol=1e-4),
    case("GroupNormalization", IMAGE, normal(2, seed=1), normal(2, seed=2), opset=18, attrs={"num_groups": 2},
         rtol=1e-4, symbolic=False),
    case("GroupNormalization", IMAGE, *CHANNELS[:2], constants=(1, 2), opset=21, attrs={"num_groups": 2}, rtol=1e-4),
    case("RMSNormalization", X, normal(4, seed=1), constants=(1,), opset=23, reference=True, rtol=1e-4),
    case("MeanVarianceNormalization", IMAGE, rtol=1e-4),
    case("LpNormalization", X, rtol=1e-4),
    case("LpNormalization", X, attrs={"p": 1, "axis": 1}, rtol=1e-4),
    case("LRN", IMAGE, attrs={"size": 3, "alpha": 0.01, "beta": 0.5, "bias": 2.0}),
    *[case(n, X, opset=o, attrs={"axis": a}) for n in ("Softmax", "LogSoftmax") for o in (11, 13) for a in (0, 1, 2, -1)],
    *[case(n, X, opset=o) for n in ("Softmax", "LogSoftmax") for o in (9, 13)],
    case("Softmax", normal(1, 5, 1, 1), opset=9, symbolic=False),
    *[case("Hardmax", normal(2, 0, 3), opset=o, attrs={"axis": 1}, symbolic=False) for o in (11, 13)],
    case("Dropout", X, opset=7, attrs={"ratio": 0.3}),
    case("Dropout", X, scalar(0.3), scalar(False, np.bool_), constants=(1, 2), outputs=2),
]  # fmt: skip

CASES = [
    *ELEMENTWISE, *REDUCTIONS, *SHAPES, *MOVEMENT, *RESIZES, *LINEAR, *CONVOLUTIONS, *POOLS, *NORMS,
]  # fmt: skip


@pytest.mark.parametrize("item", CASES, ids=str)
def test_operator_matches_reference(item: Case) -> None:
    item.run(symbolic=False)


@pytest.mark.parametrize("item", [c for c in CASES if c.symbolic], ids=str)
def test_operator_matches_reference_with_symbolic_shapes(item: Case) -> None:
    item.run(symbolic=True)


def test_squares_of_float16_are_float32() -> None:
    x, scale = np.array([[300, 400]], np.float16), np.ones(2, np.float16)
    node = helper.make_node("RMSNormalization", ["x", "scale"], ["y"])
    (actual,) = interpret(
        graph_model([node], {"x": x, "scale": scale}, ["y"], opset=23), [x, scale]
    )
    assert actual.dtype == np.float16
    expected = x / np.sqrt(np.mean(x.astype(np.float64) ** 2) + 1e-5)
    np.testing.assert_allclose(actual, expected, rtol=2 * np.finfo(np.float16).eps)


@pytest.mark.slow
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    ones=st.lists(st.booleans(), min_size=4, max_size=4),
    drop=st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_arithmetic_broadcasts_as_numpy_does(shape: list[int], ones: list[bool], drop: int) -> None:
    other = [1 if one else d for d, one in zip(shape, ones, strict=False)][min(drop, len(shape)) :]
    check_node("Add", [normal(*shape), normal(*other, seed=1)])


@pytest.mark.slow
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_slices_are_those_of_numpy(data: st.DataObject) -> None:
    bound = st.integers(-9, 9)
    start, end = data.draw(bound), data.draw(bound)
    step = data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    args = [normal(2, 7), ints(start), ints(end), ints(1), ints(step)]
    check_node("Slice", args, constants=(1, 2, 3, 4), symbolic=data.draw(st.booleans()))
