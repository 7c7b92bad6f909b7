"""bitsandbytes weights decode to the values of the package."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ekiden.llm.checkpoint import Weight
from ekiden.llm.quantized_weights import with_decoded_weights
from ekiden.runtime.errors import LoadError

NAME = "model.layers.0.mlp.up_proj.weight"
STATE = f"{NAME}.quant_state.bitsandbytes__nf4"
CONFIG = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}


@dataclass(frozen=True)
class Raw:
    """A checkpoint of arrays of any dtype."""

    tensors: Mapping[str, np.ndarray]
    config: Mapping[str, object]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __getitem__(self, name: str) -> Weight:
        return Weight.of(name, self.tensors[name])

    def array(self, name: str) -> np.ndarray:
        return self.tensors[name]


def quantized(kind: str, is_double: bool) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The tensors of a weight as transformers saves it, and the numbers that it stands for."""
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("bitsandbytes").functional
    values = torch.randn((48, 128), generator=torch.Generator().manual_seed(0))
    packed, state = functional.quantize_4bit(
        values, blocksize=64, quant_type=kind, compress_statistics=is_double
    )
    tensors = {NAME: packed.numpy()}
    for key, tensor in state.as_dict(packed=True).items():
        tensors[f"{NAME}.{key}"] = tensor.numpy()
    return tensors, functional.dequantize_4bit(packed, state).numpy()


@pytest.mark.parametrize("is_double", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bits_are_those_of_bitsandbytes(kind: str, is_double: bool) -> None:
    tensors, expected = quantized(kind, is_double)
    checkpoint = with_decoded_weights(Raw(tensors, CONFIG))
    assert list(checkpoint) == [NAME]
    # A scale that is quantised itself may be rounded once more or less.
    np.testing.assert_allclose(checkpoint[NAME].values(), expected, rtol=3e-7)


def packed_by_hand() -> dict[str, np.ndarray]:
    """Six numbers in blocks of four, whose table counts."""
    state = {"quant_type": "nf4", "blocksize": 4, "shape": [2, 3]}
    return {
        NAME: np.array([[0x12], [0x34], [0x56]], np.uint8),
        f"{NAME}.absmax": np.array([2, 10], np.float32),
        f"{NAME}.quant_map": np.arange(16, dtype=np.float32),
        STATE: np.frombuffer(json.dumps(state).encode(), np.uint8),
    }


def test_upper_bits_come_first_and_blocks_have_scales() -> None:
    weight = with_decoded_weights(Raw(packed_by_hand(), CONFIG))[NAME]
    np.testing.assert_array_equal(weight.values(), [[2, 4, 6], [8, 50, 60]])


def test_a_block_may_be_longer_than_its_weight() -> None:
    sizes = {"blocksize": 2**61, "nested_blocksize": 2**62, "nested_offset": 1.0, "shape": [2, 3]}
    tensors = packed_by_hand() | {
        f"{NAME}.absmax": np.array([3], np.uint8),
        f"{NAME}.nested_absmax": np.array([2], np.float32),
        f"{NAME}.nested_quant_map": np.arange(256, dtype=np.float32),
        STATE: np.frombuffer(json.dumps(sizes).encode(), np.uint8),
    }
    weight = with_decoded_weights(Raw(tensors, CONFIG))[NAME]
    np.testing.assert_array_equal(weight.values(), [[7, 14, 21], [28, 35, 42]])


def test_int8_has_scales_of_rows() -> None:
    base = NAME.removesuffix("weight")
    tensors = {
        NAME: np.array([[127, -127], [64, 0]], np.int8), f"{base}SCB": np.array([2.0, 12.7], "f4"),
        f"{base}weight_format": np.zeros((), np.uint8),
    }  # fmt: skip
    checkpoint = with_decoded_weights(Raw(tensors, CONFIG))
    assert list(checkpoint) == [NAME]
    np.testing.assert_allclose(checkpoint[NAME].values(), [[2, -2], [6.4, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{NAME}.absmax": np.ones(3, np.float32)}, "3 bytes, 3 scales and 16 levels do not fit"),
        ({f"{NAME}.quant_map": np.ones(4, np.float32)}, "2 scales and 4 levels do not fit"),
        ({STATE: np.frombuffer(b"{", np.uint8)}, "its state is no JSON"),
        ({STATE: np.frombuffer(b"[]", np.uint8)}, "its state: an object expected"),
        ({STATE: np.frombuffer(b'{"shape": [2, 3]}', np.uint8)}, "'blocksize': a number above 0"),
        ({STATE: np.frombuffer(b'{"shape": [-2]}', np.uint8)}, "'shape': sizes expected"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    checkpoint = with_decoded_weights(Raw({**packed_by_hand(), **changes}, CONFIG))
    with pytest.raises(LoadError, match=message):
        checkpoint[NAME]
