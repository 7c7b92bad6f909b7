"""On which devices a model runs fastest: all of it on one, or parts on the host and on a device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from ekiden import runtime
from ekiden.backend.vm.place_by_cost import Costs
from ekiden.compiler.build import module_of
from ekiden.compiler.device_peak import Figures, measure_device
from ekiden.compiler.inputs import random_inputs
from ekiden.compiler.peak import measure_peak
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.pass_context import COSTS, with_options
from ekiden.relay.expr import Function
from ekiden.relay.transform.devices.plan_devices import said_places
from ekiden.runtime import Device, cpu
from ekiden.runtime.errors import CompileError, EkidenError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.profile.report import Peak
from ekiden.runtime.profile.timing import least_in_turns
from ekiden.target import Target
from ekiden.target.kinds import KINDS
from ekiden.target.target import TargetLike
from ekiden.target.virtual_device import DeviceLike, Targets, compilation_config

__all__ = ["Plan", "candidates", "fastest"]

_LOG = logging.getLogger("ekiden")
MEASURED = 0.3
"""Seconds that the runs of each plan take, at least."""
MARGIN = 0.95
"""Several devices take at most this share of the time of one: what is no faster is left."""
HOST_LAUNCH = 5e-7
"""Seconds until a kernel of the host is done that does next to nothing."""

Compile = Callable[[Targets], runtime.Executable]


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run a model: devices with their targets, the first for what nothing places; what
    operators and copies cost, where they are placed by that; whether the program itself places
    something on a device."""

    devices: Mapping[Device, Target]
    costs: Costs | None = None
    is_fixed: bool = False

    def __str__(self) -> str:
        names = ", ".join(map(str, self.devices))
        what = "the rest" if self.is_fixed else "all"
        first = names.partition(",")[0]
        return f"placed over {names}" if self.costs is not None else f"{what} on {first}"


def candidates(targets: Targets, model: object = None) -> list[Plan]:
    """A plan for each single device of those given: all that are here where there are none, the
    host always among them. What the program of `model` places on devices stays there in each.
    Raises CompileError for one that is not here, or several targets of it.
    """
    config = compilation_config(targets)
    if len(config.primitive_targets) != 1:
        raise CompileError("compile: devices 'auto' takes one target for the host")
    (host,) = config.primitive_targets
    if not host.serves(Target.host()):
        raise CompileError(f"compile: devices 'auto' measures on this machine, not for {host}")
    others = [each.device for each in config.devices if each.device.type != cpu().type]
    by_kind, fixed = config.by_kind, _fixed(model)
    if targets is None:
        named = {k.device_type: k.name for k in reversed(KINDS.values()) if k.has_generator}
        there = [Device(kind, 0) for kind in named if kind != cpu().type]
        others = [each for each in there if each.exist]
        others += [each for each in fixed if each.exist and each not in others]
        by_kind = {each.type: Target(named[each.type]) for each in others}
    for each in others:
        if not each.exist:
            raise CompileError(f"compile: devices 'auto' measures, and {each} is not here")
    kept = {each: by_kind[each.type] for each in others if each in fixed}
    alone = [
        Plan({each: by_kind[each.type], cpu(): host} | kept, None, bool(kept)) for each in others
    ]
    return [Plan({cpu(): host} | kept, None, bool(kept)), *alone]


def _fixed(model: object) -> list[Device]:
    """The devices other than the host that a program names."""
    if not isinstance(model, (IRModule, Function)):
        return []
    places = said_places(module_of(model))
    return list(dict.fromkeys(p.device for p in places if p.device.type != cpu().type))


def fastest(plans: Sequence[Plan], compile: Compile) -> runtime.Executable:
    """The executable of the plan that runs fastest, with inputs of random numbers, results fetched
    to the host: of the single devices, and of the host with each of the others, placed by what
    both were measured to do. The logger "ekiden" says what was measured.

    Raises what compiling or running it on the host raises; where a device fails, it is left out.
    """
    made = {str(plans[0]): compile(_targets(plans[0]))}
    feed = random_inputs(Executable(made[str(plans[0])]), {})
    for plan in plans[1:]:
        _try(plan, compile, feed, made)
    alone = _measured(made, feed)
    peak = measure_peak()
    for plan in plans[1:]:
        if str(plan) in alone and len(plan.devices) == 2:  # a cut has two sides
            for each in _mixed(plan, peak, alone[str(plans[0])], alone[str(plan)]):
                _try(each, compile, feed, made)
    if len(made) == len(alone):
        return made[min(alone, key=lambda name: alone[name])]
    times = _measured(made, feed)  # all again, in turns
    best = min(alone, key=lambda name: times[name])
    found = min(times, key=lambda name: times[name])
    if found not in alone and times[found] > MARGIN * times[best]:
        found = best
    _LOG.info("devices: %s", found)
    return made[found]


def _mixed(plan: Plan, peak: Peak, host: float, device: float) -> list[Plan]:
    """The host with the device of a plan, whose single times are known; with weights that lie as
    the host's kernels take them, and as the device's do."""
    (there, target), (here, own) = plan.devices.items()
    costs = _costs(peak, measure_device(there), host, device)
    orders: list[dict[Device, Target]] = [{here: own, there: target}, {there: target, here: own}]
    return [Plan(each, costs, plan.is_fixed) for each in orders]


def _costs(peak: Peak, figures: Figures, host: float, device: float) -> Costs:
    return Costs(
        (peak.flops, figures.flops),
        (peak.bandwidth, figures.bandwidth),
        (HOST_LAUNCH, figures.launch),
        (host, device),
        figures.there,
        figures.back,
        figures.latency,
    )


def _targets(plan: Plan) -> Targets:
    made: dict[DeviceLike, TargetLike | Sequence[TargetLike]] = {}
    for device, target in plan.devices.items():
        made[device] = target
    return made


def _try(
    plan: Plan, compile: Compile, feed: Mapping[str, Array], made: dict[str, runtime.Executable]
) -> None:
    """Compile a plan and run it once; where it fails, the log says why."""
    options = {COSTS: asdict(plan.costs)} if plan.costs is not None else {}
    try:
        with with_options(options):
            found = compile(_targets(plan))
        _fetched(Executable(found), feed)
    except (EkidenError, MemoryError) as error:
        _LOG.warning("devices: %s is left out: %s", plan, str(error).partition("\n")[0])
        return
    if plan.costs is not None and len(found.devices) == 1:
        _LOG.info("devices: %s: nothing pays for its copies", plan)
        return
    made[str(plan)] = found


def _measured(
    made: Mapping[str, runtime.Executable], feed: Mapping[str, Array]
) -> dict[str, float]:
    """Seconds of a run of each."""
    runs = [partial(_fetched, Executable(each), feed) for each in made.values()]
    times = dict(zip(made, least_in_turns(runs, MEASURED), strict=True))
    for name, seconds in times.items():
        _LOG.info("devices: %s: %.3f ms", name, seconds * 1e3)
    return times


def _fetched(executable: Executable, feed: Mapping[str, Array]) -> None:
    """Run, and have the results on the host."""
    found = executable(**feed)
    for each in found if isinstance(found, tuple) else (found,):
        if isinstance(each, runtime.Tensor):
            each.numpy()
