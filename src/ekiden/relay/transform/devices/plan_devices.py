"""Device placement: assign each value to a device, and insert copies where a value is used on
another.

    def @main(%a, %b) { %0 = on_device(nn.relu(%a), virtual_device=cpu(1)); add(%0, %b) }
->  def @main(%a {virtual_device=cpu(1)}, %b {virtual_device=cpu(0)}, virtual_device=cpu(0)) {
      %0 = nn.relu(%a); %1 = on_device(%0, virtual_device=cpu(1), constrain_result=True);
      add(device_copy(%1, cpu(1), cpu(0)), %b) }

Afterwards copies and the attributes of functions (`PARAM_DEVICES_ATTR` of
ekiden.target.virtual_device) say where each value is. Marks, `on_device` with both constraints, say
it once more where it is not
that of what is around: on what a `let` binds, on what is copied, and on what is used beside values
of another device, so that a pass need not look further than the next mark outside. With
`marks=False`, which is what the compiler goes on with, they are left out.

Planning again changes nothing. A constant is on the host unless it is copied, which costs nothing
at run time; a kernel takes it where it runs. A tuple is copied field by field; a function that is
used with others than its devices is wrapped in one that copies. A module that says nothing of
devices stays as it is where the host is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import FuncType, RelayRefType, TupleType, Type
from ekiden.relay.expr import (
    Call,
    Clause,
    Constant,
    Constructor,
    Function,
    Let,
    Match,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.op.annotation import DeviceCopyAttrs, OnDeviceAttrs, device_copy, on_device
from ekiden.relay.transform.devices.device_domains import (
    DEVICE_TABLE_ATTR,
    HOST_OPERATORS_ATTR,
    DeviceDomains,
)
from ekiden.relay.transform.devices.unification import CompositeDomain, DeviceDomain, Domain
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import evaluation_order, infer_local_type, is_atom
from ekiden.relay.visitor import children, pattern_vars, rebuild
from ekiden.runtime import register_func
from ekiden.runtime.errors import CompileError
from ekiden.target.virtual_device import (
    HOST,
    PARAM_DEVICES_ATTR,
    RESULT_DEVICE_ATTR,
    CompilationConfig,
    DeviceMemory,
    VirtualDevice,
    check_supported,
    is_host_only,
)

_UNANNOTATED_NODES = Var, GlobalVar, Op, Constructor, Function
"""Node classes that need no device annotation."""


def device_table(module: IRModule) -> tuple[VirtualDevice, ...]:
    """Return the devices of a planned module; only the host for an unplanned one."""
    devices = module.attrs.get(DEVICE_TABLE_ATTR, (HOST,))
    assert isinstance(devices, tuple)
    return devices


class _DevicePlanner:
    """Rewriter that inserts device copies and annotations into the functions of one module."""

    def __init__(self, domains: DeviceDomains, marks: bool) -> None:
        self.domains = domains
        self.marks = marks
        self._rewritten: dict[RelayExpr, RelayExpr] = {}
        self._copies: dict[tuple[object, ...], RelayExpr] = {}
        """Copies by (value, source, destination), shared by all uses."""

    def plan(self, function: Function) -> Function:
        """Rewrite a global function with copies, and attach the locations of its parameters and
        result.
        """
        for expr in self.domains.orders[function]:
            self._rewritten[expr] = self._rewrite_expr(expr)
        domain = self.domains.domain_for(function)
        assert isinstance(domain, CompositeDomain)
        body = self._copy_to_domain(function.body, domain.items[-1])
        return self._with_location_attrs(function.with_fields(body=body), domain)

    def _rewrite_expr(self, expr: RelayExpr) -> RelayExpr:
        if is_atom(expr) or isinstance(expr, Constant):
            return expr
        if isinstance(expr, Call) and isinstance(expr.attrs, (OnDeviceAttrs, DeviceCopyAttrs)):
            return self._copy_to_domain(expr.args[0], self.domains.domain_for(expr))
        new_children = self._place_children(expr)
        if isinstance(expr, TupleGetItem) and not isinstance(expr.tuple_value, Tuple):
            new_tuple = new_children[0]
            # Taking the field of a new tuple would keep copies of its other fields alive.
            if isinstance(new_tuple, Tuple):  # copied field by field
                return new_tuple.fields[expr.index]
        rewritten = _rebuild_with_children(expr, new_children)
        if isinstance(rewritten, Function):
            domain = self.domains.domain_for(expr)
            assert isinstance(domain, CompositeDomain)
            rewritten = self._with_location_attrs(rewritten, domain)
        if rewritten is not expr and (old_type := expr.checked_type_or_none()) is not None:
            rewritten.set_checked_type(old_type)
        return rewritten

    def _place_children(self, expr: RelayExpr) -> list[RelayExpr]:
        """Return the rewritten children of an expression, copied to where it requires them."""
        takes_constants = self.domains.is_kernel_call(expr)
        around = self.domains.scope_location(expr)
        placed: list[RelayExpr] = []
        for child, where in zip(children(expr), self.domains.operand_domains(expr), strict=True):
            if takes_constants and isinstance(child, Constant):
                placed.append(child)
                continue
            value = (
                self._rewritten.get(child, child)
                if where is None
                else self._copy_to_domain(child, where)
            )
            if self.marks and not (isinstance(expr, Let) and child is expr.body):
                location = (
                    where and self.domains.single_location(where)
                ) or self.domains.scope_location(child)
                value = value if location == around else self._annotate(value, location)
            placed.append(value)
        return placed

    def _annotate(self, value: RelayExpr, location: DeviceMemory | None) -> RelayExpr:
        """Wrap a value in `on_device`, unless it needs no annotation (variables, functions)."""
        is_marked = isinstance(value, Call) and isinstance(value.attrs, OnDeviceAttrs)
        if not self.marks or location is None or is_marked or isinstance(value, _UNANNOTATED_NODES):
            return value
        marked = on_device(value, location.virtual_device(), constrain_result=True)
        if (old_type := value.checked_type_or_none()) is not None:
            marked.set_checked_type(old_type)
        return marked

    def _copy_to_domain(self, child: RelayExpr, where: Domain) -> RelayExpr:
        """Return the rewritten child, copied to the required domain."""
        value = self._rewritten.get(child, child)
        if isinstance(child, Constant):
            infer_local_type(child)
        return self._convert_domain(
            value, child.checked_type, self.domains.domain_for(child), where
        )

    def _convert_domain(
        self, value: RelayExpr, kind: Type, source: Domain, destination: Domain
    ) -> RelayExpr:
        """Convert a value from one domain to another, by a copy where their locations differ."""
        if isinstance(source, DeviceDomain) and isinstance(destination, DeviceDomain):
            if self.domains.location_of(source) == self.domains.location_of(destination):
                return value
            # A constant is moved at compile time, so a mark is enough.
            if self.marks and isinstance(value, Constant):
                return self._annotate(value, self.domains.location_of(destination))
        elif self._is_same_location(source, destination):
            return value
        # The None separates the two lists of locations, whose lengths may differ.
        key = (
            value,
            *self.domains.locations_of(source),
            None,
            *self.domains.locations_of(destination),
        )
        # Copies are shared by all users of a (value, source, destination) triple: one transfer per
        # device.
        if key not in self._copies:
            self._copies[key] = self._emit_copy(value, kind, source, destination)
        return self._copies[key]

    def _is_same_location(self, source: Domain, destination: Domain) -> bool:
        """Return whether two domains have the same locations, leaf by leaf."""
        if isinstance(source, DeviceDomain) and isinstance(destination, DeviceDomain):
            return self.domains.location_of(source) == self.domains.location_of(destination)
        pairs = zip(
            _component_domains(source, destination),
            _component_domains(destination, source),
            strict=True,
        )
        return all(self._is_same_location(a, b) for a, b in pairs)

    def _emit_copy(
        self, value: RelayExpr, kind: Type, source_domain: Domain, target_domain: Domain
    ) -> RelayExpr:
        if isinstance(kind, TupleType):
            fields = [
                self._convert_domain(_tuple_field(value, n), k, a, b)
                for n, (k, a, b) in enumerate(
                    zip(
                        kind.fields,
                        _component_domains(source_domain, target_domain),
                        _component_domains(target_domain, source_domain),
                        strict=True,
                    )
                )
            ]
            return infer_local_type(Tuple(tuple(fields)))
        if isinstance(kind, FuncType):
            return self._wrap_function(
                value,
                kind,
                _component_domains(source_domain, target_domain),
                _component_domains(target_domain, source_domain),
            )
        assert isinstance(source_domain, DeviceDomain) and isinstance(target_domain, DeviceDomain)
        source, target = (
            self.domains.location_of(source_domain),
            self.domains.location_of(target_domain),
        )
        # Two copies of a mutable cell would diverge.
        if isinstance(kind, RelayRefType):
            where = f" ({value.span})" if value.span else ""
            raise CompileError(
                f"PlanDevices{where}: a reference on {target.device} expected, got one on"
                f" {source.device}, and a"
                " reference cannot be copied"
            )
        value = self._annotate(value, source)
        copy = device_copy(value, source.virtual_device(), target.virtual_device())
        return infer_local_type(copy.with_fields(span=value.span))

    def _wrap_function(
        self,
        value: RelayExpr,
        kind: FuncType,
        source_items: tuple[Domain, ...],
        target_items: tuple[Domain, ...],
    ) -> RelayExpr:
        """Emit an adapter `fn (%x) { copy(value(copy(%x))) }` for a function value on another
        device.
        """
        # Code is present on all devices; only arguments and results are transferred.
        params = tuple(Var("x", arg_type) for arg_type in kind.arg_types)
        for param, param_type in zip(params, kind.arg_types, strict=True):
            param.set_checked_type(param_type)
        moved = zip(params, kind.arg_types, target_items[:-1], source_items[:-1], strict=True)
        call = Call(value, tuple(self._convert_domain(*param_move) for param_move in moved))
        call.set_checked_type(kind.ret_type)
        body = self._convert_domain(call, kind.ret_type, source_items[-1], target_items[-1])
        wrapper = self._with_location_attrs(
            Function(params, body, kind.ret_type), CompositeDomain(target_items, is_function=True)
        )
        wrapper.set_checked_type(kind)
        return wrapper

    def _with_location_attrs(self, function: Function, domain: CompositeDomain) -> Function:
        """Attach the locations of a function's parameters and result as attributes."""
        pairs = zip(domain.items, _signature_types(function), strict=True)
        *params, result = (
            self.domains.location_attribute(position, of, self.marks) for position, of in pairs
        )
        plain = function.without_attr(PARAM_DEVICES_ATTR).without_attr(RESULT_DEVICE_ATTR)
        if not self.marks and is_host_only((*params, result)):
            return plain
        param_attrs = (
            {PARAM_DEVICES_ATTR: tuple(params)} if any(params) else {}
        )  # as the text says them
        return plain.with_attr({**param_attrs, RESULT_DEVICE_ATTR: result})


