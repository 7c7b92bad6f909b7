"""Decoder of weights quantised by other libraries (GPTQ, AWQ, compressed-tensors, fp8): GPTQ, AWQ,
compressed-tensors, fp8 and bitsandbytes.

`quantization_config` of `config.json` names the method, and a weight is several tensors: integers
packed into int32, scales, zero points. Integers of 4 bits in groups of a multiple of 32 become the
blocks that GGUF files have, without rounding: q4_0 where the zero point is 8, else q4_1. All else
becomes float32.

    method              integers        packed along   zero points
    gptq                qweight         inputs         qzeros, 1 less (checkpoint_format "gptq")
    awq                 qweight         outputs        qzeros; the eight of an int32 in AWQ_ORDER
    compressed-tensors  weight_packed   inputs         weight_zero_point, or half of the range
    fp8                 weight          -              none; scales of square blocks
    bitsandbytes        weight          -              none; bitsandbytes_weights.py

Source: GPTQModel (qlinear/torch.py), AutoAWQ (utils/packing_utils.py), compressed-tensors
(compressors/pack_quantized.py), transformers (integrations/finegrained_fp8.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.bitsandbytes_weights import (
    BITSANDBYTES_ENDS,
    BITSANDBYTES_MARKS,
    decode_bitsandbytes,
)
from ekiden.llm.checkpoint import Checkpoint, Weight
from ekiden.runtime.errors import LoadError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["QuantizedCheckpoint", "RawTensors", "with_decoded_weights"]

Floats = NDArray[np.float32]
AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Where the k-th of eight columns stands in an int32, in units of 4 bits."""
BLOCK_VALUES = 32
"""Numbers of a block of q4_0 and q4_1."""
PACKED_BITS = (2, 4, 8)
STACKED_METHOD = "mxfp4"
"""Method of weights that are stacked by experts: `stacked_experts` decodes them."""


@runtime_checkable
class RawTensors(Protocol):
    """Checkpoint whose integer and small-float tensors can be read as stored."""

    def array(self, name: str) -> NDArray[Any]:
        """Return a tensor as it is stored. Raises KeyError."""


