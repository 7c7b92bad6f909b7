"""Program regions in third-party engines and in a user's engine."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import ekiden
from ekiden import byoc, relay
from ekiden.byoc.onnx_regions import OnnxEngine
from ekiden.compiler.tune import extract_tasks
from ekiden.ir.module import IRModule
from ekiden.ir.prim import SizeVar
from ekiden.ir.transform import PassContext
from ekiden.relay.dataflow_pattern import is_op, wildcard
from ekiden.relay.expr import Function
from ekiden.relay.transform.external.merge_composite import PatternEntry
from ekiden.runtime.devices.engines import ENGINE_FOLDERS, engine_folder
from ekiden.runtime.errors import CompileError, LoadError, RunError
from long_runs import share

Array = np.ndarray[Any, Any]
MLP = """def @main(%x: Tensor[(n, 3), float32], %w: Tensor[(4, 3), float32],
                     %b: Tensor[(4), float32]) {
  %0 = nn.relu(nn.bias_add(nn.dense(%x, %w), %b));
  (cumsum(nn.softmax(%0), axis=1), add(%0, %0))
}"""


def whole(*shapes: tuple[int, ...]) -> list[Array]:
    """Small whole numbers: sums and products of them are exact in any order."""
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes]


def regions(module: IRModule) -> list[Function]:
    result = [
        f for f in module.functions.values() if isinstance(f, Function) and f.attr("Compiler")
    ]
    return result


def results(exe: ekiden.Executable, args: Sequence[object]) -> list[Array]:
    argument = exe(*args)
    return [item.numpy() for item in (argument if isinstance(argument, tuple) else (argument,))]


def check(engine: str, text: str, args: Sequence[Array], count: int = 1) -> IRModule:
    """The module runs alike with as many regions cut out for an engine; the cut one."""
    module = relay.parse(text)
    result = byoc.partition(module, engine)
    assert len(regions(result)) == count
    pairs = zip(
        results(ekiden.compile(result), args), results(ekiden.compile(module), args), strict=True
    )
    for actual, expected in pairs:
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    return result


@share(2)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_region_of_several_operators_and_results(engine: str, rows: int) -> None:
    result = check(engine, MLP, whole((rows, 3), (4, 3), (4,)))
    assert "cumsum" not in str(regions(result)[0])


def test_region_result_tuple_and_its_fields(engine: str) -> None:
    text = """
def @main(%x: Tensor[(n, 3), float32], %y: Tensor[(n, 2), float32]) {
  %0 = nn.relu(%x);
  %1 = sigmoid(%0);
  (concatenate((%1, nn.relu(%y), %0), axis=1), cumsum(%0, axis=1))
}"""
    check(engine, text, whole((2, 3), (2, 2)))


def test_region_output_range_is_computed_outside(engine: str) -> None:
    text = """
