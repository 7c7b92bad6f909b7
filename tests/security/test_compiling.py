"""The sentences of docs/security.md about the time and memory that a model file may take."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden import relay
from ekiden.compiler.time_limit import call_with_time_limit
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.onnx.entry import import_model
from ekiden.ir.type import MAX_RANK
from ekiden.relay.transform import FoldConstant, FuseOps, InferType
from ekiden.runtime.devices import memory
from ekiden.runtime.devices.memory import memory_bound, memory_stats
from ekiden.runtime.errors import (
    CompileError,
    CompileLimitError,
    ImportModelError,
    InputError,
    MemoryLimitError,
)
from long_runs import sizes

FLOAT = TensorProto.FLOAT
X = np.arange(4, dtype=np.float32)


def value(name: str, shape: Sequence[int | str] | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str] = (4,),
    outputs: Sequence[str] = ("y",),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of one input x."""
    graph = helper.make_graph(
        nodes, "g", [value("x", shape)], [value(name, None) for name in outputs]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)


def calling(count: int, times: int) -> onnx.ModelProto:
    """Functions of which each calls the next one so often, and the last one adds."""
    functions = []
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for number in range(count):
        last = number == count - 1
        names = ["a", *(f"t{n}" for n in range(1, times)), "b"]
        body = [
            helper.make_node("Add", [at, at], [to])
            if last
            else helper.make_node(f"f{number + 1}", [at], [to], domain="local")
            for at, to in pairwise(names)
        ]
        functions.append(helper.make_function("local", f"f{number}", ["a"], ["b"], body, opsets))
    call = helper.make_node("f0", ["x"], ["y"], domain="local", name="call")
    return model([call], functions=functions)


@sizes("count", 1200, 3000)
def test_chain_of_functions_is_imported_without_recursion(count: int) -> None:
    assert count > sys.getrecursionlimit()
    exe = ekiden.compile(calling(count, 1).SerializeToString())
    assert np.array_equal(exe(X).numpy(), X * 2)


def test_functions_that_stand_for_too_many_nodes_are_refused() -> None:
    assert np.array_equal(ekiden.compile(calling(5, 2).SerializeToString())(X).numpy(), X * 2.0**32)
    with pytest.raises(ImportModelError, match="its functions stand for [0-9]{12,} nodes"):
        ekiden.compile(calling(40, 2).SerializeToString())


def test_names_inside_a_chain_of_functions_stay_short() -> None:
    broken = calling(300, 1)
    broken.functions[-1].node[0].op_type = "NoSuchOperator"
    with pytest.raises(ImportModelError) as caught:
        ekiden.compile(broken.SerializeToString())
    assert "NoSuchOperator" in str(caught.value) and len(str(caught.value)) < 2000
    misfit = calling(300, 1)
    last = misfit.functions[-1].node[0]
    last.op_type = "MatMul"
    last.input[:] = ["a", "c"]
    misfit.functions[-1].node.insert(
        0, helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0, 3.0])
    )
    with pytest.raises(ImportModelError) as caught:
        ekiden.compile(misfit.SerializeToString())
    notes = caught.value.__notes__
    assert any(note.startswith("inside local::f299") or "inside" in note for note in notes)
    assert sum(map(len, notes)) < 5000


def test_functions_that_call_themselves_are_refused() -> None:
    proto = calling(3, 1)
    proto.functions[2].node[0].CopyFrom(helper.make_node("f0", ["a"], ["b"], domain="local"))
    with pytest.raises(ImportModelError, match="functions must not call themselves: 'f0', 'f1'"):
        ekiden.compile(proto.SerializeToString())


def doubled(count: int) -> relay.Function:
    """concatenate((t, t)), so often."""
    at: relay.Expr = relay.var("x", shape=(1,))
    inputs = [at]
    for _ in range(count):
        at = relay.concatenate([at, at], axis=0)
    return relay.Function(inputs, at)


def test_repeated_doubling_is_not_expanded() -> None:
    module = InferType()(ekiden.IRModule.from_expr(doubled(20)))
    text = str(FuseOps()(module))
    kernels = text.split("Primitive=1")[1:]
    assert len(kernels) >= 4
    assert max(kernel.count("concatenate(") for kernel in kernels) <= 4
    exe = ekiden.compile(doubled(12))
    assert np.array_equal(exe(np.float32([3.0])).numpy(), np.full(4096, 3.0, np.float32))


def test_folding_does_not_double_without_end() -> None:
    """Step by step and pass by pass: what a constant may grow to is measured by the first ones."""
    at: relay.Expr = relay.const(np.float32([1.0]))
    for _ in range(26):
        at = relay.concatenate([at, at], axis=0)
    x = relay.var("x", shape=(1,))
    module = ekiden.IRModule.from_expr(relay.Function([x], relay.add(x, relay.sum(at))))
    for _ in range(3):
        module = FoldConstant()(InferType()(module))
    result: list[int] = []

    def visit(expr: relay.Expr) -> None:
        if isinstance(expr, relay.Constant):
            result.append(expr.data.numpy().nbytes)

    relay.analysis.post_order_visit(module["main"], visit)
    assert result and max(result) <= 1 << 20


