"""Automatic device selection: measure candidate device plans, and choose the fastest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from ekiden import runtime
from ekiden.backend.vm.min_cut_placement import DeviceCosts
from ekiden.compiler.device_peak import DevicePeaks, measure_device
from ekiden.compiler.machine_peak import measure_peak
from ekiden.compiler.sample_inputs import random_inputs
from ekiden.frontend.relay_program.entry import as_module
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.pass_context import PLACEMENT_COSTS_OPTION, with_options
from ekiden.relay.expr import Function
from ekiden.relay.transform.devices.plan_devices import iter_virtual_devices
from ekiden.runtime import Device, cpu
from ekiden.runtime.errors import CompileError, EkidenError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.profile.report import MachinePeak
from ekiden.runtime.profile.timing import min_times_interleaved
from ekiden.target import Target
from ekiden.target.kinds import TARGET_KINDS
from ekiden.target.target import TargetLike
from ekiden.target.virtual_device import DeviceLike, Targets, compilation_config

__all__ = ["DevicePlan", "candidate_plans", "compile_fastest_plan"]

_LOG = logging.getLogger("ekiden")
MIN_MEASURE_TIME_S = 0.3
"""Minimum total time of a plan's runs, in seconds."""
MAX_TIME_RATIO = 0.95
"""Maximum time of a plan of several devices relative to the best single device."""
HOST_LAUNCH_S = 5e-7
"""Overhead of a minimal host kernel, in seconds."""

CompileFunction = Callable[[Targets], runtime.Executable]


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Candidate device placement of a model: devices with their targets (the default one first),
    measured costs, and whether the program itself fixes placements.
    """

    devices: Mapping[Device, Target]
    costs: DeviceCosts | None = None
    is_fixed: bool = False

    def __str__(self) -> str:
        names = ", ".join(map(str, self.devices))
        what = "the rest" if self.is_fixed else "all"
        first = names.partition(",")[0]
        return f"placed over {names}" if self.costs is not None else f"{what} on {first}"


def candidate_plans(targets: Targets, model: object = None) -> list[DevicePlan]:
    """Return a plan for each single device, host included, of the requested ones or of all present
    ones. What the program of `model` places on devices stays there. Raises CompileError for a
    missing device, or several targets of one.
    """
    config = compilation_config(targets)
    if len(config.primitive_targets) != 1:
        raise CompileError("compile: devices 'auto' takes one target for the host")
    (host,) = config.primitive_targets
    if not host.serves(Target.host()):
        raise CompileError(f"compile: devices 'auto' measures on this machine, not for {host}")
    accelerators = [
        listed_device.device
        for listed_device in config.devices
        if listed_device.device.type != cpu().type
    ]
    by_kind, fixed = config.by_kind, _declared_devices(model)
    if targets is None:
        named = {k.device_type: k.name for k in reversed(TARGET_KINDS.values()) if k.has_generator}
        devices = [Device(kind, 0) for kind in named if kind != cpu().type]
        accelerators = [present_device for present_device in devices if present_device.exist]
        accelerators += [
            fixed_device
            for fixed_device in fixed
            if fixed_device.exist and fixed_device not in accelerators
        ]
        by_kind = {
            chosen_device.type: Target(named[chosen_device.type]) for chosen_device in accelerators
        }
    for device in accelerators:
        if not device.exist:
            raise CompileError(
                "compile: devices 'auto' measures on devices of this machine, and "
                f"{device} is not here"
            )
    fixed_targets = {
        fixed_one: by_kind[fixed_one.type] for fixed_one in accelerators if fixed_one in fixed
    }
    alone = [
        DevicePlan(
            {accelerator: by_kind[accelerator.type], cpu(): host} | fixed_targets,
            None,
            bool(fixed_targets),
        )
        for accelerator in accelerators
    ]
    return [DevicePlan({cpu(): host} | fixed_targets, None, bool(fixed_targets)), *alone]


def _declared_devices(model: object) -> list[Device]:
    """Return the non-host devices that a program's annotations name."""
    if not isinstance(model, (IRModule, Function)):
        return []
    annotated = iter_virtual_devices(as_module(model))
    return list(dict.fromkeys(p.device for p in annotated if p.device.type != cpu().type))


