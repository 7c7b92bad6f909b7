"""Models whose attributes and shape-like inputs are extreme: ONNX, TensorFlow Lite, StableHLO.

Most cases are decided by arithmetic on shapes, and some are run, as exact_sizes.py says; shapes of
ONNX are compared with its own inference, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from case_kinds import Kind, Loader, WrongResultError
from exact_sizes import Sample, check_sizes
from mutation import extreme, mutate_bytes, mutate_numbers
from onnx import TensorProto, helper, numpy_helper, shape_inference

import ekiden
from ekiden.frontend.common.options import ImportOptions
from ekiden.ir.module import IRModule
from ekiden.ir.type import TensorType, TupleType
from ekiden.relay.transform import InferType
from ekiden.topi.dimensions import known_int as number_of

LARGEST = 1 << 22
"""Elements of an input or output, at most, of what is run."""

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def loader(
    import_model: Callable[[Any, ImportOptions], Any],
    check: Callable[[bytes, IRModule], None] | None = None,
) -> Loader:
    """Return what imports a case, checks its types, with `check` too, and compiles some."""
    sample = Sample()

    def load(case: bytes) -> None:
        module = InferType()(import_model(case, ImportOptions()).module)
        check_sizes(module)
        if check is not None:
            check(case, module)
        if sample.takes(module):
            _run(ekiden.compile(module, tier="quick", bounds="check", timeout=60))

    return load


def _run(program: Any) -> None:  # noqa: ANN401
    inputs = []
    for item in program.inputs:
        shape = [d if isinstance(d, int) else 2 for d in item.shape]
        if np.prod(shape, dtype=object) > LARGEST:
            return
        inputs.append(np.ones(shape, item.dtype))
    for out in program.outputs:
        if np.prod([d if isinstance(d, int) else 2 for d in out.shape], dtype=object) > LARGEST:
            return
    program(*inputs, timeout=30)


# ONNX.

X, W = (1, 2, 6, 6), (2, 2, 3, 3)
NODES: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("Conv", (X, W), {"strides": [1, 1], "pads": [0, 0, 0, 0], "dilations": [1, 1], "group": 1,
                      "kernel_shape": [3, 3]}),
    ("Conv", ((1, 2, 9), (2, 2, 3)), {"strides": [1], "pads": [1, 1], "dilations": [2]}),
    ("Conv", ((1, 2, 4, 4, 4), (2, 2, 2, 2, 2)), {"strides": [1, 1, 1], "dilations": [1, 1, 1]}),
    ("ConvTranspose", (X, W), {"strides": [2, 2], "pads": [0, 0, 0, 0], "dilations": [1, 1],
                               "output_padding": [1, 1], "group": 1, "output_shape": [13, 13]}),
    ("DeformConv", (X, W, (1, 18, 4, 4)), {"strides": [1, 1], "dilations": [1, 1],
                                           "offset_group": 1, "pads": [0, 0, 0, 0]}),
    ("MaxPool", (X,), {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0],
                       "dilations": [1, 1], "ceil_mode": 1, "storage_order": 0}),
    ("AveragePool", (X,), {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1],
                           "ceil_mode": 0, "count_include_pad": 1, "dilations": [1, 1]}),
    ("LpPool", (X,), {"kernel_shape": [2, 2], "strides": [2, 2], "p": 2, "dilations": [1, 1]}),
    ("Pad", (X, [0, 0, 1, 1, 0, 0, 1, 1]), {"mode": "constant"}),
    ("Pad", (X, [0, 0, 1, 1, 0, 0, 1, 1]), {"mode": "reflect"}),
    ("Slice", (X, [0, 1], [2, 5], [1, 2], [1, 2]), {}),
    ("Tile", (X, [1, 2, 1, 2]), {}),
    ("Expand", ((2, 1), [2, 3, 4]), {}),
    ("Reshape", (X, [2, -1, 6]), {"allowzero": 0}),
    ("Resize", (X, None, None, [1, 2, 12, 12]), {"mode": "nearest"}),
    ("Resize", (X, None, None, [1, 2, 3, 3]), {"mode": "cubic"}),
    ("Upsample", (X, [1.0, 1.0, 2.0, 2.0]), {}),
    ("ConstantOfShape", ([2, 3],), {}),
    ("Range", ([0], [9], [2]), {}),
    ("OneHot", ([1, 0, 2], [4], [0, 1]), {"axis": -1}),
    ("Gather", (X, [0, 5, -1]), {"axis": 2}),
    ("GatherElements", ((2, 3), [[0, 1, 2], [2, 1, 0]]), {"axis": 1}),
    ("GatherND", ((2, 3), [[0, 1], [1, 2]]), {"batch_dims": 0}),
    ("ScatterElements", ((3, 3), [[0, 1]], (1, 2)), {"axis": 1}),
    ("ScatterND", ((4, 3), [[1], [3]], (2, 3)), {}),
    ("Split", ((6, 2), [2, 4]), {"axis": 0}),
    ("Split", ((6, 2),), {"axis": 0, "num_outputs": 3}),
    ("Squeeze", ((1, 3, 1), [0, 2]), {}),
    ("Unsqueeze", ((3, 2), [0, 3]), {}),
    ("Flatten", (X,), {"axis": 2}),
    ("Transpose", (X,), {"perm": [0, 2, 3, 1]}),
    ("Concat", ((2, 3), (2, 3)), {"axis": 1}),
    ("DepthToSpace", ((1, 8, 2, 2),), {"blocksize": 2}),
    ("SpaceToDepth", (X,), {"blocksize": 2}),
    ("TopK", ((2, 5), [3]), {"axis": 1}),
    ("CumSum", ((2, 5), [1]), {"exclusive": 1}),
    ("Softmax", ((2, 5),), {"axis": 1}),
    ("ReduceSum", (X, [1, 2]), {"keepdims": 1}),
    ("ArgMax", (X,), {"axis": 1, "select_last_index": 0}),
    ("EyeLike", ((3, 4),), {"k": 1}),
    ("Trilu", ((3, 4), [1]), {"upper": 1}),
    ("Col2Im", ((1, 8, 4), [4, 4], [2, 2]), {"strides": [2, 2], "pads": [0] * 4}),
    ("GridSample", (X, (1, 3, 3, 2)), {"align_corners": 1}),
    ("RoiAlign", (X, (2, 4), [0, 0]), {"output_height": 2, "output_width": 2, "sampling_ratio": 2}),
    ("MaxRoiPool", (X, (2, 5)), {"pooled_shape": [2, 2]}),
    ("LRN", (X,), {"size": 3}),
    ("Shape", (X,), {"start": 1, "end": 3}),
    ("RandomNormal", (), {"shape": [2, 3], "dtype": 1}),
    ("RandomUniform", (), {"shape": [2, 3], "dtype": 1}),
    ("HannWindow", ([8],), {"periodic": 1}),
    ("MelWeightMatrix", ([4], [16], [16000], [0], [8000]), {}),
    ("DFT", ((1, 8, 1), [8], [1]), {"onesided": 0}),
    ("STFT", ((1, 32, 1), [4], None, [8]), {"onesided": 1}),
    ("ReverseSequence", ((4, 3), [1, 2, 4]), {"time_axis": 0, "batch_axis": 1}),
    ("CenterCropPad", (X, [4, 8]), {"axes": [2, 3]}),
    ("GroupNormalization", (X, (2,), (2,)), {"num_groups": 2}),
    ("LayerNormalization", (X, (6,)), {"axis": -1}),
    ("Compress", ((4, 2), [1, 0, 1]), {"axis": 0}),
    ("LSTM", ((3, 1, 2), (1, 16, 2), (1, 16, 4)), {"hidden_size": 4}),
    ("GRU", ((3, 1, 2), (1, 12, 2), (1, 12, 4)), {"hidden_size": 4, "linear_before_reset": 1}),
    ("Gemm", ((2, 3), (3, 4)), {"transA": 0, "transB": 0}),
    ("Hardmax", ((2, 3),), {"axis": 1}),
    ("QuantizeLinear", (X, (2,)), {"axis": 1, "block_size": 0}),
    ("Cast", (X,), {"to": 7}),
    ("BitShift", ([1, 2], [1, 70]), {"direction": "LEFT"}),
    ("Mod", ([7, -7], [3, 2]), {"fmod": 0}),
    ("Div", ([7, -7], [3, -1]), {}),
    ("Unique", ((6,),), {"axis": 0, "sorted": 1}),
    ("NonMaxSuppression", ((1, 4, 4), (1, 1, 4), [2]), {"center_point_box": 0}),
    ("Attention", ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)), {"is_causal": 1}),
    ("RotaryEmbedding", ((1, 2, 3, 4), (8, 2), (8, 2), [[0, 1, 2]]), {"rotary_embedding_dim": 4}),
    ("TfIdfVectorizer", ([1, 2, 3],),
     {"max_gram_length": 2, "max_skip_count": 1, "min_gram_length": 1, "mode": "TF",
      "ngram_counts": [0, 2], "ngram_indexes": [0, 1, 2], "pool_int64s": [1, 2, 1, 2]}),
)  # fmt: skip
"""Sound nodes: the operator, its inputs (the shape of a float input as a tuple, an int64 constant
as a list, None for an input that is left out) and its attributes."""
VERSIONS = {"Upsample": 9, "RoiAlign": 16, "GroupNormalization": 21}


def _onnx_model(node: tuple[str, tuple[Any, ...], dict[str, Any]], rng: Random) -> bytes:
    """Return a model of a node, one or two of whose numbers are extreme."""
    name, inputs, attributes = node
    inputs, attributes = tuple(inputs), dict(attributes)
    places: list[tuple[bool, Any, Any]] = [
        (True, at, i) for at, v in enumerate(inputs) if isinstance(v, list)
        for i in range(np.asarray(v).size)
    ]  # fmt: skip
    for key, value in attributes.items():
        if isinstance(value, list):
            places += [(False, key, i) for i in range(len(value))]
        elif isinstance(value, int):
            places.append((False, key, None))
    arrays = {at: np.asarray(v) for at, v in enumerate(inputs) if isinstance(v, list)}
    for is_input, key, index in rng.sample(places, min(len(places), rng.choice((1, 1, 2)))):
        number = extreme(rng)
        if is_input:
            arrays[key] = arrays[key].copy()
            arrays[key].flat[index] = number
        elif index is None:
            attributes[key] = number
        else:
            attributes[key] = [number if i == index else v for i, v in enumerate(attributes[key])]
    names = ["" if v is None else f"i{at}" for at, v in enumerate(inputs)]
    symbolic = rng.random() < 0.15
    infos = [
        helper.make_tensor_value_info(f"i{at}", FLOAT, [f"n{at}", *v[1:]] if symbolic and v else v)
        for at, v in enumerate(inputs) if isinstance(v, tuple)
    ]  # fmt: skip
    weights = [numpy_helper.from_array(_constant(a, name), f"i{at}") for at, a in arrays.items()]
    count = attributes.get("num_outputs", 2 if name == "Split" else 1)
    outputs = [f"o{n}" for n in range(count if isinstance(count, int) and 0 < count < 5 else 3)]
    output = helper.make_node(name, names, outputs, **attributes)
    results = [helper.make_tensor_value_info(o, 0, None) for o in outputs]
    for result in results:
        result.ClearField("type")
    graph = helper.make_graph([output], "g", infos, results, weights)
    version = rng.choice((VERSIONS.get(name, 23), VERSIONS.get(name, 23), 13))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10
    )
    return bytes(model.SerializeToString())


def _constant(array: Any, name: str) -> Any:  # noqa: ANN401
    if name == "Compress":
        return array.astype(bool)
    if name == "BitShift":
        return array.astype(np.uint64)
    if name in (
        "Range",
        "HannWindow",
        "MelWeightMatrix",
        "DFT",
        "STFT",
        "OneHot",
        "CumSum",
        "Trilu",
    ):
        array = array.reshape(()) if array.size == 1 else array
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


def _onnx() -> tuple[Any, Loader]:
    from ekiden.frontend.onnx.entry import import_model

    def make(rng: Random) -> bytes:
        data = _onnx_model(rng.choice(NODES), rng)
        return mutate_bytes(data, rng) if rng.random() < 0.05 else data

    return make, loader(import_model, _check_inferred)


FLAGS = ("keepdims", "ceil_mode")
"""Attributes whose values other than 0 and 1 mean nothing."""


def _is_comparable(node: onnx.NodeProto, version: int) -> bool:
    """Return whether ONNX says one shape: the attributes are those of the version, flags are 0 or
    1, and no window of its own rounding (before version 19 it counts windows that begin outside).
    """
    if node.op_type == "CenterCropPad":  # an extent below 0 is 0 by its function, not its inference
        return False
    if any(a.name == "output_shape" for a in node.attribute):  # it gives up in the midst of a shape
        return False
    known = onnx.defs.get_schema(node.op_type, version, node.domain).attributes
    values = {a.name: a.i for a in node.attribute}
    if any(name not in known for name in values) or values.get("ceil_mode"):
        return False
    return all(values.get(name, 0) in (0, 1) for name in FLAGS)


def _check_inferred(data: bytes, module: IRModule) -> None:
    """Raise AssertionError where ONNX's own inference says another shape of the outputs."""
    try:
        model = onnx.load_from_string(data)
        inferred = shape_inference.infer_shapes(model, data_prop=True)
        version = model.opset_import[0].version
        if not all(_is_comparable(node, version) for node in model.graph.node):
            return
    except Exception:  # it refuses what does not concern shapes, too
        return
    main = module["main"]
    results = main.ret_type.fields if isinstance(main.ret_type, TupleType) else [main.ret_type]
    if len(results) != len(inferred.graph.output):
        return
    has_windows = any(
        node.op_type == "STFT" or any(a.name == "strides" for a in node.attribute)
        for node in model.graph.node
    )
    for kind, info in zip(results, inferred.graph.output, strict=True):
        if info.type.tensor_type.elem_type == TensorProto.STRING:
            continue  # whose types have an axis of bytes
        shape = info.type.tensor_type.shape if info.type.tensor_type.HasField("shape") else None
        if not isinstance(kind, TensorType) or shape is None:
            continue
        reference = [d.dim_value if d.HasField("dim_value") else None for d in shape.dim]
        result = [number_of(d) for d in kind.shape]
        # its integers wrap where ours refuse; below there both are exact
        pairs = [(a, b) for a, b in zip(result, reference, strict=False) if None not in (a, b)]
        # it divides towards 0, and so has a window for an axis that is too short for any
        pairs = [pair for pair in pairs if not (has_windows and pair == (0, 1))]
        differ = any(a != b for a, b in pairs if max(a, b) < 1 << 31)
        if len(result) != len(reference) or differ:
            operators = ", ".join(node.op_type for node in model.graph.node)
            text = f"the shape of {info.name!r} is {result}, and by ONNX {reference}"
            raise WrongResultError(operators, text)


