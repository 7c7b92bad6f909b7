"""Device domains and their unification: union-find nodes for single values, composites for tuples
and functions.
"""

from __future__ import annotations

from collections.abc import Iterator

from ekiden.ir.type import FuncType, TupleType, Type
from ekiden.relay.transform.fusion.union_find import UnionFindNode
from ekiden.relay.transform.shapes.control_values import is_small_integer_type
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.virtual_device import HOST, DeviceMemory, VirtualDevice


@dataclass(eq=False, slots=True)
class DeviceDomain(UnionFindNode):
    """Domain of a first-order value: a union-find node whose location is set once known."""

    location: DeviceMemory | None = None
    is_pinned: bool = False
    """Whether the value alone is on the host, while kernels that read or produce it may run
    elsewhere.
    """
    is_small: bool = True
    """Whether the domain holds only a few integers."""
    uses_pinned_value: bool = False
    """Whether the domain depends on a pinned value."""

    def pin(self) -> None:
        """Pin an unconstrained domain to the host without constraining its users."""
        if self.location is None:
            self.location, self.is_pinned = HOST.where, True


@dataclass(frozen=True, eq=False, slots=True)
class CompositeDomain:
    """Domains of the fields of a tuple, or of a function's parameters followed by its result."""

    items: tuple[Domain, ...]
    is_function: bool = False


Domain = DeviceDomain | CompositeDomain


def domain_of(kind: Type) -> Domain:
    """Return a fresh, unconstrained domain for values of a type."""
    if isinstance(kind, TupleType):
        return CompositeDomain(tuple(map(domain_of, kind.fields)))
    if isinstance(kind, FuncType):
        return CompositeDomain(
            tuple(map(domain_of, (*kind.arg_types, kind.ret_type))), is_function=True
        )
    return DeviceDomain(is_small=is_small_integer_type(kind))


def leaf_domains(domain: Domain) -> Iterator[DeviceDomain]:
    """Yield the leaves (first-order domains) of a domain, left to right."""
    stack = [domain]
    while stack:
        current = stack.pop()
        if isinstance(current, DeviceDomain):
            yield current.root()
        else:
            stack.extend(reversed(current.items))


def unify(a: Domain, b: Domain, *, always: bool = False) -> None:
    """Unify two domains leaf by leaf; leaves on different devices, or of which one is pinned, stay
    apart unless `always`. A tuple or function on one device has all its components there.
    """
    stack = [(a, b)]
    while stack:
        lhs, rhs = stack.pop()
        if isinstance(lhs, DeviceDomain) and isinstance(rhs, DeviceDomain):
            _union(lhs.root(), rhs.root(), always)
        elif isinstance(lhs, CompositeDomain) and isinstance(rhs, CompositeDomain):
            stack.extend(reversed(list(zip(lhs.items, rhs.items, strict=True))))
        else:
            # A leaf against a composite constrains all components to one device, as for fields of a
            # data type.
            composite, leaf = (lhs, rhs) if isinstance(lhs, CompositeDomain) else (rhs, lhs)
            assert isinstance(composite, CompositeDomain)
            stack.extend((item, leaf) for item in reversed(composite.items))


def _union(a: DeviceDomain, b: DeviceDomain, always: bool) -> None:
    if a is b:
        return
    # A pinned host scalar is copied to the device that reads it; unification would drag the reader
    # to the host.
    if not always and a.is_pinned != b.is_pinned:
        reader = b if a.is_pinned else a
        reader.uses_pinned_value = True
        return
    if a.location is None or b.location is None:
        location = a.location or b.location
        is_pinned = a.is_pinned or b.is_pinned
    elif (location := a.location.unify(b.location)) is None:
        return
    else:
        is_pinned = a.is_pinned and b.is_pinned
    # The root that has a location stays the root; the other one takes it over.
    child, parent = (a, b) if a.location is None else (b, a)
    child.parent, parent.location, parent.is_pinned = parent, location, is_pinned
    parent.is_small = a.is_small and b.is_small
    parent.uses_pinned_value = a.uses_pinned_value or b.uses_pinned_value


def constrain(domain: Domain, where: object) -> None:
    """Constrain the unconstrained leaves of a domain to annotated devices; for a function, those of
    its result. An annotation is a virtual device, or a tuple of annotations.
    """
    stack = [(domain, where)]
    while stack:
        position, mark = stack.pop()
        if isinstance(position, CompositeDomain) and position.is_function:
            stack.append((position.items[-1], mark))
        elif isinstance(mark, tuple) and isinstance(position, CompositeDomain):
            stack.extend(zip(position.items, mark, strict=False))
        elif isinstance(mark, VirtualDevice):
            for leaf in leaf_domains(position):
                current = leaf.location
                # A conflict keeps the earlier mark; a copy will bridge the two.
                leaf.location = (
                    mark.where if current is None else current.unify(mark.where) or current
                )
