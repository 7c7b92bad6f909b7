"""Rotary positions: the frequencies by which pairs of a head turn, with what stretches them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.config_numbers import real
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Rope", "read_rope"]


@dataclass(frozen=True, slots=True)
class Rope:
    """frequencies: radians a position, of each pair that turns. factor: what cosines and sines are
    multiplied with. interleaved: pairs are neighbours, else half of the turning part apart."""

    frequencies: tuple[float, ...]
    factor: float = 1.0
    interleaved: bool = False


LEAST = 1e-30
"""Of the base, which powers divide by."""
Numbers = NDArray[np.float32]
Said = Mapping[str, Any]
Found = tuple[Numbers, float]
Scaling = Callable[[Numbers, Said, int, float], Found]
"""(frequencies, what the configuration says, tokens of the context, base) -> those to turn by, and
the factor."""


def _default(
    plain: Numbers, said: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    return plain, 1.0


def _within(
    plain: Numbers, said: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    """Frequencies that change with texts beyond the positions that the model has, of which there
    are none here: a context is at most as long."""
    said["factor"]  # without which a configuration is refused
    return plain, 1.0


def _linear(
    plain: Numbers, said: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    return plain / np.float32(said["factor"]), 1.0


def _llama3(
    plain: Numbers, said: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    """Meta, "The Llama 3 Herd of Models": low frequencies are stretched, high ones are not."""
    factor, low, high = (float(said[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    old = float(said["original_max_position_embeddings"])
    waves = 2 * math.pi / plain
    smooth = (old / waves - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    found = np.where(waves > old / low, plain / factor, plain)
    is_between = (waves <= old / low) & (waves >= old / high)
    return np.where(is_between, between, found).astype(np.float32), 1.0


def _yarn(
    plain: Numbers, said: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    """Peng and others, "YaRN: Efficient Context Window Extension of Large Language Models"."""
    factor, turning = float(said["factor"]), 2 * len(plain)
    old = float(said["original_max_position_embeddings"])

    def pair(turns: float) -> float:
        return turning * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(float(said.get("beta_fast") or 32)), pair(float(said.get("beta_slow") or 1))
    if said.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, turning - 1)
    ramp = np.clip((np.arange(len(plain), dtype=np.float32) - low) / max(high - low, 0.001), 0, 1)
    kept = 1 - ramp
    found = plain / factor * (1 - kept) + plain * kept

    def scale(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0

    given, all_dims = said.get("mscale"), said.get("mscale_all_dim")
    by = scale(float(given)) / scale(float(all_dims)) if given and all_dims else scale(1.0)
    return found.astype(np.float32), float(said.get("attention_factor") or by)


def _longrope(
    plain: Numbers, said: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    """Ding and others, "LongRoPE": a factor for each pair, by the length of the context."""
    old = int(said["original_max_position_embeddings"])
    by = np.asarray(said["long_factor" if context > old else "short_factor"], np.float32)
    if by.shape != plain.shape:
        raise ImportModelError(f"config: rope: {len(plain)} factors expected, got {by.size}")
    whole = float(said.get("factor") or int(said["max_position_embeddings"]) / old)
    factor = said.get("attention_factor")
    if factor is None:
        factor = math.sqrt(1 + math.log(whole) / math.log(old)) if whole > 1 else 1.0
    return plain / by, float(factor)


SCALINGS: Mapping[str, Scaling] = {
    "default": _default, "dynamic": _within, "linear": _linear, "llama3": _llama3, "yarn": _yarn,
    "longrope": _longrope, "su": _longrope,
}  # fmt: skip


def read_rope(
    config: Mapping[str, Any],
    depth: int,
    share: float | None,
    context: int,
    is_local: bool = False,
) -> Rope:
    """The rope of a configuration, in the forms that transformers has written: `rope_theta` and
    `rope_scaling`, or both in `rope_parameters`. `share` of a head turns; `is_local` is that of
    layers with a window (Gemma 3).

    Raises UnsupportedError for a kind of scaling that there is not, ImportModelError for what one
    lacks.
    """
    said = _mapping(config.get("rope_parameters") or config.get("rope_scaling") or {})
    by_layers = "full_attention" in said
    if by_layers:
        said = _mapping(said.get("sliding_attention" if is_local else "full_attention"))
    usual = real(config, "rope_theta", config["rope_theta"], LEAST)
    usual = real(config, "rotary_emb_base", usual, LEAST)
    base = real(said, "rope_theta", usual, LEAST)
    if is_local and not by_layers:
        base, said = real(config, "rope_local_base_freq", 10000.0, LEAST), {}
    share = real(said, "partial_rotary_factor", 1.0 if share is None else share)
    kind = str(said.get("rope_type", said.get("type", "default")))
    if kind not in SCALINGS:
        raise UnsupportedError(f"config: rope {kind!r} is none of {', '.join(SCALINGS)}")
    turning = int(depth * share)
    if not 2 <= turning <= depth or turning % 2:
        raise ImportModelError(
            f"config: rope: an even number of the {depth} places of a head expected to turn, got"
            f" {turning}"
        )
    plain = (1 / base ** (np.arange(0, turning, 2, dtype=np.float64) / turning)).astype("f4")
    both = {
        "max_position_embeddings": config.get("max_position_embeddings"),
        "original_max_position_embeddings": config.get("original_max_position_embeddings")
        or config.get("max_position_embeddings"),
        **said,
    }
    try:
        with np.errstate(all="ignore"):
            found, factor = SCALINGS[kind](plain, both, context, base)
    except KeyError as error:
        raise ImportModelError(f"config: rope {kind!r} lacks {error}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ImportModelError(f"config: rope {kind!r}: {error}") from error
    if not (np.isfinite(found).all() and math.isfinite(factor)):
        raise ImportModelError(f"config: rope {kind!r}: frequencies and factors are not finite")
    interleaved = bool(config.get("rope_interleaved", False))
    return Rope(tuple(float(f) for f in found), factor, interleaved)


def _mapping(given: object) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ImportModelError(f"config: rope: settings by their names expected, got {given!r}")
    return given
