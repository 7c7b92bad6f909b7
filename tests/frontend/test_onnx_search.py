# ruff: noqa: ANN401 - options of a node
"""Text generation: BeamSearch, GreedySearch and Sampling as ONNX Runtime's, on tiny decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from search_models import (
    END,
    FEATURES,
    HEADS,
    LAYERS,
    PAD,
    START,
    VOCABULARY,
    WIDTH,
    Array,
    gpt_decoder,
    search_model,
    t5_graphs,
    whisper_graphs,
)

import ekiden
from ekiden.frontend.onnx import from_onnx
from ekiden.runtime.errors import InputError, UnsupportedError
from onnx_runtime import run_onnx_runtime

PROMPTS = np.array([[PAD, PAD, 5, 9, 3], [7, 8, 4, 11, 6]], np.int32)
MASK = np.array([[0, 1, 1, 1, 1], [1, 1, 1, 0, 1]], np.int32)
WORDS = np.where(np.arange(VOCABULARY) % 3 == 0, 0, 1).astype(np.int32)
FIRST_WORDS = np.ones((2, VOCABULARY), np.int32)
FIRST_WORDS[0, 4::2] = FIRST_WORDS[1, 5:20] = 0
Input = tuple[str, Array | None, bool]


def one(value: float, dtype: Any = np.int32) -> Array:
    return np.array([value], dtype)


def limits(length: int, shortest: int, is_fixed: bool) -> list[Input]:
    return [
        ("input_ids", PROMPTS, False),
        ("max_length", one(length), is_fixed),
        ("min_length", one(shortest), is_fixed),
    ]


def masks(vocabulary: bool = False, prefix: bool = False, attention: bool = False) -> list[Input]:
    return [
        ("vocab_mask", WORDS if vocabulary else None, False),
        ("prefix_vocab_mask", FIRST_WORDS if prefix else None, False),
        ("attention_mask", MASK if attention else None, False),
    ]


def beam_model(
    beams: int = 3, results: int = 2, length: int = 12, shortest: int = 0,
    length_penalty: float = 1.0, penalty: float = 1.0, is_fixed: bool = True,
    scores: bool = False, further: list[Input] | None = None, **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:  # fmt: skip
    inputs = [
        *limits(length, shortest, is_fixed),
        ("num_beams", one(beams), is_fixed),
        ("num_return_sequences", one(results), is_fixed),
        ("length_penalty", one(length_penalty, np.float32), is_fixed),
        ("repetition_penalty", one(penalty, np.float32), is_fixed),
        *(further or []),
    ]
    outputs = ["sequences", "sequences_scores", *(["scores"] if scores else [])]
    return search_model("BeamSearch", inputs, outputs, **attributes)


def check(
    model: onnx.ModelProto, feed: dict[str, Array], executor: str = "vm", rounding: float = 2e-5
) -> None:
    """The texts are those of ONNX Runtime, and scores as near as sums of float32 in another order:
    1e-5 of each of the at most 20 terms, or of the lowest float32 beside them."""
    results = ekiden.compile(model, executor=executor)(**feed)
    check_results(results, run_onnx_runtime(model, feed), rounding)


def check_results(results: Any, wanted: list[Array], rounding: float) -> None:
    many = results if isinstance(results, tuple) else (results,)
    for result, reference in zip(many, wanted, strict=True):
        array = np.from_dlpack(result)
        assert array.shape == reference.shape and array.dtype == reference.dtype
        if array.dtype == np.int32:
            np.testing.assert_array_equal(array, reference)
        else:
            np.testing.assert_allclose(array, reference, rtol=rounding, atol=10 * rounding)


BEAMS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "numbers of the run": {"is_fixed": False, "penalty": 1.2, "length_penalty": 0.8},
    "early": {"early_stopping": 1, "length": 20},
    "long": {"length": 20, "length_penalty": 0.3},
    "one beam": {"beams": 1, "results": 1},
    "without repeats": {"length": 20, "no_repeat_ngram_size": 2, "penalty": 1.3},
    "shortest": {"length": 16, "shortest": 12, "beams": 4, "results": 4},
    "scores": {"scores": True},
    "masks": {"further": masks(True, True, True)},
    "first decoder": {"init_decoder": gpt_decoder(1, "other")},
}
QUICK = ("numbers of the run", "masks")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in BEAMS]
)
def test_beam_search_of_a_decoder(name: str) -> None:
    check(*beam_model(decoder=gpt_decoder(1), **BEAMS[name]))


@pytest.mark.long
@pytest.mark.parametrize("executor", ["aot", "async"])
@pytest.mark.parametrize("seed", [2, 3])
def test_beam_search_by_each_executor(executor: str, seed: int) -> None:
    model, feed = beam_model(decoder=gpt_decoder(seed), is_fixed=False, no_repeat_ngram_size=3)
    check(model, feed, executor)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"early_stopping": 1, "length": 16}, marks=pytest.mark.long)]
)
def test_beam_search_of_an_encoder_and_a_decoder(options: dict[str, Any]) -> None:
    encoder, decoder = t5_graphs(1)
    model, feed = beam_model(
        encoder=encoder, decoder=decoder, model_type=1, decoder_start_token_id=START,
        further=masks(attention=bool(options)), **options,
    )  # fmt: skip
    check(model, feed)


@pytest.mark.parametrize("all_of_it", [False, True])
def test_greedy_search(all_of_it: bool) -> None:
    inputs = limits(20, 8 if all_of_it else 0, not all_of_it)
    if all_of_it:
        inputs += [("repetition_penalty", one(1.2, np.float32), False), *masks(True, True, True)]
    size = 3 if all_of_it else 0
    model, feed = search_model(
        "GreedySearch", inputs, decoder=gpt_decoder(), no_repeat_ngram_size=size
    )
    check(model, feed)


def test_small_vocabulary_masks_remaining_logits() -> None:
    """ONNX Runtime 1.32 reads logits of other tokens there, on a CPU; with the mask it agrees."""
    model, feed = search_model(
        "GreedySearch", limits(12, 0, True)[:2], decoder=gpt_decoder(1), vocab_size=20
    )
    first = np.where(np.arange(VOCABULARY) < 20, 1, 0).astype(np.int32)
    inputs = [*limits(12, 0, True), ("penalty", None, True), ("vocab_mask", first, True)]
    masked, _ = search_model("GreedySearch", inputs, decoder=gpt_decoder(1))
    result = ekiden.compile(model)(**feed)
    assert isinstance(result, ekiden.Tensor)
    np.testing.assert_array_equal(result.numpy(), run_onnx_runtime(masked, feed)[0])


def next_logits(prompts: Array) -> Array:
    """The logits of the decoder behind prompts without padding."""
    graph = gpt_decoder()
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    rows, length = prompts.shape
    feed: dict[str, Array] = {
        "input_ids": prompts,
        "position_ids": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "attention_mask": np.ones((rows, length), np.int32),
    }
    empty = np.zeros((2, rows, HEADS, 0, WIDTH), np.float32)
    feed |= {f"past_{i}": empty for i in range(LAYERS)}
    return np.asarray(run_onnx_runtime(model, feed)[0])[:, -1]


def softmax(x: Array) -> Array:
    powers: Array = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


@pytest.mark.parametrize("custom", [0, 1])
def test_top_p_sampling_follows_probabilities(custom: int) -> None:
    """Of 4000 draws each share is off by 5 standard deviations at most; ONNX Runtime's own random
    numbers are another engine's."""
    count, top_p, temperature = 4000, 0.8, 8.0
    prompt = np.array([[7, 8, 4, 11, 6]], np.int32)
    prompts = np.repeat(prompt, count, axis=0)
    inputs: list[Input] = [("input_ids", prompts, False), ("max_length", one(6), True)]
    inputs += [(f"absent{i}", None, False) for i in range(6)]
    inputs.append(("seed", one(5), True))
    model, feed = search_model(
        "Sampling", inputs, decoder=gpt_decoder(), top_p=top_p, temperature=temperature,
        custom=custom,
    )  # fmt: skip
    scores = next_logits(prompt)[0] / temperature
    order = np.argsort(-scores if custom else scores, kind="stable")
    sums = np.cumsum(softmax(scores[order]))
    is_out = sums - softmax(scores[order]) > top_p if custom else sums <= 1 - top_p
    is_likely = np.ones(VOCABULARY, bool)
    is_likely[order[is_out]] = False
    shares = np.where(is_likely, softmax(np.where(is_likely, scores, -np.inf)), 0.0)
    assert 2 <= is_likely.sum() < VOCABULARY
    exe = ekiden.compile(model)
    drawn = np.from_dlpack(exe(**feed))  # type: ignore[arg-type]
    np.testing.assert_array_equal(drawn[:, :5], prompts)
    tokens = np.where(drawn[:, 5] == PAD, END, drawn[:, 5])  # an end is written as padding
    result = np.bincount(tokens, minlength=VOCABULARY) / count
    shares[END], shares[PAD] = shares[END] + shares[PAD], 0.0
    assert (np.abs(result - shares) <= 5 * np.sqrt(shares * (1 - shares) / count)).all()
    np.testing.assert_array_equal(np.from_dlpack(exe(**feed)), drawn)  # type: ignore[arg-type]
    reference = run_onnx_runtime(model, feed)[0][:, 5]
    assert set(np.where(reference == PAD, END, reference)) <= set(np.flatnonzero(shares))


