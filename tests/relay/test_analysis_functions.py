"""Analyses: kinds, missing match cases, features, type variables, call graphs, liveness, counts."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from relay_programs import LIST, PROGRAMS

from ekiden import ir, relay
from ekiden.ir.op import OPS
from ekiden.relay import Call, Function, GlobalVar, IRModule, Let, Tuple, Var, op, parse, parse_expr
from ekiden.relay.analysis import (
    CallGraph,
    Feature,
    all_dtypes,
    all_type_vars,
    bound_type_vars,
    check_basic_block_normal_form,
    check_constant,
    check_kind,
    count_layers,
    dead_bindings,
    detect_feature,
    extract_fused_functions,
    find_errors,
    free_type_vars,
    get_total_mac_number,
    last_uses,
    pattern_text,
    post_order_visit,
    unmatched_cases,
)
from ekiden.relay.testing import run_infer_type
from ekiden.runtime.errors import TypeInferenceError

pytestmark = pytest.mark.quick

A, SHAPE, DTYPE = (
    relay.TypeVar(n, k) for n, k in (("a", 0), ("s", relay.TypeKind(1)), ("d", relay.TypeKind(2)))
)
BOX = relay.GlobalTypeVar("Box")
FLOATS = relay.tensor_type((1, 2))
BOXES = IRModule({}, {BOX: relay.TypeData(BOX, (A,), (relay.Constructor("Box", (A,), BOX, 0),))})


# Kinds

WELL_KINDED = [
    (FLOATS, 0),
    (A, 0),
    (SHAPE, 1),
    (relay.GlobalTypeVar("g"), 5),
    (relay.TupleType((A, FLOATS, relay.RelayRefType(FLOATS))), 0),
    (relay.FuncType((A, FLOATS), relay.TupleType((A,)), (A,)), 0),
    (relay.TypeCall(BOX, (relay.TupleType(()),)), 0),
    (BOXES.type_definitions[BOX], 6),
    (relay.IncompleteType(), 0),
]


@pytest.mark.parametrize(("kind", "expected"), WELL_KINDED, ids=lambda v: str(v)[:40])
def test_check_kind_returns_type_kinds(kind: relay.Type, expected: int) -> None:
    assert check_kind(kind, BOXES) == expected


ILL_KINDED = [
    (relay.TupleType((A, SHAPE)), "a field of a tuple must be a type, got a shape: s"),
    (
        relay.FuncType((SHAPE,), A),
        "a parameter of a function must be a type, got a shape: s",
    ),
    (relay.FuncType((A,), DTYPE), "the result of a function must be a type, got a dtype: d"),
    (relay.RelayRefType(SHAPE), "the value of a reference must be a type, got a shape: s"),
    (
        relay.TypeCall(A, ()),
        "what is applied in a must be the name of a data type, got a type: a",
    ),
    (
        relay.TypeCall(BOX, (BOXES.type_definitions[BOX],)),
        "an argument in Box[...] must be a type, got the definition of a data type: ",
    ),
    (relay.TypeCall(BOX, ()), "Box: expected arguments for [a], got 0"),
    (relay.TypeCall(relay.GlobalTypeVar("T"), ()), "T: the module has no type T"),
]


@pytest.mark.parametrize(("kind", "message"), ILL_KINDED, ids=[m for _, m in ILL_KINDED])
def test_type_without_a_kind_is_refused(kind: relay.Type, message: str) -> None:
    with pytest.raises(TypeInferenceError) as caught:
        check_kind(kind, BOXES)
    if "..." not in message:
        assert str(caught.value) == f"kind check: {message}"


def test_annotation_of_wrong_kind_is_ill_formed() -> None:
    x = Var("x", relay.TypeCall(BOX, ()))
    module = IRModule({"main": Function((x,), x, None)}, BOXES.type_definitions)
    assert find_errors(module) == ["@main: kind check: Box: expected arguments for [a], got 0"]


def test_unbound_type_variable_is_ill_formed() -> None:
    x = Var("x", A)
    assert find_errors(IRModule.from_expr(Function((x,), x, None))) == [
        "@main: type variable a is used where it is not bound"
    ]
    assert find_errors(IRModule.from_expr(Function((x,), x, None, (A,)))) == []


# Missing cases

MATCHES = [
    ("Cons(_, _) => 1, Nil => 2", []),
    ("_ => 1", []),
    ("%a => 1", []),
    ("", ["_"]),
    ("Nil => 1", ["Cons(_, _)"]),
    ("Cons(_, Cons(_, _)) => 1", ["Cons(_, Nil)", "Nil"]),
    ("Cons(_, Nil) => 1, Nil => 2, Cons(_, Cons(_, Cons(_, _))) => 3", ["Cons(_, Cons(_, Nil))"]),
    ("Cons(_, Nil) => 1, Cons(_, Cons(_, Nil)) => 2, Nil => 3, Cons(_, Cons(_, _)) => 4", []),
    ("Cons(Nil, _) => 1, Cons(_, Nil) => 2, Nil => 3", ["Cons(Cons(_, _), Cons(_, _))"]),
]


@pytest.mark.parametrize(("clauses", "expected"), MATCHES, ids=[c for c, _ in MATCHES])
def test_missing_cases_of_a_list(clauses: str, expected: list[str]) -> None:
    text = LIST + "def @main(%l: List[List[int32]]) -> int32 { match? (%l) { " + clauses + " } }"
    module = parse(text)
    main = module["main"]
    assert isinstance(main, Function)
    assert isinstance(main.body, relay.Match)
    assert [pattern_text(p) for p in unmatched_cases(main.body, module)] == expected


def test_missing_cases_of_tuples_and_two_types() -> None:
    module = parse(
        """
        type Bit { One, Zero, }
        type Pair[A] { Both((Bit, A), Bit), }
        def @main(%p: Pair[Bit]) -> int32 {
          match? (%p) { Both((One, _), One) => 1, Both((_, Zero), Zero) => 2 }
        }
        """
    )
    main = module["main"]
    assert isinstance(main, Function) and isinstance(main.body, relay.Match)
    assert [pattern_text(p) for p in unmatched_cases(main.body, module)] == [
        "Both((One, One), Zero)",
        "Both((Zero, One), _)",
        "Both((Zero, Zero), One)",
    ]


# Features

FEATURES = [
    ("1 + 2", "Constant Op Call"),
    ("let %x = ref(1); (%x, %x).0", "Constant Var Let RefCreate Tuple TupleGetItem"),
    ("let %f = fn (%n: int32) -> int32 { %f(%n) }; %f", "Var Let Function Call LetRec"),
    ("%0 = 1 + 2; %0 + %0", "Constant Op Call Graph"),
    ("if (True) { ref_read(ref(1)) } else { 2 }", "Constant If RefCreate RefRead"),
]


@pytest.mark.parametrize(("text", "names"), FEATURES, ids=[t for t, _ in FEATURES])
def test_detect_feature_finds_features(text: str, names: str) -> None:
    assert detect_feature(parse_expr(text)) == {Feature[f"f{n}"] for n in names.split()}


def test_features_of_a_module_are_those_of_its_functions() -> None:
    result = detect_feature(parse(PROGRAMS["lists"]))
    assert {Feature.fMatch, Feature.fConstructor, Feature.fGlobalVar} <= result
    assert Feature.fRefWrite not in result


# Variables


def test_type_variables_bound_and_free() -> None:
    b = relay.TypeVar("b")
    x, f = Var("x", A), Var("f", relay.FuncType((b,), A, (b,)))
    inner = Function((x,), Call(f, (x,), None, (b,)), None)
    assert free_type_vars(inner) == [A]
    outer = inner.with_fields(type_params=(A,))
    assert free_type_vars(outer) == []
    assert bound_type_vars(outer) == [A, b]
    assert all_type_vars(outer) == [A, b]
    assert free_type_vars(relay.FuncType((A,), b, (b,))) == [A]


def test_dtypes_are_those_of_every_value() -> None:
    x = relay.var("x", shape=(2,))
    function = Function((x,), op.cast(op.cast(x, "int8"), "int32"), None)
    relay.infer_expr_type(function)
    assert all_dtypes(function) == {"float32", "int8", "int32"}


# Call graphs


def test_call_graph_lists_callees() -> None:
    module = parse(
        """
        def @main(%n: int32) -> bool { let %x = @id(%n); @even(@id(%x)) }
        def @even(%n: int32) -> bool { if (%n == 0) { True } else { @odd(%n - 1) } }
        def @odd(%n: int32) -> bool { if (%n == 0) { False } else { @even(%n - 1) } }
        def @id(%n: int32) -> int32 { %n }
        def @lost(%n: int32) -> int32 { @lost(%n) }
        """
    )
    graph = CallGraph(module)
    even, odd, main = (module.get_global_var(n) for n in ("even", "odd", "main"))
    assert "main" in graph and even in graph and "other" not in graph
    assert dict(graph["main"]) == {module.get_global_var("id"): 2, even: 1}
    assert dict(graph.callers("even")) == {main: 1, odd: 1}
    assert (graph.ref_count("id"), graph.global_call_count("main")) == (2, 3)
    assert [graph.is_recursive(n) for n in ("main", "even", "odd", "lost")] == [0, 1, 1, 1]
    assert [sorted(g.name_hint for g in c) for c in graph.components()] == [
        ["id"],
        ["even", "odd"],
        ["main"],
        ["lost"],
    ]
    assert [g.name_hint for g in graph.unreachable()] == ["lost"]
    assert graph.print_var("odd") == "@odd: #refs = 1\n  @even, 1 times"


@pytest.mark.slow
def test_long_chain_of_functions_is_no_recursion() -> None:
    names = [GlobalVar(f"f{i}") for i in range(20_000)]
    functions = {g: Function((), relay.Tuple(()), None) for g in names[-1:]}
    for g, callee in pairwise(names):
        functions[g] = Function((), Call(callee, ()), None)
    assert [c[0] for c in CallGraph(IRModule(functions)).components()] == names[::-1]


# Liveness


def test_last_uses_and_dead_bindings() -> None:
    expr = parse_expr(
        "let %a = 1; let %b = %a + 1; let %c = %a + %b; let %d = 3;"
        " let %e = if (True) { let %g = 1; %b } else { 2 }; %c + %e"
    )
    uses = {
        let.var.name_hint: [v.name_hint for v in dying] for let, dying in last_uses(expr).items()
    }
    assert uses == {"a": [], "b": [], "c": ["a"], "d": ["d"], "e": ["b"], "g": ["g"]}
    assert [let.var.name_hint for let in dead_bindings(expr)] == ["d", "g"]


# Normal form

NORMAL = [
    ("%0 = 1 + 2; %0 + %0", True),
    ("%0 = 1 + 2; if (True) { %0 } else { 3 }", True),
    ("%0 = 1 + 2; if (%0 > 1) { %0 } else { 3 }", False),
    ("let %a = 1 + 2; if (%a > 1) { %a } else { 3 }", True),
    ("%0 = 1 + 2; let %a = %0; %0 + %a", True),
    ("%0 = 1 + 2; let %f = fn (%x: int32) { %0 }; %f(%0)", False),
    ("%0 = 1 + 2; if (True) { %0 + 1 } else { %0 + 2 }", False),
]


@pytest.mark.parametrize(("text", "expected"), NORMAL, ids=[t for t, _ in NORMAL])
def test_basic_block_normal_form_is_checked(text: str, expected: bool) -> None:
    assert check_basic_block_normal_form(parse_expr(text)) is expected


# Counts


def test_extract_constants_lists_constants() -> None:
    one = relay.const(1)
    assert check_constant(one)
    assert check_constant(Tuple((one, Tuple((one,)))))
    assert not check_constant(Tuple((one, Var("x"))))
    assert not check_constant(op.add(one, one))


def test_every_expression_is_visited_once_children_first() -> None:
    x = Var("x")
    call = op.exp(x)
    both = op.add(call, call)
    seen: list[relay.Expr] = []
    post_order_visit(both, seen.append)
    assert [e for e in seen if not isinstance(e, relay.Op)] == [x, call, both]


def network() -> IRModule:
    x = relay.var("x", shape=(1, 3, 8, 8))
    first = op.nn.conv2d(x, relay.const(np.zeros((4, 3, 3, 3), np.float32)), padding=1)
    second = op.nn.conv2d(first, relay.const(np.zeros((4, 1, 3, 3), np.float32)), groups=4)
    flat = op.reshape(op.add(second, second), (1, -1))
    dense = op.nn.dense(flat, relay.const(np.zeros((5, 4 * 36), np.float32)))
    return relay.infer_type(IRModule.from_expr(Function((x,), dense, None)))


def test_layer_and_mac_counts_of_a_network() -> None:
    module = network()
    assert count_layers(module, ["nn.conv2d"]) == 2
    assert count_layers(module, ["nn.conv2d", "nn.dense"]) == 3
    expected = 4 * 64 * 3 * 9 + 4 * 36 * 9 + 5 * 4 * 36
    assert get_total_mac_number(module) == expected


def shaped(*shapes: tuple[int, ...]) -> list[Var]:
    return [relay.var(f"x{n}", shape=shape) for n, shape in enumerate(shapes)]


PRODUCTS = [
    (op.nn.dense(*shaped((2, 3, 5), (7, 5))), 2 * 3 * 7 * 5),
    (op.nn.matmul(*shaped((5, 3), (5, 7)), transpose_a=True), 3 * 7 * 5),
    (op.nn.batch_matmul(*shaped((2, 3, 5), (1, 7, 5))), 2 * 3 * 7 * 5),
    (op.nn.conv1d(*shaped((1, 4, 9), (6, 4, 3))), 6 * 7 * 4 * 3),
    (op.nn.conv2d(*shaped((1, 4, 8, 8), (4, 1, 3, 3)), groups=4), 4 * 36 * 9),
    (op.nn.conv2d(*shaped((1, 8, 8, 4), (3, 3, 4, 1)), groups=4, data_layout="NHWC",
                  kernel_layout="HWOI"), 4 * 36 * 9),
    (op.nn.conv2d(*shaped((1, 8, 8, 4), (1, 3, 3, 4, 16)), channels=5, data_layout="NHWC",
                  kernel_layout="OHWI16o"), 5 * 36 * 4 * 9),
    (op.nn.conv3d(*shaped((1, 2, 3, 4, 5), (6, 2, 1, 2, 3))), 6 * 3 * 3 * 3 * 2 * 6),
    (op.nn.conv1d_transpose(*shaped((1, 4, 9), (4, 6, 3)), strides=(2,)), 4 * 9 * 6 * 3),
    (op.nn.conv2d_transpose(*shaped((1, 4, 5, 5), (4, 3, 2, 2)), groups=2), 4 * 25 * 3 * 4),
    (op.nn.deformable_conv2d(*shaped((1, 3, 5, 5), (1, 18, 3, 3), (4, 3, 3, 3))), 4 * 9 * 27),
    (op.nn.attention(*shaped((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))), 2 * 4 * 5 * 7 * (8 + 6)),
    (op.nn.recurrent(*shaped((5, 2, 12), (12, 3)), kind="lstm"), 5 * 2 * 12 * 3),
    (op.sparse_to_dense(relay.const(1), (5,), relay.const(1.0)), 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "macs"), PRODUCTS, ids=[f"{n}-{c.op.name}" for n, (c, _) in enumerate(PRODUCTS)]
)
def test_matmul_mac_counts(call: Call, macs: int) -> None:
    function = Function(relay.analysis.free_vars(call), call)
    assert get_total_mac_number(relay.infer_type(IRModule.from_expr(function))) == macs


def test_mac_counts_of_convolutions_and_matmuls() -> None:
    named = {n for n in OPS if re.search("conv.d|matmul|dense", n)}
    assert {n for n in named if OPS[n].macs is None} == {
        "nn.contrib_conv2d_winograd_weight_transform", "sparse_to_dense", "dyn.sparse_to_dense",
        "nn.sparse_dense", "nn.sparse_conv2d",  # as many as the weight has elements: that is data
    }  # fmt: skip


def test_fused_functions_are_found_once() -> None:
    x = relay.var("x", shape=(4,))
    body = op.nn.softmax(op.exp(op.nn.softmax(x)))
    module = relay.transform.FuseOps()(
        relay.infer_type(IRModule.from_expr(Function((x,), body, None)))
    )
    assert all(f.attr("Primitive") for f in extract_fused_functions(module).values())
    assert len(extract_fused_functions(module)) == 2
    plain = IRModule.from_expr(Function((x,), body, None))
    assert extract_fused_functions(plain).keys() == extract_fused_functions(module).keys()


def test_let_without_a_use_is_found_in_every_function() -> None:
    v = Var("v")
    function = Function((), Let(v, relay.const(1), relay.const(2)), None)
    assert [let.var for let in dead_bindings(function)] == [v]


def test_relation_between_types_is_a_constraint() -> None:
    """TVM's nodes: kept, compared, printed and saved, and refused where a function must have it."""
    a, b = relay.TypeVar("a"), relay.TypeVar("b")
    broadcast = ir.EnvFunc.get("tvm.relay.type_relation.Broadcast")
    held = relay.TypeRelation(broadcast, [a, b], 1, None)
    kind = relay.FuncType([a], b, [a, b], [held])
    assert relay.analysis.check_kind(held) == relay.TypeKind.Constraint
    assert relay.analysis.check_kind(kind) == relay.TypeKind.Type
    assert str(kind) == "fn [a, b](a) -> b where tvm.relay.type_relation.Broadcast(a, b)"
    again = ir.load_json(ir.save_json(kind))
    assert again == kind and hash(again) == hash(kind) and again != relay.FuncType([a], b, [a, b])
    other = relay.TypeRelation(ir.EnvFunc.get("tvm.relay.type_relation.Identity"), [a, b], 1, None)
    assert kind != relay.FuncType([a], b, [a, b], [other])
    row = relay.TensorType((3,))
    assert broadcast([row, relay.TensorType((2, 1))], None) == relay.TensorType((2, 3))
    with pytest.raises(ValueError, match="no function is registered as 'nothing'"):
        ir.EnvFunc.get("nothing")
    with pytest.raises(TypeInferenceError, match="what a relation relates"):
        shape = relay.TypeVar("s", relay.TypeKind.ShapeVar)
        relay.analysis.check_kind(relay.TypeRelation(None, [shape], 0, None))
    f = relay.Var("f", kind)
    g = relay.Var("g", relay.FuncType([a], b, [a, b], [other]))
    with pytest.raises(TypeInferenceError):
        run_infer_type(relay.Function([f, g], relay.If(relay.const(True), f, g)))
