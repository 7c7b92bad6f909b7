"""Relay function of an encoder (BERT, RoBERTa, XLM-RoBERTa) over a batch of texts.

    def (ids [b, s], lengths [b], types [b, s], positions [s]) -> states [b, s, hidden]

The texts of a batch are padded to one length; attention sees the first `lengths` tokens of each. An
encoder with a head for classification returns logits [b, labels] instead, of the first token.

Source: Devlin and others, "BERT" (2018); Liu and others, "RoBERTa" (2019), whose positions begin
behind that of the padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ekiden.ir.prim import PrimExpr, SizeVar
from ekiden.ir.type import TensorType
from ekiden.llm.checkpoint import Checkpoint, Weight
from ekiden.llm.config_validation import read_float, read_integer, read_size
from ekiden.llm.decoder_config import ACTIVATION_NAMES
from ekiden.llm.decoder_layers import (
    ACTIVATION_FUNCTIONS,
    embedding_lookup,
    matmul_weight,
    slice_axis,
)
from ekiden.llm.tensor_reader import TensorReader, dequantize
from ekiden.relay import op
from ekiden.relay.expr import Expr, Function, Let, Var, const
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["EncoderConfig", "encoder_function", "is_encoder", "read_encoder_config"]

EMBEDDINGS = "embeddings.word_embeddings.weight"
IGNORED_PREFIXES = ("pooler.", "cls.", "lm_head.", "classifier.")
"""Heads that an encoder without them does not read."""
IGNORED_SUFFIXES = ("position_ids", "token_type_ids")
ATTENTION_LAYOUTS = ("bshd", "bshd", "bshd", "bshd")


@dataclass(frozen=True, slots=True)
class EncoderArchitecture:
    """Row of the table of encoder architectures: the prefix of names, whether positions begin
    behind that of the padding, and the products of the head that classifies, the first one followed
    by tanh.
    """

    prefix: str
    is_offset: bool = False
    head: tuple[str, ...] = ()


_BERT, _ROBERTA = EncoderArchitecture("bert."), EncoderArchitecture("roberta.", True)
_BERT_HEAD = EncoderArchitecture("bert.", False, ("bert.pooler.dense", "classifier"))
_ROBERTA_HEAD = EncoderArchitecture("roberta.", True, ("classifier.dense", "classifier.out_proj"))
ENCODER_ARCHITECTURES: Mapping[str, EncoderArchitecture] = {
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT,
    "BertForPreTraining": _BERT,
    "BertForSequenceClassification": _BERT_HEAD,
    **{
        f"{family}{kind}": row
        for family in ("Roberta", "XLMRoberta", "Camembert")
        for kind, row in (
            ("Model", _ROBERTA),
            ("ForMaskedLM", _ROBERTA),
            ("ForSequenceClassification", _ROBERTA_HEAD),
        )
    },
}
FIXED_SETTINGS: Mapping[str, object] = {
    "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
}  # fmt: skip
"""The only values that are served."""


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Hyperparameters of an encoder: its sizes, and the variations of its family."""

    architecture: str
    prefix: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    inner: int
    """Of the MLP."""
    max_positions: int
    position_offset: int
    """The position of a text's first token."""
    types: int
    """Kinds of tokens: the parts of a pair."""
    epsilon: float
    activation: str
    head: tuple[str, ...]
    labels: int
    """Logits of the head."""


