"""Host placement analysis of control values, small integers that are better computed on the host.

    @loop(%i, %x) { if (less(%i, 10)) { @loop(add(%i, 1), exp(%x)) } else { %x } }
->  %i, add(%i, 1) and less(%i, 10) are on the host, %x and exp(%x) where the program runs

Branches and sizes are decided on the host. A value that one of them reads is copied there from
where it is computed, which waits for the device. So whatever leads to a decision and does not come
from the device's own work is computed on the host instead. A place qualifies if it holds a few
integers alone, all kernels that give them are cheap, and each of these reads places that qualify,
constants or shapes; it is on the host if a decision reads it, or kernels that give what one reads.
A decision that combines such a place with a few integers of the device, as the test of a loop with
both a counter and a tolerance does, is taken on the host too: that copies no more than its result
would, and starts fewer kernels. So is a place into which nothing but values of the host go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from enum import Enum
from math import prod
from typing import TYPE_CHECKING

from ekiden.ir.op import Op, OpPattern
from ekiden.ir.prim import IntImm
from ekiden.ir.type import RelayRefType, TensorType, TupleType, Type
from ekiden.relay.expr import Call
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.virtual_device import HOST

if TYPE_CHECKING:
    from ekiden.relay.transform.devices.unification import DeviceDomain


class HostReason(Enum):
    """Reason why an operator runs on the host of a heterogeneous program."""

    CONTROL = "decides what runs next or how large a tensor is"
    SHAPE = "reads shapes, which the host has"
    REFUSED = "the device has no code for it"
    FUNCTION = "is a function of the host"
    ENGINE = "runs in an engine, which takes memory of the host"
    PLACED = "is placed there"
    DEFAULT = "no mark places it elsewhere"


MAX_CONTROL_ELEMENTS = 16
"""Maximum elements of a control value: a shape, or padding on both sides of every axis."""


@dataclass(frozen=True, eq=False, slots=True)
class KernelStep:
    """Kernel call with the domains of its results and non-constant arguments, and whether it is
    cheap on the host.
    """

    results: tuple[DeviceDomain, ...]
    arguments: tuple[DeviceDomain, ...]
    is_cheap: bool


def is_small_integer_type(kind: Type) -> bool:
    """Return whether a type, or the contents of a reference, is integers or booleans of at most
    MAX_CONTROL_ELEMENTS elements.
    """
    while isinstance(kind, RelayRefType):
        kind = kind.value
    if isinstance(kind, TupleType):
        return all(map(is_small_integer_type, kind.fields))
    if not isinstance(kind, TensorType) or not kind.dtype.startswith(("int", "uint", "bool")):
        return False
    # An unknown dimension could be any number of elements.
    sizes = [d.value for d in kind.shape if isinstance(d, IntImm)]
    return len(sizes) == len(kind.shape) and prod(sizes) <= MAX_CONTROL_ELEMENTS


def is_cheap_kernel(call: Call) -> bool:
    """Return whether a kernel is elementwise, a data movement or a reduction."""
    return not isinstance(call.op, Op) or call.op.definition.pattern <= OpPattern.COMM_REDUCE


def find_host_domains(
    every: Iterable[DeviceDomain],
    steps: Sequence[KernelStep],
    needs: Iterable[DeviceDomain],
    entry: Iterable[DeviceDomain],
) -> list[DeviceDomain]:
    """Return the unplaced domains of `every` that belong on the host. `needs` are domains that the
    host reads, `entry` those of the caller's arguments.
    """
    makers: dict[DeviceDomain, list[KernelStep]] = defaultdict(list)
    readers: dict[DeviceDomain, list[KernelStep]] = defaultdict(list)
    for step in steps:
        for domain in step.results:
            makers[domain].append(step)
        for domain in step.arguments:
            readers[domain].append(step)
    # Domains are merged during unification, so only their roots can be compared.
    inputs = {domain_in_entry.root() for domain_in_entry in entry}
    pending = [domain_in_needs.root() for domain_in_needs in needs]
    qualified = {p: None for p in every if _is_candidate(p, p in makers or p in inputs)}

    def is_disqualifying(step: KernelStep) -> bool:
        """Return whether a step is expensive or reads values computed on a device."""
        return not step.is_cheap or any(
            p not in qualified and not _is_on_host(p) for p in step.arguments
        )

    # Results of unfit steps lose their qualification, which can make their readers unfit in turn.
    waiting = [step for step in steps if is_disqualifying(step)]
    while waiting:
        for domain in waiting.pop().results:
            if domain in qualified:
                del qualified[domain]
                waiting += (step for step in readers[domain] if is_disqualifying(step))
    # No kernel computes these, so the host has them without a copy.
    pinned = {
        p: None for p in qualified if p.uses_pinned_value and p not in makers and p not in inputs
    }
    visited: set[DeviceDomain] = set()
    # From the values that the host reads back to all that they are computed from.
    while pending:
        domain = pending.pop()
        given_by = makers.get(domain, [])
        # Without the set of visited places a loop would be followed without end.
        if domain in visited or not (
            domain in qualified or _is_control_value(domain, given_by, qualified)
        ):
            continue
        visited.add(domain)
        pinned[domain] = None
        pending += (p for step in given_by for p in step.arguments)
    return list(pinned)


def _is_control_value(
    domain: DeviceDomain, steps: Sequence[KernelStep], qualified: Container[DeviceDomain]
) -> bool:
    """Return whether a domain holds integers computed only from small integers, some of them on
    the host.
    """
    arguments = [p for step in steps for p in step.arguments]
    return (
        domain.location is None
        and domain.is_small
        and all(step.is_cheap for step in steps)
        and all(p.is_small or _is_on_host(p) for p in arguments)
        and any(p in qualified or _is_on_host(p) for p in arguments)
    )


def _is_candidate(domain: DeviceDomain, is_computed: bool) -> bool:
    """Return whether a domain is unplaced and holds small integers, or copies of host values."""
    is_copy = domain.uses_pinned_value and not is_computed
    return domain.location is None and (domain.is_small or is_copy)


def _is_on_host(domain: DeviceDomain) -> bool:
    return domain.location == HOST.where


__all__ = [
    "MAX_CONTROL_ELEMENTS",
    "HostReason",
    "KernelStep",
    "find_host_domains",
    "is_cheap_kernel",
    "is_small_integer_type",
]
