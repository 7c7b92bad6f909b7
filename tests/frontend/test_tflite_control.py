"""Choices, loops, variables and detection of TensorFlow Lite against LiteRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite_models import Array, Op, Part, Spec, litert, litert_runs, model

import ekiden
from ekiden.runtime.errors import UnsupportedError
from long_runs import alike

flexbuffers: Any = pytest.importorskip(
    "flatbuffers.flexbuffers", reason="the package 'flatbuffers' is missing"
)
RNG = np.random.default_rng(3)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def run(exe: Any, *inputs: Array) -> list[Array]:  # noqa: ANN401
    result = exe(*inputs)
    return [r.numpy() for r in (result if isinstance(result, (tuple, list)) else [result])]


def unary(code: str, shape: tuple[int, ...] = (2, 3)) -> Part:
    return Part([Spec(shape), Spec(shape)], [Op(code, [0], [1])], [0], [1])


def test_if_takes_the_branch_of_the_data() -> None:
    table = ("IfOptions", {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2})
    tensors = [Spec((), "bool"), Spec((2, 3)), Spec((2, 3))]
    data = model(tensors, [Op("IF", [0, 1], [2], table)], [0, 1], [2],
                 more=[unary("EXP"), unary("NEG")])  # fmt: skip
    x, exe = floats(2, 3), ekiden.compile(data)
    for item in (True, False):
        (expected,) = litert(data, np.array(item), x)
        np.testing.assert_allclose(run(exe, np.array(item), x)[0], expected, rtol=1e-6)


def counting(limit: int) -> list[Part]:
    """While i < limit: i + 1, x + x."""
    test = Part(
        [Spec((), "int32"), Spec((3,)), Spec(data=np.array(limit, np.int32)), Spec((), "bool")],
        [Op("LESS", [0, 2], [3])], [0, 1], [3],
    )  # fmt: skip
    add = ("AddOptions", {"FusedActivationFunction": 0})
    body = Part(
        [Spec((), "int32"), Spec((3,)), Spec(data=np.array(1, np.int32)), Spec((), "int32"),
         Spec((3,))],
        [Op("ADD", [0, 2], [3], add), Op("ADD", [1, 1], [4], add)], [0, 1], [3, 4],
    )  # fmt: skip
    return [test, body]


@pytest.mark.parametrize("start", [0, 4, 9])
def test_while_matches_litert(start: int) -> None:
    table = ("WhileOptions", {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2})
    tensors = [Spec((), "int32"), Spec((3,)), Spec((), "int32"), Spec((3,))]
    data = model(tensors, [Op("WHILE", [0, 1], [2, 3], table)], [0, 1], [2, 3], more=counting(7))
    args = np.array(start, np.int32), floats(3)
    for have, want in zip(run(ekiden.compile(data), *args), litert(data, *args), strict=True):
        np.testing.assert_array_equal(have, want)


def test_two_loops_in_which_sizes_are_data() -> None:
    """Each has a kernel for sizes in the middle of it, whose name is nobody else's."""
    numbers = [Spec(data=np.array(n, np.int32)) for n in (0, 1, 4)]
    test = Part(
        [Spec((), "int32"), Spec((), "int32"), numbers[2], Spec((), "bool")],
        [Op("LESS", [0, 2], [3])], [0, 1], [3],
    )  # fmt: skip
    add = ("AddOptions", {"FusedActivationFunction": 0})
    body = Part(
        [Spec((), "int32"), Spec((), "int32"), *numbers[:2], Spec((-1,), "int32"),
         Spec(data=np.array([0], np.int32)), *(Spec((), "int32") for _ in range(3))],
        [Op("RANGE", [2, 0, 3], [4]), Op("SUM", [4, 5], [6], ("ReducerOptions", {})),
         Op("ADD", [1, 6], [7], add), Op("ADD", [0, 3], [8], add)], [0, 1], [8, 7],
    )  # fmt: skip
    table = ("WhileOptions", {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2})
    tensors = [Spec((), "int32") for _ in range(6)]
    ops = [Op("WHILE", [0, 1], [2, 3], table), Op("WHILE", [0, 3], [4, 5], table)]
    data = model(tensors, ops, [0, 1], [5], more=[test, body])
    args = np.array(1, np.int32), np.array(10, np.int32)
    assert run(ekiden.compile(data), *args)[0] == 10 + 2 * (0 + 1 + 3)


