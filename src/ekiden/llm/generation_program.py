"""Relay program of generation: sampling and the decode loop around a decoder.

entry          what it does
forward_step   logits of some tokens of a call (decoder.py)
prefill        tokens go through the decoder, and after some of them the next one is chosen, by
               logits to which the caller may add; the decoder's own are returned too
decode         for a number of steps: the last token of every text goes through the decoder, the
               next one is chosen and put behind it; it ends before if all texts have ended
speculate      where there is a smaller decoder: for a number of rounds, that one proposes tokens,
               all of them go through the decoder at once, and each is kept as long as it is the
               one that would have been chosen (Leviathan and others, "Fast inference from
               transformers via speculative decoding", ICML 2023)
draft_step     forward_step of the smaller decoder

A text is a row of `history` [texts, width], of which the first `lengths` tokens are there. All but
the last of them are in the cache.

What is drawn for a place depends on the seed of its text and the place alone. So proposals are
drawn with the same numbers as the tokens that they are compared with, and a text is the same with
them or without.

Where logits are no numbers the token is -1, which ends a text as the tokens of `ends` do. The rows
of others beside it go on; what is made of its own, whose embedding is that of some token, nobody
reads.
"""

from __future__ import annotations

import re

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.llm.checkpoint import Checkpoint
from ekiden.llm.decoder import (
    FORWARD_ENTRY,
    CacheLayout,
    cache_shape,
    decoder_module,
    sequence_inputs,
)
from ekiden.llm.decoder_config import DecoderConfig
from ekiden.llm.multi_lora import AdapterSet
from ekiden.relay.parser import parse
from ekiden.relay.transform.language.remove_unused_functions import ENTRY_FUNCTIONS_ATTR
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "DECODE",
    "DRAFT",
    "PREFILL",
    "SETTINGS",
    "SPECULATE",
    "DraftModel",
    "build_generation_program",
]

