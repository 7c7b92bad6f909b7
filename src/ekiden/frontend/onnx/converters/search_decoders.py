"""The decoders of text searches: those like GPT-2's, and those of T5's and Whisper's kind with an
encoder. All take the keys and values of the tokens before, and give those of the next.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.search_scores import Search
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.messages import onnx
from ekiden.frontend.onnx.node import Node
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import as_dim, known, tidy


class Decoder:
    """The graph that gives the logits of the next token, and what it carries from one to the next.

    names: of what is carried.
    """

    names: Sequence[str]

    def __init__(self, search: Search) -> None:
        self.search, self.node, self.scope = search, search.node, search.node.scope

    @abstractmethod
    def start(self) -> tuple[Expr, Expr, list[Value]]:
        """Return the tokens that texts begin with, int32 [rows, prompt], their last logits
        [rows, vocabulary] and what is carried."""

    @abstractmethod
    def step(
        self, tokens: Expr, texts: Expr, length: Expr, carried: Sequence[Value]
    ) -> tuple[Expr, list[Value]]:
        """Return the logits behind the last tokens, int32 [rows], and what is carried on."""

    @abstractmethod
    def reordered(self, carried: Sequence[Value], rows: Expr) -> list[Value]:
        """Return what is carried for texts that continue these rows."""

    def last_logits(self, logits: Value) -> Expr:
        """Return the logits of the last tokens: [n, length, vocabulary or more] -> float32
        [n, vocabulary]."""
        if len(logits.type.shape) != 3:
            self.node.unsupported(f"'logits' must have 3 dimensions, got {len(logits.type.shape)}")
        last = self.scope.scalar(tidy(logits.type.shape[1] - 1))
        taken = op.take(self.scope.expr(logits), last, axis=1)
        if known(logits.type.shape[2]) != self.search.vocabulary:
            places = const(np.arange(self.search.vocabulary))
            taken = op.take(taken, places, axis=1)
        return op.cast(taken, "float32")

    def value(self, expr: Expr, name: str) -> Value:
        """Return an expression as a value that is computed once."""
        return self.scope.bound(expr, name)


class Gpt(Decoder):
    """A decoder alone: (tokens, positions, mask, past of each layer) -> (logits, present of each).

    Keys and values of a layer are one tensor, [2, rows, heads, length, width].
    """

    def __init__(self, search: Search, mask_input: int) -> None:
        super().__init__(search)
        graph = graph_of(self.node, "decoder")
        check_inputs(self.node, graph, ("input_ids", "position_ids", "attention_mask"))
        pasts = list(graph.input)[3:]
        if not pasts or len(graph.output) != len(pasts) + 1:
            self.node.unsupported(
                "its decoder must have a past of each layer as inputs, and the presents as outputs "
                "behind the logits; one that shares a buffer for both runs on GPUs alone"
            )
        self.pasts, self.mask_input = pasts, mask_input
        self.names = ["positions", *(p.name for p in pasts)]
        self.mask: Expr | None = None

    def start(self) -> tuple[Expr, Expr, list[Value]]:
        """Run the decoder over the prompts, without a past."""
        search, scope = self.search, self.scope
        each = (self.node.expr(0), *self._mask_and_positions(self.node.expr(0)))
        tokens, mask, positions, counts = (search.expanded(t) for t in each)
        self.mask = scope.spanned(mask)
        feeds = [self.value(t, n) for t, n in ((tokens, "ids"), (positions, "positions"))]
        feeds.append(self.value(self.mask, "mask"))
        for past in self.pasts:
            shape, dtype = self._past_shape(past)
            feeds.append(self.value(op.zeros(shape, dtype), past.name))
        first = "init_decoder" if self.node.has("init_decoder") else "decoder"
        logits, *presents = self.node.body(first).run(feeds)
        return tokens, self.last_logits(logits), [self.value(counts, "positions"), *presents]

    def _mask_and_positions(self, tokens: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the mask of the prompts, int32 [batch, length], the positions of their tokens, and
        how many these are, int32 [batch, 1]. Padding has no position, also where an input says the
        mask."""
        padding = const(np.int32(self.search.padding))
        is_token = op.cast(op.not_equal(tokens, padding), "int32")
        counts = op.cumsum(is_token, axis=1, dtype="int32")
        positions = op.multiply(op.subtract(counts, const(np.int32(1))), is_token)
        is_given = self.node.optional(self.mask_input) is not None
        mask = self.node.expr(self.mask_input) if is_given else is_token
        return mask, positions, op.sum(is_token, axis=[1], keepdims=True)

    def _past_shape(self, past: onnx.ValueInfoProto) -> tuple[tuple[PrimExpr, ...], str]:
        """Return the shape and dtype of an empty past."""
        dims = [d.dim_value for d in past.type.tensor_type.shape.dim]
        if len(dims) != 5 or min(dims[2], dims[4]) < 1:
            self.node.unsupported(
                f"{past.name!r} must have the shape (2, rows, heads, length, width), with numbers "
                "of heads and width"
            )
        shape = (as_dim(2), self.search.rows, as_dim(dims[2]), as_dim(0), as_dim(dims[4]))
        return shape, from_onnx_dtype(past.type.tensor_type.elem_type)

    def step(
        self, tokens: Expr, texts: Expr, length: Expr, carried: Sequence[Value]
    ) -> tuple[Expr, list[Value]]:
        """Run the decoder over one token of each row."""
        positions, *pasts = carried
        past = pasts[0].type.shape[3]
        more = (self.search.rows, tidy(past + 1 - self.search.prompt))
        assert self.mask is not None
        ones = op.cast(op.full(const(np.int32(1)), more), "int32")
        mask = op.reshape(op.concatenate((self.mask, ones), axis=1), (more[0], tidy(past + 1)))
        feeds = [
            self.value(op.expand_dims(tokens, axis=1), "ids"),
            positions,
            self.value(mask, "mask"),
            *of_one_length(self, pasts, 3),
        ]
        logits, *presents = self.node.body("decoder").run(feeds)
        next_positions = op.add(self.scope.expr(positions), const(np.int32(1)))
        return self.last_logits(logits), [self.value(next_positions, "positions"), *presents]

    def reordered(self, carried: Sequence[Value], rows: Expr) -> list[Value]:
        """Return the presents of these rows; positions are those of the text."""
        positions, *presents = carried
        taken = [op.take(self.scope.expr(p), rows, axis=1) for p in presents]
        return [positions, *(self.value(t, "past") for t in taken)]


