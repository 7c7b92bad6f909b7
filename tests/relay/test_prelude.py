"""The prelude: every function, in the interpreter and in the VM."""

# ruff: noqa: ANN401

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ekiden import relay
from ekiden.relay import Expr, Prelude, parse_expr
from ekiden.relay.analysis import verify
from ekiden.relay.backend.executors import create_executor
from ekiden.relay.interpreter_values import ConstructorValue
from ekiden.relay.prelude import LIBRARY_DEPENDENCIES, StaticTensorArrayOps, read_std
from ekiden.relay.testing import count, make_nat_expr, make_nat_value
from ekiden.runtime.errors import RunError
from long_runs import alike


@pytest.fixture(scope="module")
def prelude() -> Prelude:
    result = Prelude()
    result.mod.import_from_std("nat.rly")
    return result


def text(prelude: Prelude, source: str) -> Expr:
    """An expression over the prelude's functions, written as text."""
    module = relay.parse(f"def @it() {{ {source} }}", "it", prelude.mod)
    return module["it"].body


def plain(value: Any) -> Any:
    """Lists, options, trees, numbers and tuples as Python's."""
    match value:
        case ConstructorValue():
            fields = [plain(f) for f in value.fields]
            match value.constructor.name_hint:
                case "Nil":
                    return []
                case "Cons":
                    return [fields[0], *fields[1]]
                case "None":
                    return None
                case "Some":
                    return fields[0]
                case name:
                    return (name, *fields)
        case tuple():
            return tuple(map(plain, value))
        case _:
            return value.numpy().tolist()


def from_vm(value: Any) -> Any:
    """A list that the VM gives."""
    result = []
    while len(value):
        result.append(value[0].numpy().tolist())
        value = value[1]
    return result


LIST = "Cons(1, Cons(2, Cons(3, Nil)))"
SUM = "fn (%a: int32, %b: int32) -> int32 { %a + %b }"
MINUS = "fn (%a: int32, %b: int32) -> int32 { %a - %b }"
STEP = "fn (%s: int32, %x: int32) -> (int32, int32) { (%s + %x, %s * %x) }"
CASES = [
    (f"@hd({LIST})", 1),
    (f"@tl({LIST})", [2, 3]),
    (f"@nth({LIST}, 2)", 3),
    (f"@length({LIST})", 3),
    (f"@update({LIST}, 1, 9)", [1, 9, 3]),
    (f"@map(fn (%x: int32) -> float32 {{ 2f }}, {LIST})", [2.0, 2.0, 2.0]),
    (f"@foldl({MINUS}, 0, {LIST})", -6),
    (f"@foldr({MINUS}, 0, {LIST})", 2),
    (f"@foldr1({MINUS}, {LIST})", 2),
    (f"@sum({LIST})", 6),
    (f"@concat({LIST}, {LIST})", [1, 2, 3, 1, 2, 3]),
    (f"@filter(fn (%x: int32) -> bool {{ %x != 2 }}, {LIST})", [1, 3]),
    (f"@zip({LIST}, Cons(4, Cons(5, Nil)))", [(1, 4), (2, 5)]),
    (f"@rev({LIST})", [3, 2, 1]),
    (f"@map_accumr({STEP}, 1, {LIST})", (7, [6, 8, 3])),
    (f"@map_accuml({STEP}, 1, {LIST})", (7, [12, 4, 1])),
    (
        "@unfoldr(fn (%n: int32) -> Option[(int32, int32)]"
        " { if (%n > 0) { Some((%n - 1, %n)) } else { None } }, 3)",
        [3, 2, 1],
    ),
    (
        "@unfoldl(fn (%n: int32) -> Option[(int32, int32)]"
        " { if (%n > 0) { Some((%n - 1, %n)) } else { None } }, 3)",
        [1, 2, 3],
    ),
    ("@iterate(fn (%x: int32) -> int32 { %x * 2 }, 5)(1)", 32),
    ("@compose(fn (%x: int32) -> int32 { %x * 2 }, fn (%x: int32) -> int32 { %x + 1 })(4)", 10),
    (f"@flip({MINUS})(1, 5)", 4),
    ("@id(7)", 7),
    ("@option_map(fn (%x: int32) -> int32 { %x + 1 }, Some(1))", 2),
    ("@option_get(None, 3)", 3),
    ("@option_get(Some(1), 3)", 1),
    (
        "@tmap(fn (%x: int32) -> int32 { %x + 1 }, Rose(1, Cons(Rose(2, Nil), Nil)))",
        ("Rose", 2, [("Rose", 3, [])]),
    ),
    ("@size(Rose(1, Cons(Rose(2, Nil), Cons(Rose(3, Cons(Rose(4, Nil), Nil)), Nil))))", 4),
]


@pytest.mark.parametrize(("source", "expected"), CASES, ids=[s.split("(")[0] for s, _ in CASES])
def test_function_of_the_prelude(prelude: Prelude, source: str, expected: object) -> None:
    executor = create_executor("debug", prelude.mod)
    assert plain(executor.evaluate(text(prelude, source))) == expected