def _architecture_of(config: Mapping[str, Any]) -> str | None:
    value = config.get("architectures") or ()
    several = value if isinstance(value, (list, tuple)) else [value]
    return next((name for name in several if name in ENCODER_ARCHITECTURES), None)


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` describes a supported encoder."""
    return _architecture_of(config) is not None


def read_encoder_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Return the hyperparameters of the encoder that a `config.json` describes. Raises
    UnsupportedError for an unknown architecture or setting, and ImportModelError for a missing or
    invalid size.
    """
    name = _architecture_of(config)
    if name is None:
        raise UnsupportedError(
            f"config: no encoder of the architecture {config.get('architectures')!r};"
            f" there are {', '.join(ENCODER_ARCHITECTURES)}"
        )
    for key, value in FIXED_SETTINGS.items():
        if config.get(key, value) not in (value, None):
            raise UnsupportedError(
                f"config: '{key}': only {value!r} is supported, got {config[key]!r}"
            )
    row = ENCODER_ARCHITECTURES[name]
    activation = str(config.get("hidden_act") or "gelu")
    if activation not in ACTIVATION_NAMES:
        raise UnsupportedError(
            f"config: 'hidden_act': {activation!r} is none of {', '.join(sorted(ACTIVATION_NAMES))}"
        )
    hidden, heads = read_size(config, "hidden_size"), read_size(config, "num_attention_heads")
    if hidden % heads:
        raise ImportModelError(
            f"config: 'hidden_size': {hidden} is no multiple of {heads} 'num_attention_heads'"
        )
    padding = config.get("pad_token_id")
    offset = (1 if padding is None else read_integer(config, "pad_token_id", 0)) + 1
    labels = config.get("id2label")
    return EncoderConfig(
        architecture=name,
        prefix=row.prefix,
        vocabulary=read_size(config, "vocab_size"),
        hidden=hidden,
        layers=read_size(config, "num_hidden_layers"),
        heads=heads,
        inner=read_size(config, "intermediate_size"),
        max_positions=read_size(config, "max_position_embeddings") - offset * row.is_offset,
        position_offset=offset * row.is_offset,
        types=read_integer(config, "type_vocab_size", 2),
        epsilon=read_float(config, "layer_norm_eps", 1e-12),
        activation=ACTIVATION_NAMES[activation],
        head=row.head,
        labels=len(labels)
        if isinstance(labels, Mapping)
        else read_integer(config, "num_labels", 2),
    )


class _EncoderBuilder:
    """Builder of an encoder's function."""

    def __init__(self, checkpoint: Checkpoint, config: EncoderConfig) -> None:
        self.config = config
        self.tensors = TensorReader(checkpoint, config.prefix, config.prefix + EMBEDDINGS)
        self.bindings: list[tuple[Var, Expr]] = []

    def let(self, name: str, value: Expr) -> Var:
        """Bind a value to a new variable, in order."""
        var = Var(name)
        self.bindings.append((var, value))
        return var

    def build(self) -> Function:
        """Return the function: of logits where the encoder has a head, else of states."""
        config = self.config
        b, s = SizeVar("b"), SizeVar("s")
        shapes: dict[str, tuple[PrimExpr, ...]] = {
            "ids": (b, s), "lengths": (b,), "types": (b, s), "positions": (s,),
        }  # fmt: skip
        ids, lengths, types, positions = (
            Var(name, TensorType(shape, "int32")) for name, shape in shapes.items()
        )
        x = self._embed(ids, types, positions)
        is_seen = op.less(op.expand_dims(positions, axis=0), op.expand_dims(lengths, axis=1))
        zero, hidden = const(np.float32(0)), const(np.float32(-np.inf))
        bias = op.reshape(op.where(is_seen, zero, hidden), (0, 1, 1, -1))
        mask = self.let("mask", bias)
        for n in range(config.layers):
            x = self._layer(n, x, mask)
        body: Expr = self._classify(x) if config.head else x
        for variable, value in reversed(self.bindings):
            body = Let(variable, value, body)
        return Function((ids, lengths, types, positions), body, None)

    def _embed(self, ids: Var, types: Var, positions: Var) -> Var:
        """Emit the normalised sum of token, segment and position embeddings."""
        config, hidden = self.config, self.config.hidden
        prefix, offset = config.prefix + "embeddings.", config.position_offset
        tokens = self._embedding_weight("word_embeddings", config.vocabulary)
        learned = self._embedding_weight("position_embeddings", config.max_positions + offset)
        position_ids = op.add(positions, const(np.int32(offset))) if offset else positions
        kinds = self._embedding_weight("token_type_embeddings", config.types)
        x = op.add(embedding_lookup(tokens, ids), embedding_lookup(kinds, types))
        x = op.add(x, op.reshape(embedding_lookup(learned, position_ids), (1, -1, hidden)))
        return self.let("embedded", self._norm(x, prefix + "LayerNorm"))

    def _embedding_weight(self, name: str, rows: int) -> Weight:
        full_name = f"{self.config.prefix}embeddings.{name}.weight"
        return self.tensors.read_weight(full_name, (rows, self.config.hidden))

    def _layer(self, n: int, x: Var, mask: Var) -> Var:
        """Emit an encoder layer and return its hidden states: attention and MLP, each added and
        normalised.
        """
        config = self.config
        prefix, hidden, heads = f"{config.prefix}encoder.layer.{n}.", config.hidden, config.heads
        names = [f"{prefix}attention.self.{index}" for index in ("query", "key", "value")]
        projected = op.concatenate(
            [self._linear(x, name, hidden, hidden) for name in names], axis=2
        )
        split = op.reshape(projected, (0, 0, 3 * heads, hidden // heads))
        stacked = self.let(f"projected_{n}", split)
        query, key, value = (
            slice_axis(stacked, index * heads, (index + 1) * heads, 2) for index in range(3)
        )
        attended = op.nn.attention(query, key, value, mask, layouts=ATTENTION_LAYOUTS)
        flat = op.reshape(attended, (0, 0, hidden))
        out = self._linear(flat, f"{prefix}attention.output.dense", hidden, hidden)
        middle = self.let(
            f"attended_{n}", self._norm(op.add(out, x), f"{prefix}attention.output.LayerNorm")
        )
        up = self._linear(middle, f"{prefix}intermediate.dense", config.inner, hidden)
        inner = ACTIVATION_FUNCTIONS[config.activation](self.let(f"up_{n}", up))
        down = self._linear(inner, f"{prefix}output.dense", hidden, config.inner)
        return self.let(f"x_{n}", self._norm(op.add(down, middle), f"{prefix}output.LayerNorm"))

    def _classify(self, x: Var) -> Expr:
        """Emit the logits [b, labels] of the first (CLS) token."""
        config, hidden = self.config, self.config.hidden
        first = op.reshape(slice_axis(x, 0, 1, 1), (-1, hidden))
        dense, out = config.head
        return self._linear(
            op.tanh(self._linear(first, dense, hidden, hidden)), out, config.labels, hidden
        )

    def _linear(self, data: Expr, name: str, rows: int, depth: int) -> Expr:
        """Emit data times a transposed weight, plus its bias."""
        product = matmul_weight(data, self.tensors.read_weight(f"{name}.weight", (rows, depth)))
        return op.add(product, const(self.tensors.read_vector(f"{name}.bias", rows)))

    def _norm(self, data: Expr, name: str) -> Expr:
        hidden = self.config.hidden
        scale = dequantize(self.tensors.read_weight(f"{name}.weight", (hidden,)))
        shift = self.tensors.read_vector(f"{name}.bias", hidden)
        return op.nn.layer_norm(data, const(scale), const(shift), -1, self.config.epsilon)


def encoder_function(checkpoint: Checkpoint, config: EncoderConfig) -> Function:
    """Return the function of an encoder; see the module's description.

    Raises:
        ImportModelError: A tensor is missing, has another shape, or has no place in the encoder.
    """
    builder = _EncoderBuilder(checkpoint, config)
    function = builder.build()
    unread = [name for name in builder.tensors.unread if not _is_ignored(name, config)]
    if unread:
        listed: Sequence[str] = unread[:3]
        raise ImportModelError(
            f"checkpoint: an encoder {config.architecture} has no place for"
            f" {', '.join(map(repr, listed))}{' and more' if len(unread) > len(listed) else ''}"
        )
    return function


def _is_ignored(name: str, config: EncoderConfig) -> bool:
    """Return whether a tensor changes nothing: heads that are not read, and numbers of tokens."""
    own_name = name.removeprefix(config.prefix)
    return own_name.startswith(IGNORED_PREFIXES) or own_name.endswith(IGNORED_SUFFIXES)
