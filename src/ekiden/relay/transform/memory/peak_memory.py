"""Static prediction of a planned program's peak memory.

Not a pass: it inspects the result of MemoryPlan. The peak is the greatest sum of storages alive at
a position, with each call of a function of the module as a point at which its own peak is added;
callees come first, so that every function is visited once. Branches of one value have positions of
their own, so that the greater of them counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm
from ekiden.ir.prim_visitor import free_vars
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.expr import Constructor, Function
from ekiden.relay.transform.devices.plan_devices import device_table
from ekiden.relay.transform.memory.offset_assignment import round_up
from ekiden.relay.transform.memory.storage_lifetimes import StorageLifetimes
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class _MemoryUsage:
    """Memory usage of a call in bytes: its peak, and what its result retains."""

    peak: int
    retained: int


def predict_peak(module: IRModule) -> int | None:
    """Return the peak bytes of arenas, storages and results during a run of `main`, or None where
    unknown.

    Inputs, constants and the scratch memory of kernels are not counted; of branches, the one that
    needs most. None where it depends on dimensions or data (symbolic sizes, recursion, closures),
    and for several devices.
    """
    if len(device_table(module)) > 1:
        return None  # copies between devices are made as they come
    needs: dict[str, _MemoryUsage | None] = {}
    for group in CallGraph(module).components():
        names = [g.name_hint for g in group]
        function = module[names[0]]
        is_plain = len(group) == 1 and isinstance(function, Function)
        needs[names[0]] = _function_usage(function, needs) if is_plain else None  # type: ignore[arg-type]
        needs.update(dict.fromkeys(names[1:]))
    main_need = needs.get("main")
    return None if main_need is None else main_need.peak


def _function_usage(
    function: Function, callees: Mapping[str, _MemoryUsage | None]
) -> _MemoryUsage | None:
    """Return the memory usage of a function, or None where it is unknown (as for recursion)."""
    if function.attr("Closure") is not None:
        return None
    lifetimes = StorageLifetimes(function.body, lambda callee: False)
    changes: list[tuple[int, int]] = []
    retained = 0
    for storage, request in lifetimes.requests.items():
        if free_vars(request.size):
            return None  # not asked of the simplifier: an arena's size may be a long expression
        size = round_up(request.size)
        if not isinstance(size, IntImm):
            return None
        for first, last in request.live_ranges():
            changes += [(first, size.value), (last + 1, -size.value)]
        retained += size.value if storage in lifetimes.escaped else 0
    for position, call in lifetimes.calls:
        if isinstance(call.op, (Op, Constructor)):
            continue
        need = callees.get(call.op.name_hint) if isinstance(call.op, GlobalVar) else None
        if need is None:
            return None
        retained += need.retained
        changes += [(position, need.peak), (position + 1, need.retained - need.peak)]
    return _MemoryUsage(_peak_of_changes(changes), retained)


def _peak_of_changes(changes: list[tuple[int, int]]) -> int:
    """Return the peak of a sequence of (position, byte change); at one position, frees
    come first.
    """
    live_bytes = highest = 0
    for _, change in sorted(changes):
        live_bytes += change
        highest = max(highest, live_bytes)
    return highest
