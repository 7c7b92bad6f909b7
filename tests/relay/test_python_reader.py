"""`@relay.script`: Python functions read as Relay compute what Python computes, and what cannot be
said is refused at the user's line."""

# ruff: noqa: F821, ANN201, ANN202

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from ekiden import relay
from ekiden.relay.reader import RelayScript
from ekiden.runtime.errors import ParseError, TypeInferenceError

SCALE = 3.0


def run(script: RelayScript, *args: object) -> object:
    """What the interpreter gives, as NumPy and Python values."""
    executor = relay.create_executor("debug", script.module)
    return plain(executor.evaluate(script.function)(*args))


def plain(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.numpy().tolist()


@relay.script
def power(x: Tensor[(n,), float32], k: int) -> Tensor[(n,), float32]:
    """x to the k."""
    y = relay.ones_like(x)
    while k > 0:
        y, k = y * x, k - 1
    return y


@relay.script
def factorial(n: int) -> int:
    if n <= 1:
        return 1
    return n * factorial(n - 1)


@relay.script
def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@relay.script
def classify(x: float) -> int:
    if x < 0.0:
        return -1
    elif x == 0.0:
        return 0
    y = x * 2.0
    if y > 10.0 or x == 3.0:
        z = 2
    else:
        z = 1
    return z


@relay.script
def sums(n: int):
    total, evens, last = 0, 0, -1
    for i in range(n):
        total += i
        last = i
        if i % 2 == 0:
            evens = evens + 1
    for j in range(n, 0, -2):
        total = total + j * 100
    return total, evens, last


@relay.script
def closures(x: Tensor[(2,), float32]):
    double = lambda t: t * 2.0  # noqa: E731

    def shifted(u: Tensor[(2,), float32]):
        return double(u) + x

    return shifted(shifted(x)), SCALE * x


@relay.script
def operators(x: Tensor[(2, 4), float32], flag: bool):
    left, right = relay.split(x, 2, axis=1)
    both = relay.concatenate([left, right], axis=0)
    both = relay.nn.relu(both) if not flag else both
    near = -1 < relay.sum(left) <= 10 and flag
    return both, (left, right)[1], -left @ relay.transpose(right), near, +SCALE


@relay.script
def calls_another(n: int) -> int:
    return factorial(n) + factorial(2)


def test_while_loop_matches_python() -> None:
    assert run(power, np.array([1, 2, 3], "float32"), 3) == [1, 8, 27]
    assert power.__doc__ == "x to the k."


def test_named_dimensions_of_annotations_are_shared() -> None:
    kind = power.function.params[0].type_annotation
    assert isinstance(kind, relay.TensorType) and isinstance(
        power.function.ret_type, relay.TensorType
    )
    assert kind.shape[0] is power.function.ret_type.shape[0]


def test_recursion_matches_python() -> None:
    assert run(factorial, 6) == 720


def test_called_script_is_imported() -> None:
    assert run(calls_another, 4) == 26
    assert {g.name_hint for g in calls_another.module.functions} == {"factorial", "calls_another"}


def test_choice_in_a_loop() -> None:
    assert run(collatz, 27) == 111


@pytest.mark.parametrize(("x", "expected"), [(-1.0, -1), (0.0, 0), (1.0, 1), (3.0, 2), (9.0, 2)])
def test_returns_in_branches(x: float, expected: int) -> None:
    assert run(classify, x) == expected


@pytest.mark.parametrize("n", [0, 1, 5])
def test_for_loops_match_python(n: int) -> None:
    total = sum(range(n)) + sum(100 * j for j in range(n, 0, -2))
    assert run(sums, n) == (total, len(range(0, n, 2)), n - 1)


def test_inner_functions_and_names_of_the_file() -> None:
    assert run(closures, np.array([1, 2], "float32")) == ([7, 14], [3, 6])


def test_operators_on_tensors() -> None:
    x = np.array([[1, -1, 2, 0], [3, 1, 1, 1]], "float32")
    both, right, product, near, scale = run(operators, x, True)
    assert both == [[1, -1], [3, 1], [2, 0], [1, 1]] and right == x[:, 2:].tolist()
    assert product == (-x[:, :2] @ x[:, 2:].T).tolist() and near is True and scale == 3
    assert run(operators, x, False)[0] == np.maximum(np.array(both), 0).tolist()


def test_compiled_is_as_interpreted() -> None:
    x = np.array([2, 3], "float32")
    compiled = relay.create_executor("vm", power.module).evaluate(power.function)(x, 2)
    assert plain(compiled) == run(power, x, 2) == [4, 9]


def test_match_statement_matches_constructors() -> None:
    prelude = relay.Prelude()
    _, Cons, Nil = prelude.mod.get_type("List")

    @relay.script(prelude.mod)
    def total(xs: "List[int32]") -> int:  # noqa: UP037
        match xs:
            case Cons(x, rest):
                return x + total(rest)
            case Nil():
                return 0

    @relay.script(prelude.mod)
    def second(xs: List[int32]) -> int:
        actual = -1
        match xs:
            case Cons(_, Cons(y, _)):
                actual = y
            case _:
                actual = actual - 1
        return actual

    items = Cons(relay.const(3), Cons(relay.const(4), Nil()))
    for script, expected in ((total, 7), (second, 4)):
        executor = relay.create_executor("debug", script.module)
        assert plain(executor.evaluate(script(items))) == expected


def test_python_values_are_constants_at_parse_time() -> None:
    layers, training = (1.0, 2.0), False

    @relay.script
    def scaled(x: Tensor[(2,), float32]):
        if training:
            x = relay.nn.dropout(x)
        y = x * layers[1] + SCALE
        return relay.sum(y, axis=0, keepdims=True)

    assert "dropout" not in repr(scaled) and "if" not in repr(scaled)
    assert run(scaled, np.array([1, 2], "float32")) == [12]


def test_spans_are_lines_of_the_file() -> None:
    body = factorial.function.body
    assert body.span is not None and Path(body.span.source_name).name == "test_python_reader.py"
    line = Path(__file__).read_text().splitlines()[body.span.line - 1]
    assert line.strip() == "if n <= 1:"


REJECTED = [
    ("return zz", "4:12: 'zz' is not defined"),
    ("return x @ 'a'", "4:16: expected a Relay value, got 'a'"),
    ("with x: pass", "4:5: a Python statement of kind With has no meaning in Relay"),
    ("return {x}", "4:12: a Python expression of kind Set has no meaning in Relay"),
    ("while x > 0.0:\n        break", "5:9: break inside a loop has no meaning in Relay"),
    ("while x > 0.0:\n        return x", "5:9: return inside a loop has no meaning in Relay"),
    ("for i in x: pass", "4:5: expected a loop of the form 'for name in range(...)'"),
    ("for i in range(0, 9, 0): pass", "4:5: range: expected a step that is a number other than 0"),
    ("y = x", "3:1: f: not every way through the function returns a value"),
    ("if x > 0.0:\n        return x", "4:5: not every way from here returns a value"),
    ("if x > 0.0:\n        y = x\n    return y", "6:12: 'y' is not set on every way to this place"),
    ("return relay.nn.relux(x)", "4:12: module 'ekiden.relay.op.nn' has no attribute 'relux'"),
    ("relay.nn.dense(x)\n    return x", "4:5: TypeError: dense() missing 1 required positional"),
    ("return x[0]", "4:12: expected a tuple to take a field of, got float32"),
    ("a, b = 1, 2, 3\n    return x", "4:5: expected 2 values, got (1, 2, 3)"),
    ("return f(x=x)", "4:12: a call of a Relay function takes arguments by position"),
    ("x.y = x\n    return x", "4:5: expected a name, or names, to assign to"),
    ("y: 'Strange' = x\n    return y", "4:8: no type 'Strange'"),
    ("return x << x", "4:12: the operator LShift has no meaning in Relay"),
    ("return x in x", "4:12: the comparison In has no meaning in Relay"),
    ("return x + 'a'", "4:12: expected an expression or a number as an operand, got 'a'"),
    ("y = 3\n    return y(x)", "5:12: expected a function, got 3"),
]


@pytest.mark.parametrize(("body", "message"), REJECTED, ids=[b for b, _ in REJECTED])
def test_unsupported_python_is_refused_at_its_line(body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ParseError) as caught:
        load(tmp_path, f"def f(x: 'float32'):\n    {body}\n")
    first, line, caret = str(caught.value).split("\n")
    assert first.startswith(f"{tmp_path}/user.py:{message}")
    column = int(message.split(":")[1])
    assert caret == " " * (column - 1) + "^"
    assert line == (tmp_path / "user.py").read_text().splitlines()[int(message.split(":")[0]) - 1]


def test_type_error_shows_the_users_line(tmp_path: Path) -> None:
    with pytest.raises(TypeInferenceError) as caught:
        load(tmp_path, "def f(x: float):\n    return x + relay.const(1)\n")
    place = f"{tmp_path}/user.py:4:12"
    assert str(caught.value) == (
        f"add: arguments must have one dtype, got float32, int32, at {place}\n"
        "    return x + relay.const(1)\n"
        "           ^"
    )


def test_parameters_are_plain(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="f: expected plain parameters without defaults"):
        load(tmp_path, "def f(x: float = 1.0):\n    return x\n")


def load(folder: Path, function: str) -> None:
    """Run a file with a decorated function."""
    path = folder / "user.py"
    path.write_text(f"from ekiden import relay\n@relay.script\n{function}")
    spec = importlib.util.spec_from_file_location("user", path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
