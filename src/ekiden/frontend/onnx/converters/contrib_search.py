"""com.microsoft text generation: BeamSearch, WhisperBeamSearch, GreedySearch and Sampling as loops
over decoder subgraphs.

The prompt is processed before the loop, whose iterations compute one token: each has the shapes
that it needs, and past keys and values grow by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ekiden.frontend.common.loop import CollectedSlices, Iteration, Loop, stack_slices
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.beam_search_scores import (
    BEAM_STATE_FIELDS,
    BeamState,
    LogitsProcessor,
    SearchParameters,
    SentenceScorer,
    initial_beams,
    process_scores,
)
from ekiden.frontend.onnx.converters.contrib import make_contrib_row
from ekiden.frontend.onnx.converters.logits_processors import (
    TimestampRules,
    forced_token_processor,
    presence_processor,
    temperature_processor,
)
from ekiden.frontend.onnx.converters.random import seeded_generator
from ekiden.frontend.onnx.converters.search_decoders import (
    EncoderDecoder,
    GptDecoder,
    SearchDecoder,
    WhisperDecoder,
    bind_with_shared_subexprs,
    required_subgraph,
)
from ekiden.frontend.onnx.node import OnnxNode
from ekiden.ir.prim import GE, GT, PrimExpr, fold_binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import as_dim, simplify_dim

GPT, T5, WHISPER = 0, 1, 2
"""Values of `model_type`."""
TIMESTAMP_PROCESSOR = 1
"""The value of `logits_processor` that asks for rules of timestamps."""


def _vocab_size(node: OnnxNode) -> int:
    """Return the vocabulary size: the attribute, or the extent of the decoder's logits."""
    if (size := node.get_int("vocab_size", -1)) > 0:
        return node.check_declared_count("'vocab_size'", size)
    graph = required_subgraph(node, "decoder")
    dims = [d.dim_value for d in graph.output[0].type.tensor_type.shape.dim]
    if len(dims) != 3 or dims[2] < 1:
        node.reject("'vocab_size' must be given where the logits of 'decoder' do not state it")
    return node.check_declared_count("the vocabulary", dims[2])


def _read_scalar_input(node: OnnxNode, index: int, dtype: str, neutral: float) -> Expr | None:
    """Return an input of one number as a scalar; None if it is absent or equals the neutral
    element.
    """
    value = node.optional_value(index)
    if value is None or (value.array is not None and bool((value.array == neutral).all())):
        return None
    return op.cast(op.reshape(node.scope.expr(value), ()), dtype)


def _search_parameters(
    node: OnnxNode, beams: PrimExpr, first: int, further: Sequence[LogitsProcessor] = ()
) -> SearchParameters:
    """Return the search parameters; inputs from `first` on are the repetition penalty and the
    vocabulary masks. Raises UnsupportedError for unknown kinds of models.
    """
    kind = _model_type(node)
    (limit,) = (as_dim(d) for d in node.dims(1, "max_length", 1))
    batch, *prompt_dims = node.shape(0)
    if len(prompt_dims) != 1 + (kind == WHISPER):
        node.reject(f"input 0 must have {2 + (kind == WHISPER)} dimensions")
    prompt = prompt_dims[0] if kind == GPT else as_dim(1)
    if kind == WHISPER and node.optional_value(10) is not None:
        prompt = _sequence_length(node, 10, "decoder_input_ids")
    words, first_words = (
        None if node.optional_value(i) is None else node.expr(i) for i in (first + 1, first + 2)
    )
    search = SearchParameters(
        node, batch, beams, prompt, limit, _vocab_size(node),
        _read_scalar_input(node, 2, "int64", 0),
        _read_scalar_input(node, first, "float32", 1.0), words, first_words, further,
    )  # fmt: skip
    node.scope.require_condition(fold_binary(GT, limit, search.prompt_length), " with 'max_length'")
    return search


