"""FakeQuantizationToInteger: regions between dequantize and quantize, on integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.affine_type import TensorAffineType
from ekiden.ir.module import IRModule
from ekiden.ir.op import OP_ATTRS
from ekiden.relay.expr import Call, Expr
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.qnn.op import dequantize, quantize
from ekiden.relay.testing import count_ops
from ekiden.runtime.errors import CompileError
from long_runs import share

FQ = relay.transform.FakeQuantizationToInteger
INT8 = (-128, 128)


def number(value: float) -> Expr:
    return relay.const(np.float32(value))


def point(value: int) -> Expr:
    return relay.const(np.int32(value))


def var(name: str, shape: tuple[int, ...], dtype: str = "int8") -> Expr:
    return relay.var(name, shape=shape, dtype=dtype)


def integers(expr: Expr, **options: object) -> Expr:
    module = FQ(**options)(IRModule.from_expr(expr))  # type: ignore[arg-type]
    return relay.transform.InferType()(module)["main"]


def check(expr: Expr, apart: int = 0) -> dict[str, int]:
    """The pass changes no result by more than `apart`; gives the operators that are then called."""
    before = relay.transform.InferType()(IRModule.from_expr(expr))["main"]
    after = integers(expr)
    rng = np.random.default_rng(0)
    args = [
        rng.integers(*INT8, p.checked_type.concrete_shape).astype(p.checked_type.dtype)
        for p in before.params
    ]
    expected = np.asarray(Interpreter().evaluate(before, *args), np.int64)
    actual = np.asarray(Interpreter().evaluate(after, *args), np.int64)
    assert np.abs(expected - actual).max() <= apart
    return dict(count_ops(after))


def without_floats(ops: dict[str, int]) -> bool:
    return not {"qnn.dequantize", "qnn.quantize"} & ops.keys()


def test_convolution_with_a_scale_per_channel() -> None:
    x, w, b = var("x", (1, 3, 8, 8)), var("w", (4, 3, 3, 3)), var("b", (4,), "int32")
    scales = relay.const(np.array([0.5, 0.25, 1, 2], np.float32))
    zeros = relay.const(np.zeros(4, np.int32))
    conv = relay.nn.conv2d(
        dequantize(x, number(0.5), point(3)), dequantize(w, scales, zeros, axis=0), kernel_size=3
    )
    bias = dequantize(b, relay.const(0.5 * scales.data.numpy()), zeros, axis=0)
    relu = relay.nn.relu(relay.nn.bias_add(conv, bias))
    ops = check(quantize(relu, number(64), point(-5)), apart=1)
    assert ops["qnn.conv2d"] == ops["qnn.requantize"] == 1 and without_floats(ops)


MOVES: dict[str, Callable[[Expr], Expr]] = {
    "reshape": lambda x: relay.reshape(x, (6, -1)),
    "transpose": lambda x: relay.transpose(x, (0, 2, 1)),
    "strided_slice": lambda x: relay.strided_slice(x, [0, 0, 1], [2, 3, 3]),
    "clip": lambda x: relay.clip(x, -3.0, 9.0),
    "relu": relay.nn.relu,
    "pad": lambda x: relay.nn.pad(x, ((0, 0), (1, 0), (0, 2)), 1.5),
    "max": lambda x: relay.max(x, 1),
    "topk": lambda x: relay.topk(x, 2, 2, "values"),
    "split": lambda x: relay.split(x, 2, 0)[1],
    "take": lambda x: relay.take(x, relay.const(np.array([2, 0], np.int32)), 1),
}


@share(2)
@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("out", [(0.75, 4), (1.5, -2)])
def test_data_movement_runs_on_integers(name: str, out: tuple[float, int]) -> None:
    x = dequantize(var("x", (2, 3, 4)), number(0.75), point(4))
    expr = quantize(MOVES[name](x), number(out[0]), point(out[1]))
    ops = check(expr, apart=int(out != (0.75, 4)))
    assert "qnn.dequantize" not in ops and ("qnn.requantize" in ops) == (out != (0.75, 4))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "minimum", "maximum"])
def test_operands_of_different_scales_are_requantized(name: str) -> None:
    a = dequantize(var("a", (2, 5)), number(0.1), point(1))
    b = dequantize(var("b", (2, 5)), number(0.3), point(-2))
    ops = check(quantize(getattr(relay, name)(a, b), number(0.7), point(2)), apart=1)
    assert without_floats(ops)


def test_unknown_scale_is_not_invented() -> None:
    """TVM would give the sum the scale of the last result, which says nothing about it."""
    a = dequantize(var("a", (2, 4)), number(0.1), point(0))
    b = dequantize(var("b", (2, 4)), number(0.2), point(0))
    w = dequantize(var("w", (3, 4)), number(0.3), point(0))
    expr = quantize(relay.nn.dense(relay.add(a, b), w), number(100), point(0))
    assert check(expr)["qnn.dequantize"] == 3
    with pytest.raises(CompileError, match="its result needs a scale, and what follows gives none"):
        integers(expr, hard_fail=True)


def test_operator_without_a_rule_leaves_the_region() -> None:
    x = dequantize(var("x", (2, 4)), number(0.1), point(0))
    expr = quantize(relay.sin(x), number(0.1), point(0))
    assert "sin" in check(expr)
    with pytest.raises(CompileError, match="fake quantization to integers: no rule for sin"):
        integers(expr, hard_fail=True)


def test_variables_of_floating_point_leave_the_region() -> None:
    x = dequantize(var("x", (2, 4)), number(0.1), point(0))
    expr = quantize(relay.add(x, var("y", (4,), "float32")), number(0.1), point(0))
    assert count_ops(integers(expr))["qnn.quantize"] == 1


def test_regions_without_quantize_with_use_qat() -> None:
    a, b = var("a", (1, 2, 4)), var("b", (1, 3, 4))
    x = dequantize(a, number(2), point(0))
    y = dequantize(b, number(6), point(1))
    expr = relay.exp(relay.nn.batch_matmul(x, y))
    assert count_ops(integers(expr)) == count_ops(expr)
    ops = count_ops(integers(expr, use_qat=True))
    assert ops == {"qnn.batch_matmul": 1, "qnn.dequantize": 1, "exp": 1}


def test_softmax_is_quantised_when_asked_for() -> None:
    x = dequantize(var("x", (2, 5)), number(0.1), point(0))
    expr = quantize(relay.nn.softmax(x), number(1 / 256), point(-128))
    assert "nn.softmax" in count_ops(integers(expr))
    assert "qnn.softmax" in count_ops(integers(expr, optional_qnn_ops=["nn.softmax"]))


def test_rule_of_a_user() -> None:
    table = OP_ATTRS["FTVMFakeQuantizationToInteger"]
    assert "negative" not in table

    @relay.op.register_fake_quantization_to_integer("negative")
    def rule(expr: Call, types: dict[Expr, TensorAffineType]) -> list[object]:
        argument = types[expr.args[0]]
        wide = relay.cast(expr.args[0], "int32")
        moved = relay.subtract(relay.const(np.int32(0)), wide)
        minus = relay.subtract(relay.const(np.int32(0)), argument.zero_point)
        return [moved, TensorAffineType(argument.scale, minus, "int32", argument.axis)]

    try:
        x = dequantize(var("x", (2, 5)), number(0.1), point(4))
        ops = check(quantize(relay.negative(x), number(0.1), point(0)), apart=1)
        assert without_floats(ops) and "negative" not in ops
    finally:
        del table["negative"]


UNARY = {
    "abs": relay.abs,
    "sigmoid": relay.sigmoid,
    "tanh": relay.tanh,
    "exp": relay.exp,
    "leaky_relu": lambda x: relay.nn.leaky_relu(x, 0.1),
    "relu": relay.nn.relu,
    "avg_pool2d": lambda x: relay.nn.avg_pool2d(x, (2, 2)),
    "concatenate": lambda x: relay.concatenate((x, x), axis=1),
    "maximum": lambda x: relay.maximum(x, number(0.5)),
}
BYTES = ("int8", "uint8")


@share(4)
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("out_dtype", BYTES)
def test_bytes_of_one_sign_become_bytes_of_another(name: str, dtype: str, out_dtype: str) -> None:
    zero = 10 if dtype == "int8" else 130
    x = dequantize(var("x", (1, 2, 4, 6), dtype), number(0.05), point(zero))
    steps = number(0.026), point(3 if out_dtype == "uint8" else -60)
    ops = check(relay.qnn.op.quantize(UNARY[name](x), *steps, out_dtype=out_dtype), apart=1)
    assert "qnn.dequantize" not in ops


@share(4)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "minimum", "maximum"])
@pytest.mark.parametrize(("dtype", "out_dtype"), [("int8", "uint8"), ("uint8", "int8")])
@pytest.mark.parametrize("known", [True, False])
def test_one_tensor_under_two_scales(name: str, dtype: str, out_dtype: str, known: bool) -> None:
    x = var("x", (3, 7), dtype)
    a, b = dequantize(x, number(0.5), point(3)), dequantize(x, number(0.07), point(1))
    zero = point(5) if known else relay.add(point(2), point(3))
    expr = relay.qnn.op.quantize(getattr(relay, name)(a, b), number(0.3), zero, out_dtype=out_dtype)
    assert without_floats(check(expr, apart=1))


def test_result_that_its_operands_dtype_does_not_hold_leaves_the_region() -> None:
    x = dequantize(var("x", (2, 5)), number(0.1), point(0))
    expr = relay.qnn.op.quantize(relay.exp(x), number(0.01), point(0), out_dtype="int16")
    assert "exp" in check(expr)
    with pytest.raises(CompileError, match="int8, which do not hold a result of int16"):
        integers(expr, hard_fail=True)


def test_operands_of_two_dtypes_leave_the_region() -> None:
    a = dequantize(var("a", (2, 5)), number(0.1), point(0))
    b = dequantize(var("b", (2, 5), "uint8"), number(0.1), point(7))
    for result in (relay.add(a, b), relay.concatenate((a, b), axis=0)):
        check(quantize(result, number(0.2), point(0)), apart=1)
    assert without_floats(check(quantize(relay.maximum(a, b), number(0.1), point(0)), apart=1))
