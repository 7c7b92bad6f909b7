"""Programs that are refused, each with the first line of the message it gives.

After it come the line of the program and a caret under the place.
"""

from __future__ import annotations

LIST = "type List[A] { Cons(A, List[A]), Nil, }\n"
BIT = "type Bit { One, Zero, }\n"

UNREADABLE = [
    (
        "def @main(%x: Tensor[(2, 3), float32]) { nn.nope(%x) }",
        "text:1:42: no operator, constructor or keyword 'nn.nope'",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { add(%x, %x, axis=1) }",
        "text:1:54: this call takes no attributes",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { nn.softmax(%x, axis=True) }",
        "text:1:57: SoftmaxAttrs: axis cannot be True",
    ),
    (
        "def @main() { %y }",
        "text:1:15: %y is not bound here",
    ),
    (
        "def @main() { @nope(1) }",
        "text:1:15: no function @nope",
    ),
    (
        "def @main() { Cons(1, Nil) }",
        "text:1:15: no operator, constructor or keyword 'Cons'",
    ),
    (
        "def @main() { let %x = 1 }",
        "text:1:26: expected ';', got '}'",
    ),
    (
        "def @main( { 1 }",
        "text:1:12: expected a parameter or key=value, got '{'",
    ),
    (
        "def @main() { 1",
        "text:1:1: 'def' has no body that ends with '}'",
    ),
    (
        "def @f() { 1 } def @f() { 2 }",
        "text:1:20: function @f is defined twice",
    ),
    (
        "type A { B, B, } def @main() { 1 }",
        "text:1:13: constructor B is defined twice",
    ),
    (
        "type A { B, } type A { C, } def @main() { 1 }",
        "text:1:20: type A is defined twice",
    ),
    (
        "def @main(%x: List[int32]) { %x }",
        "text:1:15: no type 'List'",
    ),
    (
        "def @main(%x: float99) { %x }",
        "text:1:15: no type 'float99'",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32) { %x }",
        "text:1:37: expected ']', got ')'",
    ),
    (
        "def @main() { 300i8 }",
        "text:1:15: 300 is out of the range of int8",
    ),
    (
        "def @main() { 1 +  }",
        "text:1:20: expected an expression, got '}'",
    ),
    (
        'def @main() { "a" }',
        "text:1:15: expected an expression, got 'a'",
    ),
    (
        "def @f(%x: A) -> A { %x } def @main() { @f(1) }",
        "text:1:12: no type 'A'",
    ),
    (
        LIST + "def @main(%l: List[int32]) { match (%l) { Bad(_) => 1 } }",
        "text:2:43: expected a pattern, got 'Bad'",
    ),
]
ILL_TYPED = [
    (
        ("def @main(%x: Tensor[(2,), float32], %y: Tensor[(3,), float32]) { add(%x, %y) }"),
        "add: shapes (2,) and (3,) do not broadcast, at text:1:67",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { %x + 1 }",
        "add: arguments must have one dtype, got float32, int32, at text:1:45",
    ),
    (
        (
            "def @main(%x: Tensor[(2, 3), float32], %w: Tensor[(4, 5), float32]) { "
            "nn.dense(%x, %w) }"
        ),
        "nn.dense: the last dimensions of 'data' and 'weight' must agree, got 3 and 5, "
        "at text:1:71",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { nn.dense(%x, %x, units=7) }",
        "nn.dense: attribute 'units' and rows of 'weight' must agree, got 7 and 2, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { nn.conv2d(%x, %x) }",
        "nn.conv2d: 'data' must have 4 dimensions, got 2: (2, 3), at text:1:42",
    ),
    (
        (
            "def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 2, 3, 3), "
            "float32]) { nn.conv2d(%x, %w) }"
        ),
        "nn.conv2d: channels of 'data' and 'weight' must agree, got 3 and 2, at text:1:83",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { reshape(%x, newshape=[4, 2]) }",
        "reshape: (2, 3) to (4, 2): 6 elements cannot become 8, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { reshape(%x, newshape=[-1, -1]) }",
        "reshape: (2, 3) to (-1, -1): at most one dimension may be -1, got 2, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { transpose(%x, axes=[0, 2]) }",
        "transpose: axis must be in [-2, 2), got 2, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { transpose(%x, axes=[0]) }",
        "transpose: axes must be a permutation of 2 axes, got (0,), at text:1:42",
    ),
    (
        (
            "def @main(%x: Tensor[(2, 3), float32], %y: Tensor[(2, 4), float32]) { "
            "concatenate((%x, %y)) }"
        ),
        "concatenate: extents of axis 1 must agree, got 3 and 4, at text:1:71",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { concatenate(%x) }",
        "concatenate: the argument must be one tuple of tensors, got Tensor[(2, 3), "
        "float32], at text:1:42",
    ),
    (
        "def @main() { concatenate(()) }",
        "concatenate: expected at least one tensor, got an empty tuple, at text:1:15",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { squeeze(%x, axis=[0]) }",
        "squeeze: axis 0 must have extent 1, got (2, 3), at text:1:42",
    ),
    (
        ("def @main(%x: Tensor[(2, 3), float32]) { split(%x, indices_or_sections=2, axis=1) }"),
        "split: an axis of extent 3 does not divide into 2 equal parts, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { take(%x, %x, axis=0) }",
        "take: 'indices' must be integers, got float32, at text:1:42",
    ),
    (
        (
            "def @main(%x: Tensor[(2, 3), float32]) { strided_slice(%x, begin=[0], "
            "end=[2], strides=[0]) }"
        ),
        "strided_slice: a stride must not be 0, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { nn.softmax(%x, axis=2) }",
        "nn.softmax: axis must be in [-2, 2), got 2, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { sum(%x, axis=[2]) }",
        "sum: axis must be in [-2, 2), got 2, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { broadcast_to(%x, shape=[3, 3]) }",
        "broadcast_to: (2, 3) does not broadcast to (3, 3), at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { nn.batch_matmul(%x, %x) }",
        "nn.batch_matmul: 'tensor_a' must have 3 dimensions, got 2: (2, 3), at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { nn.max_pool2d(%x) }",
        "nn.max_pool2d: 'data' must have 4 dimensions, got 2: (2, 3), at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { where(%x, 1, 2f) }",
        "where: arguments must have one dtype, got int32, float32, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { add((%x, %x), %x) }",
        "add: argument 0 must be a tensor, got (Tensor[(2, 3), float32], Tensor[(2, "
        "3), float32]), at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { add(%x) }",
        "add: expected 2 arguments (lhs, rhs), got 1, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { add(%x, %x, %x) }",
        "add: expected 2 arguments (lhs, rhs), got 3, at text:1:42",
    ),
    (
        (
            "def @main(%x: Tensor[(2, 3), float32], %b: Tensor[(4,), float32]) { "
            "nn.bias_add(%x, %b) }"
        ),
        "nn.bias_add: axis 1 of 'data' and the vector must agree, got 3 and 4, at text:1:69",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { one_hot(%x, 1f, 0f, depth=3) }",
        "one_hot: 'indices' must be integers, got float32, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { expand_dims(%x, axis=5) }",
        "expand_dims: axis must be in [-3, 3), got 5, at text:1:42",
    ),
    (
        "def @main(%x: Tensor[(2,), float32]) -> Tensor[(3,), float32] { %x }",
        "the result of @main: expected Tensor[(3,), float32], got Tensor[(2,), "
        "float32], at text:1:10",
    ),
    (
        "def @main(%x: Tensor[(n,), float32]) -> Tensor[(m,), float32] { %x }",
        "the result of @main: expected Tensor[(m,), float32], got Tensor[(n,), "
        "float32], at text:1:10",
    ),
    (
        "def @main() { if (1) { 2 } else { 3 } }",
        "if: the condition: expected bool, got int32, at text:1:15",
    ),
    (
        "def @main() { if (True) { 2 } else { 3f } }",
        "if: the else branch, beside the other: expected int32, got float32, at text:1:15",
    ),
    (
        "def @main(%c: Tensor[(1,), bool]) { if (%c) { 1 } else { 2 } }",
        "if: the condition: expected bool, got Tensor[(1,), bool], at text:1:37",
    ),
    (
        "def @main() { let %x: float32 = 1; %x }",
        "the value of %x: expected float32, got int32, at text:1:15",
    ),
    (
        "def @main() { (1, 2).2 }",
        "field 2: expected one of the 2 fields of a tuple, got (int32, int32), at text:1:15",
    ),
    (
        "def @main() { 1 .0 }",
        "field 0: expected a tuple, got int32, at text:1:15",
    ),
    (
        "def @main() { 1(2) }",
        "call of a constant: expected a function, got int32, at text:1:15",
    ),
    (
        "def @main() { let %f = fn (%x: int32) { %x }; %f(1, 2) }",
        "call of %f: expected 1 argument, got 2, at text:1:47",
    ),
    (
        "def @main() { let %f = fn (%x: int32) { %x }; %f(1f) }",
        "call of %f: argument 0: expected int32, got float32, at text:1:47",
    ),
    (
        (
            "def @main(%y: Tensor[(2, 4), float32]) { let %f = fn (%x: Tensor[(2, 3), "
            "float32]) { %x }; %f(%y) }"
        ),
        "call of %f: argument 0: expected Tensor[(2, 3), float32], got Tensor[(2, 4), "
        "float32], at text:1:92",
    ),
    (
        "def @main(%x) { %x }",
        "the type of %x: expected enough to infer it, got _; annotate it, at text:1:11",
    ),
    (
        "def @main() { let %f = fn (%g) { %g(%g) }; 1 }",
        "call of %g: expected _, got fn (_) -> _ (the type would contain itself), at text:1:34",
    ),
    (
        "def @main() { ref_read(1) }",
        "ref_read: the cell: expected ref(_), got int32, at text:1:15",
    ),
    (
        "def @main() { let %r = ref(1); ref_write(%r, 1f) }",
        "ref_write: the value: expected int32, got float32, at text:1:32",
    ),
    (
        "def @main() { ref_write(1, 1) }",
        "ref_write: the cell: expected ref(_), got int32, at text:1:15",
    ),
    (
        "def @main() { let %a = add; %a(1, 2) }",
        "operator add: expected a call of it, got the operator as a value; write fn "
        "(%lhs, %rhs) { add(%lhs, %rhs) }, at text:1:15",
    ),
    (
        "def @main() { (add, 1) }",
        "operator add: expected a call of it, got the operator as a value; write fn "
        "(%lhs, %rhs) { add(%lhs, %rhs) }, at text:1:15",
    ),
    (
        "def @f(%x: int32) -> int32 { @f(%x, 1) } def @main() { @f(1) }",
        "call of @f: expected 1 argument, got 2, at text:1:30",
    ),
    (
        (
            "def @f(%x: int32) -> float32 { @g(%x) } def @g(%x: int32) -> int32 { %x } def "
            "@main() { @f(1) }"
        ),
        "the result of @f: expected float32, got int32, at text:1:7",
    ),
    (
        (
            "def @f(%x: int32) { if (True) { @g(%x) } else { 1 } } def @g(%x: int32) { if "
            "(True) { @f(%x) } else { 1f } } def @main() { 1 }"
        ),
        "if: the else branch, beside the other: expected int32, got float32, at text:1:75",
    ),
    (
        "def @id[A](%x: A) -> A { %x } def @main() { @id[int32, int32](1) }",
        "call of @id: expected 1 type argument, got 2, at text:1:45",
    ),
    (
        "def @id[A](%x: A) -> A { %x } def @main() { @id[float32](1) }",
        "call of @id: argument 0: expected float32, got int32, at text:1:45",
    ),
    (
        "def @id(%x: int32) -> int32 { %x } def @main() { @id[int32](1) }",
        "call of @id: expected 0 type arguments, got 1, at text:1:50",
    ),
    (
        "def @f[A](%x: A) -> A { %x + 1 } def @main() { @f(1) }",
        "add: argument 0 must be a tensor, got A, at text:1:28",
    ),
    (
        "def @f[A, B](%x: A, %y: B) -> A { %y } def @main() { @f(1, 2) }",
        "the result of @f: expected A, got B, at text:1:7",
    ),
    (
        "def @f[A](%x: A, %y: A) -> A { %y } def @main() { @f(1, 2f) }",
        "call of @f: argument 1: expected int32, got float32, at text:1:51",
    ),
    (
        (
            "def @f(%f: fn (int32) -> int32) -> int32 { %f(1) } def @main() { @f(fn (%x: "
            "float32) { %x }) }"
        ),
        "call of @f: argument 0: expected fn (int32) -> int32, got fn (float32) -> "
        "float32, at text:1:66",
    ),
    (
        (
            "def @f(%f: fn (int32) -> int32) -> int32 { %f(1) } def @main() { @f(fn (%x: "
            "int32, %y: int32) { %x }) }"
        ),
        "call of @f: argument 0: expected fn (int32) -> int32, got fn (int32, int32) "
        "-> int32, at text:1:66",
    ),
    (
        (
            "def @f(%x: Tensor[(n, n), float32]) -> Tensor[(n, n), float32] { %x } def "
            "@main(%y: Tensor[(2, 3), float32]) { @f(%y) }"
        ),
        "call of @f: argument 0: expected Tensor[(2, 2), float32], got Tensor[(2, 3), "
        "float32], at text:1:112",
    ),
    (
        LIST + "def @main() { Cons(1) }",
        "call of Cons: expected 2 arguments, got 1, at text:2:15",
    ),
    (
        LIST + "def @main() { Cons(1, 2) }",
        "call of Cons: argument 1: expected List[int32], got int32, at text:2:15",
    ),
    (
        LIST + "def @main() { Cons(1, Cons(2f, Nil)) }",
        "call of Cons: argument 1: expected List[int32], got List[float32], at text:2:15",
    ),
    (
        LIST + "def @main(%l: List[int32]) { match (%l) { Cons(%x, _) => %x } }",
        "match: expected a clause for every value, got none for Nil; add them, or "
        "write match? to have it checked at run time, at text:2:30",
    ),
    (
        LIST + "def @main(%l: List[int32]) { match (%l) { Cons(%x, Nil) => %x, Nil => 1 } }",
        "match: expected a clause for every value, got none for Cons(_, Cons(_, _)); "
        "add them, or write match? to have it checked at run time, at text:2:30",
    ),
    (
        LIST + "def @main(%l: List[int32]) { match (%l) { Cons(%x) => %x, Nil => 1 } }",
        "match: pattern Cons: expected 2 patterns inside, got 1, at text:2:30",
    ),
    (
        LIST + "def @main(%l: List[int32]) { match (%l) { Cons(%x, _) => %x, Nil => 1f } }",
        "match: clause 1, beside the first: expected int32, got float32, at text:2:30",
    ),
    (
        LIST + "def @main(%l: int32) { match (%l) { Cons(_, _) => 0, Nil => 1 } }",
        "match: pattern Cons: expected List[_], got int32, at text:2:24",
    ),
    (
        LIST + "def @main(%l: List[int32]) { match (%l) { (%a, %b) => %a } }",
        "match: a tuple pattern: expected (_, _), got List[int32], at text:2:30",
    ),
    (
        LIST + "def @main() { match ((1, 2)) { (%a, %b, %c) => %a } }",
        "match: a tuple pattern: expected (_, _, _), got (int32, int32), at text:2:15",
    ),
    (
        LIST + BIT + "def @main(%l: List[int32]) { match (%l) { One => 1, Zero => 2 } }",
        "match: pattern One: expected Bit, got List[int32], at text:3:30",
    ),
    (
        LIST
        + BIT
        + (
            "def @main(%l: List[int32], %b: Bit) { match ((%l, %b)) { (Cons(_, _), One) => "
            "1, (Nil, _) => 2 } }"
        ),
        "match: expected a clause for every value, got none for (Cons(_, _), Zero); "
        "add them, or write match? to have it checked at run time, at text:3:39",
    ),
    (
        LIST
        + ("def @main(%l: List[int32]) { match (%l) { Cons(%x: float32, _) => 1, Nil => 1 } }"),
        "match: pattern %x: expected float32, got int32, at text:2:30",
    ),
    (
        LIST + "def @main(%l: List) { %l }",
        "the type of %l: kind check: List: expected arguments for [A], got 0, at text:2:11",
    ),
    (
        LIST + "def @main(%l: List[int32, int32]) { %l }",
        "the type of %l: kind check: List[int32, int32]: expected arguments for [A], got 2,"
        " at text:2:11",
    ),
    (
        LIST + "def @main() { Nil }",
        "the type of @main: expected enough to infer it, got fn () -> List[_]; "
        "annotate it, at text:2:10",
    ),
    (
        "def @main(%x: Tensor[(2, 3), float32]) { nn.layer_norm(%x, %x, %x) }",
        "nn.layer_norm: 'argument 1' must have 1 dimensions, got 2: (2, 3), at text:1:42",
    ),
    (
        (
            "def @main(%x: Tensor[(n, 3), float32]) { let %y: Tensor[(n, 4), float32] = "
            "nn.relu(%x); %y }"
        ),
        "the value of %y: expected Tensor[(n, 4), float32], got Tensor[(n, 3), "
        "float32], at text:1:42",
    ),
    (
        "def @main() { let %f = fn (%n: int32) -> bool { %f(%n) }; %f(1f) }",
        "call of %f: argument 0: expected int32, got float32, at text:1:59",
    ),
    (
        "def @main(%x: (int32, bool)) { %x.1 + 1 }",
        "add: arguments must have one dtype, got bool, int32, at text:1:37",
    ),
]
