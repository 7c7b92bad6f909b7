"""Generation: single sequences and batches, sampling, shared prefixes, the command."""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_decoder import Reference
from tiny_models import Memory, config_of, plain, tiny

from ekiden import cli, llm
from ekiden.llm.page_allocator import PageAllocator
from ekiden.llm.safetensors import write_safetensors
from ekiden.llm.tokenizer import Detokenizer, Tokenizer
from ekiden.runtime.errors import InputError, RunError
from long_runs import alike

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, 97, n).tolist() for n in (5, 17, 40, 33, 64, 1, 12, 90, 2, 31, 32, 7)]
PROMPTS += [[*PROMPTS[4][:50], 3, 4], PROMPTS[4], PROMPTS[7][:80], [96]]
SAMPLED = llm.Sampling(
    max_tokens=12, temperature=1.2, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=7
)


@pytest.fixture(scope="module")
def model() -> llm.Model:
    return llm.load(tiny("llama"), page=16, sequences=4)


def test_greedy_tokens_are_the_greatest_logits(model: llm.Model) -> None:
    actual = model.engine.run([PROMPTS[1]], llm.Sampling(max_tokens=40))[0]
    expected = Reference(tiny("llama")).logits([*PROMPTS[1], *actual]).argmax(-1)
    assert actual == expected[len(PROMPTS[1]) - 1 : -1].tolist()
    np.testing.assert_allclose(
        model.logits(PROMPTS[1]), Reference(tiny("llama")).logits(PROMPTS[1]), atol=1e-4
    )


@pytest.mark.parametrize(
    "sampling", [llm.Sampling(max_tokens=12), SAMPLED], ids=["greedy", "drawn"]
)
def test_batched_generation_equals_single(model: llm.Model, sampling: llm.Sampling) -> None:
    alone = [llm.Engine(model, sequences=1).run([p], sampling)[0] for p in PROMPTS]
    for sequences, chunk, steps in ((16, 512, 1), (4, 32, 5)):
        engine = llm.Engine(model, sequences=sequences, chunk=chunk, steps=steps)
        assert engine.run(PROMPTS, sampling) == alone
        assert engine.pages.num_available == sequences * model.most_pages
    assert len({tuple(each) for each in alone}) > 10


@alike(6)
@pytest.mark.parametrize(
    ("cache", "rounding"),
    [("float16", 2**-11), ("bfloat16", 2**-9), ("int8", 1 / 254), ("int4", 1 / 30)],
)
def test_smaller_cache_dtypes_keep_logits_close(cache: str, rounding: float) -> None:
    """`rounding` is half a step of the format, relative to the largest number of a group; two
    layers and a softmax carry it on.
    """
    small = llm.load(tiny("llama"), page=16, sequences=1, cache=cache)
    exact = Reference(tiny("llama")).logits(PROMPTS[7])
    error = np.square(small.logits(PROMPTS[7]) - exact).mean() / np.square(exact).mean()
    assert 0 < np.sqrt(error) < 8 * rounding


def test_cache_of_another_dtype_or_page_is_refused() -> None:
    with pytest.raises(InputError, match="'cache' must be one of .*int8, int4, got 'int3'"):
        llm.load(tiny("llama"), cache="int3")
    with pytest.raises(InputError, match="'sequences' must be at least 1, got 0"):
        llm.load(tiny("llama"), sequences=0)
    with pytest.raises(InputError, match="'page' must be a multiple of 8, got 12"):
        llm.load(tiny("llama"), cache="int4", page=12)
    with pytest.raises(InputError, match="int4 is for heads of a multiple of 8 .* model have 12"):
        llm.load(tiny("llama", head_dim=12), cache="int4")
    with pytest.raises(InputError, match="'page' must be a multiple of 4, got 6"):
        llm.load(tiny("llama"), page=6)


def test_prompts_do_not_block_other_sequences(model: llm.Model) -> None:
    engine = llm.Engine(model, sequences=2, chunk=8)
    short = engine.submit([1, 2], llm.Sampling(max_tokens=20))
    next(short)
    late = engine.submit(PROMPTS[7], llm.Sampling(max_tokens=3))
    for n in range(2, 8):
        next(short)
        assert (len(short.tokens), late.read) == (n, 7 * (n - 1))
    rest, whole = [*short], [*late]
    assert short.tokens[-len(rest) :] == rest
    alone = llm.Engine(model, sequences=1)
    assert alone.run([[1, 2]], llm.Sampling(max_tokens=20))[0] == short.tokens
    assert alone.run([PROMPTS[7]], llm.Sampling(max_tokens=3))[0] == whole


