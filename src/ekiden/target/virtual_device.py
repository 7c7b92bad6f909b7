"""Virtual devices, and the devices and targets of a compilation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

from ekiden.ir.node import Node, ignored_field, node, set_frozen_fields
from ekiden.ir.pass_context import BOUND_CHECKERS_OPTION, FALLBACK_DEVICE_OPTION, PassContext
from ekiden.ir.prim import IntImm
from ekiden.runtime import Device, device
from ekiden.runtime.debug.short_repr import short_repr
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.kinds import TARGET_KINDS
from ekiden.target.target import Target, TargetLike, target_or_current

DeviceLike: TypeAlias = "VirtualDevice | Device | str"
"""Anything that names a device: itself, or a name such as "cpu:1"."""

CPU_DEVICE_TYPE = 1
"""DLPack device type of the host."""


class DeviceMemory(NamedTuple):
    """Memory of a device; the memory scope is "" if unspecified."""

    device: Device
    scope: str = ""

    def unify(self, other: DeviceMemory) -> DeviceMemory | None:
        """Return the placement that satisfies both; None if devices or memories differ."""
        if self.device != other.device or (self.scope and other.scope not in ("", self.scope)):
            return None
        return self if self.scope else other

    def virtual_device(self) -> VirtualDevice:
        """Return the virtual device that names it."""
        return VirtualDevice(self.device, memory_scope=self.scope)


@node("VirtualDevice")
class VirtualDevice(Node):
    """Device of a program, with DLPack's numbers (TVM's name and field order).

    The first field may be a Device, the name of one, or a number that is an expression. Memories of
    a device other than "global", which is also "", are planned and told apart; code is made for
    that one alone. What `target` says does not tell devices apart.
    """

    device_type: int | Device | str | IntImm = CPU_DEVICE_TYPE
    target: str | None = ignored_field(default=None)
    memory_scope: str = ""
    virtual_device_id: int = 0

    def __post_init__(self) -> None:
        """Split a Device or device name into type and number; a target is kept as text."""
        kind = self.device_type
        if isinstance(kind, IntImm):
            set_frozen_fields(self, device_type=kind.value)
        elif not isinstance(kind, int):
            parsed = device(kind)
            set_frozen_fields(self, device_type=parsed.type, virtual_device_id=parsed.id)
        set_frozen_fields(self, target=str(self.target) if self.target else None)

    @property
    def device(self) -> Device:
        """Return the device itself."""
        assert isinstance(self.device_type, int)
        return Device(self.device_type, self.virtual_device_id)

    @property
    def where(self) -> DeviceMemory:
        """Return the device and memory that distinguish it."""
        return DeviceMemory(self.device, "" if self.memory_scope == "global" else self.memory_scope)

    @property
    def device_type_int(self) -> int:
        """Return DLPack's device type number (TVM's name)."""
        assert isinstance(self.device_type, int)
        return self.device_type

    @property
    def is_host(self) -> bool:
        """Return whether it is the host, where shapes, conditions and the virtual machine live."""
        return self.device == HOST.device

    def __str__(self) -> str:
        """Return it as Relay text."""
        number = f", virtual_device_id={self.virtual_device_id}" if self.virtual_device_id else ""
        scope = f", memory_scope={json.dumps(self.memory_scope)}" if self.memory_scope else ""
        return f"VirtualDevice(device_type={self.device_type}{number}{scope})"


HOST = VirtualDevice()
"""The host, cpu(0)."""
ANY_VIRTUAL_DEVICE = VirtualDevice(-1)
"""Unconstrained device, by TVM's number."""

PARAM_DEVICES_ATTR, RESULT_DEVICE_ATTR = "param_virtual_devices", "virtual_device"
"""PARAM_DEVICES_ATTR: attribute of a planned function: the device of each parameter.
RESULT_DEVICE_ATTR:
attribute of a planned function: the device of its result. A place is a virtual device, a tuple of
places for a tuple, or None: of functions, and of what may be anywhere. A function of a planned
module without them has all on the host.
"""


def is_host_only(placement: object) -> bool:
    """Return whether the host is the only device of a placement."""
    if isinstance(placement, tuple):
        return all(map(is_host_only, placement))
    return not isinstance(placement, VirtualDevice) or placement.is_host


