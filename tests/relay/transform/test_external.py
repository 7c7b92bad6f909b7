"""Code for external compilers: composite functions, annotation, regions, partition, running it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from pass_checks import Array, assert_same_meaning, calls, evaluate, main_of, program

import ekiden
from ekiden import relay, te
from ekiden.backend.external import register_external
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OP_ATTRS, register_op_attr
from ekiden.ir.structural import structural_equal
from ekiden.ir.transform import Pass, PassContext, Sequential
from ekiden.relay import Interpreter, IRModule, op
from ekiden.relay.analysis import verify
from ekiden.relay.dataflow_pattern import is_op, wildcard
from ekiden.relay.expr import Call, Function, Var
from ekiden.relay.transform import (
    AnnotateTarget,
    DefuseOps,
    FoldConstant,
    FuseOps,
    InferType,
    Inline,
    MergeCompilerRegions,
    MergeComposite,
    PartitionGraph,
    SimplifyExpr,
    ToANormalForm,
)
from ekiden.relay.transform.external.compiler_regions import is_compiler_annotation
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.runtime.errors import CompileError, EkidenError

pytestmark = pytest.mark.quick

X = "%x: Tensor[(2, 3), float32]"


@pytest.fixture(autouse=True)
def test_annotate_target_marks_operators() -> Iterator[None]:
    """A compiler "test" that takes some operators; additions of two results alone."""
    for name in ("exp", "tanh", "multiply", "nn.dense"):
        register_op_attr(name, "target.test", lambda call: True)

    @register_op_attr("add", "target.test")
    def add(call: Call) -> bool:
        return all(isinstance(a, Call) for a in call.args)

    yield
    for table in ("target.test", "target.other"):
        OP_ATTRS.pop(table, None)


def compilers(module: IRModule) -> list[str]:
    """Those of all begins and ends, in order of evaluation."""
    order = evaluation_order(main_of(module).body)
    return [
        item.attrs.compiler
        for item in order
        if isinstance(item, Call) and is_compiler_annotation(item)
    ]


PARTITION = Sequential([AnnotateTarget("test"), MergeCompilerRegions(), PartitionGraph()])


def random(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def external(module: IRModule) -> dict[str, list[str]]:
    """The operators of each function for an external compiler."""
    return {
        g.name_hint: calls(IRModule({"main": f}))
        for g, f in module.functions.items()
        if isinstance(f, Function) and f.attr("Compiler")
    }


def partitioned(body: str, params: str = X) -> IRModule:
    before = program(f"def @main({params}) {{ {body} }}")
    result = PARTITION(before)
    verify(result)
    args = random(*[(2, 3)] * len(main_of(before).params))
    assert_same_meaning(before, result, args)
    return result


def test_each_operator_is_marked() -> None:
    transformed = AnnotateTarget("test")(program(f"def @main({X}) {{ nn.relu(exp(%x)) }}"))
    begin, end = "annotation.compiler_begin", "annotation.compiler_end"
    assert calls(transformed) == [begin, "exp", end, begin, "nn.relu", end]
    assert compilers(transformed) == ["test"] * 2 + ["default"] * 2


def test_predicate_looks_at_the_call() -> None:
    transformed = AnnotateTarget("test")(program(f"def @main({X}) {{ add(%x, %x) }}"))
    assert set(compilers(transformed)) == {"default"}


@pytest.mark.parametrize("joins", [False, True])
def test_sequential_annotation_equals_joint_annotation(joins: bool) -> None:
    register_op_attr("nn.relu", "target.other", lambda call: True)
    module = program(f"def @main({X}) {{ %0 = exp(%x); add(abs(%0), nn.relu(%0)) }}")
    first = AnnotateTarget("test", joins)(module)
    assert structural_equal(first, AnnotateTarget("test", joins)(first))
    at_once = AnnotateTarget(["test", "other"], joins)(module)
    assert structural_equal(AnnotateTarget("other", joins)(first), at_once)


def test_host_calls_of_program_functions_are_marked() -> None:
    """Calls of variables have marks where all does; results of branches have ends."""
    module = program(
        f"def @main({X}) {{ let %f = fn (%y: Tensor[(2, 3), float32]) {{ exp(%y) }};"
        " if (True) { %f(%x) } else { tanh(%x) } }"
    )
    some, every = (AnnotateTarget("test", joins)(module) for joins in (False, True))
    assert calls(every).count("annotation.compiler_end") == 3
    assert calls(some).count("annotation.compiler_end") == 2
    for result in (some, every):
        assert_same_meaning(module, PartitionGraph()(result), random((2, 3)))


def test_regions_have_no_cyclic_dependencies() -> None:
    """Joining both pairs would make each region need a result of the other."""
    for name in ("abs", "subtract"):
        register_op_attr(name, "target.other", lambda call: True)
    module = program(
        f"def @main({X}) {{ %0 = exp(%x); %1 = abs(%x); (multiply(%0, %1), subtract(%1, %0)) }}"
    )
    marked = AnnotateTarget(["test", "other"])(module)
    transformed = PartitionGraph()(MergeCompilerRegions()(marked))
    assert sorted(map(len, external(transformed).values())) == [1, 1, 2]
    assert_same_meaning(module, transformed, random((2, 3)))


def test_first_target_that_takes_an_operator_has_it() -> None:
    register_op_attr("exp", "target.other", lambda call: True)
    module = program(f"def @main({X}) {{ tanh(exp(%x)) }}")
    transformed = PartitionGraph()(AnnotateTarget(["other", "test"])(module))
    assert external(transformed) == {
        "tvmgen_default_other_main_0": ["exp"],
        "tvmgen_default_test_main_1": ["tanh"],
    }


def test_chain_is_one_region() -> None:
    result = partitioned("nn.relu(tanh(exp(%x)))")
    assert external(result) == {"tvmgen_default_test_main_0": ["exp", "tanh"]}
    assert calls(result) == ["nn.relu"]


def test_without_merging_each_operator_is_a_region() -> None:
    module = program(f"def @main({X}) {{ tanh(exp(%x)) }}")
    transformed = PartitionGraph("m")(AnnotateTarget("test")(module))
    assert external(transformed) == {
        "tvmgen_m_test_main_0": ["exp"],
        "tvmgen_m_test_main_1": ["tanh"],
    }
    assert_same_meaning(module, transformed, random((2, 3)))


def test_diamond_is_one_region() -> None:
    result = partitioned("%0 = exp(%x); add(tanh(%0), multiply(%0, %x))")
    assert list(external(result).values()) == [["exp", "tanh", "multiply", "add"]]


def test_region_does_not_depend_on_itself() -> None:
    """relu, which is not taken, lies between exp and the addition."""
    result = partitioned("%0 = exp(%x); add(%0, nn.relu(%0))")
    assert sorted(external(result).values()) == [["add"], ["exp"]]


def partitioned_graph(body: Callable[[Var, Var], RelayExpr]) -> IRModule:
    """Return the partitioned module of a graph without lets, which shares nodes across scopes."""
    x, y = relay.var("x", shape=(2, 3)), relay.var("y", shape=(2, 3))
    before = InferType()(IRModule.from_expr(Function([x, y], body(x, y))))
    partitioned_module = PARTITION(before)
    verify(partitioned_module)
    assert_same_meaning(before, partitioned_module, random((2, 3), (2, 3)))
    return partitioned_module


def test_regions_stay_within_one_scope() -> None:
    """A region of both would be called outside the closure with the closure's parameter."""

    def shared_with_closure(x: Var, y: Var) -> RelayExpr:
        shared, inner = op.exp(x), relay.var("z", shape=(2, 3))
        closure = Function([inner], op.tanh(op.multiply(shared, inner)))
        return op.tanh(op.multiply(Call(closure, [y]), shared))

    module = partitioned_graph(shared_with_closure)
    assert sorted(map(len, external(module).values())) == [1, 2, 2]


