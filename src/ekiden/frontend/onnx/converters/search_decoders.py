"""Decoder models of text generation (BeamSearch, GreedySearch, Sampling): decoder-only (GPT-2) and
encoder-decoder models (T5, Whisper). All take the keys and values of the previous tokens (the KV
cache), and return those that include the new one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common import data_dependent_dims
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.beam_search_scores import SearchParameters
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.node import OnnxNode
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_dim, known_int, simplify_dim


class SearchDecoder:
    """Interface of a decoder model during a search: next-token logits and a carried state.

    input_names: of the carried values.
    """

    input_names: Sequence[str]

    def __init__(self, search: SearchParameters) -> None:
        self.search, self.node, self.scope = search, search.node, search.node.scope

    @abstractmethod
    def run_prompt(self) -> tuple[Expr, Expr, list[Value]]:
        """Return the first tokens int32 [rows, prompt], their last logits [rows, vocabulary] and
        the carried state.
        """

    @abstractmethod
    def decode_step(
        self, tokens: Expr, texts: Expr, length: Expr, carried: Sequence[Value]
    ) -> tuple[Expr, list[Value]]:
        """Return the logits after the last tokens, int32 [rows], and the new state."""

    @abstractmethod
    def reorder_state(self, carried: Sequence[Value], rows: Expr) -> list[Value]:
        """Return the state reordered to the rows that sequences continue."""

    def last_logits(self, logits: Value) -> Expr:
        """Emit the last tokens' logits: [n, length, vocabulary or more] -> float32 [n,
        vocabulary].
        """
        if len(logits.type.shape) != 3:
            self.node.reject(f"'logits' must have 3 dimensions, got {len(logits.type.shape)}")
        last = self.scope.emit_dim(simplify_dim(logits.type.shape[1] - 1))
        last_row = op.take(self.scope.expr(logits), last, axis=1)
        # Vocabularies are often padded to a multiple of 8 or 64: the padding is sliced off.
        if known_int(logits.type.shape[2]) != self.search.vocabulary:
            token_ids = const(np.arange(self.search.vocabulary))
            last_row = op.take(last_row, token_ids, axis=1)
        return op.cast(last_row, "float32")

    def bind_value(self, expr: Expr, name: str) -> Value:
        """Bind an expression to a value that is computed once."""
        return self.scope.bind_named(expr, name)


class SharedPastBuffers:
    """Trailing inputs of a decoder whose past and present keys and values share one full-length
    buffer.

    axis: of the length of keys and values. length: of an empty past. Beams need no indirection: the
    buffers themselves are reordered.
    """

    NAMES = ("past_sequence_length", "beam_width", "cache_indirection")

    def __init__(self, decoder: SearchDecoder, graph: onnx.GraphProto, axis: int) -> None:
        self.decoder, self.axis = decoder, axis
        inputs = [i.name for i in graph.input]
        counts = [n for n in (3, 1) if tuple(inputs[-n:]) == self.NAMES[:n]]
        self.names = self.NAMES[: max(counts, default=0)]
        self.length = decoder.search.max_length if self.names else as_dim(0)

    def token_count_dim(self, count: Expr) -> PrimExpr:
        """Return a number of tokens, an int64 scalar, as a dimension."""
        vector = self.decoder.bind_value(op.reshape(count, (1,)), "past")
        dims = data_dependent_dims.to_named_dims(self.decoder.scope, vector)
        assert dims is not None, "a vector of known length has dimensions"
        return as_dim(dims[0])

    def buffer_inputs(self, count: Expr) -> list[Value]:
        """Return these inputs for a past of `count` tokens."""
        search, scope = self.decoder.search, self.decoder.scope
        beams = op.cast(op.arange(0, search.num_beams, 1, dtype="int64"), "int32")
        shape = (search.batch, search.num_beams, search.max_length)
        values = (
            op.cast(op.reshape(count, (1,)), "int32"),
            op.cast(op.reshape(scope.emit_dim(search.num_beams), (1,)), "int32"),
            op.broadcast_to(op.reshape(beams, (1, search.num_beams, 1), allowzero=True), shape),
        )
        return [self.decoder.bind_value(v, n) for v, n in zip(values, self.names, strict=False)]

    def pad_to_buffers(self, values: Sequence[Value]) -> list[Value]:
        """Return keys or values zero-padded to buffers of full length."""
        buffers = []
        for value in values:
            shape = list(value.type.shape)
            behind = list(shape)
            behind[self.axis] = simplify_dim(self.decoder.search.max_length - shape[self.axis])
            shape[self.axis] = self.decoder.search.max_length
            # The decoder masks positions behind the past, so their contents are arbitrary.
            zeros = op.zeros(behind, value.type.dtype)
            padded = op.concatenate((self.decoder.scope.expr(value), zeros), axis=self.axis)
            reshaped = op.reshape(padded, shape, allowzero=True)
            buffers.append(self.decoder.bind_value(reshaped, "buffer"))
        return buffers


class GptDecoder(SearchDecoder):
    """Decoder-only model (GPT) of a search: (tokens, positions, mask, pasts) -> (logits, presents).

    Keys and values of a layer are one tensor, [2, rows, heads, length, width].
    """

    def __init__(self, search: SearchParameters, mask_input: int) -> None:
        super().__init__(search)
        self.first = "init_decoder" if self.node.has("init_decoder") else "decoder"
        first, graph = (required_subgraph(self.node, name) for name in (self.first, "decoder"))
        for decoder_graph in (first, graph):
            check_input_names(
                self.node, decoder_graph, ("input_ids", "position_ids", "attention_mask")
            )
        self.first_buffers, self.buffers = (
            SharedPastBuffers(self, first, 3),
            SharedPastBuffers(self, graph, 3),
        )
        pasts = list(graph.input)[3 : len(graph.input) - len(self.buffers.names)]
        if not pasts or len(graph.output) != len(pasts) + 1:
            self.node.reject(
                "its decoder must have a past of each layer as inputs, and the presents as outputs "
                "behind the logits"
            )
        if self.first_buffers.names and not self.buffers.names:
            self.node.reject("'init_decoder' shares buffers of the past, 'decoder' does not")
        self.pasts, self.mask_input = pasts, mask_input
        self.input_names = ["positions", *(p.name for p in pasts)]
        self.mask: Expr | None = None

    def run_prompt(self) -> tuple[Expr, Expr, list[Value]]:
        """Run the decoder over the prompts without a past."""
        search, scope = self.search, self.scope
        prompt_inputs = (self.node.expr(0), *self._prompt_mask_and_positions(self.node.expr(0)))
        tokens, mask, positions, counts = (search.expand_to_beams(t) for t in prompt_inputs)
        self.mask = scope.attach_span(mask)
        feeds = [self.bind_value(t, n) for t, n in ((tokens, "ids"), (positions, "positions"))]
        feeds.append(self.bind_value(self.mask, "mask"))
        for past in self.pasts:
            shape, dtype = self._past_shape(past)
            feeds.append(self.bind_value(op.zeros(shape, dtype), past.name))
        feeds += self.first_buffers.buffer_inputs(const(np.int64(0)))
        logits, *presents = self.node.subgraph_importer(self.first).import_body(feeds)
        if self.buffers.names and not self.first_buffers.names:
            presents = self.buffers.pad_to_buffers(presents)
        return tokens, self.last_logits(logits), [self.bind_value(counts, "positions"), *presents]

    def _prompt_mask_and_positions(self, tokens: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the prompts' mask int32 [batch, length], positions, and number of tokens int32
        [batch, 1]. Padding has no position, also where the mask is an input.
        """
        padding = const(np.int32(self.search.pad_token))
        is_token = op.cast(op.not_equal(tokens, padding), "int32")
        counts = op.cumsum(is_token, axis=1, dtype="int32")
        positions = op.multiply(op.subtract(counts, const(np.int32(1))), is_token)
        is_given = self.node.optional_value(self.mask_input) is not None
        mask = self.node.expr(self.mask_input) if is_given else is_token
        return mask, positions, op.sum(is_token, axis=[1], keepdims=True)

    def _past_shape(self, past: onnx.ValueInfoProto) -> tuple[tuple[PrimExpr, ...], str]:
        """Return the shape and dtype of an empty past."""
        dims = [d.dim_value for d in past.type.tensor_type.shape.dim]
        if len(dims) != 5 or min(dims[2], dims[4]) < 1:
            self.node.reject(
                f"{past.name!r} must have the shape (2, rows, heads, length, width), with numbers "
                "of heads and width"
            )
        length = self.first_buffers.length
        shape = (as_dim(2), self.search.num_rows, as_dim(dims[2]), length, as_dim(dims[4]))
        return shape, from_onnx_dtype(past.type.tensor_type.elem_type)

    def decode_step(
        self, tokens: Expr, texts: Expr, length: Expr, carried: Sequence[Value]
    ) -> tuple[Expr, list[Value]]:
        """Run the decoder over one token of each row."""
        positions, *pasts = carried
        count = op.subtract(length, const(np.int64(1)))
        # A shared buffer has a constant extent, so the length of the past comes from the loop
        # counter.
        past = self.buffers.token_count_dim(count) if self.buffers.names else pasts[0].type.shape[3]
        more = (self.search.num_rows, simplify_dim(past + 1 - self.search.prompt_length))
        assert self.mask is not None
        # Generated tokens are always attended to; only prompts have padding.
        ones = op.cast(op.full(const(np.int32(1)), more), "int32")
        mask = op.reshape(
            op.concatenate((self.mask, ones), axis=1), (more[0], simplify_dim(past + 1))
        )
        feeds = [
            self.bind_value(op.expand_dims(tokens, axis=1), "ids"),
            positions,
            self.bind_value(mask, "mask"),
            *unify_past_lengths(self, pasts, 3),
            *self.buffers.buffer_inputs(count),
        ]
        logits, *presents = self.node.subgraph_importer("decoder").import_body(feeds)
        next_positions = op.add(self.scope.expr(positions), const(np.int32(1)))
        return self.last_logits(logits), [self.bind_value(next_positions, "positions"), *presents]

    def reorder_state(self, carried: Sequence[Value], rows: Expr) -> list[Value]:
        """Return the presents of the given rows; positions stay with their sequence."""
        positions, *presents = carried
        # Keys and values are [2, rows, ...]: rows are axis 1.
        selected = [op.take(self.scope.expr(p), rows, axis=1) for p in presents]
        return [positions, *(self.bind_value(t, "past") for t in selected)]


