"""Gradients of programs with recursion, closures, references, data types and loop programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import ekiden
from ekiden import relay, te
from ekiden.ir.structural import structural_equal
from ekiden.relay import Constructor, IRModule, parse
from ekiden.relay.backend.executors import create_executor
from ekiden.relay.interpreter_values import ConstructorValue
from ekiden.relay.transform import InferType, gradient
from ekiden.runtime.errors import DifferentiationError

Array = np.ndarray
Run = Callable[..., Any]

EXECUTORS = ("debug", "vm", "aot")
every_executor = pytest.mark.parametrize("kind", EXECUTORS)
interpreter_and_vm = pytest.mark.parametrize("kind", EXECUTORS[:2])

LIST = """
type List[A] { Cons(A, List[A]), Nil, }
def @foldl[A, B](%f: fn(B, A) -> B, %b: B, %l: List[A]) -> B {
  match (%l) { Nil => %b, Cons(%h, %t) => @foldl(%f, %f(%b, %h), %t) } }
def @map[A, B](%f: fn(A) -> B, %l: List[A]) -> List[B] {
  match (%l) { Nil => Nil, Cons(%h, %t) => Cons(%f(%h), @map(%f, %t)) } }
"""
TREE = """
type Tree { Leaf(Tensor[(2,), float32]), Node(Tree, int32, Tree), }
def @total(%t: Tree, %w: Tensor[(2,), float32]) -> Tensor[(2,), float32] {
  match (%t) {
    Leaf(%x) => multiply(multiply(%x, %x), %w),
    Node(%a, %n, %b) => multiply(@total(%a, %w), @total(%b, %w)),
  } }
"""
LOOP = """
def @loop(%n: int32, %a: float32, %x: float32) -> float32 {
  if (less_equal(%n, 0)) { %a } else { @loop(subtract(%n, 1), multiply(%a, %x), %x) } }
def @main(%n: int32, %x: float32) -> float32 { @loop(%n, 1f, %x) }
"""
RECURSION = """
def @power(%n: int32, %x: float32) -> float32 {
  if (less_equal(%n, 0)) { 1f } else { multiply(@power(subtract(%n, 1), %x), %x) } }
def @main(%n: int32, %x: float32) -> float32 { @power(%n, %x) }
"""


def with_gradient(text: str) -> IRModule:
    """Return the module whose main is the gradient of the text's main."""
    module = parse(text)
    module["main"] = gradient(module.get_global_var("main"), module)
    return module


def plain(value: object) -> object:
    """Return results as NumPy arrays in tuples."""
    if isinstance(value, (tuple, list)):
        return tuple(map(plain, value))
    return value.numpy() if hasattr(value, "numpy") else value


def executor(kind: str, module: IRModule | None = None, expr: object = None) -> Run:
    """Return what evaluates a function of a module, by default its main."""
    return cast(Run, create_executor(kind, module).evaluate(expr))  # type: ignore[arg-type]


def run(module: IRModule, kind: str, *args: object) -> tuple[Array, tuple[Array, ...]]:
    result = plain(executor(kind, module)(*args))
    assert isinstance(result, tuple) and isinstance(result[1], tuple)
    return result[0], result[1]


X = np.float32(1.5)


@interpreter_and_vm
@pytest.mark.parametrize(
    "body, expected",
    [
        ("let %y = multiply(%x, %x); multiply(%y, %x)", 3 * X**2),
        ("let %r = ref(%x); multiply(ref_read(%r), %x)", 2 * X),
        (
            "let %r = ref(%x); let %u = ref_write(%r, multiply(ref_read(%r), %x));"
            "multiply(ref_read(%r), %x)",
            3 * X**2,
        ),
        ("match (S(multiply(%x, %x))) { S(%v) => multiply(%v, %x), N => 0f }", 3 * X**2),
        ("let %f = fn (%a: float32) -> float32 { multiply(%a, %x) }; @apply(%f, %x)", 3 * X**2),
        (
            "let %f = fn (%n: int32, %a: float32) -> float32 {"
            "  if (less_equal(%n, 0)) { %a } else { %f(subtract(%n, 1), multiply(%a, %x)) } };"
            "%f(3, 1f)",
            3 * X**2,
        ),
        (
            "let %p = (%x, S(%x)); match (%p) { (%a, S(%b)) => multiply(%a, %b), (_, _) => %x }",
            2 * X,
        ),
        ("let %f = @pick(greater(%x, 1f)); %f(%x)", 2 * X),
        ('multiply(match (I(3)) { I(%n) => cast(%n, dtype="float32") }, %x)', 3),
        (
            "let %s = split(stack((%x, %x), axis=0), indices_or_sections=2, axis=0); "
            "let %r = ref(%s.1); multiply(sum(ref_read(%r)), sum(%s.0))",
            2 * X,
        ),
    ],
    ids="let ref write match closure local patterns pick integers split".split(),
)
def test_gradient_of_language_construct(kind: str, body: str, expected: float) -> None:
    text = f"""
    type Option {{ S(float32), N, }}
    type Count {{ I(int32), }}
    def @apply(%f: fn (float32) -> float32, %a: float32) -> float32 {{ %f(%f(%a)) }}
    def @pick(%c: bool) -> fn (float32) -> float32 {{
      let %r = ref(2f);
      if (%c) {{ fn (%a: float32) -> float32 {{ multiply(%a, %a) }} }}
      else {{ fn (%a: float32) -> float32 {{ multiply(%a, ref_read(%r)) }} }} }}
    def @main(%x: float32) -> float32 {{ {body} }}"""
    _, (grad,) = run(with_gradient(text), kind, X)
    np.testing.assert_allclose(grad, expected, rtol=1e-6)


