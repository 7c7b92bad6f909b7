"""Products between DequantizeLinear and QuantizeLinear (QDQ) run as int8 products."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import Array, graph_model

import ekiden
from ekiden import relay
from ekiden.frontend.onnx import from_onnx
from ekiden.relay.qnn.transform import CanonicalizeOps
from ekiden.relay.transform.quantization.integer_products import IntegerProducts
from long_runs import alike
from processor import processors
from rounding import expect_within, gamma

RANDOM = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """A product of data and a weight by scales and zero points; `axis` is that of the weight's."""

    op_type: str
    data: Array
    weight: Array
    point: Array
    weight_scale: Array
    weight_point: Array | None
    axis: int = 0
    bias: Array | None = None
    attributes: dict[str, object] = field(default_factory=dict)
    sums: str = "int32"
    scale: Array = field(default_factory=lambda: np.array(0.05, "float32"))

    def model(self) -> onnx.ModelProto:
        """x -> QuantizeLinear -> DequantizeLinear -> the product -> Relu."""
        weights = {"w": self.weight, "s": self.scale, "z": self.point, "sw": self.weight_scale}
        side = ["w", "sw"]
        if self.weight_point is not None:
            weights["zw"] = self.weight_point
            side.append("zw")
        inputs = ["xd", "wd"]
        if self.bias is not None:
            weights["b"] = self.bias
            inputs.append("b")
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
            helper.make_node("DequantizeLinear", side, ["wd"], axis=self.axis),
            helper.make_node(self.op_type, inputs, ["p"], **self.attributes),
            helper.make_node("Relu", ["p"], ["y"]),
        ]
        return graph_model(nodes, {"x": self.data}, ["y"], weights, opset=21)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype("float32")