PREFILL, DECODE, SPECULATE, DRAFT = "prefill", "decode", "speculate", "draft_step"
SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Columns of the settings of a text."""

# Weights are exp of logits minus their maximum, so at most 1: exp cannot overflow. The inverse of a
# temperature of 0 is 1e30 instead of inf, since the maximum's 0 * inf would be NaN.
SAMPLING_SOURCE = """
def @choose(%logits: Tensor[(k, VOCABULARY), float32], %history: Tensor[(b, w), int32],
            %rows: Tensor[(k), int32], %lengths: Tensor[(k), int32],
            %settings: Tensor[(b, 5), float32], %seeds: Tensor[(b), int64],
            %moves: Tensor[(s, VOCABULARY), int32], %states: Tensor[(k), int32], %greedy: bool)
    -> Tensor[(k), int32] {
  if (%greedy) {
    let %best = argmax(%logits, axis=[1], keepdims=True);
    let %is_nan = isnan(gather(%logits, %best, axis=1));
    reshape(where(%is_nan, -1, cast(%best, dtype="int32")), newshape=[-1])
  } else {
    let %row_settings = take(%settings, %rows, axis=0);
    let %penalties = reshape(strided_slice(%row_settings, begin=[4], end=[5], axes=[1]),
                             newshape=[-1]);
    let %constrained = random.contrib_constrain(%logits, %history, %rows, %lengths, %penalties,
                                            %moves, %states);
    let %temperature = strided_slice(%row_settings, begin=[0], end=[1], axes=[1]);
    let %inverse_temperature = minimum(divide(1f, %temperature), 1e30f);
    let %shifted_logits = subtract(%constrained, max(%constrained, axis=[1], keepdims=True));
    let %weights = exp(multiply(%shifted_logits, %inverse_temperature));
    let %truncation = strided_slice(%row_settings, begin=[0], end=[4], axes=[1]);
    random.contrib_draw(%weights, %truncation, take(%seeds, %rows, axis=0), %lengths)
  }
}
"""
DECODE_LOOP_SOURCE = """
def @loop(%i: int32, %steps: int32, %cache: CACHE, %history: Tensor[(b, w), int32],
          %lengths: Tensor[(b), int32], %states: Tensor[(b), int32], %live: Tensor[(b), bool],
          %rows: Tensor[(b), int32], %tables: Tensor[(b, m), int32],
          %settings: Tensor[(b, 5), float32], %seeds: Tensor[(b), int64],
          %moves: Tensor[(s, VOCABULARY), int32], %ends: Tensor[(e), int32], %greedy: bool)
    -> (CACHE, Tensor[(b, w), int32], Tensor[(b), int32], int32) {
  if (logical_and(less(%i, %steps), any(%live))) {
    let %positions = subtract(%lengths, 1);
    let %ids = gather_nd(%history, stack((%rows, %positions), axis=0));
    let %forwarded = @forward(%cache, %ids, %rows, %positions, %tables, %rows);
    let %logits = %forwarded.0;
    let %next = %forwarded.1;
    let %tokens = @choose(%logits, %history, %rows, %lengths, %settings, %seeds, %moves, %states,
                          %greedy);
    let %extended = scatter_nd(%history, stack((%rows, %lengths), axis=0), %tokens, mode="update");
    let %next_states = gather_nd(%moves, stack((maximum(%states, 0), %tokens), axis=0));
    let %ended = any(equal(expand_dims(%tokens, axis=1), %ends), axis=[1]);
    @loop(add(%i, 1), %steps, %next, %extended, add(%lengths, 1),
          where(less(%states, 0), %states, %next_states), logical_and(%live, logical_not(%ended)),
          %rows, %tables, %settings, %seeds, %moves, %ends, %greedy)
  } else {
    (%cache, %history, %states, %i)
  }
}
"""
# The state gives up the cache for the time of a call (`%emptied`): with one reference to it left,
# the scatters of new keys and values write its pages in place; else each step would copy the cache.
ENTRY_POINTS_SOURCE = """
def @prefill(%state: ref(ANY), %ids: Tensor[(n), int32], %sequences: Tensor[(n), int32],
             %positions: Tensor[(n), int32], %tables: Tensor[(b, m), int32],
             %picks: Tensor[(k), int32], %history: Tensor[(b, w), int32],
             %rows: Tensor[(k), int32], %lengths: Tensor[(k), int32],
             %settings: Tensor[(b, 5), float32], %seeds: Tensor[(b), int64],
             %moves: Tensor[(s, VOCABULARY), int32], %states: Tensor[(k), int32], %greedy: bool,
             %places: Tensor[(2, c), int32], %changes: Tensor[(c), float32], %changed: bool)
    -> (Tensor[(k), int32], Tensor[(k, VOCABULARY), float32]) {
  let %cache = ref_read(%state);
  let %emptied = ref_write(%state, zeros(shape=NONE, dtype="DTYPE"));
  let %forwarded = @forward(%cache, %ids, %sequences, %positions, %tables, %picks);
  let %filled = ref_write(%state, %forwarded.1);
  let %logits = %forwarded.0;
  let %edited = if (%changed) {
    scatter_nd(%logits, %places, %changes, mode="add")
  } else {
    %logits
  };
  (@choose(%edited, %history, %rows, %lengths, %settings, %seeds, %moves, %states, %greedy),
   %logits)
}

def @decode(%state: ref(ANY), %steps: int32, %history: Tensor[(b, w), int32],
            %lengths: Tensor[(b), int32], %states: Tensor[(b), int32],
            %rows: Tensor[(b), int32], %tables: Tensor[(b, m), int32],
            %settings: Tensor[(b, 5), float32], %seeds: Tensor[(b), int64],
            %moves: Tensor[(s, VOCABULARY), int32], %ends: Tensor[(e), int32], %greedy: bool)
    -> (Tensor[(b, w), int32], Tensor[(b), int32], int32) {
  let %cache = ref_read(%state);
  let %emptied = ref_write(%state, zeros(shape=NONE, dtype="DTYPE"));
  let %live = greater_equal(%rows, 0);
  let %decoded = @loop(0, %steps, %cache, %history, %lengths, %states, %live, %rows, %tables,
                    %settings, %seeds, %moves, %ends, %greedy);
  let %filled = ref_write(%state, %decoded.0);
  (%decoded.1, %decoded.2, %decoded.3)
}
"""

# A round drafts `count` tokens, scores all of them by one call of the large model, and accepts the
# longest prefix on which both agree, counted by cumprod of the matches; one more token is accepted,
# since the large model has chosen it already. Leviathan and others, "Fast Inference from
# Transformers via Speculative Decoding" (2023), with equal draws instead of rejection sampling.
SPECULATION_SOURCE = """
def @propose(%i: int32, %count: int32, %cache: DRAFTED, %ids: Tensor[(n), int32],
             %owners: Tensor[(n), int32], %places: Tensor[(n), int32],
             %picks: Tensor[(b), int32], %history: Tensor[(b, w), int32],
             %lengths: Tensor[(b), int32], %rows: Tensor[(b), int32],
             %tables: Tensor[(b, m), int32], %settings: Tensor[(b, 5), float32],
             %seeds: Tensor[(b), int64], %moves: Tensor[(s, VOCABULARY), int32],
             %states: Tensor[(b), int32], %greedy: bool)
    -> (DRAFTED, Tensor[(b, w), int32]) {
  if (less(%i, %count)) {
    let %forwarded = @draft(%cache, %ids, %owners, %places, %tables, %picks);
    let %tokens = @choose(%forwarded.0, %history, %rows, %lengths, %settings, %seeds, %moves,
                          %states, %greedy);
    let %extended = scatter_nd(%history, stack((%rows, %lengths), axis=0), %tokens, mode="update");
    @propose(add(%i, 1), %count, %forwarded.1, %tokens, %rows, %lengths, %rows, %extended,
             add(%lengths, 1), %rows, %tables, %settings, %seeds, %moves, %states, %greedy)
  } else {
    (%cache, %history)
  }
}

