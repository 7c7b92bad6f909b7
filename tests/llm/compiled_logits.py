"""Logits of a compiled or interpreted decoder, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ekiden
from ekiden import relay, runtime
from ekiden.llm.checkpoint import Checkpoint
from ekiden.llm.decoder import FORWARD_ENTRY, CacheLayout, cache_shape, decoder_module
from ekiden.llm.decoder_config import read_config
from ekiden.runtime.vm import VirtualMachine

CONTEXT = 64


def forward(
    checkpoint: Checkpoint, ids: NDArray[Any], parts: Sequence[int], kind: str
) -> NDArray[Any]:
    """The logits of ids, read in parts of these lengths."""
    config, layout = read_config(dict(checkpoint.config), CONTEXT), CacheLayout(16)
    module = decoder_module(checkpoint, config, layout)
    shape = [int(str(d)) for d in cache_shape(config, layout, 4)]
    tables = np.array([[2, 0, 3, 1]], np.int32)
    if kind == "vm":
        state: Any = runtime.Ref(runtime.empty(shape, "float32"))
        call = VirtualMachine(ekiden.compile(module)).invoke
    else:
        interpreter = relay.interpreter.Interpreter(module)
        cache: Any = np.zeros(shape, np.float32)
    result, first = [], 0
    for size in parts:
        places = np.arange(first, first + size, dtype=np.int32)
        inputs = (ids[places].astype(np.int32), np.zeros_like(places), places, tables,
                 np.arange(size, dtype=np.int32))  # fmt: skip
        if kind == "vm":
            result.append(call(FORWARD_ENTRY, state, *inputs).numpy().copy())
        else:
            logits, cache = interpreter.evaluate("forward", cache, *inputs)
            result.append(np.asarray(logits))
        first += size
    return np.concatenate(result)
