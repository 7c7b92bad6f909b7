"""Decoder as a Relay module: one function for any number of tokens of any number of sequences, over
a paged KV cache.

    def @forward(%cache, %ids, %sequences, %positions, %tables, %picks) -> (logits, %cache)

The tokens of a call are a list [n]: token i is `ids[i]`, the one at `positions[i]` of the sequence
whose pages are the row `sequences[i]` of `page_tables`. A prompt is many tokens of one sequence, a
step of sixteen answers one token of each; both may stand in one call. `logit_rows` says of which
tokens the logits are wanted. Keys and values are written into the cache before they are read, so
that tokens see each other by their positions alone.

    def @forward_step(%state: ref(cache), ...) -> logits

is its face outside: the cache lies in a reference, which the program empties before it changes the
cache and fills again, so that nobody else refers to it and it is changed where it lies.
"""

from __future__ import annotations

import logging

import numpy as np

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.prim import AnyDim, PrimExpr, SizeVar
from ekiden.ir.prim import const as dim
from ekiden.ir.type import TensorType, TupleType
from ekiden.kernels.attention.kv_layout import CachePlane
from ekiden.llm.architectures import DecoderConfig
from ekiden.llm.decoder_layers import (
    ACTIVATION_FUNCTIONS,
    DecoderLayers,
    embedding_lookup,
    matmul_weight,
)
from ekiden.llm.rope import RopeParameters
from ekiden.llm.weights import Checkpoint
from ekiden.relay import op
from ekiden.relay.expr import (
    Expr,
    Function,
    Let,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
    const,
)
from ekiden.relay.transform.language.remove_unused_functions import ENTRY_FUNCTIONS_ATTR
from ekiden.relay.ty import RefType
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["FORWARD_ENTRY", "CacheLayout", "cache_shape", "decoder_module"]