def test_region_does_not_wait_for_itself_through_a_closure() -> None:
    """The second use of the exponential needs a call whose closure needs the first."""

    def used_twice(x: Var, y: Var) -> RelayExpr:
        shared = op.exp(x)
        closure = Function([relay.var("z", shape=(2, 3))], shared)
        return op.multiply(op.tanh(shared), Call(closure, [y]))

    partitioned_graph(used_twice)


def test_region_takes_no_tuple_of_another_scope() -> None:
    """External compilers take tensors: what projects the tuple stays outside."""

    def projected_in_branch(x: Var, y: Var) -> RelayExpr:
        pair = relay.Tuple([op.exp(x), op.tanh(y)])
        condition = op.less(op.sum(x), relay.const(0.0))
        inside = op.tanh(relay.TupleGetItem(pair, 0))
        return relay.If(condition, inside, relay.TupleGetItem(pair, 1))

    module = partitioned_graph(projected_in_branch)
    functions = [f for f in module.functions.values() if isinstance(f, Function)]
    params = [p for f in functions if f.attr("Compiler") for p in f.params]
    assert params and all(isinstance(p.checked_type, relay.TensorType) for p in params)


def test_regions_on_both_sides_of_another() -> None:
    output = partitioned("%0 = exp(%x); %1 = tanh(%x); add(multiply(%0, %1), nn.relu(%1))")
    result = external(output).values()
    assert sorted(o for ops in result for o in ops) == ["add", "exp", "multiply", "tanh"]
    assert calls(output) == ["nn.relu"]


