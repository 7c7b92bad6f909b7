"""Relay module of a decoder: all of its tokens, of any number of sequences, over a cache.

    def @forward(%cache, %ids, %sequences, %positions, %tables, %picks) -> (logits, %cache)

The tokens of a call are a list [n]: token i is `ids[i]`, the one at `positions[i]` of the sequence
whose pages are the row `sequences[i]` of `tables`. A prompt is many tokens of one sequence, a step
of sixteen answers one token of each; both may stand in one call. `picks` says of which tokens the
logits are wanted. Keys and values are written into the cache before they are read, so that tokens
see each other by their positions alone.

    def @forward_step(%state: ref(cache), ...) -> logits

is its face outside: the cache lies in a reference, which the program empties before it changes the
cache and fills again, so that nobody else refers to it and it is changed where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.prim import AnyDim, PrimExpr, SizeVar
from ekiden.ir.prim import const as dim
from ekiden.ir.type import TensorType, TupleType
from ekiden.kernels.attention.kv_layout import CachePlane
from ekiden.llm.cache_layout import CacheLayout
from ekiden.llm.checkpoint import Checkpoint, Weight
from ekiden.llm.decoder_config import ALIBI_DEPTH, DecoderConfig, alibi_slopes
from ekiden.llm.decoder_layers import (
    ACTIVATION_FUNCTIONS,
    DecoderLayers,
    embedding_lookup,
    gated_product,
    matmul_weight,
    slice_axis,
)
from ekiden.llm.experts import mixture_of_experts
from ekiden.llm.latent_attention import latent_projections
from ekiden.llm.multi_lora import AdapterProducts, AdapterSet
from ekiden.llm.rope import RopeParameters
from ekiden.llm.rwkv import rwkv_functions, rwkv_layer, rwkv_state_width
from ekiden.llm.state_space import StateInputs, recurrences, state_space_layer, state_width
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
from ekiden.runtime.errors import ImportModelError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["FORWARD_ENTRY", "CacheLayout", "cache_shape", "decoder_module", "sequence_inputs"]

FORWARD_ENTRY = "forward_step"
POSITION_RADIX = 256
"""Radix of the two digits of a position in keys."""
MAX_LISTED_NAMES = 3
"""Names of tensors in a message."""


def cache_shape(config: DecoderConfig, layout: CacheLayout, blocks: object) -> tuple[object, ...]:
    """Return the cache shape [blocks, layers, keys and values, heads, one block of pages]; of a
    model with states [texts, layers, numbers of a state].
    """
    if config.has_states:
        return (blocks, config.layers, _state_width(config))
    plane = CachePlane(layout.page, config.cache_depth, layout.dtype)
    return (blocks, config.layers, 2, config.groups, layout.row * plane.size)


def _state_width(config: DecoderConfig) -> int:
    """Return the numbers of a layer's state."""
    if config.state_space:
        return state_width(config.state_space)
    return rwkv_state_width(config)


def _state_functions(config: DecoderConfig) -> dict[GlobalVar, BaseFunc]:
    """Return the loops over tokens that layers with states call."""
    if config.state_space:
        return recurrences(config)
    return rwkv_functions(config) if config.rwkv else {}


@dataclass(frozen=True, slots=True)
class TokenVariables:
    """Input variables of a forward call, which describe its tokens: token ids, sequences,
    positions, page tables, what else sequences have (`sequence_inputs`): the numbers of their
    adapters and of their tokens, and the rows whose logits are wanted.
    """

    ids: Var
    sequences: Var
    positions: Var
    tables: Var
    picks: Var
    by_sequence: Mapping[str, Var]
    """By the names of `sequence_inputs`."""

    @staticmethod
    def create(sequence_inputs: Sequence[str]) -> TokenVariables:
        """Create new variables: n tokens, tables of b sequences with m pages, k picks."""
        n, b, m, k = (SizeVar(name) for name in ("n", "b", "m", "k"))
        ids, sequences, positions, tables, picks = (
            Var(name, TensorType(shape, "int32"))
            for name, shape in (
                ("ids", (n,)), ("sequences", (n,)), ("positions", (n,)), ("tables", (b, m)),
                ("picks", (k,)),
            )
        )  # fmt: skip
        by_sequence = {name: Var(name, TensorType((b,), "int32")) for name in sequence_inputs}
        return TokenVariables(ids, sequences, positions, tables, picks, by_sequence)

    @property
    def as_parameters(self) -> tuple[Var, ...]:
        """Return the variables as function parameters."""
        by_sequence = self.by_sequence.values()
        return (self.ids, self.sequences, self.positions, self.tables, *by_sequence, self.picks)


