"""Arrays under TVM's names. `ekiden.nd.array`, `nd.empty`, `nd.NDArray`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ekiden.runtime.binding._core import DataType, Device, Tensor, cpu, device, from_dlpack
from ekiden.runtime.binding._core import empty as _empty
from ekiden.runtime.binding._core import tensor as _tensor
from ekiden.runtime.devices.device_constructors import RemoteDeviceBase

__all__ = ["NDArray", "array", "cpu", "device", "empty", "from_dlpack"]

NDArray = Tensor
"""TVM's name of `Tensor`."""


def array(
    arr: Tensor | ArrayLike,
    device: Device | None = None,
    mem_scope: str | None = None,
) -> Tensor:
    """Copy an array to a new tensor, on the host unless a device is given; a device of another
    machine (`rpc`) gives a remote tensor with the same interface. `ekiden.tensor` shares the
    array's memory instead. Raises ValueError for a memory scope other than "global".
    """
    _check_mem_scope("array", mem_scope)
    if isinstance(device, RemoteDeviceBase):
        return cast(Tensor, device.array(arr))
    return _tensor(arr if isinstance(arr, Tensor) else np.asarray(arr)).copyto(device or cpu())


def empty(
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    device: Device | None = None,
    mem_scope: str | None = None,
) -> Tensor:
    """Return a new tensor with undefined elements. Raises ValueError for a memory scope other than
    "global".
    """
    _check_mem_scope("empty", mem_scope)
    if isinstance(device, RemoteDeviceBase):
        return cast(Tensor, device.empty(shape, str(DataType(dtype))))
    return _empty(shape, dtype, device)


def _check_mem_scope(what: str, scope: str | None) -> None:
    """Raise ValueError for a memory scope that no driver allocates, such as textures."""
    if scope not in (None, "", "global"):
        raise ValueError(f"{what}: memory of scope 'global' expected, got {scope!r}")
