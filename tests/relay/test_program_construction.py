"""TVM's API to construct programs: operators, modules, scopes, visitors."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest

import ekiden as tvm
from ekiden import relay
from ekiden.ir import assert_structural_equal, make_node
from ekiden.ir.ndarray_format import array_to_bytes
from ekiden.ir.structural import structural_equal
from ekiden.relay import parse_expr
from ekiden.relay.param_dict import PARAM_DICT_MAGIC
from ekiden.runtime.errors import LoadError, TypeInferenceError


def same(expr: relay.Expr, text: str) -> bool:
    return structural_equal(expr, parse_expr(text), map_free_vars=True)


# Operators


X = "free_var %x: Tensor[(2,), float32]; "
OPERATORS = [
    (lambda x: x + x, "add(%x, %x)"),
    (lambda x: x + 1, "add(%x, 1f)"),
    (lambda x: 2.5 * x, "multiply(2.5f, %x)"),
    (lambda x: 1 - x, "subtract(1f, %x)"),
    (lambda x: x / 2, "divide(%x, 2f)"),
    (lambda x: 1 / x, "divide(1f, %x)"),
    (lambda x: x // 2, "floor_divide(%x, 2f)"),
    (lambda x: x % 2, "floor_mod(%x, 2f)"),
    (lambda x: x**2, "power(%x, 2f)"),
    (lambda x: -x, "negative(%x)"),
    (lambda x: x < 1, "less(%x, 1f)"),
    (lambda x: x >= x, "greater_equal(%x, %x)"),
    (lambda x: x > 1, "greater(%x, 1f)"),
    (lambda x: x.astype("int8"), 'cast(%x, dtype="int8")'),
    (lambda x: (x + x) * 2, "multiply(add(%x, %x), 2f)"),
    (lambda x: relay.Tuple([x, x])[1], "%x"),
    (lambda x: relay.split(x, 2)[-1], "split(%x, indices_or_sections=2).1"),
]


@pytest.mark.parametrize(("build", "text"), OPERATORS, ids=[t for _, t in OPERATORS])
def test_operator_functions_build_calls(build: object, text: str) -> None:
    assert callable(build)
    assert same(build(relay.var("x", shape=(2,))), X + text)


def test_tuples_unpack_where_their_length_is_known() -> None:
    x = relay.var("x", shape=(2, 4))
    a, b = relay.split(x, 2, axis=1)
    assert isinstance(a, relay.TupleGetItem) and a.index == 0 and b.index == 1
    assert (
        relay.split(x, 2).astuple() is not None and len(list(relay.split(x, (1, 2), axis=1))) == 3
    )
    pair = relay.var("p", relay.TupleType([relay.scalar_type("int32")] * 2))
    first, second = pair
    assert first.index == 0 and second.index == 1 and len(relay.Tuple([x])) == 1
    assert bool(relay.Tuple([]))
    wrapped = relay.TupleWrapper(relay.var("t"), 2)
    assert [e.index for e in wrapped] == [0, 1] and wrapped.astuple() is wrapped.tuple_value


REFUSED = [
    (lambda x, u: u + 1, TypeError, "the dtype beside 1 is not known here"),
    (lambda x, u: x + "1", TypeError, "expected an expression or a number as an operand, got '1'"),
    (lambda x, u: x.astype("int32") + 1.5, TypeError, "expected a number of dtype int32"),
    (lambda x, u: x[0], TypeError, "expected a tuple to take a field of, got Tensor"),
    (lambda x, u: list(u), TypeError, "a Var cannot be unpacked: it is not known to be a tuple"),
    (lambda x, u: relay.Tuple([x])[1], IndexError, "field 1: the tuple has 1 fields"),
    (lambda x, u: u[-1], IndexError, "field -1: the number of fields is not known here"),
    (lambda x, u: relay.var("v", "int32", shape=(1,)), ValueError, "expected a type or a shape"),
    (lambda x, u: make_node("relay.Vr"), KeyError, "no node type 'relay.Vr'"),
]


@pytest.mark.parametrize(("build", "error", "message"), REFUSED, ids=[m for _, _, m in REFUSED])
def test_invalid_arguments_are_refused(build: object, error: type[Exception], message: str) -> None:
    assert callable(build)
    with pytest.raises(error, match=message.replace("(", r"\(")):
        build(relay.var("x", shape=(2,)), relay.var("u"))


def test_calls_of_values() -> None:
    f, x = relay.var("f"), relay.const(1)
    assert same(f(x), "free_var %f; %f(1)")
    assert same(relay.GlobalVar("g")(x, x), "@g(1, 1)")
    assert same(relay.Function([f], f)(x), "%0 = fn (%f) { %f }; %0(1)")


def test_python_values_become_constants() -> None:
    assert relay.const(1).data.dtype == "int32" and relay.const(1.0).data.dtype == "float32"
    assert relay.const([1, 2], "int8").data.numpy().tolist() == [1, 2]
    assert relay.const(tvm.nd.array(np.ones(2))).data.dtype == "float64"
    assert type(relay.const(np.ones(2)).data + 1) is np.ndarray
    assert relay.const(True).data.numpy().item() is True


def test_constructors_accept_lists_and_spans() -> None:
    x = relay.var("x", "float32")
    place = relay.Span(relay.SourceName("Add0"), 1, 2, 3, 4)
    call = relay.Call(relay.op.get("add"), [x, x], None, None, place)
    assert call.args == (x, x) and call.type_args == () and call.span is place
    assert place.source_name.name == "Add0" and (place.line, place.end_column) == (1, 4)
    assert "span=Add0:1:3" in relay.astext(call, show_spans=True)
    function = relay.Function([x], call, None, [], {"Primitive": tvm.tir.IntImm("int32", 1)})
    assert function.attrs == {"Primitive": 1} and function.params == (x,)
    assert function.with_attr({"a": 1}).without_attr("Primitive").attrs == {"a": 1}
    assert relay.Match(x, [relay.Clause(relay.PatternWildcard(), x)]).clauses[0].rhs is x
    assert make_node("DictAttrs", Primitive=1) == {"Primitive": 1}


# Types


def test_types_under_tvms_names() -> None:
    kind = relay.TensorType((1, relay.Any(), 3), "int8")
    assert str(kind) == "Tensor[(1, ?, 3), int8]" and relay.ty.is_dynamic(kind)
    assert relay.TensorType([2, 3]).concrete_shape == (2, 3)
    with pytest.raises(ValueError, match="not every dimension of Tensor"):
        assert kind.concrete_shape
    name, a = relay.GlobalTypeVar("List"), relay.TypeVar("a", relay.TypeKind.Type)
    assert str(name(a)) == "List[a]" and relay.TypeKind.AdtHandle is relay.TypeKind.ADT_HANDLE
    assert str(relay.FuncType([a], relay.RefType(a), [a], [])) == "fn [a](a) -> ref(a)"
    assert relay.scalar_type("int32") == relay.TensorType((), "int32")
    assert relay.ShapeVar("n").kind is relay.TypeKind.SHAPE_VAR
    assert [int(d) for d in relay.TensorType((4, 5)).shape] == [4, 5]


class Names(relay.TypeVisitor):
    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_type_var(self, tv: relay.TypeVar) -> None:
        self.found.append(tv.name_hint)


class ToHalf(relay.TypeMutator):
    def visit_tensor_type(self, tt: relay.TensorType) -> relay.Type:
        return relay.TensorType(tt.shape, "float16")


def test_visitors_of_types() -> None:
    a, b = relay.TypeVar("a"), relay.TypeVar("b")
    inner = relay.TupleType([a, relay.RefType(b), relay.TensorType((2,))])
    kind = relay.FuncType([relay.GlobalTypeVar("L")(a)], inner, [a, b])
    names = Names()
    names.visit(kind)
    assert names.found == ["a", "a", "b", "a", "b"]
    assert str(ToHalf().visit(kind)) == "fn [a, b](L[a]) -> (a, ref(b), Tensor[(2,), float16])"
    with pytest.raises(NotImplementedError, match="TypeFunctor has no method visit_type_var"):
        relay.TypeFunctor().visit(a)


# Modules


def test_module_is_built_step_by_step() -> None:
    module = tvm.IRModule()
    f = relay.GlobalVar("f")
    x = relay.var("x", "float32")
    module[f] = relay.Function([x], x + 1)
    module["main"] = f(relay.var("y", "float32"))
    assert module.get_global_var("f") is f and module["f"] is module[f]
    assert [p.name_hint for p in module["main"].params] == ["y"]
    other = tvm.IRModule({"f": relay.Function([x], x * 2.0)})
    module.update(other)
    assert module["f"] is other["f"] and len(module.get_global_vars()) == 2
    changed = module.with_attr("k", 1)
    assert changed.get_attr("k") == 1 and module.get_attr("k") is None
    with pytest.raises(ValueError, match="'f' is the name of another GlobalVar"):
        module[relay.GlobalVar("f")] = module["f"]
    with pytest.raises(TypeError, match="expected a function or an expression, got 3"):
        module["g"] = 3


def test_wrapped_tuples_stand_wherever_an_expression_does() -> None:
    x = relay.var("x", shape=(2,))
    pair = relay.TupleWrapper(relay.Tuple([x, x]), 2)
    whole = pair.astuple()
    assert tvm.IRModule.from_expr(pair)["main"].body is whole
    assert relay.Function([x], pair).body is whole
    assert relay.Let(x, pair, pair).value is whole and relay.Tuple([pair, x]).fields == (whole, x)
    assert relay.If(x, pair, x).true_branch is whole
    assert relay.TupleGetItem(pair, 1).tuple_value is whole
    assert relay.GlobalVar("f")(pair).args == (whole,)


def test_data_types_of_a_module() -> None:
    name, a = relay.GlobalTypeVar("Box"), relay.TypeVar("a")
    full = relay.Constructor("Full", [a], name)
    empty = relay.Constructor("Empty", [], name)
    module = tvm.IRModule()
    module[name] = relay.TypeData(name, [a], [full, empty])
    assert (full.tag, empty.tag) == (0, 1)
    assert module.get_type("Box") == (name, full, empty) and module.get_global_type_vars() == [name]
    module["main"] = relay.Function([], full(relay.const(1)))
    typed = relay.transform.InferType()(module)
    assert str(typed["main"].ret_type) == "Box[int32]"
    with pytest.raises(KeyError, match="no type 'Bix'; the module has Box"):
        module.get_type("Bix")


def test_module_of_an_expression_has_its_free_variables() -> None:
    x, y = relay.var("x", "float32"), relay.var("y", "float32")
    module = tvm.IRModule.from_expr((x + y) * x)
    assert [p.name_hint for p in module["main"].params] == ["x", "y"]
    named = relay.Function([x], x).with_attr("global_symbol", "first")
    assert "first" in tvm.IRModule.from_expr(named)


def test_difference_is_shown() -> None:
    a, b = relay.parse("def @main() { (1, 2) }"), relay.parse("def @main() { (1, 3) }")
    assert_structural_equal(a, relay.parse(a.astext()))
    shown = r"the two differ at \S+: .*\n(.*\n)*- +\(1, 2\).*\n\+ +\(1, 3\)"
    with pytest.raises(ValueError, match=shown):
        assert_structural_equal(a, b)


# Scopes, loops, visitors


def test_scope_builder_builds_nested_expressions() -> None:
    sb = relay.ScopeBuilder()
    x, cond = relay.var("x", "float32"), relay.var("c", "bool")
    with sb.if_scope(cond):
        one = sb.let("one", relay.const(1.0))
        sb.ret(one + x)
    with sb.else_scope():
        kind = relay.scalar_type("float32")
        y = sb.let(("y", kind), x * x)
        sb.ret(y)
    text = """free_var %c: bool; free_var %x: float32;
    if (%c) { let %one = 1f; add(%one, %x) } else { let %y: float32 = multiply(%x, %x); %y }"""
    assert same(sb.get(), text)
    assert len(sb.function(cond, x).params) == 2 and sb.type_of(x) == kind


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["get"], "scope: ret was not called"),
        (["if", "get"], "scope: an if_scope must be followed by an else_scope"),
        (["else"], "scope: an else_scope must follow an if_scope"),
        (["ret", "ret"], "scope: it has a result already"),
        (["ret", "if"], "scope: it has a result already"),
        (["if", "ret"], "scope: it has a result already"),
    ],
)
def test_scope_builder_refuses_misuse(steps: list[str], message: str) -> None:
    sb = relay.ScopeBuilder()

    def run(step: str) -> None:
        if step in ("if", "else"):
            with sb.if_scope(relay.const(True)) if step == "if" else sb.else_scope():
                sb.ret(relay.const(1))
        else:
            sb.get() if step == "get" else sb.ret(relay.const(1))

    with pytest.raises(RuntimeError, match=message):
        for step in steps:
            run(step)


def test_while_loop_builds_a_recursive_function() -> None:
    i, total = relay.var("i", "int32"), relay.var("total", "int32")
    loop = relay.while_loop(lambda i, total: i < 5, [i, total], lambda i, total: [i + 1, total + i])
    call = loop(relay.const(0), relay.const(0))
    result = relay.create_executor("debug").evaluate(call)
    assert [v.numpy().item() for v in result] == [5, 10]


class Count(relay.ExprVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def visit_call(self, call: relay.Call) -> None:
        self.calls += 1
        super().visit_call(call)


class AddToSubtract(relay.ExprMutator):
    def visit_call(self, call: relay.Call) -> relay.Expr:
        new = super().visit_call(call)
        if isinstance(new, relay.Call) and new.op == relay.op.get("add"):
            return relay.subtract(*new.args)
        return new


def test_visitor_sees_each_expression_once() -> None:
    x = relay.var("x", "float32")
    shared = x + x
    visitor = Count()
    visitor.visit(relay.Function([x], shared * shared))
    assert visitor.calls == 2


def test_mutator_rebuilds_what_changes() -> None:
    function = parse_expr(
        "fn (%x: float32) { let %y = %x + 1f; if (True) { %y * %y } else { (%y + %x, 1f).0 } }"
    )
    assert_structural_equal(
        AddToSubtract().visit(function),
        parse_expr(
            "fn (%x: float32) { let %y = %x - 1f; if (True) { %y * %y } else { (%y - %x, 1f).0 } }"
        ),
    )
    assert relay.ExprMutator().visit(function) is function


def test_visitors_do_not_recurse_over_depth() -> None:
    x = relay.var("x", "float32")
    body: relay.Expr = x
    for _ in range(20_000):
        body = relay.exp(body)
    visitor = Count()
    before = sys.getrecursionlimit()
    visitor.visit(body)
    assert visitor.calls == 20_000 and sys.getrecursionlimit() == before
    with pytest.raises(NotImplementedError, match="ExprFunctor has no method visit_var"):
        relay.ExprFunctor().visit(x)


# Places


def test_names_are_importable_from_tvm_paths() -> None:
    assert relay.nn.conv2d is relay.op.nn.conv2d and relay.add is relay.op.add
    assert relay.image is relay.op.image and relay.op.op.get("add") is relay.op.get("add")
    assert relay.adt.Clause is relay.Clause and relay.function.Function is relay.Function
    assert relay.expr.Call is relay.Call and relay.ty.TypeVar is relay.TypeVar
    assert relay.base.Span is relay.Span and relay.backend.interpreter.RefValue is not None
    assert tvm.parser.parse is relay.parse and tvm.relay is relay
    assert issubclass(TypeInferenceError, tvm.error.DiagnosticError)
    assert tvm.transform.PassContext is relay.transform.PassContext
    assert tvm.ir.structural_equal is structural_equal and tvm.tir.Any is relay.Any
    assert tvm.ir.load_json(tvm.ir.save_json(relay.scalar_type("int8"))) == relay.scalar_type(
        "int8"
    )
    with pytest.raises(AttributeError, match="module 'ekiden.relay' has no attribute 'nothing'"):
        assert relay.nothing
    with pytest.raises(AttributeError, match="module 'ekiden.ir' has no attribute 'nothing'"):
        assert tvm.ir.nothing


def test_parameters_of_tvm_are_read() -> None:
    values = {"a": np.ones((2, 3), "float32"), "b": np.array([1, 2])}
    head = struct.pack("<QQQ", PARAM_DICT_MAGIC, 0, 2)
    names = b"".join(struct.pack("<Q", 1) + n.encode() for n in values)
    arrays = struct.pack("<Q", 2) + b"".join(map(array_to_bytes, values.values()))
    data = head + names + arrays
    result = relay.load_param_dict(data)
    assert list(result) == ["a", "b"] and result["b"].numpy().tolist() == [1, 2]
    for cut in range(8, len(data), 7):
        with pytest.raises(LoadError):
            relay.load_param_dict(data[:cut])
    again = relay.load_param_dict(relay.save_param_dict(values))
    np.testing.assert_equal(again["a"].numpy(), values["a"])


def test_parameters_are_bound_by_name() -> None:
    f = parse_expr("fn (%x: float32, %w: float32) { %x * %w }")
    bound = relay.build_module.bind_params_by_name(f, {"w": np.float32(3), "other": np.float32(1)})
    assert same(bound, "fn (%x: float32) { %x * 3f }")
    x = relay.var("x")
    with pytest.raises(tvm.error.DiagnosticError, match="two parameters are named 'x'"):
        relay.build_module.bind_params_by_name(relay.Function([x, relay.var("x")], x), {"x": 1})


@tvm.testing.parametrize_targets("llvm")
def test_enabled_targets_lists_available_targets(target: str, dev: object) -> None:
    other = "llvm -mtriple=riscv64-linux-gnu"
    assert tvm.testing.device_enabled(target) and not tvm.testing.device_enabled(other)
    assert tvm.testing.enabled_targets() == [(target, dev)]


def test_assert_allclose_compares_arrays() -> None:
    tvm.testing.assert_allclose(tvm.nd.array(np.ones(2)), [1, 1])
    with pytest.raises(AssertionError):
        tvm.testing.assert_allclose(np.ones(2), np.ones(3))