class EncoderDecoder(SearchDecoder):
    """Encoder-decoder model (T5) of a search, with constant cross-attention keys and values and a
    past per decoder layer.

    Older encoders run the decoder's first token themselves, and return its logits. Keys and values
    are [rows, heads, length, width].
    """

    ENCODER_INPUTS: Sequence[str] = ("encoder_input_ids", "encoder_attention_mask")
    DECODER_INPUTS: Sequence[str] = ("input_ids", "encoder_attention_mask")

    def __init__(self, search: SearchParameters) -> None:
        super().__init__(search)
        self.encoder, self.graph = (
            required_subgraph(self.node, "encoder"),
            required_subgraph(self.node, "decoder"),
        )
        check_input_names(self.node, self.encoder, self.ENCODER_INPUTS)
        check_input_names(self.node, self.graph, self.DECODER_INPUTS)
        inputs = [i.name for i in self.graph.input]
        self.first = len(self.DECODER_INPUTS)
        self.takes_hidden = "encoder_hidden_states" in inputs[self.first : self.first + 1]
        self.first += self.takes_hidden
        self.buffers = SharedPastBuffers(self, self.graph, 2)
        layers, remainder = divmod(len(inputs) - self.first - len(self.buffers.names), 4)
        if not layers or remainder or len(self.graph.output) != 1 + 2 * layers:
            self.node.reject(
                "its decoder must have keys and values of each layer and of the encoder as inputs, "
                "and the former as outputs behind the logits"
            )
        self.count = 2 * layers
        self.input_names = inputs[self.first : self.first + self.count]
        self.steady: list[Value] = []
        """Mask, hidden states and keys and values of the encoder, of all rows."""

    @property
    def encoder_runs_decoder(self) -> bool:
        """Return whether the encoder graph also runs the decoder's first token."""
        return len(self.encoder.input) == 3

    def run_prompt(self) -> tuple[Expr, Expr, list[Value]]:
        """Run the encoder, and the decoder over its first token."""
        mask = self.bind_value(self.scope.attach_span(self._prompt_mask()), "mask")
        first = self.start_tokens(self.search.batch)
        feeds = [self.node.value(0), mask]
        if self.encoder_runs_decoder:
            feeds.append(self.bind_value(first, "ids"))
        outputs = self.node.subgraph_importer("encoder").import_body(feeds)
        tokens = self.start_tokens(self.search.num_rows)
        if self.encoder_runs_decoder:
            return self.start_from_encoder(tokens, [mask], outputs)
        # The encoder runs once for each prompt; its outputs are repeated for the beams afterwards.
        self.steady = self.expand_to_beams([mask, *outputs])
        if self.takes_hidden:
            self.node.reject("its encoder must give 'encoder_hidden_states', as its decoder takes")
        pasts = [self.bind_value(op.zeros(*self._past_shape(n)), n) for n in self.input_names]
        feeds = self._decoder_inputs(tokens, pasts, const(np.int64(0)))
        logits, *presents = self.node.subgraph_importer("decoder").import_body(feeds)
        return tokens, self.last_logits(logits), presents

    def start_tokens(self, rows: PrimExpr) -> Expr:
        """Emit each text's start token, int32 [rows, 1]."""
        start = self.node.get_int("decoder_start_token_id", -1)
        if start < 0:
            self.node.reject(f"'decoder_start_token_id' must be 0 or more, got {start}")
        return op.cast(op.full(const(np.int32(start)), (rows, 1)), "int32")

    def start_from_encoder(
        self, tokens: Expr, steady: Sequence[Value], outputs: Sequence[Value]
    ) -> tuple[Expr, Expr, list[Value]]:
        """Return the result of `start` for an encoder that runs the decoder's first token."""
        count = 2 + 2 * self.count
        if len(outputs) != count:
            self.node.reject(f"its encoder must have {count} outputs, got {len(outputs)}")
        logits, hidden, *both = outputs
        self_values, cross_values = both[: self.count], both[self.count :]
        hidden_states = [hidden] if self.takes_hidden else []
        self.steady = self.expand_to_beams([*steady, *hidden_states, *cross_values])
        presents = self.expand_to_beams(self_values)
        if self.buffers.names:
            presents = self.buffers.pad_to_buffers(presents)
        return tokens, self.search.expand_to_beams(self.last_logits(logits)), presents

    def _prompt_mask(self) -> Expr:
        """Emit the prompt's mask, 0 for its left padding."""
        if self.node.optional_value(9) is not None:
            return self.node.expr(9)
        token = op.not_equal(self.node.expr(0), const(np.int32(self.search.pad_token)))
        # Only padding on the left is masked: a padding token inside the prompt counts.
        before = op.cumsum(op.cast(token, "int32"), axis=1, dtype="int32")
        return op.cast(op.greater(before, const(np.int32(0))), "int32")

    def expand_to_beams(self, values: Sequence[Value]) -> list[Value]:
        """Repeat values of each sequence for its beams."""
        # Every beam of a text shares its encoder states.
        return [
            self.bind_value(self.search.expand_to_beams(self.scope.expr(v)), "rows") for v in values
        ]

    def _past_shape(self, name: str) -> tuple[tuple[PrimExpr, ...], str]:
        """Return the shape and dtype of an empty past."""
        (info,) = (i for i in self.graph.input if i.name == name)
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if len(dims) != 4 or min(dims[1], dims[3]) < 1:
            self.node.reject(
                f"{name!r} must have the shape (rows, heads, length, width), with numbers of heads "
                "and width"
            )
        shape = (self.search.num_rows, as_dim(dims[1]), self.buffers.length, as_dim(dims[3]))
        return shape, from_onnx_dtype(info.type.tensor_type.elem_type)

    def _decoder_inputs(self, tokens: Expr, pasts: Sequence[Value], past: Expr) -> list[Value]:
        """Return the decoder's inputs for tokens, int32 [rows, 1 or length], after `past`
        tokens.
        """
        count = self.first - 1
        ids = self.bind_value(tokens, "ids")
        steady = self.steady
        return [ids, *steady[:count], *pasts, *steady[count:], *self.buffers.buffer_inputs(past)]

    def decode_step(
        self, tokens: Expr, texts: Expr, length: Expr, carried: Sequence[Value]
    ) -> tuple[Expr, list[Value]]:
        """Run the decoder over one token of each row, or over the whole sequence if it
        takes that.
        """
        ids: Expr = op.expand_dims(tokens, axis=1)
        # A decoder whose ids have the shape [rows, 1] takes the last token, others the whole
        # sequence.
        if [d.dim_value for d in self.graph.input[0].type.tensor_type.shape.dim][1:] != [1]:
            zero, one = const(np.int64(0)), const(np.int64(1))
            ids = op.take(texts, op.arange(zero, length, one, dtype="int64"), axis=1)
        past = op.subtract(length, const(np.int64(1)))
        feeds = self._decoder_inputs(ids, unify_past_lengths(self, carried, 2), past)
        logits, *presents = self.node.subgraph_importer("decoder").import_body(feeds)
        return self.last_logits(logits), presents

    def reorder_state(self, carried: Sequence[Value], rows: Expr) -> list[Value]:
        """Return keys and values of the given rows."""
        selected = [op.take(self.scope.expr(p), rows, axis=0) for p in carried]
        return [self.bind_value(t, "past") for t in selected]