def virtual_device(value: DeviceLike) -> VirtualDevice:
    """Convert a value to a virtual device. Raises ValueError for an unknown name."""
    return value if isinstance(value, VirtualDevice) else VirtualDevice(value)


@dataclass(frozen=True, slots=True)
class CompilationConfig:
    """Devices of a compilation and the targets of their code (TVM's name).

    The first device is where a program is that does not say otherwise. Several targets are variants
    of the code, the best first: an executable runs the first that its machine can.
    """

    devices: tuple[VirtualDevice, ...] = (HOST,)
    primitive_targets: tuple[Target, ...] = ()
    device_targets: tuple[Target, ...] = ()
    """Target of each non-CPU device type."""

    @property
    def by_kind(self) -> dict[int, Target]:
        """Return the device targets by DLPack device type."""
        return {
            device_target.kind.device_type: device_target for device_target in self.device_targets
        }

    def device_targets_by(self, host: Target) -> dict[int, Target]:
        """Return the device targets for one variant of the host code, which becomes their host
        unless they name another.
        """
        pairs = self.by_kind.items()
        return {kind: t if t.host_target else t.with_host(host) for kind, t in pairs}

    @property
    def layout_target(self) -> Target | None:
        """Return the target of unplaced operators, whose kernels determine weight layouts; None if
        those run on the host, where every code variant has its own target.
        """
        return self.by_kind.get(self.default_primitive_virtual_device.device.type)

    @property
    def target(self) -> Target | None:
        """Return the first target, or None."""
        return self.primitive_targets[0] if self.primitive_targets else None

    @property
    def host_virtual_device(self) -> VirtualDevice:
        """Return the device that holds shapes and conditions."""
        return HOST

    @property
    def default_primitive_virtual_device(self) -> VirtualDevice:
        """Return the device of unplaced operators."""
        return self.devices[0]


Targets: TypeAlias = (
    "TargetLike | Mapping[DeviceLike, TargetLike | Sequence[TargetLike]] | Sequence[object] | None"
)
"""Targets of `compile`: one or several variants, or devices, each with its targets. None is the
current target, and this machine where there is none.
"""


BOUNDS_MODES = ("", "check")
"""Values of the bounds option: no checks, or an error that names the access."""


def with_bounds(targets: Targets, bounds: str) -> Targets:
    """Return targets whose code checks every buffer access if `bounds` is "check". Raises
    CompileError for another mode.
    """
    if bounds not in BOUNDS_MODES:
        allowed = " or ".join(map(repr, BOUNDS_MODES))
        raise CompileError(f"compile: bounds must be {allowed}, got {bounds!r}")
    if not bounds:
        return targets
    for _, device_targets in _device_target_pairs(targets):
        for parsed_target in map(Target.parse, device_targets):
            _check_bounds(parsed_target)
    checked_targets: dict[DeviceLike, TargetLike | Sequence[TargetLike]] = {
        virtual: [Target.parse(t).with_bounds(bounds) for t in device_targets or ("llvm",)]
        for virtual, device_targets in _device_target_pairs(targets)
    }
    return checked_targets


def with_context_bounds(target: Target) -> Target:
    """Return a target whose code checks accesses if the PassContext requests it. Raises
    CompileError for a kind that cannot.
    """
    if not PassContext.current().option(BOUND_CHECKERS_OPTION):
        return target
    _check_bounds(target)
    return target.with_bounds("check")


def _check_bounds(target: Target) -> None:
    if "bounds" not in target.kind.option_table:
        raise CompileError(f"compile: target kind {target.kind.name!r} has no bounds='check'")


