"""The sentences of docs/security.md about what a number or a pattern of a few letters can cost."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden import relay
from ekiden.frontend.common import dft
from ekiden.frontend.onnx import from_onnx
from ekiden.frontend.onnx.converters import resample
from ekiden.frontend.onnx.regex import compile_dfa
from ekiden.llm.grammar import Grammar, LazyGrammar
from ekiden.llm.token_trie import TokenTrie
from ekiden.relay.op import text
from ekiden.relay.transform import InferType
from ekiden.runtime.errors import CompileError, InputError

VOCABULARY = [b"a", b"b", b"ab"]


@pytest.mark.parametrize(
    "pattern",
    [
        ".{0,100}x.{0,100}x.{0,100}",
        "(.*a.{20})",
        "((a{1,50}){1,50}){1,9}",
        "(a|b|ab){1,1000}(a|b|ab){1,1000}",
        ".{0,100}x(a{1,50}){1,50}(a{1,50}){1,50}",
    ],
)
def test_pattern_that_is_catastrophic_is_refused(pattern: str) -> None:
    """Some of few states hold thousands of others in each, and took minutes."""
    with pytest.raises(InputError, match=r"^grammar: the pattern (needs more than|takes too long)"):
        Grammar.of(pattern, VOCABULARY, [0])


@pytest.mark.parametrize(
    "pattern",
    [
        "(?(DEFINE)(?<a>(?&a)(?&a)|y|[a-z]))(?&a)",
        "((a{1,50}){1,50}){1,1000}",
    ],
)
def test_pattern_of_calls_that_is_catastrophic_is_refused(pattern: str) -> None:
    tokens = TokenTrie([*(bytes([byte]) for byte in range(256)), b"y" * 9])
    message = "^grammar: the pattern (is too ambiguous|needs more than|takes too long)"
    with pytest.raises(InputError, match=message):
        LazyGrammar(pattern, tokens).row(0)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a+)+b", "(a|a)*b", "(a|b|ab)*b"])
def test_pattern_that_backtracking_takes_long_for_is_a_small_automaton(pattern: str) -> None:
    moves, _, _ = compile_dfa(pattern)
    assert len(moves) <= 6


def test_regex_assertions_check_the_correct_side() -> None:
    """What the automaton is made from is shared by all bytes, unless a condition looks at them."""
    moves, kinds, accepts = compile_dfa(r"a\b.b?")

    def matches(text: bytes) -> bool:
        state = 0
        for byte in text:
            state = moves[state, kinds[byte]]
        return bool(accepts[state])

    assert matches(b"a ") and matches(b"a b")
    assert not matches(b"ab") and not matches(b"a")


PRIME = 2**61 - 1


def test_transform_of_a_huge_extent_is_not_taken_apart() -> None:
    assert not dft.has_dft(PRIME) and not dft.has_dft(2 * PRIME)
    assert dft.has_dft(1 << 20) and dft.has_dft(1024 * 1009) and not dft.has_dft(65537)
    node = helper.make_node("DFT", ["x", "n"], ["y"])
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 1])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    length = numpy_helper.from_array(np.array(PRIME), "n")
    graph = helper.make_graph([node], "g", [info], [out], [length])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    assert isinstance(model, onnx.ModelProto)
    with pytest.raises(CompileError, match="DFT"):
        from_onnx(model)


def test_weights_of_a_long_resize_are_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows were computed by loops in Python during the import: a billion of them for ever."""
    computed: list[int] = []
    evaluate = resample.Interpreter.evaluate

    def counting(self: resample.Interpreter, expr: relay.Expr) -> object:
        value = evaluate(self, expr)
        computed.append(np.asarray(value).size)
        return value

    monkeypatch.setattr(resample.Interpreter, "evaluate", counting)
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="cubic")
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, 6])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    sizes = numpy_helper.from_array(np.array([1, 1, 2, 2**30]), "s")
    graph = helper.make_graph([node], "g", [info], [out], [sizes])
    from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10))
    assert max(computed, default=0) < 1 << 16


def _counting(skips: int, shape: list[int | str]) -> onnx.ModelProto:
    """Return a model that counts 1 and 1, 2 with so many tokens left out between."""
    node = helper.make_node(
        "TfIdfVectorizer", ["x"], ["y"], mode="TF", min_gram_length=1, max_gram_length=2,
        max_skip_count=skips, ngram_counts=[0, 1], ngram_indexes=[0, 1], pool_int64s=[1, 1, 2],
    )  # fmt: skip
    info = helper.make_tensor_value_info("x", TensorProto.INT64, shape)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [info], [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_more_skips_than_a_row_has_room_for_are_not_written_out() -> None:
    exe = ekiden.compile(_counting(2**62, [5]))
    counts = exe(np.array([1, 5, 2, 7, 2]))
    assert isinstance(counts, ekiden.runtime.Tensor)
    assert counts.numpy().tolist() == [1.0, 2.0]  # 1 and 2 stand 2 apart, and 4


@pytest.mark.parametrize("skips", [-1, 2**62])
def test_skips_in_rows_of_any_length_are_bounded(skips: int) -> None:
    with pytest.raises(CompileError, match="'max_skip_count': from 0 to 1000 expected"):
        from_onnx(_counting(skips, ["n"]))


@pytest.mark.parametrize("precision", [-1, 21, 2**62, -(2**61)])
def test_more_digits_than_a_text_has_room_for_are_refused(precision: int) -> None:
    s, d, e = (
        relay.var(name, shape=(3,), dtype=dtype)
        for name, dtype in (("s", "int64"), ("d", "uint64"), ("e", "int64"))
    )
    function = relay.Function((s, d, e), text.written(s, d, e, precision))
    with pytest.raises(CompileError, match="precision: from 0 to 20 expected"):
        InferType()(ekiden.IRModule.from_expr(function))
