"""Executors, and the virtual machine with TVM's API."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden as tvm
from ekiden import relay
from ekiden.relay.interpreter_values import RefValue
from ekiden.runtime.errors import CompileError, InputError
from ekiden.runtime.vm import VirtualMachine

KINDS = ["debug", "vm"]
X = np.array([[1, -2, 3]], "float32")
MODULE = relay.parse("""
def @twice(%x: Tensor[(n, 3), float32]) -> Tensor[(n, 3), float32] { %x + %x }
def @main(%x: Tensor[(n, 3), float32], %y: Tensor[(3,), float32]) { nn.relu(@twice(%x) + %y) }
""")
EXPECTED = np.maximum(2 * X + 1, 0)
ONES = np.ones(3, "float32")


@pytest.mark.parametrize("kind", KINDS)
def test_main_takes_arguments_by_position_and_name(kind: str) -> None:
    run = relay.create_executor(kind, MODULE, tvm.cpu(), "llvm").evaluate()
    constants = relay.const(X), relay.const(ONES)
    runs = run(X, ONES), run(X, y=ONES), run(x=tvm.nd.array(X), y=ONES), run(*constants)
    for result in runs:
        np.testing.assert_equal(result.numpy(), EXPECTED)
    with pytest.raises(InputError, match="no parameter is named 'z'; there are x, y"):
        run(X, z=ONES)
    with pytest.raises(InputError, match=r"expected 2 arguments \(x, y\), got 1 and by name 0"):
        run(X)
    with pytest.raises(InputError):
        run(X, X)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluator_accepts_expressions_functions_and_names(kind: str) -> None:
    executor = relay.create_executor(kind, MODULE)
    assert executor.evaluate(relay.const(1) + relay.const(2)).numpy().item() == 3
    np.testing.assert_equal(executor.evaluate(MODULE.get_global_var("twice"))(X).numpy(), 2 * X)
    x = relay.var("x", shape=(1, 3))
    np.testing.assert_equal(executor.evaluate(relay.Function([x], -x))(X).numpy(), -X)
    np.testing.assert_equal(executor.evaluate(relay.exp(x), {x: X}).numpy(), np.exp(X), strict=True)
    with pytest.raises(CompileError, match="the expression has free variables: %x"):
        executor.evaluate(relay.exp(x))
    nested = executor.evaluate(relay.Tuple([relay.const(1), relay.Tuple([relay.const(2.0)])]))
    assert nested[0].numpy().item() == 1 and nested[1][0].numpy().item() == 2


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_tuples_are_arguments(kind: str) -> None:
    text = """fn (%p: (int32, float32), %b: bool) {
      if (%b) { %p.0 } else { cast(%p.1, dtype="int32") }
    }"""
    pair = relay.parse_expr(text)
    run = relay.create_executor(kind).evaluate(pair)
    assert run((3, 4.5), True).numpy().item() == 3
    assert run((3, 4.5), False).numpy().item() == 4


@pytest.mark.parametrize("kind", KINDS)
def test_vm_takes_parameters_by_name(kind: str) -> None:
    run = relay.create_executor(kind, MODULE, params={"y": tvm.nd.array(ONES)}).evaluate()
    np.testing.assert_equal(run(X).numpy(), EXPECTED)


def test_interpreter_values_convert_both_ways() -> None:
    module = relay.Prelude().mod
    _, cons, nil = module.get_type("List")
    executor = relay.create_executor("debug", module)
    items = executor.evaluate(cons(relay.const(1), cons(relay.const(2), nil())))
    assert items.constructor.name_hint == "Cons" and items.fields[0].numpy().item() == 1
    assert executor.evaluate(module.get_global_var("sum"))(items).numpy().item() == 3
    transformed = executor.evaluate(cons)(5, executor.evaluate(nil)())
    assert executor.evaluate(module.get_global_var("length"))(transformed).numpy().item() == 1
    adder = executor.evaluate(relay.parse_expr("fn (%x: int32) { fn (%y: int32) { %x + %y } }"))(3)
    assert adder(4).numpy().item() == 7
    cell = executor.evaluate(relay.parse_expr("ref(3)"))
    assert isinstance(cell, RefValue) and cell.value.numpy().item() == 3
    read = relay.parse_expr("fn (%r: ref(int32)) { ref_write(%r, 9); ref_read(%r) }")
    assert executor.evaluate(read)(cell).numpy().item() == 9


def test_lists_are_arguments_of_the_machine() -> None:
    module = relay.Prelude().mod
    _, cons, nil = module.get_type("List")
    items = relay.create_executor("debug", module).evaluate(
        cons(relay.const(4), cons(relay.const(5), nil()))
    )
    run = relay.create_executor("vm", module).evaluate(module.get_global_var("sum"))
    assert run(items).numpy().item() == 9


@pytest.mark.parametrize("kind", ["fast"])
def test_unknown_executor_kinds_are_refused(kind: str) -> None:
    with pytest.raises(CompileError, match=f"no kind '{kind}'; there are debug, vm"):
        relay.create_executor(kind)


def test_build_and_optimize() -> None:
    np.testing.assert_equal(relay.build(MODULE, "llvm", params={"y": ONES})(X).numpy(), EXPECTED)
    x = relay.var("x", shape=(2,))
    np.testing.assert_equal(relay.build(relay.Function([x], -x))(ONES[:2]).numpy(), -ONES[:2])
    module, params = relay.optimize(MODULE, "llvm", {"y": ONES})
    assert params == {} and "Primitive=1" in module.astext(show_meta_data=False)


# The machine with TVM's face


@pytest.fixture(scope="module")
def machine() -> VirtualMachine:
    return tvm.runtime.vm.VirtualMachine(relay.vm.compile(MODULE, target="llvm"), tvm.cpu())


def test_invoke_and_run(machine: VirtualMachine) -> None:
    for result in (machine.invoke("main", X, ONES), machine.run(tvm.nd.array(X), y=ONES)):
        np.testing.assert_equal(result.numpy(), EXPECTED)


def test_inputs_are_set_once(machine: VirtualMachine) -> None:
    machine.set_input("main", X, y=ONES)
    machine.run()
    np.testing.assert_equal(machine.get_outputs()[0].numpy(), EXPECTED)
    machine.set_one_input("main", "y", 0 * ONES)
    machine.set_one_input("main", 0, -X)
    machine.invoke_stateful("main")
    np.testing.assert_equal(machine.get_outputs()[0].numpy(), np.maximum(-2 * X, 0))
    assert machine.get_input_index("y") == 1 and machine.get_input_index("z") == -1


def test_vm_refuses_invalid_calls(machine: VirtualMachine) -> None:
    with pytest.raises(InputError, match=r"main: no input is named 'z'; there are \['x', 'y'\]"):
        machine.set_input("main", z=X)
    machine.set_input("main", X)
    with pytest.raises(InputError, match="main: input 1 is not set"):
        machine.run()
    with pytest.raises(TypeError, match="VirtualMachine: expected an executable, got int"):
        VirtualMachine(3)


def test_benchmark_runs_requested_repeats(machine: VirtualMachine) -> None:
    result = machine.benchmark(tvm.cpu(), X, ONES, repeat=3, number=2)
    assert len(result.results) == 3 and result.min > 0
    named = machine.benchmark(tvm.cpu(), x=X, y=ONES, repeat=1, number=1, end_to_end=True)
    assert named.mean == named.median > 0


def test_vm_compiler_stepwise_api() -> None:
    compiler = relay.vm.VMCompiler()
    with pytest.raises(CompileError, match="nothing is compiled yet"):
        compiler.get_exec()
    compiler.set_params({"y": ONES})
    assert compiler.optimize(MODULE)[1] == {}
    compiler.lower(MODULE, "llvm")
    compiler.codegen()
    np.testing.assert_equal(VirtualMachine(compiler.get_exec()).run(X).numpy(), EXPECTED)


def test_frontend_returns_module_and_parameters() -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [value("x", 1, ["n"])],
        [value("y", 1, ["n"])],
        [onnx.numpy_helper.from_array(np.ones(1, "float32"), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    module, params = relay.frontend.from_onnx(model, {"x": (3,)})
    assert params == {} and "Tensor[(3,), float32]" in str(module)
    open_module, weights = relay.frontend.from_onnx(model, freeze_params=False)
    assert [p.name_hint for p in open_module["main"].params] == ["x", "w"]
    run = relay.build_module.create_executor("debug", open_module, params=weights).evaluate()
    np.testing.assert_equal(run(ONES).numpy(), ONES + 1)


def test_vm_constructor_values_are_tuples() -> None:
    module = relay.Prelude().mod
    _, cons, nil = module.get_type("List")
    result = relay.create_executor("vm", module).evaluate(cons(relay.const(1), nil()))
    assert isinstance(result, tvm.runtime.container.ADT) and result[0].numpy().item() == 1
    assert isinstance(result[1], tvm.runtime.container.ADT) and result[1].tag == nil.tag
    assert tvm.runtime.container.tuple_object([1, 2]) == (1, 2)
