"""Device attributes queried from the driver, by the names of target options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from ekiden.runtime import Device, get_global_func
from ekiden.runtime.errors import DeviceError

# fmt: off
DEVICE_ATTRIBUTES: Mapping[str, int] = {
    "max_num_threads":              5,
    "max_shared_memory_per_block":  6,
    "cores":                        7,
    "thread_warp_size":            11,
    "vector-bits":                 12,
    "local_memory":                13,
}
# fmt: on
"""Number of the ek_device_attribute (runtime.h) of each option."""
ATTRIBUTES_THAT_MAY_BE_ZERO = frozenset(("local_memory",))
VERSION_ATTRIBUTE_NUMBER = 3
"""Number of the attribute that holds the version of the device's code: NVIDIA's compute capability.
"""


@functools.cache
def query_device_attributes(device_type: int, number: int) -> Mapping[str, object]:
    """Return the attributes of a device of this machine; empty if there is no such device or
    driver. Cached: the driver is queried once per process.
    """
    query = get_global_func("ek.device.attribute")
    device = Device(device_type, number)
    values = {
        name: _query_attribute(query, device, which) for name, which in DEVICE_ATTRIBUTES.items()
    }
    if not any(values.values()):
        return {}
    facts: dict[str, object] = {
        n: v for n, v in values.items() if v or n in ATTRIBUTES_THAT_MAY_BE_ZERO
    }
    version = str(query(device, VERSION_ATTRIBUTE_NUMBER))
    return facts | ({"arch": version} if version.startswith("sm_") else {})


def _query_attribute(query: Callable[..., object], device: Device, which: int) -> int:
    """Query an attribute; 0 if the driver does not know it."""
    try:
        return int(str(query(device, which)))
    except (DeviceError, ValueError):
        return 0


__all__ = ["query_device_attributes"]