def @main(%x: Tensor[(1, 3, 5, 5), float32], %w: Tensor[(4, 3, 3, 3), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1]);
  (%0, min(%0), max(%0))
}"""
    check(engine, text, whole((1, 3, 5, 5), (4, 3, 3, 3)))


UNKNOWN = {
    "parameter": "def @main(%x: Tensor[(?, 3), float32]) { nn.softmax(nn.relu(%x)) }",
    "broadcast": """def @main(%x: Tensor[(?, 3), float32], %y: Tensor[(?, 3), float32]) {
      nn.softmax(nn.relu(add(%x, %y))) }""",
    "closure": """def @main(%x: Tensor[(?, 3), float32]) {
      let %f = fn (%a: Tensor[(?, 3), float32]) { nn.softmax(nn.relu(%a)) };
      %f(concatenate((%f(%x), %x))) }""",
    "reference": """def @main(%x: Tensor[(?, 3), float32]) {
      let %r = ref(%x); ref_write(%r, concatenate((%x, %x)));
      nn.relu(nn.softmax(ref_read(%r))) }""",
    "data": """def @main(%x: Tensor[(?, 3), float32]) {
      nn.relu(sigmoid(take(%x, reshape(argwhere(less(%x, 0f)), newshape=[-1])))) }""",
}


@share(2)
@pytest.mark.parametrize("text", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("rows", [0, 2])
def test_region_of_unknown_sizes(engine: str, text: str, rows: int) -> None:
    module = relay.parse(text)
    count = len(module["main"].params)  # type: ignore[attr-defined]
    result = byoc.partition(module, engine)
    if not regions(result):
        pytest.skip(f"'{engine}' takes no such operator")
    exe = ekiden.compile(result)
    assert any(engine in name for name in exe.primitive_ops)
    args = whole(*[(rows, 3)] * count)
    np.testing.assert_allclose(
        results(exe, args)[0], results(ekiden.compile(module), args)[0], rtol=1e-5, atol=1e-6
    )


@share(2)
@pytest.mark.parametrize("text", [MLP, UNKNOWN["parameter"]])
@pytest.mark.parametrize(
    "context",
    [{"opt_level": 0}, {"opt_level": 1}, {"disabled_pass": ["Inline", "InlinePrimitives"]}],
)
def test_region_is_not_split_at_any_opt_level(
    engine: str, text: str, context: dict[str, Any]
) -> None:
    result = byoc.partition(relay.parse(text), engine)
    if not regions(result):
        pytest.skip(f"'{engine}' takes no such operator")
    with PassContext(**context):
        exe = ekiden.compile(result)
    assert any(engine in name for name in exe.primitive_ops)
    args = whole((2, 3), (4, 3), (4,))[: len(exe.inputs)]
    expected = results(ekiden.compile(relay.parse(text)), args)
    for actual, expected_value in zip(results(exe, args), expected, strict=True):
        np.testing.assert_allclose(actual, expected_value, rtol=1e-5, atol=1e-6)


def test_regions_are_not_tuning_tasks(engine: str) -> None:
    output = byoc.partition(relay.parse(MLP), engine)
    result = extract_tasks(output, "llvm", {"n": 4})
    region = str(regions(output)[0].attr("global_symbol"))
    assert (region, f"it is a region of the engine '{engine}'") in result.skipped


@pytest.mark.parametrize(("dtype", "count"), [("float32", 1), ("float64", 0)])
def test_convolution_with_a_constant(engine: str, dtype: str, count: int) -> None:
    """Of doubles there is none in ONNX Runtime."""
    weight = relay.const(np.arange(54).reshape(2, 3, 3, 3).astype(dtype) - 20)
    x = relay.var("x", shape=(1, 3, 8, 8), dtype=dtype)
    conv = relay.nn.conv2d(x, weight, strides=(2, 1), padding=(1, 0, 2, 1))
    out = relay.nn.max_pool2d(relay.nn.relu(conv), pool_size=(2, 2), strides=(2, 2))
    module = IRModule.from_expr(relay.Function([x], out))
    result = byoc.partition(module, engine)
    assert len(regions(result)) == count
    args = [whole((1, 3, 8, 8))[0].astype(dtype)]
    actual, expected = (results(ekiden.compile(item), args)[0] for item in (result, module))
    np.testing.assert_array_equal(actual, expected)


@share(2)
@pytest.mark.parametrize(
    ("sizes", "attrs", "count"),
    [
        ((2, 8, 7), {"pool_size": (2, 3), "strides": (3, 2), "padding": (0, 1)}, 1),
        ((2, 4, 6), {"pool_size": (1, 2), "strides": (2, 2), "padding": (0, 0, 0, 1)}, 1),
        ((2, 9, 5), {"pool_size": (3, 2), "strides": (3, 3), "dilation": (2, 1)}, 1),
        ((2, 5, 9), {"pool_size": (1, 3), "padding": (1, 2, 0, 1), "ceil_mode": False}, 0),
        ((2, "h", 9), {"pool_size": (2, 2), "strides": (2, 2)}, 0),
        ((2, "h", 9), {"pool_size": (2, 2), "strides": (2, 2), "ceil_mode": False}, 1),
    ],
)
def test_poolings_have_the_windows_of_relay(
    engine: str, sizes: tuple[int | str, ...], attrs: dict[str, Any], count: int
) -> None:
    """Where sizes are counted upwards, as engines do each in its way; windows that lie in the
    border alone, and sizes counted upwards that nothing says, stay here."""
    kinds = [SizeVar(item) if isinstance(item, str) else item for item in (1, *sizes)]
    x = relay.Var("x", relay.TensorType(kinds, "float32"))
    pool = relay.nn.max_pool2d(x, **{"ceil_mode": True, **attrs})
    module = IRModule.from_expr(relay.Function([x], pool))
    result = byoc.partition(module, engine)
    assert len(regions(result)) == count
    args = whole(tuple(6 if isinstance(item, str) else item for item in (1, *sizes)))
    actual, expected = (results(ekiden.compile(item), args)[0] for item in (result, module))
    np.testing.assert_array_equal(actual, expected)


@share(2)
@pytest.mark.parametrize("name", ["tanh", "sigmoid", "exp", "sqrt"])
def test_operators_of_one_argument(engine: str, name: str) -> None:
    text = f"def @main(%x: Tensor[(2, 3), float32]) {{ {name}(%x) }}"
    check(engine, text, [np.abs(whole((2, 3))[0])])


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_operators_of_two_arguments_broadcast(engine: str, name: str) -> None:
    text = f"def @main(%x: Tensor[(n, 3), float32], %y: Tensor[(3), float32]) {{ {name}(%x, %y) }}"
    check(engine, text, [whole((2, 3))[0], np.float32([1, 2, 4])])


@pytest.mark.parametrize(
    "body",
    ["add(%x, %x)", 'nn.bias_add(reshape(cast(%x, dtype="float32"), newshape=[1, 4, 1]), 1f)'],
)
def test_unsupported_operators_stay_with_ekiden(engine: str, body: str) -> None:
    """Whole numbers are no dtype of the table; a bias of another axis has another shape."""
    body = body.replace("1f", 'zeros(shape=[4], dtype="float32")')
    text = f"def @main(%x: Tensor[(4), int32]) {{ {body} }}"
    check(engine, text, [np.arange(4, dtype=np.int32)], 0)


def test_windows_over_data_without_elements_stay_with_ekiden(engine: str) -> None:
    """ONNX Runtime refuses them when it runs."""
    text = """def @main(%x: Tensor[(1, 2, 0, n), float32], %w: Tensor[(3, 2, 3, 3), float32]) {
      nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=3, kernel_size=[3, 3]) }"""
    check(engine, text, [np.zeros((1, 2, 0, 5), "float32"), np.ones((3, 2, 3, 3), "float32")], 0)


def test_control_flow_around_a_region(engine: str) -> None:
    text = """
    def @loop(%i: int32, %x: Tensor[(2, 2), float32]) -> Tensor[(2, 2), float32] {
      if (equal(%i, 0)) { %x } else { @loop(subtract(%i, 1), nn.relu(add(%x, %x))) }
    }
    def @main(%i: int32, %x: Tensor[(2, 2), float32]) { @loop(%i, %x) }"""
    module = relay.parse(text)
    exe = ekiden.compile(byoc.partition(module, engine))
    (result,) = results(exe, [np.int32(5), np.float32([[1, -1], [2, 0]])])
    assert result.tolist() == [[32, 0], [64, 0]]


def test_each_region_is_named_in_the_log(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ekiden"):
        byoc.partition(relay.parse(MLP), engine)
    expected = f"byoc: 'tvmgen_default_{engine}_main_0' goes to the engine '{engine}'"
    assert expected in caplog.text


def test_library_of_another_environment_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of the system's packages, which this environment sees, or those of the user."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    monkeypatch.setattr(sys, "path", ["site-packages", str(site)])
    assert engine_folder("onednn") == ""
    (tmp_path / "lib" / "libdnnl.so.3").touch()
    assert engine_folder("onednn") == str(tmp_path / "lib")


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(CompileError, match="expected one of the engines .*'openvino', got 'no'"):
        byoc.partition(relay.parse(MLP), "no")


ELSEWHERE = """
import sys, numpy as np
if sys.argv[2] == "absent":
    from ekiden.runtime.devices.engines import ENGINE_FOLDERS
    ENGINE_FOLDERS[sys.argv[3]] = lambda: ""
