"""Programs shared by Relay's tests."""

from __future__ import annotations

from ekiden.relay import Function, IRModule, Let, SizeVar, Var, op, var

LIST = """
type List[A] { Cons(A, List[A]), Nil, }
def @length[A](%l: List[A]) -> int32 {
  match (%l) { Cons(_, %rest) => 1 + @length(%rest), Nil => 0, }
}
def @map[A, B](%f: fn (A) -> B, %l: List[A]) -> List[B] {
  match (%l) { Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)), Nil => Nil, }
}
"""

PROGRAMS = {
    "graph with a shared value": """
        def @main(%x: Tensor[(n, 3), float32]) { %0 = nn.relu(%x); add(%0, multiply(%0, 2f)) }""",
    "arithmetic on dimensions": """
        def @main(%x: Tensor[(n, m * 2 + 1, ?), float32],
                  %y: Tensor[(floordiv(n, 2) + min(m, 4),), int64]) {
          (%x, %y)
        }""",
    "attributes": """
        def @main(%x: Tensor[(n, 8), float32]) {
          concatenate((reshape(%x, newshape=[n * 2, 4]), reshape(%x, newshape=[-1, 4])), axis=-2)
        }""",
    "projections": """
        def @main(%x: (Tensor[(2,), float32], (int32, bool))) { (%x.1.1, %x.0, %x.1) }""",
    "choice": """
        def @main(%c: bool, %x: Tensor[(4,), float32]) {
          %0 = nn.relu(%x);
          if (%c) { add(%0, 1f) } else { %1 = negative(%0); multiply(%1, %1) }
        }""",
    "lets and effects": """
        def @main(%x: int32) {
          let %r: ref(int32) = ref(%x);
          ref_write(%r, ref_read(%r) + 1);
          let %y = { let %z = ref_read(%r); %z * 2 };
          %y + ref_read(%r)
        }""",
    "a local function that calls itself": """
        def @main(%n: int32) -> int32 {
          let %sum = fn (%i: int32) -> int32 { if (%i <= 0) { 0 } else { %i + %sum(%i - 1) } };
          %sum(%n)
        }""",
    "closures": """
        def @main(%x: float32) {
          let %add = fn (%a: float32) { fn (%b: float32) { %a + %b } };
          %add(%x)(2f)
        }""",
    "mutual recursion": """
        def @even(%n: int32) -> bool { if (%n == 0) { True } else { @odd(%n - 1) } }
        def @odd(%n: int32) -> bool { if (%n == 0) { False } else { @even(%n - 1) } }
        def @main(%n: int32) { @even(%n) }""",
    "lists": LIST + "def @main(%x: float32) { @length(@map(fn (%v: float32) { (%v, 1) },"
    " Cons(%x, Cons(2f, Nil))))"
    "}",
    "tuple patterns": """
        def @main(%p: (int32, (float32, bool))) { match (%p) { (%a, (_, %b)) => (%b, %a) } }""",
    "function attributes": """
        def @main(%x: Tensor[(4,), float32]) {
          %0 = fn (%p: Tensor[(4,), float32], Primitive=1, relay.reshape_only=0)
                   -> Tensor[(4,), float32] {
            nn.relu(%p)
          };
          %0(%x)
        }""",
    "names that are no identifiers": """
        def @"m/0:1"(%"input.1": float32, %"a b\\"": float32) { %"input.1" + %"a b\\"" }""",
    "polymorphic call with its type argument": """
        def @id[A](%x: A) -> A { %x }
        def @main() { @id[(int32, bool)]((1, True)) }""",
    "literals": """
        def @main() { (1, 1i64, 2i16, -3, 1.5f, 2f64, -0f, 1e-05f16, inff, -inff, nanf, True) }""",
}
"""Name -> text."""


def add_chain(length: int) -> IRModule:
    """`add(add(... add(%x, %x) ..., %x), %x)`"""
    x = var("x", shape=(SizeVar("n"), 3))
    body = x
    for _ in range(length):
        body = op.add(body, x)
    return IRModule.from_expr(Function((x,), body, None))


def let_chain(length: int) -> IRModule:
    """`let %v = add(%x, %x); let %v_1 = add(%v, %x); ...`"""
    x = var("x", shape=(3,))
    names: list[Var] = [x]
    values = []
    for _ in range(length):
        values.append(op.add(names[-1], x))
        names.append(var("v"))
    body = names[-1]
    for name, value in zip(reversed(names[1:]), reversed(values), strict=True):
        body = Let(name, value, body)
    return IRModule.from_expr(Function((x,), body, None))