def _signature_types(function: Function) -> list[Type]:
    return [*(p.checked_type for p in function.params), function.body.checked_type]


def _component_domains(domain: Domain, like: Domain) -> tuple[Domain, ...]:
    """Return the components of a domain; a leaf is repeated to the arity of the other domain."""
    if isinstance(domain, CompositeDomain):
        return domain.items
    assert isinstance(like, CompositeDomain)
    return (domain,) * len(like.items)


def _tuple_field(value: RelayExpr, index: int) -> RelayExpr:
    return (
        value.fields[index]
        if isinstance(value, Tuple)
        else infer_local_type(TupleGetItem(value, index))
    )


def _rebuild_with_children(expr: RelayExpr, new_children: list[RelayExpr]) -> RelayExpr:
    """Rebuild an expression with replaced children.

    A variable that a pattern binds and a clause returns may be two of them.
    """
    if not isinstance(expr, Match):
        return rebuild(expr, new_children)
    results = _clause_results(expr, new_children)
    same = all(c.rhs is new_rhs for c, new_rhs in zip(expr.clauses, results, strict=True))
    if same and new_children[0] is expr.data:
        return expr
    clauses = tuple(
        Clause(c.lhs, clause_rhs) for c, clause_rhs in zip(expr.clauses, results, strict=True)
    )
    return Match(new_children[0], clauses, expr.complete, span=expr.span)