@every_executor
def test_gradient_through_polymorphic_lists(kind: str) -> None:
    text = (
        LIST
        + """
    def @main(%x: float32, %y: float32) -> float32 {
      let %l = Cons(%x, Cons(%y, Cons(%x, Nil)));
      let %f = fn (%a: float32) -> float32 { multiply(%a, %x) };
      @foldl(fn (%a: float32, %b: float32) -> float32 { multiply(%a, %b) }, 1f, @map(%f, %l)) }"""
    )
    y = np.float32(2)
    result, (dx, dy) = run(with_gradient(text), kind, X, y)  # x^5 y
    np.testing.assert_allclose([result, dx, dy], [X**5 * y, 5 * X**4 * y, X**5], rtol=1e-6)


@pytest.mark.parametrize("kind", ("vm", "aot"))
@pytest.mark.parametrize("text", [LOOP, RECURSION], ids=["loop", "recursion"])
def test_gradient_of_deep_recursion(kind: str, text: str) -> None:
    n, x = 20_000, np.float32(1 + 2.0**-14)
    _, (dn, dx) = run(with_gradient(text), kind, np.int32(n), x)
    # n roundings forward, and n in the sums back: n * 2^-24 in the worst case, their root usually
    np.testing.assert_allclose(dx, n * np.float64(x) ** (n - 1), rtol=n * 2.0**-24)
    assert dn == 0 and dn.dtype == np.int32


def test_interpreter_needs_no_stack_for_gradients() -> None:
    _, (_, dx) = run(with_gradient(RECURSION), "debug", np.int32(1_500), np.float32(1))
    assert dx == 1_500


def test_gradient_of_mutual_recursion() -> None:
    text = """
    def @even(%n: int32, %x: float32) -> float32 {
      if (less_equal(%n, 0)) { %x } else { multiply(@odd(subtract(%n, 1), %x), 2f) } }
    def @odd(%n: int32, %x: float32) -> float32 {
      if (less_equal(%n, 0)) { 0f } else { multiply(@even(subtract(%n, 1), %x), %x) } }
    def @main(%n: int32, %x: float32) -> float32 { @even(%n, %x) }"""
    result, (_, dx) = run(with_gradient(text), "vm", np.int32(4), X)  # 4 x^3
    assert [result, dx] == [4 * X**3, 12 * X**2]


def tree(value: object) -> ConstructorValue:
    """Return a tree of arrays from nested pairs."""
    leaf, node = (cast(Constructor, c) for c in TREE_MODULE.get_type("Tree")[1:])
    if isinstance(value, tuple):
        return ConstructorValue(node, (tree(value[0]), np.array(7, "int32"), tree(value[1])))
    return ConstructorValue(leaf, (np.asarray(value),))


TREE_MODULE = parse(TREE + "def @main(%t: Tree, %w: Tensor[(2,), float32]) { @total(%t, %w) }")


