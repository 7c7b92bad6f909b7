"""FoldConstant: calls on constants are evaluated at compile time."""

import numpy as np
import pytest
from pass_checks import check, main_of, program

from ekiden.ir.expr import RelayExpr
from ekiden.relay.expr import Call, Constant, Tuple
from ekiden.relay.transform import FoldConstant

pytestmark = pytest.mark.quick


def test_call_on_constants_becomes_its_value() -> None:
    check(
        FoldConstant(),
        "def @main(%x: float32) { add(%x, multiply(2f, 3f)) }",
        "def @main(%x: float32) { add(%x, 6f) }",
    )


def test_chain_folds_to_one_constant() -> None:
    check(FoldConstant(), "def @main() { exp(subtract(1f, 1f)) }", "def @main() { 1f }")


def test_quantised_constants_fold_to_their_integers() -> None:
    check(
        FoldConstant(fold_qnn=True),
        'def @main() { qnn.quantize(4f, 0.5f, 1, out_dtype="int8") }',
        "def @main() { 9i8 }",
    )


def test_call_that_depends_on_a_parameter_stays() -> None:
    text = "def @main(%x: float32) { add(%x, 1f) }"
    check(FoldConstant(), text, text)


def test_tuple_field_is_folded() -> None:
    check(
        FoldConstant(),
        "def @main(%x: float32, %y: float32) { (%x, %y).1 }",
        "def @main(%x: float32, %y: float32) { %y }",
    )


def test_field_is_not_taken_from_a_tuple_with_an_effect() -> None:
    text = "def @main(%r: ref(float32), %y: float32) { (ref_write(%r, %y), %y).1 }"
    check(FoldConstant(), text, text)


def test_constant_condition_selects_the_branch() -> None:
    check(
        FoldConstant(),
        "def @main(%x: float32) { if (less(1f, 2f)) { %x } else { tanh(%x) } }",
        "def @main(%x: float32) { %x }",
    )


def test_result_of_several_tensors_becomes_a_tuple() -> None:
    module = program(
        """def @main(%w: Tensor[(4,), float32]) {
          %0 = split(%w, indices_or_sections=[2], axis=0); (%0.1, %0.0) }""",
        w=np.arange(4, dtype=np.float32),
    )
    body = main_of(FoldConstant()(module)).body
    assert isinstance(body, Tuple)
    first, second = body.fields
    assert isinstance(first, Constant) and isinstance(second, Constant)
    assert first.data.tolist() == [2, 3] and second.data.tolist() == [0, 1]


def test_integers_keep_their_dtype() -> None:
    body = main_of(FoldConstant()(program("def @main() { add(1i64, 2i64) }"))).body
    assert isinstance(body, Constant) and body.data.dtype == np.int64 and body.data == 3


def test_small_constant_is_not_blown_up() -> None:
    text = "def @main() { broadcast_to(1f, shape=[1024, 1024, 64]) }"
    check(FoldConstant(), text, text)


def test_attribute_with_a_symbol_is_not_evaluated() -> None:
    text = """def @main(%x: Tensor[(n,), float32]) {
      add(%x, broadcast_to(1f, shape=[n])) }"""
    check(FoldConstant(), text, text)


def test_large_constants_are_computed_and_results_too_large_are_not() -> None:
    weight = np.arange(128 * 256, dtype=np.float32).reshape(128, 256)
    module = program(
        """def @main(%w: Tensor[(128, 256), float32]) {
          (transpose(%w, axes=[1, 0]), exp(negative(%w)),
           broadcast_to(%w, shape=[100000000, 128, 256])) }""",
        w=weight,
    )
    body = main_of(FoldConstant()(module)).body
    assert isinstance(body, Tuple)
    turned, power, huge = body.fields
    assert isinstance(turned, Constant) and isinstance(power, Constant) and isinstance(huge, Call)
    np.testing.assert_array_equal(turned.data, weight.T)
    np.testing.assert_array_equal(power.data, np.exp(-weight))


HIDDEN = """def @main(%x: Tensor[(4000, 3), float32], %p: Tensor[(4000, 2), float32],
    %w: Tensor[(512, 2), float32], %v: Tensor[(3, 512), float32]) {{
  %0 = nn.relu(nn.dense(%p, %w));
  {result} }}"""


def _of_hidden_layer(result: str) -> RelayExpr:
    draw = np.random.default_rng(3)
    sizes = {"p": (4000, 2), "w": (512, 2), "v": (3, 512)}
    values = {name: draw.standard_normal(size, np.float32) for name, size in sizes.items()}
    body = main_of(FoldConstant()(program(HIDDEN.format(result=result), **values))).body
    expected = np.maximum(values["p"] @ values["w"].T, 0) @ values["v"].T
    if isinstance(body, Call) and isinstance(actual := body.args[1], Constant):
        np.testing.assert_allclose(actual.data, expected, rtol=1e-4, atol=1e-4)
    return body


def test_large_constant_with_small_uses_is_folded() -> None:
    body = _of_hidden_layer("add(%x, nn.dense(%0, %v))")
    assert isinstance(body, Call) and isinstance(body.args[1], Constant)


@pytest.mark.parametrize(
    "result",
    [
        "(add(%x, nn.dense(%0, %v)), %0)",  # it is a result itself
        "(add(%x, nn.dense(%0, %v)), add(%0, sum(%x)))",  # and read beside what is not known
        "add(%x, nn.dense(exp(broadcast_to(%0, shape=[9, 4000, 512])), %v))",  # or far too large
    ],
)
def test_large_constant_with_other_readers_is_kept(result: str) -> None:
    body = _of_hidden_layer(result)
    waiting, seen = [body], 0
    while waiting:
        item = waiting.pop()
        waiting += item.fields if isinstance(item, Tuple) else ()
        waiting += item.args if isinstance(item, Call) else ()
        if isinstance(item, Constant):
            seen = max(seen, item.data.nbytes)
    assert seen < 1 << 20


INTERPRETED = {
    "random": """def @main(%k: Tensor[(10,), uint64]) {{
      random.normal(%k, 0f, 1f, out_shape=[{n}]).1 }}""",
    "pooling": """def @main() {{
      nn.adaptive_avg_pool1d(zeros(shape=[1, 1, {n}], dtype="float32"), output_size=[{n}]) }}""",
}
"""Operators without a reference in NumPy."""


@pytest.mark.parametrize("name", INTERPRETED)
def test_expensive_constants_are_computed_at_run_time(name: str) -> None:
    text, key = INTERPRETED[name], np.arange(10, dtype=np.uint64)
    for count, is_folded in ((8, True), (250_000, False)):
        values = {"k": key} if "%k" in text else {}
        body = main_of(FoldConstant()(program(text.format(n=count), **values))).body
        assert isinstance(body, Constant) == is_folded