# TensorFlow Lite.


def _tflite_corpus() -> list[bytes]:
    sys.path.append(str(Path(__file__).parents[1] / "frontend"))
    from tflite_models import Op, Spec, model  # type: ignore[import-not-found]  # by its path

    def ints(*values: int) -> Any:  # noqa: ANN401
        return Spec(data=np.array(values, np.int32))

    image, out = Spec((1, 6, 6, 2)), Spec((1, 6, 6, 2))
    weight = Spec(data=np.ones((2, 3, 3, 2), np.float32))
    rows: list[tuple[str, list[Any], tuple[str, dict[str, Any]] | None]] = [
        ("CONV_2D", [image, weight],
         ("Conv2DOptions", {"StrideH": 1, "StrideW": 1,
                            "DilationHFactor": 1, "DilationWFactor": 1})),
        ("DEPTHWISE_CONV_2D", [image, Spec(data=np.ones((1, 3, 3, 2), np.float32))],
         ("DepthwiseConv2DOptions", {"StrideH": 1, "StrideW": 1, "DepthMultiplier": 1,
                                     "DilationHFactor": 1, "DilationWFactor": 1})),
        ("MAX_POOL_2D", [image], ("Pool2DOptions", {"FilterHeight": 2, "FilterWidth": 2,
                                                    "StrideH": 2, "StrideW": 2})),
        ("AVERAGE_POOL_2D", [image], ("Pool2DOptions", {"FilterHeight": 2, "FilterWidth": 2,
                                                        "StrideH": 2, "StrideW": 2})),
        ("TRANSPOSE_CONV", [ints(1, 13, 13, 2), weight, image],
         ("TransposeConvOptions", {"StrideH": 2, "StrideW": 2})),
        ("STRIDED_SLICE", [image, ints(0, 1, 1, 0), ints(1, 5, 5, 2), ints(1, 2, 2, 1)],
         ("StridedSliceOptions", {"BeginMask": 1, "EndMask": 2, "ShrinkAxisMask": 0,
                                  "EllipsisMask": 0, "NewAxisMask": 0})),
        ("SLICE", [image, ints(0, 1, 1, 0), ints(1, 3, 3, 2)], None),
        ("RESHAPE", [image, ints(1, 36, 2)], ("ReshapeOptions", {"NewShape": [1, 36, 2]})),
        ("PAD", [image, Spec(data=np.ones((4, 2), np.int32))], None),
        ("MIRROR_PAD", [image, Spec(data=np.ones((4, 2), np.int32))],
         ("MirrorPadOptions", {"Mode": 0})),
        ("RESIZE_BILINEAR", [image, ints(12, 12)], ("ResizeBilinearOptions", {"AlignCorners": 1})),
        ("RESIZE_NEAREST_NEIGHBOR", [image, ints(3, 3)], ("ResizeNearestNeighborOptions", {})),
        ("SPACE_TO_BATCH_ND", [image, ints(2, 2), Spec(data=np.zeros((2, 2), np.int32))], None),
        ("BATCH_TO_SPACE_ND",
         [Spec((4, 3, 3, 2)), ints(2, 2), Spec(data=np.zeros((2, 2), np.int32))], None),
        ("SPACE_TO_DEPTH", [image], ("SpaceToDepthOptions", {"BlockSize": 2})),
        ("DEPTH_TO_SPACE", [Spec((1, 3, 3, 8))], ("DepthToSpaceOptions", {"BlockSize": 2})),
        ("TILE", [image, ints(1, 2, 2, 1)], None),
        ("TRANSPOSE", [image, ints(0, 2, 1, 3)], None),
        ("GATHER", [image, ints(0, 5, 2)], ("GatherOptions", {"Axis": 1, "BatchDims": 0})),
        ("GATHER_ND", [image, Spec(data=np.array([[0, 1], [0, 5]], np.int32))], None),
        ("ONE_HOT", [ints(0, 2), ints(4), Spec(data=np.ones(1, np.float32)),
                     Spec(data=np.zeros(1, np.float32))],
         ("OneHotOptions", {"Axis": -1})),
        ("SQUEEZE", [Spec((1, 6, 1))], ("SqueezeOptions", {"SqueezeDims": [0, 2]})),
        ("EXPAND_DIMS", [image, ints(1)], None),
        ("CONCATENATION", [image, image], ("ConcatenationOptions", {"Axis": 3})),
        ("PACK", [image, image], ("PackOptions", {"Axis": 1, "ValuesCount": 2})),
        ("ARG_MAX", [image, ints(1)], None),
        ("SUM", [image, ints(1, 2)], ("ReducerOptions", {"KeepDims": 1})),
        ("SOFTMAX", [Spec((2, 5))], ("SoftmaxOptions", {"Beta": 1.0})),
        ("FILL", [ints(2, 3), Spec(data=np.float32(1))], None),
        ("BROADCAST_TO", [Spec((1, 3)), ints(2, 3)], None),
        ("TOPK_V2", [Spec((2, 5)), ints(3)], None),
        ("LOCAL_RESPONSE_NORMALIZATION", [image],
         ("LocalResponseNormalizationOptions", {"Radius": 2})),
        ("FULLY_CONNECTED", [Spec((2, 4)), Spec(data=np.ones((3, 4), np.float32))],
         ("FullyConnectedOptions", {})),
    ]  # fmt: skip
    corpus = []
    for code, specs, table in rows:
        distinct = [*specs, out]
        opened = [i for i, s in enumerate(specs) if s.data is None]
        ops = [Op(code, list(range(len(specs))), [len(specs)], table)]
        corpus.append(model(distinct, ops, opened, [len(specs)]))
    return corpus


