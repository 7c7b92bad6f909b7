"""Schedule device kernels before host work that waits for results, so that queues stay filled.

    let %a = f(%x); let %h = device_copy(%a, opencl(0), cpu(0)); let %b = g(%x); h(%h)
->  let %a = f(%x); let %b = g(%x); let %h = device_copy(%a, opencl(0), cpu(0)); h(%h)

A device works at what is queued while the host goes on; a copy from it waits for what wrote the
value, and so does whoever is behind that copy. So of what could be next, work of devices and copies
to them come first, then the others, each in the order in which they stood. What may have an effect,
calls of functions and branches stay where they are, with all before them before and all behind them
behind. A module without devices other than the host stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Var
from ekiden.relay.op.annotation import DeviceCopyAttrs
from ekiden.relay.transform.devices.device_domains import DeviceDomains
from ekiden.relay.transform.devices.plan_devices import device_table
from ekiden.relay.transform.language.dead_code_elimination import is_pure
from ekiden.relay.transform.language.let_chains import LetBinding, LetChain, map_chains
from ekiden.relay.transform.language.scope_tree import (
    bodies,
    evaluation_order,
    lift_body_rewrite,
    map_functions,
)
from ekiden.target.virtual_device import HOST

__all__ = ["DevicesFirst"]


def DevicesFirst() -> Pass:  # noqa: N802
    """Return a pass that reorders bindings so that device work is queued before the host waits for
    results.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Reorder the bindings of a typed module in A-normal form."""
        kinds = {device.device_type for device in device_table(module)}
        # Host-only programs run in program order; reordering would only cost compile time.
        if kinds == {HOST.device_type}:
            return module
        domains = DeviceDomains(module)

        def reorder(chain: LetChain, is_function_body: bool) -> LetChain:
            """Reorder the runs of effect-free bindings of a let chain."""
            chain.bindings = _reorder_bindings(chain.bindings, domains)
            return chain

        return map_functions(module, lift_body_rewrite(lambda body: map_chains(body, reorder)))

    return Pass("DevicesFirst", transform, 0, ())


def _reorder_bindings(bindings: Sequence[LetBinding], domains: DeviceDomains) -> list[LetBinding]:
    result: list[LetBinding] = []
    run: list[LetBinding] = []
    for binding in bindings:
        _, value = binding
        # Effects and branches are barriers: nothing moves across them.
        if is_pure(value) and not bodies(value):
            run.append(binding)
            continue
        result += [*_list_schedule(run, domains), binding]
        run = []
    return result + _list_schedule(run, domains)


def _list_schedule(run: Sequence[LetBinding], domains: DeviceDomains) -> list[LetBinding]:
    """Schedule effect-free bindings topologically, device work first (list scheduling)."""
    positions = {variable: index for index, (variable, _) in enumerate(run)}
    users: list[list[int]] = [[] for _ in run]
    waits = [0] * len(run)
    for index, (_, value) in enumerate(run):
        for used in {positions[v] for v in _used_variables(value) if v in positions}:
            users[used].append(index)
            waits[index] += 1
    ready: list[tuple[bool, int]] = []

    def push_ready(at: int) -> None:
        """Push a binding whose operands are all scheduled; device work has priority."""
        # The position breaks ties, so the order is stable (Kahn's algorithm with a priority queue).
        heappush(ready, (not _is_device_work(run[at][1], domains), at))

    for index, count in enumerate(waits):
        if count == 0:
            push_ready(index)
    ordered: list[LetBinding] = []
    while ready:
        _, index = heappop(ready)
        ordered.append(run[index])
        for user in users[index]:
            waits[user] -= 1
            if waits[user] == 0:
                push_ready(user)
    return ordered


def _used_variables(value: RelayExpr) -> set[Var]:
    return {e for e in evaluation_order(value) if isinstance(e, Var)}


def _is_device_work(value: RelayExpr, domains: DeviceDomains) -> bool:
    """Return whether a value is queued on a device or copied to one."""
    if not isinstance(value, Call):
        return False
    if isinstance(value.attrs, DeviceCopyAttrs):
        return value.attrs.dst_virtual_device.device_type != HOST.device_type
    return domains.is_kernel_call(value) and domains.kernel_device(value).type != HOST.device_type
