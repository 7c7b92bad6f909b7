"""Constants of an executable; equal arrays are stored once."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["ConstantPool"]

SAMPLED_ELEMENTS = 64
"""How many elements of an array are looked at before all are: most that differ differ there."""


@dataclass(slots=True)
class ConstantPool:
    """Pool that numbers constants in the order of first use and stores each once. Equality is of
    dtype, shape and bytes: zeros of both signs are two constants, and a NaN is one.
    """

    arrays: list[Array] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """The number of the device of each."""
    _known: dict[tuple[int, int, bool], tuple[int, Array]] = field(default_factory=dict)
    """Identity of an array and device -> its number; and the array, which must stay alive."""
    _alike: dict[object, list[int]] = field(default_factory=dict)
    """Device, dtype, shape and sample -> numbers."""

    made: set[int] = field(default_factory=set)
    """Those that are made of others when an executable is loaded."""

    def number(self, data: Array, device: int = 0, is_made: bool = False) -> int:
        """Intern an array for a device and return its number. The array must not change from now
        on. `is_made`: it is computed from other constants when the executable is loaded.
        """
        key = id(data), device, is_made
        if key not in self._known:
            self._known[key] = self._find(data, device, is_made), data
        return self._known[key][0]

    def _find(self, data: Array, device: int, is_made: bool) -> int:
        sample = np.asarray(data).flat[:: max(1, data.size // SAMPLED_ELEMENTS)].tobytes()
        # A full comparison reads both arrays; most arrays that differ do so in the sample already.
        alike = self._alike.setdefault((device, is_made, str(data.dtype), data.shape, sample), [])
        for number in alike:
            if np.array_equal(_bytes(data), _bytes(self.arrays[number])):
                return number
        alike.append(len(self.arrays))
        self.arrays.append(data)
        self.places.append(device)
        if is_made:
            self.made.add(alike[-1])
        return alike[-1]


def _bytes(data: Array) -> Array:
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