def test_region_with_several_results_gives_a_tuple() -> None:
    result = partitioned("%0 = exp(%x); %1 = tanh(%0); (nn.relu(%0), nn.relu(%1))")
    assert list(external(result).values()) == [["exp", "tanh"]]


def test_tuples_join_a_region() -> None:
    result = partitioned("%0 = (exp(%x), tanh(%x)); multiply(%0.0, %0.1)")
    assert list(external(result).values()) == [["exp", "tanh", "multiply"]]


def test_constants_are_bound_or_passed() -> None:
    module = program(f"def @main({X}) {{ multiply(%x, 2f) }}")
    bound = PARTITION(module)
    handed = Sequential([AnnotateTarget("test"), PartitionGraph(bind_constants=False)])(module)
    for result, count in ((bound, 1), (handed, 2)):
        (function,) = (f for g, f in result.functions.items() if g.name_hint != "main")
        assert isinstance(function, Function) and len(function.params) == count
        assert function.attr("Primitive") == 1 and function.attr("Compiler") == "test"
        assert function.attr("global_symbol") == "tvmgen_default_test_main_0"
        assert_same_meaning(module, result, random((2, 3)))


def test_partitioned_functions_are_not_changed() -> None:
    result = partitioned("nn.relu(tanh(exp(%x)))")
    cut = {g: f for g, f in result.functions.items() if f.attr("Compiler")}
    for item in (FuseOps(), FoldConstant(), ToANormalForm(), SimplifyExpr()):
        after = item(result)
        assert all(structural_equal(after[g], f) for g, f in cut.items()), item.name
    fused = FuseOps()(result)
    assert calls(IRModule({"main": fused["main"]})) == ["nn.relu"]


def test_symbol_is_a_name_in_c() -> None:
    register_op_attr("exp", "target.my-npu++", lambda call: True)
    try:
        module = program(f"def @main({X}) {{ exp(%x) }}")
        transformed = PartitionGraph()(AnnotateTarget("my-npu++")(module))
        assert external(transformed) == {"tvmgen_default_my_npu___main_0": ["exp"]}
    finally:
        OP_ATTRS.pop("target.my-npu++")


def test_partition_without_matches_changes_nothing() -> None:
    module = program(f"def @main({X}) {{ nn.relu(%x) }}")
    assert structural_equal(PARTITION(module), module)


def _interpreted(function: Function) -> Callable[..., None]:
    """A code generator that interprets: it stands for one of another company."""
    module = IRModule({"main": function.with_fields(attrs=None)})

    def kernel(*tensors: object) -> None:
        arrays = [ekiden.runtime.tensor(t).numpy() for t in tensors]
        count = len(function.params)
        result = Interpreter(InferType()(module)).evaluate("main", *arrays[:count])
        results = result if isinstance(result, tuple) else (result,)
        for out, value in zip(arrays[count:], results, strict=True):
            np.copyto(out, value)

    return kernel


def test_external_functions_run_in_the_virtual_machine() -> None:
    text = f"def @main({X}) {{ %0 = exp(%x); %1 = tanh(%0); (nn.relu(%0), nn.relu(%1)) }}"
    result = PARTITION(program(text))
    register_external("test", _interpreted)
    exe = ekiden.compile(result)
    assert "tvmgen_default_test_main_0" in exe.disassemble()
    args = random((2, 3))
    for actual, expected in zip(exe(*args), evaluate(program(text), args), strict=True):
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5)


def test_external_compiler_without_code_generator_is_named() -> None:
    register_op_attr("exp", "target.other", lambda call: True)
    transformed = Sequential([AnnotateTarget("other"), PartitionGraph()])(
        program(f"def @main({X}) {{ exp(%x) }}")
    )
    with pytest.raises(CompileError, match="'tvmgen_default_other_main_0' is for the external "):
        ekiden.compile(transformed)
    with PassContext(opt_level=3):
        inlined = Sequential([Inline(), DefuseOps()])(transformed)
    np.testing.assert_allclose(
        ekiden.compile(inlined)(*random((2, 3))).numpy(), np.exp(random((2, 3))[0]), rtol=1e-5
    )