def test_gradient_of_data_has_the_shape_of_the_data() -> None:
    module = IRModule(dict(TREE_MODULE.functions.items()), TREE_MODULE.type_definitions)
    main = gradient(module.get_global_var("main"), module)
    module["main"] = main
    a, b, c, w = (np.array(v, "float32") for v in ([1, 2], [3, 4], [5, 6], [2, 3]))
    result, (dt, dw) = executor("debug", module)(tree(((a, b), c)), w)
    np.testing.assert_allclose(result.numpy(), (a * b * c) ** 2 * w**3, rtol=1e-6)
    np.testing.assert_allclose(dw.numpy(), 3 * (a * b * c) ** 2 * w**2, rtol=1e-6)
    left, number, right = dt.fields
    assert dt.tag == 1 and number.numpy() == 0
    for leaf, x in zip((*(left.fields[i] for i in (0, 2)), right), (a, b, c), strict=True):
        expected = 2 * (a * b * c) ** 2 * w**3 / x
        np.testing.assert_allclose(leaf.fields[0].numpy(), expected, rtol=1e-6)


def test_gradient_of_gradient_of_recursion() -> None:
    module = with_gradient(RECURSION)
    n, x = relay.var("n", "int32"), relay.var("x", "float32")
    first = relay.TupleGetItem(module.get_global_var("main")(n, x), 1)
    module["slope"] = relay.Function((n, x), relay.TupleGetItem(first, 1))
    module["curve"] = gradient(module.get_global_var("slope"), module)
    for kind in ("debug", "vm"):
        whole = executor(kind, module, module.get_global_var("curve"))
        slope, (_, curve) = whole(np.int32(4), X)
        np.testing.assert_allclose([slope.numpy(), curve.numpy()], [4 * X**3, 12 * X**2], rtol=1e-6)


@every_executor
def test_gradient_of_any_size_through_recursion(kind: str) -> None:
    text = """
    def @loop(%i: int32, %a: Tensor[(n), float32], %x: Tensor[(n), float32])
        -> Tensor[(n), float32] {
      if (less_equal(%i, 0)) { %a } else { @loop(subtract(%i, 1), multiply(%a, %x), %x) } }
    def @main(%x: Tensor[(n), float32]) -> float32 { sum(@loop(2, %x, %x)) }"""
    module = with_gradient(text)
    for size in (3, 5):
        x = np.arange(size, dtype="float32")
        _, (dx,) = run(module, kind, x)
        np.testing.assert_allclose(dx, 3 * x**2, rtol=1e-6)


def test_zero_gradient_of_branch_not_taken_stays_zero() -> None:
    """sqrt has an infinite derivative at 0: what is not used gets no gradient, not 0 * inf."""
    text = (
        LIST
        + """
    def @main(%x: float32) -> float32 {
      let %s = sqrt(%x);
      match (Cons(%s, Nil)) { Cons(%v, Nil) => multiply(%x, 2f), _ => %s } }"""
    )
    _, (dx,) = run(with_gradient(text), "vm", np.float32(0))
    assert dx == 2


def test_gradient_returns_other_results_unchanged() -> None:
    text = (
        LIST
        + """
    def @main(%x: float32) -> (float32, List[float32]) {
      let %l = @map(fn (%a: float32) -> float32 { multiply(%a, %x) }, Cons(%x, Nil));
      (@foldl(fn (%a: float32, %b: float32) -> float32 { add(%a, %b) }, 0f, %l), %l) }"""
    )
    (total, items), (dx,) = executor("debug", with_gradient(text))(X)
    assert (total.numpy(), items.fields[0].numpy(), dx.numpy()) == (X * X, X * X, 2 * X)


def test_gradient_prints_and_parses_back() -> None:
    module = relay.transform.InferType()(
        with_gradient(
            TREE
            + """
      def @main(%x: Tensor[(2,), float32]) -> Tensor[(2,), float32] { @total(Leaf(%x), %x) }"""
        )
    )
    again = parse(module.astext())
    assert structural_equal(relay.transform.InferType()(again), module)


def test_function_without_module_uses_references() -> None:
    x, r = relay.var("x", shape=(2,)), relay.var("r")
    function = relay.Function((x,), relay.Let(r, relay.RefCreate(x), relay.RefRead(r) * x))
    back = gradient(function)
    for kind in EXECUTORS:
        _, (dx,) = executor(kind, None, back)(np.array([1, 2], "float32"))
        np.testing.assert_array_equal(dx.numpy(), [2, 4])


