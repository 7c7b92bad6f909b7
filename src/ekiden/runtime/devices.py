"""Devices that a caller names: they must be some that are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from ekiden.runtime._core import Device, cpu, device
from ekiden.runtime.errors import InputError


def check_devices(what: str, given: object, known: Sequence[Device] = ()) -> None:
    """Whether devices, or names of them, one or several, are of the kinds of those that are known:
    by default the host alone. None is any.

    Raises InputError for one that is not, TypeError for what is no device.
    """
    if given is None:
        return
    kinds = known or (cpu(),)
    for each in [given] if isinstance(given, (Device, str)) or not _is_list(given) else given:
        found = device(each) if isinstance(each, str) else each
        if not isinstance(found, Device):
            raise TypeError(f"{what}: expected a device, got {type(each).__name__}")
        if found.type not in {k.type for k in kinds}:
            there = " or ".join(dict.fromkeys(map(str, kinds)))
            missing = "" if found.exist else ", which is not there"
            raise InputError(f"{what}: expected {there}, got {found}{missing}")


def _is_list(given: object) -> TypeGuard[Sequence[object]]:
    return isinstance(given, (list, tuple))


__all__ = ["check_devices"]
