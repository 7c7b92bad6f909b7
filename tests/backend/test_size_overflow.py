"""Overflow of size arithmetic is an error at compile time or run time, never a wrapped number."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ekiden
from ekiden import relay
from ekiden.arith import evaluate
from ekiden.backend.kernels.overflow_checks import MAX_EXTENT, MAX_PRODUCT, size_conditions
from ekiden.ir.prim import Select, SizeVar, const, maximum, minimum
from ekiden.ir.type import MAX_ELEMENTS, TensorType
from ekiden.runtime.errors import CompileError, InputError, TypeInferenceError
from ekiden.tir.expr import Buffer

WRAPS = (2**64 + 2) // 3
"""(4 - 1) * it + 1 is 3 modulo 2**64."""
NEGATIVE = 2**63 - 4000
"""(3 - 1) * it + 1 is -7999 modulo 2**64."""


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


X, W = "%x: Tensor[(1, 1, N), float32]", "%w: Tensor[(1, 1, 4), float32]"
IMAGE, KERNEL = "%x: Tensor[(1, 1, 4, N), float32]", "%w: Tensor[(1, 1, 1, 4), float32]"
WINDOWS = {
    "nn.conv1d": (f"{X}, {W}", "nn.conv1d(%x, %w, dilation=[D])"),
    "nn.conv2d": (f"{IMAGE}, {KERNEL}", "nn.conv2d(%x, %w, dilation=[1, D])"),
    "nn.max_pool1d": (X, "nn.max_pool1d(%x, pool_size=[4], dilation=[D])"),
    "nn.max_pool2d": (IMAGE, "nn.max_pool2d(%x, pool_size=[1, 4], dilation=[1, D])"),
    "nn.avg_pool2d": (IMAGE, "nn.avg_pool2d(%x, pool_size=[1, 4], dilation=[1, D])"),
    "nn.conv1d_transpose": (f"{X}, {W}", "nn.conv1d_transpose(%x, %w, strides=[D])"),
    "nn.conv2d_transpose": (
        f"{IMAGE}, {KERNEL}",
        "nn.conv2d_transpose(%x, %w, strides=[1, D], kernel_size=[1, 4], channels=1)",
    ),
    "nn.dilate": ("%x: Tensor[(N,), float32]", "nn.dilate(%x, strides=[D])"),
    "tile": ("%x: Tensor[(N, 2), float32]", "tile(%x, reps=[D, 1])"),
    "repeat": ("%x: Tensor[(N, 2), float32]", "repeat(%x, repeats=D, axis=0)"),
    "nn.pad": ("%x: Tensor[(N, 2), float32]", "nn.pad(%x, 0f, pad_width=[[D, D], [0, 0]])"),
}


def _compiled(params: str, body: str, extent: str, step: int) -> ekiden.Executable:
    text = f"def @main({params}) {{ {body} }}".replace("N", extent).replace("D", str(step))
    return ekiden.compile(relay.parse(text.replace("@mai" + extent, "@main")))


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("step", [WRAPS, NEGATIVE, 2**62])
def test_size_overflow_is_a_type_error(name: str, step: int) -> None:
    with pytest.raises(TypeInferenceError, match=name.replace(".", r"\.")):
        _compiled(*WINDOWS[name], "5", step)


@pytest.mark.parametrize("name", WINDOWS)
def test_runtime_size_overflow_is_an_input_error(name: str) -> None:
    params, body = WINDOWS[name]
    exe = _compiled(params, body, "n", 2**62)
    shapes = {"%x: Tensor[(1, 1, N)": (1, 1, 5), "%x: Tensor[(1, 1, 4, N)": (1, 1, 4, 5)}
    shape = next((s for text, s in shapes.items() if params.startswith(text)), (5, 2))
    shape = (5,) if name == "nn.dilate" else shape
    weights = [_ones(*((1, 1, 4) if "1d" in name else (1, 1, 1, 4)))] if "%w" in params else []
    with pytest.raises(InputError, match=r"a size leaves int64|needs|too large|do not fit"):
        exe(_ones(*shape), *weights)


def _model(node: onnx.NodeProto, inputs: dict[str, np.ndarray], **weights: np.ndarray) -> bytes:
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    output = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    result = helper.make_tensor_value_info("y", 0, None)
    graph = helper.make_graph([node], "g", values, [result], output)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    return model.SerializeToString()


@pytest.mark.parametrize("name", ["Conv", "ConvInteger", "MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("dilation", [WRAPS, NEGATIVE])
def test_onnx_window_overflow_names_the_node(name: str, dilation: int) -> None:
    is_pool = name.endswith("Pool")
    dtype = np.uint8 if name == "ConvInteger" else np.float32
    names = ["x"] if is_pool else ["x", "w"]
    more = {"kernel_shape": [1, 4]} if is_pool else {}
    node = helper.make_node(name, names, ["y"], dilations=[1, dilation], **more)
    weights = {} if is_pool else {"w": np.ones((1, 1, 1, 4), dtype)}
    model = _model(node, {"x": np.ones((1, 1, 4, 4), dtype)}, **weights)
    with pytest.raises(CompileError, match=f"{name} 'y'"):
        ekiden.compile(model)


def test_onnx_transposed_convolution_overflow_names_the_node() -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[1, WRAPS])
    model = _model(node, {"x": _ones(1, 1, 1, 4)}, w=_ones(1, 1, 1, 3))
    with pytest.raises(CompileError, match="ConvTranspose 'y'"):
        ekiden.compile(model)


END = 2**63 - 1
INTS = np.int64
SIZES_OF_DATA = {  # inputs of a run, and the shape of the result; None where there is none
    "Tile too often": ("Tile", {"x": _ones(4, 4), "r": np.array([2**62, 1])}, None),
    "Tile to nothing by a wrap": ("Tile", {"x": _ones(4, 4), "r": np.array([2**62, 4])}, None),
    "Expand": ("Expand", {"x": _ones(1, 1), "r": np.array([2**62, 4])}, None),
    "ConstantOfShape": ("ConstantOfShape", {"r": np.array([2**62, 4])}, None),
    "Range over all": ("Range", {"a": INTS(-END), "b": INTS(END), "c": INTS(1)}, None),
    "Range to the end": ("Range", {"a": INTS(END - 3), "b": INTS(END), "c": INTS(1)}, (3,)),
    "Pad": ("Pad", {"x": _ones(4, 4), "p": np.array([2**62, 0, 2**62, 0])}, None),
    "Pad and crop": ("Pad", {"x": _ones(4, 4), "p": np.array([1, 0, 2, 0])}, (7, 4)),
    "Reshape": ("Reshape", {"x": _ones(4, 4), "s": np.array([2**32, 2**32, -1])}, None),
    "Slice to the end": (
        "Slice",
        {"x": _ones(9, 4), "s": np.array([0]), "e": np.array([END]), "a": np.array([0])},
        (9, 4),
    ),
    "Slice to the beginning": (
        "Slice",
        {
            "x": _ones(9, 4),
            "s": np.array([END]),
            "e": np.array([-END - 1]),
            "a": np.array([0]),
            "t": np.array([-1]),
        },
        (9, 4),
    ),
}


@pytest.mark.parametrize("case", SIZES_OF_DATA)
def test_data_dependent_sizes_are_checked(case: str) -> None:
    name, inputs, shape = SIZES_OF_DATA[case]
    exe = ekiden.compile(_model(helper.make_node(name, list(inputs), ["y"]), inputs))
    if shape is not None:
        assert exe(*inputs.values()).shape == shape
        return
    with pytest.raises(InputError, match=f"{name} 'y'"):
        exe(*inputs.values())


def test_tensor_beyond_address_space_has_no_type() -> None:
    assert TensorType((MAX_ELEMENTS,)).concrete_shape == (MAX_ELEMENTS,)
    for shape in ((MAX_ELEMENTS + 1,), (2**40, 2**40), (0, 2**62), (SizeVar("n"), 2**60)):
        with pytest.raises(ValueError, match="elements fit in memory"):
            TensorType(shape)


def test_size_constants_do_not_wrap_around() -> None:
    reach = (const(4) - 1) * WRAPS + 1
    assert int(reach) == 3 * WRAPS + 1 and int(const(2**62) * 4 // 8) == 2**61
    assert int(const(2**31 - 1, "int32") + 1) == -(2**31)


N, M = SizeVar("n"), SizeVar("m")
DATA = Buffer("data", (const(2),), "int64")
EXPRESSIONS = {  # an expression on symbols, and in whole numbers
    "a product": (N * M * 64, lambda n, m: n * m * 64),
    "a product and a sum": ((N - 1) * 2**40 + 7, lambda n, m: (n - 1) * 2**40 + 7),
    "a power": (N * N * N * N, lambda n, m: n**4),
    "a difference": (maximum(N - M, 0) * 2**30, lambda n, m: max(n - m, 0) * 2**30),
    "a bound": (minimum(N, const(5)) * 2**61, lambda n, m: min(n, 5) * 2**61),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_conditions_hold_for_all_sizes_that_a_memory_has(name: str) -> None:
    expr, whole = EXPRESSIONS[name]
    conditions = [condition for condition, _, _ in size_conditions([expr])]
    edges = (0, 1, 2, 3, 2**10, 2**15, 2**16, 2**20, 2**22, 2**32, MAX_EXTENT)
    for n in edges:
        for m in edges:
            size = abs(whole(n, m))
            holds = all(evaluate(c, {N: n, M: m}) for c in conditions)
            assert size < 2**63 if holds else size >= MAX_PRODUCT


def test_small_sizes_need_no_check_but_that_of_their_dimension() -> None:
    (only,) = size_conditions([(N * 4 + 3) // 2, N * 4])
    assert "at most 1099511627776 elements" in only[1]


def test_branch_sizes_are_checked_only_if_taken() -> None:
    end = DATA[0]
    (condition,) = [
        condition
        for condition, text, _ in size_conditions([Select(end < 0, end + N, end)])
        if "leaves" in text
    ]
    assert "data[0] < 0 and" in repr(condition)


@pytest.mark.parametrize(
    "text",
    [
        "def @main(%x: Tensor[(2, 3), float32]) { expand_dims(%x, axis=0, num_newaxis=BIG) }",
        "def @main(%x: Tensor[(2, 8, 2, 2), float32]) { nn.depth_to_space(%x, block_size=BIG) }",
        "def @main(%x: Tensor[(1, n, 2, 2), float32]) { nn.lrn(%x, size=BIG) }",
        "def @main(%x: Tensor[(2, 3), int8]) { qnn.softmax(%x, 1f, 0, 1f, 0, axis=BIG) }",
        "def @main(%x: Tensor[(1, 4, 6, 5), float32], %o: Tensor[(1, 36, 6, 5), float32],"
        " %w: Tensor[(2, 2, 3, 3), float32])"
        " { nn.deformable_conv2d(%x, %o, %w, strides=[1, BIG], padding=[1, 1], groups=2) }",
    ],
)
def test_attribute_extents_are_validated(text: str) -> None:
    with pytest.raises(CompileError):
        ekiden.compile(relay.parse(text.replace("BIG", str(WRAPS))))


def test_oversized_window_is_an_input_error() -> None:
    params, body = WINDOWS["nn.max_pool1d"]
    exe = _compiled(params, body.replace("[4]", "[4294967297]"), "n", 1)
    with pytest.raises(InputError, match="needs"):
        exe(_ones(1, 1, 8))


def test_window_over_all_channels_covers_existing_channels() -> None:
    text = "def @main(%x: Tensor[(1, 3, 1, 2), float32]) { nn.lrn(%x, size=SIZE, alpha=1f) }"
    x = np.arange(6, dtype=np.float32).reshape(1, 3, 1, 2)
    wide = ekiden.compile(relay.parse(text.replace("SIZE", "1025")))(x).numpy()
    total = (x**2).sum(1, keepdims=True) / 1025
    np.testing.assert_allclose(wide, x / (2 + total) ** 0.75, rtol=1e-5)
