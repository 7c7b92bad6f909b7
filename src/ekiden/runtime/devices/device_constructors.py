"""Device constructors under TVM's names (`cpu`, `cuda`, ...), and tests for present devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from ekiden.runtime.binding._core import Device, Tensor, cpu, device, get_global_func
from ekiden.runtime.errors import DeviceError, InputError, LoadError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class RemoteDeviceBase(Device):
    """Base class of remote devices; subclasses implement allocation and transfer."""

    def empty(self, shape: Sequence[int], dtype: str) -> RemoteTensorProtocol:
        """Allocate an uninitialised tensor on the device."""
        raise NotImplementedError

    def array(self, source: Tensor | ArrayLike) -> RemoteTensorProtocol:
        """Copy a local tensor or array to the device."""
        raise NotImplementedError


class RemoteTensorProtocol(Protocol):
    """Protocol of tensors on a remote device."""

    device: Device
    dtype: str
    shape: tuple[int, ...]

    def numpy(self) -> NDArray[Any]:
        """Copy the elements to a local array."""


def _device_constructor(name: str) -> Callable[[int], Device]:
    """Return the constructor of a kind of devices."""

    def make_device(dev_id: int = 0) -> Device:
        return device(name, dev_id)

    make_device.__name__ = make_device.__qualname__ = name
    make_device.__doc__ = (
        f"A device of the kind {name!r}, by its number: a value, whether or not it is there."
    )
    return make_device


cuda = _device_constructor("cuda")
opencl = _device_constructor("opencl")
vulkan = _device_constructor("vulkan")
metal = _device_constructor("metal")
rocm = _device_constructor("rocm")
vpi = _device_constructor("vpi")
ext_dev = _device_constructor("ext_dev")
hexagon = _device_constructor("hexagon")
webgpu = _device_constructor("webgpu")
gpu, cl, mtl = cuda, opencl, metal
"""TVM's older names."""


def _has_package(name: str) -> Callable[[], bool]:
    return lambda: import_module("importlib.util").find_spec(name) is not None


_AVAILABILITY_CHECKS: dict[str, Callable[[], bool]] = {
    "llvm": _has_package("llvmlite"),
    "c": lambda: (
        any(map(import_module("shutil").which, ("cc", "gcc", "clang"))) or _has_package("ziglang")()
    ),
    "rpc": lambda: True,
}
"""Kind of target that the host runs -> whether code can be made for it here; and sessions."""


def enabled(target: str) -> bool:
    """Return whether a kind of target or device ("llvm", "cpu", "cuda"), or "rpc", is available in
    this process. Raises ValueError for an unknown name.
    """
    name = target.split()[0] if target.strip() else target
    return _AVAILABILITY_CHECKS[name]() if name in _AVAILABILITY_CHECKS else device(name).exist


def check_devices(what: str, given: object, known: Sequence[Device] = ()) -> None:
    """Check that a program runs on the requested devices.

    Args:
        what: prefix of errors.
        given: a device, its name, or a list of those; None is any.
        known: the program's devices, by default the host alone.

    Raises:
        InputError: for a device that is not the program's, and for the host alone where the program
        has others: its code is for the devices that it was compiled for.
        TypeError: for what is no device.
    """
    if given is None:
        return
    allowed = tuple(known) or (cpu(),)
    accelerators = [candidate for candidate in allowed if candidate.type != cpu().type]
    request_list = [given] if isinstance(given, (Device, str)) or not _is_list(given) else given
    devices: list[Device] = []
    for one in request_list:
        requested_device = device(one) if isinstance(one, str) else one
        if not isinstance(requested_device, Device):
            raise TypeError(f"{what}: expected a device, got {type(requested_device).__name__}")
        devices.append(requested_device)
        if requested_device.type != cpu().type and requested_device not in allowed:
            expected = " or ".join(map(str, dict.fromkeys(allowed)))
            missing = "" if requested_device.exist else ", which is not there"
            raise InputError(f"{what}: expected {expected}, got {requested_device}{missing}")
    if devices and accelerators and all(chosen.type == cpu().type for chosen in devices):
        raise InputError(f"{what}: expected {accelerators[0]}, got {devices[0]}")


def devices_without_driver(devices: Iterable[Device]) -> list[Device]:
    """Return the devices for which this machine has no working driver."""
    missing = []
    for device_ in devices:
        try:
            if device_.type != cpu().type:
                get_global_func("ek.device.count")(device_)
        except DeviceError:
            missing.append(device_)
    return missing


def check_devices_present(devices: Iterable[Device]) -> None:
    """Raise LoadError for a device of which this machine has too few. Kinds without a driver are
    not checked.
    """
    for wanted_device in devices:
        if wanted_device.type == cpu().type:
            continue
        try:
            count = int(str(get_global_func("ek.device.count")(wanted_device)))
        except (DeviceError, ValueError):
            continue
        if wanted_device.id >= count:
            present = ", ".join(str(Device(wanted_device.type, n)) for n in range(count))
            raise LoadError(f"compile: {wanted_device} is not here: this machine has {present}")


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, (list, tuple))


__all__ = [
    "RemoteDeviceBase",
    "RemoteTensorProtocol",
    "check_devices",
    "check_devices_present",
    "cl",
    "cuda",
    "devices_without_driver",
    "enabled",
    "ext_dev",
    "gpu",
    "hexagon",
    "metal",
    "mtl",
    "opencl",
    "rocm",
    "vpi",
    "vulkan",
    "webgpu",
]