def @rounds(%i: int32, %steps: int32, %cache: CACHE, %drafts: DRAFTED,
            %history: Tensor[(b, w), int32], %lengths: Tensor[(b), int32],
            %live: Tensor[(b), bool], %rows: Tensor[(b), int32], %second: Tensor[(b), int32],
            %count: int32, %offsets: Tensor[(c), int32], %tables: Tensor[(b, m), int32],
            %settings: Tensor[(b, 5), float32], %seeds: Tensor[(b), int64],
            %moves: Tensor[(s, VOCABULARY), int32], %free: Tensor[(b), int32],
            %ends: Tensor[(e), int32], %greedy: bool)
    -> (CACHE, DRAFTED, Tensor[(b, w), int32], Tensor[(b), int32]) {
  if (logical_and(less(%i, %steps), any(%live))) {
    let %last = subtract(%lengths, 1);
    let %paired_rows = concatenate((%rows, %rows), axis=0);
    let %pair_positions = concatenate((maximum(subtract(%lengths, 2), 0), %last), axis=0);
    let %pair_ids = gather_nd(%history, stack((%paired_rows, %pair_positions), axis=0));
    let %proposed = @propose(0, %count, %drafts, %pair_ids, %paired_rows, %pair_positions, %second,
                             %history, %lengths, %rows, %tables, %settings, %seeds, %moves,
                             %free, %greedy);
    let %draft_history = %proposed.1;
    let %position_grid = add(expand_dims(%last, axis=1), expand_dims(%offsets, axis=0));
    let %zero_grid = zeros_like(%position_grid);
    let %places = reshape(%position_grid, newshape=[-1]);
    let %owners = reshape(add(expand_dims(%rows, axis=1), %zero_grid), newshape=[-1]);
    let %free_states = subtract(reshape(%zero_grid, newshape=[-1]), 1);
    let %picks = subtract(cumsum(ones_like(%places), axis=0), 1);
    let %ids = gather_nd(%draft_history, stack((%owners, %places), axis=0));
    let %forwarded = @forward(%cache, %ids, %owners, %places, %tables, %picks);
    let %tokens = @choose(%forwarded.0, %draft_history, %owners, add(%places, 1), %settings, %seeds,
                          %moves, %free_states, %greedy);
    let %extended = scatter_nd(%draft_history, stack((%owners, add(%places, 1)), axis=0), %tokens,
                             mode="update");
    let %token_grid = reshape_like(%tokens, %position_grid);
    let %predicted = strided_slice(%token_grid, begin=[0], end=[-1], axes=[1]);
    let %drafted = strided_slice(reshape_like(%ids, %position_grid), begin=[1], end=[2147483647],
                                 axes=[1]);
    let %matches = cast(equal(%predicted, %drafted), dtype="int32");
    let %num_accepted = sum(cumprod(%matches, axis=1), axis=[1], keepdims=True);
    let %is_end = any(equal(expand_dims(%token_grid, axis=2), %ends), axis=[2]);
    let %is_accepted = less_equal(expand_dims(%offsets, axis=0), %num_accepted);
    let %ended = any(logical_and(%is_end, %is_accepted), axis=[1]);
    @rounds(add(%i, 1), %steps, %forwarded.1, %proposed.0, %extended,
            add(%lengths, add(reshape_like(%num_accepted, %lengths), 1)),
            logical_and(%live, logical_not(%ended)), %rows, %second, %count, %offsets, %tables,
            %settings, %seeds, %moves, %free, %ends, %greedy)
  } else {
    (%cache, %drafts, %history, %lengths)
  }
}

