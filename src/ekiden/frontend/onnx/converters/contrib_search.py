"""Text generation of com.microsoft: BeamSearch, WhisperBeamSearch, GreedySearch and Sampling, with
decoders like those of GPT-2, T5 and Whisper, as loops over the subgraphs of the nodes.

The prompt is processed before the loop, whose iterations compute one token: each has the shapes
that it needs, and past keys and values grow by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ekiden.frontend.common.loop import Iteration, Loop, Parts, stacked
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.contrib import contrib_row
from ekiden.frontend.onnx.converters.random import generator
from ekiden.frontend.onnx.converters.search_decoders import (
    Decoder,
    EncoderDecoder,
    Gpt,
    Whisper,
    graph_of,
    together,
)
from ekiden.frontend.onnx.converters.search_processors import (
    Timestamps,
    forced,
    less_present,
    tempered,
)
from ekiden.frontend.onnx.converters.search_scores import (
    FIELDS,
    Beams,
    Processor,
    Scorer,
    Search,
    first_beams,
    processed,
)
from ekiden.frontend.onnx.node import Node
from ekiden.ir.prim import GE, GT, PrimExpr, binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import as_dim, tidy

GPT, T5, WHISPER = 0, 1, 2
"""Values of `model_type`."""
WHISPER_RULES = 1
"""The value of `logits_processor` that asks for rules of timestamps."""


def _vocabulary(node: Node) -> int:
    """Return the number of tokens: an attribute, or what the logits of the decoder have."""
    if (size := node.get_int("vocab_size", -1)) > 0:
        return node.believed("'vocab_size'", size)
    graph = graph_of(node, "decoder")
    dims = [d.dim_value for d in graph.output[0].type.tensor_type.shape.dim]
    if len(dims) != 3 or dims[2] < 1:
        node.unsupported("'vocab_size' must be given where the logits of 'decoder' do not state it")
    return node.believed("the vocabulary", dims[2])


def _scalar(node: Node, index: int, dtype: str, neutral: float) -> Expr | None:
    """Return an input of one number; None for one that is absent, or changes nothing."""
    value = node.optional(index)
    if value is None or (value.array is not None and bool((value.array == neutral).all())):
        return None
    return op.cast(op.reshape(node.scope.expr(value), ()), dtype)


def _search(node: Node, beams: PrimExpr, first: int, further: Sequence[Processor] = ()) -> Search:
    """Return the parameters of a node's search; its inputs from `first` on are the repetition
    penalty and the vocabulary masks. Raises Unsupported for unknown kinds of models.
    """
    kind = _kind(node)
    (limit,) = (as_dim(d) for d in node.dims(1, "max_length", 1))
    batch, *prompt_dims = node.shape(0)
    if len(prompt_dims) != 1 + (kind == WHISPER):
        node.unsupported(f"input 0 must have {2 + (kind == WHISPER)} dimensions")
    prompt = prompt_dims[0] if kind == GPT else as_dim(1)
    if kind == WHISPER and node.optional(10) is not None:
        prompt = _extent_of_rows(node, 10, "decoder_input_ids")
    words, first_words = (
        None if node.optional(i) is None else node.expr(i) for i in (first + 1, first + 2)
    )
    search = Search(
        node, batch, beams, prompt, limit, _vocabulary(node), _scalar(node, 2, "int64", 0),
        _scalar(node, first, "float32", 1.0), words, first_words, further,
    )  # fmt: skip
    node.scope.require(binary(GT, limit, search.prompt), " with 'max_length'")
    return search


def _extent_of_rows(node: Node, index: int, name: str) -> PrimExpr:
    """Return the length of the rows of an input [batch, length], one row for each sequence. Raises
    Unsupported for an input of another rank.
    """
    if node.rank(index) != 2:
        node.unsupported(f"{name!r} must have 2 dimensions, got {node.rank(index)}")
    rows, length = node.shape(index)
    node.scope.same((node.shape(0)[0],), (rows,))
    return length


def _kind(node: Node) -> int:
    """Return the kind of model, a value of `model_type`."""
    return node.get_int("model_type", WHISPER if node.op_type == "WhisperBeamSearch" else GPT)


_DECODERS: dict[int, Callable[[Search], Decoder]] = {
    GPT: lambda search: Gpt(search, 9), T5: EncoderDecoder, WHISPER: Whisper,
}  # fmt: skip


def _beam_search(node: Node) -> list[Expr | Value | None]:
    """Convert BeamSearch: the best sequences of each prompt, their scores, and the scores of all
    tokens.
    """
    return _best_texts(node, ())[0]


def _whisper_beam_search(node: Node) -> list[Expr | Value | None]:
    """Convert WhisperBeamSearch, over audio features: beam search, and the probability of no
    speech.
    """
    if node.wants(3) or node.get_int("decoder_output_cross_qk", 0):
        node.unsupported("output 3 ('cross_qk'), the scores of cross attention, is not supported")
    further: list[Processor] = []
    if (temperature := _scalar(node, 14, "float32", 1.0)) is not None:
        further.append(tempered(node.scope.spanned(temperature)))
    if (rules := _timestamps(node)) is not None:
        further.append(rules)
    if node.optional(13) is not None:
        _extent_of_rows(node, 13, "extra_decoding_ids")
        further.append(forced(node.expr(13)))
    results, search, logits = _best_texts(node, further)
    if not node.wants(4):
        return [*results, None, None]
    token, count = node.get_int("no_speech_token_id", -1), search.vocabulary
    if not 0 <= token < count:
        node.unsupported(f"'no_speech_token_id' must be in [0, {count - 1}], got {token}")
    of_token = op.take(op.nn.softmax(logits, axis=-1), const(np.int64(token)), axis=1)
    shape = (search.batch, search.beams)
    of_beams = op.reshape(of_token, shape, allowzero=True)  # alike in all beams of a text
    first = op.take(of_beams, const(np.int64(0)), axis=1)
    return [*results, None, op.cast(first, _score_dtype(node))]


def _score_dtype(node: Node) -> str:
    return "float32" if node.optional(5) is None else node.dtype(5)


def _timestamps(node: Node) -> Timestamps | None:
    """Return Whisper's timestamp rules, where the node requires them or may at run time; None
    otherwise.
    """
    value = node.optional(11)
    if value is None or (value.array is not None and bool((value.array != WHISPER_RULES).all())):
        return None
    is_enabled = None
    if value.array is None:
        kind = op.reshape(node.expr(11), ())
        is_enabled = node.scope.spanned(op.equal(kind, const(np.int32(WHISPER_RULES))))
    first, count = node.get_int("beginning_timestamp_token_id", -1), _vocabulary(node)
    if not 0 < first < count:
        node.unsupported(f"'beginning_timestamp_token_id' must be in [1, {count - 1}], got {first}")
    unwanted = [node.get_int(n, -1) for n in ("no_timestamps_token_id", "start_of_lm_token_id")]
    later = ("decoder_start_token_id", "translate_token_id", "transcribe_token_id")
    behind = [node.get_int(name, -1) for name in later]
    return Timestamps(first, tuple(unwanted), tuple(behind), is_enabled)


def _best_texts(
    node: Node, further: Sequence[Processor]
) -> tuple[list[Expr | Value | None], Search, Expr]:
    """Return the outputs of a beam search, the search, and the logits behind its prompts, float32
    [rows, vocabulary].
    """
    (beams,) = (as_dim(d) for d in node.dims(3, "num_beams", 1))
    (returned,) = (as_dim(d) for d in node.dims(4, "num_return_sequences", 1))
    search, scope = _search(node, beams, 6, further), node.scope
    scope.require(binary(GE, beams, returned), " with 'num_return_sequences'")
    decoder = _DECODERS[_kind(node)](search)
    penalty = _scalar(node, 5, "float32", float("nan"))
    one = const(1.0, "float32")
    is_early = node.get_int("early_stopping", 0) == 1
    scorer = Scorer(search, one if penalty is None else penalty, is_early)

    def advanced(
        before: Beams, logits: Expr, length: Expr, is_first: bool
    ) -> tuple[list[Value], Expr, Expr]:
        """Return the beams with a token more, the rows they continue, and the scores of tokens."""
        scores: Expr = op.nn.log_softmax(logits, axis=-1)
        scores = processed(search, scores, before.texts, length, is_first)
        of_row = op.reshape(before.scores, (search.rows, 1), allowzero=True)
        scores = scope.spanned(op.add(scores, of_row))
        after, rows = scorer.advance(before, scores, length)
        *state, row = together(decoder, [*after.all(), rows], [*FIELDS, "row"])
        return state, scope.expr(row), scores

    prompts, first_logits, carried = decoder.start()
    logits = scope.spanned(first_logits)
    begun = first_beams(search, search.started(prompts))
    length = scope.scalar(search.prompt)
    state, rows, scores = advanced(begun, logits, length, True)
    start = [*state, *decoder.reordered(carried, rows)]
    count = len(FIELDS)

    def step(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Extend all sequences by a token."""
        length = op.add(scope.expr(index), scope.scalar(tidy(search.prompt + 1)))
        before = Beams(*(scope.expr(v) for v in values[:count]))
        logits, after = decoder.step(before.tokens, before.texts, length, values[count:])
        state, rows, scores = advanced(before, logits, length, False)
        token_scores = [node.given(scores)] if node.wants(2) else []
        done = state[FIELDS.index("done")]
        carried = [*state, *decoder.reordered(after, rows)]
        return Iteration(_goes_on(node, done), carried, token_scores)

    # The beams are loop-carried beside the decoder's state, and are reordered together with it.
    names = [*FIELDS, *decoder.names]
    steps = scope.spanned(scope.scalar(tidy(search.limit - search.prompt - 1)))
    done = start[FIELDS.index("done")]
    last, stacked_scores, _ = Loop(node, names, start, steps, _goes_on(node, done), step).build()
    end = Beams(*(scope.expr(v) for v in last[:count]))
    ended, sentences, _ = _with_unfinished(scorer, end)
    beam_indices = search.places(returned)
    texts, best = (op.take(t, beam_indices, axis=1) for t in (sentences, ended))
    every = _all_scores(search, scores, stacked_scores) if stacked_scores else None
    dtype = _score_dtype(node)
    all_scores = None if every is None else op.cast(every, dtype)
    return [texts, op.cast(best, dtype), all_scores], search, logits


