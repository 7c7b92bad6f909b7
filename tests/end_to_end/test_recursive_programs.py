"""Programs of recursion, data, closures and references: compiled, they give what the interpreter
gives, in the stack that they need.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from relay_networks import check, normal

import ekiden
from comparison import agree, flatten
from ekiden import relay, runtime
from ekiden.relay.interpreter import Interpreter
from ekiden.runtime.errors import RunError
from long_runs import alike

INT = np.int32
LISTS = "type List[A] { Cons(A, List[A]), Nil, }\n"

PROGRAMS: dict[str, tuple[str, list[tuple[object, ...]]]] = {
    "fibonacci": (
        """
        def @fib(%n: int32) -> int32 {
          if (%n < 2) { %n } else { @fib(%n - 1) + @fib(%n - 2) }
        }
        def @main(%n: int32) { @fib(%n) }""",
        [(INT(0),), (INT(1),), (INT(12),)],
    ),
    "ackermann": (
        """
        def @ack(%m: int32, %n: int32) -> int32 {
          if (%m == 0) { %n + 1 } else {
            if (%n == 0) { @ack(%m - 1, 1) } else { @ack(%m - 1, @ack(%m, %n - 1)) } } }
        def @main(%m: int32, %n: int32) { @ack(%m, %n) }""",
        [(INT(0), INT(3)), (INT(2), INT(3))],
    ),
    "even and odd": (
        """
        def @even(%n: int32) -> bool { if (%n == 0) { True } else { @odd(%n - 1) } }
        def @odd(%n: int32) -> bool { if (%n == 0) { False } else { @even(%n - 1) } }
        def @main(%n: int32) { (@even(%n), @odd(%n)) }""",
        [(INT(0),), (INT(7),), (INT(30),)],
    ),
    "a fold over a tree": (
        """
        type Tree { Leaf(float32), Node(Tree, Tree), }
        def @grow(%n: int32, %x: float32) -> Tree {
          if (%n <= 0) { Leaf(%x) } else { Node(@grow(%n - 1, %x * 2f), @grow(%n - 2, %x + 1f)) }
        }
        def @fold(%f: fn (float32, float32) -> float32, %t: Tree) -> float32 {
          match (%t) { Leaf(%x) => %x, Node(%a, %b) => %f(@fold(%f, %a), @fold(%f, %b)) }
        }
        def @main(%n: int32, %x: float32) {
          let %t = @grow(%n, %x);
          (@fold(fn (%a: float32, %b: float32) { %a + %b }, %t),
           @fold(fn (%a: float32, %b: float32) { maximum(%a, %b) * %x }, %t), %t)
        }""",
        [(INT(0), np.float32(2)), (INT(5), np.float32(0.5))],
    ),
    "an insertion sort": (
        LISTS
        + """
        def @insert(%x: float32, %l: List[float32]) -> List[float32] {
          match (%l) {
            Cons(%y, %rest) => if (%x <= %y) { Cons(%x, %l) } else { Cons(%y, @insert(%x, %rest)) },
            Nil => Cons(%x, Nil),
          } }
        def @sort(%l: List[float32], %done: List[float32]) -> List[float32] {
          match (%l) { Cons(%x, %rest) => @sort(%rest, @insert(%x, %done)), Nil => %done } }
        def @main(%a: float32, %b: float32, %c: float32) {
          @sort(Cons(%a, Cons(%b, Cons(%c, Cons(%a + %b, Nil)))), Nil)
        }""",
        [tuple(np.float32(x) for x in (3, 1, 2)), tuple(np.float32(x) for x in (-1, 5, 0))],
    ),
    "continuations": (
        """
        def @sum(%n: int32, %k: fn (int32) -> int32) -> int32 {
          if (%n == 0) { %k(0) } else { @sum(%n - 1, fn (%s: int32) { %k(%s + %n) }) }
        }
        def @main(%n: int32) { @sum(%n, fn (%s: int32) { %s * 2 }) }""",
        [(INT(0),), (INT(10),)],
    ),
    "numerals that are functions": (
        """
        def @zero(%f: fn (int32) -> int32) -> fn (int32) -> int32 { fn (%x: int32) { %x } }
        def @succ(%n: fn (fn (int32) -> int32) -> fn (int32) -> int32)
            -> fn (fn (int32) -> int32) -> fn (int32) -> int32 {
          fn (%f: fn (int32) -> int32) {
            let %g = %n(%f); fn (%x: int32) { %f(%g(%x)) } }
        }
        def @times(%a: fn (fn (int32) -> int32) -> fn (int32) -> int32,
                   %b: fn (fn (int32) -> int32) -> fn (int32) -> int32)
            -> fn (fn (int32) -> int32) -> fn (int32) -> int32 {
          fn (%f: fn (int32) -> int32) { %a(%b(%f)) }
        }
        def @main(%x: int32) {
          let %two = @succ(@succ(@zero)); let %three = @succ(%two);
          let %six = @times(%two, %three);
          let %all = %six(fn (%y: int32) { %y * 2 + %x });
          %all(1)
        }""",
        [(INT(0),), (INT(3),)],
    ),
    "an evaluator of expressions": (
        """
        type Expr { Num(float32), Var, Add(Expr, Expr), Mul(Expr, Expr), Let(Expr, Expr),
                    If(Expr, Expr, Expr), }
        def @eval(%e: Expr, %x: float32) -> float32 {
          match (%e) {
            Num(%v) => %v,
            Var => %x,
            Add(Num(%a), Num(%b)) => %a + %b,
            Add(%a, %b) => @eval(%a, %x) + @eval(%b, %x),
            Mul(Num(%a), %b) => %a * @eval(%b, %x),
            Mul(%a, Num(%b)) => @eval(%a, %x) * %b,
            Mul(%a, %b) => @eval(%a, %x) * @eval(%b, %x),
            Let(%v, %body) => @eval(%body, @eval(%v, %x)),
            If(%c, %a, %b) => if (@eval(%c, %x) < 0f) { @eval(%a, %x) } else { @eval(%b, %x) },
          } }
        def @main(%x: float32) {
          let %e = Let(Add(Mul(Num(2f), Var), Num(1f)),
                       If(Var, Mul(Var, Var), Add(Num(3f), Mul(Var, Num(4f)))));
          (@eval(%e, %x), @eval(Mul(%e, %e), %x), @eval(Add(Num(1f), Num(2f)), %x))
        }""",
        [(np.float32(1),), (np.float32(-4),)],
    ),
    "a network over a tree": (
        """
        type Tree { Leaf(Tensor[(1, 4), float32]), Node(Tree, Tree), }
        def @state(%t: Tree, %w: Tensor[(8, 4), float32], %u: Tensor[(8, 4), float32])
            -> (Tensor[(1, 4), float32], Tensor[(1, 4), float32]) {
          match (%t) {
            Leaf(%x) => {
              let %g = split(nn.dense(%x, %w), indices_or_sections=2, axis=1);
              let %c = tanh(%g.0);
              (sigmoid(%g.1) * tanh(%c), %c)
            },
            Node(%a, %b) => {
              let %l = @state(%a, %w, %u);
              let %r = @state(%b, %w, %u);
              let %g = split(nn.dense(%l.0 + %r.0, %u), indices_or_sections=2, axis=1);
              let %c = tanh(%g.0) + %l.1 * sigmoid(%l.0) + %r.1 * sigmoid(%r.0);
              (sigmoid(%g.1) * tanh(%c), %c)
            },
          } }
        def @main(%x: Tensor[(1, 4), float32], %y: Tensor[(1, 4), float32],
                  %w: Tensor[(8, 4), float32], %u: Tensor[(8, 4), float32]) {
          @state(Node(Node(Leaf(%x), Leaf(%y)), Node(Leaf(%y), Node(Leaf(%x), Leaf(%x)))), %w, %u)
        }""",
        [(normal(1, 4), normal(1, 4, seed=1), normal(8, 4, seed=2), normal(8, 4, seed=3))],
    ),
    "cells that two names share": (
        """
        def @main(%x: float32) {
          let %a = ref(%x);
          let %b = %a;
          let %old = ref_read(%b);
          ref_write(%a, %x * 2f);
          let %mid = ref_read(%b);
          ref_write(%b, %old + %mid);
          (%old, %mid, ref_read(%a))
        }""",
        [(np.float32(3),)],
    ),
    "counters": (
        LISTS
        + """
        def @main(%x: int32) {
          let %make = fn (%start: int32) {
            let %cell = ref(%start);
            fn (%by: int32) { ref_write(%cell, ref_read(%cell) + %by); ref_read(%cell) }
          };
          let %a = %make(%x);
          let %b = %make(10);
          let %first = %a(1);
          let %second = %a(2);
          let %other = %b(%x);
          (%first, %second, %other, %a(0), %b(0))
        }""",
        [(INT(0),), (INT(5),)],
    ),
    "cells in data": (
        LISTS
        + """
        def @add(%l: List[ref(int32)], %by: int32) -> () {
          match (%l) {
            Cons(%cell, %rest) => { ref_write(%cell, ref_read(%cell) + %by); @add(%rest, %by) },
            Nil => (),
          } }
        def @main(%x: int32) {
          let %a = ref(%x); let %b = ref(1);
          @add(Cons(%a, Cons(%b, Cons(%a, Nil))), 3);
          (ref_read(%a), ref_read(%b))
        }""",
        [(INT(4),)],
    ),
    "a function in a cell that calls itself through it": (
        """
        def @main(%n: int32) {
          let %cell = ref(fn (%k: int32) -> int32 { %k });
          let %f = fn (%k: int32) -> int32 {
            if (%k <= 0) { 0 } else { let %g = ref_read(%cell); %k + %g(%k - 1) } };
          ref_write(%cell, %f);
          let %got = %f(%n);
          ref_write(%cell, fn (%k: int32) -> int32 { %k });
          %got
        }""",
        [(INT(6),)],
    ),
    "a while loop": (
        """
        def @main(%n: int32, %x: Tensor[(3), float32]) {
          let %loop = fn (%i: int32, %s: Tensor[(3), float32]) -> Tensor[(3), float32] {
            if (%i < %n) { %loop(%i + 1, tanh(%s) + %x) } else { %s } };
          %loop(0, %x)
        }""",
        [(INT(0), normal(3)), (INT(9), normal(3))],
    ),
    "functions at several types": (
        LISTS
        + """
        def @id[A](%x: A) -> A { %x }
        def @compose[A, B, C](%f: fn (B) -> C, %g: fn (A) -> B) -> fn (A) -> C {
          fn (%x: A) { %f(%g(%x)) } }
        def @map[A, B](%f: fn (A) -> B, %l: List[A]) -> List[B] {
          match (%l) { Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)), Nil => Nil } }
        def @length[A](%l: List[A]) -> int32 {
          match (%l) { Cons(_, %rest) => 1 + @length(%rest), Nil => 0 } }
        def @main(%x: Tensor[(2, 3), float32], %n: int32) {
          let %f = @compose(fn (%y: Tensor[(2), float32]) { sum(%y) },
                            fn (%y: Tensor[(2, 3), float32]) { sum(%y, axis=[1]) });
          let %l = @map(%f, Cons(%x, Cons(%x * 2f, Nil)));
          (@id(%n), @id(%x), %l, @length(%l), @length(Cons(@id((%n, %x)), Nil)))
        }""",
        [(normal(2, 3), INT(4))],
    ),
    "constructors as functions": (
        LISTS
        + """
        def @foldr[A, B](%f: fn (A, B) -> B, %b: B, %l: List[A]) -> B {
          match (%l) { Cons(%x, %rest) => %f(%x, @foldr(%f, %b, %rest)), Nil => %b } }
        def @main(%x: float32) { @foldr(Cons, Cons(0f, Nil), Cons(%x, Cons(1f, Nil))) }""",
        [(np.float32(2),)],
    ),
}


@alike(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_gives_what_the_interpreter_gives(name: str) -> None:
    text, runs = PROGRAMS[name]
    check(relay.parse(text), *(tuple(map(np.asarray, args)) for args in runs))


LOOPS = relay.parse(
    LISTS
    + """
    def @loop(%n: int32, %a: int32) -> int32 {
      if (%n <= 0) { %a } else { @loop(%n - 1, %a + 2) } }
    def @even(%n: int32) -> bool { if (%n <= 0) { True } else { let %r = @odd(%n - 1); %r } }
    def @odd(%n: int32) -> bool { if (%n <= 0) { False } else { @even(%n - 1) } }
    def @times(%n: int32, %f: fn (int32) -> int32, %x: int32) -> int32 {
      if (%n <= 0) { %f(%x) } else { @times(%n - 1, %f, %x + 1) } }
    def @sum(%n: int32) -> int32 { if (%n <= 0) { 0 } else { 1 + @sum(%n - 1) } }
    def @build(%n: int32, %l: List[int32]) -> List[int32] {
      if (%n <= 0) { %l } else { @build(%n - 1, Cons(%n, %l)) } }
    def @length(%l: List[int32], %n: int32) -> int32 {
      match (%l) { Cons(_, %rest) => @length(%rest, %n + 1), Nil => %n } }
    def @main(%which: int32, %n: int32) {
      if (%which == 0) { @loop(%n, 0) } else {
      if (%which == 1) { if (@even(%n)) { 1 } else { 0 } } else {
      if (%which == 2) { @times(%n, fn (%x: int32) { %x * %which }, 0) } else {
      if (%which == 3) { @sum(%n) } else { @length(@build(%n, Nil), 0) } } } }
    }"""
)


def _run(exe: ekiden.Executable, which: int, n: int) -> int:
    return int(exe(INT(which), INT(n)).numpy())


@pytest.mark.parametrize("which", [0, 1, 2])
def test_tail_calls_use_constant_memory(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of itself, of two functions in turn, of a closure at the end."""
    monkeypatch.setenv("EKIDEN_MAX_DEPTH", "10")
    exe = ekiden.compile(LOOPS)
    assert _run(exe, which, 1_000_000) == (2_000_000, 1, 2_000_000)[which]


