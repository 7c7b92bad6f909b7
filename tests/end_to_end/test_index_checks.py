"""Indices out of range are errors that name node, value and bound: the same text however a program
runs; nothing is written before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ekiden
from ekiden import relay, runtime, te
from ekiden.compiler.build import import_model
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.runtime.errors import IndexRangeError
from ekiden.runtime.vm import VirtualMachine
from long_runs import share

pytestmark = pytest.mark.quick
KINDS = ("debug", "vm", "aot", "graph", "async", "steps")
Run = Callable[..., Array]


def started(module: ekiden.IRModule, kind: str) -> Run:
    """A module as a function of arrays, run in one of the ways that there are."""
    if kind == "steps":
        machine = VirtualMachine(ekiden.compile(module))

        def step(*args: Array) -> Array:
            machine.start("main", *map(runtime.tensor, args))
            assert machine.resume()
            return np.asarray(machine.stepper.result)

        return step
    if kind == "async":
        exe = ekiden.compile(module, executor="async")
        return lambda *args: np.asarray(exe(*args))
    result = relay.create_executor(kind, module, target="llvm").evaluate()
    return lambda *args: np.asarray(result(*args).numpy())  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Case:
    """A node, arrays that it takes, and what is wrong with others: input -> (array, the error)."""

    node: onnx.NodeProto
    arrays: Sequence[Array]
    wrong: Sequence[tuple[int, Array, str]]
    domain: str = ""


def _i(*values: object) -> Array:
    return np.array(values[0] if len(values) == 1 else values, np.int64)


def _node(kind: str, count: int, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(kind, [f"x{n}" for n in range(count)], ["y"], name="here", **attrs)


TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)
RANGE = "is out of range for axis {} of size {} ([{}, {}] are valid)"
CASES: Mapping[str, Case] = {
    "Gather": Case(
        _node("Gather", 2),
        [TABLE, _i([[1, -10], [9, 0]])],
        [
            (1, _i([[1, 2], [5000, 7]]), "index 5000 at position (1, 0) is out of range for axis 0"
             " of size 10 ([-10, 9] are valid)"),
            (1, _i([[1, 2], [3, -11]]), "index -11 at position (1, 1) is out of range for axis 0"
             " of size 10 ([-10, 9] are valid)"),
        ],
    ),
    "Gather of one": Case(
        _node("Gather", 2, axis=1),
        [TABLE, _i(-4)],
        [(1, _i(4), "index 4 is out of range for axis 1 of size 4 ([-4, 3] are valid)")],
    ),
    "Gather of many": Case(
        _node("Gather", 2),
        [TABLE, np.arange(1000) % 20 - 10],
        [(1, np.arange(1000) - 990, "index -990 at position 0 is out of range for axis 0 of size"
          " 10 ([-10, 9] are valid)")],
    ),
    "GatherElements": Case(
        _node("GatherElements", 2, axis=1),
        [TABLE, np.tile(_i([0, -4, 3]), (10, 1))],
        [(1, np.tile(_i([0, 1, 4]), (10, 1)), "index 4 at position (0, 2) is out of range for axis"
          " 1 of size 4 ([-4, 3] are valid)")],
    ),
    "GatherND": Case(
        _node("GatherND", 2),
        [TABLE, _i([[1, 1], [-1, -4]])],
        [
            (1, _i([[1, 1], [10, 0]]), "index 10 at position 1 is out of range for axis 0 of size"
             " 10 ([-10, 9] are valid)"),
            (1, _i([[1, -5], [1, 0]]), "index -5 at position 0 is out of range for axis 1 of size"
             " 4 ([-4, 3] are valid)"),
        ],
    ),
    "ScatterElements": Case(
        _node("ScatterElements", 3),
        [TABLE, _i([[1, -1, 0, 0]]), np.ones((1, 4), np.float32)],
        [(1, _i([[1, 2, 10, 0]]), "index 10 at position (0, 2) is out of range for axis 0 of size"
          " 10 ([-10, 9] are valid)")],
    ),
    "ScatterND": Case(
        _node("ScatterND", 3),
        [TABLE, _i([[1], [-1]]), np.ones((2, 4), np.float32)],
        [(1, _i([[1], [-11]]), "index -11 at position 1 is out of range for axis 0 of size 10"
          " ([-10, 9] are valid)")],
    ),
    "ReverseSequence": Case(
        _node("ReverseSequence", 2, time_axis=0, batch_axis=1),
        [TABLE, _i([1, 10, 0, 5])],
        [(1, _i([1, 10, 11, 5]), "length 11 at position 2 is out of range for axis 0 of size 10"
          " ([0, 10] are valid)")],
    ),
    "Compress": Case(
        _node("Compress", 2, axis=1),
        [TABLE, np.array([True, False, True, True])],
        [],
    ),
    "GatherBlockQuantized": Case(
        _node("GatherBlockQuantized", 3, block_size=16, bits=4, domain="com.microsoft"),
        [np.arange(80, dtype=np.uint8).reshape(10, 8), _i([3, 4]), np.ones((10, 1), np.float32)],
        [(1, _i([3, 10]), "index 10 at position 1 is out of range for axis 0 of size 10"
          " ([-10, 9] are valid)")],
        "com.microsoft",
    ),
}  # fmt: skip
CONSTANT = {"GatherBlockQuantized": (0, 2)}
"""Inputs that must be initializers."""


def _model(name: str, case: Case) -> onnx.ModelProto:
    """The node as a model whose inputs have named dimensions."""
    fixed = CONSTANT.get(name, ())
    inputs, initializers = [], []
    for n, array in enumerate(case.arrays):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        if n in fixed:
            initializers.append(onnx.numpy_helper.from_array(array, f"x{n}"))
            continue
        # the coordinates of GatherND and ScatterND must be known to be so many
        last = [array.shape[-1]] if array.ndim and n == 1 and name.endswith("ND") else []
        dims = [f"d{n}{axis}" for axis in range(array.ndim - len(last))] + last
        inputs.append(helper.make_tensor_value_info(f"x{n}", kind, dims))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([case.node], "g", inputs, [output], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@share(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_indices_out_of_range_are_refused(name: str, kind: str) -> None:
    case, fixed = CASES[name], CONSTANT.get(name, ())
    run = started(import_model(_model(name, case)), kind)
    inputs = [a for n, a in enumerate(case.arrays) if n not in fixed]
    before = run(*inputs)
    for position, wrong, message in case.wrong:
        arrays = [wrong if n == position else a for n, a in enumerate(case.arrays)]
        with pytest.raises(IndexRangeError) as error:
            run(*(a for n, a in enumerate(arrays) if n not in fixed))
        title = f"{case.domain}::{case.node.op_type}" if case.domain else case.node.op_type
        assert str(error.value) == f"{title} 'here': {message}"
    np.testing.assert_array_equal(run(*inputs), before)


def _embedding() -> onnx.ModelProto:
    """Words and positions looked up in one kernel."""
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["a"], name="words"),
        helper.make_node("Gather", ["places", "at"], ["b"], name='the "place"'),
        helper.make_node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["n"]) for n in ("ids", "at")]
    tables = [onnx.numpy_helper.from_array(TABLE, n) for n in ("words", "places")]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph(nodes, "g", ids, [out], tables)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", KINDS)
def test_each_node_of_a_kernel_has_its_name(kind: str) -> None:
    run = started(import_model(_embedding()), kind)
    right, wrong = _i([1, 2]), _i([1, 10])
    np.testing.assert_array_equal(run(right, right), TABLE[right] * 2)
    text = "index 10 at position 1 " + RANGE.format(0, 10, -10, 9)
    for arguments, name in (((wrong, right), "words"), ((right, wrong), 'the "place"')):
        with pytest.raises(IndexRangeError) as error:
            run(*arguments)
        assert str(error.value) == f"Gather '{name}': {text}"


def test_exported_library_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    ekiden.compile(_embedding()).export_library(path)
    main = runtime.load_module(path)["main"]
    with pytest.raises(IndexError, match=r"^Gather 'words': index -11 at position 0 is out of"):
        main(runtime.tensor(_i([-11])), runtime.tensor(_i([0])))


@pytest.mark.parametrize("kind", KINDS)
def test_relay_text_errors_name_location(kind: str) -> None:
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(5), float32], %i: Tensor[(2), int32]) {
      take(%x, %i, axis=0, mode="raise") }"""
    run = started(relay.parse(text), kind)
    with pytest.raises(IndexRangeError) as error:
        run(np.zeros(5, "float32"), np.array([4, 5], "int32"))
    message = "index 5 at position 1 " + RANGE.format(0, 5, -5, 4)
    assert str(error.value) == f"take at text:3:7: {message}"