DENSE = is_op("nn.dense")(wildcard(), wildcard())
BIAS = is_op("nn.bias_add")(DENSE, wildcard())
TEXT = f"""def @main({X}, %w: Tensor[(4, 3), float32], %b: Tensor[(4,), float32]) {{
  nn.relu(nn.bias_add(nn.dense(%x, %w), %b)) }}"""


def composite(module: IRModule) -> list[object]:
    function = main_of(module)
    result = []
    at = function.body
    while isinstance(at, Call):
        if isinstance(at.op, Function):
            result.append(at.op.attr("Composite"))
        at = at.args[0]
    return result


def test_composite_functions_are_cut_out_in_order() -> None:
    table = [("test.dense_bias_relu", is_op("nn.relu")(BIAS)), ("test.dense", DENSE)]
    transformed = MergeComposite(table)(program(TEXT))
    verify(transformed)
    assert composite(transformed) == ["test.dense_bias_relu"]
    assert composite(MergeComposite(table[1:])(program(TEXT))) == ["test.dense"]
    assert_same_meaning(program(TEXT), transformed, random((2, 3), (4, 3), (4,)))


def test_check_can_refuse_a_match() -> None:
    table = [("test.dense", DENSE, lambda call: False)]
    assert composite(MergeComposite(table)(program(TEXT))) == []


def test_composite_function_goes_to_its_compiler() -> None:
    transformed = MergeComposite([("test.dense_bias", BIAS)])(program(TEXT))
    transformed = PARTITION(transformed)
    verify(transformed)
    assert external(transformed) == {"tvmgen_default_test_main_0": ["nn.dense", "nn.bias_add"]}
    assert_same_meaning(program(TEXT), InferType()(transformed), random((2, 3), (4, 3), (4,)))


ELSEWHERE = """
import sys, numpy as np
import ekiden
from ekiden.backend.external import register_external

def compiler(function):
    assert function.attr("Compiler") == "elsewhere"
    def kernel(x, out):
        out[:] = np.exp(x.numpy()) + 10
    return kernel

if sys.argv[2] == "registered":
    register_external("elsewhere", compiler)
try:
    print(ekiden.load(sys.argv[1])(np.zeros((2, 3), "float32")).numpy()[0].tolist())
except ekiden.LoadError as error:
    print(error)
"""


@pytest.mark.slow
def test_artifact_names_missing_compiler(tmp_path: Path) -> None:
    """It loads where that is registered, and has its functions compiled there."""
    inner = relay.var("y", shape=(2, 3))
    function = relay.Function([inner], relay.exp(inner), attrs={"Primitive": 1})
    function = function.with_attr({"Compiler": "elsewhere", "global_symbol": "elsewhere_0"})
    register_external("elsewhere", lambda f: lambda x, out: out.copy_from(x))
    x = relay.var("x", shape=(2, 3))
    name = relay.GlobalVar("elsewhere_0")
    module = IRModule({name: function.with_attr("Inline", 1)})
    module["main"] = relay.Function([x], relay.nn.relu(name(x)))
    ekiden.compile(InferType()(module)).save(tmp_path / "model.eki")
    message = []
    for state in ("missing", "registered"):
        command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "model.eki"), state]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        message.append(done.stdout)
    expected = r"'elsewhere_0_\w+': the external compiler 'elsewhere' is not registered"
    assert re.search(expected, message[0])
    assert message[1] == "[11.0, 11.0, 11.0]\n"


@pytest.mark.slow
def test_smallest_compiler_makes_c(tmp_path: Path) -> None:
    """A region for "ccompiler" is an artifact for target "c", which runs wherever it is loaded."""
    region = """def @f(%a: Tensor[(2, 3), float32], %b: Tensor[(2, 3), float32],
                       Compiler="ccompiler", Primitive=1, global_symbol="f") {
      %0 = subtract(add(%a, %b), %a); (%0, nn.dense(%a, %b)) }"""
    module = relay.parse(f"def @main({X}) {{ %0 = @f(%x, exp(%x)); (%0.1, %0.0) }} {region}")
    (x,) = random((2, 3))
    exe = ekiden.compile(module)
    exe.save(tmp_path / "model.eki")
    exe.export_library(tmp_path / "model.so", fcompile=False)
    for item in (exe, *(ekiden.load(tmp_path / f"model.{suffix}") for suffix in ("eki", "so"))):
        product, same = item(x)
        np.testing.assert_allclose(product, x @ np.exp(x).T, rtol=1e-5)
        np.testing.assert_allclose(same, np.exp(x), rtol=1e-5, atol=1e-6)