def handle(name: str) -> tuple[str, dict[str, str]]:
    return "VarHandleOptions", {"Container": "", "SharedName": name}


def accumulating(first: Array | None) -> bytes:
    """total += x, which begins as `first` where there is one; gives the total."""
    once = [Op("CALL_ONCE", [], [], ("CallOnceOptions", {"InitSubgraphIndex": 1}))]
    kept = Spec((), "resource", name="handle")
    tensors = [Spec((4,)), kept, Spec((4,)), Spec((4,))]
    ops = [
        *(once if first is not None else []),
        Op("VAR_HANDLE", [], [1], handle("total")),
        Op("READ_VARIABLE", [1], [2]),
        Op("ADD", [2, 0], [3], ("AddOptions", {"FusedActivationFunction": 0})),
        Op("ASSIGN_VARIABLE", [1, 3], []),
    ]
    start = np.zeros(4, np.float32) if first is None else first
    init = Part(
        [kept, Spec(data=start)],
        [Op("VAR_HANDLE", [], [0], handle("total")), Op("ASSIGN_VARIABLE", [0, 1], [])], [], [],
    )  # fmt: skip
    return model(tensors, ops, [0], [3], more=[init])


def test_variables_are_kept_between_runs_and_in_artifacts(tmp_path: Path) -> None:
    data = accumulating(np.array([1, 2, 3, 4], np.float32))
    steps = [floats(4) for _ in range(3)]
    exe = ekiden.compile(data)
    result = [run(exe, x)[0] for x in steps]
    for have, (want,) in zip(result, litert_runs(data, [[s] for s in steps]), strict=True):
        np.testing.assert_array_equal(have, want)
    assert list(exe.state) == ["total"]
    np.testing.assert_array_equal(exe.state["total"].numpy(), result[-1])
    exe.reset_state()
    np.testing.assert_array_equal(run(exe, steps[0])[0], result[0])
    path = tmp_path / "model.eki"
    exe.save(str(path))
    again = ekiden.load(str(path))
    np.testing.assert_array_equal(run(again, steps[0])[0], result[0])


def test_uninitialized_variable_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'total' is read before it has a value"):
        ekiden.compile(accumulating(None))