def _goes_on(node: Node, done: Value) -> Value:
    return node.given(op.logical_not(op.all(node.scope.expr(done), axis=[0])))


def _with_unfinished(scorer: Scorer, beams: Beams) -> tuple[Expr, Expr, Expr]:
    """Return the finished sentences together with the beams of sequences that have not ended."""
    search = scorer.search
    scores: Expr = scorer.normalised(beams.scores, search.node.scope.scalar(search.limit))
    are_open = op.logical_not(op.expand_dims(beams.done, axis=1))
    scores = op.where(are_open, scores, const(-np.inf, "float32"))
    shape = (search.batch, search.beams, search.limit)
    texts = op.reshape(beams.texts, shape, allowzero=True)
    every = op.broadcast_to(are_open, (search.batch, search.beams))
    return scorer.with_sentences(beams, scores, texts, every)


def _all_scores(search: Search, first: Expr, stacks: Sequence[Parts]) -> Expr:
    """Return the scores of all tokens at each step, [steps, batch, beams, vocabulary]: 0 behind the
    last step.
    """
    scope = search.node.scope
    later = stacked(scope, stacks[0], "scores", None)
    count = tidy(search.limit - search.prompt - 1 - later.type.shape[0])
    zeros = op.zeros((count, search.rows, as_dim(search.vocabulary)), "float32")
    every = op.concatenate((op.expand_dims(first, axis=0), scope.expr(later), zeros), axis=0)
    shape = (
        tidy(search.limit - search.prompt), search.batch, search.beams, as_dim(search.vocabulary),
    )  # fmt: skip
    return op.reshape(every, shape, allowzero=True)