def test_long_list_needs_no_stack(prelude: Prelude) -> None:
    source = "@length(@unfoldr(fn (%n: int32) -> Option[(int32, int32)]" + (
        " { if (%n > 0) { Some((%n - 1, %n)) } else { None } }, 3000))"
    )
    assert plain(create_executor("debug", prelude.mod).evaluate(text(prelude, source))) == 3000


def test_partial_functions_refuse_the_empty_list(prelude: Prelude) -> None:
    with pytest.raises(RunError, match="match: no clause fits Nil"):
        create_executor("debug", prelude.mod).evaluate(text(prelude, "@hd(@tl(Cons(1, Nil)))"))


@pytest.mark.parametrize(
    "source", [f"@rev({LIST})", f"@map(fn (%x: int32) -> int32 {{ %x * %x }}, {LIST})"]
)
def test_lists_in_the_vm_are_as_interpreted(prelude: Prelude, source: str) -> None:
    expr = text(prelude, source)
    expected = plain(create_executor("debug", prelude.mod).evaluate(expr))
    assert from_vm(create_executor("vm", prelude.mod).evaluate(expr)) == expected


NATURALS = [
    ("@nat_add", (2, 3), 5),
    ("@nat_double", (4,), 8),
    ("@nat_mul", (3, 4), 12),
    ("@nat_sub", (5, 2), 3),
    ("@nat_sub", (2, 5), 0),
]


@pytest.mark.parametrize(("name", "args", "expected"), NATURALS)
def test_peano_arithmetic(
    prelude: Prelude, name: str, args: tuple[int, ...], expected: int
) -> None:
    function = prelude.mod.get_global_var(name[1:])
    call = function(*(make_nat_expr(prelude, a) for a in args))
    assert count(prelude, create_executor("debug", prelude.mod).evaluate(call)) == expected
    values = [make_nat_value(prelude, a) for a in args]
    run = create_executor("debug", prelude.mod).evaluate(function)
    assert count(prelude, run(*values)) == expected


def test_lists_counted_by_naturals(prelude: Prelude) -> None:
    one = "succ(zero)"
    executor = create_executor("debug", prelude.mod)
    cases = [
        (f"@nat_nth({LIST}, {one})", 2),
        (f"@nat_update({LIST}, {one}, 9)", [1, 9, 3]),
        (f"@nat_iterate(fn (%x: int32) -> int32 {{ %x + 5 }}, succ({one}))(1)", 11),
        (f"@nat_to_int(succ({one}))", 2),
    ]
    for source, expected in cases:
        assert plain(executor.evaluate(text(prelude, source))) == expected


# Loading


@pytest.mark.parametrize("name", LIBRARY_DEPENDENCIES)
def test_file_loads_twice_and_is_well_formed(name: str) -> None:
    module = relay.IRModule()
    module.import_from_std(name)
    before = len(module.functions)
    module.import_from_std(name)
    assert len(module.functions) == before
    verify(module)
    again = relay.parse(module.astext())
    assert relay.astext(again) == module.astext()


def test_unknown_file_names_those_there_are() -> None:
    with pytest.raises(
        KeyError, match="no file 'x.rly' in the standard library; there are prelude"
    ):
        relay.IRModule().import_from_std("x.rly")


def test_prelude_joins_a_module_of_ones_own() -> None:
    module = relay.IRModule.from_expr(parse_expr("fn (%x: int32) -> int32 { %x }"))
    result = Prelude(module)
    assert result.mod is module and "main" in module and module["map"] is not None
    assert [t.name_hint for t in module.get_global_type_vars()] == ["List", "Option", "Tree"]


# Tensor arrays


def array_of(prelude: Prelude, dtype: str, values: list[Any]) -> Expr:
    """An array that holds tensors, written one after the other."""
    make = prelude.get_global_var("tensor_array", dtype)
    write = prelude.get_global_var("tensor_array_write", dtype)
    result = make(relay.const(len(values)))
    for place, value in enumerate(values):
        constructor = prelude.get_tensor_ctor(f"tensor{value.ndim}", dtype)
        result = write(result, relay.const(place), constructor(relay.const(value)))
    return result


def tensors(value: Any) -> Any:
    """An element or array of a tensor array as NumPy arrays."""
    if value.constructor.name_hint == "Cons":
        return [tensors(value.fields[0]), *tensors(value.fields[1])]
    if value.constructor.name_hint == "Nil":
        return []
    return value.fields[0].numpy() if value.fields else None


