"""The program that generates: choosing tokens, and the loop of steps, around a decoder in Relay.

entry          what it does
forward_step   logits of some tokens of a call (decoder.py)
prefill        tokens go through the decoder, and after some of them the next one is chosen
decode         for a number of steps: the last token of every text goes through the decoder, the
               next one is chosen and put behind it; it ends before if all texts have ended

A text is a row of `history` [texts, width], of which the first `lengths` tokens are there. All but
the last of them are in the cache.
"""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.llm.architectures import DecoderConfig
from ekiden.llm.decoder import FORWARD, Layout, cache_shape, decoder_module
from ekiden.llm.weights import Checkpoint
from ekiden.relay.parser import parse
from ekiden.relay.transform.remove_unused_functions import ENTRIES

__all__ = ["DECODE", "PREFILL", "SETTINGS", "program"]

PREFILL, DECODE = "prefill", "decode"
SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Columns of the settings of a text."""

CHOICE = """
def @choose(%logits: Tensor[(k, VOCABULARY), float32], %history: Tensor[(b, w), int32],
            %rows: Tensor[(k), int32], %lengths: Tensor[(k), int32],
            %settings: Tensor[(b, 5), float32], %seeds: Tensor[(b), int64],
            %moves: Tensor[(s, VOCABULARY), int32], %states: Tensor[(k), int32], %greedy: bool)
    -> Tensor[(k), int32] {
  if (%greedy) {
    cast(argmax(%logits, axis=[1]), dtype="int32")
  } else {
    let %own = take(%settings, %rows, axis=0);
    let %penalties = reshape(strided_slice(%own, begin=[4], end=[5], axes=[1]), newshape=[-1]);
    let %allowed = random.contrib_constrain(%logits, %history, %rows, %lengths, %penalties,
                                            %moves, %states);
    let %heat = strided_slice(%own, begin=[0], end=[1], axes=[1]);
    let %sharp = where(greater(%heat, 0f), divide(1f, %heat), 1e30f);
    let %below = subtract(%allowed, max(%allowed, axis=[1], keepdims=True));
    let %weights = exp(multiply(%below, %sharp));
    let %cuts = strided_slice(%own, begin=[0], end=[4], axes=[1]);
    random.contrib_draw(%weights, %cuts, take(%seeds, %rows, axis=0), %lengths)
  }
}
"""
LOOP = """
def @loop(%i: int32, %steps: int32, %cache: CACHE, %history: Tensor[(b, w), int32],
          %lengths: Tensor[(b), int32], %states: Tensor[(b), int32], %live: Tensor[(b), bool],
          %rows: Tensor[(b), int32], %tables: Tensor[(b, m), int32],
          %settings: Tensor[(b, 5), float32], %seeds: Tensor[(b), int64],
          %moves: Tensor[(s, VOCABULARY), int32], %ends: Tensor[(e), int32], %greedy: bool)
    -> (CACHE, Tensor[(b, w), int32], Tensor[(b), int32], int32) {
  if (logical_and(less(%i, %steps), any(%live))) {
    let %positions = subtract(%lengths, 1);
    let %ids = gather_nd(%history, stack((%rows, %positions), axis=0));
    let %found = @forward(%cache, %ids, %rows, %positions, %tables, %rows);
    let %logits = %found.0;
    let %next = %found.1;
    let %tokens = @choose(%logits, %history, %rows, %lengths, %settings, %seeds, %moves, %states,
                          %greedy);
    let %longer = scatter_nd(%history, stack((%rows, %lengths), axis=0), %tokens, mode="update");
    let %moved = gather_nd(%moves, stack((maximum(%states, 0), %tokens), axis=0));
    let %ended = any(equal(expand_dims(%tokens, axis=1), %ends), axis=[1]);
    @loop(add(%i, 1), %steps, %next, %longer, add(%lengths, 1),
          where(less(%states, 0), %states, %moved), logical_and(%live, logical_not(%ended)),
          %rows, %tables, %settings, %seeds, %moves, %ends, %greedy)
  } else {
    (%cache, %history, %states, %i)
  }
}
"""
ENTRY = """
def @prefill(%state: ref(ANY), %ids: Tensor[(n), int32], %sequences: Tensor[(n), int32],
             %positions: Tensor[(n), int32], %tables: Tensor[(b, m), int32],
             %picks: Tensor[(k), int32], %history: Tensor[(b, w), int32],
             %rows: Tensor[(k), int32], %lengths: Tensor[(k), int32],
             %settings: Tensor[(b, 5), float32], %seeds: Tensor[(b), int64],
             %moves: Tensor[(s, VOCABULARY), int32], %states: Tensor[(k), int32], %greedy: bool)
    -> Tensor[(k), int32] {
  let %cache = ref_read(%state);
  let %emptied = ref_write(%state, zeros(shape=NONE, dtype="DTYPE"));
  let %found = @forward(%cache, %ids, %sequences, %positions, %tables, %picks);
  let %filled = ref_write(%state, %found.1);
  @choose(%found.0, %history, %rows, %lengths, %settings, %seeds, %moves, %states, %greedy)
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
  let %made = @loop(0, %steps, %cache, %history, %lengths, %states, %live, %rows, %tables,
                    %settings, %seeds, %moves, %ends, %greedy);
  let %filled = ref_write(%state, %made.0);
  (%made.1, %made.2, %made.3)
}
"""


def program(checkpoint: Checkpoint, config: DecoderConfig, layout: Layout) -> IRModule:
    """The module with the three entries. Raises what `decoder_module` does."""
    module = decoder_module(checkpoint, config, layout)
    sizes = cache_shape(config, layout, "p")
    rest = ", ".join(map(str, sizes[1:]))
    text = CHOICE + LOOP + ENTRY
    for name, value in (
        ("VOCABULARY", str(config.vocabulary)),
        ("CACHE", f"Tensor[(p, {rest}), {layout.dtype}]"),
        ("ANY", f"Tensor[(?, {rest}), {layout.dtype}]"),
        ("NONE", f"[0, {rest}]"),
        ("DTYPE", layout.dtype),
    ):
        text = text.replace(name, value)
    made = parse(text, "generation", module)
    return made.with_attr(ENTRIES, (FORWARD, PREFILL, DECODE))