def test_recursion_a_hundred_thousand_deep_and_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = ekiden.compile(LOOPS)
    assert _run(exe, 3, 100_000) == 100_000
    monkeypatch.setenv("EKIDEN_MAX_DEPTH", "1000")
    limited = ekiden.compile(LOOPS)
    with pytest.raises(RunError, match="recursion is deeper than 1000 calls"):
        _run(limited, 3, 2000)
    assert _run(limited, 3, 500) == 500


def test_list_of_a_million_cells_round_trips() -> None:
    exe = ekiden.compile(LOOPS)
    assert _run(exe, 4, 1_000_000) == 1_000_000


def test_long_list_is_a_result_and_an_argument() -> None:
    text = (
        LISTS
        + """
    def @build(%n: int32, %l: List[int32]) -> List[int32] {
      if (%n <= 0) { %l } else { @build(%n - 1, Cons(%n, %l)) } }
    def @main(%n: int32, %l: List[int32]) { @build(%n, %l) }"""
    )
    exe = ekiden.compile(relay.parse(text))
    nil = runtime.ADT(1)
    result: Any = exe(INT(100_000), nil)
    longer: Any = exe(INT(1), result)
    shared, cell = longer[1], result
    for number in range(1, 100_001):
        assert int(shared[0].numpy()) == int(cell[0].numpy()) == number
        shared, cell = shared[1], cell[1]
    assert shared.tag == cell.tag == 1
    assert repr(longer).endswith(", ADT(1, ())" + ")" * 100_001)


