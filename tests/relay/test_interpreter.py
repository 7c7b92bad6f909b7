"""The interpreter against Python and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from relay_programs import LIST, PROGRAMS

from ekiden.ir.span import Span
from ekiden.relay import Interpreter, TypeData, const, op, parse, parse_expr
from ekiden.relay.interpreter import evaluate_call
from ekiden.relay.interpreter_values import ConstructorValue
from ekiden.runtime.errors import InputError, RunError
from long_runs import sizes

pytestmark = pytest.mark.quick

X = np.array([-1.0, 2.0, 3.0, -4.0], np.float32)


def test_graph_matches_numpy() -> None:
    x = np.array([[-1, 2, 3]], np.float32)
    relu = np.maximum(x, 0)
    np.testing.assert_array_equal(
        Interpreter(parse(PROGRAMS["graph with a shared value"])).evaluate("main", x), relu * 3
    )


@pytest.mark.parametrize(
    ("condition", "expected"), [(True, np.maximum(X, 0) + 1), (False, np.maximum(X, 0) ** 2)]
)
def test_if_matches_numpy(condition: bool, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(
        Interpreter(parse(PROGRAMS["choice"])).evaluate("main", condition, X), expected
    )


SCALARS = [
    ("lets and effects", (np.int32(5),), (5 + 1) * 2 + 6),
    ("a local function that calls itself", (np.int32(100),), 5050),
    ("closures", (np.float32(1.5),), 3.5),
    ("mutual recursion", (np.int32(7),), False),
    ("lists", (np.float32(1),), 2),
]


@pytest.mark.parametrize(("name", "args", "expected"), SCALARS, ids=[n for n, _, _ in SCALARS])
def test_scalar_program_matches_python(
    name: str, args: tuple[object, ...], expected: object
) -> None:
    assert Interpreter(parse(PROGRAMS[name])).evaluate("main", *args) == expected


def test_tuples_go_in_and_come_out() -> None:
    result = Interpreter(parse(PROGRAMS["tuple patterns"])).evaluate(
        "main", (np.int32(1), (np.float32(2), True))
    )
    assert result == (True, 1)


def test_lists_are_constructor_values() -> None:
    module = parse(LIST + "def @main() { @map(fn (%x: int32) { %x * 10 }, Cons(1, Cons(2, Nil))) }")
    value = Interpreter(module).evaluate("main")
    seen = []
    while isinstance(value, ConstructorValue) and value.fields:
        head, value = value.fields
        seen.append(int(head))  # type: ignore[call-overload]
    assert seen == [10, 20]


@pytest.mark.slow
def test_recursion_of_the_program_is_not_python_recursion() -> None:
    assert (
        Interpreter(parse(PROGRAMS["a local function that calls itself"])).evaluate(
            "main", np.int32(20_000)
        )
        == 200_010_000
    )


def test_named_dimensions_in_attributes_are_bound_from_arguments() -> None:
    module = parse("def @main(%x: Tensor[(n, 4), float32]) { reshape(%x, newshape=[n * 2, 2]) }")
    for n in (1, 5):
        result = Interpreter(module).evaluate("main", np.zeros((n, 4), np.float32))
        assert isinstance(result, np.ndarray) and result.shape == (n * 2, 2)


def test_branch_not_taken_is_not_evaluated() -> None:
    text = "let %r = ref(0); let %u = if (True) { () } else { ref_write(%r, 1) }; ref_read(%r)"
    assert Interpreter().evaluate(parse_expr(text)) == 0


def test_shared_effect_happens_once() -> None:
    text = "let %r = ref(1); %0 = { ref_write(%r, ref_read(%r) * 2); ref_read(%r) }; %0 + %0"
    assert Interpreter().evaluate(parse_expr(text)) == 4


def test_functions_are_values() -> None:
    machine = Interpreter()
    closure = machine.evaluate(parse_expr("let %a = 3; fn (%x: int32) { %x + %a }"))
    assert machine.apply(closure, np.int32(4)) == 7


def test_evaluate_call_uses_the_reference() -> None:
    np.testing.assert_array_equal(evaluate_call("add", None, (X, X)), X + X)


REJECTED = [
    ((np.zeros((3, 2), np.float32),), InputError, "%x: expected shape (n, 4), got (3, 2)"),
    (
        (np.zeros(4, np.float32),),
        InputError,
        "%x: expected float32 of shape (n, 4), got float32 of shape (4,)",
    ),
    (
        (np.zeros((1, 4)),),
        InputError,
        "%x: expected float32 of shape (n, 4), got float64 of shape (1, 4)",
    ),
    ((), InputError, "call: expected 1 arguments, got 0"),
]


@pytest.mark.parametrize(("args", "kind", "message"), REJECTED)
def test_wrong_argument_is_refused(
    args: tuple[object, ...], kind: type[Exception], message: str
) -> None:
    machine = Interpreter(parse("def @main(%x: Tensor[(n, 4), float32]) { %x }"))
    with pytest.raises(kind) as caught:
        machine.apply(machine.evaluate("main"), *args)
    assert str(caught.value) == message


def test_two_arguments_must_agree_on_a_named_dimension() -> None:
    module = parse(
        "def @main(%x: Tensor[(n,), float32], %y: Tensor[(n,), float32]) { add(%x, %y) }"
    )
    with pytest.raises(InputError, match=r"^%y: expected shape \(n,\), where n is 2, got \(3,\)"):
        Interpreter(module).evaluate("main", np.zeros(2, np.float32), np.zeros(3, np.float32))


def test_match_without_a_fitting_clause_is_an_error() -> None:
    module = parse(LIST + "def @main(%l: List[int32]) { match? (%l) { Cons(%x, _) => %x } }")
    data = next(iter(module.type_definitions.values()))
    assert isinstance(data, TypeData)
    with pytest.raises(RunError, match="^match: no clause fits Nil"):
        Interpreter(module).evaluate("main", ConstructorValue(data.constructors[1]))


def test_error_in_an_operator_names_it() -> None:
    call = op.add(const(np.zeros((2, 3))), const(np.zeros((4, 5)))).with_fields(
        span=Span("Add 'sum'")
    )
    with pytest.raises(RunError, match="broadcast") as caught:
        Interpreter().evaluate(call)
    assert caught.value.__notes__ == ["while interpreting add, at Add 'sum'"]


LOOPS = """
def @loop(%n: int32, %acc: int32) -> int32 {
  if (%n == 0) { %acc } else { @loop(%n - 1, %acc + 1) }
}
def @even(%n: int32) -> bool { if (%n == 0) { True } else { @odd(%n - 1) } }
def @odd(%n: int32) -> bool { if (%n == 0) { False } else { let %m = %n - 1; @even(%m) } }
def @deep(%n: int32) -> int32 { if (%n == 0) { 0 } else { 1 + @deep(%n - 1) } }
"""


@pytest.mark.slow
@sizes("turns", 20_000, 1_000_000)
def test_loops_need_no_recursion_depth(turns: int) -> None:
    machine = Interpreter(parse(LOOPS), depth_limit=3)
    assert machine.evaluate("loop", np.int32(turns), np.int32(0)) == turns
    assert machine.evaluate("odd", np.int32(1001)) == True  # noqa: E712 - an array


@pytest.mark.slow
def test_loop_in_a_local_function_and_over_a_list() -> None:
    module = parse(
        LIST
        + """
        def @main(%n: int32) -> int32 {
          let %build = fn (%i: int32, %l: List[int32]) -> List[int32] {
            if (%i == 0) { %l } else { %build(%i - 1, Cons(%i, %l)) }
          };
          let %sum = fn (%l: List[int32], %acc: int32) -> int32 {
            match (%l) { Cons(%x, %rest) => %sum(%rest, %acc + %x), Nil => %acc }
          };
          %sum(%build(%n, Nil), 0)
        }
        """
    )
    assert Interpreter(module, depth_limit=3).evaluate("main", np.int32(2000)) == 2001000


def test_recursion_deeper_than_the_limit_is_refused() -> None:
    module = parse(LOOPS)
    assert Interpreter(module, depth_limit=100).evaluate("deep", np.int32(99)) == 99
    with pytest.raises(RunError) as caught:
        Interpreter(module, depth_limit=100).evaluate("deep", np.int32(100))
    assert str(caught.value) == (
        "call of deep: more than 100 calls wait for each other; make it a tail call, or give the"
        " interpreter a greater depth_limit"
    )


def test_endless_recursion_ends_with_an_error() -> None:
    module = parse("def @f(%n: int32) -> int32 { 1 + @f(%n) }")
    with pytest.raises(RunError, match="^call of f: more than 5000 calls"):
        Interpreter(module, depth_limit=5000).evaluate("f", np.int32(0))


def test_shared_value_is_evaluated_at_first_use() -> None:
    text = """
        let %r = ref(0);
        %0 = { ref_write(%r, ref_read(%r) + 1); ref_read(%r) };
        let %y = if (True) { %0 } else { 5 };
        let %f = fn (%c: bool) { if (%c) { %y } else { %0 } };
        (%f(True), %f(False), %0, ref_read(%r))
    """
    assert Interpreter().evaluate(parse_expr(text)) == (1, 1, 1, 1)


def test_references_are_shared_by_closures_and_data() -> None:
    module = parse(
        """
        type Cell { Cell(ref(int32), fn () -> ()), }
        def @make(%n: int32) -> Cell {
          let %r = ref(%n); Cell(%r, fn () -> () { ref_write(%r, ref_read(%r) + 1) })
        }
        def @main() -> (int32, int32) {
          let %a = @make(1);
          let %b = @make(10);
          match ((%a, %b)) {
            (Cell(%r, %next), Cell(%s, _)) => {
              %next(); %next(); ref_write(%s, ref_read(%r) * 100);
              (ref_read(%r), ref_read(%s))
            }
          }
        }
        """
    )
    assert Interpreter(module).evaluate("main") == (3, 300)


def test_function_over_named_dimensions_calls_itself() -> None:
    """Halve the rows until one is left: each activation has its own n."""
    module = parse(
        """
        def @main(%x: Tensor[(n, 2), float32], %k: int32) -> Tensor[(?, 2), float32] {
          if (%k == 0) { %x } else {
            @main(strided_slice(%x, begin=[0], end=[floordiv(n, 2)], axes=[0]), %k - 1)
          }
        }
        """
    )
    result = Interpreter(module).evaluate("main", np.zeros((16, 2), np.float32), np.int32(3))
    assert isinstance(result, np.ndarray) and result.shape == (2, 2)
