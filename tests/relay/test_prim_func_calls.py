"""Functions of Relay call loop programs by their GlobalVar, and everything that runs Relay runs
them: as the operator `call_lowered`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import IRModule, relay, runtime, te, tir
from ekiden.contrib.graph_executor import GraphModule
from ekiden.ir.structural import structural_equal
from ekiden.runtime.errors import EkidenError, TypeInferenceError
from ekiden.script import tir as T

F32 = "float32"
Run = Callable[..., object]


@T.prim_func
def addone(x: T.Buffer((3,), F32), y: T.Buffer((3,), F32)) -> None:  # type: ignore[valid-type]
    for i in range(3):
        y[i] = x[i] + T.float32(1)


@T.prim_func
def in_place(x: T.Buffer((3,), F32)) -> None:  # type: ignore[valid-type]
    for i in range(3):
        x[i] = x[i] + T.float32(1)


def scaled_product() -> tir.PrimFunc:
    """(x, y, s) -> (x @ y * s, x @ y): of any sizes, one of them no tensor's only one."""
    n, m = te.size_var("n"), te.size_var("m")
    x, y = te.placeholder((n, 4), name="x"), te.placeholder((4, m), name="y")
    s = te.placeholder((), name="s")
    k = te.reduce_axis((0, 4), "k")
    plain = te.compute((n, m), lambda i, j: te.sum(x[i, k] * y[k, j], k), name="plain")
    scaled = te.compute((n, m), lambda i, j: plain[i, j] * s[()], name="scaled")
    return te.create_prim_func([x, y, s, scaled, plain]).with_attr("num_outputs", 2)


def by_vm(module: IRModule, *args: object) -> object:
    machine = runtime.vm.VirtualMachine(relay.vm.compile(module, "llvm"), ekiden.cpu())
    return machine.invoke("main", *args)


def by_graph(module: IRModule, *args: object) -> object:
    graph = GraphModule(relay.build(module, "llvm")["default"](ekiden.cpu()))
    for at, arg in enumerate(args):
        graph.set_input(at, arg)
    graph.run()
    result = [graph.get_output(i) for i in range(graph.get_num_outputs())]
    return result[0] if len(result) == 1 else tuple(result)


RUNS: dict[str, Run] = {
    "interpreter": lambda m, *a: relay.create_executor("debug", m).evaluate()(*a),
    "vm": by_vm,
    "graph": by_graph,
    "aot": lambda m, *a: ekiden.compile(m, executor="aot")(*a),
    "async": lambda m, *a: ekiden.compile(m, executor="async")(*a),
}
each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def as_arrays(result: object) -> list[np.ndarray]:
    many = result if isinstance(result, (tuple, list)) else [result]
    return [np.asarray(item.numpy() if hasattr(item, "numpy") else item) for item in many]


def module_of(body: Callable[..., relay.Expr], func: tir.PrimFunc, *params: relay.Var) -> IRModule:
    """A module with `func` as @kernel and a main whose body is made of the GlobalVar."""
    name = relay.GlobalVar("kernel")
    return IRModule({name: func, "main": relay.Function(params, body(name, *params))})


@each_run
def test_call_of_loop_program_runs(run: Run) -> None:
    x = relay.var("x", shape=(3,))
    module = module_of(lambda f, v: relay.nn.relu(f(f(v))), addone, x)
    data = np.array([-3, 0, 2], F32)
    (result,) = as_arrays(run(module, data))
    np.testing.assert_array_equal(result, np.maximum(data + 2, 0))


@each_run
@pytest.mark.parametrize("n", [1, 5])
def test_sizes_and_several_results(run: Run, n: int) -> None:
    """The same tensor twice, a scalar constant, two results, a size that is known at run time."""
    size = relay.SizeVar("rows") if run is not RUNS["graph"] else n
    x = relay.var("x", shape=(size, 4))

    def body(f: relay.Expr, v: relay.Expr) -> relay.Expr:
        both = f(v, relay.const(np.eye(4, 3, dtype=F32)), relay.const(2.0))
        return relay.Tuple([relay.TupleGetItem(both, 0), relay.TupleGetItem(both, 1)])

    data = np.random.default_rng(n).random((n, 4), np.float32)
    scaled, plain = as_arrays(run(module_of(body, scaled_product(), x), data))
    np.testing.assert_allclose(plain, data[:, :3], rtol=1e-6)
    np.testing.assert_allclose(scaled, 2 * data[:, :3], rtol=1e-6)


@each_run
def test_one_tensor_may_be_passed_twice(run: Run) -> None:
    n, m = te.size_var("n"), te.size_var("m")
    a, b = te.placeholder((n,), name="a"), te.placeholder((m,), name="b")
    outer = te.compute((n, m), lambda i, j: a[i] - b[j], name="outer")
    x = relay.var("x", shape=(3,))
    func = te.create_prim_func([a, b, outer])
    data = np.array([1, 2, 4], F32)
    (result,) = as_arrays(run(module_of(lambda f, v: f(v, v), func, x), data))
    np.testing.assert_array_equal(result, data[:, None] - data[None, :])


@pytest.mark.parametrize("run", [RUNS["interpreter"], RUNS["vm"], RUNS["aot"]])
def test_loop_program_is_a_first_class_value(run: Run) -> None:
    module = IRModule.from_expr(relay.const(0))
    relay.Prelude(module)
    name, x = relay.GlobalVar("kernel"), relay.var("x", shape=(3,))
    module[name] = addone
    _, cons, nil = module.get_type("List")
    mapped = module.get_global_var("map")(name, cons(x, cons(relay.nn.relu(x), nil())))
    module["main"] = relay.Function([x], module.get_global_var("hd")(mapped))
    (result,) = as_arrays(run(relay.transform.InferType()(module), np.zeros(3, F32)))
    assert result.tolist() == [1, 1, 1]


def test_types_are_checked() -> None:
    x = relay.var("x", shape=(4,))
    with pytest.raises(TypeInferenceError, match=r"kernel.*\(3,\)|kernel.*3"):
        relay.transform.InferType()(module_of(lambda f, v: f(v), addone, x))
    good = relay.transform.InferType()(
        module_of(lambda f, v: f(v), addone, relay.var("x", shape=(3,)))
    )
    assert good["main"].body.checked_type == relay.TensorType((3,))
    assert good["main"].body.op.checked_type == relay.FuncType(
        [relay.TensorType((3,))], relay.TensorType((3,))
    )


def test_argument_does_not_change() -> None:
    x = relay.var("x", shape=(3,))
    with pytest.raises(EkidenError, match="parameter 'x' is read and written"):
        ekiden.compile(module_of(lambda f, v: f(v), in_place, x))


def test_text_and_json_of_such_a_module() -> None:
    x = relay.var("x", shape=(3,))
    module = relay.transform.InferType()(module_of(lambda f, v: f(v), addone, x))
    assert structural_equal(relay.parse(module.astext()), module)
    assert structural_equal(ekiden.load_json(ekiden.save_json(module)), module)


def test_operator_and_prim_func_calls_in_one_function() -> None:
    """What is fused around a call stays around it: two kernels, and the program's own."""
    x = relay.var("x", shape=(3,))
    module = module_of(lambda f, v: relay.exp(f(relay.nn.relu(v))), addone, x)
    exe = relay.vm.compile(module, "llvm")
    assert sum("addone" in n or "kernel" in n for n in exe.primitive_ops) == 1
    assert len(exe.primitive_ops) == 3