def compile_fastest_plan(
    plans: Sequence[DevicePlan], compile: CompileFunction
) -> runtime.Executable:
    """Compile and measure every plan with random inputs, single devices first, then the host with
    each of them; return the fastest executable. The logger "ekiden" reports the measurements.
    Raises the errors of the host's plan; devices that fail are skipped.
    """
    executables = {str(plans[0]): compile(_plan_targets(plans[0]))}
    feed = random_inputs(Executable(executables[str(plans[0])]), {})
    # Mixed plans need measured whole-program times of both sides, so single devices come first.
    for plan in plans[1:]:
        _compile_and_run(plan, compile, feed, executables)
    alone = _measure_executables(executables, feed)
    peak = measure_peak()
    for plan in plans[1:]:
        if str(plan) in alone and len(plan.devices) == 2:  # a cut has two sides
            for mixed_plan in _mixed_plans(plan, peak, alone[str(plans[0])], alone[str(plan)]):
                _compile_and_run(mixed_plan, compile, feed, executables)
    if len(executables) == len(alone):
        return executables[min(alone, key=lambda name: alone[name])]
    # Measured again in one session: clock frequencies may have changed since the single devices
    # ran.
    times = _measure_executables(executables, feed)  # all again, in turns
    best = min(alone, key=lambda name: times[name])
    fastest_name = min(times, key=lambda name: times[name])
    if fastest_name not in alone and times[fastest_name] > MAX_TIME_RATIO * times[best]:
        fastest_name = best
    _LOG.info("devices: %s", fastest_name)
    return executables[fastest_name]


def _mixed_plans(
    plan: DevicePlan, peak: MachinePeak, host: float, device: float
) -> list[DevicePlan]:
    """Return the plans of the host with a device: with weights packed for the host's kernels, and
    for the device's.
    """
    (accelerator, target), (host_device, own) = plan.devices.items()
    costs = _device_costs(peak, measure_device(accelerator), host, device)
    orders: list[dict[Device, Target]] = [
        {host_device: own, accelerator: target},
        {accelerator: target, host_device: own},
    ]
    return [DevicePlan(order, costs, plan.is_fixed) for order in orders]


def _device_costs(
    peak: MachinePeak, figures: DevicePeaks, host: float, device: float
) -> DeviceCosts:
    """Return the placement costs of a device and the host, from their measured figures."""
    return DeviceCosts(
        (peak.flops, figures.flops),
        (peak.bandwidth, figures.bandwidth),
        (HOST_LAUNCH_S, figures.launch_s),
        (host, device),
        figures.to_device_bandwidth,
        figures.to_host_bandwidth,
        figures.copy_latency_s,
    )


def _plan_targets(plan: DevicePlan) -> Targets:
    by_device: dict[DeviceLike, TargetLike | Sequence[TargetLike]] = {}
    for device, target in plan.devices.items():
        by_device[device] = target
    return by_device


def _compile_and_run(
    plan: DevicePlan,
    compile: CompileFunction,
    feed: Mapping[str, Array],
    executables: dict[str, runtime.Executable],
) -> None:
    """Compile a plan and run it once; log the reason if it fails."""
    options = {PLACEMENT_COSTS_OPTION: asdict(plan.costs)} if plan.costs is not None else {}
    try:
        with with_options(options):
            executable = compile(_plan_targets(plan))
        _run_and_fetch(Executable(executable), feed)
    except (EkidenError, MemoryError) as error:
        _LOG.warning("devices: %s is left out: %s", plan, str(error).partition("\n")[0])
        return
    # The minimum cut put everything on one side.
    if plan.costs is not None and len(executable.devices) == 1:
        _LOG.info("devices: %s: nothing pays for its copies", plan)
        return
    executables[str(plan)] = executable


def _measure_executables(
    executables: Mapping[str, runtime.Executable], feed: Mapping[str, Array]
) -> dict[str, float]:
    """Return the seconds per run of each executable."""
    runs = [
        partial(_run_and_fetch, Executable(executable), feed) for executable in executables.values()
    ]
    times = dict(zip(executables, min_times_interleaved(runs, MIN_MEASURE_TIME_S), strict=True))
    for name, seconds in times.items():
        _LOG.info("devices: %s: %.3f ms", name, seconds * 1e3)
    return times


def _run_and_fetch(executable: Executable, feed: Mapping[str, Array]) -> None:
    """Run and copy the results to the host."""
    result = executable(**feed)
    for output in result if isinstance(result, tuple) else (result,):
        if isinstance(output, runtime.Tensor):
            output.numpy()