def test_variable_takes_no_value_whose_rank_depends_on_the_branch() -> None:
    kept = Spec((), "resource", name="handle")
    once = Op("CALL_ONCE", [], [], ("CallOnceOptions", {"InitSubgraphIndex": 1}))
    init = Part(
        [kept, Spec(data=np.ones(4, np.float32))],
        [Op("VAR_HANDLE", [], [0], handle("v")), Op("ASSIGN_VARIABLE", [0, 1], [])], [], [],
    )  # fmt: skip
    shape = Spec(data=np.array([1, 4], np.int32))
    other = Part([Spec((4,)), shape, Spec((1, 4))], [Op("RESHAPE", [0, 1], [2])], [0], [2])
    table = ("IfOptions", {"ThenSubgraphIndex": 2, "ElseSubgraphIndex": 3})
    tensors = [Spec((), "bool"), Spec((4,)), kept, Spec((4,)), Spec((4,)), Spec((4,))]
    chosen = [once, Op("IF", [0, 1], [3], table), Op("VAR_HANDLE", [], [2], handle("v"))]
    more = [init, unary("EXP", (4,)), other]
    assigns = [*chosen, Op("ASSIGN_VARIABLE", [2, 3], []), Op("NEG", [3], [4])]
    with pytest.raises(UnsupportedError, match="ASSIGN_VARIABLE #3: .* rank depends on data"):
        ekiden.compile(model(tensors, assigns, [0, 1], [4], more=more))
    add = Op("ADD", [3, 5], [4], ("AddOptions", {"FusedActivationFunction": 0}))
    reads = [*chosen, Op("READ_VARIABLE", [2], [5]), add]
    data, x = model(tensors, reads, [0, 1], [4], more=more), floats(4)
    exe = ekiden.compile(data)
    for item in (True, False):
        (expected,) = litert(data, np.array(item), x)
        (result,) = run(exe, np.array(item), x)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_branch_assigns_a_variable() -> None:
    kept = Spec((), "resource", name="handle")
    table = ("IfOptions", {"ThenSubgraphIndex": 2, "ElseSubgraphIndex": 3})
    once = Op("CALL_ONCE", [], [], ("CallOnceOptions", {"InitSubgraphIndex": 1}))
    init = Part(
        [kept, Spec(data=np.ones(4, np.float32))],
        [Op("VAR_HANDLE", [], [0], handle("v")), Op("ASSIGN_VARIABLE", [0, 1], [])], [], [],
    )  # fmt: skip
    yes = Part([kept, Spec((4,)), Spec((4,))],
               [Op("EXP", [1], [2]), Op("ASSIGN_VARIABLE", [0, 1], [])], [0, 1], [2])  # fmt: skip
    no = Part([kept, Spec((4,)), Spec((4,))], [Op("NEG", [1], [2])], [0, 1], [2])
    tensors = [Spec((4,)), Spec((), "bool"), kept, Spec(data=np.array(0, np.float32)),
               Spec((), "float32"), Spec((4,)), Spec((4,)),
               Spec(data=np.array([0], np.int32))]  # fmt: skip
    ops = [
        once,
        Op("VAR_HANDLE", [], [2], handle("v")),
        Op("REDUCE_MAX", [0, 7], [4], ("ReducerOptions", {"KeepDims": False})),
        Op("GREATER", [4, 3], [1]),
        Op("IF", [1, 2, 0], [5], table),
        Op("READ_VARIABLE", [2], [6]),
    ]
    data = model(tensors, ops, [0], [5, 6], more=[init, yes, no])
    steps = [-np.ones(4, np.float32), floats(4) + 9, -2 * np.ones(4, np.float32)]
    exe = ekiden.compile(data)
    for x, want in zip(steps, litert_runs(data, [[s] for s in steps]), strict=True):
        for have, item in zip(run(exe, x), want, strict=True):
            np.testing.assert_allclose(have, item, rtol=1e-6)


@alike(4)
@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize("background", [0, 1])
@pytest.mark.parametrize("boxes", [40, 6])
def test_detection_postprocess_matches_litert(regular: bool, background: int, boxes: int) -> None:
    classes, most = 3, 10
    anchors = RNG.random((boxes, 4)).astype(np.float32)
    options = flexbuffers.Dumps({
        "max_detections": most, "max_classes_per_detection": 1, "detections_per_class": 100,
        "nms_score_threshold": 0.3, "nms_iou_threshold": 0.4, "num_classes": classes,
        "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
        "use_regular_nms": regular,
    })  # fmt: skip
    tensors = [
        Spec((1, boxes, 4)), Spec((1, boxes, classes + background)), Spec(data=anchors),
        Spec((1, most, 4)), Spec((1, most)), Spec((1, most)), Spec((1,)),
    ]  # fmt: skip
    code = "CUSTOM TFLite_Detection_PostProcess"
    ops = [Op(code, [0, 1, 2], [3, 4, 5, 6], custom=bytes(options))]
    data = model(tensors, ops, [0, 1], [3, 4, 5, 6])
    args = floats(1, boxes, 4), RNG.random((1, boxes, classes + background)).astype(np.float32)
    actual = run(ekiden.compile(data), *args)
    expected = litert(data, *args)
    count = int(expected[3][0])
    np.testing.assert_array_equal(actual[3], expected[3])
    for have, want in zip(actual[:3], expected[:3], strict=True):  # LiteRT leaves the rest unset
        np.testing.assert_allclose(have[:, :count], want[:, :count], rtol=1e-5, atol=1e-6)
        assert not have[:, count:].any()