def test_tensor_of_too_many_dimensions_is_refused() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    exe = ekiden.compile(model([node], [1] * MAX_RANK).SerializeToString())
    assert exe(np.ones([1] * MAX_RANK, np.float32)).shape == (1,) * MAX_RANK
    with pytest.raises(
        CompileError, match="input 'x': a tensor's type: at most 64 dimensions, got"
    ):
        ekiden.compile(model([node], [1] * 601).SerializeToString())


@sizes("count", 300, 30_000)
def test_many_outputs_are_compiled_in_proportion(count: int) -> None:
    names = [f"y{n}" for n in range(count)]
    nodes = [helper.make_node("Add", ["x", "x"], [name]) for name in names]
    result = ekiden.compile(model(nodes, outputs=names).SerializeToString())(X)
    assert len(result) == count and np.array_equal(result[-1].numpy(), X * 2)


# Memory.


def filled(count: int) -> bytes:
    """A model of a few bytes that has a constant of `count` floats, folded."""
    nodes = [
        helper.make_node("Constant", [], ["s"], value_ints=[count]),
        helper.make_node("ConstantOfShape", ["s"], ["c"]),
        helper.make_node("Cos", ["c"], ["d"]),
        helper.make_node("ReduceSum", ["d"], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    return bytes(model(nodes).SerializeToString())


PEAK = """
import resource, sys
import ekiden
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    ekiden.compile(sys.argv[1])
    said = "compiled"
except ekiden.EkidenError as error:
    said = type(error).__name__
print(said, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_limit_of_memory_holds_import_and_folding(tmp_path: Path) -> None:
    """A model of 300 bytes took 2.1 GB under a limit of 100 MB."""
    (tmp_path / "model.onnx").write_bytes(filled(300_000_000))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "model.onnx")],
        env={**os.environ, "EKIDEN_MEMORY_LIMIT": "100M"}, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    message, grown = done.stdout.split()
    assert message in ("compiled", "MemoryLimitError")
    assert int(grown) < 400_000  # KB, most of it the compiler itself


def held_bytes() -> int:
    """Return what counts to the limit of memory now, constants of earlier programs included."""
    gc.collect()  # or they go while the test runs
    return memory_stats().held + memory._HOST_ARRAYS.total_bytes


def test_constants_count_as_long_as_they_live() -> None:
    held = held_bytes()
    array = np.ones(1 << 20, np.float32)
    with memory_bound(held + (6 << 20)):
        first = relay.const(array)
        same = relay.const(array)  # the same memory, counted once
        with pytest.raises(MemoryLimitError, match="a constant takes 4194304 bytes"):
            relay.const(np.ones(1 << 20, np.float32))
        del first, same, array
        relay.const(np.ones(1 << 20, np.float32))


def test_memory_limit_that_a_node_reaches_is_no_fault_of_the_model() -> None:
    array = np.ones(1 << 21, np.float32)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(array)),
        helper.make_node("ReduceSum", ["c"], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    data = model(nodes).SerializeToString()
    with (
        memory_bound(held_bytes() + (6 << 20)),
        pytest.raises(MemoryLimitError, match="a constant takes 8388608 bytes") as caught,
    ):
        import_model(data, ImportOptions())
    assert any("Constant" in note for note in caught.value.__notes__)


def test_folding_beyond_the_limit_is_refused_before_it_is_computed() -> None:
    data = np.ones((256, 1024), np.float32)
    x = relay.var("x", shape=(1,))
    body = relay.add(x, relay.sum(relay.tile(relay.const(data), (12, 1))))
    module = InferType()(ekiden.IRModule.from_expr(relay.Function([x], body)))
    with (
        memory_bound(held_bytes() + (8 << 20)),
        pytest.raises(MemoryLimitError, match="the value of 'tile' takes 12582912 bytes"),
    ):
        FoldConstant()(module)


# Time.


def test_compilation_is_stopped_at_its_limit_of_time() -> None:
    at: relay.Expr = relay.var("x", shape=(4,))
    inputs = [at]
    for _ in range(20_000):
        at = relay.sin(at)
    function = relay.Function(inputs, at)
    with pytest.raises(CompileLimitError, match="stopped at its limit of 0.01 s") as caught:
        ekiden.compile(function, timeout=0.01)
    assert isinstance(caught.value, CompileError) and isinstance(caught.value, TimeoutError)
    x = relay.var("x", shape=(4,))
    exe = ekiden.compile(relay.Function([x], relay.add(x, x)), timeout=3600)
    assert np.array_equal(exe(X).numpy(), X * 2)


def test_limit_of_time_interrupts_what_loops() -> None:
    def forever() -> None:
        while True:
            pass

    with pytest.raises(CompileLimitError):
        call_with_time_limit(0.01, forever)


def test_timeout_does_not_fire_after_compilation() -> None:
    ended = threading.Event()

    def work() -> None:
        for _ in range(200):
            call_with_time_limit(0.002, lambda: time.sleep(0.001))
        ended.set()

    def tolerant() -> None:
        try:
            work()
        except CompileLimitError:
            work_again()

    def work_again() -> None:
        sum(range(100_000))
        ended.set()

    thread = threading.Thread(target=tolerant)
    thread.start()
    thread.join(60)
    assert ended.is_set()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "1", True])
def test_wrong_limit_of_time_is_refused(timeout: object) -> None:
    x = relay.var("x", shape=(4,))
    with pytest.raises(CompileError, match="timeout: seconds above 0 expected"):
        ekiden.compile(relay.Function([x], x), timeout=timeout)  # type: ignore[arg-type]  # wrong


def test_environment_has_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at: relay.Expr = relay.var("x", shape=(4,))
    inputs = [at]
    for _ in range(20_000):
        at = relay.sin(at)
    monkeypatch.setenv("EKIDEN_COMPILE_TIMEOUT", "0.01")
    with pytest.raises(CompileLimitError):
        ekiden.compile(relay.Function(inputs, at))
    monkeypatch.setenv("EKIDEN_COMPILE_TIMEOUT", "soon")
    with pytest.raises(InputError, match="EKIDEN_COMPILE_TIMEOUT: expected seconds above 0"):
        ekiden.compile(relay.Function(inputs, at))


def _of_constants(op_type: str, numbers: dict[str, int | float | None], **attributes: int) -> bytes:
    """Return a model of a node whose inputs are x and these scalars, in their order; None is an
    input that is left out."""
    named = {n: np.asarray(v, np.float32 if isinstance(v, float) else np.int64) for n, v in
             numbers.items() if v is not None}  # fmt: skip
    inputs = ["" if numbers[n] is None else n for n in numbers]
    inputs = inputs if op_type == "MelWeightMatrix" else ["x", *inputs]
    graph = helper.make_graph(
        [helper.make_node(op_type, inputs, ["y"], name="node", **attributes)], "g",
        [value("x", (1, 4, 1))], [value("y", None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in named.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString())


LARGE = (1 << 21) + 1
"""Elements: 16 MiB of float64, and by its prime factors no transform that is made of constants."""
MEL: dict[str, int | float | None] = {
    "bands": 4,
    "length": 16,
    "rate": 16000,
    "low": 0.0,
    "high": 8000.0,
}


@pytest.mark.parametrize(
    "model",
    [
        _of_constants("MelWeightMatrix", {**MEL, "bands": LARGE}),
        _of_constants("MelWeightMatrix", {**MEL, "length": LARGE}),
        _of_constants("STFT", {"step": 4, "window": None, "length": LARGE}),
        _of_constants("DFT", {"length": LARGE}, inverse=1, onesided=1),
    ],
)
def test_number_in_a_file_allocates_nothing_at_import(model: bytes) -> None:
    """What it says is counted by type inference and the limit of memory first."""
    for _ in range(2):  # the first imports the converters' modules
        tracemalloc.start()
        with suppress(CompileError):
            import_model(model, ImportOptions())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 4 * LARGE


@pytest.mark.parametrize(
    "name",
    [
        "__import__('os').system('touch {}')",
        '"); system("touch {}"); //',
        '*/ __attribute__((constructor)) void f() {{ system("touch {}"); }} /*',
        "$(touch {})",
        "`touch {}`\n; touch {}",
        "{{{{ ''.__class__ }}}} {{% for x in ().__class__.__base__ %}} {}",
    ],
)
def test_model_file_executes_no_code(tmp_path: Path, name: str) -> None:
    """Whatever the names and texts in it are, and also where it is written as C."""
    mark = tmp_path / "executed"
    text = name.format(*[mark] * name.count("{}"))
    node = helper.make_node("Relu", [f"{text} x"], [f"{text} y"], name=text, doc_string=text)
    graph = helper.make_graph(
        [node], text,
        [helper.make_tensor_value_info(f"{text} x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(f"{text} y", TensorProto.FLOAT, [2, 3])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {text: text})
    ekiden.compile(model).save(tmp_path / "a.eki")
    ekiden.export(model, tmp_path / "a.so")
    for file in ("a.eki", "a.so"):
        program = ekiden.load(tmp_path / file)
        np.testing.assert_array_equal(program(np.ones((2, 3), np.float32)).numpy(), 1)
    assert not mark.exists()