import ekiden
try:
    x, w, b = np.ones((2, 3), "f"), np.ones((4, 3), "f"), np.ones(4, "f")
    print(ekiden.load(sys.argv[1])(x, w, b)[1].numpy().tolist())
    assert not {"onnx", "llvmlite"} & set(sys.modules)
except ekiden.LoadError as error:
    print(error)
"""


def test_artifact_names_its_missing_engine(engine: str, tmp_path: Path) -> None:
    """Without the compiler, which made the region's code."""
    path = tmp_path / "model.eki"
    ekiden.compile(byoc.partition(relay.parse(MLP), engine)).save(path)
    message = []
    for state in ("present", "absent"):
        words = [sys.executable, "-c", ELSEWHERE, str(path), state, engine]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        message.append(done.stdout)
    assert message[0] == f"{[[8.0] * 4] * 2}\n"
    region = f"link executable: 'tvmgen_default_{engine}_main_0_"
    assert message[1].startswith(region) and message[1].count("\n") == 1
    assert f"{engine}: its library lib" in message[1]
    assert f"pip install 'ekiden[{engine}]'" in message[1]


def test_missing_engine_is_a_single_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINE_FOLDERS, "absent", lambda: "/nowhere")
    byoc.register(OnnxEngine("absent"))
    with pytest.raises(
        CompileError, match="byoc: .*'absent'.* there is no library libekiden_absen"
    ):
        byoc.partition(relay.parse(MLP), "absent")


