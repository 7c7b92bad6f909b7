"""Models with control flow: ONNX graphs with Loop, If and Scan, and programs in Relay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden import relay

F, N, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Row = tuple[str, int, list[int | None]]


def node(op: str, inputs: str, outputs: str, **attrs: object) -> onnx.NodeProto:
    """A node over names in words; `-` is none."""
    arguments = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, arguments, outputs.split(), **attrs)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Row],
    outputs: Sequence[Row],
    constants: Mapping[str, np.ndarray] | None = None,
) -> onnx.GraphProto:
    rows = [[helper.make_tensor_value_info(*row) for row in side] for side in (inputs, outputs)]
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    return helper.make_graph(nodes, "graph", *rows, held)


def model(*args: object) -> onnx.ModelProto:
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph(*args), opset_imports=opset, ir_version=8)  # type: ignore[arg-type]


def choice() -> onnx.ModelProto:
    """An If whose branches are of different length."""
    then = graph([node("Tanh", "x", "a")], [], [("a", F, [2, 3])])
    other = graph([node("Exp", "x", "e"), node("Mul", "e x", "b")], [], [("b", F, [2, 3])])
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        node("If", "c", "z", then_branch=then, else_branch=other),
        node("Add", "z x", "y"),
    ]
    return model(nodes, [("x", F, [2, 3])], [("y", F, [2, 3])], {"zero": np.float32(0)})


def loop(steps: int | None = 5) -> onnx.ModelProto:
    """A Loop with a state and what each turn gives; without `steps` their number is an input."""
    body = graph(
        [
            node("Mul", "h w", "m"),
            node("Tanh", "m", "h2"),
            node("Identity", "c", "c2"),
            node("ReduceSum", "h2", "s", keepdims=0),
        ],
        [("i", N, []), ("c", B, []), ("h", F, [2, 3])],
        [("c2", B, []), ("h2", F, [2, 3]), *([("s", F, [])] if steps is not None else [])],
    )  # fmt: skip
    inputs, results = [("x", F, [2, 3]), ("w", F, [2, 3])], [("y", F, [2, 3])]
    constants = {"yes": np.array(True)}
    if steps is None:
        inputs.append(("steps", N, []))
    else:
        results.append(("ys", F, [steps]))
        constants["steps"] = np.array(steps)
    outputs = " ".join(name for name, *_ in results)
    return model([node("Loop", "steps yes x", outputs, body=body)], inputs, results, constants)


def nested() -> onnx.ModelProto:
    """A Loop in a Loop, with an If."""
    inner = graph(
        [node("Add", "g x", "t"), node("Tanh", "t", "g2"), node("Identity", "d", "d2"),
         node("Identity", "g2", "e")],
        [("j", N, []), ("d", B, []), ("g", F, [3])],
        [("d2", B, []), ("g2", F, [3]), ("e", F, [3])],
    )  # fmt: skip
    then = graph([node("Neg", "last", "n")], [], [("n", F, [3])])
    other = graph([node("Exp", "last", "p")], [], [("p", F, [3])])
    outer = graph(
        [node("Loop", "three yes h", "last all", body=inner), node("Mod", "i two", "m"),
         node("Equal", "m zero", "even"),
         node("If", "even", "h2", then_branch=then, else_branch=other),
         node("Identity", "c", "c2"), node("ReduceSum", "all axis", "s", keepdims=0)],
        [("i", N, []), ("c", B, []), ("h", F, [3])],
        [("c2", B, []), ("h2", F, [3]), ("s", F, [3])],
    )  # fmt: skip
    constants = {"four": 4, "three": 3, "yes": True, "two": 2, "zero": 0, "axis": [0]}
    return model([node("Loop", "four yes x", "y ys", body=outer)], [("x", F, [3])],
                 [("y", F, [3]), ("ys", F, [4, 3])],
                 {k: np.array(v) for k, v in constants.items()})  # fmt: skip


def decoder(vocabulary: int = 7, hidden: int = 4, longest: int = 9) -> onnx.ModelProto:
    """A greedy decoder: it writes tokens until one says that it ends."""
    rng = np.random.default_rng(0)
    body = graph(
        [node("Gather", "embedding token", "e"), node("MatMul", "h w", "hw"),
         node("Add", "hw e", "t"), node("Tanh", "t", "h2"), node("MatMul", "h2 o", "logits"),
         node("ArgMax", "logits", "token2", axis=1, keepdims=0), node("Reshape", "i one", "at"),
         node("ScatterElements", "text at token2", "text2", axis=0),
         node("ReduceMax", "token2", "t0", keepdims=0), node("Equal", "t0 end", "ends"),
         node("Not", "ends", "go")],
        [("i", N, []), ("c", B, []), ("token", N, [1]), ("h", F, [1, hidden]),
         ("text", N, [longest])],
        [("go", B, []), ("token2", N, [1]), ("h2", F, [1, hidden]), ("text2", N, [longest])],
    )  # fmt: skip
    shapes = {"embedding": (vocabulary, hidden), "w": (hidden, hidden), "o": (hidden, vocabulary)}
    weights = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    numbers = {"most": np.array(longest), "end": np.array(3), "one": np.array([1])}
    empty = {"empty": np.full(longest, -1)}
    return model(
        [node("Loop", "most - first h0 empty", "last state text", body=body)],
        [("first", N, [1]), ("h0", F, [1, hidden])],
        [("text", N, [longest]), ("state", F, [1, hidden])],
        {**weights, **numbers, **empty},
    )  # fmt: skip


def scan() -> onnx.ModelProto:
    """A Scan whose results come last first."""
    body = graph(
        [node("Add", "s e", "t"), node("Tanh", "t", "s2"), node("Mul", "s2 e", "r")],
        [("s", F, [3]), ("e", F, [3])],
        [("s2", F, [3]), ("r", F, [3])],
    )
    nodes = [node("Scan", "s0 x", "s ys", body=body, num_scan_inputs=1,
                  scan_output_directions=[1])]  # fmt: skip
    return model(nodes, [("s0", F, [3]), ("x", F, [5, 3])], [("s", F, [3]), ("ys", F, [5, 3])])


def bytes_in_a_loop() -> onnx.ModelProto:
    """A Loop around a quantised dense layer (QDQ)."""
    rng = np.random.default_rng(3)
    body = graph(
        [node("QuantizeLinear", "h scale point", "q"),
         node("DequantizeLinear", "q scale point", "d"),
         node("DequantizeLinear", "weight small point", "wd"), node("MatMul", "d wd", "m"),
         node("Tanh", "m", "h2"), node("Identity", "c", "c2")],
        [("i", N, []), ("c", B, []), ("h", F, [1, 8])], [("c2", B, []), ("h2", F, [1, 8])],
    )  # fmt: skip
    constants = {"steps": np.array(4), "yes": np.array(True), "scale": np.float32(1 / 127),
                 "small": np.float32(1 / 64), "point": np.int8(0),
                 "weight": rng.integers(-127, 127, (8, 8)).astype(np.int8)}  # fmt: skip
    return model([node("Loop", "steps yes x", "y", body=body)], [("x", F, [1, 8])],
                 [("y", F, [1, 8])], constants)  # fmt: skip


def ends_by_data(*, is_stacked: bool = True) -> onnx.ModelProto:
    """A Loop that ends by what it computes, so that nobody knows how much it gives; the sum of
    which is a scalar."""
    body = graph(
        [node("Tanh", "h", "h2"), node("ReduceSum", "h2", "s", keepdims=0),
         node("Greater", "s zero", "go")],
        [("i", N, []), ("c", B, []), ("h", F, [3])], [("go", B, []), ("h2", F, [3]), ("s", F, [])],
    )  # fmt: skip
    nodes = [node("Loop", "four - x", "y ys", body=body), node("ReduceSum", "ys", "t", keepdims=0)]
    last: Row = ("ys", F, [None]) if is_stacked else ("t", F, [])
    return model(nodes, [("x", F, [3])], [("y", F, [3]), last],
                 {"four": np.array(4), "zero": np.float32(0)})  # fmt: skip


def growing() -> onnx.ModelProto:
    """A Loop that appends to its state in each turn."""
    body = graph(
        [node("Concat", "h x", "h2", axis=0), node("Identity", "c", "c2")],
        [("i", N, []), ("c", B, []), ("h", F, [None])], [("c2", B, []), ("h2", F, [None])],
    )  # fmt: skip
    nodes = [
        node("Loop", "four yes x", "all", body=body),
        node("ReduceSum", "all", "y", keepdims=0),
    ]
    return model(nodes, [("x", F, [3])], [("y", F, [])],
                 {"four": np.array(4), "yes": np.array(True)})  # fmt: skip


def program(text: str) -> ekiden.IRModule:
    """A program in Relay's text format, where T is a tensor of four floats."""
    return relay.fromtext('#[version = "0.0.5"]\n' + text.replace("T4", "Tensor[(4), float32]"))