def @speculate(%state: ref(ANY), %small: ref(MADE), %steps: int32,
               %history: Tensor[(b, w), int32], %lengths: Tensor[(b), int32],
               %rows: Tensor[(b), int32], %second: Tensor[(b), int32], %count: int32,
               %offsets: Tensor[(c), int32], %tables: Tensor[(b, m), int32],
               %settings: Tensor[(b, 5), float32], %seeds: Tensor[(b), int64],
               %moves: Tensor[(s, VOCABULARY), int32], %free: Tensor[(b), int32],
               %ends: Tensor[(e), int32], %greedy: bool)
    -> (Tensor[(b, w), int32], Tensor[(b), int32]) {
  let %cache = ref_read(%state);
  let %emptied = ref_write(%state, zeros(shape=NONE, dtype="DTYPE"));
  let %drafts = ref_read(%small);
  let %emptied2 = ref_write(%small, zeros(shape=NOTHING, dtype="DTYPE"));
  let %live = greater_equal(%rows, 0);
  let %decoded = @rounds(0, %steps, %cache, %drafts, %history, %lengths, %live, %rows, %second,
                      %count, %offsets, %tables, %settings, %seeds, %moves, %free, %ends, %greedy);
  let %filled = ref_write(%state, %decoded.0);
  let %filled2 = ref_write(%small, %decoded.1);
  (%decoded.2, %decoded.3)
}
"""


TABLES = re.compile(r"%tables(: Tensor\[\(b, m\), int32\])?")
"""Where the sources declare or pass on page tables."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """Draft model of speculative decoding: a smaller decoder with the same vocabulary, which
    proposes `count` tokens per round.
    """

    checkpoint: Checkpoint
    config: DecoderConfig
    count: int


def build_generation_program(
    checkpoint: Checkpoint,
    config: DecoderConfig,
    layout: CacheLayout,
    draft: DraftModel | None = None,
    adapters: AdapterSet | None = None,
) -> IRModule:
    """Return the module with its entry functions, each of which takes the `sequence_inputs` after
    the page tables. Raises what `decoder_module` raises.
    """
    inputs = sequence_inputs(adapters is not None, config, None if draft is None else draft.config)
    module = decoder_module(checkpoint, config, layout, adapters=adapters, inputs=inputs)
    entries = [FORWARD_ENTRY, PREFILL, DECODE]
    sizes = cache_shape(config, layout, "p")
    trailing_dims = ", ".join(map(str, sizes[1:]))
    text = SAMPLING_SOURCE + DECODE_LOOP_SOURCE + ENTRY_POINTS_SOURCE
    named = {
        "VOCABULARY": str(config.vocabulary),
        "CACHE": f"Tensor[(p, {trailing_dims}), {layout.dtype}]",
        "ANY": f"Tensor[(?, {trailing_dims}), {layout.dtype}]",
        "NONE": f"[0, {trailing_dims}]",
        "DTYPE": layout.dtype,
    }
    if draft is not None:
        # The draft has no adapters: proposals that they would change are not accepted.
        none = None if adapters is None else AdapterSet({})
        small = decoder_module(
            draft.checkpoint, draft.config, layout, "draft", adapters=none, inputs=inputs
        )
        both: dict[GlobalVar | str, BaseFunc] = {}
        for decoder_part in (small, module):
            both.update(decoder_part.functions.items())
        module = IRModule(both)
        entries += [DRAFT, SPECULATE]
        text += SPECULATION_SOURCE
        trailing_dims = ", ".join(map(str, cache_shape(draft.config, layout, "p")[1:]))
        named |= {
            "DRAFTED": f"Tensor[(q, {trailing_dims}), {layout.dtype}]",
            "MADE": f"Tensor[(?, {trailing_dims}), {layout.dtype}]",
            "NOTHING": f"[0, {trailing_dims}]",
        }
    for name, value in named.items():
        text = text.replace(name, value)
    text = TABLES.sub(
        lambda use: ", ".join(
            [use[0], *(f"%{name}{': Tensor[(b), int32]' if use[1] else ''}" for name in inputs)]
        ),
        text,
    )
    return parse(text, "generation", module).with_attr(ENTRY_FUNCTIONS_ATTR, tuple(entries))
