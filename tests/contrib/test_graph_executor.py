"""TVM's graph executor and its debugger, over the virtual machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.backend.graph.executor_graph import ExecutorGraph
from ekiden.backend.graph.read_bytecode import read_graph
from ekiden.contrib import graph_executor
from ekiden.contrib.debugger import debug_executor
from ekiden.contrib.graph_executor import GraphModule
from ekiden.relay.backend.executor_factory import ExecutorFactoryModule
from ekiden.runtime.errors import CompileError, InputError, LoadError, RunError

X = np.arange(40, dtype="float32").reshape(10, 4) / 7
WEIGHT = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
HOST = ekiden.cpu()


@pytest.fixture(scope="module")
def lib() -> ExecutorFactoryModule:
    x, w = relay.var("x", shape=(10, 4)), relay.var("w", shape=(3, 4))
    y = relay.nn.dense(relay.exp(x), w)
    pair = relay.Tuple([y, relay.Tuple([relay.reshape(relay.nn.softmax(y), (30,)), x])])
    return relay.build(relay.Function([x, w], pair), "llvm", params={"w": WEIGHT})


@pytest.fixture
def module(lib: ExecutorFactoryModule) -> GraphModule:
    return GraphModule(lib["default"](HOST))


def expected() -> list[np.ndarray]:
    y = np.exp(X) @ WEIGHT.T
    e = np.exp(y - y.max(1, keepdims=True))
    return [y, (e / e.sum(1, keepdims=True)).reshape(30), X]


def check(module: GraphModule) -> None:
    assert module.get_num_outputs() == 3
    for index, expected_value in enumerate(expected()):
        np.testing.assert_allclose(module.get_output(index).numpy(), expected_value, rtol=1e-4)


def test_inputs_are_set_and_outputs_asked_for(module: GraphModule) -> None:
    module.set_input("x", X)
    module.run()
    check(module)
    module.run(x=np.zeros_like(X))
    np.testing.assert_array_equal(module.get_output(2).numpy(), np.zeros_like(X))
    out = runtime.empty((10, 4), "float32")
    assert module.get_output(2, out) is out
    np.testing.assert_array_equal(out.numpy(), np.zeros_like(X))


def test_set_input_is_a_copy_and_a_shared_one_is_not(module: GraphModule) -> None:
    array = X.copy()
    module.set_input("x", array)
    array[:] = 0
    np.testing.assert_array_equal(module.get_input("x").numpy(), X)
    tensor = runtime.tensor(X.copy())
    module.set_input_zero_copy("x", tensor)
    tensor.numpy()[:] = 1
    module.run()
    np.testing.assert_array_equal(module.get_output(2).numpy(), np.ones_like(X))


def test_shared_output_is_written_by_its_kernel() -> None:
    x = relay.var("x", shape=(10, 4))
    y = relay.nn.softmax(x)
    lib = relay.build(relay.Function([x], relay.Tuple([y, x, y])), "llvm")
    module = GraphModule(lib["default"](HOST))
    out = [runtime.tensor(np.zeros_like(X)) for _ in range(3)]
    for index, tensor in enumerate(out):
        module.set_output_zero_copy(index, tensor)
    expected_value = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    for scale in (1, 2):
        module.run(x=scale * np.log(expected_value))
        power = expected_value**scale
        for tensor in (out[0], out[2]):
            np.testing.assert_allclose(tensor.numpy(), power / power.sum(1, keepdims=True), 1e-4)
        np.testing.assert_allclose(out[1].numpy(), scale * np.log(expected_value), 1e-6)
    own = module.module["get_output"](0).numpy()
    assert np.shares_memory(own, out[0].numpy())
    module.set_input_zero_copy("x", out[0])  # read while it is written: copied in the end
    out[0].numpy()[:] = X
    module.run()
    np.testing.assert_allclose(out[0].numpy(), expected_value, 1e-4)
    assert not np.shares_memory(module.module["get_output"](0).numpy(), out[0].numpy())


@pytest.mark.parametrize("name", ["set_input", "set_input_zero_copy"])
def test_inputs_set_by_module_functions_are_read(lib: ExecutorFactoryModule, name: str) -> None:
    module = GraphModule(lib["default"](HOST))
    module.module[name](0, runtime.tensor(X))
    module.run()
    check(module)
    other = GraphModule(lib["default"](HOST))
    other.module[name]("x", runtime.tensor(X))
    np.testing.assert_array_equal(other.get_input("x").numpy(), X)


def test_executors_of_one_module_share_inputs(module: GraphModule) -> None:
    other = GraphModule(module.module)
    module.set_input("x", X)
    other.run()
    check(module)


def test_graph_json_and_params_round_trip(lib: ExecutorFactoryModule) -> None:
    text, library, params = lib
    assert ExecutorGraph.from_json(text).to_json() == text == lib.get_graph_json()
    document = json.loads(text)
    assert [document["nodes"][n]["op"] for n in document["arg_nodes"]] == ["null", "null"]
    assert document["node_row_ptr"][-1] == len(document["attrs"]["shape"][1])
    module = graph_executor.create(text, library, HOST)
    module.load_params(runtime.save_param_dict(params))
    module.run(x=X)
    check(module)
    other = graph_executor.create(text, library, HOST)
    other.share_params(module, runtime.save_param_dict(params))
    (name,) = params
    assert np.shares_memory(other.get_input(name).numpy(), module.get_input(name).numpy())
    other.run(x=X)
    check(other)


def test_graph_keeps_the_numbers_of_its_devices() -> None:
    x = relay.var("x", shape=(4, 3))
    second = relay.annotation.on_device(relay.tanh(x), runtime.cpu(1))
    body = relay.annotation.on_device(relay.exp(second), runtime.cpu(0))
    function = relay.Function([x], body)
    lib = relay.build(ekiden.IRModule.from_expr(function), [runtime.cpu(0), runtime.cpu(1)])
    attrs = json.loads(lib.get_graph_json())["attrs"]
    assert set(attrs["device_index"][1]) == {1}
    assert set(attrs["device_number"][1]) == {0, 1}
    module = graph_executor.create(lib.get_graph_json(), lib, [runtime.cpu(0), runtime.cpu(1)])
    data = np.ones((4, 3), "float32")
    module.run(x=data)
    np.testing.assert_allclose(module.get_output(0).numpy(), np.exp(np.tanh(data)), rtol=1e-5)


@pytest.mark.parametrize("numbers", [[-1], [2**31], ["cpu"], []])
def test_wrong_devices_of_a_graph_are_refused(numbers: list[object]) -> None:
    x = relay.var("x", shape=(3,))
    lib = relay.build(ekiden.IRModule.from_expr(relay.Function([x], relay.exp(x))), "llvm")
    document = json.loads(lib.get_graph_json())
    document["attrs"]["device_index"][1][:1] = numbers
    with pytest.raises(LoadError, match="read graph"):
        ExecutorGraph.from_json(json.dumps(document))


def test_loaded_library_has_its_graph(lib: ExecutorFactoryModule, tmp_path: Path) -> None:
    lib.export_library(tmp_path / "net.so")
    loaded = runtime.load_module(tmp_path / "net.so")
    text = loaded["get_graph_json"]()
    assert text == lib.get_graph_json()
    module = graph_executor.create(str(text), loaded, HOST)
    module.run(x=X)
    check(module)


def test_debugger_profiles_node_by_node(lib: ExecutorFactoryModule, tmp_path: Path) -> None:
    module = debug_executor.create(lib.get_graph_json(), lib, HOST, str(tmp_path))
    report = module.profile(x=X)
    kernels = [node for node in module.graph.nodes if node.function]
    assert [call.name for call in report.calls] == [node.name for node in kernels]
    assert all(call.duration >= 0 and call.nbytes > 0 for call in report.calls)
    assert all(node.name in str(report) or node.function in str(report) for node in kernels)
    check(module)
    with pytest.raises(ValueError, match="None expected"):
        module.profile(collectors=[])


def test_constants_of_a_created_graph_begin_as_the_library_has_them(
    lib: ExecutorFactoryModule,
) -> None:
    module = graph_executor.create(lib.get_graph_json(), lib, HOST)
    module.run(x=X)
    check(module)
    (name,) = lib.get_params()
    module.set_input(name, np.zeros(lib.get_params()[name].shape, "float32"))
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), np.zeros((10, 3), "float32"))


@pytest.mark.parametrize("suffix", ["eki", "so"])
def test_artifact_makes_graph_executors(
    lib: ExecutorFactoryModule, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"model.{suffix}"
    (lib.save if suffix == "eki" else lib.export_library)(path)
    loaded = runtime.load_module(path)
    module = GraphModule(loaded["default"](HOST))
    module.run(x=X)
    check(module)
    again = graph_executor.create(lib.get_graph_json(), loaded, HOST)
    again.run(x=X)
    check(again)


def test_inputs_are_described(module: GraphModule) -> None:
    shapes, dtypes = module.get_input_info()
    assert shapes == {"x": runtime.Shape((10, 4))}
    assert dtypes == {"x": "float32"}
    assert module.get_num_inputs() == 1
    assert (module.get_input_index("x"), module.get_input_index("y")) == (0, -1)
    assert module.module.kind == "GraphExecutor"
    assert {"run", "set_input", "get_output"} <= set(module.module.names())


def test_unset_inputs_are_zeros(module: GraphModule) -> None:
    module.run()
    np.testing.assert_array_equal(module.get_output(2).numpy(), np.zeros_like(X))


def test_errors_name_the_input(module: GraphModule) -> None:
    with pytest.raises(RuntimeError, match="Could not find 'y' in graph's inputs"):
        module.set_input("y", X)
    with pytest.raises(InputError, match=r"set_input 'x': float32\[10, 4\] expected"):
        module.set_input("x", X[:3])
    with pytest.raises(RunError, match="get_output: nothing has run yet"):
        module.get_output(0)
    raw = module.module
    with pytest.raises(InputError, match="run: input 'x' is not set"):
        raw["run"]()
    with pytest.raises(InputError, match="set_input: no input is named 'y'"):
        raw["set_input"]("y", X)
    with pytest.raises(IndexError, match="set_input: an input below 1 expected, got 1"):
        raw["set_input"](1, X)
    with pytest.raises(TypeError, match="set_input: 2 arguments expected, got 1"):
        raw["set_input"]("x")


def test_programs_that_branch_are_refused_with_the_reason() -> None:
    x, c = relay.var("x", shape=(2,)), relay.var("c", shape=(), dtype="bool")
    lib = relay.build(relay.Function([c, x], relay.If(c, relay.exp(x), x)))
    with pytest.raises(CompileError, match="not a straight line: it has the .* (If|Switch)"):
        lib["default"](HOST)
    with pytest.raises(CompileError, match="not a straight line"):
        lib.get_graph_json()
    np.testing.assert_array_equal(lib(False, np.ones(2, "float32")).numpy(), np.ones(2))


def test_dynamic_shapes_run_but_have_no_json() -> None:
    n = relay.SizeVar("n", "int64")
    x = relay.var("x", shape=(n, 2))
    lib = relay.build(relay.Function([x], relay.exp(x)))
    module = GraphModule(lib["default"](HOST))
    for size in (3, 5):
        module.run(x=np.zeros((size, 2), "float32"))
        np.testing.assert_array_equal(module.get_output(0).numpy(), np.ones((size, 2)))
    with pytest.raises(CompileError, match="input 'x' is no tensor of a known shape"):
        lib.get_graph_json()


def test_kernel_of_any_library_can_be_called() -> None:
    n, shape = 4, ["list_shape", [[4], [4]]]
    attrs = {"func_name": "my_double", "num_inputs": "1", "num_outputs": "1", "flatten_data": "1"}
    graph = {
        "nodes": [
            {"op": "null", "name": "x", "inputs": []},
            {"op": "tvm_op", "name": "add", "inputs": [[0, 0, 0]], "attrs": attrs},
        ],
        "arg_nodes": [0],
        "node_row_ptr": [0, 1, 2],
        "heads": [[1, 0, 0]],
        "attrs": {
            "shape": shape,
            "dltype": ["list_str", ["float32"] * 2],
            "storage_id": ["list_int", [0, 1]],
        },
    }
    a = ekiden.te.placeholder((n,), name="a")
    b = ekiden.te.compute((n,), lambda i: a[i] * 2.0, name="b")
    func = ekiden.te.create_prim_func([a, b]).with_fields(attrs={"global_symbol": "my_double"})
    module = graph_executor.create(json.dumps(graph), ekiden.build(func), HOST)
    module.run(x=np.arange(4, dtype="float32"))
    assert module.get_output(0).numpy().tolist() == [0, 2, 4, 6]
    attrs["func_name"] = "other"
    with pytest.raises(LoadError, match="primitive 'other'"):
        graph_executor.create(json.dumps(graph), ekiden.build(func), HOST)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": [[9, 0, 0]]}, r"no node before has the output \[9, 0, 0\]"),
        ({"nodes": []}, "outputs are described"),
        ({"attrs": {}}, "KeyError"),
    ],
)
def test_invalid_graph_json_is_refused(
    lib: ExecutorFactoryModule, change: dict[str, object], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        ExecutorGraph.from_json(json.dumps({**json.loads(lib.get_graph_json()), **change}))


def test_graph_executor_benchmark_measures_runs(module: GraphModule) -> None:
    result = module.benchmark(HOST, x=X, repeat=2, number=1)
    assert len(result.results) == 2
    assert result.min > 0


@pytest.fixture
def debug(lib: ExecutorFactoryModule, tmp_path: Path) -> Iterator[debug_executor.GraphModuleDebug]:
    result = debug_executor.create(lib.get_graph_json(), lib, HOST, dump_root=str(tmp_path))
    yield result
    result.exit()


def test_debugger_shows_what_each_node_gives(
    debug: debug_executor.GraphModuleDebug, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debug.run(x=X, number=1)
    check(debug)
    nodes = debug.debug_datum.get_graph_nodes()
    exp = next(i for i, n in enumerate(nodes) if "exp" in str(n["name"]))
    np.testing.assert_allclose(debug.get_node_output(exp, 0).numpy(), np.exp(X), rtol=1e-5)
    out = runtime.empty((10, 4), "float32")
    debug.debug_get_output(str(nodes[exp]["name"]), out)
    np.testing.assert_allclose(out.numpy(), np.exp(X), rtol=1e-5)
    assert "Total_time" in capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    assert {f.name for f in folder.iterdir()} == {
        "_tvmdbg_graph_dump.json",
        "_tvmdbg_execution_trace.json",
        "output_tensors.params",
    }
    events = json.loads((folder / "_tvmdbg_execution_trace.json").read_text())["traceEvents"]
    assert len(events) == 2 * len(nodes)


def test_debugger_measures_each_node(debug: debug_executor.GraphModuleDebug) -> None:
    debug.set_input("x", X)
    times = debug.run_individual(number=1, repeat=2)
    nodes = debug.debug_datum.get_graph_nodes()
    assert [len(time) for time in times] == [2] * len(nodes)
    assert all((sum(t) > 0) == ("fused" in str(n["op"])) for t, n in zip(times, nodes, strict=True))
    with pytest.raises(InputError, match="node: a number below"):
        debug.run_individual_node(len(nodes))
    with pytest.raises(AttributeError, match="Could not find a node named nothing"):
        debug.debug_get_output("nothing")


def test_factory_makes_the_debuggers_module(lib: ExecutorFactoryModule) -> None:
    module = lib["debug_create"]("default", HOST)
    module["set_input"]("x", ekiden.nd.array(X))
    module["run"]()
    plain = graph_executor.GraphModule(lib["default"](HOST))
    plain.run(x=X)
    argument = module["get_output"](0).numpy()  # of the graph, as from any graph executor
    assert argument.tolist() == plain.get_output(0).numpy().tolist()
    debug = debug_executor.GraphModuleDebug(module, [HOST], lib.get_graph_json())
    debug.set_input(x=X)
    debug.run(number=1)
    check(debug)
    debug.exit()


def test_evaluating_with_the_graph_executor() -> None:
    x = relay.var("x", shape=(2,))
    function = relay.Function([x], relay.Tuple([x, relay.Tuple([relay.negative(x)])]))
    run = relay.create_executor("graph", ekiden.IRModule.from_expr(function)).evaluate()
    first, (second,) = run(np.ones(2, "float32"))
    assert first.numpy().tolist() == [1, 1]
    assert second.numpy().tolist() == [-1, -1]


def test_constants_do_not_shadow_inputs() -> None:
    x, y = relay.var("p0", shape=(4,)), relay.var("p0_1", shape=(4,))
    both = relay.exp(x) + relay.exp(y) + relay.const(np.full(4, 2, "float32"))
    compiled = ekiden.compile(relay.IRModule.from_expr(relay.Function([x, y], both)))
    graph, params = read_graph(compiled.raw)
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == len(names) and names[:2] == ["p0", "p0_1"]
    assert not params.keys() & {"p0", "p0_1"} and params.keys() <= set(names)
