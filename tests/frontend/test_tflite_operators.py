"""Operators of TensorFlow Lite that place, look up, combine or keep, and those of StableHLO:
against LiteRT, or NumPy where that has no kernel.
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeAlias

import numpy as np
import pytest
from tflite_models import Array, Op, Part, Spec, litert, litert_runs, model, tflite

import ekiden
from ekiden.frontend.tflite.importer import import_tflite
from ekiden.frontend.tflite.registry import CONVERTER_TABLE, REFUSAL_REASONS
from ekiden.runtime.errors import EkidenError, ImportModelError, UnsupportedError

RNG = np.random.default_rng(11)
Case: TypeAlias = tuple[str, list[Array], list[Spec], Any, tuple[int, ...]]


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: Any, dtype: str = "int32") -> Array:  # noqa: ANN401
    return np.array(values, dtype)


def scalar(value: float, dtype: str = "int32") -> Array:
    return np.array(value, dtype)


def built(
    code: str, args: list[Array], outs: list[Spec], table: Any = None,  # noqa: ANN401
    constant: tuple[int, ...] = (), more: tuple[Part, ...] = (),
) -> tuple[bytes, list[Array]]:  # fmt: skip
    """A model of one operator, whose inputs are parameters but for those at `constant`."""
    specs = [
        Spec(data=a) if i in constant else Spec(a.shape, str(a.dtype)) for i, a in enumerate(args)
    ]
    free = [i for i in range(len(args)) if i not in constant]
    results = list(range(len(args), len(args) + len(outs)))
    ops = [Op(code, range(len(args)), results, table)]
    return model([*specs, *outs], ops, free, results, more=more), [args[i] for i in free]


def run(data: bytes, *inputs: Array) -> list[Array]:
    made = ekiden.compile(data)(*inputs)
    return [r.numpy() for r in (made if isinstance(made, (tuple, list)) else [made])]


def agree(actual: list[Array], wanted: list[Array]) -> None:
    assert len(actual) == len(wanted)
    for have, want in zip(actual, wanted, strict=True):
        assert have.dtype == want.dtype and have.shape == want.shape
        exact = have.dtype.kind != "f"
        np.testing.assert_allclose(have, want, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


def check(*case: Any, **more: Any) -> None:  # noqa: ANN401
    data, inputs = built(*case, **more)
    agree(run(data, *inputs), litert(data, *inputs))


BOXES = np.array(
    [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1]],
    np.float32,
)
SCORES = np.array([0.9, 0.75, 0.6, 0.95, 0.5], np.float32)
LIMITS = [scalar(4), scalar(0.5, "float32"), scalar(0.55, "float32")]
CASES: dict[str, Case] = {
    "one hot": ("ONE_HOT", [ints(2, 0, 7), scalar(4), scalar(5.0, "float32"),
                scalar(-1.0, "float32")], [Spec((3, 4))], ("OneHotOptions", {"Axis": -1}), (1,)),
    "one hot in front": ("ONE_HOT", [ints([2, 0], [1, 3]), scalar(4), scalar(5), scalar(1)],
                         [Spec((4, 2, 2), "int32")], ("OneHotOptions", {"Axis": 0}), (1,)),
    "where": ("WHERE", [ints([1, 0, 2], [0, 0, 3])], [Spec((-1, 2), "int64")], None, ()),
    "where of truth": ("WHERE", [np.array([True, False, True])], [Spec((-1, 1), "int64")], None,
                       ()),
    "unique": ("UNIQUE", [ints(3, 1, 3, 2, 1)], [Spec((-1,), "int32"), Spec((5,), "int64")],
               ("UniqueOptions", {"IdxOutType": 4}), ()),
    "scatter": ("SCATTER_ND", [ints([1], [3], [1]), floats(3, 2), ints(4, 2)], [Spec((4, 2))],
                None, (2,)),
    "scatter of elements": ("SCATTER_ND", [ints([0, 1], [2, 2]), ints(7, 8), ints(3, 3)],
                            [Spec((3, 3), "int32")], None, (2,)),
    "reverse sequence": ("REVERSE_SEQUENCE", [floats(2, 4, 3), ints(3, 2)], [Spec((2, 4, 3))],
                         ("ReverseSequenceOptions", {"SeqDim": 1, "BatchDim": 0}), ()),
    "diagonals": ("MATRIX_DIAG", [floats(2, 3)], [Spec((2, 3, 3))], ("MatrixDiagOptions", {}), ()),
    "other diagonals": ("MATRIX_SET_DIAG", [floats(2, 3, 4), floats(2, 3)], [Spec((2, 3, 4))],
                        ("MatrixSetDiagOptions", {}), ()),
    "update of a slice": ("DYNAMIC_UPDATE_SLICE", [floats(4, 5), floats(2, 2), ints(1, 9)],
                          [Spec((4, 5))], ("DynamicUpdateSliceOptions", {}), ()),
    "shapes broadcast": ("BROADCAST_ARGS", [ints(2, 1, 4), ints(3, 1)], [Spec((3,), "int32")],
                         None, ()),
    "zeros": ("ZEROS_LIKE", [floats(2, 3)], [Spec((2, 3))], ("ZerosLikeOptions", {}), ()),
    "bits": ("BITCAST", [floats(3)], [Spec((3,), "int32")], ("BitcastOptions", {}), ()),
    "bits of bytes": ("BITCAST", [floats(3)], [Spec((3, 4), "uint8")], ("BitcastOptions", {}), ()),
    "bytes together": ("BITCAST", [ints([1, 2], [3, 200], dtype="uint8")], [Spec((2,), "int16")],
                       ("BitcastOptions", {}), ()),
    "dilate": ("DILATE", [floats(2, 3), ints(2, 3), scalar(-1.0, "float32")], [Spec((3, 7))],
               ("DilateOptions", {}), (1, 2)),
    "buckets": ("BUCKETIZE", [floats(2, 5)], [Spec((2, 5), "int32")],
                ("BucketizeOptions", {"Boundaries": [-0.5, 0.0, 1.0]}), ()),
    "angles": ("ATAN2", [floats(2, 5), floats(2, 5)], [Spec((2, 5))], ("ATan2Options", {}), ()),
    "shift": ("RIGHT_SHIFT", [ints(-8, 9, 1 << 30), ints(1, -2, 40)], [Spec((3,), "int32")],
              ("RightShiftOptions", {}), ()),
    "sparse": ("SPARSE_TO_DENSE", [ints([0, 1], [2, 2]), ints(3, 3), floats(2),
               scalar(9.0, "float32")], [Spec((3, 3))], ("SparseToDenseOptions", {}), (1,)),
    "segments added": ("UNSORTED_SEGMENT_SUM", [floats(4, 2), ints(2, 0, 2, -1), scalar(4)],
                       [Spec((4, 2))], ("UnsortedSegmentSumOptions", {}), (2,)),
    "segments multiplied": ("UNSORTED_SEGMENT_PROD", [floats(4), ints(2, 0, 2, 0), scalar(4)],
                            [Spec((4,))], ("UnsortedSegmentProdOptions", {}), (2,)),
    "segments' most": ("UNSORTED_SEGMENT_MAX", [ints(3, 4, 5, 6), ints(2, 0, 2, 0), scalar(4)],
                       [Spec((4,), "int32")], ("UnsortedSegmentMaxOptions", {}), (2,)),
    "segments' least": ("UNSORTED_SEGMENT_MIN", [floats(4, 3), ints(2, 0, 2, 0), scalar(3)],
                        [Spec((3, 3))], ("UnsortedSegmentMinOptions", {}), (2,)),
    "embedding": ("EMBEDDING_LOOKUP", [ints(2, 0, 2), floats(3, 4)], [Spec((3, 4))], None, ()),
    "table": ("HASHTABLE_LOOKUP", [ints(5, 9, 6, 1), ints(1, 3, 5, 9), floats(4, 2)],
              [Spec((4, 2)), Spec((4,), "uint8")], None, ()),
    **{
        f"sparse embedding {kind}": (
            "EMBEDDING_LOOKUP_SPARSE",
            [ints(1, 3, 0), ints([0, 0], [2, 0], [2, 1]), ints(3, 2), floats(3) ** 2, floats(4, 3)],
            [Spec((3, 3))], ("EmbeddingLookupSparseOptions", {"Combiner": kind}), (2,))
        for kind in range(3)
    },
    "boxes": ("NON_MAX_SUPPRESSION_V4", [BOXES, SCORES, *LIMITS],
              [Spec((4,), "int32"), Spec((), "int32")], ("NonMaxSuppressionV4Options", {}), (2,)),
    "boxes with scores": ("NON_MAX_SUPPRESSION_V5", [BOXES, SCORES, *LIMITS, scalar(0, "float32")],
                          [Spec((4,), "int32"), Spec((4,)), Spec((), "int32")],
                          ("NonMaxSuppressionV5Options", {}), (2, 5)),
    "pool by squares": ("L2_POOL_2D", [floats(1, 7, 6, 3)], [Spec((1, 4, 3, 3))], ("Pool2DOptions",
                        {"StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2}), ()),
    "deep convolution": ("CONV_3D", [floats(1, 5, 6, 4, 2), floats(2, 3, 3, 2, 3), floats(3)],
                         [Spec((1, 3, 3, 4, 3))], ("Conv3DOptions", {"StrideD": 2, "StrideH": 2,
                         "StrideW": 1, "FusedActivationFunction": 1}), (1, 2)),
    "deep convolution back": ("CONV_3D_TRANSPOSE", [ints(1, 6, 8, 5, 2), floats(2, 3, 3, 2, 3),
                              floats(1, 3, 4, 5, 3), floats(2)], [Spec((1, 6, 8, 5, 2))],
                              ("Conv3DOptions", {"StrideD": 2, "StrideH": 2, "StrideW": 1}),
                              (0, 1, 3)),
    **{
        f"windows {kind}": ("REDUCE_WINDOW", [floats(5, 6), scalar(0.5, "float32"),
                            *(ints(*e, dtype="int64") for e in ((2, 3), (1, 2), (2, 1)))],
                            [Spec((3, 2))],
                            ("ReduceWindowOptions", {"ReduceFunction": kind}), (2, 3, 4))
        for kind in range(1, 5)
    },
    "pad of StableHLO": ("STABLEHLO_PAD", [floats(3, 4), scalar(2.0, "float32")], [Spec((6, 5))],
                         ("StablehloPadOptions", {"EdgePaddingLow": [1, -1],
                          "EdgePaddingHigh": [0, 2], "InteriorPadding": [1, 0]}), ()),
    "gather of StableHLO": ("STABLEHLO_GATHER", [floats(4, 5), ints([1], [9])], [Spec((2, 2, 5))],
                            ("StablehloGatherOptions", {"OffsetDims": [1, 2], "SliceSizes": [2, 5],
                             "CollapsedSliceDims": [], "StartIndexMap": [0],
                                                        "IndexVectorDim": 1}), ()),
    **{
        f"{word} of StableHLO": (f"STABLEHLO_{word}", [floats(2, 3), floats(2, 3)], [Spec((2, 3))],
                                 None, ())
        for word in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_single_operator_models_match_litert(name: str) -> None:
    check(*CASES[name])


def two(code: str, dtype: str = "float32") -> Part:
    specs = [Spec((), dtype) for _ in range(3)]
    return Part(specs, [Op(code, [0, 1], [2])], [0, 1], [2])


def test_stablehlo_reduce_window_uses_body_subgraph() -> None:
    table = ("StablehloReduceWindowOptions", {
        "WindowDimensions": [2, 2], "WindowStrides": [1, 2], "BaseDilations": [1, 2],
        "WindowDilations": [2, 1], "Padding": [1, 0, 0, 1], "BodySubgraphIndex": 1,
    })  # fmt: skip
    args = [floats(3, 4), scalar(0.0, "float32")]
    check("STABLEHLO_REDUCE_WINDOW", args, [Spec((2, 4))], table, (1,),
          more=(two("STABLEHLO_ADD"),))  # fmt: skip


def test_stablehlo_scatter_uses_body_subgraph() -> None:
    table = ("StablehloScatterOptions", {
        "UpdateWindowDims": [1], "InsertedWindowDims": [0], "ScatterDimsToOperandDims": [0],
        "IndexVectorDim": 1, "UpdateComputationSubgraphIndex": 1,
    })  # fmt: skip
    args = [floats(4, 3), ints([2], [0], [2]), floats(3, 3)]
    check("STABLEHLO_SCATTER", args, [Spec((4, 3))], table, (), more=(two("STABLEHLO_ADD"),))


def test_composite_runs_its_decomposition() -> None:
    table = ("StableHLOCompositeOptions", {
        "Name": "ours", "DecompositionSubgraphIndex": 1, "CompositeAttributes": [0],
    })  # fmt: skip
    part = Part([Spec((2, 3)), Spec((2, 3))], [Op("EXP", [0], [1])], [0], [1])
    check("STABLEHLO_COMPOSITE", [floats(2, 3)], [Spec((2, 3))], table, (), more=(part,))


X, Y = floats(2, 3), floats(2, 3)
WHOLE = ints([-7, 5, 3], [2, -1, 40])
BARE: dict[str, tuple[str, list[Array], Array, Any]] = {
    "cube roots": ("CBRT", [X], np.cbrt(X), None),
    "bounds": ("CLAMP", [np.float32(-0.5), X, np.float32(0.5)], np.clip(X, -0.5, 0.5), None),
    "comparison": ("COMPARE", [X, Y], X >= Y,
                   ("StablehloCompareOptions", {"ComparisonDirection": 2})),
    "quotients": ("DIVIDE", [WHOLE, np.full((2, 3), 2, np.int32)],
                  np.trunc(WHOLE / 2).astype(np.int32), None),
    "rests": ("REMAINDER", [WHOLE, np.full((2, 3), 4, np.int32)], np.fmod(WHOLE, 4), None),
    "quotients by 0": ("DIVIDE", [WHOLE, WHOLE * 0], WHOLE * 0 - 1, None),
    "rests by 0": ("REMAINDER", [WHOLE, WHOLE * 0], WHOLE, None),
    "rests by infinity": ("REMAINDER", [X, X * np.inf], X, None),
    "powers": ("POWER", [WHOLE, np.full((2, 3), 3, np.int32)], WHOLE**3, None),
    "conversion": ("CONVERT", [np.float32([-1e20, -1.5, np.nan, 1e20])],
                   np.int32([-(2**31), -1, 0, 2**31 - 1]), None),
    "shifts": ("SHIFT_LEFT", [WHOLE, np.full((2, 3), 33, np.int32)], WHOLE * 0, None),
    "bits": ("AND", [WHOLE, WHOLE[::-1].copy()], WHOLE & WHOLE[::-1], None),
    "choice": ("SELECT", [X > 0, X, Y], np.where(X > 0, X, Y), None),
    "broadcast": ("BROADCAST_IN_DIM", [X], np.broadcast_to(X.T[:, None], (3, 4, 2)),
                  ("StablehloBroadcastInDimOptions", {"BroadcastDimensions": [2, 0]})),
    "join": ("CONCATENATE", [X, Y], np.concatenate([X, Y], 1),
             ("StablehloConcatenateOptions", {"Dimension": 1})),
    "cut": ("SLICE", [X], X[1:, ::2], ("StablehloSliceOptions", {"StartIndices": [1, 0],
            "LimitIndices": [2, 3], "Strides": [1, 2]})),
    "turn": ("TRANSPOSE", [X], X.T, ("StablehloTransposeOptions", {"Permutation": [1, 0]})),
    "shape": ("RESHAPE", [X], X.reshape(3, 2), None),
    "window": ("DYNAMIC_SLICE", [X, np.int32(5), np.int32(1)], X[1:, 1:],
               ("StablehloDynamicSliceOptions", {"SliceSizes": [1, 2]})),
    "product": ("DOT_GENERAL", [floats(2, 3, 4) * 0 + 1, floats(2, 4, 5) * 0 + 2],
                np.full((2, 3, 5), 8, np.float32),
                ("StablehloDotGeneralOptions", {"LhsBatchingDimensions": [0],
                 "RhsBatchingDimensions": [0], "LhsContractingDimensions": [2],
                                                "RhsContractingDimensions": [1]})),
}  # fmt: skip


@pytest.mark.parametrize("name", BARE)
def test_stablehlo_without_kernels(name: str) -> None:
    word, args, expected, table = BARE[name]
    args = [np.asarray(a) for a in args]
    out = Spec(expected.shape, str(expected.dtype))
    data, inputs = built(f"STABLEHLO_{word}", args, [out], table)
    agree(run(data, *inputs), [np.ascontiguousarray(expected)])


def test_reductions_and_orders_of_stablehlo() -> None:
    table = ("StablehloReduceOptions", {"Dimensions": [1], "BodySubgraphIndex": 1})
    args = [X, scalar(1.0, "float32")]
    data, _ = built("STABLEHLO_REDUCE", args, [Spec((2,))], table, more=(two("MAXIMUM"),))
    agree(run(data, *args), [np.maximum(X.max(1), 1)])
    order = Part([Spec(()), Spec(()), Spec((), "bool")], [Op("GREATER", [0, 1], [2])], [0, 1], [2])
    table = ("StablehloSortOptions", {"Dimension": 1, "ComparatorSubgraphIndex": 1})
    data, _ = built("STABLEHLO_SORT", [X], [Spec((2, 3))], table, more=(order,))
    agree(run(data, X), [-np.sort(-X, 1)])


def test_sums_of_segments_in_order() -> None:
    data, inputs = built("SEGMENT_SUM", [X, ints(0, 2)], [Spec((-1, 3))])
    agree(run(data, *inputs), [np.stack([X[0], X[0] * 0, X[1]])])


@pytest.mark.parametrize(
    ("code", "args", "count"),
    [("RANDOM_UNIFORM", [ints(40, 50)], 2000), ("RANDOM_STANDARD_NORMAL", [ints(40, 50)], 2000)],
)
def test_random_numbers_are_the_same_each_run(code: str, args: list[Array], count: int) -> None:
    table = ("RandomOptions", {"Seed": 3, "Seed2": 4})
    data, inputs = built(code, args, [Spec((40, 50))], table, (0,))
    (first,), (again,) = run(data, *inputs), run(data, *inputs)
    np.testing.assert_array_equal(first, again)
    mean, spread = (0.5, 12**-0.5) if code == "RANDOM_UNIFORM" else (0, 1)
    assert abs(first.mean() - mean) < 0.1 and abs(first.std() - spread) < 0.1


def test_multinomial_follows_its_weights() -> None:
    logits = np.log(np.array([[0.2, 0.8]], np.float32))
    data, inputs = built("MULTINOMIAL", [logits, scalar(2000)], [Spec((1, 2000), "int32")],
                         ("RandomOptions", {"Seed": 1}), (1,))  # fmt: skip
    (result,) = run(data, *inputs)
    assert set(np.unique(result)) == {0, 1} and abs(result.mean() - 0.8) < 0.05


# Layers that keep a state.

UNITS, INPUTS, BATCH, STEPS = 4, 3, 2, 5


def layered(
    code: str, args: dict[int, Array], states: dict[int, tuple[int, ...]], count: int,
    table: Any, outs: list[Spec], shape: tuple[int, ...],  # noqa: ANN401
) -> bytes:  # fmt: skip
    """A model of a layer with `count` inputs, of which input 0 is the parameter."""
    specs = [Spec(shape)]
    places = [0] + [-1] * (count - 1)
    for at, array in args.items():
        places[at] = len(specs)
        specs.append(Spec(data=array))
    for at, extents in states.items():
        places[at] = len(specs)
        specs.append(Spec(extents, is_variable=True))
    results = list(range(len(specs), len(specs) + len(outs)))
    return model([*specs, *outs], [Op(code, places, results, table)], [0], results)


def same_each_run(data: bytes, shape: tuple[int, ...]) -> None:
    """Two runs, the second of which begins with what the first one kept."""
    exe, steps = ekiden.compile(data), [[floats(*shape)] for _ in range(2)]
    for inputs, expected in zip(steps, litert_runs(data, steps), strict=True):
        result = exe(*inputs)
        agree(
            [r.numpy() for r in (result if isinstance(result, (tuple, list)) else [result])],
            expected,
        )


def test_single_step_rnn_matches_reference() -> None:
    args = {1: floats(UNITS, INPUTS), 2: floats(UNITS, UNITS), 3: floats(UNITS)}
    table = ("RNNOptions", {"FusedActivationFunction": 4})
    data = layered("RNN", args, {4: (BATCH, UNITS)}, 5, table, [Spec((BATCH, UNITS))],
                   (BATCH, INPUTS))  # fmt: skip
    same_each_run(data, (BATCH, INPUTS))


@pytest.mark.parametrize("is_first", [False, True])
def test_sequence_rnn_matches_reference(is_first: bool) -> None:
    args = {1: floats(UNITS, INPUTS), 2: floats(UNITS, UNITS), 3: floats(UNITS)}
    table = ("SequenceRNNOptions", {"FusedActivationFunction": 1, "TimeMajor": is_first})
    lead = (STEPS, BATCH) if is_first else (BATCH, STEPS)
    data = layered("UNIDIRECTIONAL_SEQUENCE_RNN", args, {4: (BATCH, UNITS)}, 5, table,
                   [Spec((*lead, UNITS))], (*lead, INPUTS))  # fmt: skip
    same_each_run(data, (*lead, INPUTS))


@pytest.mark.parametrize("merged", [False, True])
def test_rnn_of_both_directions(merged: bool) -> None:
    args = {}
    for at in (1, 5):
        args |= {at: floats(UNITS, INPUTS), at + 1: floats(UNITS, UNITS), at + 2: floats(UNITS)}
    table = (
        "BidirectionalSequenceRNNOptions",
        {"FusedActivationFunction": 4, "MergeOutputs": merged},
    )
    outs = [Spec((BATCH, STEPS, 2 * UNITS))] if merged else [Spec((BATCH, STEPS, UNITS))] * 2
    data = layered("BIDIRECTIONAL_SEQUENCE_RNN", args,
                   {4: (BATCH, UNITS), 8: (BATCH, UNITS)}, 12, table, outs,
                   (BATCH, STEPS, INPUTS))  # fmt: skip
    same_each_run(data, (BATCH, STEPS, INPUTS))


def cell(
    base: int, recurrent: int, peep: int, bias: int, outputs: int, **has: bool
) -> dict[int, Array]:
    """The weights of a cell at their places."""
    gates = range(1 if has.get("cifg") else 0, 4)
    args = {base + g: floats(UNITS, INPUTS) for g in gates}
    args |= {recurrent + g: floats(UNITS, outputs) for g in gates}
    args |= {bias + g: floats(UNITS) for g in gates}
    if has.get("peepholes"):
        args |= {peep + p: floats(UNITS) for p in range(1 if has.get("cifg") else 0, 3)}
    return args


@pytest.mark.parametrize(
    ("has", "clip"),
    [({}, 0.0), ({"peepholes": True}, 0.4), ({"cifg": True}, 0.0),
     ({"cifg": True, "peepholes": True, "projection": True}, 0.0),
     ({"norms": True, "projection": True}, 0.0)],
)  # fmt: skip
def test_sequence_lstm_matches_reference(has: dict[str, bool], clip: float) -> None:
    outputs = 3 if has.get("projection") else UNITS
    args = cell(1, 5, 9, 12, outputs, **has)
    if has.get("projection"):
        args |= {16: floats(outputs, UNITS), 17: floats(outputs)}
    if has.get("norms"):
        args |= {20 + g: floats(UNITS) for g in range(4)}
    table = ("UnidirectionalSequenceLSTMOptions", {
        "FusedActivationFunction": 4, "CellClip": clip, "ProjClip": clip,
    })  # fmt: skip
    states = {18: (BATCH, outputs), 19: (BATCH, UNITS)}
    data = layered("UNIDIRECTIONAL_SEQUENCE_LSTM", args, states, 24, table,
                   [Spec((BATCH, STEPS, outputs))], (BATCH, STEPS, INPUTS))  # fmt: skip
    same_each_run(data, (BATCH, STEPS, INPUTS))


@pytest.mark.parametrize(("clip", "is_operator"), [(0.0, True), (0.4, False)])
def test_float_sequence_lstm_is_one_operator(clip: float, is_operator: bool) -> None:
    """A bounded cell has a loop."""
    table = ("UnidirectionalSequenceLSTMOptions", {"FusedActivationFunction": 4, "CellClip": clip})
    states = {18: (BATCH, UNITS), 19: (BATCH, UNITS)}
    data = layered("UNIDIRECTIONAL_SEQUENCE_LSTM", cell(1, 5, 9, 12, UNITS), states, 24, table,
                   [Spec((BATCH, STEPS, UNITS))], (BATCH, STEPS, INPUTS))  # fmt: skip
    assert ("recurrent(" in import_tflite(data).module.astext()) == is_operator


def test_single_step_lstm_matches_reference() -> None:
    table = ("LSTMOptions", {"FusedActivationFunction": 4, "KernelType": 0})
    states = {18: (BATCH, UNITS), 19: (BATCH, UNITS)}
    data = layered("LSTM", cell(1, 5, 9, 12, UNITS), states, 24, table, [Spec((BATCH, UNITS))],
                   (BATCH, INPUTS))  # fmt: skip
    same_each_run(data, (BATCH, INPUTS))


def test_lstm_that_gives_its_state() -> None:
    args = [floats(BATCH, INPUTS), floats(BATCH, UNITS), floats(4 * UNITS, INPUTS + UNITS),
            floats(4 * UNITS), floats(BATCH, UNITS)]  # fmt: skip
    outs = [Spec((BATCH, UNITS)), Spec((BATCH, UNITS)), Spec((BATCH, INPUTS + UNITS)),
            Spec((BATCH, 4 * UNITS))]  # fmt: skip
    table = ("LSTMOptions", {"FusedActivationFunction": 4, "KernelType": 1})
    data, inputs = built("LSTM", args, outs, table, (2, 3))
    agree(run(data, *inputs)[:2], litert(data, *inputs)[:2])


def test_lstm_of_both_directions() -> None:
    args = cell(1, 5, 9, 12, UNITS) | cell(18, 22, 26, 29, UNITS)
    states = dict.fromkeys(range(35, 39), (BATCH, UNITS))
    table = ("BidirectionalSequenceLSTMOptions", {
        "FusedActivationFunction": 4, "MergeOutputs": True, "TimeMajor": True,
    })  # fmt: skip
    data = layered("BIDIRECTIONAL_SEQUENCE_LSTM", args, states, 48, table,
                   [Spec((STEPS, BATCH, 2 * UNITS))], (STEPS, BATCH, INPUTS))  # fmt: skip
    same_each_run(data, (STEPS, BATCH, INPUTS))


def test_svdf_matches_reference() -> None:
    args = {1: floats(4, INPUTS), 2: floats(4, 6), 3: floats(2)}
    table = ("SVDFOptions", {"Rank": 2, "FusedActivationFunction": 1})
    data = layered("SVDF", args, {4: (BATCH, 4 * 6)}, 5, table, [Spec((BATCH, 2))],
                   (BATCH, INPUTS))  # fmt: skip
    same_each_run(data, (BATCH, INPUTS))


# Stored numbers.

BYTES_ = RNG.integers(-128, 128, (2, 4, 6, 3)).astype(np.int8)
STORED: dict[str, Case] = {
    "most": ("REDUCE_MAX", [BYTES_, ints(1, 2)], [Spec((2, 3), "int8")],
             ("ReducerOptions", {}), (1,)),
    "least": ("REDUCE_MIN", [BYTES_, ints(3)], [Spec((2, 4, 6), "int8")],
              ("ReducerOptions", {}), (1,)),
    "place of the most": ("ARG_MAX", [BYTES_, ints(3)], [Spec((2, 4, 6), "int32")],
                          ("ArgMaxOptions", {"OutputType": 2}), (1,)),
    "largest": ("TOPK_V2", [BYTES_[0, 0], scalar(2)], [Spec((6, 2), "int8"),
                Spec((6, 2), "int32")], ("TopKV2Options", {}), (1,)),
    "choice": ("SELECT_V2", [BYTES_ > 9, BYTES_, BYTES_[::-1].copy()],
               [Spec(BYTES_.shape, "int8")], ("SelectV2Options", {}), ()),
    "batches": ("SPACE_TO_BATCH_ND", [BYTES_, ints(2, 2), ints([0, 0], [1, 1])],
                [Spec((8, 2, 4, 3), "int8")], ("SpaceToBatchNDOptions", {}), (1, 2)),
    "one hot": ("ONE_HOT", [ints(2, 0, 7), scalar(4), scalar(50, "int8"), scalar(-7, "int8")],
                [Spec((3, 4), "int8")], ("OneHotOptions", {"Axis": -1}), (1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_quantized_data_movement_keeps_levels(name: str) -> None:
    code, args, outs, table, constant = STORED[name]
    steps: dict[str, Any] = {"scale": [0.25], "point": [-7]}
    specs = [
        Spec(data=a) if i in constant
        else Spec(a.shape, str(a.dtype), **(steps if a.dtype == np.int8 else {}))
        for i, a in enumerate(args)
    ]  # fmt: skip
    outs = [Spec(o.shape, o.dtype, **(steps if o.dtype == "int8" else {})) for o in outs]
    free = [i for i in range(len(args)) if i not in constant]
    results = list(range(len(args), len(args) + len(outs)))
    data = model([*specs, *outs], [Op(code, range(len(args)), results, table)], free, results)
    inputs = [args[i] for i in free]
    agree(run(data, *inputs), litert(data, *inputs))


def test_shape_that_is_data_may_leave_one_extent_open() -> None:
    ops = [Op("RESHAPE", [0, 1], [2], ("ReshapeOptions", {}))]
    data = model([Spec((2, 6)), Spec((2,), "int32"), Spec((-1, -1))], ops, [0, 1], [2])
    exe, x = ekiden.compile(data), floats(2, 6)
    for shape in ((3, 4), (-1, 2), (4, -1)):
        result = exe(x, np.array(shape, np.int32)).numpy()
        np.testing.assert_array_equal(result, x.reshape(shape))
    with pytest.raises(EkidenError, match="reshape"):
        exe(x, np.array([-1, 5], np.int32))


def test_products_of_bytes_that_are_wide() -> None:
    a, b = (RNG.integers(-128, 128, s).astype(np.int8) for s in ((2, 3, 40), (2, 40, 5)))
    check("BATCH_MATMUL", [a, b], [Spec((2, 3, 5), "int32")], ("BatchMatMulOptions", {}), ())


# The whole schema.


def test_every_operator_of_the_schema_is_supported_or_refused_with_a_reason() -> None:
    names = {k for k, v in vars(tflite.BuiltinOperator).items() if isinstance(v, int)}
    assert names - {"CUSTOM"} == (CONVERTER_TABLE.keys() | REFUSAL_REASONS.keys()) & names
    assert not CONVERTER_TABLE.keys() & REFUSAL_REASONS.keys()


def test_refused_operator_says_why() -> None:
    data, _ = built("SKIP_GRAM", [ints(1)], [Spec((1,), "int32")])
    with pytest.raises(UnsupportedError, match="SKIP_GRAM.*it takes strings"):
        ekiden.compile(data)


def test_rows_out_of_range_are_refused_at_run_time() -> None:
    data, _ = built("UNSORTED_SEGMENT_SUM", [floats(2), ints(0, 0), scalar(2)], [Spec((2,))],
                    ("UnsortedSegmentSumOptions", {}), (2,))  # fmt: skip
    with pytest.raises(EkidenError, match="out of range"):
        ekiden.compile(data)(floats(2), ints(0, 7))


def test_broken_files_are_errors_of_ours() -> None:
    """Bytes of files changed, or files cut short: a model all the same, or one error."""
    rng = np.random.default_rng(5)
    files = [built(*case)[0] for case in CASES.values()]
    for _ in range(1500):
        data = bytearray(files[rng.integers(len(files))])
        if rng.random() < 0.1:
            data = data[: rng.integers(len(data))]
        else:
            for at in rng.integers(8, len(data), rng.integers(1, 4)):
                data[at] = rng.choice([0, 1, 2, 3, 5, 127, 128, 255, rng.integers(256)])
        with contextlib.suppress(EkidenError):
            import_tflite(bytes(data))


def test_mismatched_operator_options_are_refused() -> None:
    data, _ = built("REDUCE_WINDOW", CASES["windows 1"][1], [Spec((3, 2))],
                    ("Conv3DOptions", {}), (2, 3, 4))  # fmt: skip
    with pytest.raises(ImportModelError, match="REDUCE_WINDOW #0 't5': its tensors or options"):
        ekiden.compile(data)


@pytest.mark.parametrize("begin", [(1, 2), (0, 3)])
@pytest.mark.parametrize("size", [(2, -1), (0, 2), (-1, -1)])
def test_slice_of_runtime_begin_and_size(begin: tuple[int, int], size: tuple[int, int]) -> None:
    x = floats(4, 5)
    data, inputs = built("SLICE", [x, ints(*begin), ints(*size)], [Spec((-1, -1))])
    end = [d if s == -1 else b + s for d, b, s in zip(x.shape, begin, size, strict=True)]
    agree(run(data, *inputs), [x[begin[0] : end[0], begin[1] : end[1]]])