class EncoderDecoder(Decoder):
    """An encoder, whose keys and values stay, and a decoder: (tokens, mask, hidden states or not,
    keys and values of each layer, those of the encoder) -> (logits, keys and values of each).

    Older encoders begin with the decoder's first token themselves, and give its logits. Keys and
    values are [rows, heads, length, width].
    """

    ENCODER_INPUTS: Sequence[str] = ("encoder_input_ids", "encoder_attention_mask")
    DECODER_INPUTS: Sequence[str] = ("input_ids", "encoder_attention_mask")

    def __init__(self, search: Search) -> None:
        super().__init__(search)
        self.encoder, self.graph = graph_of(self.node, "encoder"), graph_of(self.node, "decoder")
        check_inputs(self.node, self.encoder, self.ENCODER_INPUTS)
        check_inputs(self.node, self.graph, self.DECODER_INPUTS)
        inputs = [i.name for i in self.graph.input]
        self.first = len(self.DECODER_INPUTS)
        self.takes_hidden = "encoder_hidden_states" in inputs[self.first : self.first + 1]
        self.first += self.takes_hidden
        layers, rest = divmod(len(inputs) - self.first, 4)
        if not layers or rest or len(self.graph.output) != 1 + 2 * layers:
            self.node.unsupported(
                "its decoder must have keys and values of each layer and of the encoder as inputs, "
                "and the former as outputs behind the logits; one that shares a buffer for both "
                "runs on GPUs alone"
            )
        self.count = 2 * layers
        self.names = inputs[self.first : self.first + self.count]
        self.steady: list[Value] = []
        """Mask, hidden states and keys and values of the encoder, of all rows."""

    @property
    def is_older(self) -> bool:
        """Whether the encoder computes the decoder's first token."""
        return len(self.encoder.input) == 3

    def start(self) -> tuple[Expr, Expr, list[Value]]:
        """Run the encoder, and the decoder over its first token."""
        mask = self.value(self.scope.spanned(self._mask()), "mask")
        first = self.first_tokens(self.search.batch)
        feeds = [self.node.value(0), mask]
        if self.is_older:
            feeds.append(self.value(first, "ids"))
        outputs = self.node.body("encoder").run(feeds)
        tokens = self.first_tokens(self.search.rows)
        if self.is_older:
            return self.started(tokens, [mask], outputs)
        self.steady = self.expanded([mask, *outputs])
        if self.takes_hidden:
            self.node.unsupported(
                "its encoder must give 'encoder_hidden_states', as its decoder takes"
            )
        pasts = [self.value(op.zeros(*self._past_shape(n)), n) for n in self.names]
        logits, *presents = self.node.body("decoder").run(self._feeds(tokens, pasts))
        return tokens, self.last_logits(logits), presents

    def first_tokens(self, rows: PrimExpr) -> Expr:
        """Return the token that begins each text: int32 [rows, 1]."""
        start = self.node.get_int("decoder_start_token_id", -1)
        if start < 0:
            self.node.unsupported(f"'decoder_start_token_id' must be 0 or more, got {start}")
        return op.cast(op.full(const(np.int32(start)), (rows, 1)), "int32")

    def started(
        self, tokens: Expr, steady: Sequence[Value], outputs: Sequence[Value]
    ) -> tuple[Expr, Expr, list[Value]]:
        """Return what `start` does, of an encoder that begins with the decoder's first tokens;
        `steady` is what the decoder takes of every run beside its outputs."""
        count = 2 + 2 * self.count
        if len(outputs) != count:
            self.node.unsupported(f"its encoder must have {count} outputs, got {len(outputs)}")
        logits, hidden, *both = outputs
        own, others = both[: self.count], both[self.count :]
        hidden_states = [hidden] if self.takes_hidden else []
        self.steady = self.expanded([*steady, *hidden_states, *others])
        return tokens, self.search.expanded(self.last_logits(logits)), self.expanded(own)

    def _mask(self) -> Expr:
        """Return the mask of the prompt: 0 for the padding on its left."""
        if self.node.optional(9) is not None:
            return self.node.expr(9)
        token = op.not_equal(self.node.expr(0), const(np.int32(self.search.padding)))
        before = op.cumsum(op.cast(token, "int32"), axis=1, dtype="int32")
        return op.cast(op.greater(before, const(np.int32(0))), "int32")

    def expanded(self, values: Sequence[Value]) -> list[Value]:
        """Return what is there for each text for each row."""
        return [self.value(self.search.expanded(self.scope.expr(v)), "rows") for v in values]

    def _past_shape(self, name: str) -> tuple[tuple[PrimExpr, ...], str]:
        (info,) = (i for i in self.graph.input if i.name == name)
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if len(dims) != 4 or min(dims[1], dims[3]) < 1:
            self.node.unsupported(
                f"{name!r} must have the shape (rows, heads, length, width), with numbers of heads "
                "and width"
            )
        shape = (self.search.rows, as_dim(dims[1]), as_dim(0), as_dim(dims[3]))
        return shape, from_onnx_dtype(info.type.tensor_type.elem_type)

    def _feeds(self, tokens: Expr, pasts: Sequence[Value]) -> list[Value]:
        """Return the inputs of the decoder for tokens, int32 [rows, 1 or length]."""
        count = self.first - 1
        ids = self.value(tokens, "ids")
        return [ids, *self.steady[:count], *pasts, *self.steady[count:]]

    def step(
        self, tokens: Expr, texts: Expr, length: Expr, carried: Sequence[Value]
    ) -> tuple[Expr, list[Value]]:
        """Run the decoder over one token of each row, or over all where it takes all."""
        ids: Expr = op.expand_dims(tokens, axis=1)
        if [d.dim_value for d in self.graph.input[0].type.tensor_type.shape.dim][1:] != [1]:
            zero, one = const(np.int64(0)), const(np.int64(1))
            ids = op.take(texts, op.arange(zero, length, one, dtype="int64"), axis=1)
        feeds = self._feeds(ids, of_one_length(self, carried, 2))
        logits, *presents = self.node.body("decoder").run(feeds)
        return self.last_logits(logits), presents

    def reordered(self, carried: Sequence[Value], rows: Expr) -> list[Value]:
        """Return keys and values of these rows."""
        taken = [op.take(self.scope.expr(p), rows, axis=0) for p in carried]
        return [self.value(t, "past") for t in taken]