def test_sequences_share_prefix_pages(model: llm.Model) -> None:
    engine = llm.Engine(model, sequences=2)
    first = engine.submit(PROMPTS[7], llm.Sampling(max_tokens=2))
    alone = list(first)
    again = engine.submit(PROMPTS[7], llm.Sampling(max_tokens=2))
    assert list(again) == alone
    assert (first.shared, again.shared) == (0, 80)


def test_page_reference_counts_are_consistent() -> None:
    pages = PageAllocator(4, 2)

    def take(prompt: list[int], tokens: int) -> tuple[list[int], int] | None:
        return pages.allocate(pages.prefix_keys(prompt), len(prompt), tokens)

    taken, there = take([1, 2, 3], 5) or ([], 0)
    assert (len(taken), there, pages.num_available) == (3, 0, 1)
    pages.mark_filled(taken[0], *pages.prefix_keys([1, 2]))
    assert take([9], 5) is None
    shared, there = take([1, 2, 4], 4) or ([], 0)
    assert (shared[0], there, pages.num_available) == (taken[0], 2, 0)
    pages.release(taken)
    pages.release(shared)
    assert pages.num_available == 4
    assert (take([1, 2, 3], 3) or ([], 0))[1] == 2  # what nobody had was kept
    assert take([5] * 7, 8) is None
    pages = PageAllocator(1, 2)
    one, _ = take([1], 2) or ([], 0)
    pages.mark_filled(one[0], *pages.prefix_keys([1, 2]))
    pages.release(one)
    assert take([3], 2) == (one, 0)  # and forgotten when it was needed


def test_prefix_keys_grow_linearly() -> None:
    pages = PageAllocator(0, 16)
    long, other = (
        pages.prefix_keys(range(1 << 16)),
        pages.prefix_keys([*range(100), 7, *range(101, 1 << 16)]),
    )
    assert sum(map(len, long)) <= 2 << 16 and len(set(long)) == len(long) == 1 << 12
    assert long[:6] == other[:6] == pages.prefix_keys(range(111)) and not set(long[6:]) & set(
        other[6:]
    )