@pytest.mark.parametrize("kind", ["debug", "vm", "aot"])
def test_returned_closure_can_be_called(kind: str) -> None:
    module = relay.parse("""
    def @main(%x: float32) {
      let %cell = ref(%x);
      (%x, fn (%y: float32) {
        ref_write(%cell, ref_read(%cell) + %y);
        let %now = ref_read(%cell);
        fn () { %now } }) }""")
    run: Any = relay.create_executor(kind, module).evaluate()
    _, add = run(np.float32(1))
    one = add(np.float32(2))
    assert [float(item.numpy()) for item in (one(), add(np.float32(3))(), one())] == [3.0, 6.0, 3.0]


def test_function_belongs_to_its_program() -> None:
    give = relay.parse("def @main(%x: float32) { fn (%y: float32) { %y * %x } }")
    take = relay.parse("def @main(%f: fn (float32) -> float32, %x: float32) { %f(%x) }")
    two: Any = ekiden.compile(give)(np.float32(2))
    assert float(two(np.float32(4)).numpy()) == 8.0
    with pytest.raises(RunError, match="the closure belongs to another executable"):
        ekiden.compile(take)(two, np.float32(3))
    with pytest.raises(RunError, match="no function that the program gives takes 2 arguments"):
        two(np.float32(1), np.float32(2))