def test_search_is_saved_and_needs_no_python(tmp_path: Path) -> None:
    model, feed = search_model("GreedySearch", limits(9, 0, True)[:2], decoder=gpt_decoder())
    ekiden.export(model, tmp_path / "search.eki")
    loaded = ekiden.load(tmp_path / "search.eki")
    assert loaded.raw.metadata.get("host_functions", []) == []
    np.testing.assert_array_equal(
        np.from_dlpack(loaded(**feed)), run_onnx_runtime(model, feed)[0]  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(InputError, match="'max_length' needs"):
        loaded(np.ones((1, 9), np.int32))


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"model_type": 2}, "attribute 'model_type' must be one of 0, 1, got 2"),
        ({"model_type": 1}, "attribute 'encoder' is missing"),
    ],
)
def test_unsupported_search_models_are_refused(attributes: dict[str, Any], reason: str) -> None:
    model, _ = beam_model(decoder=gpt_decoder(), **attributes)
    with pytest.raises(UnsupportedError, match=reason):
        from_onnx(model)


@pytest.mark.parametrize("executor", ["vm", pytest.param("aot", marks=pytest.mark.long)])
@pytest.mark.parametrize("buffers", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("first", [None, pytest.param("other", marks=pytest.mark.long)])
def test_decoder_that_shares_a_buffer_for_past_and_present(
    buffers: int, first: str | None, executor: str
) -> None:
    """Texts are those of the decoder that does not; ONNX Runtime has such kernels on GPUs alone."""
    options: dict[str, Any] = {"further": masks(attention=True), "is_fixed": False}
    plain, feed = beam_model(decoder=gpt_decoder(1), **options)
    if first is not None:
        options["init_decoder"] = gpt_decoder(1, first)
    shared, _ = beam_model(decoder=gpt_decoder(1, buffers=buffers), **options)
    results = ekiden.compile(shared, executor=executor)(**feed)
    check_results(results, run_onnx_runtime(plain, feed), 1e-4)


def test_first_decoder_alone_may_not_share_its_buffers() -> None:
    model, _ = beam_model(init_decoder=gpt_decoder(1, "first", 1), decoder=gpt_decoder(1))
    with pytest.raises(UnsupportedError, match="'init_decoder' shares buffers"):
        from_onnx(model)


@pytest.mark.parametrize("buffers", [pytest.param(1, marks=pytest.mark.long), 3])
def test_decoder_of_an_encoder_shares_a_buffer_for_past_and_present(buffers: int) -> None:
    plain, feed = whisper_model(prompt=PROMPT_TOKENS)
    encoder, decoder = whisper_graphs(1, buffers=buffers)
    shared, _ = whisper_model(prompt=PROMPT_TOKENS, graphs=(encoder, decoder))
    check_results(ekiden.compile(shared)(**feed), run_onnx_runtime(plain, feed), 1e-4)


# Whisper.

FEATURES_OF_SOUND = np.random.default_rng(3).normal(size=(2, FEATURES, 7)).astype(np.float32) * 2
PROMPT_TOKENS = np.array([[START, 5, 9], [START, 6, 3]], np.int32)
TIMES = {
    "beginning_timestamp_token_id": 20, "no_timestamps_token_id": 19, "start_of_lm_token_id": 18,
    "translate_token_id": 17, "transcribe_token_id": 16,
}  # fmt: skip
"""Of 90 tokens those from 20 on are timestamps; a first one may be 70 at most."""


def whisper_model(
    length: int = 10, beams: int = 3, results: int = 2, shortest: int = 0, penalty: float = 1.0,
    prompt: Array | None = None, rules: Input = ("", None, True), forced: Array | None = None,
    temperature: float | None = None, outputs: tuple[str, ...] = ("sequences", "scores_of_texts"),
    seed: int = 1, vocabulary: int = VOCABULARY, takes_hidden: bool = True,
    graphs: tuple[onnx.GraphProto, onnx.GraphProto] | None = None, **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:  # fmt: skip
    encoder, decoder = graphs or whisper_graphs(seed, vocabulary, takes_hidden)
    inputs: list[Input] = [
        ("input_ids", FEATURES_OF_SOUND, False), ("max_length", one(length), True),
        ("min_length", one(shortest), True), ("num_beams", one(beams), True),
        ("num_return_sequences", one(results), True),
        ("length_penalty", one(1.0, np.float32), True),
        ("repetition_penalty", one(penalty, np.float32), True), *masks(),
        ("decoder_input_ids", prompt, False), rules, ("heads", None, True),
        ("forced", forced, False),
        ("temperature", None if temperature is None else one(temperature, np.float32), True),
    ]  # fmt: skip
    options = {"model_type": 2, "decoder_start_token_id": START, **attributes}
    return search_model(
        "WhisperBeamSearch", inputs, outputs, encoder=encoder, decoder=decoder, **options
    )


RULES: Input = ("logits_processor", one(1), True)
WHISPER: dict[str, dict[str, Any]] = {
    "as it is": {},
    "without hidden states": {"takes_hidden": False, "early_stopping": 1},
    "a prompt": {"prompt": PROMPT_TOKENS, "outputs": ("sequences", "best", "scores")},
    "a temperature": {"temperature": 2.0, "outputs": ("sequences", "best", "scores")},
    "a temperature that is none": {"temperature": 0.0},
    "penalties": {"penalty": 1.3, "shortest": 6, "no_repeat_ngram_size": 2, "length": 16},
    "one beam": {"beams": 1, "results": 1},
    "an unknown kind of rules": {"rules": ("logits_processor", one(5), True)},
}


@pytest.mark.parametrize(
    "name",
    [n if n in ("a prompt",) else pytest.param(n, marks=pytest.mark.long) for n in WHISPER],
)
def test_whisper_beam_search(name: str) -> None:
    check(*whisper_model(**WHISPER[name]), rounding=1e-4)


@pytest.mark.parametrize("executor", ["vm", pytest.param("aot", marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.long) for s in (4, 5, 6))])
def test_whisper_rules_of_timestamps(seed: int, executor: str) -> None:
    options: dict[str, Any] = {"vocabulary": 90, "length": 20, "seed": seed, **TIMES}
    for prompt in (None, PROMPT_TOKENS):
        model, feed = whisper_model(rules=RULES, prompt=prompt, **options)
        check(model, feed, executor, rounding=1e-4)
    model, feed = whisper_model(rules=("logits_processor", one(1), False), **options)
    check(model, feed, executor, rounding=1e-4)
    check(model, {**feed, "logits_processor": one(0)}, executor, rounding=1e-4)


def test_whisper_no_speech_probability_after_prompt() -> None:
    """ONNX Runtime 1.32 leaves that output as it finds the memory, on a CPU."""
    token = 4
    model, feed = whisper_model(
        prompt=PROMPT_TOKENS, outputs=("sequences", "", "", "", "none"), no_speech_token_id=token
    )
    encoder, _ = whisper_graphs(1)
    imports = [helper.make_opsetid("", 17)]
    alone = helper.make_model(encoder, opset_imports=imports, ir_version=8)
    fed = {"encoder_input_ids": FEATURES_OF_SOUND, "decoder_input_ids": PROMPT_TOKENS}
    logits = np.asarray(run_onnx_runtime(alone, fed)[0])[:, -1]
    _, result = ekiden.compile(model)(**feed)
    np.testing.assert_allclose(result.numpy(), softmax(logits)[:, token], rtol=1e-4)


def test_whisper_forced_tokens_equal_prompt_tokens() -> None:
    """ONNX Runtime 1.32 does not read that input on a CPU; texts are those of a longer prompt."""
    tokens = np.array([[7, 9], [3, 8]], np.int32)
    exe = ekiden.compile(whisper_model(length=12, forced=tokens)[0])
    begin = np.full((2, 1), START, np.int32)
    longer, feed = whisper_model(length=12, prompt=np.concatenate([begin, tokens], axis=1))
    texts, scores = exe(FEATURES_OF_SOUND, tokens)
    expected = run_onnx_runtime(longer, feed)
    np.testing.assert_array_equal(texts.numpy(), expected[0])
    np.testing.assert_allclose(scores.numpy(), expected[1], rtol=1e-4, atol=1e-5)
    texts, _ = exe(FEATURES_OF_SOUND, np.array([[7, -1], [3, 8]], np.int32))
    assert (texts.numpy()[0, :, 1] == 7).all() and (texts.numpy()[1, :, 1:3] == [3, 8]).all()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": 1}, "attribute 'model_type' must be one of 2, got 1"),
        ({"decoder_start_token_id": -1}, "'decoder_start_token_id' must be 0 or more, got -1"),
        ({"outputs": ("sequences", "", "", "products")}, "output 3 .*, is not supported"),
        ({"outputs": ("sequences", "", "", "", "none")}, "'no_speech_token_id' must be in"),
        ({"rules": RULES}, "'beginning_timestamp_token_id' must be in"),
        ({"prompt": np.zeros(2, np.int32)}, "'decoder_input_ids' must have 2 dimensions, got 1"),
    ],
)
def test_unsupported_whisper_searches_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"WhisperBeamSearch 'search': {reason}"):
        from_onnx(whisper_model(**options)[0])