def sequence_inputs(has_adapters: bool, *configs: DecoderConfig | None) -> tuple[str, ...]:
    """Return the names of a program's inputs int32 [sequences] between page tables and picks: the
    numbers of adapters, and the tokens that each sequence has, where the rope of one of its
    decoders depends on them.
    """
    has_switch = any(config is not None and config.switch_tokens for config in configs)
    return (*(("adapters",) if has_adapters else ()), *(("totals",) if has_switch else ()))


class _ForwardBuilder:
    """Builder of the body of `forward`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: DecoderConfig,
        layout: CacheLayout,
        adapters: AdapterSet | None,
        inputs: Sequence[str],
    ) -> None:
        self.config, self.layout = config, layout
        self.bindings: list[tuple[Var, Expr]] = []
        self.tokens = TokenVariables.create(inputs)
        products = None
        if adapters is not None:
            by_token = op.take(self.tokens.by_sequence["adapters"], self.tokens.sequences, axis=0)
            products = AdapterProducts(adapters, self.let("token_adapters", by_token), self.let)
        self.parts = DecoderLayers(checkpoint, config, products)
        self.functions = _state_functions(config)
        """Those that the layers call."""

    def let(self, name: str, value: Expr) -> Var:
        """Bind a value to a new variable, in order."""
        var = Var(name)
        self.bindings.append((var, value))
        return var

    def build(self, has_head: bool = True) -> Function:
        """Return the forward function, whose result is logits or the hidden states before
        the head.
        """
        config, names = self.config, self.config.names
        pages: PrimExpr = SizeVar("p")
        shape = cache_shape(config, self.layout, pages)
        cache = Var("cache", TensorType(tuple(map(_to_dim, shape)), self.layout.dtype))
        tokens = self.tokens
        table = self.parts.embedding_table(names.embedding)
        x: Expr = embedding_lookup(table, tokens.ids)
        x = _scaled(x, config.embedding_scale)
        if names.positions:
            offset = config.position_offset
            rows = (config.max_positions + offset, config.hidden)
            learned = self.parts.read_weight(names.positions, rows)
            positions = (
                op.add(tokens.positions, const(np.int32(offset))) if offset else tokens.positions
            )
            x = op.add(x, embedding_lookup(learned, positions))
        if names.embedding_norm:
            x = self.parts.norm(x, names.embedding_norm)
        x = self.let("embedded", x)
        rotations = [self._rotary_tables(rope, tokens) for rope in config.ropes]
        state: Var = cache
        state_inputs = None
        if config.has_states:
            state_inputs = StateInputs.create(
                tokens.sequences, tokens.positions, tokens.tables, self.functions, self.let
            )
        for n, rope_number in enumerate(config.rope_of):
            rotation = None if rope_number is None else rotations[rope_number]
            if state_inputs is not None:
                x, state = self._layer_with_state(n, x, state, state_inputs)
                continue
            x, state = self._decoder_layer(n, x, state, tokens, rotation)
        # Only the picked positions reach the head, the largest product of a prefill.
        x = self.parts.norm(op.take(x, tokens.picks, axis=0), names.norm)
        if has_head:
            x = self._head(x, table)
        body: Expr = Tuple((self.let("logits", x), state))
        for variable, value in reversed(self.bindings):
            body = Let(variable, value, body)
        return Function((cache, *tokens.as_parameters), body, None)

    def _head(self, x: Expr, table: Weight) -> Expr:
        """Return the logits of hidden states [k, hidden]."""
        config, names = self.config, self.config.names
        has = self.parts.has_tensor
        head = next((head_name for head_name in names.head if has(head_name)), names.head[0])
        weight = table if config.tied else self.parts.embedding_table(head)
        logits = matmul_weight(x, weight)
        if "head" in config.biases:
            bias = self.parts.read_vector(f"{head.removesuffix('.weight')}.bias", config.vocabulary)
            logits = op.add(logits, const(bias))
        logits = _scaled(logits, config.logit_scale)
        if cap := config.logit_softcap:
            bent = op.tanh(op.multiply(logits, const(np.float32(1 / cap))))
            logits = op.multiply(bent, const(np.float32(cap)))
        return logits

    def _rotary_tables(self, rope: RopeParameters, tokens: TokenVariables) -> tuple[Var, Var]:
        """Return the cosines and sines [n, 1, pairs] of the positions."""
        position_column = op.reshape(op.cast(tokens.positions, "float32"), (-1, 1, 1))
        frequencies: Expr = const(np.array(rope.frequencies, np.float32))
        if rope.long_frequencies:
            totals = op.take(tokens.by_sequence["totals"], tokens.sequences, axis=0)
            is_long = op.greater(totals, const(np.int32(rope.switch_tokens)))
            long_frequencies = const(np.array(rope.long_frequencies, np.float32))
            frequencies = op.where(op.reshape(is_long, (-1, 1, 1)), long_frequencies, frequencies)
        angles = op.multiply(position_column, frequencies)
        factor = const(np.float32(rope.factor))
        cosines, sines = op.cos(angles), op.sin(angles)
        if rope.factor != 1.0:
            cosines, sines = op.multiply(cosines, factor), op.multiply(sines, factor)
        return self.let("cosines", cosines), self.let("sines", sines)

    def _decoder_layer(
        self,
        n: int,
        x: Var,
        cache: Var,
        tokens: TokenVariables,
        rotation: tuple[Var, Var] | None,
    ) -> tuple[Var, Var]:
        """Emit one decoder layer: the hidden state and the cache."""
        config, tensors, names = self.config, self.parts, self.config.names
        prefix = names.layer.format(n)
        normed: Expr = x
        if names.before_attention:
            normed = self.let(f"normed_{n}", tensors.norm(x, prefix + names.before_attention))
        attended, cache = self._attention(n, normed, cache, tokens, rotation)
        if names.after_attention:
            attended = tensors.norm(attended, prefix + names.after_attention)
        attended = _scaled(attended, config.residual_scale)
        middle = self.let(f"attended_{n}", op.add(x, attended))
        # GPT-NeoX's parallel residual: attention and MLP read the same input.
        mlp_input: Expr = x if config.parallel else middle
        if names.before_mlp:
            mlp_input = tensors.norm(mlp_input, prefix + names.before_mlp)
        elif config.parallel:
            # GPT-J's: one norm for both.
            mlp_input = normed
        if config.experts and config.experts.layers[n]:
            mlp_input = self.let(f"mlp_input_{n}", mlp_input)
            mixed = mixture_of_experts(mlp_input, prefix, config, tensors, self.let)
        else:
            mixed = self._mlp(prefix, mlp_input)
        if names.after_mlp:
            mixed = tensors.norm(mixed, prefix + names.after_mlp)
        mixed = _scaled(mixed, config.residual_scale)
        return self.let(f"x_{n}", op.add(middle, mixed)), cache

    def _layer_with_state(self, n: int, x: Var, cache: Var, inputs: StateInputs) -> tuple[Var, Var]:
        """Emit one layer without attention: the hidden state and the cache."""
        config, names = self.config, self.config.names
        if config.rwkv:
            return rwkv_layer(n, x, cache, inputs, config, self.parts, self.let)
        normed = self.parts.norm(x, names.layer.format(n) + names.before_attention)
        normed = self.let(f"normed_{n}", normed)
        added, cache = state_space_layer(n, normed, cache, inputs, config, self.parts, self.let)
        return self.let(f"x_{n}", op.add(x, added)), cache

    def _attention(
        self,
        n: int,
        normed: Expr,
        cache: Var,
        tokens: TokenVariables,
        rotation: tuple[Var, Var] | None,
    ) -> tuple[Expr, Var]:
        """Return the attention block's output and the updated cache."""
        config, tensors, names = self.config, self.parts, self.config.names
        prefix = names.layer.format(n)
        if config.latent:
            assert rotation is not None
            rotated_heads = latent_projections(
                normed, prefix + "self_attn.", config, tensors, self.let,
                lambda part: _rotary_embedding(
                    part, config.ropes[0], rotation, 2 * len(config.ropes[0].frequencies)
                ),
            )  # fmt: skip
        else:
            rotated_heads = self._rotated_heads(n, normed, tokens, rotation)
        attention_inputs = self.let(f"turned_{n}", rotated_heads)
        layer = const(np.array([n], np.int32))
        cache_position = (layer, tokens.tables, tokens.sequences, tokens.positions)
        page = self.layout.page
        written = self.let(
            f"cache_{n}",
            op.nn.contrib_write_pages(cache, attention_inputs, *cache_position, page=page),
        )
        attended = self._attend(n, attention_inputs, written, cache_position)
        values: Expr = self.let(f"heads_{n}", attended)
        if config.cache_depth > config.value_depth:
            values = slice_axis(values, 0, config.value_depth, 2)
        width = config.heads * config.value_depth
        flat = op.reshape(values, (-1, width))
        out = tensors.linear(
            flat, [prefix + names.out], config.hidden, width, "out" in config.biases
        )
        return out, written

    def _attend(
        self, n: int, attention_inputs: Var, cache: Var, cache_position: Sequence[Expr]
    ) -> Expr:
        """Return the attention of a layer's heads [n, heads, depth of the cache]."""
        config, names = self.config, self.config.names
        page, scale, softcap = self.layout.page, config.score_scale, config.score_softcap
        window = config.windows[n]
        layer, tables, sequences, positions = cache_position
        if not names.sinks:
            return op.nn.contrib_paged_attention(
                attention_inputs, cache, layer, tables, sequences, positions, page, scale, softcap,
                window,
            )  # fmt: skip
        sinks = self.parts.read_vector(names.layer.format(n) + names.sinks, config.heads)
        return op.nn.contrib_paged_attention_with_sinks(
            attention_inputs, cache, layer, tables, sequences, positions, const(sinks), page, scale,
            softcap, window,
        )  # fmt: skip

    def _rotated_heads(
        self, n: int, normed: Expr, tokens: TokenVariables, rotation: tuple[Var, Var] | None
    ) -> Expr:
        """Return queries, keys and values [n, heads + 2 * groups, depth of the cache]."""
        config, tensors, names = self.config, self.parts, self.config.names
        prefix = names.layer.format(n)
        total = config.heads + 2 * config.groups
        projected = tensors.linear(
            normed, [prefix + name for name in names.attention], total * config.depth,
            config.hidden, "attention" in config.biases, config.by_group,
        )  # fmt: skip
        if config.clip:
            projected = op.clip(projected, -config.clip, config.clip)
        heads = op.reshape(projected, (-1, total, config.depth))
        rotated_heads = self._apply_rotary(n, heads, rotation)
        if config.alibi:
            rotated_heads = self._with_distance_biases(rotated_heads, tokens.positions)
        return rotated_heads

    def _apply_rotary(self, n: int, projected: Expr, rotation: tuple[Var, Var] | None) -> Expr:
        """Return queries and keys rotated by their positions, and values unchanged."""
        config, names = self.config, self.config.names
        heads, groups = config.heads, config.groups
        if rotation is None and not names.query_norm:
            return projected
        projected = self.let(f"projected_{n}", projected)
        prefix = names.layer.format(n)
        values = slice_axis(projected, heads + groups, heads + 2 * groups, 1)
        if names.query_norm:
            query = self._head_norm(
                slice_axis(projected, 0, heads, 1), prefix + names.query_norm, heads
            )
            key = self._head_norm(
                slice_axis(projected, heads, heads + groups, 1), prefix + names.key_norm, groups
            )
            both: Expr = self.let(f"both_{n}", op.concatenate([query, key], axis=1))
        else:
            both = slice_axis(projected, 0, heads + groups, 1)
        if rotation is not None:
            rope = config.ropes[config.rope_of[n] or 0]
            both = _rotary_embedding(both, rope, rotation, config.depth)
        return op.concatenate([both, values], axis=1)

    def _with_distance_biases(self, projected: Expr, positions: Var) -> Expr:
        """Append ALIBI_DEPTH elements to each query, key and value, which add slope * key position
        to the attention score (ALiBi).
        """
        config = self.config
        heads, keys = config.heads, slice(config.heads, config.heads + config.groups)
        slopes = np.array(alibi_slopes(heads), np.float32) / np.float32(config.score_scale)
        shape = (1, heads + 2 * config.groups, ALIBI_DEPTH)
        queries, high, low = (np.zeros(shape, np.float32) for _ in range(3))
        # A position is two digits, since float16 holds integers up to 2,048 alone.
        queries[0, :heads, 0], queries[0, :heads, 1] = slopes * POSITION_RADIX, slopes
        high[0, keys, 0] = low[0, keys, 1] = 1
        column = op.reshape(positions, (-1, 1, 1))
        radix = const(np.int32(POSITION_RADIX))
        further: Expr = const(queries)
        for digit, place in ((op.floor_divide, high), (op.floor_mod, low)):
            value = op.cast(digit(column, radix), "float32")
            further = op.add(further, op.multiply(value, const(place)))
        return op.concatenate([projected, further], axis=2)

    def _head_norm(self, x: Expr, name: str, heads: int) -> Expr:
        """Return queries or keys [n, heads, depth] normalised per head (QK norm)."""
        depth = self.config.depth
        if self.config.qk_norm == "row":
            flat = op.reshape(x, (-1, heads * depth))
            return op.reshape(self.parts.norm(flat, name, (heads * depth,)), (-1, heads, depth))
        shape = (heads, depth) if self.config.qk_norm == "heads" else (depth,)
        return self.parts.norm(x, name, shape)

    def _mlp(self, prefix: str, x: Expr) -> Expr:
        """Return the feed-forward block's output."""
        config, names = self.config, self.config.names
        has_bias = "mlp" in config.biases
        act = ACTIVATION_FUNCTIONS[config.activation]
        rows = config.inner * (2 if config.gated else 1)
        up = self.parts.linear(
            x, [prefix + name for name in names.up], rows, config.hidden, has_bias
        )
        if config.gated:
            inner: Expr = gated_product(self.let("up", up), act, config.inner)
        else:
            inner = act(up)
        return self.parts.linear(
            inner, [prefix + names.down], config.hidden, config.inner, has_bias
        )


