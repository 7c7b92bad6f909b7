"""recast: chosen operators in another dtype, between casts."""

from __future__ import annotations

import pytest
from pass_checks import program

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.structural import structural_equal
from ekiden.relay.transform import recast
from ekiden.runtime.errors import CompileError

pytestmark = pytest.mark.quick

CHAIN = "def @main(%x: Tensor[(2, 3), float32]) { exp(tanh(exp(%x))) }"
HALF = 'cast(exp(cast({}, dtype="float16")), dtype="float32")'


def _check(given: str, expected: str, *how: object) -> None:
    result = recast(program(given), *how)  # type: ignore[arg-type]
    assert isinstance(result, IRModule)
    assert structural_equal(result, program(expected)), result


def test_each_chosen_call_has_casts_around_it() -> None:
    inner = HALF.format("%x")
    _check(CHAIN, CHAIN.replace("exp(tanh(exp(%x)))", HALF.format(f"tanh({inner})")),
           "float16", "float16", ["exp"])  # fmt: skip


@pytest.mark.parametrize(("skipped", "body"), [
    ([0], HALF.format("tanh(exp(%x))")),
    ([-1], f"exp(tanh({HALF.format('%x')}))"),
    ([0, 1], "exp(tanh(exp(%x)))"),
])  # fmt: skip
def test_skipped_layers_keep_their_dtype(skipped: list[int], body: str) -> None:
    _check(CHAIN, CHAIN.replace("exp(tanh(exp(%x)))", body), "float16", "float16", ["exp"], skipped)


def test_dtype_of_sums_and_tuples() -> None:
    text = "def @main(%x: Tensor[(2, 3), float32], %w: Tensor[(4, 3), float32]) {{ {} }}"
    eight = 'cast(%{}, dtype="int8")'.format
    dense = f'nn.dense({eight("x")}, {eight("w")}, units=None, out_dtype="int32")'
    _check(text.format("nn.dense(%x, %w)"), text.format(f'cast({dense}, dtype="float32")'),
           "int8", "int32", ["nn.dense"])  # fmt: skip
    parts = f"concatenate(({eight('x')}, {eight('w')}), axis=0)"
    expected = text.format(f'cast({parts}, dtype="float32")')
    _check(text.format("concatenate((%x, %w), axis=0)"), expected, "int8", "int32", ["concatenate"])


def test_functions_and_expressions() -> None:
    x = relay.var("x", shape=(2, 3))
    result = recast(relay.Function([x], relay.exp(x)), "float16", "float16", ["exp"])
    assert isinstance(result, relay.Function) and "float16" in str(result)
    assert "float16" not in str(recast(relay.exp(x), "float16", "float16"))


def test_unknown_layer_is_refused() -> None:
    with pytest.raises(CompileError, match="there are 2 layers of exp, none has the number 2"):
        recast(program(CHAIN), "float16", "float16", ["exp"], [2])


def test_function_keeps_what_it_says_of_its_result() -> None:
    x = relay.var("x", shape=(2,))
    result = recast(relay.Function([x], relay.exp(x)), "float16", "float16", ["exp"])
    cast = relay.exp(relay.cast(x, "float16"))
    assert structural_equal(result, relay.Function([x], relay.cast(cast, "float32")))