def test_doubling_functions_do_not_grow_exponentially() -> None:
    count = 40
    calls = "\n".join(
        f"def @f{i}(%x: float32) -> float32 {{ @f{i - 1}(@f{i - 1}(%x)) }}" for i in range(1, count)
    )
    text = f"def @f0(%x: float32) -> float32 {{ %x }} {calls} "
    module = parse(text + f"def @main(%x: float32) -> float32 {{ @f{count - 1}(%x) }}")
    gradient(module.get_global_var("main"), module)
    assert len(module.astext()) < 40 * len(text)


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "def @main(%f: fn (float32) -> float32, %x: float32) -> float32 { %f(%x) }",
            "gradient: parameter %f holds a value of type fn (float32) -> float32; expected "
            "tensors, tuples and data of these",
        ),
        (
            "type Box { Box(fn (float32) -> float32), } "
            "def @main(%b: Box, %x: float32) -> float32 { match (%b) { Box(%f) => %f(%x) } }",
            "gradient: parameter %b, in a Box, holds a value of type fn (float32) -> float32; "
            "expected tensors, tuples and data of these",
        ),
        (
            "def @main(%x: float32) { let %r = ref(%x); %r }",
            "gradient: the result must be a tensor, got ref(float32)",
        ),
        (
            "def @main(%x: Tensor[(1, 3), float32]) { let %r = ref(%x); nn.lrn(ref_read(%r)) }",
            "gradient: operator 'nn.lrn' has no gradient (text:1:60); give it one with "
            "relay.op.register_gradient",
        ),
    ],
)
def test_constructs_without_gradient_are_named(text: str, message: str) -> None:
    module = parse(text)
    with pytest.raises(DifferentiationError) as caught:
        gradient(module.get_global_var("main"), module)
    assert str(caught.value) == message


def test_function_of_another_module_is_named() -> None:
    text = "def @f(%x: float32) { %x * %x } def @main(%x: float32) { @f(%x) }"
    main = InferType()(parse(text))["main"]
    with pytest.raises(DifferentiationError, match="gradient: 'f', which .* no function of"):
        gradient(main, parse(text))


def test_first_order_mode_refuses_control_flow() -> None:
    module = parse(RECURSION)
    with pytest.raises(DifferentiationError, match='expected mode "higher_order"'):
        gradient(module.get_global_var("main"), module, mode="first_order")


def test_compiled_gradient_runs_from_a_file_in_a_thread(tmp_path: object) -> None:
    from concurrent.futures import ThreadPoolExecutor

    program = ekiden.compile(with_gradient(LOOP))
    path = f"{tmp_path}/gradient.eki"
    program.save(path)
    with ThreadPoolExecutor(2) as pool:
        loaded = ekiden.load(path)
        results = list(pool.map(lambda x: plain(loaded(np.int32(3), np.float32(x))), (1, 2, 3)))
    assert [grads[1] for _, grads in cast(Any, results)] == [3, 12, 27]


def loop_program(gradient_name: str | None) -> IRModule:
    """Return a module whose main keeps a square by a loop program in a reference, and sums."""
    x, dy = te.placeholder((3,), name="x"), te.placeholder((3,), name="dy")
    square = te.create_prim_func([x, te.compute((3,), lambda i: x[i] * x[i])])
    back = te.create_prim_func([x, dy, te.compute((3,), lambda i: 2.0 * x[i] * dy[i])])
    if gradient_name is not None:
        square = square.with_attr("gradient", gradient_name)
    data, name = relay.var("data", shape=(3,)), relay.GlobalVar("square")
    kept = relay.var("kept")
    twice = relay.op.sum(relay.Call(name, (relay.RefRead(kept),)))
    body = relay.Let(kept, relay.RefCreate(relay.Call(name, (data,))), twice)
    return IRModule({name: square, "back": back, "main": relay.Function((data,), body)})


def test_loop_program_names_its_gradient() -> None:
    module = loop_program("back")
    module["main"] = gradient(module.get_global_var("main"), module)
    data = np.array([1, 2, 3], "float32")
    for kind in ("debug", "vm"):
        _, (slope,) = run(module, kind, data)
        np.testing.assert_array_equal(slope, 4 * data**3)


@pytest.mark.parametrize(
    "name, message",
    [
        (
            None,
            "gradient: the loop program @square has no gradient; name the function that computes "
            "it in its attribute 'gradient'",
        ),
        (
            "nowhere",
            "gradient: the gradient of the loop program @square is @nowhere, which the module "
            "does not have",
        ),
    ],
)
def test_loop_program_without_gradient_is_named(name: str | None, message: str) -> None:
    module = loop_program(name)
    with pytest.raises(DifferentiationError) as caught:
        gradient(module.get_global_var("main"), module)
    assert str(caught.value) == message


def test_gradient_of_recursion_runs_on_opencl() -> None:
    device = ekiden.opencl(0)
    if not device.exist:
        pytest.skip("there is no OpenCL device")
    program = ekiden.compile(with_gradient(LOOP), device)
    _, (_, slope) = cast(Any, plain(program(np.int32(3), np.float32(2))))
    assert slope == 12