def _rotary_embedding(x: Expr, rope: RopeParameters, rotation: tuple[Var, Var], depth: int) -> Expr:
    """Apply rotary embedding to [n, heads, depth]."""
    cosines, sines = rotation
    pairs = len(rope.frequencies)
    rotated_depth = 2 * pairs
    unrotated = [slice_axis(x, rotated_depth, depth, 2)] if rotated_depth < depth else []
    halves = [slice_axis(x, 0, pairs, 2), slice_axis(x, pairs, rotated_depth, 2)]
    # Pairs are neighbours (GPT-J) instead of the two halves of a head (GPT-NeoX).
    if rope.interleaved:
        halves = [
            op.strided_slice(x, [position], [rotated_depth], [2], axes=[2]) for position in (0, 1)
        ]
    first, second = halves
    first_rotated = op.subtract(op.multiply(first, cosines), op.multiply(second, sines))
    right = op.add(op.multiply(second, cosines), op.multiply(first, sines))
    if rope.interleaved:
        both: Expr = op.reshape(op.stack([first_rotated, right], axis=3), (0, 0, rotated_depth))
        return op.concatenate([both, *unrotated], axis=2) if unrotated else both
    return op.concatenate([first_rotated, right, *unrotated], axis=2)


def _scaled(x: Expr, factor: float) -> Expr:
    return x if factor == 1.0 else op.multiply(x, const(np.float32(factor)))