def _tflite() -> tuple[Any, Loader]:
    from ekiden.frontend.tflite.entry import import_model  # needs an extra

    corpus = _tflite_corpus()

    def make(rng: Random) -> bytes:
        """Words of 32 bits are numbers, offsets or names; those that count are all among them."""
        data = bytearray(rng.choice(corpus))
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = 4 * rng.randrange(2, len(data) // 4)
            data[at : at + 4] = (extreme(rng, 32) % (1 << 32)).to_bytes(4, "little")
        return mutate_bytes(bytes(data), rng) if rng.random() < 0.1 else bytes(data)

    return make, loader(import_model)


# StableHLO.

HLO = (
    ("%r = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],"
     " window = {stride = [1, 1], pad = [[0, 0], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1]}"
     " {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x6x6x2xf32>,"
     " tensor<3x3x2x2xf32>) -> tensor<1x4x6x2xf32>",
     "tensor<1x6x6x2xf32>; tensor<3x3x2x2xf32>", "tensor<1x4x6x2xf32>"),
    ("%r = stablehlo.slice %a [0:4:2, 1:3] : (tensor<6x3xf32>) -> tensor<2x2xf32>",
     "tensor<6x3xf32>", "tensor<2x2xf32>"),
    ("%z = stablehlo.constant dense<0.0> : tensor<f32>\n%r = stablehlo.pad %a, %z, low = [1, 0],"
     " high = [0, 2], interior = [1, 0] : (tensor<3x2xf32>, tensor<f32>) -> tensor<6x4xf32>",
     "tensor<3x2xf32>", "tensor<6x4xf32>"),
    ("%r = stablehlo.iota dim = 1 : tensor<2x3xi32>", "", "tensor<2x3xi32>"),
    ("%r = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>",
     "tensor<3xf32>", "tensor<2x3xf32>"),
    ("%r = stablehlo.reshape %a : (tensor<2x6xf32>) -> tensor<3x4xf32>", "tensor<2x6xf32>",
     "tensor<3x4xf32>"),
    ("%r = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>",
     "tensor<2x3xf32>", "tensor<3x2xf32>"),
    ("%r = stablehlo.concatenate %a, %b, dim = 0 : (tensor<2x3xf32>, tensor<1x3xf32>) ->"
     " tensor<3x3xf32>", "tensor<2x3xf32>; tensor<1x3xf32>", "tensor<3x3xf32>"),
    ("%r = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] :"
     " (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>",
     "tensor<2x3x4xf32>; tensor<2x4x5xf32>", "tensor<2x3x5xf32>"),
    ('%r = "stablehlo.gather"(%a, %b) {dimension_numbers = #stablehlo.gather<offset_dims = [1],'
     " collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes ="
     " array<i64: 1, 3>} : (tensor<5x3xf32>, tensor<2x1xi32>) -> tensor<2x3xf32>",
     "tensor<5x3xf32>; tensor<2x1xi32>", "tensor<2x3xf32>"),
    ('%z = stablehlo.constant dense<0.0> : tensor<f32>\n%r = "stablehlo.reduce_window"(%a, %z) ({\n'
     "^bb0(%x: tensor<f32>, %y: tensor<f32>):\n%s = stablehlo.add %x, %y : tensor<f32>\n"
     "stablehlo.return %s : tensor<f32>\n}) {window_dimensions = array<i64: 2, 2>, window_strides ="
     " array<i64: 1, 2>, base_dilations = array<i64: 1, 1>, window_dilations = array<i64: 1, 1>,"
     " padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>} : (tensor<4x4xf32>, tensor<f32>) ->"
     " tensor<3x3xf32>", "tensor<4x4xf32>", "tensor<3x3xf32>"),
    ("%r = stablehlo.dynamic_slice %a, %b, %c, sizes = [1, 2] : (tensor<3x4xf32>, tensor<i32>,"
     " tensor<i32>) -> tensor<1x2xf32>", "tensor<3x4xf32>; tensor<i32>; tensor<i32>",
     "tensor<1x2xf32>"),
    ("%r = stablehlo.reverse %a, dims = [1] : tensor<2x3xf32>",
     "tensor<2x3xf32>", "tensor<2x3xf32>"),
    ("%r = stablehlo.fft %a, type = RFFT, length = [8] : (tensor<2x8xf32>) ->"
     " tensor<2x5xcomplex<f32>>\n%q = stablehlo.real %r : (tensor<2x5xcomplex<f32>>) ->"
     " tensor<2x5xf32>", "tensor<2x8xf32>",
     "tensor<2x5xcomplex<f32>>"),
)  # fmt: skip
"""Bodies of functions, what they take, and what they give."""


def _hlo_text(body: str, takes: str, gives: str) -> str:
    kinds = [kind.strip() for kind in takes.split(";") if kind.strip()]
    arguments = ", ".join(f"%{name}: {kind}" for name, kind in zip("abcdef", kinds, strict=False))
    return f"func.func @main({arguments}) -> {gives} {{\n{body}\nreturn %r : {gives}\n}}"


IMPORTS_PER_CONTEXT = 256
"""Programs that are parsed in one context of MLIR: making it takes two thirds of a case."""


def _stablehlo() -> tuple[Any, Loader]:
    from ekiden.frontend.jax import program, stablehlo_parser  # needs an extra
    from ekiden.frontend.jax.entry import import_model

    imports, contexts = count(), [stablehlo_parser.make_context()]

    def context() -> Any:  # noqa: ANN401
        if next(imports) % IMPORTS_PER_CONTEXT == 0:
            contexts[0] = stablehlo_parser.make_context()
        return contexts[0]

    program.context = context  # type: ignore[assignment]

    def make(rng: Random) -> bytes:
        text = mutate_numbers(_hlo_text(*rng.choice(HLO)), rng)
        return mutate_bytes(text.encode(), rng) if rng.random() < 0.05 else text.encode()

    return make, loader(import_model)


KINDS = (
    Kind("onnx", "attributes and constant inputs of ONNX nodes", _onnx),
    Kind("tflite", "options and constants of TensorFlow Lite operators", _tflite,
         ("tflite", "flatbuffers")),
    Kind("stablehlo", "numbers in programs of StableHLO", _stablehlo, ("jax",)),
)  # fmt: skip