def compilation_config(targets: Targets, host: TargetLike | None = None) -> CompilationConfig:
    """Return the devices and targets that the user's value describes: `"llvm"`, `["llvm
    -mcpu=x86-64-v4", "llvm -mcpu=x86-64-v3"]` for two variants, `{cpu(0): "llvm", cpu(1):
    "llvm"}`, or `[cpu(0), cpu(1)]`. `host` is the target of the code around kernels, for targets
    that name none. Raises CompileError if there is no target, a device is not supported, devices
    of a kind have different targets, or no code can be generated for a target.
    """
    pairs = [
        (virtual, tuple(_check_usable_target(t, host) for t in device_targets))
        for virtual, device_targets in _device_target_pairs(targets)
    ]
    if not pairs:
        raise CompileError(f"compile: a target or a device expected, got {short_repr(targets)}")
    plain = [virtual for virtual, device_targets in pairs if not device_targets]
    for virtual, device_targets in pairs:
        _check_kinds(virtual, device_targets)
        _check_once(virtual, plain)
    threads = _device_targets(pairs)
    lists = list(
        dict.fromkeys(
            device_targets
            for p, device_targets in pairs
            if device_targets and p.device_type == CPU_DEVICE_TYPE
        )
    )
    if not lists and threads:
        lists = [(threads[0].code_host,)]
    if len(lists) > 1:
        kinds = " and ".join(", ".join(map(str, device_targets)) for device_targets in lists)
        raise CompileError(f"compile: one target for all CPU devices expected, got {kinds}")
    by_device: dict[Device, VirtualDevice] = {}
    for pair_device, _ in pairs:
        check_supported(pair_device)
        by_device.setdefault(pair_device.device, pair_device)
    # Order is kept: earlier variants take precedence.
    variants = (
        tuple(dict.fromkeys(lists[0]))
        if lists
        else (_check_usable_target(target_or_current(), host),)
    )
    _check_variants(variants)
    devices = _default_first(tuple(by_device.values()) or (HOST,), PassContext.current())
    return CompilationConfig(devices, variants, threads)


def make_compilation_config(
    ctxt: PassContext, target: Targets, target_host: TargetLike | None = None
) -> CompilationConfig:
    """Return a configuration for a pass alone (TVM's name and argument order), for any kinds of
    devices: more can be planned for than code can be generated for.
    """
    pairs = [
        (virtual, tuple(map(Target.parse, device_targets)))
        for virtual, device_targets in _device_target_pairs(target)
    ]
    by_device = {virtual.device: virtual for virtual, _ in pairs}
    every = dict.fromkeys(
        device_target for _, device_targets in pairs for device_target in device_targets
    )
    hosted = [t.with_host(target_host) if target_host and not t.host_target else t for t in every]
    return CompilationConfig(
        _default_first(tuple(by_device.values()) or (HOST,), ctxt),
        tuple(t for t in hosted if t.kind.is_cpu),
        tuple(t for t in hosted if not t.kind.is_cpu),
    )


def _default_first(
    devices: tuple[VirtualDevice, ...], context: PassContext
) -> tuple[VirtualDevice, ...]:
    """Sort the devices of the context's default kind before the others. Raises CompileError if
    there is none.
    """
    kind = context.option(FALLBACK_DEVICE_OPTION)
    if kind and not any(candidate.device_type == kind for candidate in devices):
        listed = ", ".join(f"{entry.device} ({entry.device_type})" for entry in devices)
        raise CompileError(
            f"compile: option {FALLBACK_DEVICE_OPTION!r}: no device of kind {kind} in {listed}"
        )
    return tuple(sorted(devices, key=lambda ranked: kind not in (0, ranked.device_type)))


def _check_once(virtual: VirtualDevice, virtual_devices: Sequence[VirtualDevice]) -> None:
    """Raise CompileError if a device occurs twice, even under two names."""
    if sum(candidate.device == virtual.device for candidate in virtual_devices) > 1:
        raise CompileError(f"compile: different devices expected, got {virtual.device} twice")


def _check_kinds(virtual: VirtualDevice, device_targets: Sequence[Target]) -> None:
    """Raise CompileError for targets of another device type than the one they are given for."""
    check_supported(virtual)
    for target in device_targets:
        if target.kind.device_type != virtual.device_type:
            raise CompileError(
                f"compile: target kind {target.kind.name!r} makes no code for {virtual.device}"
            )


def _device_targets(pairs: Sequence[tuple[VirtualDevice, Sequence[Target]]]) -> tuple[Target, ...]:
    """Return the target of each non-CPU device type: the given one, the current one of that kind,
    or the kind's default. Raises CompileError for several.
    """
    by_type: dict[int, Target] = {}
    for virtual, device_targets in sorted(
        pairs, key=lambda pair: not pair[1]
    ):  # what is said holds for all
        kind = virtual.device_type_int
        if kind == CPU_DEVICE_TYPE:
            continue
        current = Target.current()
        usual = current if current is not None and current.kind.device_type == kind else None
        chosen = (
            device_targets[0]
            if device_targets
            else by_type.get(kind) or usual or _default_target(kind)
        )
        if len(device_targets) > 1 or by_type.get(kind, chosen) != chosen:
            raise CompileError(f"compile: one target for all devices of {virtual.device} expected")
        by_type[kind] = chosen
    return tuple(by_type.values())


