"""VirtualDevice: where a program wants a value to be, and what a compilation knows of devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ekiden.ir.node import Node, freeze, ignored, node
from ekiden.runtime import Device, device
from ekiden.runtime.errors import CompileError
from ekiden.target.target import Target

DeviceLike: TypeAlias = "VirtualDevice | Device | str"
"""What names a device: itself, or a name such as "cpu:1"."""

Each = TypeVar("Each")

CPU = 1
"""DLPack's number for the kind of device that the host is."""


@node("VirtualDevice")
class VirtualDevice(Node):
    """A device of a program, in DLPack's numbers (TVM's name and order of fields).

    The first field may be a Device or the name of one. Of memory scopes there is "global" alone:
    another raises ValueError. What `target` says does not tell devices apart.
    """

    device_type: int | Device | str = CPU
    target: str = ignored(default="")
    memory_scope: str = ignored(default="")
    virtual_device_id: int = 0

    def __post_init__(self) -> None:
        """Take a Device or name apart; a target is kept as its text."""
        if not isinstance(self.device_type, int):
            found = device(self.device_type)
            freeze(self, device_type=found.type, virtual_device_id=found.id)
        if self.memory_scope not in ("", "global"):
            got = f"got {self.memory_scope!r}"
            raise ValueError(f"VirtualDevice: expected the memory scope 'global', {got}")
        freeze(self, target=str(self.target or ""))

    @property
    def device(self) -> Device:
        """The device itself."""
        assert isinstance(self.device_type, int)
        return Device(self.device_type, self.virtual_device_id)

    @property
    def is_host(self) -> bool:
        """Whether it is the device on which shapes, conditions and the virtual machine are."""
        return self.device == HOST.device

    def __str__(self) -> str:
        """As Relay text says it."""
        number = f", virtual_device_id={self.virtual_device_id}" if self.virtual_device_id else ""
        return f"VirtualDevice(device_type={self.device_type}{number})"


HOST = VirtualDevice()
"""cpu(0)."""

PARAM_PLACES, RESULT_PLACE = "param_virtual_devices", "virtual_device"
"""The attributes of a planned function: the place of each parameter, and of the result. A place is
a virtual device, a tuple of places for a tuple, or None: of functions, and of what may be anywhere.
A function of a planned module without them has all on the host.
"""


def all_on_host(places: object) -> bool:
    """Whether no device but the host is among places."""
    if isinstance(places, tuple):
        return all(map(all_on_host, places))
    return not isinstance(places, VirtualDevice) or places.is_host


def virtual_device(value: DeviceLike) -> VirtualDevice:
    """The virtual device that a value names. Raises ValueError for an unknown name."""
    return value if isinstance(value, VirtualDevice) else VirtualDevice(value)


@dataclass(frozen=True, slots=True)
class CompilationConfig:
    """The devices of a compilation and the targets of their code (TVM's name).

    The first device is where a program is that does not say otherwise. Several targets are variants
    of the code, the best first: an executable runs the first that its machine can.
    """

    devices: tuple[VirtualDevice, ...] = (HOST,)
    primitive_targets: tuple[Target, ...] = ()

    @property
    def target(self) -> Target | None:
        """The first target."""
        return self.primitive_targets[0] if self.primitive_targets else None

    @property
    def host_virtual_device(self) -> VirtualDevice:
        """Where shapes and conditions are."""
        return HOST

    @property
    def default_primitive_virtual_device(self) -> VirtualDevice:
        """Where operators run that nothing places."""
        return self.devices[0]


TargetLike: TypeAlias = str | Target
Targets: TypeAlias = (
    "TargetLike | Mapping[DeviceLike, TargetLike | Sequence[TargetLike]] | Sequence[object]"
)
"""What `compile` takes: targets, of which several are variants; or devices, alone or each with its
targets."""


BOUNDS = ("", "check")
"""What code does about accesses outside of a buffer: nothing, or say which one it was."""


def with_bounds(targets: Targets, bounds: str) -> Targets:
    """Targets, whose code checks every access of a buffer where `bounds` is "check".

    Raises CompileError for another word.
    """
    if bounds not in BOUNDS:
        known = " or ".join(map(repr, BOUNDS))
        raise CompileError(f"compile: bounds must be {known}, got {bounds!r}")
    if not bounds:
        return targets
    return {
        place: [Target.parse(t).with_bounds(bounds) for t in given or ("llvm",)]
        for place, given in _pairs(targets)
    }


def compilation_config(targets: Targets) -> CompilationConfig:
    """The devices and targets of what a user gives: `"llvm"`,
    `["llvm -mcpu=x86-64-v4", "llvm -mcpu=x86-64-v3"]` for two variants,
    `{cpu(0): "llvm", cpu(1): "llvm"}`, `[cpu(0), cpu(1)]`.

    Raises CompileError for none, for devices other than CPUs, for different targets of two devices,
    and for a variant that would never be chosen.
    """
    pairs = [(place, tuple(map(Target.parse, given))) for place, given in _pairs(targets)]
    if not pairs:
        raise CompileError(f"compile: a target or a device expected, got {targets!r}")
    lists = list(dict.fromkeys(given for _, given in pairs if given))
    if len(lists) > 1:
        kinds = " and ".join(", ".join(map(str, given)) for given in lists)
        raise CompileError(f"compile: one target for all CPU devices expected, got {kinds}")
    found: dict[Device, VirtualDevice] = {}
    for each, _ in pairs:
        check_supported(each)
        found.setdefault(each.device, each)
    variants = tuple(dict.fromkeys(lists[0])) if lists else (Target.parse("llvm"),)
    _check_variants(variants)
    return CompilationConfig(tuple(found.values()) or (HOST,), variants)


def _check_variants(variants: Sequence[Target]) -> None:
    for at, later in enumerate(variants):
        for before in variants[:at]:
            if before.serves(later):
                never = f"code for {later.cpu} would never run: {before.cpu} stands before it"
                raise CompileError(f"compile: {never}, and runs wherever it does")


def check_supported(each: VirtualDevice) -> None:
    """Raises CompileError for a device that there is no code generator for."""
    if each.device_type != CPU:
        raise CompileError(f"compile: CPU devices expected, got {each.device}")


def _pairs(targets: Targets) -> Iterator[tuple[VirtualDevice, Sequence[TargetLike]]]:
    """Devices, each with its targets or none."""
    if isinstance(targets, Mapping):
        for place, given in targets.items():
            yield virtual_device(place), _several(given)
        return
    given_all = _several(targets)
    variants = [t for t in given_all if isinstance(t, (str, Target))]
    for each in given_all:
        if isinstance(each, (str, Target)):
            yield HOST, variants
        else:
            assert isinstance(each, (Device, VirtualDevice))
            yield virtual_device(each), ()


def _several(given: TargetLike | Sequence[Each]) -> Sequence[TargetLike | Each]:
    """What may be one target, as a sequence."""
    return (given,) if isinstance(given, (str, Target)) else given