def test_failed_run_fails_its_batch(model: llm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise RunError("the device is lost")

    engine = llm.Engine(model, sequences=2)
    one, two = (engine.submit(PROMPTS[n], llm.Sampling(max_tokens=8)) for n in (0, 1))
    next(one)
    monkeypatch.setattr(type(model), "decode", fail)
    with pytest.raises(RunError, match="the device is lost"):
        list(one)
    with pytest.raises(RunError, match="the run failed that was to make the next token"):
        list(two)


def without_numbers(token: int) -> Memory:
    """The decoder of `model`, but for a token that it has no numbers for."""
    whole = tiny("llama")
    name = "model.embed_tokens.weight"
    table = whole.tensors[name].data.copy()
    table[token] = np.nan
    return Memory(whole.config, {**whole.tensors, name: plain(name, table)})


def test_nan_logits_fail_their_sequence(model: llm.Model) -> None:
    """Greedy or drawn, in a prompt or later, while others go on, also on the same pages."""
    form = llm.Grammar.of("[0-9A-Z]{12}", LETTERS)
    waves = [llm.Sampling(max_tokens=12), SAMPLED, llm.Sampling(temperature=1.0, grammar=form)]
    texts = [model.engine.run([PROMPTS[0]], each)[0] for each in waves]
    late = model.engine.run([PROMPTS[2]], waves[0])[0]
    seen = {*PROMPTS[0], *(token for text in texts for token in text)}
    bad = next(token for token in late[2:] if token not in {*seen, *PROMPTS[2], *late[:2]})
    broken = llm.load(without_numbers(bad), page=16, sequences=2)
    for asked, text in zip(waves, texts, strict=True):
        for steps in (1, 4):
            engine = llm.Engine(broken, sequences=2, steps=steps)
            well, ill = (engine.submit(prompt, asked) for prompt in (PROMPTS[0], [3, bad]))
            assert [next(well)] == text[:1]
            with pytest.raises(RunError, match=rf"the text after \[3, {bad}\]: .* no numbers"):
                list(ill)
            assert text[1:] == list(well)
            assert engine.run([PROMPTS[0]] * 2, asked) == [text] * 2
    begun = llm.Engine(broken, sequences=2, steps=4).submit(PROMPTS[2], waves[0])
    place = late.index(bad) + 2
    message = (
        rf"the text after \[.*, \.\.\.\] \(40 tokens\): the logits of token {place} are no num"
    )
    with pytest.raises(RunError, match=message):
        list(begun)
    assert begun.tokens == late[: late.index(bad) + 1] and begun.finish == "failed"


def test_equal_seeds_give_equal_texts(model: llm.Model) -> None:
    def drawn(seed: int, **changes: object) -> list[int | None]:
        pieces = model.generate(PROMPTS[0], temperature=2.0, max_tokens=8, seed=seed, **changes)
        return [piece.token for piece in pieces]

    assert drawn(3) == drawn(3) != drawn(4)
    greedy = [p.token for p in model.generate(PROMPTS[0], max_tokens=8)]
    assert drawn(3, top_k=1) == drawn(5, top_p=0.0) == drawn(6, min_p=1.0) == greedy


def test_grammar_gives_texts_of_its_form(model: llm.Model) -> None:
    letters: list[bytes | None] = [bytes([n + 32]) for n in range(97)]
    letters[5] = b"no"
    form = llm.Grammar.of(r"(yes|no|[0-9]{3,5})!", letters)
    digits = llm.Grammar.of("[0-9]+", letters, ends=[0])
    texts = set()
    for seed in range(12):
        pieces = [*model.generate([1], temperature=3.0, grammar=form, seed=seed)]
        text = b"".join(letters[p.token] or b"" for p in pieces if p.token is not None)
        assert re.fullmatch(rb"(yes|no|[0-9]{3,5})!", text), text
        assert pieces[-1].finish == "stop"
        texts.add(text)
    assert len(texts) > 5
    engine = llm.Engine(model, sequences=3, steps=4)
    expected = [llm.Sampling(max_tokens=9, grammar=each) for each in (form, None, digits)]
    streams = [engine.submit(PROMPTS[1], each) for each in expected]
    both = [list(stream) for stream in streams]
    assert both == [llm.Engine(model).run([PROMPTS[1]], each)[0] for each in expected]
    assert all(48 <= token + 32 < 58 or token == 0 for token in both[2])


def test_wrong_grammar_is_refused(model: llm.Model) -> None:
    for pattern, message in (
        ("(a", "grammar: pattern '(a': "),
        ("é", "grammar: no tokens make a text that 'é' matches"),
    ):
        with pytest.raises(InputError) as caught:
            llm.Grammar.of(pattern, [b"a", None])
        assert str(caught.value).startswith(message)
    with pytest.raises(InputError, match="grammar: it is for 1 tokens, the model has 97"):
        model.generate([1], grammar=llm.Grammar.of("a*", [b"a"]))
    with pytest.raises(InputError, match="grammar: a tokenizer is needed"):
        model.generate([1], grammar="a*")


LETTERS = [bytes([each]) for each in range(97)]


def test_grammar_masks_dead_end_tokens(model: llm.Model) -> None:
    tokens: list[bytes | None] = [b"a", b"b", b"bc", *[None] * 94]
    form = llm.Grammar.of("a+|bc|bd", tokens)
    assert [form.moves[0, n] >= 0 for n in range(3)] == [True, False, True]
    for pattern in ("abd", "bd"):  # there is no token with a d
        with pytest.raises(InputError, match="no tokens make a text that"):
            llm.Grammar.of(pattern, tokens)
    nothing = llm.Grammar.of("", tokens)
    for sampling in (llm.Sampling(grammar=nothing), llm.Sampling(grammar=nothing, temperature=1)):
        stream = model.engine.submit([1], sampling)
        assert (list(stream), stream.finish) == ([], "stop")
    assert [p.finish for p in model.generate([1], grammar=nothing)] == ["stop"]


@pytest.mark.parametrize("heat", [1e-40, 1e-50, 1e30, 3e38, 1e300, 10**400, float("inf")])
def test_extreme_sampling_settings_respect_grammar(model: llm.Model, heat: float) -> None:
    form = llm.Grammar.of("[0-9]{4}", LETTERS)
    for changes in ({"temperature": heat}, {"temperature": 1.0, "repetition_penalty": heat}):
        try:
            sampling = llm.Sampling(grammar=form, max_tokens=8, **changes)
        except InputError:
            assert heat > 1e38
            continue
        for seed in range(4):
            result = list(model.engine.submit([48, 49], replace(sampling, seed=seed)))
            assert len(result) == 4 and all(48 <= token < 58 for token in result)


@pytest.mark.parametrize("temperature", [1e-3, 1.0, 1e4, 1e30, np.inf])
def test_top_k_of_one_is_greedy_at_every_temperature(model: llm.Model, temperature: float) -> None:
    for penalty in (1.0, 1.3):
        greedy = llm.Sampling(max_tokens=12, repetition_penalty=penalty)
        drawn = replace(greedy, temperature=temperature, top_k=1, seed=5)
        assert model.engine.run(PROMPTS[:3], drawn) == model.engine.run(PROMPTS[:3], greedy)


def test_lowest_temperature_is_greedy(model: llm.Model) -> None:
    expected = model.engine.run([PROMPTS[0]], llm.Sampling(max_tokens=4))
    for heat in (1e-40, 1e-30, 1e-50):
        actual = model.engine.run([PROMPTS[0]], llm.Sampling(max_tokens=4, temperature=heat))
        assert actual == expected


def test_past_grammars_release_memory(model: llm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = type("Named", (), {"token_bytes": lambda self, count: LETTERS[:count]})
    monkeypatch.setattr(model, "tokenizer", letters())
    form = model.grammar("A")
    assert form is not None and model.grammar("A") is form
    monkeypatch.setattr("ekiden.llm.model.MAX_TABLE_BYTES", form.nbytes)
    gone = weakref.ref(form)
    del form
    assert model.grammar("B") is not None
    assert gone() is None


def test_penalty_makes_tokens_rarer(model: llm.Model) -> None:
    plain, rare = (
        model.engine.run([PROMPTS[0]], llm.Sampling(max_tokens=60, repetition_penalty=by))[0]
        for by in (1.0, 1.8)
    )
    assert len(set(rare)) > len(set(plain))


def test_sequence_ends_at_stop_token_limit_and_close(model: llm.Model) -> None:
    text = model.engine.run([PROMPTS[0]], llm.Sampling(max_tokens=20))[0]
    model.ends = (text[5],)
    try:
        result = list(model.generate(PROMPTS[0], max_tokens=20))
        assert [p.token for p in result if p.token is not None] == text[: text.index(text[5])]
        assert [p.finish for p in result][-1] == "stop"
        ignored = list(model.generate(PROMPTS[0], max_tokens=20, ignore_end=True))
        assert [p.token for p in ignored] == text
        assert [p.finish for p in ignored][-2:] == ["", "length"]
    finally:
        model.ends = ()
    long = model.engine.submit(PROMPTS[7], llm.Sampling(max_tokens=1000))
    assert len(list(long)) == 256 - len(PROMPTS[7])
    stream = model.engine.submit(PROMPTS[7])
    next(stream)
    stream.close()
    assert (stream.finish, list(stream)) == ("closed", stream.tokens[1:])
    assert model.engine.pages.num_available == 4 * model.most_pages


def test_abandoned_answer_is_ended(model: llm.Model) -> None:
    pieces = model.generate(PROMPTS[0])
    del pieces
    begun = model.generate(PROMPTS[1])
    next(begun)
    del begun
    assert model.engine.run([[1]], llm.Sampling(max_tokens=2))
    assert model.engine.pages.num_available == 4 * model.most_pages


class Ending:
    """A lock that calls something when it is about to be open again, the first time."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.lock, self.then = threading.Lock(), [then]
        self.acquire = self.lock.acquire

    def release(self) -> None:
        while self.then:
            self.then.pop()()
        self.lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_stream_may_be_closed_within_a_step(model: llm.Model) -> None:
    """As by a collector of garbage, which runs anywhere."""
    engine = llm.Engine(model, sequences=2)
    first, second, waiting = (engine.submit(PROMPTS[n]) for n in range(3))
    decode = model.decode

    def closing(*argument: Any) -> list[list[int]]:  # noqa: ANN401
        second.close()
        waiting.close()
        return decode(*argument)

    next(first), next(second)
    model.decode = closing  # type: ignore[method-assign]
    try:
        assert next(first) == first.tokens[1]
    finally:
        del model.decode
    assert (second.finish, waiting.finish) == ("closed", "closed")
    assert list(second) == second.tokens[1:]
    first.close()
    assert engine.pages.num_available == 2 * model.most_pages


def test_stream_may_be_closed_when_a_step_ends(model: llm.Model) -> None:
    """After the last look at what is closed, and before others may take the lock."""
    engine = llm.Engine(model, sequences=2)
    first, second = (engine.submit(PROMPTS[n]) for n in range(2))
    next(first), next(second)
    engine._lock = Ending(second.close)  # type: ignore[assignment]
    next(first)
    assert second.finish == "closed"
    assert list(second) == second.tokens[1:]


def test_two_engines_of_one_model_have_grammars_of_their_own(model: llm.Model) -> None:
    forms = {pattern: llm.Grammar.of(pattern, LETTERS) for pattern in ("[0-9]{20}", "[A-Z]{30}")}
    result: dict[str, list[str]] = {}

    def make(pattern: str) -> None:
        engine = llm.Engine(model, sequences=2)
        assert model.logits([1, 2]).shape == (2, 97)
        asked = llm.Sampling(grammar=forms[pattern], temperature=1.0)
        output = [engine.run([[5], [7]], asked) for _ in range(3)]
        result[pattern] = [bytes(tokens).decode() for each in output for tokens in each]

    threads = [threading.Thread(target=make, args=(pattern,)) for pattern in forms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pattern in forms:
        assert all(re.fullmatch(pattern, text) for text in result[pattern]), result


def test_invalid_generation_requests_are_refused(model: llm.Model) -> None:
    for prompt, message in (
        ([], "prompt: at least one token expected"),
        ([1] * 256, "prompt: 256 tokens leave no place in a context of 256"),
        ([1, 97], "prompt: token 97 is none of the 97 of the model"),
        ([-1], "prompt: token -1 is none of the 97 of the model"),
        ("text", "prompt: tokens expected, as the model has no tokenizer"),
        ([1, 2.5], "prompt: whole numbers expected as tokens: 'float' object cannot"),
        (["a"], "prompt: whole numbers expected as tokens: 'str' object cannot"),
        (np.ones((2, 2), int), "prompt: whole numbers expected as tokens: only "),
        (7, "prompt: whole numbers expected as tokens: 'int' object is not iterable"),
        (b"ab", "prompt: whole numbers expected as tokens, got bytes"),
    ):
        for ask in (model.generate, model.engine.submit, model.logits):
            if not isinstance(prompt, str) or ask == model.generate:
                with pytest.raises(InputError) as caught:
                    ask(prompt)
                assert str(caught.value).startswith(message)
    for changes, message in (
        ({"max_tokens": 0}, "max_tokens: at least 1 expected, got 0"),
        ({"temperature": -1}, "temperature: a number from 0.0 to inf expected, got -1"),
        ({"top_p": 2}, "top_p: a number from 0.0 to 1.0 expected, got 2"),
        ({"repetition_penalty": 0}, "repetition_penalty: a number above 0 expected, got 0"),
        ({"repetition_penalty": "1"}, "repetition_penalty: a number above 0 expected, got '1'"),
        ({"top_k": 1.5}, "top_k: a whole number from 0 to 16777216 expected, got 1.5"),
        ({"seed": True}, "seed: a whole number from -9223372036854775808 to "),
        ({"stop": 5}, "stop: texts expected, got 5"),
        ({"stop": ""}, "stop: texts expected, got ''"),
        ({"stop": ("",)}, "stop: texts expected, got ('',)"),
        ({"stop": ("a", 5)}, "stop: texts expected, got ('a', 5)"),
        ({"heat": 1}, "generate: 'heat' is none of max_tokens, temperature,"),
        ({"stop": ("a",)}, "stop: tokens only, as the model has no tokenizer"),
    ):
        with pytest.raises(InputError) as caught:
            model.generate([1], **changes)  # type: ignore[arg-type]
        assert str(caught.value).startswith(message)


class Letters:
    """A tokenizer of bytes."""

    def encode(self, text: str) -> object:
        return type("Encoding", (), {"ids": list(text.encode())})

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(tokens).decode(errors="replace")


class SpecialLetters(Letters):
    """Bytes, of which 200 and beyond are special tokens."""

    def get_added_tokens_decoder(self) -> dict[int, object]:
        added = {n: f"<|{n}|>" for n in range(200, 256)}
        kind = type("AddedToken", (), {"special": True})
        return {n: type("Token", (kind,), {"content": name})() for n, name in added.items()}

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return super().decode([token for token in tokens if token < 200])


def test_submitted_texts_end_at_stop_texts_and_at_special_tokens() -> None:
    model = llm.load(tiny("llama", vocab_size=256), page=16, tokenizer=SpecialLetters())
    sampling = llm.Sampling(max_tokens=60, temperature=1.5, seed=3)
    free = model.engine.run([[1, 2, 3]], sampling)[0]
    text_at = next(n for n in range(5, 60) if free[n] < 128 and free[n] not in free[:n])
    token_at = next(n for n in range(5, 60) if free[n] >= 200 and free[n] not in free[:n])
    letter, special = chr(free[text_at]), f"<|{free[token_at]}|>"
    for stop, expected in (
        (letter, free[: text_at + 1]),
        ([letter], free[: text_at + 1]),
        (special, free[:token_at]),
        (["never this", special], free[:token_at]),
        ((letter, special), free[: min(text_at + 1, token_at)]),
    ):
        chosen = replace(sampling, stop=stop)
        stream = model.engine.submit([1, 2, 3], chosen)
        assert (list(stream), stream.finish) == (expected, "stop")
        pieces = list(model.generate([1, 2, 3], chosen))
        assert pieces[-1].finish == "stop"
        shown_text = model.tokenizer.decode(expected)  # type: ignore[union-attr]
        assert "".join(piece.text for piece in pieces) == shown_text.removesuffix(letter)
    assert model.engine.pages.num_available == model.sequences * model.most_pages


def test_detokenizer_error_ends_only_its_sequence() -> None:
    class Refusing(Letters):
        def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
            if len(tokens) > 5:
                raise ValueError("no such letters")
            return "?"

    model = llm.load(tiny("llama", vocab_size=256), page=16, tokenizer=Refusing())
    sampling = llm.Sampling(max_tokens=12)
    expected = model.engine.run([[4, 5]], sampling)[0]
    refused = model.engine.submit([1, 2, 3], replace(sampling, stop="x"))
    beside = model.engine.submit([4, 5], sampling)
    assert list(beside) == expected
    with pytest.raises(RunError, match="the tokenizer refuses it: no such letters"):
        list(refused)


class ByteRuns(Letters):
    """One that shows nothing of bytes together if any of them are no letter, as the decoder of
    SentencePiece's does."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        try:
            return bytes(tokens).decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(tokens)


def shown(
    text: str | bytes, *stops: str, inner: object = None, prompt: str = "ab"
) -> Iterator[str]:
    pieces = Detokenizer(Tokenizer(inner or Letters()), list(prompt.encode()), stops)
    for byte in text.encode() if isinstance(text, str) else text:
        yield pieces.add(byte)
        if pieces.has_stopped:
            return
    yield pieces.rest()


def test_pieces_are_whole_letters_and_end_before_a_stop() -> None:
    assert list(shown("né")) == ["n", "", "é", ""]
    assert "".join(shown("one END two", "END")) == "one "
    assert list(shown("xEy", "END")) == ["x", "", "Ey", ""]
    assert list(shown("xE", "END")) == ["x", "", "E"]


@pytest.mark.parametrize("inner", [Letters(), ByteRuns()])
def test_pieces_of_letters_of_many_tokens(inner: Letters) -> None:
    cut = "n\u4e2d".encode() + "\u56fd".encode()[:2]
    assert list(shown(cut, inner=inner)) == ["n", "", "", "\u4e2d", "", "", "\ufffd"]
    for prompt in ("a\u4e2d\u56fd\u4eba", "\u4e2d" * 9, "abcdefg\u00e9abcdefg"):
        assert "".join(shown("n\u00e9!", inner=inner, prompt=prompt)) == "n\u00e9!"
    assert "".join(shown("\u4e2d\u56fd\u4eba", "\u56fd", inner=inner)) == "\u4e2d"
    with pytest.raises(InputError, match="prompt: no text: .*surrogates not allowed"):
        Tokenizer(inner).encode("a\ud800")


def test_command_prints_tokens_as_they_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: llm.Model
) -> None:
    whole = tiny("llama")
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama")))
    write_safetensors(tmp_path / "model.safetensors", whole.tensors)
    tokens = ",".join(map(str, PROMPTS[1]))
    inputs = ["generate", str(tmp_path), "--tokens", tokens, "--max-tokens", "6"]
    assert cli.main(inputs) == 0
    actual = capsys.readouterr()
    expected = model.engine.run([PROMPTS[1]], llm.Sampling(max_tokens=6))[0]
    assert [int(each) for each in actual.out.split()] == expected
    assert actual.err.startswith("prompt: 17 tokens, ")
    assert "answer: 6 tokens" in actual.err
    with pytest.raises(SystemExit):
        cli.main([*inputs, "--threads", "0"])
    assert "--threads: expected a whole number above 0, got '0'" in capsys.readouterr().err
    assert cli.main([*inputs[:2], "text", *inputs[2:]]) == 1
    assert "--tokens: give a prompt as text or as tokens, not both" in capsys.readouterr().err
    assert cli.main([*inputs, "--proposals", "2"]) == 1
    assert "'proposals' are those of a 'draft', which is not given" in capsys.readouterr().err
    assert cli.main([*inputs[:2], "text"]) == 1
    assert "no tokenizer" in capsys.readouterr().err
    assert cli.main(["generate", str(tmp_path / "none"), "text"]) == 1
    assert "no such file or folder" in capsys.readouterr().err


@pytest.mark.parametrize("small", ["llama", "qwen2"], ids=["itself", "another"])
def test_speculative_decoding_does_not_change_texts(model: llm.Model, small: str) -> None:
    result = llm.load(tiny("llama"), page=16, sequences=4, draft=tiny(small), proposals=3)
    for sampling in (llm.Sampling(max_tokens=12), SAMPLED):
        alone = [llm.Engine(model, sequences=1).run([p], sampling)[0] for p in PROMPTS]
        for sequences, chunk, steps in ((1, 512, 1), (5, 32, 9)):
            engine = llm.Engine(result, sequences=sequences, chunk=chunk, steps=steps)
            assert engine.run(PROMPTS, sampling) == alone
            assert engine.pages.num_available == sequences * result.most_pages


def test_speculative_decoding_works_with_smallest_chunk() -> None:
    result = llm.load(tiny("llama"), draft=tiny("llama", 1), page=16, sequences=3, context=64)
    sampling = llm.Sampling(max_tokens=6)
    expected = result.engine.run(PROMPTS[:3], sampling)
    assert llm.Engine(result, sequences=3, chunk=1).run(PROMPTS[:3], sampling) == expected


def test_speculative_round_accepts_all_correct_proposals() -> None:
    result = llm.load(tiny("llama"), page=16, sequences=1, draft=tiny("llama"), proposals=3)
    stream = result.engine.submit(PROMPTS[1], llm.Sampling(max_tokens=12))
    counts = []
    while not stream.finish:
        result.engine.advance(stream)
        counts.append(len(stream.tokens))
    assert counts == [1, 5, 9, 12]


def test_draft_model_must_share_the_vocabulary() -> None:
    with pytest.raises(InputError) as caught:
        llm.load(tiny("llama"), draft=tiny("llama", vocab_size=96))
    assert str(caught.value) == "load: 'draft' must have the 97 tokens of the model, it has 96"
    with pytest.raises(InputError, match=r"^load: 'proposals' must be at least 1, got 0$"):
        llm.load(tiny("llama"), draft=tiny("llama"), proposals=0)