class WhisperDecoder(EncoderDecoder):
    """Whisper model of a search: an audio encoder that also runs the decoder's prompt, and a
    decoder without masks.
    """

    ENCODER_INPUTS = ("encoder_input_ids", "decoder_input_ids")
    DECODER_INPUTS = ("input_ids",)

    def run_prompt(self) -> tuple[Expr, Expr, list[Value]]:
        """Run the encoder over the audio features and the prompts."""
        is_given = self.node.optional_value(10) is not None
        prompt = self.node.expr(10) if is_given else self.start_tokens(self.search.batch)
        feeds = [self.node.value(0), self.bind_value(self.scope.attach_span(prompt), "ids")]
        outputs = self.node.subgraph_importer("encoder").import_body(feeds)
        return self.start_from_encoder(self.search.expand_to_beams(prompt), [], outputs)


def unify_past_lengths(decoder: SearchDecoder, pasts: Sequence[Value], axis: int) -> list[Value]:
    """Return the pasts of all layers with the first one's symbolic length."""
    first, *later_pasts = pasts
    extent = first.type.shape[axis]
    viewed = [first]
    # The reshape changes no elements; it lets the shape checker see that the lengths agree.
    for past in later_pasts:
        shape = list(past.type.shape)
        shape[axis] = extent
        expr = op.reshape(decoder.scope.expr(past), shape, allowzero=True)
        viewed.append(decoder.bind_value(expr, "past"))
    return viewed


def bind_with_shared_subexprs(
    decoder: SearchDecoder, exprs: Sequence[Expr], names: Sequence[str]
) -> list[Value]:
    """Bind expressions that share subexpressions to values without duplicating these."""
    scope = decoder.scope
    for expr in exprs:
        scope.type_of(expr)
    pairs = zip(scope.attach_spans(exprs), names, strict=True)
    return [scope.bind_named(expr, name) for expr, name in pairs]


def required_subgraph(node: OnnxNode, name: str) -> onnx.GraphProto:
    """Return a graph attribute that the node must have."""
    for attribute in node.proto.attribute:
        if attribute.name == name and attribute.type == onnx.AttributeProto.GRAPH:
            return attribute.g
    node.reject(f"attribute {name!r} is missing")


def check_input_names(node: OnnxNode, graph: onnx.GraphProto, names: Sequence[str]) -> None:
    """Raise Unsupported for a graph whose first inputs have other names than expected."""
    present = [i.name for i in graph.input][: len(names)]
    if present != list(names):
        node.reject(f"{graph.name!r} must begin with the inputs {list(names)}, got {present}")