def _to_dim(value: object) -> PrimExpr:
    """Convert a number to a dimension."""
    return value if isinstance(value, PrimExpr) else dim(int(str(value)))


def decoder_module(
    checkpoint: Checkpoint,
    config: DecoderConfig,
    layout: CacheLayout,
    name: str = "forward",
    has_head: bool = True,
    adapters: AdapterSet | None = None,
    inputs: Sequence[str] | None = None,
) -> IRModule:
    """Return the Relay module of a decoder.

    Args:
        checkpoint: The tensors.
        config: The configuration.
        layout: That of the cache.
        name: Of the function; the entry is this with "_step".
        has_head: Whether it returns logits, else hidden states.
        adapters: Those of which each sequence of a call has one or none.
        inputs: Its `sequence_inputs`, where it shares those of other decoders.

    Returns:
        The module.

    Raises:
        ImportModelError: A tensor is missing from the checkpoint, has another shape, or has no
            place in the decoder.
        UnsupportedError: An adapter changes what is no product.
    """
    forward, entry = GlobalVar(name), f"{name}_step"
    if inputs is None:
        inputs = sequence_inputs(adapters is not None, config)
    builder = _ForwardBuilder(checkpoint, config, layout, adapters, inputs)
    functions: dict[GlobalVar | str, BaseFunc] = {forward: builder.build(has_head)}
    functions.update(builder.functions.items())
    # Files of tied models often hold a copy of the embedding as the head.
    heads = config.names.head if config.tied or not has_head else ()
    if unread := [name for name in builder.parts.unused_tensors if name not in heads]:
        more = (
            f" and {len(unread) - MAX_LISTED_NAMES} more" if len(unread) > MAX_LISTED_NAMES else ""
        )
        listed = ", ".join(map(repr, unread[:MAX_LISTED_NAMES]))
        raise ImportModelError(
            f"checkpoint: a decoder {config.architecture} has no place for {listed}{more}"
        )
    if adapters is not None:
        adapters.check_unused()
    functions[GlobalVar(entry)] = _entry_function(forward, config, layout, inputs)
    x = Var("x", TensorType((), "int32"))
    functions[GlobalVar("main")] = Function((x,), x, None)
    return IRModule(functions).with_attr(ENTRY_FUNCTIONS_ATTR, (entry,))


def _entry_function(
    forward: GlobalVar, config: DecoderConfig, layout: CacheLayout, inputs: Sequence[str]
) -> Function:
    """Return the face of `forward` for programs outside; `inputs` are its `sequence_inputs`."""
    shape = cache_shape(config, layout, AnyDim())
    kind = TensorType(tuple(map(_to_dim, shape)), layout.dtype)
    state, tokens = Var("state", RefType(kind)), TokenVariables.create(inputs)
    # The reference is emptied meanwhile, so that the cache has one owner and is updated in place.
    none = const(np.zeros([0, *(int(str(d)) for d in shape[1:])], layout.dtype))
    cache, both = Var("cache"), Var("both")
    body: Expr = TupleGetItem(both, 0)
    body = Let(Var("filled", TupleType(())), RefWrite(state, TupleGetItem(both, 1)), body)
    body = Let(both, forward(cache, *tokens.as_parameters), body)
    body = Let(Var("emptied", TupleType(())), RefWrite(state, none), body)
    body = Let(cache, RefRead(state), body)
    return Function((state, *tokens.as_parameters), body, None)
