"""VirtualDevice: where a program wants a value to be, and what a compilation knows of devices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

from ekiden.ir.node import Node, freeze, ignored, node
from ekiden.ir.pass_context import CHECKS_BOUNDS, FALLBACK, PassContext
from ekiden.ir.prim import IntImm
from ekiden.runtime import Device, device
from ekiden.runtime.debug.shown import shown
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.kinds import KINDS
from ekiden.target.target import Target, TargetLike, target_or_current

DeviceLike: TypeAlias = "VirtualDevice | Device | str"
"""What names a device: itself, or a name such as "cpu:1"."""

CPU = 1
"""DLPack's number for the kind of device that the host is."""


class Where(NamedTuple):
    """A device, and one of its memories: "" where nobody said which."""

    device: Device
    scope: str = ""

    def joined(self, other: Where) -> Where | None:
        """Where a value is that is at both; None for two devices or two memories."""
        if self.device != other.device or (self.scope and other.scope not in ("", self.scope)):
            return None
        return self if self.scope else other

    def virtual_device(self) -> VirtualDevice:
        """The virtual device that says it."""
        return VirtualDevice(self.device, memory_scope=self.scope)


@node("VirtualDevice")
class VirtualDevice(Node):
    """A device of a program, in DLPack's numbers (TVM's name and order of fields).

    The first field may be a Device, the name of one, or a number that is an expression. Memories of
    a device other than "global", which is also "", are planned and told apart; code is made for
    that one alone. What `target` says does not tell devices apart.
    """

    device_type: int | Device | str | IntImm = CPU
    target: str | None = ignored(default=None)
    memory_scope: str = ""
    virtual_device_id: int = 0

    def __post_init__(self) -> None:
        """Take a Device or name apart; a target is kept as its text."""
        kind = self.device_type
        if isinstance(kind, IntImm):
            freeze(self, device_type=kind.value)
        elif not isinstance(kind, int):
            found = device(kind)
            freeze(self, device_type=found.type, virtual_device_id=found.id)
        freeze(self, target=str(self.target) if self.target else None)

    @property
    def device(self) -> Device:
        """The device itself."""
        assert isinstance(self.device_type, int)
        return Device(self.device_type, self.virtual_device_id)

    @property
    def where(self) -> Where:
        """What tells it from others."""
        return Where(self.device, "" if self.memory_scope == "global" else self.memory_scope)

    @property
    def device_type_int(self) -> int:
        """DLPack's number for the kind of device (TVM's name)."""
        assert isinstance(self.device_type, int)
        return self.device_type

    @property
    def is_host(self) -> bool:
        """Whether it is the device on which shapes, conditions and the virtual machine are."""
        return self.device == HOST.device

    def __str__(self) -> str:
        """As Relay text says it."""
        number = f", virtual_device_id={self.virtual_device_id}" if self.virtual_device_id else ""
        scope = f", memory_scope={json.dumps(self.memory_scope)}" if self.memory_scope else ""
        return f"VirtualDevice(device_type={self.device_type}{number}{scope})"


HOST = VirtualDevice()
"""cpu(0)."""
ANYWHERE = VirtualDevice(-1)
"""No device in particular (TVM's number for it)."""

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
    device_targets: tuple[Target, ...] = ()
    """Of kinds of devices that are no processors, one for each; the others are then of the host."""

    @property
    def by_kind(self) -> dict[int, Target]:
        """The targets of devices by DLPack's numbers of their kinds."""
        return {each.kind.device_type: each for each in self.device_targets}

    def device_targets_by(self, host: Target) -> dict[int, Target]:
        """The same for one variant of the host's code, which is that around kernels too unless a
        target names another host.
        """
        pairs = self.by_kind.items()
        return {kind: t if t.host_target else t.with_host(host) for kind, t in pairs}

    @property
    def layout_target(self) -> Target | None:
        """The target of operators that nothing places, whose kernels say how weights lie; None
        where those run on the host: each variant of the code has a target of its own.
        """
        return self.by_kind.get(self.default_primitive_virtual_device.device.type)

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


Targets: TypeAlias = (
    "TargetLike | Mapping[DeviceLike, TargetLike | Sequence[TargetLike]] | Sequence[object] | None"
)
"""What `compile` takes: targets, of which several are variants; or devices, alone or each with its
targets. None is the current target, and this machine where there is none."""


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
    for _, given in _pairs(targets):
        for each in map(Target.parse, given):
            _check_bounds(each)
    made: dict[DeviceLike, TargetLike | Sequence[TargetLike]] = {
        place: [Target.parse(t).with_bounds(bounds) for t in given or ("llvm",)]
        for place, given in _pairs(targets)
    }
    return made


