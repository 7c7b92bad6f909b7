"""Devices that a caller names: as values, by TVM's names, and whether they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from ekiden.runtime.binding._core import Device, Tensor, cpu, device, get_global_func
from ekiden.runtime.errors import DeviceError, InputError, LoadError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class FarDevice(Device):
    """A device of another machine: tensors on it are made there, and only what knows it takes it.
    Whatever derives from it says how.
    """

    def empty(self, shape: Sequence[int], dtype: str) -> FarTensor:
        """A new tensor there."""
        raise NotImplementedError

    def array(self, source: Tensor | ArrayLike) -> FarTensor:
        """A new tensor there with the elements of one here."""
        raise NotImplementedError


class FarTensor(Protocol):
    """A tensor of another machine."""

    device: Device
    dtype: str
    shape: tuple[int, ...]

    def numpy(self) -> NDArray[Any]:
        """An array here with the elements."""


def _kind(name: str) -> Callable[[int], Device]:
    """What makes the devices of a kind."""

    def make(dev_id: int = 0) -> Device:
        return device(name, dev_id)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = (
        f"A device of the kind {name!r}, by its number: a value, whether or not it is there."
    )
    return make


cuda = _kind("cuda")
opencl = _kind("opencl")
vulkan = _kind("vulkan")
metal = _kind("metal")
rocm = _kind("rocm")
vpi = _kind("vpi")
ext_dev = _kind("ext_dev")
hexagon = _kind("hexagon")
webgpu = _kind("webgpu")
gpu, cl, mtl = cuda, opencl, metal
"""TVM's older names."""


def _has_package(name: str) -> Callable[[], bool]:
    return lambda: import_module("importlib.util").find_spec(name) is not None


_COMPILERS: dict[str, Callable[[], bool]] = {
    "llvm": _has_package("llvmlite"),
    "c": lambda: (
        any(map(import_module("shutil").which, ("cc", "gcc", "clang"))) or _has_package("ziglang")()
    ),
    "rpc": lambda: True,
}
"""Kind of target that the host runs -> whether code can be made for it here; and sessions."""


def enabled(target: str) -> bool:
    """Whether a kind of target or device ("llvm", "cpu", "cuda"), or "rpc", can be used in this
    process.

    Raises ValueError for a name that is neither, with those there are.
    """
    name = target.split()[0] if target.strip() else target
    return _COMPILERS[name]() if name in _COMPILERS else device(name).exist


def check_devices(what: str, given: object, known: Sequence[Device] = ()) -> None:
    """Whether a program runs on the devices that are given, or names of them, one or several; None
    is any. `known` are the program's, by default the host alone. Each is to be one of those, where
    any processor is the host, and they are not to be the host alone where the program has others:
    code is for the devices that it was compiled for.

    Raises InputError for one that is not, TypeError for what is no device.
    """
    if given is None:
        return
    places = tuple(known) or (cpu(),)
    others = [each for each in places if each.type != cpu().type]
    asked = [given] if isinstance(given, (Device, str)) or not _is_list(given) else given
    found: list[Device] = []
    for one in asked:
        each = device(one) if isinstance(one, str) else one
        if not isinstance(each, Device):
            raise TypeError(f"{what}: expected a device, got {type(each).__name__}")
        found.append(each)
        if each.type != cpu().type and each not in places:
            there = " or ".join(map(str, dict.fromkeys(places)))
            missing = "" if each.exist else ", which is not there"
            raise InputError(f"{what}: expected {there}, got {each}{missing}")
    if found and others and all(each.type == cpu().type for each in found):
        raise InputError(f"{what}: expected {others[0]}, got {found[0]}")


def without_driver(devices: Iterable[Device]) -> list[Device]:
    """Return those of the devices that this machine has no working driver for."""
    missing = []
    for device_ in devices:
        try:
            if device_.type != cpu().type:
                get_global_func("ek.device.count")(device_)
        except DeviceError:
            missing.append(device_)
    return missing


def check_here(devices: Iterable[Device]) -> None:
    """Whether devices are among those of this machine, as far as their drivers can say: where there
    is no driver of a kind, nothing is known of them.

    Raises LoadError for one of a kind that this machine has fewer devices of.
    """
    for each in devices:
        if each.type == cpu().type:
            continue
        try:
            count = int(str(get_global_func("ek.device.count")(each)))
        except (DeviceError, ValueError):
            continue
        if each.id >= count:
            there = ", ".join(str(Device(each.type, n)) for n in range(count))
            raise LoadError(f"compile: {each} is not here: this machine has {there}")


def _is_list(given: object) -> TypeGuard[Sequence[object]]:
    return isinstance(given, (list, tuple))


__all__ = [
    "FarDevice",
    "FarTensor",
    "check_devices",
    "check_here",
    "cl",
    "cuda",
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
    "without_driver",
]