@pytest.mark.parametrize("kind", KINDS)
def test_take_modes_are_preserved(kind: str) -> None:
    x, i = relay.var("x", shape=(5,)), relay.var("i", shape=(4,), dtype="int64")
    places = _i([-7, -1, 5, 8])
    for mode, expected in (("clip", [0, 0, 4, 4]), ("fast", [0, 0, 4, 4]), ("wrap", [3, 4, 0, 3])):
        body = op.take(x, i, axis=0, mode=mode)
        run = started(ekiden.IRModule.from_expr(relay.Function([x, i], body)), kind)
        data = np.arange(5, dtype="float32")
        np.testing.assert_array_equal(run(data, places), data[expected])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written_before_the_check(kind: str) -> None:
    """The result may take the place of the data: it is written last, and a refusal leaves all."""
    x, u = relay.var("x", shape=(64,)), relay.var("u", shape=(64,))
    i = relay.var("i", shape=(64,), dtype="int64")
    body = op.scatter_elements(op.add(x, relay.const(1.0)), i, u)
    run = started(ekiden.IRModule.from_expr(relay.Function([x, i, u], body)), kind)
    data, new = np.zeros(64, "float32"), np.full(64, 7, "float32")
    places = np.arange(64)[::-1].copy()
    places[-1] = 64
    with pytest.raises(IndexRangeError) as error:
        run(data, places, new)
    message = "index 64 at position 63 " + RANGE.format(0, 64, -64, 63)
    assert str(error.value) == f"scatter_elements: {message}"
    assert not data.any()


