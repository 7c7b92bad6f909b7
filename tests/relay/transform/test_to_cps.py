"""ToCPS and UnCPS: continuation-passing style and back."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import program

from ekiden import relay
from ekiden.ir.type import FuncType
from ekiden.relay import Call, Function, GlobalVar, Interpreter, IRModule, Let, Prelude, Var
from ekiden.relay.analysis import verify
from ekiden.relay.testing import make_nat_expr
from ekiden.relay.transform import InferType, ToCPS, UnCPS, to_cps, un_cps
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import CompileError

pytestmark = pytest.mark.quick

CHOICES = """def @twice(%f: fn (float32) -> float32, %x: float32) -> float32 { %f(%f(%x)) }
def @count(%n: int32, %sum: float32) -> float32 {
  if (equal(%n, 0)) { %sum } else { @count(subtract(%n, 1), add(%sum, 2f)) }
}
def @main(%x: float32, %n: int32) -> (float32, float32) {
  let %y = if (less(%x, 0f)) { @count(%n, %x) } else { let %z = exp(%x); multiply(%z, %z) };
  let %g = fn (%a: float32) -> float32 { subtract(multiply(%a, %y), @count(%n, %a)) };
  let %r = ref(%y);
  let %u = ref_write(%r, @twice(%g, %y));
  (ref_read(%r), if (less(%y, 1f)) { %y } else { %g(%x) })
}
"""
LISTS = """type List[A] { Cons(A, List[A]), Nil }
def @map[A, B](%f: fn (A) -> B, %l: List[A]) -> List[B] {
  match (%l) { Cons(%h, %t) => Cons(%f(%h), @map(%f, %t)), Nil => Nil } }
def @sum(%l: List[float32]) -> float32 {
  match (%l) { Cons(%h, %t) => add(%h, @sum(%t)), Nil => 0f } }
def @main(%x: float32) -> float32 {
  let %f = fn (%a: float32) -> float32 { add(%a, %x) };
  @sum(@map(%f, Cons(%x, Cons(2f, Nil))))
}
"""


def calls_of_functions_come_last(module: IRModule) -> None:
    """What takes a continuation is called where nothing else follows."""
    for function in module.functions.values():
        assert isinstance(function, Function)
        for at in post_order(function, into_functions=True):
            for inside in (at.value,) if isinstance(at, Let) else getattr(at, "args", ()):
                is_call = isinstance(inside, Call) and isinstance(inside.op, (Var, GlobalVar))
                assert not is_call, f"{inside} is not the last thing done"


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (CHOICES, (np.float32(-3), np.int32(3))),
        (CHOICES, (np.float32(0.5), np.int32(0))),
        (LISTS, (np.float32(4),)),
    ],
)
def test_cps_programs_keep_their_meaning(text: str, args: tuple[object, ...]) -> None:
    before = InferType()(program(text))
    transformed = ToCPS()(program(text))
    verify(transformed)
    calls_of_functions_come_last(transformed)
    direct = UnCPS()(transformed)
    verify(direct)
    assert direct["main"].checked_type == before["main"].checked_type
    expected = Interpreter(before).evaluate("main", *args)
    actual = Interpreter(direct).evaluate("main", *args)
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))
    kept = Interpreter(UnCPS()(relay.parse(transformed.astext()))).evaluate("main", *args)
    np.testing.assert_array_equal(np.asarray(kept), np.asarray(expected))


@pytest.mark.slow
def test_one_function_and_what_it_calls() -> None:
    module = IRModule()
    prelude = Prelude(module)
    module.import_from_std("nat.rly")
    kind = relay.TensorType((2, 3))
    x, i = relay.var("x", kind), relay.var("i", kind)
    iterate = module.get_global_var("nat_iterate")
    double = Function([x], x + x)
    module["main"] = Function([i], iterate(double, make_nat_expr(prelude, 3))(i))
    module = InferType()(module)
    output = to_cps(module["main"], mod=module)
    names = {name.name_hint for name in module.functions}
    assert {"nat_iterate_cps", "compose_cps", "nat_iterate"} <= names and "map_cps" not in names
    module["main"] = output
    module = InferType()(module)
    module["main"] = un_cps(module["main"])
    data = np.arange(6, dtype="float32").reshape(2, 3)
    result = relay.create_executor(mod=module).evaluate()(data)
    np.testing.assert_array_equal(result.numpy(), 8 * data)


@pytest.mark.slow
def test_polymorphic_functions_and_long_chains() -> None:
    t = relay.TypeVar("t")
    x, f = relay.var("x", t), relay.var("f", FuncType([t], t))
    double = InferType()(IRModule.from_expr(Function([f, x], f(f(x)), t, [t])))["main"]
    result = InferType()(IRModule.from_expr(to_cps(double)))["main"]
    assert len(result.type_params) == 2 and len(result.params) == 3
    y = relay.var("y", "float32")
    body: relay.Expr = y
    for _ in range(3000):
        body = relay.If(relay.const(True), relay.const(0.0) + body, y)
    long = InferType()(IRModule.from_expr(Function([y], body)))["main"]
    assert un_cps(to_cps(long)).ret_type == relay.TensorType(())


def test_unsupported_cps_programs_are_refused() -> None:
    x = relay.var("x", "float32")
    with pytest.raises(CompileError, match="un_cps: expected a function whose last parameter"):
        un_cps(Function([x], x))
    text = """type Box { Full(fn (float32) -> float32) }
    def @main(%b: Box) -> float32 { match (%b) { Full(%f) => %f(1f) } }"""
    with pytest.raises(CompileError, match="data without functions, got fields of Full"):
        ToCPS()(program(text))
