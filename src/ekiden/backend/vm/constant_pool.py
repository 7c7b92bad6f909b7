"""Constant pool of an executable, which stores equal arrays once."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["ConstantPool"]

SAMPLED_ELEMENTS = 64
"""Number of elements sampled before full comparison; most unequal arrays differ there."""


@dataclass(slots=True)
class ConstantPool:
    """Pool that numbers constants in the order of first use and stores each once. Equality is of
    dtype, shape and bytes: zeros of both signs are two constants, and a NaN is one.
    """

    arrays: list[Array] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)
    """Device number of each constant."""
    _number_by_identity: dict[tuple[int, int, bool], tuple[int, Array]] = field(
        default_factory=dict
    )
    """Number by array identity and device, with the array, which is kept alive."""
    _numbers_by_sample: dict[object, list[int]] = field(default_factory=dict)
    """Candidate numbers by device, dtype, shape and sample."""

    load_time_numbers: set[int] = field(default_factory=set)
    """Numbers of constants that are computed from others at load time."""

    def intern(self, data: Array, device: int = 0, is_made: bool = False) -> int:
        """Intern an array for a device and return its number. The array must not change from now
        on. `is_made`: it is computed from other constants when the executable is loaded.
        """
        key = id(data), device, is_made
        if key not in self._number_by_identity:
            self._number_by_identity[key] = self._find_equal(data, device, is_made), data
        return self._number_by_identity[key][0]

    def _find_equal(self, data: Array, device: int, is_made: bool) -> int:
        sample = np.asarray(data).flat[:: max(1, data.size // SAMPLED_ELEMENTS)].tobytes()
        # A full comparison reads both arrays; most arrays that differ do so in the sample already.
        alike = self._numbers_by_sample.setdefault(
            (device, is_made, str(data.dtype), data.shape, sample), []
        )
        for number in alike:
            if np.array_equal(_as_bytes(data), _as_bytes(self.arrays[number])):
                return number
        alike.append(len(self.arrays))
        self.arrays.append(data)
        self.devices.append(device)
        if is_made:
            self.load_time_numbers.add(alike[-1])
        return alike[-1]


def _as_bytes(data: Array) -> Array:
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
