"""Checkpoint view with one tensor per expert, for families that stack experts in one tensor
(gpt-oss).

    experts.gate_up_proj         [experts, hidden, 2 * inner], gate and up in turns
    experts.gate_up_proj_blocks  [experts, 2 * inner, hidden / 32, 16] of MXFP4, two numbers a byte,
                                 with gate_up_proj_scales [experts, 2 * inner, hidden / 32]
    experts.gate_up_proj_bias    [experts, 2 * inner]
    experts.down_proj            the same with inner and hidden, not in turns

become experts.E.gate_up_proj.weight [2 * inner, hidden], the gate's rows first, and its bias.

Source: transformers, models/gpt_oss and integrations/mxfp4.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import Checkpoint, Weight
from ekiden.llm.lossless_blocks import MXFP4_BLOCK_VALUES, mxfp4_weight
from ekiden.llm.quantized_weights import RawTensors
from ekiden.runtime.errors import LoadError

__all__ = ["StackedExperts", "with_unstacked_experts"]

STACKED_ARCHITECTURES = ("GptOssForCausalLM",)
STACKED_NAME = re.compile(r"(.*\.experts\.)(gate_up_proj|down_proj)(|_bias|_blocks|_scales)")
MAX_EXPERT_NAMES = 1 << 20
"""Fifty times the tensors of gpt-oss-120b, of which each has a name."""
EXPERT_NAME = re.compile(r"(.*\.experts\.)(\d+)\.(gate_up_proj|down_proj)\.(weight|bias)")


class StackedExperts(Mapping[str, Weight]):
    """Checkpoint view that unstacks the weights and biases of experts. Raises LoadError for tensors
    that do not fit each other.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        stacked = {name: STACKED_NAME.fullmatch(name) for name in checkpoint}
        plain = [name for name, match in stacked.items() if match is None]
        self._names = {name: name for name in plain}
        if len(stacked) > len(plain):
            self._check_count(len(stacked) - len(plain))
        for name, match in stacked.items():
            # Scales are decoded together with their blocks and have no name of their own.
            if match is None or match[3] == "_scales":
                continue
            end = "bias" if match[3] == "_bias" else "weight"
            for expert in range(self._count()):
                self._names[f"{match[1]}{expert}.{match[2]}.{end}"] = name

    def _count(self) -> int:
        count = self.config.get("num_local_experts")
        if type(count) is not int or count < 1:
            raise LoadError(f"config: 'num_local_experts': a number of experts expected: {count!r}")
        return count

    def _check_count(self, num_stacked: int) -> None:
        """Raise LoadError for more experts than files hold: a name is made for each."""
        count = self._count()
        if count * num_stacked > MAX_EXPERT_NAMES:
            raise LoadError(
                f"config: 'num_local_experts': {count} experts of {num_stacked} tensors:"
                f" at most {MAX_EXPERT_NAMES} tensors expected"
            )

    @property
    def config(self) -> Mapping[str, object]:
        """Return the configuration."""
        return self._checkpoint.config

    @property
    def generation(self) -> Mapping[str, object]:
        """Return the sampling defaults, empty if the checkpoint has none."""
        generation: Mapping[str, object] = getattr(self._checkpoint, "generation", {})
        return generation

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Weight:
        """Return a tensor. Raises KeyError, and LoadError for one of another form."""
        stored = self._names[name]
        if stored == name:
            return self._checkpoint[name]
        match = EXPERT_NAME.fullmatch(name)
        assert match is not None
        number, in_turns = int(match[2]), match[3] == "gate_up_proj"
        if stored.endswith("_blocks"):
            return self._decoded(name, stored, number, in_turns)
        weight = self._checkpoint[stored]
        axes = 2 if match[4] == "bias" else 3
        if len(weight.shape) != axes or len(weight.data) != self._count():
            raise LoadError(
                f"'{stored}': {axes} axes, {self._count()} experts expected, got {weight.shape}"
            )
        # A bias has one axis, which `.T` leaves unchanged.
        rows = weight.data[number].T
        return Weight.of(name, _deinterleave_rows(rows) if in_turns else rows, weight.format)

    def _decoded(self, name: str, stored: str, number: int, in_turns: bool) -> Weight:
        """Return one expert's MXFP4 weight."""
        raw = self._checkpoint
        if not isinstance(raw, RawTensors):
            raise LoadError(f"'{stored}': a checkpoint with tensors of bytes expected")
        try:
            blocks, scales = (
                raw.array(stored),
                raw.array(f"{stored.removesuffix('_blocks')}_scales"),
            )
        except KeyError as error:
            raise LoadError(f"'{name}': no tensor {error}") from error
        if (
            blocks.dtype != np.uint8
            or scales.dtype != np.uint8
            or blocks.shape != (*scales.shape, MXFP4_BLOCK_VALUES // 2)
            or scales.ndim != 3
            or len(scales) != self._count()
        ):
            raise LoadError(f"'{stored}': blocks {blocks.shape}, scales {scales.shape} do not fit")
        pairs = blocks[number].reshape(scales.shape[1], -1)
        # The low nibble of a byte holds the first value of a pair.
        codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(pairs), -1)
        exponents = scales[number]
        if in_turns:
            codes, exponents = _deinterleave_rows(codes), _deinterleave_rows(exponents)
        return mxfp4_weight(name, codes, exponents)

    def check(self) -> None:
        """Raise LoadError if a file has changed since it was opened."""
        check = getattr(self._checkpoint, "check", None)
        if check is not None:
            check()


def _deinterleave_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Return interleaved rows as the even ones followed by the odd ones."""
    return np.concatenate([rows[::2], rows[1::2]])


def with_unstacked_experts(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with one tensor per expert, where its family stacks them."""
    architectures = checkpoint.config.get("architectures") or ()
    names = architectures if isinstance(architectures, (list, tuple)) else (architectures,)
    is_stacked = any(name in STACKED_ARCHITECTURES for name in names)
    return StackedExperts(checkpoint) if is_stacked else checkpoint