@alike(6)
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_dynamic_tensor_arrays(dtype: str) -> None:
    p = Prelude()
    rows = [np.arange(2 * i, 2 * i + 2).reshape(1, 2).astype(dtype) for i in range(3)]
    whole = np.concatenate(rows)
    array = array_of(p, dtype, rows)
    executor = create_executor("debug", p.mod)

    def call(name: str, *args: Expr) -> Any:
        return tensors(executor.evaluate(p.get_global_var(name, dtype)(*args)))

    two = p.get_tensor_ctor("tensor2", dtype)
    indices = relay.const(np.array([2, 0], "int32"))
    np.testing.assert_equal(call("tensor_array", relay.const(2)), [None, None])
    np.testing.assert_equal(call("tensor_array_read", array, relay.const(1)), rows[1])
    np.testing.assert_equal(call("tensor_array_concat", array), whole)
    np.testing.assert_equal(call("tensor_array_stack", array), np.stack(rows))
    np.testing.assert_equal(
        call("tensor_array_gather", array, indices), np.stack([rows[2], rows[0]])
    )
    np.testing.assert_equal(call("tensor_array_unstack_tensor2", relay.const(whole)), list(whole))
    np.testing.assert_equal(
        call("tensor_take", two(relay.const(whole)), relay.const(1), relay.const(3)), whole[1:3]
    )
    np.testing.assert_equal(call("tensor_expand_dims", two(relay.const(whole))), whole[None])
    np.testing.assert_equal(
        call("tensor_array_scatter", array, indices, array_of(p, dtype, [rows[0], rows[1]])),
        [rows[1], rows[1], rows[0]],
    )
    lengths = relay.const(np.array([1, 2], "int32"))
    empty = p.get_global_var("tensor_array", dtype)(relay.const(2))
    np.testing.assert_equal(
        call("tensor_array_split", empty, two(relay.const(whole)), lengths), [whole[:1], whole[1:]]
    )
    verify(p.mod)


def test_dynamic_tensor_array_in_the_vm() -> None:
    p = Prelude()
    rows = [np.full((1, 2), i, "float32") for i in range(3)]
    read = p.get_global_var("tensor_array_read", "float32")
    expr = read(array_of(p, "float32", rows), relay.const(1))
    data = create_executor("vm", p.mod).evaluate(expr)[0]
    np.testing.assert_equal(data.numpy(), rows[1])


@alike(4)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (relay.Any(), 3)])
def test_static_tensor_arrays(shape: tuple[Any, ...]) -> None:
    p = Prelude()
    ops = StaticTensorArrayOps(p, "float32", shape)
    ops.register()
    ops.register()
    ops.define_tensor_array_scatter((2,), True)
    ops.define_tensor_array_split(shape, (2,), True)
    assert p.mod.get_type("tensor_float32_t")[1].name_hint.startswith("tensor_nil")
    concrete = tuple(d if isinstance(d, int) else 2 for d in shape)
    values = [np.full(concrete, i, "float32") for i in range(3)]
    make, write = ops.get_global_var("tensor_array"), ops.get_global_var("tensor_array_write")
    array = make(relay.const(3))
    for place, value in enumerate(values):
        array = write(
            array, relay.const(place), ops.get_ctor("tensor_constructor")(relay.const(value))
        )
    executor = create_executor("debug", p.mod)

    def call(name: str, *args: Expr) -> Any:
        return tensors(executor.evaluate(ops.get_global_var(name)(*args)))

    np.testing.assert_equal(call("tensor_array_read", array, relay.const(2)), values[2])
    np.testing.assert_equal(call("tensor_array_stack", array), np.stack(values))
    indices = relay.const(np.array([1], "int32"))
    np.testing.assert_equal(call("tensor_array_gather", array, indices), np.stack([values[1]]))
    get = ops.get_global_var("tensor_get_data")
    one = ops.get_ctor("tensor_constructor")(relay.const(values[1]))
    np.testing.assert_equal(executor.evaluate(get(one)).numpy(), values[1])
    if shape:
        np.testing.assert_equal(
            call("tensor_concatenate", one, one), np.concatenate([values[1]] * 2)
        )
        np.testing.assert_equal(
            call("tensor_take", one, relay.const(0), relay.const(1)), values[1][:1]
        )
        np.testing.assert_equal(
            call("tensor_array_unstack", relay.const(values[1])), list(values[1])
        )
    verify(p.mod)


def test_names_of_static_tensor_arrays() -> None:
    p = Prelude()
    assert (
        p.get_name_static("tensor_t", "float32", (2, relay.Any()))
        == "static_tensor_float32_2_any_t"
    )
    assert p.get_name_static("tensor_take", "int8", ()) == "tensor_take_int8_scalar"
    with pytest.raises(
        KeyError, match="no constructor 'tensor9_float32'; there are tensor_nil_float32"
    ):
        p.get_tensor_ctor("tensor9", "float32")


def test_library_text_is_relay_text() -> None:
    for name in LIBRARY_DEPENDENCIES:
        assert read_std(name).count('#[version = "0.0.5"]') == 1


def test_module_returns_type_definitions() -> None:
    module = relay.IRModule()
    prelude = relay.Prelude(module)
    header, cons, nil = prelude.mod.get_type("List")
    result = module[header]
    assert result is module.type_definitions[header]
    assert [c.name_hint for c in result.constructors] == [cons.name_hint, nil.name_hint]