def test_region_takes_arrays_that_may_not_be_written_or_are_not_contiguous(engine: str) -> None:
    module = relay.parse("def @main(%x: Tensor[(2, 3), float32]) { nn.relu(%x) }")
    exe = ekiden.compile(byoc.partition(module, engine))
    x = np.float32([[1, -1, 2], [0, 3, -2]])
    x.flags.writeable = False
    assert results(exe, [x])[0].tolist() == [[1, 0, 2], [0, 3, 0]]
    assert results(exe, [x.T.copy().T])[0].tolist() == [[1, 0, 2], [0, 3, 0]]


def test_many_threads_in_one_region(engine: str) -> None:
    module = relay.parse("def @main(%x: Tensor[(n, 64), float32]) { nn.relu(%x) }")
    exe = ekiden.compile(byoc.partition(module, engine))
    rows = [np.full((at % 7 + 1, 64), at, np.float32) for at in range(64)]
    with ThreadPoolExecutor(4) as pool:
        for row, result in zip(rows, pool.map(lambda x: results(exe, [x])[0], rows), strict=True):
            np.testing.assert_array_equal(result, row)


def test_engine_matmul_has_float_accuracy(engine: str) -> None:
    """1 + 2**-10 is no number of bfloat16, to which engines round where the processor has it."""
    module = relay.parse(
        "def @main(%x: Tensor[(64, 64), float32], %w: Tensor[(64, 64), float32])"
        " { nn.dense(%x, %w) }"
    )
    exe = ekiden.compile(byoc.partition(module, engine))
    x = np.full((64, 64), 1 + 2**-10, np.float32)
    (result,) = results(exe, [x, np.eye(64, dtype=np.float32)])
    np.testing.assert_array_equal(result, x)


def net(width: int) -> onnx.ModelProto:
    """Two nodes with names; what the second gets fits where an input has `width` columns."""
    x, y = (helper.make_tensor_value_info(n, 1, ["n", "k"]) for n in "xy")
    z = helper.make_tensor_value_info("z", 1, ["n", width])
    nodes = [
        helper.make_node("Add", ["x", "y"], ["s"], "first"),
        helper.make_node("Relu", ["s"], ["z"], "second"),
    ]
    graph = helper.make_graph(nodes, "net", [x, y], [z])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Broken:
    """An engine whose regions load and fail when they run: their shape is another's."""

    def __init__(self, engine: str) -> None:
        self.name = f"broken_{engine}"
        self.whole = OnnxEngine(engine)

    def patterns(self) -> Sequence[PatternEntry]:
        return patterns_of(self.whole, self.name)

    def compile(self, function: Function) -> bytes:
        x, y, z = (helper.make_tensor_value_info(n, 1, ["n", "k"]) for n in "xyz")
        seven = helper.make_tensor("seven", 7, [2], [7, 7])
        node = helper.make_node("Reshape", ["x", "seven"], ["z"])
        graph = helper.make_graph([node], "net", [x, y], [z], [seven])
        opsets = [helper.make_opsetid("", 17)]
        code: bytes = helper.make_model(
            graph, opset_imports=opsets, ir_version=8
        ).SerializeToString()
        return code

    def load(self, symbol: str, code: bytes) -> Callable[..., None]:
        return self.whole.load(symbol, code)