def _sequence_length(node: OnnxNode, index: int, name: str) -> PrimExpr:
    """Return the row length of an input [batch, length]. Raises UnsupportedError for another
    rank.
    """
    if node.rank(index) != 2:
        node.reject(f"{name!r} must have 2 dimensions, got {node.rank(index)}")
    rows, length = node.shape(index)
    node.scope.require_equal_dims((node.shape(0)[0],), (rows,))
    return length


def _model_type(node: OnnxNode) -> int:
    """Return the `model_type`: GPT, T5 or WHISPER."""
    return node.get_int("model_type", WHISPER if node.op_type == "WhisperBeamSearch" else GPT)


_DECODER_OF_MODEL_TYPE: dict[int, Callable[[SearchParameters], SearchDecoder]] = {
    GPT: lambda search: GptDecoder(search, 9), T5: EncoderDecoder, WHISPER: WhisperDecoder,
}  # fmt: skip


def _beam_search(node: OnnxNode) -> list[Expr | Value | None]:
    """Convert BeamSearch: the best sequences of each prompt, their scores, and all token scores."""
    return _emit_beam_search(node, ())[0]


def _whisper_beam_search(node: OnnxNode) -> list[Expr | Value | None]:
    """Convert WhisperBeamSearch over audio features, with the probability of no speech."""
    if node.is_output_used(3) or node.get_int("decoder_output_cross_qk", 0):
        node.reject("output 3 ('cross_qk'), the scores of cross attention, is not supported")
    further: list[LogitsProcessor] = []
    if (temperature := _read_scalar_input(node, 14, "float32", 1.0)) is not None:
        further.append(temperature_processor(node.scope.attach_span(temperature)))
    if (rules := _make_timestamp_rules(node)) is not None:
        further.append(rules)
    if node.optional_value(13) is not None:
        _sequence_length(node, 13, "extra_decoding_ids")
        further.append(forced_token_processor(node.expr(13)))
    results, search, logits = _emit_beam_search(node, further)
    if not node.is_output_used(4):
        return [*results, None, None]
    token, count = node.get_int("no_speech_token_id", -1), search.vocabulary
    if not 0 <= token < count:
        node.reject(f"'no_speech_token_id' must be in [0, {count - 1}], got {token}")
    of_token = op.take(op.nn.softmax(logits, axis=-1), const(np.int64(token)), axis=1)
    shape = (search.batch, search.num_beams)
    of_beams = op.reshape(of_token, shape, allowzero=True)  # alike in all beams of a text
    first = op.take(of_beams, const(np.int64(0)), axis=1)
    return [*results, None, op.cast(first, _score_dtype(node))]


def _score_dtype(node: OnnxNode) -> str:
    """Return the dtype of scores: that of the length penalty."""
    return "float32" if node.optional_value(5) is None else node.dtype(5)


def _make_timestamp_rules(node: OnnxNode) -> TimestampRules | None:
    """Return Whisper's timestamp rules if `logits_processor` may ask for them."""
    value = node.optional_value(11)
    if value is None or (
        value.array is not None and bool((value.array != TIMESTAMP_PROCESSOR).all())
    ):
        return None
    is_enabled = None
    # Only known at run time: the rules are applied under a condition.
    if value.array is None:
        kind = op.reshape(node.expr(11), ())
        is_enabled = node.scope.attach_span(op.equal(kind, const(np.int32(TIMESTAMP_PROCESSOR))))
    first, count = node.get_int("beginning_timestamp_token_id", -1), _vocab_size(node)
    if not 0 < first < count:
        node.reject(f"'beginning_timestamp_token_id' must be in [1, {count - 1}], got {first}")
    unwanted = [node.get_int(n, -1) for n in ("no_timestamps_token_id", "start_of_lm_token_id")]
    later = ("decoder_start_token_id", "translate_token_id", "transcribe_token_id")
    behind = [node.get_int(name, -1) for name in later]
    return TimestampRules(first, tuple(unwanted), tuple(behind), is_enabled)


