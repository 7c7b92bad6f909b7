"""TVM's module paths: pattern tables, integer tables, old names of contexts."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import ekiden as tvm
from ekiden import relay
from ekiden.ir.pass_context import PassContext
from ekiden.relay.dataflow_pattern import is_op, wildcard
from ekiden.relay.op.contrib import get_pattern_table, register_pattern_table
from ekiden.relay.qnn.op.canonicalizations import create_integer_lookup_op, run_const_expr
from ekiden.relay.qnn.op.legalizations import hardswish_func
from ekiden.runtime.errors import CompileError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "path",
    [
        "ekiden.relay.qnn.op.canonicalizations",
        "ekiden.relay.qnn.op.legalizations",
        "ekiden.relay.op.contrib.register",
        "ekiden.relay.backend.te_compiler",
        "ekiden.relay.backend.name_transforms",
        "ekiden.relay.frontend.onnx",
        "ekiden.relay.frontend.tensorflow2",
    ],
)
def test_modules_import_by_their_path(path: str) -> None:
    assert importlib.import_module(path).__name__ == path


def test_importers_are_in_tvm_modules() -> None:
    result = importlib.import_module("ekiden.relay.frontend.onnx").from_onnx
    assert result is relay.frontend.from_onnx is relay.frontend.onnx.from_onnx
    with pytest.raises(AttributeError, match="'ekiden.relay.frontend.onnx' has no attribute"):
        _ = relay.frontend.onnx.from_caffe


def test_timing_result_class_is_tvms() -> None:
    x = relay.var("x", shape=(2,))
    made = relay.vm.compile(relay.IRModule.from_expr(relay.Function([x], x + x)), "llvm")
    vm = tvm.runtime.vm.VirtualMachine(made, tvm.cpu())
    result = vm.benchmark(tvm.cpu(), np.ones(2, "float32"), repeat=1, number=1)
    assert isinstance(result, tvm.runtime.module.BenchmarkResult)


def test_pattern_table_is_input_of_merge_composite() -> None:
    @register_pattern_table("test-compiler")
    def table() -> list[tuple[object, ...]]:
        return [("test.dense_relu", is_op("nn.relu")(is_op("nn.dense")(wildcard(), wildcard())))]

    result = get_pattern_table("test-compiler")
    assert result is not None and get_pattern_table("nobody") is None
    x, w = relay.var("x", shape=(2, 3)), relay.var("w", shape=(4, 3))
    module = relay.IRModule.from_expr(relay.Function([x, w], relay.nn.relu(relay.nn.dense(x, w))))
    module = relay.transform.InferType()(module)
    output = relay.transform.MergeComposite(result)(module)["main"].body
    assert output.op.attrs["Composite"] == "test.dense_relu"


def test_legacy_integer_table_is_the_function() -> None:
    numbers = np.arange(-128, 128).astype("int8")
    scale, zero = relay.const(1 / 16), relay.const(3)
    looked_up = create_integer_lookup_op(
        relay.const(numbers), hardswish_func, scale, zero, scale, zero, -1, -1, "int8", "int8"
    )
    real = hardswish_func((numbers.astype("float32") - 3) / 16)
    expected = np.clip(np.round(real * 16) + 3, -128, 127)
    np.testing.assert_allclose(run_const_expr(looked_up), expected, atol=1)
    with pytest.raises(CompileError, match="the expression has free variables: %x"):
        run_const_expr(relay.var("x", shape=()))


def test_old_name_of_a_pass_context() -> None:
    with relay.build_config(opt_level=1, disabled_pass=["FuseOps"]):
        current = PassContext.current()
        assert current.opt_level == 1 and current.disabled_pass == {"FuseOps"}
    assert relay.build_config().opt_level == 2


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_offsets_of_a_deformable_convolution_are_inferred(layout: str) -> None:
    shape = (1, 4, 9, 8) if layout == "NCHW" else (1, 9, 8, 4)
    x, offset, weight = relay.var("x", shape=shape), relay.var("o"), relay.var("w")
    call = relay.nn.deformable_conv2d(
        x, offset, weight, strides=(2, 1), padding=(1, 0), channels=6, kernel_size=(3, 2),
        deformable_groups=2, data_layout=layout,
        kernel_layout="OIHW" if layout == "NCHW" else "HWIO",
    )  # fmt: skip
    module = relay.IRModule.from_expr(relay.Function([x, offset, weight], call))
    params = relay.transform.InferType()(module)["main"].params
    dims = [int(d) for d in params[1].checked_type.shape]
    assert dims == ([1, 24, 5, 7] if layout == "NCHW" else [1, 5, 7, 24])


def test_nms_without_return_indices_needs_no_indices() -> None:
    boxes = relay.var("boxes", shape=(1, 3, 6))
    result = relay.vision.non_max_suppression(
        boxes, relay.const(np.int32([3])), boxes, return_indices=False
    )
    module = relay.IRModule.from_expr(relay.Function([boxes], result))
    assert [int(d) for d in relay.transform.InferType()(module)["main"].ret_type.shape] == [1, 3, 6]


def test_tvm_argument_spellings() -> None:
    x = relay.const(np.arange(8, dtype="float32").reshape(1, 8, 1, 1))
    crd, cdr = (run_const_expr(relay.nn.depth_to_space(x, 2, mode=m)) for m in ("CRD", "CDR"))
    np.testing.assert_array_equal(crd, cdr)
    padded = relay.nn.pad(relay.const(np.zeros(2, "float32")), ((1, 0),), relay.const([5.0]))
    assert run_const_expr(padded).tolist() == [5, 0, 0]
    assert "pool_size=[1, 1]" in str(relay.nn.max_pool2d(x))
    assert "newshape=[]" in str(relay.reshape(relay.const([1.0]), ()))


@pytest.mark.slow
@pytest.mark.parametrize("border", ["inside", "zeros"])
def test_deformable_convolution_border(border: str) -> None:
    """TVM takes 0 for places before the image, and interpolates with zeros behind its last pixels;
    ONNX and PyTorch do so on all sides."""
    image = np.arange(1, 5, dtype="float32").reshape(1, 1, 2, 2)
    moves = np.zeros((1, 2, 2, 2), "float32")
    moves[0, 0, 0], moves[0, 0, 1] = -0.5, 0.5  # the first row up, the second down
    x, o = relay.var("x", shape=image.shape), relay.var("o", shape=moves.shape)
    weight = relay.const(np.ones((1, 1, 1, 1), "float32"))
    output = relay.nn.deformable_conv2d(x, o, weight, border=border)
    for kind in ("debug", "vm"):
        module = tvm.IRModule.from_expr(relay.Function([x, o], output))
        result = relay.create_executor(kind, module).evaluate()(image, moves).numpy()[0, 0]
        first = [0, 0] if border == "inside" else [0.5, 1]
        assert result.tolist() == [first, [1.5, 2]]


def test_interpreter_shows_a_value_to_a_function() -> None:
    seen: list[object] = []
    x = relay.var("x", shape=(2,))
    shown = relay.op.debug(x * x, lambda value: seen.append(value.numpy().tolist()))
    module = tvm.IRModule.from_expr(relay.Function([x], shown + x))
    result = relay.create_executor("debug", module).evaluate()(np.float32([1, 2]))
    assert result.numpy().tolist() == [2, 6] and seen == [[1, 4]]
    with pytest.raises(CompileError, match="debug"):
        relay.create_executor("vm", module).evaluate()(np.float32([1, 2]))


@pytest.mark.parametrize("rank", [1, 3])
def test_global_pooling_of_lines_and_volumes(rank: int) -> None:
    data = np.arange(2 * 3**rank, dtype="float32").reshape(1, 2, *[3] * rank)
    x = relay.var("x", shape=data.shape)
    axes = tuple(range(2, 2 + rank))
    for name, reduce in (("max", np.max), ("avg", np.mean)):
        transformed = getattr(relay.nn, f"global_{name}_pool{rank}d")(x)
        module = tvm.IRModule.from_expr(relay.Function([x], transformed))
        result = relay.create_executor("vm", module).evaluate()(data).numpy()
        np.testing.assert_allclose(result, reduce(data, axis=axes, keepdims=True))


def test_annotation_hints_do_not_change_results() -> None:
    x = relay.var("x", shape=(2,))
    pair = relay.annotation.checkpoint(relay.Tuple([x * x, relay.annotation.cast_hint(x, "int8")]))
    function = relay.Function([x], relay.TupleGetItem(pair, 0) + relay.TupleGetItem(pair, 1))
    for kind in ("debug", "vm"):
        module = tvm.IRModule.from_expr(function)
        result = relay.create_executor(kind, module).evaluate()(np.float32([1, 2]))
        assert result.numpy().tolist() == [2, 6]
    body = relay.annotation.checkpoint(x * x)
    typed = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x], body)))
    slope = relay.transform.gradient(typed["main"], mode="first_order")
    run = relay.create_executor("debug", tvm.IRModule.from_expr(slope)).evaluate()
    assert run(np.float32([1, 2]))[1][0].numpy().tolist() == [2, 4]


def test_device_without_a_target_has_none() -> None:
    call = relay.annotation.on_device(relay.var("x"), "cuda")
    assert call.attrs.virtual_device.target is None


def test_convolutions_in_blocks_of_channels_have_tvms_names() -> None:
    x, w = relay.var("x", shape=(1, 1, 4, 4, 8)), relay.var("w", shape=(2, 1, 3, 3, 8, 8))
    result = relay.nn.contrib_conv2d_nchwc(
        x, w, channels=16, kernel_size=3, data_layout="NCHW8c", kernel_layout="OIHW8i8o"
    )
    typed = relay.testing.run_infer_type(result)
    assert typed.checked_type == relay.TensorType((1, 2, 2, 2, 8))
    pair = relay.split(x, 2, axis=4)
    assert pair.tuple_value is pair.astuple()
    f1, f3 = (
        relay.FuncType([], v, [v])
        for v in (relay.TypeVar("a"), relay.TypeVar("b", relay.TypeKind.ShapeVar))
    )
    assert f1 != f3


def test_slice_with_more_ends_than_beginnings_keeps_its_layout() -> None:
    x, w = relay.var("x", shape=(1, 8, 4, 4)), relay.var("w", shape=(8, 8, 1, 1))
    sliced = relay.strided_slice(relay.nn.conv2d(x, w), begin=[0, 1], end=[1, -1, 3])
    module = tvm.IRModule.from_expr(sliced)
    transformed = relay.transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]})(module)
    data = [
        np.random.default_rng(0).normal(size=s).astype("float32")
        for s in ((1, 8, 4, 4), (8, 8, 1, 1))
    ]
    before, after = (
        relay.create_executor("debug", m).evaluate()(*data).numpy() for m in (module, transformed)
    )
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
