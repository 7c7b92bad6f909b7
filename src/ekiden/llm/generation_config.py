"""Sampling defaults of a checkpoint: transformers' `generation_config.json`, or the entries
`general.sampling` of a GGUF file.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.llm.sampling import Sampling
from ekiden.runtime.errors import InputError, LoadError

__all__ = ["GGUF_SAMPLING_KEYS", "read_sampling_defaults"]

_SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Keys of `generation_config.json` that are fields of `Sampling`."""
GGUF_SAMPLING_KEYS: Mapping[str, str] = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Entries of GGUF files -> keys of `generation_config.json`."""


def read_sampling_defaults(generation: Mapping[str, object]) -> Mapping[str, float]:
    """Return the sampling defaults of a checkpoint, as fields of `Sampling`. Raises LoadError for
    invalid values.
    """
    fields = {key: generation.get(key) for key in _SAMPLING_KEYS}
    defaults = {key: value for key, value in fields.items() if value is not None}
    if generation.get("do_sample") is False:
        # transformers ignores what it draws by, and takes the likeliest token.
        penalties = {k: v for k, v in defaults.items() if k == "repetition_penalty"}
        defaults = {"temperature": 0.0, **penalties}
    top_k = defaults.get("top_k")
    if type(top_k) is int and top_k < 0:
        defaults["top_k"] = 0  # vLLM's number for "all tokens"
    try:
        Sampling(**defaults)  # type: ignore[arg-type]  # validated there
    except InputError as error:
        raise LoadError(f"generation_config.json: {error}") from error
    return defaults  # type: ignore[return-value]  # numbers, as Sampling has taken them