def test_function_that_the_program_gave_is_an_argument() -> None:
    """main(f) gives fn (g) { fn (x) { g(x) + 1 } }; what that gives is taken again."""
    module = relay.parse("""
    def @main(%x: float32) {
      (fn (%y: float32) { %y * %x },
       fn (%g: fn (float32) -> float32) { fn (%y: float32) { %g(%y) + 1f } }) }""")
    f, more = ekiden.compile(module)(np.float32(2))
    twice: Any = more
    plus: Any = twice(twice(f))
    assert float(plus(np.float32(3)).numpy()) == 8.0


@pytest.mark.parametrize("kind", ["debug", "vm"])
def test_data_and_cells_are_arguments_and_results(kind: str) -> None:
    module = relay.parse(
        LISTS
        + """
    def @main(%l: List[float32], %t: (float32, List[float32])) {
      match (%l) { Cons(%x, _) => (Cons(%x + %t.0, %t.1), %x), Nil => (Nil, 0f) }
    }"""
    )
    cons, nil = module.get_type("List")[1:]
    executor = relay.create_executor(kind, module)
    run: Any = executor.evaluate()
    cons, nil = (executor.evaluate(module.get_type("List")[n]) for n in (1, 2))
    one = cons(np.float32(1), nil())  # type: ignore[operator]
    result = run(one, (np.float32(2), one))
    head, first = flatten(result)[0], flatten(result)[-1]
    assert (float(head), float(first)) == (3.0, 1.0)