# One text of each prompt.

Choose = Callable[[Expr, Expr | None], tuple[Expr, Expr | None]]
"""(scores, float32 [batch, vocabulary]; random generator) -> (tokens, int32 [batch]; generator)."""


def _greedy_search(node: Node) -> list[Expr | Value | None]:
    """Convert GreedySearch: the most likely token at each step."""

    def choose(scores: Expr, key: Expr | None) -> tuple[Expr, Expr | None]:
        return op.cast(op.argmax(scores, axis=[1]), "int32"), key

    return [_one_by_one(_search(node, as_dim(1), 3), choose, None)]


def _sampling(node: Node) -> list[Expr | Value | None]:
    """Convert Sampling: a token is drawn at each step from the nucleus (top-p sampling, Holtzman et
    al. 2020).
    """
    if node.wants(1):
        node.unsupported("output 1 ('filtered_logits') is not supported")
    temperature = node.get_float("temperature", 1.0)
    further = [tempered(const(np.float32(temperature)))] if temperature != 1 else []
    if node.optional(7) is not None:
        length = _extent_of_rows(node, 7, "presence_mask")
        node.scope.same((length,), (as_dim(_vocabulary(node)),))
        further.append(less_present(node.expr(7), node.get_float("presence_penalty", 0.0)))
    search = _search(node, as_dim(1), 3, further)

    def choose(scores: Expr, key: Expr | None) -> tuple[Expr, Expr | None]:
        """Draw tokens in proportion to the softmax of the filtered scores."""
        assert key is not None
        weights = op.nn.softmax(_likely(node, scores, search.vocabulary), axis=-1)
        drawn = op.random.multinomial(key, weights, 1)
        tokens = op.reshape(TupleGetItem(drawn, 1), (search.batch,), allowzero=True)
        return op.cast(tokens, "int32"), TupleGetItem(drawn, 0)

    return [_one_by_one(search, choose, _generator(node))]


def _generator(node: Node) -> Expr:
    """Return the random generator, seeded by the input `seed` or by the node's name."""
    if node.optional(8) is None:
        return generator(node)
    (seed,) = node.numbers(8, "seed").ravel()
    return op.random.threefry_key(int(seed))


