"""Values and modules of TVM's programs: objects, data, nodes by type key, modules as attributes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ekiden as tvm
from ekiden import relay, te, topi
from ekiden.ir import make_node
from ekiden.relay.backend.executors import create_executor
from ekiden.relay.backend.interpreter import ConstructorValue
from ekiden.runtime import ADT, Object

MODULES = """
contrib.graph_executor contrib.utils contrib.cc contrib.debugger
contrib.debugger.debug_executor relay.testing topi.testing testing rpc runtime.vm relay.backend
relay.op.contrib relay.dataflow_pattern relay.analysis driver.build_module tir.transform
tir.analysis tir.stmt_functor ir.transform ir.instrument target.codegen te.hybrid
relay.frontend.common relay.op.strategy relay.op.op_attrs runtime.executor relay.build_module
script micro relay.expr relay.ty relay.function relay.vm relay.backend.vm relay.param_dict
relay.quantize relay.collage relay.debug relay.qnn.op error support _ffi arith parser container
runtime.profiling runtime.ndarray tir.schedule tir.usmp topi.nn topi.cuda topi.x86 topi.generic
topi.image topi.vision topi.sparse topi.utils topi.math autotvm auto_scheduler meta_schedule
autotvm.task
"""


def test_modules_are_attributes_without_an_import() -> None:
    program = f"""
import ekiden as tvm
from ekiden import relay
for name in {MODULES.split()!r}:
    at = tvm
    for part in name.split("."):
        if not hasattr(at, part):
            print(name)
            break
        at = getattr(at, part)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


@pytest.mark.parametrize(
    "value",
    [
        relay.var("x", shape=(2,)),
        relay.TensorType((2,)),
        relay.const(1),
        tvm.IRModule(),
        tvm.tir.Var("i", "int32"),
        te.placeholder((2,)),
        tvm.target.Target("llvm"),
        tvm.ir.Range(0, 3),
        tvm.transform.PassContext(),
        ADT(1, ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_objects(value: object) -> None:
    assert isinstance(value, Object) and isinstance(value, tvm.runtime.Object)


def test_object_subclass_instances_hold_only_own_values() -> None:
    class Own(Object):
        pass

    assert not isinstance(relay.const(1), Own) and issubclass(Own, Object)
    assert not isinstance((1, 2), Object) and not isinstance("text", Object)


MODULE = relay.parse(
    """
    type Tree { Leaf(float32), Node(Tree, Tree), }
    def @swap(%t: Tree) -> Tree {
      match (%t) { Leaf(%x) => Leaf(%x), Node(%a, %b) => Node(%b, %a) } }
    def @main(%t: Tree) -> Tree { @swap(%t) }
    """
)


def tree() -> ADT:
    """Return Node(Leaf(1), Leaf(2)), made by constructors."""
    _, leaf, node = MODULE.get_type("Tree")
    assert isinstance(leaf, relay.Constructor) and isinstance(node, relay.Constructor)
    one, two = (ConstructorValue(leaf, (np.array(x, "float32"),)) for x in (1, 2))
    return ConstructorValue(node.tag, (one, two), node)


def test_data_of_one_executor_is_an_argument_of_another() -> None:
    assert ConstructorValue is ADT and str(tree().constructor.name_hint) == "Node"
    value: Any = tree()
    for kind in ("debug", "vm", "debug", "aot"):
        value = create_executor(kind, MODULE).evaluate()(value)  # type: ignore[operator]
        assert isinstance(value, ADT) and (value.tag, len(value.fields)) == (1, 2)
    leaves = [float(leaf[0].numpy()) for leaf in value.fields]
    assert leaves == [1, 2]
    assert float(tvm.compile(MODULE)(tree())[0][0].numpy()) == 2


def test_data_of_the_first_constructor_is_no_plain_tuple() -> None:
    module = relay.parse(
        "type List { Nil, Cons(float32, List) }\n"
        "def @main(%x: float32) { (Nil, (%x, Nil), Cons(%x, Nil)) }"
    )
    x = np.float32(2)
    results = [create_executor(k, module).evaluate()(x) for k in ("debug", "vm", "aot")]  # type: ignore[operator]
    results.append(tvm.compile(module)(x))
    for nil, (_, other), (_, tail) in results:
        assert [value.tag for value in (nil, other, tail)] == [0, 0, 0]
        assert nil.fields == other.fields == tail.fields == ()


def test_another_tag_than_that_of_the_constructor_is_an_error() -> None:
    with pytest.raises(ValueError, match="ADT: Node has tag 1, got 0"):
        ADT(0, (), tree().constructor)


def test_data_prints_by_its_constructors() -> None:
    assert repr(ADT(tree().constructor, (ADT(1, (2,)), (3,)))) == "Node(ADT(1, (2,)), (3,))"


def test_containers_build_adts_and_recognize_tuples() -> None:
    container = tvm.runtime.container
    made: Any = container.ADT(1, [2, 3])
    assert made == ADT(1, (2, 3)) and made.tag == 1
    assert isinstance(made, container.ADT) and isinstance((1, 2), container.ADT)
    assert not isinstance([1], container.ADT)


def test_nodes_are_made_by_their_type_key() -> None:
    made: Any = make_node("IntImm", dtype="int32", value=3, span=None)
    assert (made.value, made.dtype) == (3, "int32")
    made = make_node("Range", min=1, extent=4)
    assert (int(made.min), int(made.extent)) == (1, 4)
    made = make_node("IRModule", functions={}, type_definitions={}, attrs={})
    assert isinstance(made, tvm.IRModule)
    assert make_node("DictAttrs", a=1) == {"a": 1}
    with pytest.raises(KeyError, match=r"no node type 'nowhere.Var'; did you mean relay.Var"):
        make_node("nowhere.Var")


def test_schedules_of_generic_run() -> None:
    x = te.placeholder((4, 5), name="x")
    total = topi.sum(topi.math.exp(x), axis=1)
    schedule = topi.generic.schedule_reduce([total])
    built = tvm.build(schedule, [x, total], "llvm")
    result = tvm.nd.array(np.zeros(4, "float32"))
    data = np.arange(20, dtype="float32").reshape(4, 5) / 20
    built(tvm.nd.array(data), result)
    np.testing.assert_allclose(result.numpy(), np.exp(data).sum(1), rtol=1e-6)


def test_missing_names_suggest_alternatives() -> None:
    for module, name in ((relay.collage, "CostEstimator"), (tvm.tir.usmp, "transform")):
        with pytest.raises(AttributeError, match="Ekiden"):
            getattr(module, name)
    assert relay.op.op_attrs.Conv2DAttrs.type_key == "relay.attrs.Conv2DAttrs"


def test_schedule_reduce_spreads_a_sum_to_a_scalar_over_threads() -> None:
    x = te.placeholder((30, 20), name="x")
    total = topi.sum(x)
    schedule = topi.cuda.schedule_reduce(total)
    data = np.arange(600, dtype=np.float32).reshape(30, 20)
    out = tvm.nd.array(np.zeros((), np.float32))
    tvm.build(schedule, [x, total], "llvm")(tvm.nd.array(data), out)
    assert out.numpy() == data.sum()  # all partial sums are integers below 2**24
    source = tvm.build(schedule, [x, total], "cuda").imported_modules[0].get_source()
    assert "threadIdx.x" in source