@dataclass(frozen=True, slots=True)
class GroupedIntegers:
    """Group-quantised integer weight: levels uint8 [rows, columns], scales and zero points float32
    [rows, groups]; column c is of group `groups[c]`.
    """

    levels: NDArray[np.uint8]
    scales: Floats
    zeros: Floats
    groups: NDArray[np.int64]

    def to_weight(self, name: str, bits: int) -> Weight:
        """Return the weight (levels - zero point) * scale, in blocks if that is lossless."""
        if bits == 4 and (blocks := self._blocks()) is not None:
            format = "q4_0" if blocks.shape[-1] == 18 else "q4_1"
            return Weight(name, format, self.levels.shape, blocks)
        scales, zeros = self.scales[:, self.groups], self.zeros[:, self.groups]
        return Weight.of(name, (self.levels.astype(np.float32) - zeros) * scales)

    def _blocks(self) -> NDArray[np.uint8] | None:
        """Return the blocks of 32 values, None if groups are no multiple of them or float16 would
        round a scale or offset.
        """
        rows, columns = self.levels.shape
        if columns % BLOCK_VALUES:
            return None
        by_block = self.groups.reshape(-1, BLOCK_VALUES)
        if (by_block != by_block[:, :1]).any():
            return None
        scales, zeros = self.scales[:, by_block[:, 0]], self.zeros[:, by_block[:, 0]]
        is_symmetric = bool((zeros == 8).all())
        halves = [scales] if is_symmetric else [scales, -scales * zeros]
        with np.errstate(over="ignore"):
            numbers = [half.astype("<f2") for half in halves]
        if any((n.astype(np.float32) != h).any() for n, h in zip(numbers, halves, strict=True)):
            return None
        first, second = np.split(self.levels.reshape(rows, -1, 2, BLOCK_VALUES // 2), 2, axis=2)
        nibbles = (first | second << 4)[:, :, 0]
        heads = [n[..., None].view(np.uint8) for n in numbers]
        return np.concatenate([*heads, nibbles], axis=-1)


class WeightParts:
    """Tensors of one weight, by the ends of their names. All of its methods raise KeyError for one
    that does not exist, and LoadError for one that has not the form that is asked for.
    """

    def __init__(self, raw: RawTensors, base: str) -> None:
        self._raw, self._base = raw, base

    def __contains__(self, end: str) -> bool:
        try:
            self._raw.array(self._base + end)
        except KeyError:
            return False
        return True

    def array(self, end: str) -> NDArray[Any]:
        """Return a tensor as it is stored."""
        return self._raw.array(self._base + end)

    def floats(self, end: str, axes: int | None = None) -> Floats:
        """Return a tensor as float32, with so many axes and at least one number."""
        return np.ascontiguousarray(self._formed(end, axes), np.float32)

    def integers(self, end: str, axes: int) -> NDArray[np.int64]:
        """Return a tensor of integers with so many axes and at least one number."""
        values = self._formed(end, axes)
        if values.dtype.kind not in "iu":
            raise LoadError(f"'{self._base}{end}': integers expected, got {values.dtype}")
        return np.asarray(values, np.int64)

    def unpacked(self, end: str, bits: int, axis: int) -> NDArray[np.uint8]:
        """Return a matrix of integers that are packed into int32 along an axis."""
        packed = self._formed(end, 2)
        if packed.dtype != np.int32:
            raise LoadError(f"'{self._base}{end}': int32 expected, got {packed.dtype}")
        return _unpack(packed, bits, axis)

    def _formed(self, end: str, axes: int | None) -> NDArray[Any]:
        values = self._raw.array(self._base + end)
        if not values.size or (axes is not None and values.ndim != axes):
            expected = "numbers" if axes is None else f"{axes} axes"
            raise LoadError(f"'{self._base}{end}': {expected} expected, got {values.shape}")
        return values


def _unpack(packed: NDArray[np.int32], bits: int, axis: int) -> NDArray[np.uint8]:
    """Return integers that lie in int32 along an axis, the lowest bits first."""
    count = 32 // bits
    lanes = np.moveaxis(packed.view(np.uint32), axis, -1)[..., None]
    levels = (lanes >> np.arange(0, 32, bits, dtype=np.uint32)) & np.uint32((1 << bits) - 1)
    flat = levels.astype(np.uint8).reshape(*levels.shape[:-2], levels.shape[-2] * count)
    return np.moveaxis(flat, -1, axis)


def _decode_gptq(settings: Mapping[str, Any], name: str, parts: WeightParts) -> Weight:
    """Decode GPTQ: qweight [inputs / n, outputs], qzeros [groups, outputs / n]."""
    bits = _packed_bits(settings, "bits")
    levels = parts.unpacked("qweight", bits, 0).T
    # Files of the first version hold zero points less 1.
    offset = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
    zeros = parts.unpacked("qzeros", bits, 1).astype(np.float32) + np.float32(offset)
    groups, scales = parts.integers("g_idx", 1), parts.floats("scales", 2)
    return _grouped(name, levels, scales.T, zeros.T, groups).to_weight(name, bits)


def _decode_awq(settings: Mapping[str, Any], name: str, parts: WeightParts) -> Weight:
    """Decode AWQ: qweight [inputs, outputs / 8], qzeros [groups, outputs / 8]."""
    if settings.get("bits", 4) != 4 or settings.get("version", "gemm") != "gemm":
        raise UnsupportedError("config: 'quantization_config': AWQ of 4 bits as 'gemm' is read")

    def undo_awq_order(end: str) -> NDArray[np.uint8]:
        levels = parts.unpacked(end, 4, 1)
        return levels.reshape(len(levels), -1, 8)[:, :, AWQ_ORDER].reshape(levels.shape)

    levels, zeros = undo_awq_order("qweight").T, undo_awq_order("qzeros").T.astype(np.float32)
    groups = np.arange(levels.shape[1]) // max(1, levels.shape[1] // zeros.shape[1])
    return _grouped(name, levels, parts.floats("scales", 2).T, zeros, groups).to_weight(name, 4)


def _decode_compressed(settings: Mapping[str, Any], name: str, parts: WeightParts) -> Weight:
    """Decode compressed-tensors: weight_packed [outputs, inputs / n], or a weight of fp8."""
    scales = parts.floats("weight_scale")
    if "weight_packed" not in parts:
        # int8 and fp8 are plain, with a scale for the tensor or for each row.
        values = parts.floats("weight", 2)
        if "weight_zero_point" in parts:
            raise UnsupportedError(f"'{name}': zero points beside plain integers")
        if scales.size not in (1, len(values)):
            raise LoadError(
                f"'{name}': a scale for each of {len(values)} rows expected, got {scales.size}"
            )
        return Weight.of(name, values * scales.reshape(-1, 1))
    arguments = _shared_weight_arguments(settings)
    bits = _packed_bits(arguments, "num_bits")
    levels = parts.unpacked("weight_packed", bits, 1)
    shape = parts.integers("weight_shape", 1).tolist()
    if (
        len(shape) != 2
        or shape[0] != len(levels)
        or not 0 < shape[1] <= levels.shape[1]
        or scales.size % shape[0]
    ):
        raise LoadError(
            f"'{name}': integers {levels.shape} and scales {scales.shape} do not fit 'weight_shape'"
            f" {shape}"
        )
    levels, scales = levels[:, : shape[1]], scales.reshape(shape[0], -1)
    # Signed integers are stored with half of the range added.
    zeros = np.full_like(scales, 1 << (bits - 1))
    if not arguments.get("symmetric", True):
        zeros = parts.unpacked("weight_zero_point", bits, 0)[: shape[0]].astype(np.float32)
    groups = np.arange(shape[1]) // max(1, shape[1] // scales.shape[1])
    return _grouped(name, levels, scales, zeros, groups).to_weight(name, bits)


def _decode_fp8(settings: Mapping[str, Any], name: str, parts: WeightParts) -> Weight:
    """Decode fp8 with a scale for each block of rows and columns (DeepSeek-V3)."""
    values, scales = parts.floats("weight", 2), parts.floats("weight_scale_inv", 2)
    size = settings.get("weight_block_size") or [128, 128]
    if (
        not isinstance(size, (list, tuple))
        or len(size) != 2
        or not all(type(n) is int and n > 0 for n in size)
    ):
        raise LoadError(f"config: 'weight_block_size': two sizes expected, got {size!r}")
    expected = tuple(-(-extent // int(n)) for extent, n in zip(values.shape, size, strict=True))
    if scales.shape != expected:
        raise LoadError(f"'{name}': scales {expected} expected, got {scales.shape}")
    for axis, block in enumerate(size):
        # A block may be larger than its axis, by any number.
        scales = np.repeat(scales, min(block, values.shape[axis]), axis)
    return Weight.of(name, values * scales[: values.shape[0], : values.shape[1]])


def _decode_bitsandbytes(settings: Mapping[str, Any], name: str, parts: WeightParts) -> Weight:
    return decode_bitsandbytes(name, parts.array)


def _grouped(
    name: str, levels: NDArray[np.uint8], scales: Floats, zeros: Floats, groups: NDArray[np.int64]
) -> GroupedIntegers:
    """Check that shapes agree, and return the group-quantised weight. Raises LoadError."""
    count = scales.shape[1]
    if (
        scales.shape != zeros.shape
        or len(scales) != len(levels)
        or groups.shape != levels.shape[1:]
        or (groups.size and not 0 <= groups.min() <= groups.max() < count)
    ):
        raise LoadError(
            f"'{name}': integers {levels.shape}, scales {scales.shape} and zero points"
            f" {zeros.shape} do not fit"
        )
    return GroupedIntegers(np.ascontiguousarray(levels), scales, zeros, groups)


def _packed_bits(settings: Mapping[str, Any], key: str) -> int:
    """Return the bit width of packed integers. Raises UnsupportedError."""
    bits = settings.get(key)
    if bits not in PACKED_BITS:
        raise UnsupportedError(
            f"config: 'quantization_config': '{key}' must be one of {PACKED_BITS}, got {bits!r}"
        )
    return int(bits)


def _shared_weight_arguments(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return compressed-tensors' weight arguments, which must be the same for all layers."""
    groups = settings.get("config_groups")
    weights = [
        group["weights"]
        for group in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping)
    ]
    if not weights or any(entry != weights[0] for entry in weights):
        raise UnsupportedError(
            "config: 'quantization_config': one kind of weights in 'config_groups' is read"
        )
    first: Mapping[str, Any] = weights[0]
    return first


@dataclass(frozen=True, slots=True)
class QuantizationMethod:
    """Quantisation method of a library: ends of the names of a weight's tensors, the first of which
    every quantised weight has, and how they are decoded.
    """

    marks: tuple[str, ...]
    ends: tuple[str, ...]
    decode: Callable[[Mapping[str, Any], str, WeightParts], Weight]


_GPTQ_ENDS = ("qweight", "qzeros", "scales", "g_idx")
QUANTIZATION_METHODS: Mapping[str, QuantizationMethod] = {
    "gptq": QuantizationMethod(("qweight",), _GPTQ_ENDS, _decode_gptq),
    "awq": QuantizationMethod(("qweight",), _GPTQ_ENDS[:3], _decode_awq),
    "compressed-tensors": QuantizationMethod(
        ("weight_scale",),
        ("weight", "weight_packed", "weight_scale", "weight_shape", "weight_zero_point",
         "weight_g_idx", "input_scale"),
        _decode_compressed,
    ),
    "bitsandbytes": QuantizationMethod(
        BITSANDBYTES_MARKS, BITSANDBYTES_ENDS, _decode_bitsandbytes
    ),
    "fp8": QuantizationMethod(
        ("weight_scale_inv",), ("weight", "weight_scale_inv", "activation_scale"), _decode_fp8
    ),
}  # fmt: skip


class QuantizedCheckpoint(Mapping[str, Weight]):
    """Checkpoint that decodes weights quantised by another library under their unquantised names. A
    weight is decoded when it is requested.
    """

    def __init__(self, checkpoint: Checkpoint, settings: Mapping[str, Any]) -> None:
        name = str(settings.get("quant_method"))
        if name not in QUANTIZATION_METHODS or not isinstance(checkpoint, RawTensors):
            raise UnsupportedError(
                f"config: 'quantization_config': {name!r} is none of"
                f" {', '.join(QUANTIZATION_METHODS)}"
            )
        self._checkpoint, self._settings = checkpoint, settings
        self._raw: RawTensors = checkpoint
        self._method = QUANTIZATION_METHODS[name]
        stored = list(checkpoint)
        self._bases = {
            tensor.removesuffix(mark)
            for tensor in stored
            for mark in self._method.marks
            if tensor.endswith(f".{mark}")
        }
        component_names = {base + end for base in self._bases for end in self._method.ends}
        weights = [f"{base}weight" for base in sorted(self._bases)]
        self._names = [*(n for n in stored if n not in component_names), *weights]

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
        """Return a tensor. Raises KeyError, and LoadError for tensors that do not fit."""
        base = name.removesuffix("weight")
        if base == name or base not in self._bases:
            return self._checkpoint[name]
        try:
            return self._method.decode(self._settings, name, WeightParts(self._raw, base))
        except KeyError as error:
            raise LoadError(f"'{name}': no tensor {error}") from error

    def check(self) -> None:
        """Raise LoadError if a file has changed since it was opened."""
        check = getattr(self._checkpoint, "check", None)
        if check is not None:
            check()


def with_decoded_weights(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with unquantised and block-quantised weights only. Raises
    UnsupportedError for an unknown method.
    """
    settings = checkpoint.config.get("quantization_config")
    if not isinstance(settings, Mapping) or settings.get("quant_method") == STACKED_METHOD:
        return checkpoint
    return QuantizedCheckpoint(checkpoint, settings)
