"""What a device says of itself, by the names of a target's options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from ekiden.runtime import Device, get_global_func
from ekiden.runtime.errors import DeviceError

# fmt: off
ASKED: Mapping[str, int] = {
    "max_num_threads":              5,
    "max_shared_memory_per_block":  6,
    "cores":                        7,
    "thread_warp_size":            11,
    "vector-bits":                 12,
    "local_memory":                13,
}
# fmt: on
"""Option -> number of ek_device_attribute in runtime.h."""
MAY_BE_0 = frozenset(("local_memory",))
VERSION = 3
"""The number of the version of the language of a device's code: of NVIDIA's, the architecture."""


@functools.cache
def device_facts(device_type: int, number: int) -> Mapping[str, object]:
    """The facts of a device of this machine; empty where there is no such device, or no driver.

    The answer is kept: a driver is asked once in a process.
    """
    asked = get_global_func("ek.device.attribute")
    device = Device(device_type, number)
    found = {name: _number(asked, device, which) for name, which in ASKED.items()}
    if not any(found.values()):
        return {}
    known: dict[str, object] = {n: v for n, v in found.items() if v or n in MAY_BE_0}
    version = str(asked(device, VERSION))
    return known | ({"arch": version} if version.startswith("sm_") else {})


def _number(asked: Callable[..., object], device: Device, which: int) -> int:
    """0 for what a driver does not know."""
    try:
        return int(str(asked(device, which)))
    except (DeviceError, ValueError):
        return 0


__all__ = ["device_facts"]