class Whisper(EncoderDecoder):
    """An encoder of features, which begins with the prompt of the decoder, and that decoder,
    without masks. The prompt is an input of the node, or the one token that begins each text.
    """

    ENCODER_INPUTS = ("encoder_input_ids", "decoder_input_ids")
    DECODER_INPUTS = ("input_ids",)

    def start(self) -> tuple[Expr, Expr, list[Value]]:
        """Run the encoder over the features and the prompts."""
        is_given = self.node.optional(10) is not None
        prompt = self.node.expr(10) if is_given else self.first_tokens(self.search.batch)
        feeds = [self.node.value(0), self.value(self.scope.spanned(prompt), "ids")]
        outputs = self.node.body("encoder").run(feeds)
        return self.started(self.search.expanded(prompt), [], outputs)


def of_one_length(decoder: Decoder, pasts: Sequence[Value], axis: int) -> list[Value]:
    """Return the pasts of all layers with the length of the first one's: each has a size of its
    own in the loop, though all grow alike."""
    first, *others = pasts
    extent = first.type.shape[axis]
    viewed = [first]
    for past in others:
        shape = list(past.type.shape)
        shape[axis] = extent
        expr = op.reshape(decoder.scope.expr(past), shape, allowzero=True)
        viewed.append(decoder.value(expr, "past"))
    return viewed


def together(decoder: Decoder, exprs: Sequence[Expr], names: Sequence[str]) -> list[Value]:
    """Return expressions that share parts as values, which go on sharing them."""
    scope = decoder.scope
    for expr in exprs:
        scope.type_of(expr)
    pairs = zip(scope.span_all(exprs), names, strict=True)
    return [scope.bound(expr, name) for expr, name in pairs]


def graph_of(node: Node, name: str) -> onnx.GraphProto:
    """Return a graph that the node must have."""
    for attribute in node.proto.attribute:
        if attribute.name == name and attribute.type == onnx.AttributeProto.GRAPH:
            return attribute.g
    node.unsupported(f"attribute {name!r} is missing")


def check_inputs(node: Node, graph: onnx.GraphProto, names: Sequence[str]) -> None:
    """Raise Unsupported for a graph whose first inputs have other names: their order is known by
    these."""
    got = [i.name for i in graph.input][: len(names)]
    if got != list(names):
        node.unsupported(f"{graph.name!r} must begin with the inputs {list(names)}, got {got}")