def _likely(node: Node, scores: Expr, vocabulary: int) -> Expr:
    """Return the scores, float32 [batch, vocabulary], with `filter_value` for tokens outside of the
    nucleus: the likeliest tokens whose probabilities sum to `top_p`.
    """
    likeliest_first = bool(node.get_int("custom", 0))
    top_p = node.get_float("top_p", 0.0)
    # `custom` selects ONNX Runtime's descending order; the default sorts ascending, as Hugging
    # Face's TopPLogitsWarper does.
    order = op.argsort(scores, axis=1, is_ascend=not likeliest_first, dtype="int64")
    ordered = op.gather(scores, 1, order)
    shares = op.nn.softmax(ordered, axis=-1)
    is_out: Expr
    if likeliest_first:
        likelier = op.cumsum(shares, axis=1, exclusive=True)
        is_out = op.greater(likelier, const(top_p, "float32"))
    else:
        min_tokens = node.get_int("min_tokens_to_keep", 0)
        positions = np.arange(vocabulary)[None]
        # The likeliest `min_tokens_to_keep` tokens, at the end of the ascending order, always stay.
        may_go = (positions == 0) | (positions < vocabulary - min_tokens)
        is_out = op.less_equal(op.cumsum(shares, axis=1), const(1 - top_p, "float32"))
        is_out = op.logical_and(is_out, const(may_go))
    lowest = const(node.get_float("filter_value", -1e20), "float32")
    filtered = op.where(is_out, lowest, ordered)
    return op.scatter_elements(scores, order, filtered, axis=1)


def _one_by_one(search: Search, choose: Choose, key: Expr | None) -> Expr:
    """Return the sequences extended token by token, int32 [batch, limit]; a sequence that has ended
    is padded.
    """
    node, scope = search.node, search.node.scope
    decoder = Gpt(search, 6)
    keys = [] if key is None else [key]

    def advanced(
        texts: Expr, done: Expr | None, logits: Expr, length: Expr, keys: Sequence[Expr]
    ) -> list[Value]:
        """Return the texts, which of them have ended, their last tokens, and the generator."""
        scores = processed(search, logits, texts, length, done is None)
        tokens, after = choose(scores, keys[0] if keys else None)
        # A finished sequence keeps receiving padding, so that all rows keep one length.
        ends = op.equal(tokens, const(np.int32(search.end)))
        ends = ends if done is None else op.logical_or(done, ends)
        tokens = op.where(ends, const(np.int32(search.padding)), tokens)
        texts = search.with_token(texts, tokens, length)
        exprs = [texts, ends, tokens, *([] if after is None else [after])]
        return together(decoder, exprs, names)

    names = ["texts", "done", "tokens", *(["key"] if keys else [])]
    count = len(names)
    prompts, logits, carried = decoder.start()
    begun, length = search.started(prompts), scope.scalar(search.prompt)
    start = [*advanced(begun, None, logits, length, keys), *carried]

    def step(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Extend all sequences by a token."""
        length = op.add(scope.expr(index), scope.scalar(tidy(search.prompt + 1)))
        texts, done, tokens, *keys = (scope.expr(v) for v in values[:count])
        logits, after = decoder.step(tokens, texts, length, values[count:])
        state = advanced(texts, done, logits, length, keys)
        return Iteration(_goes_on(node, state[1]), [*state, *after])

    steps = scope.spanned(scope.scalar(tidy(search.limit - search.prompt - 1)))
    every = [*names, *decoder.names]
    last, _, _ = Loop(node, every, start, steps, _goes_on(node, start[1]), step).build()
    return scope.expr(last[0])


_ATTRIBUTES = (
    "decoder_start_token_id encoder eos_token_id init_decoder model_type no_repeat_ngram_size "
    "pad_token_id vocab_size"
)
_FILTER = "custom filter_value min_tokens_to_keep presence_penalty temperature top_p"
_WHISPER = (
    "beginning_timestamp_token_id decoder_output_cross_qk no_speech_token_id "
    "no_timestamps_token_id start_of_lm_token_id transcribe_token_id translate_token_id"
)
_GPT = {"model_type": (GPT,)}

# fmt: off
ROWS = (
    replace(contrib_row("BeamSearch", _beam_search, f"{_ATTRIBUTES} early_stopping",
                        values={"model_type": (GPT, T5)}), graphs="decoder"),
    replace(contrib_row("WhisperBeamSearch", _whisper_beam_search,
                        f"{_ATTRIBUTES} {_WHISPER} early_stopping",
                        values={"model_type": (WHISPER,)}),
            graphs="decoder", may_ignore="attention_mask cross_qk_layer_head"),
    replace(contrib_row("GreedySearch", _greedy_search, _ATTRIBUTES, values=_GPT),
            graphs="decoder"),
    replace(contrib_row("Sampling", _sampling, f"{_ATTRIBUTES} {_FILTER}",
                        values=_GPT), graphs="decoder"),
)
# fmt: on