RELAY = {
    "a tail call": """
def @f(%n: int32, %x: T4) -> T4 {
  if (greater(%n, 0)) { @f(subtract(%n, 1), tanh(%x)) } else { %x }
}
def @main(%x: T4, %n: int32) -> T4 { add(@f(%n, %x), @f(3, %x)) }
""",
    "main calls itself": """
def @main(%x: T4, %n: int32) -> T4 {
  if (greater(%n, 0)) { @main(tanh(%x), subtract(%n, 1)) } else { %x }
}
""",
    "functions that call each other": """
def @even(%n: int32, %x: T4) -> T4 {
  if (equal(%n, 0)) { %x } else { @odd(subtract(%n, 1), tanh(%x)) }
}
def @odd(%n: int32, %y: T4) -> T4 {
  if (equal(%n, 0)) { negative(%y) } else { @even(subtract(%n, 1), exp(%y)) }
}
def @main(%x: T4, %n: int32) -> (T4, T4) { (@even(%n, %x), @odd(%n, %x)) }
""",
    "parameters that change places": """
def @f(%n: int32, %a: T4, %b: T4, %c: T4, %d: T4) -> (T4, T4, T4, T4) {
  if (less(%n, 1)) { (%d, %a, %b, %a) } else {
    if (equal(%n, 3)) { @f(subtract(%n, 1), %d, %d, add(%a, %b), %c) }
    else { @f(subtract(%n, 1), %b, %c, %a, add(%b, %d)) }
  }
}
def @main(%x: T4, %n: int32) -> (T4, T4, T4, T4) { @f(%n, %x, tanh(%x), exp(%x), negative(%x)) }
""",
    "a recurrent cell": """
def @rnn(%t: int32, %xs: Tensor[(6, 4), float32], %h: T4, %c: T4) -> (T4, T4) {
  if (less(%t, 6)) {
    let %x = take(%xs, %t, axis=0);
    let %d = add(multiply(sigmoid(%h), %c), tanh(%x));
    @rnn(add(%t, 1), %xs, multiply(sigmoid(%x), tanh(%d)), %d)
  } else { (%h, %c) }
}
def @main(%x: T4, %n: int32) -> (T4, T4) {
  @rnn(%n, broadcast_to(expand_dims(%x, axis=0), shape=[6, 4]), %x, negative(%x))
}
""",
    "a loop in a loop": """
def @main(%x: T4, %n: int32) -> (T4, int32) {
  let %outer = fn (%i: int32, %h: T4) -> (T4, int32) {
    if (less(%i, %n)) {
      let %inner = fn (%j: int32, %g: T4) -> T4 {
        if (less(%j, %i)) { %inner(add(%j, 1), add(tanh(%g), %x)) } else { %g }
      };
      %outer(add(%i, 1), %inner(0, %h))
    } else { (%h, %i) }
  };
  %outer(0, %x)
}
""",
    "polymorphic functions": """
type Opt[a] { Some(a), No }
def @or[A](%o: Opt[A], %d: A) -> A { match (%o) { Some(%v) => %v, No => %d } }
def @main(%x: T4, %n: int32) {
  let %same = fn [B](%b: B) -> B { %b };
  (@or(if (greater(%n, 1)) { Some(tanh(%x)) } else { No }, %same(%x)), @or(No, %same(%n)))
}
""",
    "data with several constructors": """
type Shape[a] { Pair(a, (a, a)), One(a), None }
def @pick(%x: T4, %n: int32) -> Shape[T4] {
  if (greater(%n, 2)) { Pair(tanh(%x), (%x, exp(%x))) }
  else { if (greater(%n, 0)) { One(exp(%x)) } else { None } }
}
def @main(%x: T4, %n: int32) -> T4 {
  match (@pick(%x, %n)) {
    Pair(%a, (%b, %c)) => add(%a, multiply(%b, %c)), One(%y) => %y, None => %x
  }
}
""",
    "data that a loop carries": """
type Opt[a] { Some(a), No }
def @f(%o: Opt[T4], %n: int32, %x: T4) -> Opt[T4] {
  if (less(%n, 1)) { %o } else {
    let %p = match (%o) { Some(%y) => Some(add(tanh(%y), %x)), No => Some(%x) };
    @f(%p, subtract(%n, 1), %x)
  }
}
def @main(%x: T4, %n: int32) -> (T4, int32) {
  match (@f(No, %n, %x)) { Some(%y) => (%y, 1), No => (%x, 0) }
}
""",
    "clauses that several values fit": """
type Opt[a] { Some(a), No }
def @opt(%n: int32, %x: T4) -> Opt[T4] { if (greater(%n, 2)) { Some(%x) } else { No } }
def @main(%x: T4, %n: int32) -> T4 {
  let %p = (@opt(%n, tanh(%x)), @opt(add(%n, 2), exp(%x)));
  match (%p) { (Some(%a), Some(%b)) => add(%a, %b), (No, Some(%b)) => %b, (_, No) => %x }
}
""",
    "references": """
def @f(%r: ref(T4), %n: int32) -> () {
  if (greater(%n, 0)) {
    let %u = ref_write(%r, tanh(ref_read(%r)));
    @f(%r, subtract(%n, 1))
  } else { () }
}
def @main(%x: T4, %n: int32) -> (T4, T4) {
  let %r = ref(%x);
  let %old = ref_read(%r);
  let %u = @f(%r, %n);
  let %a = if (greater(%n, 3)) { let %v = ref_write(%r, negative(ref_read(%r))); 1f } else { 2f };
  (add(ref_read(%r), %a), %old)
}
""",
    "names and dtypes": """
def @arrays(%n: int32, %b: bool, %i: int8, %d: Tensor[(3), float64], %e: Tensor[(0, 2), float32])
    -> (bool, int8, Tensor[(3), float64], Tensor[(0, 2), float32]) {
  if (less(%n, 1)) { (%b, %i, %d, %e) } else {
    @arrays(subtract(%n, 1), logical_not(%b), add(%i, 7i8), exp(negative(%d)), tanh(%e))
  }
}
def @take(%x: T4, %y: T4) -> (T4, T4) { if (greater(sum(%x), 0f)) { (%y, %x) } else { (%x, %y) } }
def @main(%x: T4, %n: int32)
    -> (T4, bool, int8, Tensor[(3), float64], Tensor[(0, 2), float32]) {
  let %a = @arrays(%n, True, 100i8, zeros(shape=[3], dtype="float64"),
                   zeros(shape=[0, 2], dtype="float32"));
  let %t = @take(%x, tanh(%x));
  (add(%t.0, @take(%t.1, %x).1), %a.0, %a.1, %a.2, %a.3)
}
""",
    "results that are the same": """
def @f(%x: T4, %n: int32) -> (T4, T4, T4) {
  let %y = tanh(%x);
  if (greater(%n, 2)) { (%y, %y, %x) } else { (%x, exp(%y), %y) }
}
def @main(%x: T4, %n: int32) -> (T4, (T4, T4), T4) {
  let %t = @f(%x, %n);
  let %u = @f(%t.1, %n);
  (%u.0, (%u.2, %u.0), %t.1)
}
""",
}  # fmt: skip
