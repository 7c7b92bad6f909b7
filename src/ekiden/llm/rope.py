"""Rotary position embeddings (RoPE): the rotation frequencies, and the scalings that stretch them
for longer contexts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.config_validation import read_float
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["RopeParameters", "read_rope"]


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """RoPE parameters: frequencies in radians per position of each rotated pair, the factor of
    cosines and sines, and whether pairs are interleaved (else their elements are half of the
    rotated part apart).
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0
    interleaved: bool = False
    long_frequencies: tuple[float, ...] = ()
    """Those of texts with more than `switch_tokens` tokens; empty where length changes nothing."""
    switch_tokens: int = 0


MIN_ROPE_BASE = 1e-30
"""Of the base, which powers divide by."""
Numbers = NDArray[np.float32]
RopeSettings = Mapping[str, Any]
ScaledRope = tuple[Numbers, float]
Scaling = Callable[[Numbers, RopeSettings, int, float], ScaledRope]
"""(frequencies, what the configuration says, tokens of the context, base) -> those to turn by, and
the factor."""


def _scale_default(
    plain: Numbers, settings: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    """Return the frequencies unchanged."""
    return plain, 1.0


def _scale_dynamic(
    plain: Numbers, settings: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    """Return the frequencies unchanged: dynamic scaling changes them only beyond the model's
    positions, which a context never exceeds.
    """
    settings["factor"]  # without which a configuration is refused
    return plain, 1.0


def _scale_linear(
    plain: Numbers, settings: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    """Divide all frequencies by the factor."""
    return plain / np.float32(settings["factor"]), 1.0


def _scale_llama3(
    plain: Numbers, settings: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    """Stretch low frequencies, keeping high ones (Meta, "The Llama 3 Herd of Models")."""
    factor, low, high = (
        float(settings[k]) for k in ("factor", "low_freq_factor", "high_freq_factor")
    )
    old = float(settings["original_max_position_embeddings"])
    waves = 2 * math.pi / plain
    smooth = (old / waves - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    # Long wavelengths are interpolated, short ones kept, those between blended.
    scaled = np.where(waves > old / low, plain / factor, plain)
    is_between = (waves <= old / low) & (waves >= old / high)
    return np.where(is_between, between, scaled).astype(np.float32), 1.0


def _scale_yarn(
    plain: Numbers, settings: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    """Interpolate frequencies as in Peng et al., "YaRN: Efficient Context Window Extension of Large
    Language Models".
    """
    factor, rotated_depth = float(settings["factor"]), 2 * len(plain)
    old = float(settings["original_max_position_embeddings"])

    def pair_of_rotations(rotation_count: float) -> float:
        """Return the dimension pair that makes this number of rotations over the original
        context.
        """
        return rotated_depth * math.log(old / (rotation_count * 2 * math.pi)) / (2 * math.log(base))

    low, high = (
        pair_of_rotations(float(settings.get("beta_fast") or 32)),
        pair_of_rotations(float(settings.get("beta_slow") or 1)),
    )
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated_depth - 1)
    # Peng et al., "YaRN" (2023): the ramp between interpolated and extrapolated dimensions.
    # The least width avoids a division by zero where both bounds are the same pair.
    ramp = np.clip((np.arange(len(plain), dtype=np.float32) - low) / max(high - low, 0.001), 0, 1)
    extrapolated = 1 - ramp
    scaled = plain / factor * (1 - extrapolated) + plain * extrapolated

    def scale(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0

    mscale, all_dims = settings.get("mscale"), settings.get("mscale_all_dim")
    by = scale(float(mscale)) / scale(float(all_dims)) if mscale and all_dims else scale(1.0)
    # A factor in the configuration overrides the formula.
    return scaled.astype(np.float32), float(settings.get("attention_factor") or by)


def _scale_longrope(
    plain: Numbers, settings: Mapping[str, Any], context: int, base: float
) -> tuple[Numbers, float]:
    """Divide each frequency by its factor for the context length (Ding et al., "LongRoPE").
    `read_rope` calls it for both lengths where a context has room for longer texts.
    """
    old = int(settings["original_max_position_embeddings"])
    by = np.asarray(settings["long_factor" if context > old else "short_factor"], np.float32)
    if by.shape != plain.shape:
        raise ImportModelError(f"config: rope: {len(plain)} factors expected, got {by.size}")
    length_ratio = float(settings.get("factor") or int(settings["max_position_embeddings"]) / old)
    factor = settings.get("attention_factor")
    if factor is None:
        # Ding et al., "LongRoPE" (2024), attention scaling.
        factor = math.sqrt(1 + math.log(length_ratio) / math.log(old)) if length_ratio > 1 else 1.0
    return plain / by, float(factor)


SCALINGS_BY_LENGTH = (_scale_longrope,)
"""Those whose frequencies depend on the tokens of a text: more than the original positions."""
ROPE_SCALINGS: Mapping[str, Scaling] = {
    "default": _scale_default,
    "dynamic": _scale_dynamic,
    "linear": _scale_linear,
    "llama3": _scale_llama3,
    "yarn": _scale_yarn,
    "longrope": _scale_longrope,
    "su": _scale_longrope,
}


def read_rope(
    config: Mapping[str, Any],
    depth: int,
    share: float | None,
    context: int,
    is_local: bool = False,
) -> RopeParameters:
    """Return the RoPE parameters of a configuration, in any form transformers has used:
    `rope_theta` and `rope_scaling`, or both in `rope_parameters`. LongRoPE has frequencies for
    texts of up to its original positions and for longer ones, as transformers chooses them, where
    the context has room for both.

    Args:
        config: The configuration.
        depth: The size of a head.
        share: The fraction of a head that rotates.
        context: The context length.
        is_local: Whether it is for layers with a window (Gemma 3).

    Raises UnsupportedError for an unknown scaling, and ImportModelError for missing settings.
    """
    settings = _expect_mapping(config.get("rope_parameters") or config.get("rope_scaling") or {})
    by_layers = "full_attention" in settings
    if by_layers:
        settings = _expect_mapping(
            settings.get("sliding_attention" if is_local else "full_attention")
        )
    usual = read_float(config, "rope_theta", config["rope_theta"], MIN_ROPE_BASE)
    usual = read_float(config, "rotary_emb_base", usual, MIN_ROPE_BASE)
    base = read_float(settings, "rope_theta", usual, MIN_ROPE_BASE)
    if is_local and not by_layers:
        base, settings = read_float(config, "rope_local_base_freq", 10000.0, MIN_ROPE_BASE), {}
    share = read_float(settings, "partial_rotary_factor", 1.0 if share is None else share)
    kind = str(settings.get("rope_type", settings.get("type", "default")))
    if kind not in ROPE_SCALINGS:
        raise UnsupportedError(f"config: rope {kind!r} is none of {', '.join(ROPE_SCALINGS)}")
    rotated_depth = int(depth * share)
    if not 2 <= rotated_depth <= depth or rotated_depth % 2:
        raise ImportModelError(
            f"config: rope: an even number of the {depth} places of a head expected to turn, got"
            f" {rotated_depth}"
        )
    # Powers are computed in float64 and rounded to float32 once.
    plain = (1 / base ** (np.arange(0, rotated_depth, 2, dtype=np.float64) / rotated_depth)).astype(
        "f4"
    )
    both = {
        "max_position_embeddings": config.get("max_position_embeddings"),
        "original_max_position_embeddings": config.get("original_max_position_embeddings")
        or config.get("max_position_embeddings"),
        **settings,
    }
    try:
        # Invalid settings yield infinities, which the check below reports without warnings.
        with np.errstate(all="ignore"):
            frequencies, factor = ROPE_SCALINGS[kind](plain, both, context, base)
            short, switch_tokens = frequencies, 0
            if ROPE_SCALINGS[kind] in SCALINGS_BY_LENGTH:
                switch_tokens = int(both["original_max_position_embeddings"])
                short, _ = ROPE_SCALINGS[kind](plain, both, min(context, switch_tokens), base)
    except KeyError as error:
        raise ImportModelError(f"config: rope {kind!r} lacks {error}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ImportModelError(f"config: rope {kind!r}: {error}") from error
    if not (np.isfinite([short, frequencies]).all() and math.isfinite(factor)):
        raise ImportModelError(f"config: rope {kind!r}: frequencies and factors are not finite")
    interleaved = bool(config.get("rope_interleaved", False))
    if np.array_equal(short, frequencies):
        return RopeParameters(tuple(frequencies.tolist()), factor, interleaved)
    return RopeParameters(
        tuple(short.tolist()), factor, interleaved, tuple(frequencies.tolist()), switch_tokens
    )


def _expect_mapping(value: object) -> Mapping[str, Any]:
    """Check that settings are a mapping. Raises ImportModelError."""
    if not isinstance(value, Mapping):
        raise ImportModelError(f"config: rope: settings by their names expected, got {value!r}")
    return value