def patterns_of(engine: OnnxEngine, name: str) -> list[PatternEntry]:
    """Its patterns under another name."""
    return [(item.replace(engine.name, name), *rest) for item, *rest in engine.patterns()]


def test_region_that_fails_names_its_nodes(onnx_engine: str) -> None:
    broken = Broken(onnx_engine)
    byoc.register(broken)
    result = byoc.partition(relay.frontend.from_onnx(net(4))[0], broken.name)
    exe = ekiden.compile(result)
    with pytest.raises(RunError) as caught:
        exe(*whole((2, 4), (2, 4)))
    message = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert f"run 'tvmgen_default_{broken.name}_main_0" in message and f"{onnx_engine}: " in message
    assert "Add 'first', Relu 'second'" in message


class Choosy:
    """ONNX Runtime or another, but for exponentials, which it only refuses when it loads them."""

    def __init__(self, engine: str) -> None:
        self.name = f"choosy_{engine}"
        self.whole = OnnxEngine(engine)

    def patterns(self) -> Sequence[PatternEntry]:
        return patterns_of(self.whole, self.name)

    def compile(self, function: Function) -> bytes:
        return self.whole.compile(function)

    def load(self, symbol: str, code: bytes) -> Callable[..., None]:
        if b"Exp" in code:
            raise LoadError("no exponentials today")
        return self.whole.load(symbol, code)


