"""LoRA adapters in PEFT's format, merged into weights or added to products.

A weight W [outputs, inputs] becomes W + s B A, where A is [r, inputs], B [outputs, r], and s is
alpha / r, or alpha / sqrt(r) for rank-stabilised adapters.

Source: Hu and others, "LoRA" (2021); Kalajdzievski, "A Rank Stabilization Scaling Factor" (2023);
peft/tuners/lora.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import UNQUANTIZED_DTYPES, Checkpoint, Weight
from ekiden.llm.config_validation import read_float, read_size
from ekiden.llm.safetensors import SafetensorsFile
from ekiden.llm.torch_file import TorchFile
from ekiden.runtime.errors import ImportModelError, LoadError, UnsupportedError

__all__ = ["AdaptedCheckpoint", "LoraAdapter"]

Floats = NDArray[np.float32]
ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_FILES: tuple[tuple[str, type[SafetensorsFile] | type[TorchFile]], ...] = (
    ("adapter_model.safetensors", SafetensorsFile), ("adapter_model.bin", TorchFile),
)  # fmt: skip
PLAIN_PATTERN = re.compile(r"[\w.]+")
ADAPTER_PREFIX = "base_model.model."
SERVED_SETTINGS: Mapping[str, object] = {"use_dora": False, "bias": "none"}
"""Values of settings that change what an adapter does."""


class LoraAdapter:
    """LoRA adapter loaded from a PEFT folder, with the factors of each adapted weight.

    Raises LoadError for a broken folder, ImportModelError for a weight that the checkpoint lacks,
    UnsupportedError for other kinds of adapters.
    """

    def __init__(self, folder: str | os.PathLike[str], names: Collection[str]) -> None:
        """Open a folder; `names` are those of the checkpoint's tensors."""
        self._folder = Path(folder)
        self._settings = self._read_settings()
        self._file = self._open_file()
        self._bases: dict[str, str] = {}
        for tensor in self._file:
            base, mark, end = tensor.rpartition(".lora_")
            if not mark or end not in ("A.weight", "B.weight"):
                raise UnsupportedError(
                    f"{self._folder}: tensor '{tensor}': lora_A and lora_B of products are read"
                )
            name = f"{base.removeprefix(ADAPTER_PREFIX)}.weight"
            if name not in names:
                raise ImportModelError(f"{self._folder}: the checkpoint has no tensor '{name}'")
            self._bases[name] = base
        # A missing half is an error when the folder is opened.
        for base in self._bases.values():
            for half in "AB":
                if f"{base}.lora_{half}.weight" not in self._file:
                    raise LoadError(f"{self._folder}: no tensor '{base}.lora_{half}.weight'")

    def _read_settings(self) -> Mapping[str, Any]:
        path = self._folder / ADAPTER_CONFIG_FILE
        try:
            settings = json.loads(path.read_bytes())
        except OSError as error:
            raise LoadError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise LoadError(f"{path}: no JSON: {error}") from error
        if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
            raise UnsupportedError(f"{path}: an adapter of 'peft_type' LORA expected")
        for key, value in SERVED_SETTINGS.items():
            if settings.get(key, value) not in (value, None):
                raise UnsupportedError(
                    f"{path}: '{key}': only {value!r} is supported, got {settings[key]!r}"
                )
        return settings

    def _open_file(self) -> SafetensorsFile | TorchFile:
        for name, kind in ADAPTER_FILES:
            if (self._folder / name).is_file():
                return kind(self._folder / name)
        expected = " or ".join(name for name, _ in ADAPTER_FILES)
        raise LoadError(f"{self._folder}: a folder with {expected} expected")

    @property
    def folder(self) -> Path:
        """Return the adapter's folder."""
        return self._folder

    @property
    def weights(self) -> Collection[str]:
        """Return the names of the adapted weights."""
        return self._bases.keys()

    def factors(self, name: str) -> tuple[Floats, Floats]:
        """Return the low-rank factors of a weight's update: A [r, inputs], and B [outputs, r] times
        the scale. Raises ImportModelError if they do not fit each other, KeyError for a weight that
        it does not change.
        """
        base = self._bases[name]
        down = self._file[f"{base}.lora_A.weight"].values()
        up = self._file[f"{base}.lora_B.weight"].values()
        if up.ndim != 2 or down.ndim != 2 or up.shape[1] != down.shape[0] or not len(down):
            raise ImportModelError(
                f"{self._folder}: '{name}': factors {up.shape} and {down.shape} do not fit"
            )
        # The scale is part of B, so that products need no further factor.
        return down, up * np.float32(self._scale(base, len(down)))

    def change(self, name: str) -> Floats:
        """Return the dense update of a weight, in the order of its axes."""
        down, up = self.factors(name)
        change = up @ down
        # Weights of GPT-2 are stored as [inputs, outputs].
        return change.T if self._settings.get("fan_in_fan_out") else change

    def _scale(self, base: str, rank: int) -> float:
        """Return the LoRA scale alpha / r, which name patterns may override."""
        settings = self._settings
        module = base.removeprefix(ADAPTER_PREFIX)
        patterns = settings.get("alpha_pattern") or {}
        alpha = read_float(settings, "lora_alpha", read_size(settings, "r"))
        for pattern in patterns if isinstance(patterns, dict) else ():
            # PEFT's patterns are regular expressions; those of a stranger could take forever.
            if not PLAIN_PATTERN.fullmatch(pattern):
                raise UnsupportedError(
                    f"{self._folder}: 'alpha_pattern': names of modules are read, not {pattern!r}"
                )
            if module == pattern or module.endswith(f".{pattern}"):
                alpha = read_float(patterns, pattern, alpha)
                break
        # rsLoRA divides by the root of the rank, which keeps updates of high rank from vanishing.
        return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)

    def check(self) -> None:
        """Raise LoadError if the file has changed since it was opened."""
        self._file.check()


class AdaptedCheckpoint(Mapping[str, Weight]):
    """Checkpoint with an adapter merged into its weights. Those that it changes are float32, or
    what plain format they had. Raises what `LoraAdapter` raises, and ImportModelError for a weight
    of another shape.
    """

    def __init__(self, checkpoint: Checkpoint, folder: str | os.PathLike[str]) -> None:
        self._checkpoint = checkpoint
        self._adapter = LoraAdapter(folder, frozenset(checkpoint))

    @property
    def config(self) -> Mapping[str, object]:
        """Return the configuration of the checkpoint."""
        return self._checkpoint.config

    @property
    def generation(self) -> Mapping[str, object]:
        """Return the sampling defaults, empty if the checkpoint has none."""
        generation: Mapping[str, object] = getattr(self._checkpoint, "generation", {})
        return generation

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint)

    def __len__(self) -> int:
        # A checkpoint need not have a length.
        return len(list(self._checkpoint))

    def __getitem__(self, name: str) -> Weight:
        """Return a tensor, with the adapter's update added. Raises KeyError."""
        weight = self._checkpoint[name]
        if name not in self._adapter.weights:
            return weight
        change = self._adapter.change(name)
        if change.shape != weight.shape:
            raise ImportModelError(
                f"{self._adapter.folder}: '{name}' must be {weight.shape}, the adapter's is"
                f" {change.shape}"
            )
        format = weight.format if weight.format in UNQUANTIZED_DTYPES else "float32"
        return Weight.of(name, weight.values() + change, format)

    def check(self) -> None:
        """Raise LoadError if a file has changed since it was opened."""
        self._adapter.check()
        check = getattr(self._checkpoint, "check", None)
        if check is not None:
            check()