def levels(dtype: str, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def scales(*shape: int) -> Array:
    return RANDOM.uniform(0.01, 0.1, shape).astype("float32")


def zero(dtype: str, value: int = 0) -> Array:
    return np.array(value, dtype)


X = normal(1, 6, 9, 8)
CASES = {
    "convolution": Case(
        "Conv", X, levels("int8", 10, 6, 3, 3), zero("uint8", 120), scales(10),
        np.zeros(10, "int8"), bias=normal(10), attributes={"pads": [1, 1, 1, 1]},
    ),
    "signed data": Case(
        "Conv", X, levels("int8", 10, 6, 1, 1), zero("int8", -3), scales(), None,
        attributes={"strides": [2, 2]},
    ),
    "unsigned weight": Case(
        "Conv", X, levels("uint8", 4, 6, 3, 3), zero("uint8", 128), scales(1),
        np.array([100], "uint8"),
    ),
    "depthwise": Case(
        "Conv", X, levels("int8", 6, 1, 3, 3), zero("uint8", 7), scales(6), np.zeros(6, "int8"),
        attributes={"group": 6, "auto_pad": "SAME_UPPER"}, sums="float32",
    ),
    "one axis": Case(
        "Conv", X[0], levels("int8", 5, 9, 3), zero("uint8", 9), scales(5), None,
        attributes={"pads": [2, 1]},
    ),
    "product": Case(
        "MatMul", normal(2, 5, 12), levels("int8", 12, 7), zero("uint8", 110), scales(7),
        levels("int8", 7), axis=1,
    ),
    "gemm": Case(
        "Gemm", normal(5, 12), levels("int8", 7, 12), zero("uint8", 110), scales(7), None,
        bias=normal(7), attributes={"transB": 1, "alpha": 0.5},
    ),
    "gemm, as it stands": Case(
        "Gemm", normal(5, 12), levels("uint8", 12, 7), zero("int8"), scales(7),
        np.full(7, 128, "uint8"), axis=1,
    ),
    "scales of rows that are summed": Case(
        "MatMul", normal(5, 12), levels("int8", 12, 7), zero("uint8", 110), scales(12), None,
        sums="float32",
    ),
    "words": Case(
        "MatMul", normal(5, 12), levels("int16", 12, 7), zero("uint8", 110), scales(7), None,
        axis=1, sums="float32",
    ),
    "transposed data": Case(
        "Gemm", normal(12, 5), levels("int8", 12, 7), zero("uint8", 110), scales(7), None, axis=1,
        attributes={"transA": 1},
    ),
    "three axes": Case(
        "Conv", normal(1, 2, 4, 4, 4), levels("int8", 3, 2, 2, 2, 2), zero("uint8", 5), scales(3),
        None, sums="float32",
    ),
}  # fmt: skip


def products(model: onnx.ModelProto) -> list[str]:
    """The dtypes of the results of convolutions and matrix products, as they are compiled."""
    result: list[str] = []

    def visit(expr: relay.Expr) -> None:
        is_call = isinstance(expr, relay.Call) and isinstance(expr.op, ekiden.ir.Op)
        if is_call and expr.op.definition.macs is not None:
            result.append(expr.checked_type.dtype)

    module = relay.transform.InferType()(from_onnx(model))
    passes = (IntegerProducts(), relay.transform.FoldConstant(), CanonicalizeOps())
    module = relay.transform.InferType()(relay.transform.Sequential(passes)(module))
    relay.analysis.post_order_visit(module["main"], visit)
    return result


ROUNDINGS = 6
"""Of a sum: to float32, by the product of two scales (itself rounded), by alpha, plus a bias that
was scaled."""


def exact(case: Case) -> tuple[Array, Array]:
    """What the model means, in float64, and how far float32 may be from it: sums of integers are
    exact, those of floats are rounded at each product and each sum."""
    points = case.point.astype(np.float64), case.weight_point
    rounded = np.rint(case.data / case.scale) + points[0]
    info = np.iinfo(case.point.dtype)
    data = (np.clip(rounded, info.min, info.max) - points[0]) * case.scale.astype(np.float64)
    shape = [1] * case.weight.ndim
    if case.weight_scale.ndim:
        shape[case.axis] = -1
    less = 0.0 if points[1] is None else points[1].astype(np.float64).reshape(shape)
    weight = (case.weight - less) * case.weight_scale.astype(np.float64).reshape(shape)
    bias = case.bias if case.bias is not None else np.zeros(1)
    plain, beside = product(case, data, weight, 0 * bias), product(case, 0 * data, weight, bias)
    size = np.abs(product(case, 0 * data, weight, np.abs(bias)))
    if case.sums == "int32":
        size, roundings = size + np.abs(plain), ROUNDINGS
    else:
        size = size + product(case, np.abs(data), np.abs(weight), 0 * bias)
        depth = np.prod(case.weight.shape[1:]) if case.op_type == "Conv" else len(case.weight)
        roundings = ROUNDINGS + 2 + int(depth)  # data and weight are rounded too
    return np.maximum(plain + beside, 0), gamma(roundings) * size


def product(case: Case, data: Array, weight: Array, bias: Array) -> Array:
    """The operator of a case in float64."""
    inputs = {"x": data, "w": weight} | ({"b": bias.astype("float64")} if case.bias is not None
                                         else {})  # fmt: skip
    nodes = [helper.make_node(case.op_type, list(inputs), ["y"], **case.attributes)]
    (result,) = ReferenceEvaluator(graph_model(nodes, inputs, ["y"], {}, opset=21)).run(
        None, inputs
    )
    return np.asarray(result)


@alike(4)
@pytest.mark.parametrize("name", CASES)
def test_qdq_products_are_int8_products(name: str) -> None:
    case = CASES[name]
    model = case.model()
    assert set(products(model)) == {case.sums}
    expected, bound = exact(case)
    for target in processors():
        actual = ekiden.compile(model, target)(case.data).numpy()
        expect_within(actual, expected, bound)


def test_qdq_sums_are_exact() -> None:
    """Where float32 rounds: 1,000 products of 255 and 127, whose sum takes 25 bits."""
    weight = np.full((1000, 2), 127, "int8")
    weight[0, 1] = 126
    case = Case(
        "MatMul", np.full((1, 1000), 255.0, "float32"), weight, zero("uint8"),
        np.array(1, "float32"), None, scale=np.array(1, "float32"),
    )  # fmt: skip
    for target in processors():
        (result,) = ekiden.compile(case.model(), target)(case.data).numpy()
        assert result.tolist() == [np.float32(32385000), np.float32(32384745)]