def test_unmatched_case_names_its_location() -> None:
    text = LISTS + "def @main(%l: List[int32]) { match? (%l) { Cons(%x, _) => %x } }"
    exe = ekiden.compile(relay.parse(text))
    with pytest.raises(RunError, match="the program cannot go on"):
        exe(runtime.ADT(1))


def test_program_that_was_evaluated_in_part() -> None:
    text = """
    def @power(%n: int32, %x: float32) -> float32 {
      if (%n == 0) { 1f } else { %x * @power(%n - 1, %x) } }
    def @main(%x: float32) { @power(3, %x) }"""
    module = relay.parse(text)
    partial = relay.transform.PartialEvaluate()(relay.transform.InferType()(module))
    agree(
        ekiden.compile(partial)(np.float32(2)), Interpreter(module).evaluate("main", np.float32(2))
    )


def test_known_closure_call_allocates_no_closure() -> None:
    exe = ekiden.compile(relay.parse(PROGRAMS["a while loop"][0]))
    assert "alloc_closure" not in exe.disassemble()
    assert "invoke_tail" in exe.disassemble()


def test_frames_are_small() -> None:
    """A hundred values in turn need a handful of registers."""
    lines = "".join(f"let %v{i + 1} = @f(%v{i});" for i in range(100))
    text = (
        f"def @f(%x: float32) -> float32 {{ tanh(%x) }} def @main(%v0: float32) {{ {lines} %v100 }}"
    )
    exe = ekiden.compile(relay.parse(text))
    registers, _ = exe.raw.code("main")
    assert registers <= 2
