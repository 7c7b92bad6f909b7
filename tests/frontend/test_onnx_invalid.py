# ruff: noqa: E501 - messages are compared whole
"""Invalid nodes are refused by their names, with what the operator takes: counts, kinds, ranks and
lengths; and no exception of Python's own leaves the import.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import node_mutants
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx_models import Array

from ekiden.frontend.onnx import from_onnx
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.frontend.onnx.registry import CONVERTER_TABLE
from ekiden.frontend.onnx.signature_table import OPSETS
from ekiden.frontend.onnx.signatures import ATTRIBUTE_KINDS, find_signature
from ekiden.relay.expr import Expr
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from long_runs import LONG, sizes

pytestmark = pytest.mark.quick

MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"
IMAGE, MATRIX = (1, 4, 4, 4), (2, 3)


def model(
    op_type: str,
    inputs: str,
    shapes: dict[str, Sequence[int]],
    weights: dict[str, Array] | None = None,
    outputs: str = "y",
    opset: int = 21,
    domain: str = "",
    **attributes: object,
) -> onnx.ModelProto:
    """A model of one node that no checker has seen; "-" is an input that is absent."""
    names = ["" if n == "-" else n for n in inputs.split()]
    node = helper.make_node(op_type, names, outputs.split(), domain=domain, **attributes)
    infos = [helper.make_tensor_value_info(n, 1, list(s)) for n, s in shapes.items()]
    results = [helper.make_empty_tensor_value_info(o) for o in outputs.split()]
    tensors = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph([node], "g", infos, results, tensors)
    versions = [helper.make_opsetid(*v) for v in (("", opset), (MICROSOFT, 1), (ML, 3))]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


X = {"x": IMAGE}
ONES = np.ones(4, np.float32)
KERNEL = {"w": np.ones((2, 4, 3, 3), np.float32)}
SEQUENCE = {"s": (2, 1, 3), "w": (1, 8, 3), "r": (1, 8, 2)}

CASES: dict[str, tuple[onnx.ModelProto, str]] = {
    # counts and kinds, which need no types
    "too few inputs": (model("Add", "x", X), "Add 'y': input 1 ('B') is missing"),
    "no inputs": (model("Relu", "", X), "Relu 'y': input 0 ('X') is missing"),
    "an empty input": (model("Bernoulli", "-", X), "Bernoulli 'y': input 0 ('input') is missing"),
    "too many inputs": (model("Relu", "x x", X), "Relu 'y': expected at most 1 inputs, got 2"),
    "too many outputs": (model("Relu", "x", X, outputs="y z"), "Relu 'y': expected at most 1 outputs, got 2"),
    "one of three": (model("GroupNormalization", "x s", X, {"s": ONES}, num_groups=2), "GroupNormalization 'y': input 2 ('bias') is missing"),
    "no block size": (model("SpaceToDepth", "x", X), "SpaceToDepth 'y': attribute 'blocksize' is missing"),
    "no block size either": (model("DepthToSpace", "x", X), "DepthToSpace 'y': attribute 'blocksize' is missing"),
    "no axis": (model("Concat", "x x", X), "Concat 'y': attribute 'axis' is missing"),
    "no type": (model("Cast", "x", X), "Cast 'y': attribute 'to' is missing"),
    "no heads": (model("MultiHeadAttention", "x x x", {"x": (1, 2, 8)}, domain=MICROSOFT), "com.microsoft::MultiHeadAttention 'y': attribute 'num_heads' is missing"),
    "another kind": (model("Softmax", "x", X, axis=1.0), "Softmax 'y': attribute 'axis' must be an integer, got a float"),
    "a list for a number": (model("Gather", "x i", X, {"i": ints(0)}, axis=[1]), "Gather 'y': attribute 'axis' must be an integer, got a list of integers"),
    # ranks and lengths
    "Pad, short": (model("Pad", "x p", X, {"p": ints(1, 1, 1, 1)}), "Pad 'y': 'pads' must have 8 elements, got 4"),
    "Pad, long": (model("Pad", "x p", X, {"p": np.ones(10, np.int64)}), "Pad 'y': 'pads' must have 8 elements, got 10"),
    "Pad, of axes": (model("Pad", "x p - a", X, {"p": ints(1, 1, 1, 1), "a": ints(1, 2, 3)}), "Pad 'y': 'pads' must have 6 elements, got 4"),
    "Pad before opset 11": (model("Pad", "x", X, opset=9, pads=[1, 1]), "Pad 'y': 'pads' must have 8 elements, got 2"),
    "Slice, ends": (model("Slice", "x s e", X, {"s": ints(0, 0), "e": ints(2)}), "Slice 'y': 'ends' must have 2 elements, got 1"),
    "Slice, steps": (model("Slice", "x s s s t", X, {"s": ints(1, 2), "t": ints(1)}), "Slice 'y': 'steps' must have 2 elements, got 1"),
    "Transpose": (model("Transpose", "x", X, perm=[1, 0]), "Transpose 'y': 'perm' must have 4 elements, got 2"),
    "Tile": (model("Tile", "x r", X, {"r": ints(1, 2)}), "Tile 'y': 'repeats' must have 4 elements, got 2"),
    "MaxPool, kernel": (model("MaxPool", "x", X, kernel_shape=[2]), "MaxPool 'y': 'kernel_shape' must have 2 elements, got 1"),
    "MaxPool, pads": (model("MaxPool", "x", X, kernel_shape=[2, 2], pads=[1, 1]), "MaxPool 'y': 'pads' must have 4 elements, got 2"),
    "Conv, pads": (model("Conv", "x w", X, KERNEL, pads=[1, 1]), "Conv 'y': 'pads' must have 4 elements, got 2"),
    "Conv, dilations": (model("Conv", "x w", X, KERNEL, dilations=[2]), "Conv 'y': 'dilations' must have 2 elements, got 1"),
    "NhwcConv": (model("NhwcConv", "x w", X, KERNEL, domain=MICROSOFT, strides=[1]), "com.microsoft::NhwcConv 'y': 'strides' must have 2 elements, got 1"),
    "ConvTranspose": (model("ConvTranspose", "x w", X, {"w": np.ones((4, 2, 3, 3), np.float32)}, output_padding=[1, 1, 1]), "ConvTranspose 'y': 'output_padding' must have 2 elements, got 3"),
    "Upsample": (model("Upsample", "x s", X, {"s": np.ones(2, np.float32)}, opset=9), "Upsample 'y': 'scales' must have 4 elements, got 2"),
    "OneHot": (model("OneHot", "i d v", {}, {"i": ints(0), "d": ints(3), "v": ints(0, 1, 2)}), "OneHot 'y': 'values' must have 2 elements, got 3"),
    "TopK": (model("TopK", "x k", X, {"k": ints(1, 2)}, outputs="y i"), "TopK 'y': 'K' must have 1 element, got 2"),
    "Gemm": (model("Gemm", "a b", {"a": (4,), "b": (4, 2)}), "Gemm 'y': 'A' must have rank 2, got 1"),
    "LSTM": (model("LSTM", "s w r", {**SEQUENCE, "w": ()}, hidden_size=2), "LSTM 'y': 'W' must have rank 3, got 0"),
    "LSTM without a size": (model("LSTM", "s w r", SEQUENCE), "LSTM 'y': attribute 'hidden_size' must be given, and at least 1"),
    "ScatterND": (model("ScatterND", "x i u", {**X, "u": (4, 4, 4)}, {"i": np.array(0)}), "ScatterND 'y': 'indices' must have rank 1 or more, got 0"),
    "CumSum": (model("CumSum", "x a", {"x": ()}, {"a": np.array(0)}), "CumSum 'y': 'x' must have rank 1 or more, got 0"),
    "DFT": (model("DFT", "x", {"x": ()}), "DFT 'y': 'input' must have rank 2 or more, got 0"),
    "Attention's mask": (model("Attention", "q w b m", {"q": (1, 2, 8), "m": (1, 1, 1, 2, 2)}, {"w": np.ones((8, 24), np.float32), "b": np.ones(24, np.float32)}, domain=MICROSOFT, num_heads=2), "com.microsoft::Attention 'y': 'mask_index' must have rank 1 or 2 or 3 or 4, got 5"),
    "a reduction's axes": (model("ReduceSum", "x a", X, {"a": np.array(1)}), "ReduceSum 'y': 'axes' must have rank 1, got 0"),
    # what only the operator knows
    "Split": (model("Split", "x s", X, {"s": ints(1, 1)}, outputs="y z", axis=1), "Split 'y': 'split' must add up to 4: (1, 1)"),
    "Split by an attribute": (model("Split", "x", X, outputs="y z", opset=11, axis=1, split=[1, 1]), "Split 'y': 'split' must add up to 4: (1, 1)"),
    "Einsum": (model("Einsum", "x", X, equation="...cd->cd"), "Einsum 'y': the result of '...cd->cd' must name the axes of '...'"),
    "Unsqueeze": (model("Unsqueeze", "x a", X, {"a": ints(1, 1)}), "Unsqueeze 'y': 'axes' must be distinct, got (1, 1)"),
    "Range": (model("Range", "a b a", {}, {"a": np.array(0.0, np.float32), "b": np.array(1.0, np.float32)}), "Range 'y': 'delta' must not be 0"),
    "LpPool": (model("LpPool", "x", X, p=0, kernel_shape=[2, 2]), "LpPool 'y': attribute 'p' must be at least 1, got 0"),
    "constants": (model("Add", "a b", {}, {"a": ints(1, 2, 3), "b": ints(1, 2)}), "Add 'y': shapes (3,) and (2,) do not broadcast"),
    "Col2Im": (model("Col2Im", "x i b", {"x": (1, 8, 4)}, {"i": ints(4, 4), "b": ints(2, 2)}, strides=[2, 2], pads=[0, 0, -2, 0]), "Col2Im 'y': attribute 'pads' must not be negative, got -2"),
    "Col2Im of a negative image": (model("Col2Im", "x i b", {"x": (1, 8, 4)}, {"i": ints(-3, 4), "b": ints(2, 2)}, strides=[2, 2], pads=[4, 0, 4, 0]), "Col2Im 'y': 'image_shape' must not be negative, got -3"),
    "QuantizeLinear": (model("QuantizeLinear", "x s", {"x": (1, 2, 6)}, {"s": np.ones(2, np.float32)}, axis=0), "QuantizeLinear 'y': a scale or zero point of an axis must have 1 elements, got 2"),
    "DequantizeLinear": (model("DequantizeLinear", "x s", {}, {"x": np.ones((1, 3), np.uint8), "s": np.ones(2, np.float32)}, axis=0), "DequantizeLinear 'y': a scale or zero point of an axis must have 1 elements, got 2"),
    "MatMulInteger": (model("MatMulInteger", "a b z", {}, {"a": np.ones((1, 3), np.uint8), "b": np.ones((3, 2), np.uint8), "z": np.ones(2, np.uint8)}), "MatMulInteger 'y': a scale or zero point of an axis must have 1 elements, got 2"),
    "ConvInteger": (model("ConvInteger", "a b p z", {}, {"a": np.ones((1, 3, 4, 4), np.uint8), "b": np.ones((1, 3, 2, 2), np.uint8), "p": np.array(1, np.uint8), "z": np.ones(2, np.uint8)}), "ConvInteger 'y': a scale or zero point of an axis must have 1 elements, got 2"),
    "trees": (model("FeatureVectorizer", "x x", {"x": (3,)}, domain=ML, inputdimensions=[3]), "ai.onnx.ml::FeatureVectorizer 'y': 'inputdimensions' has 1 numbers for 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_invalid_nodes_are_refused_by_name(name: str) -> None:
    broken, message = CASES[name]
    with pytest.raises(ImportModelError, match=re.escape(message)):
        from_onnx(broken)


def test_branches_of_other_types_are_refused() -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Cast", ["x"], ["a"], to=kind)], name, [],
            [helper.make_tensor_value_info("a", kind, [2, 3])],
        )
        for name, kind in (("then", TensorProto.FLOAT), ("else", TensorProto.INT64))
    }  # fmt: skip
    broken = model("If", "c", {"x": MATRIX}, **branches)
    broken.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    message = "If 'y': 'y' must have one dtype, but then_branch gives float32 and else_branch int64"
    with pytest.raises(ImportModelError, match=message):
        from_onnx(broken)


def test_sequences_of_other_ranks_are_named_in_the_error() -> None:
    result = helper.make_node("SequenceConstruct", ["x", "z"], ["s"])
    joined = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    broken = model("Relu", "x", {**X, "z": (4,)})
    broken.graph.ClearField("node")
    broken.graph.node.extend([result, joined])
    with pytest.raises(ImportModelError, match="ConcatFromSequence 'y': "):
        from_onnx(broken)
    broken.graph.node.pop()
    broken.graph.output[0].name = "s"
    with pytest.raises(UnsupportedError, match="output 's': the elements of a sequence"):
        from_onnx(broken)


@pytest.mark.parametrize(("dims", "reason"), [([-4], "at least 0"), ([4], "cannot reshape")])
def test_broken_initializers_are_refused_by_name(dims: list[int], reason: str) -> None:
    broken = model("Add", "x c", {"x": (4,)})
    tensor = TensorProto(dims=dims, data_type=TensorProto.FLOAT, float_data=[1, 2], name="c")
    broken.graph.initializer.append(tensor)
    with pytest.raises(ImportModelError, match=f"initializer 'c' is broken: .*{reason}"):
        from_onnx(broken)


def test_declared_sizes_are_not_allocated() -> None:
    huge = 1 << 40
    tree = {
        "nodes_treeids": [0], "nodes_nodeids": [0], "nodes_featureids": [0],
        "nodes_values": [0.0], "nodes_modes": ["LEAF"], "nodes_truenodeids": [0],
        "nodes_falsenodeids": [0],
    }  # fmt: skip
    regressor = model("TreeEnsembleRegressor", "x", {"x": MATRIX}, domain=ML, n_targets=huge,
                      target_treeids=[0], target_nodeids=[0], target_ids=[0],
                      target_weights=[1.0], **tree)  # fmt: skip
    with pytest.raises(UnsupportedError, match=f"must be in .* got {huge}"):
        from_onnx(regressor)
    classifier = model("TreeEnsembleClassifier", "x", {"x": MATRIX}, domain=ML, outputs="y z",
                       classlabels_int64s=[0, 1], class_treeids=[0], class_nodeids=[0],
                       class_ids=[huge], class_weights=[1.0], **tree)  # fmt: skip
    with pytest.raises(UnsupportedError, match="must be in"):
        from_onnx(classifier)
    counts = model("TfIdfVectorizer", "x", {}, {"x": ints(1, 2)}, max_gram_length=1, mode="TF",
                   max_skip_count=0, min_gram_length=1, ngram_counts=[0], ngram_indexes=[huge],
                   pool_int64s=[1])  # fmt: skip
    with pytest.raises(UnsupportedError, match="must be in"):
        from_onnx(counts)
    parts = model("Split", "x", X, num_outputs=huge)
    with pytest.raises(UnsupportedError, match="attribute 'num_outputs' is"):
        from_onnx(parts)
    steps = {"a": np.array(0), "b": np.array(huge), "c": np.array(1)}
    from_onnx(model("Range", "a b c", {}, steps))  # left to the run
    from_onnx(model("ConstantOfShape", "s", {}, {"s": ints(huge)}))


# An input that a converter does not read.


def test_input_that_a_converter_does_not_read_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first(node: OnnxNode) -> Expr:
        """Ignore the second input."""
        return node.expr(0)

    def all_of(node: OnnxNode) -> Expr:
        """Read both."""
        return node.exprs()[0]

    clip = model("Clip", "x a", {"x": (4,), "a": ()})
    monkeypatch.setitem(CONVERTER_TABLE, ("", "Clip"), (OnnxRow("Clip", first, since_version=11),))
    message = "Clip 'y': input 1 ('min') is not supported beside the others"
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        from_onnx(clip)
    monkeypatch.setitem(
        CONVERTER_TABLE,
        ("", "Clip"),
        (OnnxRow("Clip", all_of, since_version=11, supported_inputs="input"),),
    )
    with pytest.raises(UnsupportedError, match=re.escape("Clip 'y': input 1 ('min') is not")):
        from_onnx(clip)
    row = OnnxRow("Clip", first, since_version=11, ignorable_inputs="min")
    monkeypatch.setitem(CONVERTER_TABLE, ("", "Clip"), (row,))
    from_onnx(clip)


def test_converter_rows_name_existing_inputs() -> None:
    CONVERTER_TABLE.load_all()
    for (domain, op_type), rows in CONVERTER_TABLE.items():
        for row in rows:
            named = {*row.supported_inputs.split(), *row.ignorable_inputs.split()}
            known = find_signature(domain, op_type, 1 << 20)
            have = {p.name for p in known.inputs} if known is not None else set[str]()
            assert named <= have, f"{op_type}: {named - have}"


def test_every_operator_of_the_table_has_a_signature() -> None:
    CONVERTER_TABLE.load_all()
    plain = [k for k in CONVERTER_TABLE if k[0] in ("", "ai.onnx.ml", "com.microsoft")]
    assert [k for k in plain if find_signature(*k, 1) is None] == []


def test_signatures_are_those_of_the_schemas() -> None:
    """Of the versions that the table was made of; the installed package may know newer ones."""
    option = onnx.defs.OpSchema.FormalParameterOption
    letters = {int(kind): letter for letter, (kind, _) in ATTRIBUTE_KINDS.items()}
    schemas = onnx.defs.get_all_schemas_with_history()
    for schema in schemas:
        if schema.since_version > OPSETS.get(schema.domain, 0):
            continue
        known = find_signature(schema.domain, schema.name, schema.since_version)
        assert known is not None, schema.name
        for have, declared in ((known.inputs, schema.inputs), (known.outputs, schema.outputs)):
            assert [p.name for p in have] == [p.name for p in declared], schema.name
            expected = [p.option == option.Optional for p in declared]
            assert [p.is_optional for p in have] == expected, schema.name
        kinds = {n: letters[int(a.type)] for n, a in schema.attributes.items()}
        assert {n: a.kind for n, a in known.attributes.items()} == kinds, schema.name


# Mutants.


@pytest.mark.slow
@sizes("count", 300, 20_000)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_nodes_are_refused_or_imported(count: int) -> None:
    assert node_mutants.faults(range(count)) == []


@LONG
@pytest.mark.filterwarnings("ignore")
def test_mutants_of_onnx_own_cases_are_refused_or_imported() -> None:
    wrong = []
    for place, case in enumerate(collect_testcases(None)):
        for number in range(8):
            broken = node_mutants.mutated(case.model, 100 * place + number)
            text = node_mutants.fault(broken)
            wrong += [f"{case.name} {number}: {text}"] if text else []
    assert wrong == []


LAYER = {"x": (3, 1, 2), "w": (1, 16, 2), "r": (1, 16, 4)}
WINDOWS = {"x": (1, 2, 6, 6), "w": (2, 2, 3, 3), "o": (1, 18, 4, 4)}


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (model("LSTM", "x w r", LAYER, hidden_size=65537),
         "'hidden_size' is 65537, and the recurrence weight has 4 columns"),
        (model("Upsample", "x s", X, {"s": np.float32([1, 1, 2, -128])}, opset=9),
         "scales must be finite and above 0, got [1.0, 1.0, 2.0, -128.0]"),
        (model("Upsample", "x s", X, {"s": np.float32([1, 1, np.inf, 1])}, opset=9),
         "scales must be finite and above 0"),
        (model("DFT", "x n", {"x": (1, 8, 1)}, {"n": np.array(-2)}),
         "'dft_length' must be at least 1, got -2"),
        (model("STFT", "x step - n", {"x": (1, 8, 1)}, {"step": np.array(2), "n": np.array(0)}),
         "'frame_length' must be at least 1, got 0"),
        (model("DeformConv", "x w o", WINDOWS, strides=[1, 7]),
         "'offset' has 4 positions along spatial axis 1, expected 1"),
    ],
)  # fmt: skip
def test_contradictory_shape_values_are_refused(program: onnx.ModelProto, message: str) -> None:
    """None of them is left out of account, or taken as counted from the end."""
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        from_onnx(program)