def _emit_beam_search(
    node: OnnxNode, further: Sequence[LogitsProcessor]
) -> tuple[list[Expr | Value | None], SearchParameters, Expr]:
    """Emit a beam search; return its outputs, its parameters, and the logits after the prompts
    [rows, vocabulary].
    """
    (beams,) = (as_dim(d) for d in node.dims(3, "num_beams", 1))
    (returned,) = (as_dim(d) for d in node.dims(4, "num_return_sequences", 1))
    search, scope = _search_parameters(node, beams, 6, further), node.scope
    scope.require_condition(fold_binary(GE, beams, returned), " with 'num_return_sequences'")
    decoder = _DECODER_OF_MODEL_TYPE[_model_type(node)](search)
    penalty = _read_scalar_input(node, 5, "float32", float("nan"))
    one = const(1.0, "float32")
    is_early = node.get_int("early_stopping", 0) == 1
    scorer = SentenceScorer(search, one if penalty is None else penalty, is_early)

    def advance_beams(
        before: BeamState, logits: Expr, length: Expr, is_first: bool
    ) -> tuple[list[Value], Expr, Expr]:
        """Advance the beams by a token; return the state, the rows they continue, and the token
        scores.
        """
        scores: Expr = op.nn.log_softmax(logits, axis=-1)
        scores = process_scores(search, scores, before.texts, length, is_first)
        of_row = op.reshape(before.scores, (search.num_rows, 1), allowzero=True)
        scores = scope.attach_span(op.add(scores, of_row))
        after, rows = scorer.advance_beams(before, scores, length)
        *state, row = bind_with_shared_subexprs(
            decoder, [*after.as_list(), rows], [*BEAM_STATE_FIELDS, "row"]
        )
        return state, scope.expr(row), scores

    prompts, first_logits, carried = decoder.run_prompt()
    logits = scope.attach_span(first_logits)
    begun = initial_beams(search, search.initial_sequences(prompts))
    length = scope.emit_dim(search.prompt_length)
    state, rows, scores = advance_beams(begun, logits, length, True)
    start = [*state, *decoder.reorder_state(carried, rows)]
    count = len(BEAM_STATE_FIELDS)

    def decode_step(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Decode one token for all beams."""
        length = op.add(scope.expr(index), scope.emit_dim(simplify_dim(search.prompt_length + 1)))
        before = BeamState(*(scope.expr(v) for v in values[:count]))
        logits, after = decoder.decode_step(before.tokens, before.texts, length, values[count:])
        state, rows, scores = advance_beams(before, logits, length, False)
        token_scores = [node.bind_shared(scores)] if node.is_output_used(2) else []
        done = state[BEAM_STATE_FIELDS.index("done")]
        carried = [*state, *decoder.reorder_state(after, rows)]
        return Iteration(_is_unfinished(node, done), carried, token_scores)

    # The beams are loop-carried beside the decoder's state, and are reordered together with it.
    names = [*BEAM_STATE_FIELDS, *decoder.input_names]
    # The first token comes from the prompt's logits, outside of the loop.
    steps = scope.attach_span(
        scope.emit_dim(simplify_dim(search.max_length - search.prompt_length - 1))
    )
    done = start[BEAM_STATE_FIELDS.index("done")]
    last, stacked_scores, _ = Loop(
        node, names, start, steps, _is_unfinished(node, done), decode_step
    ).build()
    end = BeamState(*(scope.expr(v) for v in last[:count]))
    ended, sentences, _ = _add_open_beams(scorer, end)
    beam_indices = search.positions(returned)
    texts, best = (op.take(t, beam_indices, axis=1) for t in (sentences, ended))
    every = _pad_step_scores(search, scores, stacked_scores) if stacked_scores else None
    dtype = _score_dtype(node)
    all_scores = None if every is None else op.cast(every, dtype)
    return [texts, op.cast(best, dtype), all_scores], search, logits


def _is_unfinished(node: OnnxNode, done: Value) -> Value:
    """Emit whether any sequence is unfinished."""
    return node.bind_shared(op.logical_not(op.all(node.scope.expr(done), axis=[0])))


def _add_open_beams(scorer: SentenceScorer, beams: BeamState) -> tuple[Expr, Expr, Expr]:
    """Emit the finished sentences together with the beams that have not ended."""
    search = scorer.search
    scores: Expr = scorer.normalize_scores(
        beams.scores, search.node.scope.emit_dim(search.max_length)
    )
    are_open = op.logical_not(op.expand_dims(beams.done, axis=1))
    scores = op.where(are_open, scores, const(-np.inf, "float32"))
    shape = (search.batch, search.num_beams, search.max_length)
    texts = op.reshape(beams.texts, shape, allowzero=True)
    every = op.broadcast_to(are_open, (search.batch, search.num_beams))
    return scorer.merge_sentences(beams, scores, texts, every)


def _pad_step_scores(
    search: SearchParameters, first: Expr, stacks: Sequence[CollectedSlices]
) -> Expr:
    """Emit the token scores of all steps, [steps, batch, beams, vocabulary], with zeros after the
    last step.
    """
    scope = search.node.scope
    later = stack_slices(scope, stacks[0], "scores", None)
    count = simplify_dim(search.max_length - search.prompt_length - 1 - later.type.shape[0])
    zeros = op.zeros((count, search.num_rows, as_dim(search.vocabulary)), "float32")
    every = op.concatenate((op.expand_dims(first, axis=0), scope.expr(later), zeros), axis=0)
    shape = (
        simplify_dim(search.max_length - search.prompt_length),
        search.batch,
        search.num_beams,
        as_dim(search.vocabulary),
    )
    return op.reshape(every, shape, allowzero=True)


# One text of each prompt.

TokenChooser = Callable[[Expr, Expr | None], tuple[Expr, Expr | None]]
"""(scores, float32 [batch, vocabulary]; random generator) -> (tokens, int32 [batch]; generator)."""


def _greedy_search(node: OnnxNode) -> list[Expr | Value | None]:
    """Convert GreedySearch: the token of the highest score at each step."""

    def choose_argmax(scores: Expr, key: Expr | None) -> tuple[Expr, Expr | None]:
        """Choose the token of the highest score."""
        return op.cast(op.argmax(scores, axis=[1]), "int32"), key

    return [_emit_sequential_search(_search_parameters(node, as_dim(1), 3), choose_argmax, None)]


def _sampling(node: OnnxNode) -> list[Expr | Value | None]:
    """Convert Sampling: each token is drawn from the nucleus (top-p sampling, Holtzman et al.
    2020).
    """
    if node.is_output_used(1):
        node.reject("output 1 ('filtered_logits') is not supported")
    temperature = node.get_float("temperature", 1.0)
    further = [temperature_processor(const(np.float32(temperature)))] if temperature != 1 else []
    if node.optional_value(7) is not None:
        length = _sequence_length(node, 7, "presence_mask")
        node.scope.require_equal_dims((length,), (as_dim(_vocab_size(node)),))
        further.append(presence_processor(node.expr(7), node.get_float("presence_penalty", 0.0)))
    search = _search_parameters(node, as_dim(1), 3, further)

    def sample_token(scores: Expr, key: Expr | None) -> tuple[Expr, Expr | None]:
        """Draw a token from the softmax of the filtered scores."""
        assert key is not None
        weights = op.nn.softmax(_top_p_filter(node, scores, search.vocabulary), axis=-1)
        drawn = op.random.multinomial(key, weights, 1)
        tokens = op.reshape(TupleGetItem(drawn, 1), (search.batch,), allowzero=True)
        return op.cast(tokens, "int32"), TupleGetItem(drawn, 0)

    return [_emit_sequential_search(search, sample_token, _seeded_generator(node))]


def _seeded_generator(node: OnnxNode) -> Expr:
    """Emit the random generator, seeded by the input `seed` or the node's name."""
    if node.optional_value(8) is None:
        return seeded_generator(node)
    (seed,) = node.constant_array(8, "seed").ravel()
    return op.random.threefry_key(int(seed))


def _top_p_filter(node: OnnxNode, scores: Expr, vocabulary: int) -> Expr:
    """Emit the scores [batch, vocabulary] with `filter_value` for tokens outside of the top-p
    nucleus.
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


def _emit_sequential_search(
    search: SearchParameters, choose: TokenChooser, key: Expr | None
) -> Expr:
    """Emit sequences extended token by token, int32 [batch, limit]; ended ones are padded."""
    node, scope = search.node, search.node.scope
    decoder = GptDecoder(search, 6)
    keys = [] if key is None else [key]

    def append_token(
        texts: Expr, done: Expr | None, logits: Expr, length: Expr, keys: Sequence[Expr]
    ) -> list[Value]:
        """Append a token to each text; return texts, ended flags, tokens and generator."""
        scores = process_scores(search, logits, texts, length, done is None)
        tokens, after = choose(scores, keys[0] if keys else None)
        # A finished sequence keeps receiving padding, so that all rows keep one length.
        ends = op.equal(tokens, const(np.int32(search.eos_token)))
        ends = ends if done is None else op.logical_or(done, ends)
        tokens = op.where(ends, const(np.int32(search.pad_token)), tokens)
        texts = search.write_token(texts, tokens, length)
        exprs = [texts, ends, tokens, *([] if after is None else [after])]
        return bind_with_shared_subexprs(decoder, exprs, names)

    names = ["texts", "done", "tokens", *(["key"] if keys else [])]
    count = len(names)
    prompts, logits, carried = decoder.run_prompt()
    begun, length = search.initial_sequences(prompts), scope.emit_dim(search.prompt_length)
    start = [*append_token(begun, None, logits, length, keys), *carried]

    def decode_step(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Decode one token for all sequences."""
        length = op.add(scope.expr(index), scope.emit_dim(simplify_dim(search.prompt_length + 1)))
        texts, done, tokens, *keys = (scope.expr(v) for v in values[:count])
        logits, after = decoder.decode_step(tokens, texts, length, values[count:])
        state = append_token(texts, done, logits, length, keys)
        return Iteration(_is_unfinished(node, state[1]), [*state, *after])

    steps = scope.attach_span(
        scope.emit_dim(simplify_dim(search.max_length - search.prompt_length - 1))
    )
    every = [*names, *decoder.input_names]
    last, _, _ = Loop(
        node, every, start, steps, _is_unfinished(node, start[1]), decode_step
    ).build()
    return scope.expr(last[0])


_SEARCH_ATTRIBUTES = (
    "decoder_start_token_id encoder eos_token_id init_decoder model_type no_repeat_ngram_size "
    "pad_token_id vocab_size"
)
_SAMPLING_ATTRIBUTES = "custom filter_value min_tokens_to_keep presence_penalty temperature top_p"
_WHISPER_ATTRIBUTES = (
    "beginning_timestamp_token_id decoder_output_cross_qk no_speech_token_id "
    "no_timestamps_token_id start_of_lm_token_id transcribe_token_id translate_token_id"
)
_GPT_ONLY = {"model_type": (GPT,)}

# fmt: off
ROWS = (
    replace(make_contrib_row("BeamSearch", _beam_search, f"{_SEARCH_ATTRIBUTES} early_stopping",
                        values={"model_type": (GPT, T5)}), graph_attributes="decoder"),
    replace(make_contrib_row("WhisperBeamSearch", _whisper_beam_search,
                        f"{_SEARCH_ATTRIBUTES} {_WHISPER_ATTRIBUTES} early_stopping",
                        values={"model_type": (WHISPER,)}),
            graph_attributes="decoder", ignorable_inputs="attention_mask cross_qk_layer_head"),
    replace(make_contrib_row("GreedySearch", _greedy_search, _SEARCH_ATTRIBUTES, values=_GPT_ONLY),
            graph_attributes="decoder"),
    replace(make_contrib_row("Sampling", _sampling, f"{_SEARCH_ATTRIBUTES} {_SAMPLING_ATTRIBUTES}",
                        values=_GPT_ONLY), graph_attributes="decoder"),
)
# fmt: on