def with_asked_bounds(target: Target) -> Target:
    """A target, whose code checks accesses where the PassContext asks for it. Raises CompileError
    for a kind that cannot."""
    if not PassContext.current().option(CHECKS_BOUNDS):
        return target
    _check_bounds(target)
    return target.with_bounds("check")


def _check_bounds(target: Target) -> None:
    if "bounds" not in target.kind.option_table:
        raise CompileError(f"compile: target kind {target.kind.name!r} has no bounds='check'")


def compilation_config(targets: Targets, host: TargetLike | None = None) -> CompilationConfig:
    """The devices and targets of what a user gives: `"llvm"`,
    `["llvm -mcpu=x86-64-v4", "llvm -mcpu=x86-64-v3"]` for two variants,
    `{cpu(0): "llvm", cpu(1): "llvm"}`, `[cpu(0), cpu(1)]`. `host` is the target of the code around
    kernels, for targets that name none.

    Raises CompileError for none, for devices other than CPUs, for different targets of two devices,
    for a target that no code can be made for, and for a variant that would never be chosen.
    """
    pairs = [(place, tuple(_usable(t, host) for t in given)) for place, given in _pairs(targets)]
    if not pairs:
        raise CompileError(f"compile: a target or a device expected, got {shown(targets)}")
    plain = [place for place, given in pairs if not given]
    for place, given in pairs:
        _check_kinds(place, given)
        _check_once(place, plain)
    threads = _device_targets(pairs)
    lists = list(dict.fromkeys(given for p, given in pairs if given and p.device_type == CPU))
    if not lists and threads:
        lists = [(threads[0].code_host,)]
    if len(lists) > 1:
        kinds = " and ".join(", ".join(map(str, given)) for given in lists)
        raise CompileError(f"compile: one target for all CPU devices expected, got {kinds}")
    found: dict[Device, VirtualDevice] = {}
    for each, _ in pairs:
        check_supported(each)
        found.setdefault(each.device, each)
    variants = tuple(dict.fromkeys(lists[0])) if lists else (_usable(target_or_current(), host),)
    _check_variants(variants)
    devices = _default_first(tuple(found.values()) or (HOST,), PassContext.current())
    return CompilationConfig(devices, variants, threads)


def make_compilation_config(
    ctxt: PassContext, target: Targets, target_host: TargetLike | None = None
) -> CompilationConfig:
    """The same for a pass alone (TVM's name and order), of any kinds of devices and targets: what
    can be planned for is more than what code can be made for.
    """
    pairs = [(place, tuple(map(Target.parse, given))) for place, given in _pairs(target)]
    places = {place.device: place for place, _ in pairs}
    every = dict.fromkeys(each for _, given in pairs for each in given)
    hosted = [t.with_host(target_host) if target_host and not t.host_target else t for t in every]
    return CompilationConfig(
        _default_first(tuple(places.values()) or (HOST,), ctxt),
        tuple(t for t in hosted if t.kind.is_cpu),
        tuple(t for t in hosted if not t.kind.is_cpu),
    )


def _default_first(
    devices: tuple[VirtualDevice, ...], context: PassContext
) -> tuple[VirtualDevice, ...]:
    """The devices, those of the kind that the context wants to be the default before others."""
    kind = context.option(FALLBACK)
    if kind and not any(each.device_type == kind for each in devices):
        there = ", ".join(f"{each.device} ({each.device_type})" for each in devices)
        raise CompileError(f"compile: option {FALLBACK!r}: no device of kind {kind} in {there}")
    return tuple(sorted(devices, key=lambda each: kind not in (0, each.device_type)))


def _check_once(place: VirtualDevice, places: Sequence[VirtualDevice]) -> None:
    """Raises CompileError for a device that stands twice among those given, be it by two names."""
    if sum(each.device == place.device for each in places) > 1:
        raise CompileError(f"compile: different devices expected, got {place.device} twice")


def _check_kinds(place: VirtualDevice, given: Sequence[Target]) -> None:
    """Raises CompileError for targets of another kind of device than the one they are for."""
    check_supported(place)
    for each in given:
        if each.kind.device_type != place.device_type:
            raise CompileError(
                f"compile: target kind {each.kind.name!r} makes no code for {place.device}"
            )