def _clause_results(expr: Match, new_children: list[RelayExpr]) -> list[RelayExpr]:
    """Return the rewritten right-hand sides of a match's clauses."""
    results, position = [], 0
    for clause in expr.clauses:
        position += len(pattern_vars(clause.lhs)) + 1
        results.append(new_children[position])
    return results


def iter_virtual_devices(module: IRModule) -> Iterator[VirtualDevice]:
    """Yield the virtual devices that a module mentions in annotations, copies, function attributes
    or its table.
    """
    yield from _flatten_devices(module.attrs.get(DEVICE_TABLE_ATTR, ()))
    for function in module.functions.values():
        if not isinstance(function, Function):
            continue
        for expr in (function, *evaluation_order(function.body)):
            match expr:
                case Call(attrs=OnDeviceAttrs() as mark):
                    yield mark.virtual_device
                case Call(attrs=DeviceCopyAttrs() as copy):
                    yield from (copy.src_virtual_device, copy.dst_virtual_device)
                case Function():
                    yield from _flatten_devices(
                        (expr.attr(PARAM_DEVICES_ATTR), expr.attr(RESULT_DEVICE_ATTR))
                    )


def _flatten_devices(attribute: object) -> Iterator[VirtualDevice]:
    """Yield the virtual devices in a nested tuple of function attributes."""
    if isinstance(attribute, tuple):
        for item in attribute:
            yield from _flatten_devices(item)
    elif isinstance(attribute, VirtualDevice):
        yield attribute


