"""Structural equality and hash."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.compare import (
    assert_structural_equal,
    find_first_mismatch,
    get_first_structural_mismatch,
)
from ekiden.ir.prim import IntImm, SizeVar
from ekiden.ir.structural import structural_digest, structural_equal, structural_hash
from ekiden.relay import IRModule, TensorType, const, op, parse, parse_expr, tensor_type, var

pytestmark = pytest.mark.quick

EQUAL = [
    ("fn (%x: int32) { %x }", "fn (%y: int32) { %y }"),
    ("let %a = 1; let %b = 2; %a + %b", "let %b = 1; let %a = 2; %b + %a"),
    ("fn [A](%x: A) -> A { %x }", "fn [B](%x: B) -> B { %x }"),
    ("fn (%x: Tensor[(n, n), int32]) { %x }", "fn (%x: Tensor[(m, m), int32]) { %x }"),
    ("nn.softmax(1f)", "nn.softmax(1f, axis=-1)"),
    ("nanf", "nanf"),
]
DIFFERENT = [
    ("fn (%x: int32) { %x }", "fn (%x: int64) { %x }"),
    ("fn (%x: int32, %y: int32) { %x }", "fn (%x: int32, %y: int32) { %y }"),
    ("fn (%x: Tensor[(n, n), int32]) { %x }", "fn (%x: Tensor[(n, m), int32]) { %x }"),
    ("nn.softmax(1f)", "nn.softmax(1f, axis=1)"),
    ("1f", "1f64"),
    ("1", "True"),
    ("0f", "-0f"),
    ("%0 = exp(1f); add(%0, %0)", "add(exp(1f), exp(1f))"),
    ("(1, 2)", "(1, 2, 3)"),
    ("fn (%x: int32, Primitive=1) { %x }", "fn (%x: int32) { %x }"),
]


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal_programs_are_structurally_equal(a: str, b: str) -> None:
    left, right = parse_expr(a), parse_expr(b)
    assert structural_equal(left, right)
    assert structural_digest(left) == structural_digest(right)
    assert structural_hash(left) == structural_hash(right)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different_programs_are_structurally_unequal(a: str, b: str) -> None:
    left, right = parse_expr(a), parse_expr(b)
    assert not structural_equal(left, right)
    assert structural_digest(left) != structural_digest(right)


def test_free_variables_are_themselves_unless_mapped() -> None:
    x, y = var("x"), var("y")
    assert structural_equal(op.add(x, y), op.add(x, y))
    assert not structural_equal(op.add(x, y), op.add(y, x))
    assert structural_equal(op.add(x, y), op.add(y, x), map_free_vars=True)
    assert not structural_equal(op.add(x, x), op.add(x, y), map_free_vars=True)


def test_named_dimensions_of_bare_types_are_themselves() -> None:
    n, m = SizeVar("n"), SizeVar("n")
    assert structural_equal(tensor_type((n,)), tensor_type((n,)))
    assert not structural_equal(tensor_type((n,)), tensor_type((m,)))


def test_spans_names_and_inferred_types_do_not_matter() -> None:
    text = "def @main(%x: float32) { exp(%x) }"
    assert structural_equal(
        parse(text, src_name="a"), parse("\n" + text.replace("%x", "%y"), src_name="b")
    )


def test_functions_of_a_module_are_compared_by_name() -> None:
    f, g = "def @f() { 1 }", "def @g() { 2 }"
    assert structural_equal(parse(f + g), parse(g + f))
    assert not structural_equal(parse(f + g), parse("def @g() { 1 } def @f() { 2 }"))
    assert not structural_equal(IRModule(parse(f).functions, attrs={"a": 1}), parse(f))


def test_arrays_are_compared_by_bits() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert structural_equal(const(a), const(np.asfortranarray(a)))
    assert not structural_equal(const(a), const(a.reshape(3, 2)))
    assert not structural_equal(const(a), const(a.astype(np.int32)))
    assert structural_equal(
        const(np.zeros((0, 3), np.float32)), const(np.zeros((0, 3), np.float32))
    )


def test_shared_and_repeated_constants_mean_the_same() -> None:
    c = const(1.0)
    assert structural_equal(op.add(c, c), op.add(const(1.0), const(1.0)))


def test_containers_are_structurally_compared() -> None:
    assert structural_equal((IntImm(1), {"a": 1}), [IntImm(1), {"a": 1}])
    assert not structural_equal({"a": 1}, {"a": True})
    with pytest.raises(TypeError, match="a object has no structure"):
        structural_digest((object(),))


@pytest.mark.slow
def test_digest_is_the_same_in_another_process() -> None:
    text = "def @main(%x: Tensor[(n, 3), float32], %y: float32) { nn.relu(%x) }"
    program = (
        "from ekiden.relay import parse; from ekiden.ir.structural import structural_digest;"
        f"print(structural_digest(parse({text!r})))"
    )
    here = structural_digest(parse(text))
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == here


def test_type_text_and_digest_distinguish_unknown_dimensions() -> None:
    assert structural_equal(
        parse_expr("fn (%x: Tensor[(?,), int32]) { %x }"),
        parse_expr("fn (%x: Tensor[(?,), int32]) { %x }"),
    )
    assert isinstance(tensor_type((3,)), TensorType)


A, B = relay.TypeVar("a"), relay.TypeVar("b")


def test_free_type_variables_are_themselves() -> None:
    """As other free variables are; those that a function, a type or a definition binds are not."""
    shape = relay.TypeVar("a", relay.TypeKind.SHAPE_VAR)
    for one, other in ((A, B), (A, shape), (relay.FuncType([A], B, [A]), relay.FuncType([A], A))):
        assert structural_equal(one, one) and not structural_equal(one, other)
    assert structural_equal(A, B, map_free_vars=True)
    assert not structural_equal(A, shape, map_free_vars=True)
    assert structural_equal(relay.FuncType([A], A, [A]), relay.FuncType([B], B, [B]))
    assert not structural_equal(relay.FuncType([A], A), relay.FuncType([B], B))
    x = relay.var("x", type_annotation=A)
    assert not structural_equal(x, relay.var("x", type_annotation=B), map_free_vars=False)
    result = [relay.Constructor("C", (t, relay.GlobalTypeVar("L")(t)), relay.GlobalTypeVar("L"))
            for t in (A, B)]  # fmt: skip
    assert structural_equal(*result)


N = relay.SizeVar("n")
EQUAL_TYPES = [
    (relay.TensorType([1, N * 2]), relay.TensorType((1, N * 2), "float32")),
    (relay.TensorType([relay.Any()]), relay.TensorType([relay.Any()])),
    (relay.FuncType([A], A, [A]), relay.FuncType([B], B, [B])),
    (relay.TupleType([A, A]), relay.TupleType([A, A])),
    (relay.GlobalTypeVar("List")(A), relay.GlobalTypeVar("List")(A)),
    (relay.RelayRefType(relay.TupleType([])), relay.RelayRefType(relay.TupleType([]))),
]
DIFFERENT_TYPES = [
    (relay.TensorType([1]), relay.TensorType([2])),
    (relay.TensorType([1]), relay.TensorType([1], "int32")),
    (relay.TensorType([N]), relay.TensorType([relay.SizeVar("n")])),
    (relay.TensorType([N]), relay.TensorType([N + 1])),
    (A, relay.TypeVar("a")),
    (relay.IncompleteType(), relay.IncompleteType()),
    (relay.FuncType([A, B], A, [A, B]), relay.FuncType([A, B], B, [A, B])),
    (relay.FuncType([A], A), relay.FuncType([A], A, [A])),
    (relay.GlobalTypeVar("List")(A), relay.GlobalTypeVar("List")(B)),
    (relay.TupleType([A]), A),
]


@pytest.mark.parametrize(("a", "b"), EQUAL_TYPES, ids=lambda t: str(t)[:20])
def test_types_are_equal_by_structure(a: relay.Type, b: relay.Type) -> None:
    assert a == b
    assert hash(a) == hash(b)
    assert not a.same_as(b)


@pytest.mark.parametrize(("a", "b"), DIFFERENT_TYPES, ids=lambda t: str(t)[:20])
def test_types_that_differ_are_not_equal(a: relay.Type, b: relay.Type) -> None:
    assert a != b


LONG = np.arange(5000, dtype="float32")


def _with(value: float, at: int) -> np.ndarray:
    changed = LONG.copy()
    changed[at] = value
    return changed


WHERE = [
    ("fn (%x: int32) { %x }", "fn (%x: int64) { %x }", "params[0].type_annotation.dtype",
     "'int32' and 'int64'"),
    ("let %a = 1; let %b = 2; %a + %b", "let %b = 1; let %a = 2; %a + %a", "body.body.args[0]",
     "a Var 'a' (shared) and a Var 'a' (another)"),
    ("nn.softmax(1f)", "nn.softmax(1f, axis=1)", "attrs.axis", "-1 and 1"),
    ("(1, 2)", "(1, 2, 3)", "fields", "2 items and 3 items"),
    ("add(exp(1f), 2f)", "add(tanh(1f), 2f)", "args[0].op.name", "'exp' and 'tanh'"),
    ("%0 = exp(1f); add(%0, %0)", "add(exp(1f), exp(1f))", "args[1]",
     "a Call (shared) and a Call (another)"),
    ("fn (%x: int32, Primitive=1) { %x }", "fn (%x: int32) { %x }", "attrs",
     "{'Primitive': 1} and None"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "path", "what"), WHERE)
def test_difference_is_named_by_its_path(a: str, b: str, path: str, what: str) -> None:
    left, right = parse_expr(a), parse_expr(b)
    result = find_first_mismatch(left, right)
    assert result is not None and result.path == path
    assert str(result).startswith(f"{path}: {what}")
    assert get_first_structural_mismatch(left, left) is None
    with pytest.raises(ValueError, match=re.escape(f"the two differ at {path}: ")):
        assert_structural_equal(left, right)


def test_constant_difference_names_the_element() -> None:
    """Both print as the same text, which leaves elements out."""
    one, two = (IRModule.from_expr(const(a)) for a in (LONG, _with(-1, 4321)))
    with pytest.raises(
        ValueError, match=r"main\.body\.data\[4321\]: 4321\.0 and -1\.0 \(1 of 5000"
    ):
        assert_structural_equal(one, two)
    assert find_first_mismatch(const(_with(np.nan, 7)), const(_with(np.nan, 7))) is None


def test_arrays_without_elements_are_walked_past() -> None:
    result = find_first_mismatch((np.zeros((0, 3)), 1), (np.zeros((0, 3)), 2))
    assert result is not None and result.path == "[1]"


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_every_difference_has_a_path(a: str, b: str) -> None:
    assert find_first_mismatch(parse_expr(a), parse_expr(b)) is not None


def test_modules_differ_by_their_functions() -> None:
    one = parse("def @main() { 1 } def @f() { 2 }")
    two = parse("def @main() { 1 } def @g() { 2 }")
    result = find_first_mismatch(one, two)
    assert result is not None and (result.path, result.lhs, result.rhs) == (
        "functions.f",
        "there",
        "missing",
    )


@pytest.mark.slow
def test_path_through_a_long_program() -> None:
    """No recursion."""
    left, right = (var("x", shape=()) for _ in range(2))
    ends = [left, right]
    for _ in range(20000):
        ends = [op.exp(e) for e in ends]
    result = find_first_mismatch(*ends)
    assert result is not None and result.path == ".".join(["args[0]"] * 20000)


def test_numbers_are_constants_of_the_other_sides_dtype() -> None:
    assert structural_equal(IntImm(5, "int32"), 5) and structural_equal(5, IntImm(5))
    assert structural_equal(2, 2) and not structural_equal(2, 3)
    assert not structural_equal(IntImm(2), 2.5) and not structural_equal(IntImm(2), 3)
    assert structural_equal(SizeVar("n") * 0 + 1, 1)