def _device_targets(pairs: Sequence[tuple[VirtualDevice, Sequence[Target]]]) -> tuple[Target, ...]:
    """The target of each kind of device that is no processor: the one given, or the current one of
    that kind, or what the name of the kind alone says. Raises CompileError for several."""
    found: dict[int, Target] = {}
    for place, given in sorted(pairs, key=lambda pair: not pair[1]):  # what is said holds for all
        kind = place.device_type_int
        if kind == CPU:
            continue
        current = Target.current()
        usual = current if current is not None and current.kind.device_type == kind else None
        asked = given[0] if given else found.get(kind) or usual or _kind_of(kind)
        if len(given) > 1 or found.get(kind, asked) != asked:
            raise CompileError(f"compile: one target for all devices of {place.device} expected")
        found[kind] = asked
    return tuple(found.values())


def _kind_of(device_type: int) -> Target:
    """The target of a kind of device, by the name of the first kind that has a generator."""
    names = [k.name for k in KINDS.values() if k.device_type == device_type and k.has_generator]
    return Target(names[0])


def with_host(targets: Targets, host: TargetLike | None) -> Targets:
    """The same for targets that name no host, with one. Raises CompileError as
    `compilation_config`."""
    if host is None:
        return targets
    config = compilation_config(targets, host)
    found: dict[DeviceLike, TargetLike | Sequence[TargetLike]] = {}
    for each in config.devices:
        found[each] = config.primitive_targets
    return found


def _usable(given: TargetLike, host: TargetLike | None) -> Target:
    """A target that code can be made for, with its host."""
    target = Target.parse(given)
    if host is not None and target.host_target is None:
        target = target.with_host(host)
    target.check_usable("compile")
    return with_asked_bounds(target)


def _check_variants(variants: Sequence[Target]) -> None:
    for at, later in enumerate(variants):
        for before in variants[:at]:
            if before.serves(later):
                never = f"code for {later.cpu} would never run: {before.cpu} stands before it"
                raise CompileError(f"compile: {never}, and runs wherever it does")


def check_supported(each: VirtualDevice) -> None:
    """Raises CompileError for a device that there is no code generator for, and for a memory of it
    that code cannot name.
    """
    kinds = {k.device_type: k.name for k in reversed(KINDS.values()) if k.has_generator}
    if each.device_type not in kinds:
        there = ", ".join(f"{device(number)}" for number in sorted(kinds))
        raise CompileError(
            f"compile: there is no code generator for {each.device}; there are those for {there}"
        )
    if each.virtual_device_id < 0:
        raise CompileError(f"compile: devices are numbered from 0, got {each.device}")
    if each.where.scope:
        got = f"got {each.where.scope!r} of {each.device}"
        raise CompileError(f"compile: the memory scope 'global' expected, {got}")


def _pairs(targets: Targets) -> Iterator[tuple[VirtualDevice, Sequence[TargetLike]]]:
    """Devices, each with its targets or none."""
    if targets is None:
        targets = target_or_current()
    if isinstance(targets, Mapping) and not is_target(targets):
        places = [virtual_device(each) for each in targets]
        for place, given in zip(places, targets.values(), strict=True):
            _check_once(place, places)
            yield place, _targets(given)
        return
    given_all = _several(targets)
    parsed = {id(t): Target.parse(t) for t in given_all if is_target(t)}
    variants = [t for t in parsed.values() if t.kind.is_cpu]
    for each in given_all:
        if is_target(each):
            own = parsed[id(each)]
            place = HOST if own.kind.is_cpu else VirtualDevice(own.kind.device_type)
            yield place, variants if own.kind.is_cpu else (own,)
        elif isinstance(each, (Device, VirtualDevice)):
            yield virtual_device(each), ()
        else:
            raise CompileError(f"compile: a target or a device expected, got {shown(each)}")


def _targets(given: object) -> Sequence[TargetLike]:
    """The variants of one device."""
    found = [each for each in _several(given) if is_target(each)]
    if not found or len(found) != len(_several(given)):
        raise CompileError(f"compile: a target expected, got {given!r}")
    return found


def is_target(given: object) -> TypeGuard[TargetLike]:
    """Whether something names a target: a text, a dictionary with a kind or a tag, or itself."""
    if isinstance(given, Mapping):
        return "kind" in given or "tag" in given
    return isinstance(given, (str, Target))


def _several(given: object) -> Sequence[object]:
    """What may be one target, as a sequence."""
    if isinstance(given, (str, Device)) or not isinstance(given, Sequence):
        return (given,)
    return given