def _has_device_annotations(module: IRModule) -> bool:
    """Return whether a module mentions any device."""
    return any(True for _ in iter_virtual_devices(module))


def PlanDevices(  # noqa: N802
    config: CompilationConfig | None = None,
    *,
    marks: bool = True,
    refuses: Callable[[Call], bool] | None = None,
) -> Pass:
    """Return a pass that assigns values to devices and inserts device copies (TVM's PlanDevices).

    Without `marks`, the pass raises CompileError for devices that no code can be made for, and for
    others than those of a `config`.

    Args:
        config: The default devices: the host, unless it is given.
        marks: Whether marks are written, for planning that any device may take part in.
        refuses: Tells the calls of operators that the default device has no code for: they run on
            the
            host.
    """
    chosen = config or CompilationConfig()

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Plan a module, unless everything is on the host.

        Without marks the devices are written to the module's attribute, which the next run reads.
        """
        # A second run must not move what the first one has left on the host.
        default = (
            HOST if DEVICE_TABLE_ATTR in module.attrs else chosen.default_primitive_virtual_device
        )
        if default.is_host and not _has_device_annotations(module):
            return module
        domains = DeviceDomains(
            module, default.where, refuses if DEVICE_TABLE_ATTR not in module.attrs else None
        )
        attrs = {name: value for name, value in module.attrs.items() if name != DEVICE_TABLE_ATTR}
        if not marks:
            attrs[DEVICE_TABLE_ATTR] = table = _build_device_table(domains, config)
            if DEVICE_TABLE_ATTR not in module.attrs and len(table) > 1:
                rows = domains.host_reasons().items()
                attrs[HOST_OPERATORS_ATTR] = [[reason.value, *names] for reason, names in rows]
        planner = _DevicePlanner(domains, marks)
        planned: dict[GlobalVar | str, BaseFunc] = {
            g: planner.plan(f) if isinstance(f, Function) else f
            for g, f in module.functions.items()
        }
        return InferType()(IRModule(planned, module.type_definitions, attrs))

    return Pass("PlanDevices", transform, 0, (InferType(),))


def _build_device_table(
    domains: DeviceDomains, config: CompilationConfig | None
) -> tuple[VirtualDevice, ...]:
    """Return the devices that a program uses, and check that each is supported and configured.

    Raises:
        CompileError: For a device that there is no code for, or that the program is not compiled
            for.
    """
    devices = tuple(location.virtual_device() for location in domains.used_locations())
    # Reported here, with the program at hand, rather than by the run that lacks the device.
    for device in devices:
        check_supported(device)
        configured = [] if config is None else [d.device for d in config.devices]
        if (
            configured
            and device.device_type != HOST.device_type
            and device.device not in configured
        ):
            raise CompileError(
                f"compile: the program places values on {device.device}, and is compiled for"
                f" {', '.join(map(str, configured))}: name it, as in [cpu(0), {device.device}]"
            )
    return devices


@register_func("relay.transform.RecoverVirtualDeviceMap")
def recover_virtual_device_map(
    module: IRModule, function: Function
) -> dict[RelayExpr, VirtualDevice]:
    """Return the virtual device of each expression of a function of a planned module.

    Values on several devices, as some tuples are, and operators, which are everywhere, are left
    out.
    """
    domains = DeviceDomains(module)
    devices = {}
    for expr in (function, *function.params, *evaluation_order(function.body)):
        where = (
            None
            if isinstance(expr, (Op, Constructor))
            else domains.single_location(domains.domain_for(expr))
        )
        if where is not None:
            devices[expr] = where.virtual_device()
    return devices