FORWARD_ENTRY = "forward_step"
MAX_LISTED_NAMES = 3
"""Names of tensors in a message."""
_LOG = logging.getLogger("ekiden")


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Layout of the KV cache: tokens per page, dtype, and pages per block."""

    page_tokens: int = 64
    dtype: str = "float32"
    pages_per_block: int = 16

    def num_blocks(self, pages: int) -> int:
        """Return the number of blocks that hold `pages` pages."""
        return -(-pages // self.pages_per_block)


def cache_shape(config: DecoderConfig, layout: CacheLayout, blocks: object) -> tuple[object, ...]:
    """Return the cache shape [blocks, layers, keys and values, heads, one block of pages]."""
    plane = CachePlane(layout.page_tokens, config.head_dim, layout.dtype)
    return (blocks, config.num_layers, 2, config.num_kv_heads, layout.pages_per_block * plane.size)


@dataclass(frozen=True, slots=True)
class TokenVariables:
    """Input variables of a call: token ids, sequences, positions, page tables, and the rows whose
    logits are wanted.
    """

    ids: Var
    sequence_ids: Var
    positions: Var
    page_tables: Var
    logit_rows: Var

    @staticmethod
    def create() -> TokenVariables:
        """Create new variables: n tokens, tables of b sequences with m pages, k picks."""
        n, b, m, k = (SizeVar(name) for name in ("n", "b", "m", "k"))
        return TokenVariables(
            *(
                Var(name, TensorType(shape, "int32"))
                for name, shape in (
                    ("ids", (n,)), ("sequences", (n,)), ("positions", (n,)), ("tables", (b, m)),
                    ("picks", (k,)),
                )
            )
        )  # fmt: skip

    @property
    def parameters(self) -> tuple[Var, ...]:
        """Return them as parameters."""
        return (self.ids, self.sequence_ids, self.positions, self.page_tables, self.logit_rows)


class _ForwardBuilder:
    """Builder of the body of `forward`."""

    def __init__(self, checkpoint: Checkpoint, config: DecoderConfig, layout: CacheLayout) -> None:
        self.config, self.layout = config, layout
        self.parts = DecoderLayers(checkpoint, config)
        self.bindings: list[tuple[Var, Expr]] = []

    def let(self, name: str, value: Expr) -> Var:
        """Bind a value to a new variable, in order."""
        var = Var(name)
        self.bindings.append((var, value))
        return var

    def build(self) -> Function:
        """Return the whole function."""
        config, names = self.config, self.config.names
        pages: PrimExpr = SizeVar("p")
        shape = cache_shape(config, self.layout, pages)
        cache = Var("cache", TensorType(tuple(map(_to_dim, shape)), self.layout.dtype))
        tokens = TokenVariables.create()
        table = self.parts.embedding_table(names.embedding)
        x: Expr = embedding_lookup(table, tokens.ids)
        if config.embedding_scale != 1.0:
            x = op.multiply(x, const(np.float32(config.embedding_scale)))
        x = self.let("embedded", x)
        rotations = [self._rotary_tables(rope, tokens.positions) for rope in config.ropes]
        state: Var = cache
        for n in range(config.num_layers):
            x, state = self._decoder_layer(
                n, x, state, tokens, rotations[config.rope_index_by_layer[n]]
            )
        # Only the picked positions reach the head, the largest product of a prefill.
        x = self.parts.norm(op.take(x, tokens.logit_rows, axis=0), names.norm)
        has = self.parts.has_tensor
        head = next((head_name for head_name in names.head if has(head_name)), names.head[0])
        weight = table if config.ties_embeddings else self.parts.embedding_table(head)
        logits = matmul_weight(x, weight)
        if cap := config.logit_softcap:
            bent = op.tanh(op.multiply(logits, const(np.float32(1 / cap))))
            logits = op.multiply(bent, const(np.float32(cap)))
        body: Expr = Tuple((self.let("logits", logits), state))
        for variable, value in reversed(self.bindings):
            body = Let(variable, value, body)
        return Function((cache, *tokens.parameters), body, None)

    def _rotary_tables(self, rope: RopeParameters, positions: Var) -> tuple[Var, Var]:
        """Return the cosines and sines [n, 1, pairs] of the positions."""
        position_column = op.reshape(op.cast(positions, "float32"), (-1, 1, 1))
        angles = op.multiply(position_column, const(np.array(rope.frequencies, np.float32)))
        factor = const(np.float32(rope.attention_factor))
        cosines, sines = op.cos(angles), op.sin(angles)
        if rope.attention_factor != 1.0:
            cosines, sines = op.multiply(cosines, factor), op.multiply(sines, factor)
        return self.let("cosines", cosines), self.let("sines", sines)

    def _decoder_layer(
        self, n: int, x: Var, cache: Var, tokens: TokenVariables, rotation: tuple[Var, Var]
    ) -> tuple[Var, Var]:
        """Return the results of one layer: the hidden state and the cache."""
        config, tensors, names = self.config, self.parts, self.config.names
        prefix = names.layer.format(n)
        attended, cache = self._attention(n, x, cache, tokens, rotation)
        if names.post_attention_norm:
            attended = tensors.norm(attended, prefix + names.post_attention_norm)
        middle = self.let(f"attended_{n}", op.add(x, attended))
        # GPT-NeoX's parallel residual: attention and MLP read the same input.
        mlp_input = x if config.has_parallel_residual else middle
        mixed = self._mlp(prefix, tensors.norm(mlp_input, prefix + names.pre_mlp_norm))
        if names.post_mlp_norm:
            mixed = tensors.norm(mixed, prefix + names.post_mlp_norm)
        return self.let(f"x_{n}", op.add(middle, mixed)), cache

    def _attention(
        self, n: int, x: Var, cache: Var, tokens: TokenVariables, rotation: tuple[Var, Var]
    ) -> tuple[Expr, Var]:
        """Return the attention block's output and the updated cache."""
        config, tensors, names = self.config, self.parts, self.config.names
        prefix = names.layer.format(n)
        total = config.num_heads + 2 * config.num_kv_heads
        normed = self.let(f"normed_{n}", tensors.norm(x, prefix + names.pre_attention_norm))
        projected = tensors.linear(
            normed, [prefix + name for name in names.attention], total * config.head_dim,
            config.hidden_size, "attention" in config.biases, config.has_head_interleaved_qkv,
        )  # fmt: skip
        heads = op.reshape(projected, (-1, total, config.head_dim))
        turned = self.let(f"turned_{n}", self._apply_rotary(n, heads, rotation))
        layer = const(np.array([n], np.int32))
        cache_position = (layer, tokens.page_tables, tokens.sequence_ids, tokens.positions)
        page = self.layout.page_tokens
        written = self.let(
            f"cache_{n}", op.nn.contrib_write_pages(cache, turned, *cache_position, page=page)
        )
        attended = op.nn.contrib_paged_attention(
            turned, written, *cache_position, page=page, scale=config.score_scale,
            softcap=config.score_softcap, window=config.layer_windows[n],
        )  # fmt: skip
        width = config.num_heads * config.head_dim
        flat = op.reshape(self.let(f"heads_{n}", attended), (-1, width))
        out = tensors.linear(
            flat, [prefix + names.out], config.hidden_size, width, "out" in config.biases
        )
        return out, written

    def _apply_rotary(self, n: int, projected: Expr, rotation: tuple[Var, Var]) -> Expr:
        """Return queries and keys rotated by their positions, and values unchanged."""
        config, names = self.config, self.config.names
        heads, groups = config.num_heads, config.num_kv_heads
        projected = self.let(f"projected_{n}", projected)
        prefix = names.layer.format(n)
        values = _slice_axis(projected, heads + groups, heads + 2 * groups, 1)
        if names.query_norm:
            query = self.parts.norm(
                _slice_axis(projected, 0, heads, 1), prefix + names.query_norm, config.head_dim
            )
            key = self.parts.norm(
                _slice_axis(projected, heads, heads + groups, 1),
                prefix + names.key_norm,
                config.head_dim,
            )
            both: Expr = self.let(f"both_{n}", op.concatenate([query, key], axis=1))
        else:
            both = _slice_axis(projected, 0, heads + groups, 1)
        rope = config.ropes[config.rope_index_by_layer[n]]
        return op.concatenate(
            [_rotary_embedding(both, rope, rotation, config.head_dim), values], axis=1
        )

    def _mlp(self, prefix: str, x: Expr) -> Expr:
        """Return the feed-forward block's output."""
        config, names = self.config, self.config.names
        has_bias = "mlp" in config.biases
        act = ACTIVATION_FUNCTIONS[config.activation]
        rows = config.intermediate_size * (2 if config.has_gated_mlp else 1)
        up = self.parts.linear(
            x, [prefix + name for name in names.up], rows, config.hidden_size, has_bias
        )
        if config.has_gated_mlp:
            both = self.let("up", up)
            gate = _slice_axis(both, 0, config.intermediate_size, 1)
            inner: Expr = op.multiply(
                act(gate), _slice_axis(both, config.intermediate_size, rows, 1)
            )
        else:
            inner = act(up)
        return self.parts.linear(
            inner, [prefix + names.down], config.hidden_size, config.intermediate_size, has_bias
        )