def test_index_that_is_wrong_at_compile_time_fails_when_it_is_used() -> None:
    table, place = relay.const(TABLE), relay.const(_i([10]))
    c = relay.var("c", shape=(), dtype="bool")
    body = relay.If(c, op.take(table, place, axis=0, mode="raise"), relay.const(TABLE[:1]))
    exe = ekiden.compile(ekiden.IRModule.from_expr(relay.Function([c], body)))
    np.testing.assert_array_equal(np.asarray(exe(np.array(False))), TABLE[:1])
    with pytest.raises(IndexRangeError, match=r"^take: index 10 at position 0 is out of range"):
        exe(np.array(True))


@pytest.mark.slow
def test_indices_longer_than_the_data_are_refused() -> None:
    def gathered(rows: object, shape: tuple[object, ...]) -> relay.Function:
        x = relay.var("x", shape=(rows, 3))
        i = relay.var("i", shape=shape, dtype="int64")
        return relay.Function([x, i], op.gather(x, 1, i))

    with pytest.raises(ekiden.runtime.errors.TypeInferenceError) as static:
        ekiden.compile(ekiden.IRModule.from_expr(gathered(2, (5, 3))))
    assert "'indices' must not be longer than 'data' along axis 0, got 5 and 2" in str(static.value)
    n, m = te.size_var("n"), te.size_var("m")
    exe = ekiden.compile(ekiden.IRModule.from_expr(gathered(n, (m, 3))))
    data = np.ones((2, 3), "float32")
    assert np.asarray(exe(data, np.zeros((2, 3), "int64"))).shape == (2, 3)
    with pytest.raises(IndexRangeError) as error:
        exe(data, np.zeros((5, 3), "int64"))
    expected = "gather: extent of 'indices' along axis 0 5 is out of range ([0, 2] are valid)"
    assert str(error.value) == expected