def test_refused_regions_stay_with_ekiden(
    onnx_engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = Choosy(onnx_engine)
    byoc.register(chosen)
    text = """def @main(%x: Tensor[(n, 3), float32]) {
      %0 = nn.relu(add(%x, %x)); %1 = cumsum(%0, axis=1);
      (exp(multiply(%1, 0.25f)), %0)
    }"""
    module = relay.parse(text)
    with caplog.at_level(logging.INFO, "ekiden"):
        result = byoc.partition(module, chosen.name)
    assert len(regions(result)) == 1
    assert "main_1' stays with Ekiden: no exponentials today" in caplog.text
    args = whole((2, 3))
    pairs = zip(
        results(ekiden.compile(result), args), results(ekiden.compile(module), args), strict=True
    )
    for actual, expected in pairs:
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


class Doubler:
    """An engine that has one operator; its code is a number."""

    name = "doubler"

    def patterns(self) -> Sequence[PatternEntry]:
        x = wildcard()
        return [("doubler.twice", is_op("add")(x, x))]

    def compile(self, function: Function) -> bytes:
        assert len(function.params) == 1
        return b"\x02"

    def load(self, symbol: str, code: bytes) -> Callable[..., None]:
        def kernel(x: ekiden.Tensor, out: ekiden.Tensor) -> None:
            if not np.isfinite(x.numpy()).all():
                raise RunError(f"run '{symbol}': the numbers must be finite")
            out.copy_from(x.numpy() * np.float32(code[0]))

        return kernel


def test_engine_of_ones_own_and_its_errors() -> None:
    byoc.register(Doubler())
    module = relay.parse("def @main(%x: Tensor[(2), float32]) { nn.relu(add(%x, %x)) }")
    result = byoc.partition(module, "doubler")
    assert [f.attr("Compiler") for f in regions(result)] == ["doubler"]
    exe = ekiden.compile(result)
    assert results(exe, [np.float32([1, -3])])[0].tolist() == [2, 0]
    with pytest.raises(RunError, match="run 'tvmgen_default_doubler_main_0_.*must be finite"):
        exe(np.float32([1, np.inf]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"patterns": lambda: [("twice", is_op("exp")(wildcard()))]},
            "begin with 'doubler.', got 'tw",
        ),
        ({"compile": lambda function: "2"}, "gave a str of the code of a region"),
        ({"load": lambda symbol, code: None}, "gave a NoneType of what runs a region"),
        ({"compile": lambda function: 1 // 0}, "ZeroDivisionError: .*by zero"),
        ({"load": lambda symbol, code: [][1]}, "IndexError: list index"),
    ],
    ids=["names", "code", "kernel", "compile", "load"],
)
def test_contract_violation_names_the_engine(changes: dict[str, Any], said: str) -> None:
    result = Doubler()
    for name, value in changes.items():
        setattr(result, name, value)
    byoc.register(result)
    module = relay.parse("def @main(%x: Tensor[(2), float32]) { add(%x, %x) }")
    with pytest.raises(CompileError, match=f"byoc: engine 'doubler': .*{said}"):
        byoc.partition(module, "doubler")


@pytest.mark.parametrize("name", ["", "../x", 3, None])
def test_engine_of_no_name_is_refused(name: object) -> None:
    result = Doubler()
    result.name = name  # type: ignore[assignment]
    with pytest.raises(CompileError, match="byoc: engine: a name .* expected"):
        byoc.register(result)


def broken(name: str, **changes: Any) -> str:  # noqa: ANN401
    """An engine with one operator, registered, that does as `changes` say."""
    result = Doubler()
    result.name = name
    result.patterns = lambda: [(f"{name}.twice", is_op("add")(*[wildcard()] * 2))]  # type: ignore[method-assign]
    for method, value in changes.items():
        setattr(result, method, value)
    byoc.register(result)
    return name


def failing(*tensors: ekiden.Tensor) -> None:
    raise ArithmeticError("the multiplier is on fire")


def test_errors_of_an_engine_while_it_runs_are_ours_and_name_region_and_nodes() -> None:
    engine = broken("burning", load=lambda symbol, code: failing)
    exe = ekiden.compile(
        byoc.partition(relay.parse("def @main(%x: Tensor[(2), float32]) { add(%x, %x) }"), engine)
    )
    text = (
        r"run 'tvmgen_default_burning_main_0_\w+': engine 'burning': ArithmeticError: the"
        r" multiplier is on fire \(in 'main': text:1:39\)"
    )
    with pytest.raises(RunError, match=text):
        exe(np.float32([1, 2]))


def test_errors_of_an_engine_while_it_compiles_name_region_and_nodes() -> None:
    engine = broken("refusing", compile=lambda function: 1 // 0)
    module = relay.parse("def @main(%x: Tensor[(2), float32]) { add(%x, %x) }")
    message = r"region 'tvmgen_default_refusing_main_0' \(text:1:39\): ZeroDivisionError"
    with pytest.raises(CompileError, match=message):
        byoc.partition(module, engine)


def test_errors_of_an_engine_while_it_loads_are_ours(tmp_path: Path) -> None:
    engine = broken("loaded", load=lambda symbol, code: failing)
    module = relay.parse("def @main(%x: Tensor[(2), float32]) { add(%x, %x) }")
    ekiden.compile(byoc.partition(module, engine)).save(tmp_path / "region.eki")
    broken("loaded", load=lambda symbol, code: [][1])
    with pytest.raises(LoadError, match=r"load 'tvm.*': engine 'loaded': IndexError: list index"):
        ekiden.load(tmp_path / "region.eki")


@pytest.mark.parametrize(
    "changes",
    [
        {"load": lambda symbol, code: failing},
        {"compile": lambda function: 1 // 0},
        {"load": lambda symbol, code: None},
        {"patterns": lambda: [][1]},
        {"patterns": lambda: 7},
    ],
    ids=["run", "compile", "load", "patterns", "no patterns"],
)
def test_engine_that_fails_while_it_is_measured_is_left_out(
    changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    broken("measured", **changes)
    module = relay.parse("def @main(%x: Tensor[(2), float32]) { add(%x, %x) }")
    exe = ekiden.compile(module, byoc="auto")
    assert exe(np.float32([1, 2])).numpy().tolist() == [2, 4]
    assert any("measured" in text and "byoc: " in text for text in caplog.messages)