def test_compiler_is_a_global_function_as_in_tvm() -> None:
    """relay.ext.NAME makes a module of a region."""

    def codegen(function: Function) -> ekiden.runtime.Module:
        n = te.placeholder((2, 3), name="n")
        double = te.compute((2, 3), lambda i, j: n[i, j] * 2.0, name="double")
        return ekiden.build(
            te.create_prim_func([n, double]), name=str(function.attrs["global_symbol"])
        )

    ekiden.register_func("relay.ext.twice", codegen, override=True)
    module = relay.parse(
        f"""def @main({X}) {{ @f(%x) }}
        def @f(%a: Tensor[(2, 3), float32], Compiler="twice", Primitive=1, global_symbol="f") {{
          add(%a, %a) }}"""
    )
    (x,) = random((2, 3))
    np.testing.assert_array_equal(ekiden.compile(module)(x), x * 2)
    ekiden.register_func("relay.ext.nothing", lambda function: None, override=True)
    module = relay.parse(
        f"""def @main({X}) {{ @f(%x) }}
        def @f(%a: Tensor[(2, 3), float32], Compiler="nothing", Primitive=1, global_symbol="f") {{
          add(%a, %a) }}"""
    )
    with pytest.raises(CompileError, match="relay.ext.nothing: it should give a module"):
        ekiden.compile(module)


def test_compiler_has_passes_of_its_own() -> None:
    ekiden.register_func("relay.ext.test.optimize", FoldConstant(), override=True)
    try:
        result = partitioned("add(exp(%x), tanh(multiply(2f, 3f)))")
    finally:
        ekiden.runtime.remove_global_func("relay.ext.test.optimize")
    (function,) = [f for f in result.functions.values() if f.attr("Compiler")]
    assert calls(IRModule({"main": function})) == ["exp", "add"]
    assert function.attrs["global_symbol"] == "tvmgen_default_test_main_0"


def test_constants_in_tuples_are_bound() -> None:
    register_op_attr("concatenate", "target.test", lambda call: True)
    ones = relay.const(np.ones((2, 3), np.float32))
    module = IRModule.from_expr(relay.concatenate(relay.Tuple([ones, ones]), 1))
    result = PARTITION(module)
    (function,) = [f for f in result.functions.values() if f.attr("Compiler")]
    assert not function.params


def test_regions_can_be_looked_at() -> None:
    module = program(f"def @main({X}) {{ %0 = exp(%x); add(tanh(%0), nn.relu(%0)) }}")
    marked = MergeCompilerRegions()(AnnotateTarget("test")(module))
    begin, end = (relay.op.get(f"annotation.compiler_{which}") for which in ("begin", "end"))
    regions = relay.analysis.AnnotatedRegionSet(marked["main"], begin, end)
    first, *_, last = regions.regions
    assert (len(regions), first.target, last.target) == (3, "test", "test")
    assert all(regions.get_region(node) is first for node in first.nodes)
    assert [mark.args[0].name_hint for mark in first.args] == ["x"]
    assert {mark.attrs.compiler for mark in (*first.rets, *last.args)} == {"test"}
    assert regions.get_region(main_of(module).params[0]) is None
    with pytest.raises(ValueError, match="marks of compilers expected, got add and add"):
        relay.analysis.AnnotatedRegionSet(marked["main"], relay.op.get("add"), relay.op.get("add"))


def passes_without_options() -> list[str]:
    """The names of the passes that nothing is said to."""
    names = []
    for name in relay.transform.__all__:
        factory = getattr(relay.transform, name)
        try:
            if name[0].isupper() and isinstance(factory(), Pass):
                names.append(name)
        except (TypeError, EkidenError):
            continue
    return names


@pytest.mark.parametrize("name", passes_without_options())
def test_passes_skip_outlined_functions(name: str) -> None:
    """It may put it in place of its calls, and mark it."""
    text = f"def @main({X}) {{ let %y = tanh(exp(%x)); (add(%y, %y), nn.relu(multiply(%y, %x))) }}"
    module = InferType()(PARTITION(program(text)))
    regions = [f.body for f in module.functions.values() if f.attr("Compiler")]
    assert regions
    changed = getattr(relay.transform, name)()(module)
    functions = [f for f in changed.functions.values() if isinstance(f, Function)]
    inside = [e for f in functions for e in relay.visitor.post_order(f, into_functions=True)]
    bodies = [e.body for e in inside if isinstance(e, Function) and e.attr("Compiler")]
    marked = [f.body for f in functions if f.attr("Extern")]
    for region in regions:
        assert any(structural_equal(region, body, True) for body in (*bodies, *marked))