# Tokens that are marked.


def sampled(mask: Array, penalty: float, temperature: float = 1.0) -> tuple[Any, dict[str, Array]]:
    """A search that takes the likeliest token each time, of two equal prompts."""
    prompts = np.repeat(np.array([[7, 8, 4, 11, 6]], np.int32), 2, axis=0)
    inputs: list[Input] = [("input_ids", prompts, False), ("max_length", one(6), True)]
    inputs += [(f"absent{i}", None, False) for i in range(5)]
    inputs += [("presence_mask", mask, False), ("seed", one(5), True)]
    return search_model(
        "Sampling", inputs, decoder=gpt_decoder(), top_p=0.0, custom=1, temperature=temperature,
        presence_penalty=penalty,
    )  # fmt: skip


def test_sampling_subtracts_a_penalty_from_the_scores_of_marked_tokens() -> None:
    """As documented; ONNX Runtime's kernel of CPUs, at 1.32, subtracts the sum of all penalties
    from the first score of all."""
    logits = next_logits(np.array([[7, 8, 4, 11, 6]], np.int32))[0]
    first, second = np.argsort(-logits)[:2]
    mask = np.zeros((2, VOCABULARY), np.int32)
    mask[1, first] = 1
    model, feed = sampled(mask, 100.0)
    tokens = np.from_dlpack(ekiden.compile(model)(**feed))[:, 5]  # type: ignore[arg-type]
    assert tokens.tolist() == [first, second]


def test_mismatched_vocabulary_masks_are_refused_at_run_time() -> None:
    exe = ekiden.compile(sampled(np.zeros((2, VOCABULARY), np.int32), 1.0)[0])
    with pytest.raises(InputError, match="presence_mask"):
        exe(np.full((2, 5), 7, np.int32), np.zeros((1, VOCABULARY), np.int32))


@pytest.mark.parametrize("penalty", [-1.0, -3.0])
def test_sampling_applies_penalty_after_temperature(penalty: float) -> None:
    """Of the first token of the first text alone, whose score ONNX Runtime's kernel penalises."""
    mask = np.zeros((2, VOCABULARY), np.int32)
    mask[0, 0] = 1
    check(*sampled(mask, penalty, temperature=8.0))