def _default_target(device_type: int) -> Target:
    """Return the default target of a device type: the first kind that has a generator."""
    names = [
        k.name for k in TARGET_KINDS.values() if k.device_type == device_type and k.has_generator
    ]
    return Target(names[0])


def with_host(targets: Targets, host: TargetLike | None) -> Targets:
    """Return the targets with `host` set where they name none. Raises CompileError as
    `compilation_config`.
    """
    if host is None:
        return targets
    config = compilation_config(targets, host)
    by_device: dict[DeviceLike, TargetLike | Sequence[TargetLike]] = {}
    for virtual in config.devices:
        by_device[virtual] = config.primitive_targets
    return by_device


def _check_usable_target(target_like: TargetLike, host: TargetLike | None) -> Target:
    """Parse a target that code can be generated for, with its host and bounds mode."""
    target = Target.parse(target_like)
    if host is not None and target.host_target is None:
        target = target.with_host(host)
    target.check_usable("compile")
    return with_context_bounds(target)


def _check_variants(variants: Sequence[Target]) -> None:
    for index, later in enumerate(variants):
        for before in variants[:index]:
            if before.serves(later):
                never = f"code for {later.cpu} would never run: {before.cpu} stands before it"
                raise CompileError(f"compile: {never}, and runs wherever it does")


def check_supported(virtual: VirtualDevice) -> None:
    """Raise CompileError for a device without a code generator, or a memory scope that code cannot
    name.
    """
    kinds = {k.device_type: k.name for k in reversed(TARGET_KINDS.values()) if k.has_generator}
    if virtual.device_type not in kinds:
        supported = ", ".join(f"{device(number)}" for number in sorted(kinds))
        raise CompileError(
            f"compile: there is no code generator for {virtual.device}; there are those for "
            f"{supported}"
        )
    if virtual.virtual_device_id < 0:
        raise CompileError(f"compile: devices are numbered from 0, got {virtual.device}")
    if virtual.where.scope:
        got_text = f"got {virtual.where.scope!r} of {virtual.device}"
        raise CompileError(f"compile: the memory scope 'global' expected, {got_text}")


def _device_target_pairs(targets: Targets) -> Iterator[tuple[VirtualDevice, Sequence[TargetLike]]]:
    """Yield each device with its targets, possibly none."""
    if targets is None:
        targets = target_or_current()
    if isinstance(targets, Mapping) and not is_target(targets):
        virtual_devices = [virtual_device(name) for name in targets]
        for virtual, device_targets in zip(virtual_devices, targets.values(), strict=True):
            _check_once(virtual, virtual_devices)
            yield virtual, _code_variants(device_targets)
        return
    given_all = _as_sequence(targets)
    parsed = {id(t): Target.parse(t) for t in given_all if is_target(t)}
    variants = [t for t in parsed.values() if t.kind.is_cpu]
    for entry in given_all:
        if is_target(entry):
            parsed_device = parsed[id(entry)]
            virtual = (
                HOST if parsed_device.kind.is_cpu else VirtualDevice(parsed_device.kind.device_type)
            )
            yield virtual, variants if parsed_device.kind.is_cpu else (parsed_device,)
        elif isinstance(entry, (Device, VirtualDevice)):
            yield virtual_device(entry), ()
        else:
            raise CompileError(f"compile: a target or a device expected, got {short_repr(entry)}")


def _code_variants(value: object) -> Sequence[TargetLike]:
    """Return the code variants of one device. Raises CompileError if an entry is no target."""
    variants = [candidate for candidate in _as_sequence(value) if is_target(candidate)]
    if not variants or len(variants) != len(_as_sequence(value)):
        raise CompileError(f"compile: a target expected, got {value!r}")
    return variants


def is_target(value: object) -> TypeGuard[TargetLike]:
    """Return whether a value names a target: text, a dictionary with a kind or tag, or a Target."""
    if isinstance(value, Mapping):
        return "kind" in value or "tag" in value
    return isinstance(value, (str, Target))


def _as_sequence(value: object) -> Sequence[object]:
    """Return a value that may be a single target as a sequence."""
    if isinstance(value, (str, Device)) or not isinstance(value, Sequence):
        return (value,)
    return value