def _rotary_embedding(x: Expr, rope: RopeParameters, rotation: tuple[Var, Var], depth: int) -> Expr:
    """Apply rotary embedding to [n, heads, depth]."""
    cosines, sines = rotation
    pairs = len(rope.frequencies)
    turning = 2 * pairs
    unrotated = [_slice_axis(x, turning, depth, 2)] if turning < depth else []
    halves = [_slice_axis(x, 0, pairs, 2), _slice_axis(x, pairs, turning, 2)]
    # Pairs are neighbours (GPT-J) instead of the two halves of a head (GPT-NeoX).
    if rope.interleaved:
        halves = [op.strided_slice(x, [at], [turning], [2], axes=[2]) for at in (0, 1)]
    first, second = halves
    first_rotated = op.subtract(op.multiply(first, cosines), op.multiply(second, sines))
    right = op.add(op.multiply(second, cosines), op.multiply(first, sines))
    if rope.interleaved:
        both: Expr = op.reshape(op.stack([first_rotated, right], axis=3), (0, 0, turning))
        return op.concatenate([both, *unrotated], axis=2) if unrotated else both
    return op.concatenate([first_rotated, right, *unrotated], axis=2)


def _slice_axis(x: Expr, begin: int, end: int, axis: int) -> Expr:
    return op.strided_slice(x, [begin], [end], axes=[axis])


def _to_dim(value: object) -> PrimExpr:
    """Convert a number to a dimension."""
    return value if isinstance(value, PrimExpr) else dim(int(str(value)))


def decoder_module(
    checkpoint: Checkpoint, config: DecoderConfig, layout: CacheLayout, name: str = "forward"
) -> IRModule:
    """Return the module, with the entry `forward_step`, or another name's. Raises ImportModelError
    for a tensor that is missing from the checkpoint or has another shape; the logger "ekiden"
    lists tensors the decoder does not use.
    """
    forward, entry = GlobalVar(name), f"{name}_step"
    builder = _ForwardBuilder(checkpoint, config, layout)
    functions: dict[GlobalVar | str, BaseFunc] = {forward: builder.build()}
    # Files of tied models often hold a copy of the embedding as the head.
    heads = config.names.head if config.ties_embeddings else ()
    if unread := [name for name in builder.parts.unused_tensors if name not in heads]:
        more = (
            f" and {len(unread) - MAX_LISTED_NAMES} more" if len(unread) > MAX_LISTED_NAMES else ""
        )
        _LOG.warning(
            "checkpoint: a decoder %s has no place for %s%s",
            config.architecture, ", ".join(map(repr, unread[:MAX_LISTED_NAMES])), more,
        )  # fmt: skip
    functions[GlobalVar(entry)] = _entry_function(forward, config, layout)
    x = Var("x", TensorType((), "int32"))
    functions[GlobalVar("main")] = Function((x,), x, None)
    return IRModule(functions).with_attr(ENTRY_FUNCTIONS_ATTR, (entry,))


def _entry_function(forward: GlobalVar, config: DecoderConfig, layout: CacheLayout) -> Function:
    shape = cache_shape(config, layout, AnyDim())
    kind = TensorType(tuple(map(_to_dim, shape)), layout.dtype)
    state, tokens = Var("state", RefType(kind)), TokenVariables.create()
    # The reference is emptied meanwhile, so that the cache has one owner and is updated in place.
    none = const(np.zeros([0, *(int(str(d)) for d in shape[1:])], layout.dtype))
    cache, both = Var("cache"), Var("both")
    body: Expr = TupleGetItem(both, 0)
    body = Let(Var("filled", TupleType(())), RefWrite(state, TupleGetItem(both, 1)), body)
    body = Let(both, forward(cache, *tokens.parameters), body)
    body = Let(Var("emptied", TupleType(())), RefWrite(state, none), body)
    body = Let(cache, RefRead(state), body)
    return Function((state, *tokens.parameters), body, None)
