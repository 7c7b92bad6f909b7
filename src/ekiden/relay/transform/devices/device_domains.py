"""Device placement by unification: the device domain of every Relay expression.

A value has a domain: that of a tensor, of data and of a reference is one place; that of a tuple has
a domain for each field, that of a function one for each parameter and one for the result. What must
lie together shares a place: the arguments and the result of an operator, a reference or a data
structure and all it holds, a variable and its uses, the parameters of a function and the arguments
of all its calls. Marks of the program go first; then uses in the order of evaluation. Where a use
would put two devices into one place, the places stay apart, and the value is copied there.

Conditions, sizes that are read and arguments of functions of the host are needed on the host. Such
a need is met by a copy and is never unified: it says nothing of what computes the value, nor does a
value of the host pull what reads it there (`Place.is_pinned`). A few integers that are computed for
nothing but such needs, and from nothing but each other and shapes (counters, sizes), are on the
host, as are calls of kernels that the device refuses (`control_values`). The place of a tensor
whose shape alone is read does not matter.

It is unification as of types, with one difference: a conflict is no error but a copy, so the order
of what is unified decides where copies are. Hence six rounds: what can never be apart (a variable
and its value; all of a type variable that stands for functions), then marks, then what marks ask of
their arguments, then what moves values and computes none (branches, calls of functions, data), then
values of the host, then kernels in the order of evaluation. Union by reference and path shortening
make it nearly linear (Joined).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, MemoryAliasing, Op
from ekiden.ir.prim_visitor import post_order
from ekiden.ir.type import FuncType, TensorType, TupleType, Type, TypeVar
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Function,
    If,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
)
from ekiden.relay.op.annotation import DeviceCopyAttrs, OnDeviceAttrs
from ekiden.relay.op.vm import BindDimsAttrs
from ekiden.relay.transform.devices.uncopyable_type_vars import uncopyable_type_variables
from ekiden.relay.transform.devices.unification import (
    CompositeDomain,
    DeviceDomain,
    Domain,
    constrain,
    domain_of,
    leaf_domains,
    unify,
)
from ekiden.relay.transform.language.scope_tree import evaluation_order, is_atom
from ekiden.relay.transform.shapes.control_values import (
    HostReason,
    KernelStep,
    find_host_domains,
    is_cheap_kernel,
)
from ekiden.relay.visitor import children, pattern_vars, type_post_order
from ekiden.runtime import Device
from ekiden.target.virtual_device import (
    HOST,
    PARAM_DEVICES_ATTR,
    RESULT_DEVICE_ATTR,
    DeviceMemory,
    VirtualDevice,
)
from ekiden.tir.expr import Buffer, BufferLoad

HOST_OPERATORS_ATTR = "host_work"
"""Module attribute of heterogeneous programs: the operators that run on the host, by reason (text
of a HostReason). For reports; no pass reads it.
"""
DEVICE_TABLE_ATTR = "virtual_devices"
"""Module attribute of heterogeneous programs: the devices by bytecode number, the host first. Their
places are the numbers by which bytecode knows them. What functions of it do not say of their
parameters and result is on the host, but for functions among these, which are where their callers
say.
"""


class DeviceDomains:
    """Device domains of all expressions of a typed module, as in TVM's `DeviceDomains`.

    `refuses` tells the operators that devices have no code for, so that they run on the host.
    """

    def __init__(
        self,
        module: IRModule,
        default: DeviceMemory = HOST.where,
        refuses: Callable[[Call], bool] | None = None,
    ) -> None:
        self.default = default
        self._is_planned = DEVICE_TABLE_ATTR in module.attrs
        self._host = DeviceDomain(HOST.where, is_pinned=True)
        self._unsupported_calls: set[Call] = set()
        self._domain_by_expr: dict[RelayExpr, Domain] = {}
        self._globals: dict[GlobalVar, CompositeDomain] = {}
        self._annotated_domains: dict[Call, Domain] = {}
        """Domain that each device annotation requires."""
        self._kernel_domains: dict[Call, DeviceDomain] = {}
        """Domain of each operator call."""
        functions = {g: f for g, f in module.functions.items() if isinstance(f, Function)}
        self.orders = {f: evaluation_order(f.body) for f in functions.values()}
        """Expressions of each function in evaluation order."""
        for name, function in functions.items():
            self._globals[name] = self._declare_function(function)
            self._unify_parameters(self._globals[name])
        every = [e for f in functions.values() for e in self.orders[f]]
        for expr in every:
            self._declare_nested_function(expr)
        self._unify_type_variables(every)
        for expr in every:
            self._unify_aliases(expr)
        for function in self.orders:
            self._constrain_result(function)
        for expr in every:
            self._apply_annotation(expr)
        for call, slot in self._annotated_domains.items():
            unify(self.domain_for(call.args[0]), slot)
        # A planned module contains explicit copies, so domains are determined by forward
        # propagation alone.
        if self._is_planned:
            # copies say where the arguments of kernels are: from there on forward
            self._propagate(every)
            self._propagate_results(functions)
        else:
            workers = [e for e in every if isinstance(e, Call) and self.is_kernel_call(e)]
            if refuses is not None:
                self._pin_unsupported_calls(workers, refuses)
            self._propagate(e for e in every if not self.is_kernel_call(e))
            self._propagate_results(functions)
            entry = next((d for g, d in self._globals.items() if g.name_hint == "main"), None)
            self._pin_control_values(every, entry)
            # Kernel calls come last: control values must be pinned to the host before kernels pull
            # them to a device.
            self._propagate(workers)
        self._apply_defaults(functions.values())

    def host_reasons(self) -> dict[HostReason, dict[str, None]]:
        """Return the operators with at least one call on the host, grouped by the reason for it."""
        reasons: dict[HostReason, dict[str, None]] = {}
        for order in self.orders.values():
            for expr in order:
                if isinstance(expr, Call) and (engine := external_compiler_of(expr)):
                    reasons.setdefault(HostReason.ENGINE, {})[f"regions of {engine!r}"] = None
                elif isinstance(expr, Call) and self._runs_on_host(expr):
                    assert isinstance(expr.op, Op)
                    reasons.setdefault(self._host_reason(expr), {})[expr.op.name] = None
        return reasons

    def _runs_on_host(self, call: Call) -> bool:
        if not isinstance(call.op, Op):
            return False
        is_function = bool(call.op.definition.host)
        return is_function or (
            self.is_kernel_call(call) and self.kernel_device(call) == HOST.device
        )

    def _host_reason(self, call: Call) -> HostReason:
        assert isinstance(call.op, Op)
        row = call.op.definition
        if row.host:
            return HostReason.FUNCTION
        if row.shape_only:
            return HostReason.SHAPE
        if call in self._unsupported_calls:
            return HostReason.REFUSED
        if self._kernel_domain(call).root().is_pinned:
            return HostReason.CONTROL
        return HostReason.DEFAULT if self.default == HOST.where else HostReason.PLACED

    def _unify_type_variables(self, every: Sequence[RelayExpr]) -> None:
        """Unify the domains of all values of a type variable whose instances cannot be copied
        (functions, references).
        """
        # Only function and reference instances matter: tensors can be copied between devices.
        bound = uncopyable_type_variables(every)
        one = {variable: DeviceDomain() for variable in bound}
        every = [*self.orders, *every]
        params = [p for e in every if isinstance(e, Function) for p in e.params]
        for expr in (*every, *params) if bound else ():
            kind = expr.checked_type_or_none()
            if kind is not None and not isinstance(expr, (Op, Constructor, Constant, GlobalVar)):
                self._unify_instance(self.domain_for(expr), kind, one)

    @staticmethod
    def _unify_instance(domain: Domain, kind: Type, one: Mapping[TypeVar, DeviceDomain]) -> None:
        """Unify the components of one value whose types mention such a type variable."""
        stack = [(domain, kind)]
        while stack:
            position, of = stack.pop()
            if isinstance(position, CompositeDomain) and isinstance(of, TupleType):
                stack.extend(zip(position.items, of.fields, strict=True))
            elif isinstance(position, CompositeDomain) and isinstance(of, FuncType):
                stack.extend(zip(position.items, (*of.arg_types, of.ret_type), strict=True))
            else:
                for type_var in type_post_order(of):
                    if isinstance(type_var, TypeVar) and type_var in one:
                        unify(position, one[type_var], always=True)

    def domain_for(self, expr: RelayExpr) -> Domain:
        """Return the domain of an expression; a constant is on the host, and every use of it gets a
        new domain.
        """
        # A constant is materialised on each device that reads it, so its uses are never unified.
        if isinstance(expr, Constant):
            return DeviceDomain(HOST.where)
        if isinstance(expr, GlobalVar) and expr in self._globals:
            return self._globals[expr]
        if expr not in self._domain_by_expr:
            kind = expr.checked_type_or_none()
            is_value = not isinstance(expr, (Op, Constructor))
            assert kind is not None or not is_value, f"{type(expr).__name__}: its type is not known"
            self._domain_by_expr[expr] = DeviceDomain() if kind is None else domain_of(kind)
        return self._domain_by_expr[expr]

    def location_of(self, leaf: DeviceDomain) -> DeviceMemory:
        """Return the location of a leaf domain, the default location where it is unconstrained."""
        return leaf.root().location or self.default

    def kernel_device(self, call: Call) -> Device:
        """Return the device that runs a kernel call."""
        return self.location_of(self._kernel_domain(call)).device

    def locations_of(self, domain: Domain) -> tuple[DeviceMemory, ...]:
        """Return the locations of all leaves of a domain."""
        return tuple(map(self.location_of, leaf_domains(domain)))

    def scope_location(self, expr: RelayExpr) -> DeviceMemory | None:
        """Return the location from which an expression's operands are seen; for a RefWrite, the
        reference's.

        None for a `let`, whose own location says nothing of what it binds, and for several
        locations.
        """
        if isinstance(expr, Let):
            return None
        while isinstance(expr, Call) and isinstance(expr.attrs, OnDeviceAttrs):
            if any(leaf_domains(self.domain_for(expr))):
                break
            expr = expr.args[0]  # a write, which gives nothing
        return self.single_location(
            self.domain_for(expr.ref if isinstance(expr, RefWrite) else expr)
        )

    def single_location(self, domain: Domain) -> DeviceMemory | None:
        """Return the single location of a value (for a function, of its result), or None where its
        leaves differ.
        """
        if isinstance(domain, CompositeDomain) and domain.is_function:
            return self.single_location(domain.items[-1])
        locations = {*self.locations_of(domain)}
        return locations.pop() if len(locations) == 1 else None

    def location_attribute(self, domain: Domain, kind: Type, functions: bool = False) -> object:
        """Return a value's location as a function attribute: a virtual device, or a tuple of them.

        None for functions unless `functions` is set: their results declare it.
        """
        if isinstance(kind, FuncType) and not functions:
            return None
        if isinstance(kind, TupleType) and len({*self.locations_of(domain)}) > 1:
            assert isinstance(domain, CompositeDomain)
            pairs = zip(domain.items, kind.fields, strict=True)
            return tuple(self.location_attribute(position, of, functions) for position, of in pairs)
        location = self.single_location(domain)
        return location.virtual_device() if location else None

    def used_locations(self) -> list[DeviceMemory]:
        """Return all locations in use without duplicates, the host first."""
        every = [*self._globals.values(), *self._domain_by_expr.values()]
        locations = dict.fromkeys(d for domain in every for d in self.locations_of(domain))
        return sorted(locations.keys() | {HOST.where}, key=lambda d: (d != HOST.where, d))

    def operand_domains(self, expr: RelayExpr) -> list[Domain | None]:
        """Return the domain that an expression requires of each child; None for children that are
        not copied.
        """
        match expr:
            case Call():
                return [None, *self._argument_domains(expr)]
            case Tuple(fields=fields):
                domain = self.domain_for(expr)
                return (
                    list(domain.items)
                    if isinstance(domain, CompositeDomain)
                    else [domain] * len(fields)
                )
            case Let(var=var):
                return [None, self.domain_for(var), self.domain_for(expr)]
            case If():
                return [self._host, self.domain_for(expr), self.domain_for(expr)]
            case Function(params=params) if not is_atom(expr):
                domain = self.domain_for(expr)
                assert isinstance(domain, CompositeDomain)
                return [*(None for _ in params), domain.items[-1]]
            case RefCreate():
                return [self.domain_for(expr)]
            case RefWrite(ref=ref):
                return [None, self.domain_for(ref)]
            case Match(clauses=clauses):
                bound = [[None] * len(pattern_vars(c.lhs)) for c in clauses]
                return [
                    None,
                    *(d for variables in bound for d in (*variables, self.domain_for(expr))),
                ]
            case _:
                return [None] * len(children(expr))

    def is_kernel_call(self, expr: RelayExpr) -> bool:
        """Return whether an expression calls a kernel, which takes constants on the device where it
        runs.
        """
        if not isinstance(expr, Call):
            return False
        if isinstance(expr.op, Op):
            return OPS[expr.op.name].lower is not None
        return isinstance(expr.op, Function) and is_atom(expr.op)

    # Marks

    def _declare_function(self, function: Function) -> CompositeDomain:
        """Declare the domain of a function; its parameters have the domains in it."""
        params = [self.domain_for(p) for p in function.params]
        if function not in self._domain_by_expr:
            inner = function.body
            if isinstance(inner, Function) and inner.checked_type_or_none() is None:
                result: Domain = self._declare_function(inner)  # of a lifted closure
            else:
                result = domain_of(inner.checked_type)
            domain = self._domain_by_expr[function] = CompositeDomain(
                (*params, result), is_function=True
            )
            param_marks = function.attr(PARAM_DEVICES_ATTR)
            for item, where in zip(
                params, param_marks if isinstance(param_marks, tuple) else (), strict=False
            ):
                constrain(item, where)
            constrain(result, function.attr(RESULT_DEVICE_ATTR))
            # PlanDevices omits the attributes of functions that are entirely on the host.
            if self._is_planned and not param_marks and function.attr(RESULT_DEVICE_ATTR) is None:
                for item in domain.items:
                    if not (isinstance(item, CompositeDomain) and item.is_function):
                        constrain(item, HOST)
        declared = self._domain_by_expr[function]
        assert isinstance(declared, CompositeDomain)
        return declared

    @staticmethod
    def _unify_parameters(domain: CompositeDomain) -> None:
        """Unify each parameter: a caller of the program passes it on one device."""
        for param in domain.items[:-1]:
            if isinstance(param, CompositeDomain) and not any(
                p.location for p in leaf_domains(param)
            ):
                unify(param, DeviceDomain())

    def _constrain_result(self, function: Function) -> None:
        self._constrain_value(function.body)

    def _constrain_value(self, value: RelayExpr) -> None:
        """Constrain the value that a function returns or a variable holds to the device of its
        annotation.
        """
        mark = value.attrs if isinstance(value, Call) else None
        if isinstance(value, Call) and isinstance(mark, OnDeviceAttrs) and mark.constrain_body:
            constrain(self._call_result_domain(value), mark.virtual_device)

    def _declare_nested_function(self, expr: RelayExpr) -> None:
        """Declare the domain of a function value before its body is visited, for recursive
        calls.
        """
        value = expr.value if isinstance(expr, Let) else expr
        if not isinstance(value, Function) or is_atom(value):
            return
        domain = self._declare_function(value)
        if isinstance(expr, Let):
            self._domain_by_expr[expr.var] = domain

    def _apply_annotation(self, expr: RelayExpr) -> None:
        """Apply the `on_device` and `device_copy` annotations of an expression."""
        if isinstance(expr, Function) and not is_atom(expr):
            self._constrain_result(expr)
        elif isinstance(expr, Let):
            self._constrain_value(expr.value)
        elif isinstance(expr, Call) and isinstance(expr.attrs, DeviceCopyAttrs):
            self._annotated_domains[expr] = self._annotated_domain(
                expr, expr.attrs.src_virtual_device
            )
            constrain(self.domain_for(expr), expr.attrs.dst_virtual_device)
        elif isinstance(expr, Call) and isinstance(expr.attrs, OnDeviceAttrs):
            if expr.attrs.constrain_body:
                self._annotated_domains[expr] = self._annotated_domain(
                    expr, expr.attrs.virtual_device
                )
            if expr.attrs.constrain_result:
                constrain(self._call_result_domain(expr), expr.attrs.virtual_device)

    def _annotated_domain(self, call: Call, where: VirtualDevice) -> Domain:
        domain = domain_of(call.checked_type)
        constrain(_result_domain(domain, call.checked_type), where)
        return domain

    def _call_result_domain(self, call: Call) -> Domain:
        return _result_domain(self.domain_for(call), call.checked_type)

    # Flow

    def _propagate(self, exprs: Iterable[RelayExpr]) -> None:
        for expr in exprs:
            self._unify_operands(expr)

    def _propagate_results(self, functions: Mapping[GlobalVar, Function]) -> None:
        for name, function in functions.items():
            unify(self.domain_for(function.body), self._globals[name].items[-1])

    def _unify_operands(self, expr: RelayExpr) -> None:
        if is_atom(expr) or isinstance(expr, Constant):
            return
        for child, where in zip(children(expr), self.operand_domains(expr), strict=True):
            # The host domain is a sentinel for "read on the host"; unifying with it would move the
            # producer there.
            if where is not None and where is not self._host and not isinstance(child, Constant):
                unify(self.domain_for(child), where)

    # Values of the host

    def _pin_result(self, call: Call) -> None:
        """Pin the results of a host function to the host."""
        for leaf in leaf_domains(self.domain_for(call)):
            leaf.pin()

    def _pin_unsupported_calls(
        self, workers: Sequence[Call], refuses: Callable[[Call], bool]
    ) -> None:
        """Pin unannotated calls to the host for which the device has no code."""
        for call in workers:
            worker = self._kernel_domain(call).root()
            if worker.location is None and isinstance(call.op, Op) and refuses(call):
                worker.pin()
                self._unsupported_calls.add(call)

    def _pin_control_values(
        self, every: Sequence[RelayExpr], entry: CompositeDomain | None
    ) -> None:
        """Pin control values (conditions, sizes, offsets) to the host. An annotation passes the
        domain of its operand on.
        """
        steps = [
            KernelStep(
                tuple(leaf_domains(self.domain_for(call))),
                tuple(
                    p
                    for a in call.args
                    if not isinstance(a, Constant)
                    for p in self._leaf_domains_of(a)
                ),
                isinstance(call.attrs, OnDeviceAttrs) or is_cheap_kernel(call),
            )
            for call in every
            if isinstance(call, Call)
            and (self.is_kernel_call(call) or isinstance(call.attrs, OnDeviceAttrs))
        ]
        needs = [p for expr in every for p in self._host_operands(expr)]
        entry_leaves = (
            [] if entry is None else [p for d in entry.items[:-1] for p in leaf_domains(d)]
        )
        domains = (*self._globals.values(), *self._domain_by_expr.values())
        every_place = (each_leaf for domain in domains for each_leaf in leaf_domains(domain))
        for leaf in find_host_domains(every_place, steps, needs, entry_leaves):
            leaf.pin()

    def _leaf_domains_of(self, expr: RelayExpr) -> Iterator[DeviceDomain]:
        return leaf_domains(self.domain_for(expr))

    def _host_operands(self, expr: RelayExpr) -> Iterator[DeviceDomain]:
        """Yield the domains of the operands that an expression reads on the host."""
        if is_atom(expr) or isinstance(expr, Constant):
            return
        for child, where in zip(children(expr), self.operand_domains(expr), strict=True):
            if where is None or isinstance(child, Constant):
                continue
            domain = self.domain_for(child)
            if where is self._host:
                yield from leaf_domains(domain)
            elif isinstance(where, CompositeDomain) and isinstance(domain, CompositeDomain):
                for item, need in zip(domain.items, where.items, strict=True):
                    yield from leaf_domains(item) if need is self._host else ()

    def _unify_aliases(self, expr: RelayExpr) -> None:
        """Unify an expression's domain with the domains of the children that it aliases.

        These are never apart, so this comes before all marks.
        """
        match expr:
            case Let(var=var, value=value) if not isinstance(value, Constant):
                unify(self.domain_for(var), self.domain_for(value), always=True)
            case TupleGetItem(tuple_value=value, index=index):
                tuple_domain = self.domain_for(value)
                inner = (
                    tuple_domain.items[index]
                    if isinstance(tuple_domain, CompositeDomain)
                    else tuple_domain
                )
                unify(self.domain_for(expr), inner, always=True)
            case RefRead(ref=ref):
                unify(self.domain_for(expr), self.domain_for(ref), always=True)
            case Match(data=data, clauses=clauses):
                for clause in clauses:
                    self._unify_pattern(clause.lhs, self.domain_for(data))
            case Call(op=Op()) if isinstance(expr.attrs, OnDeviceAttrs):
                if isinstance(expr.checked_type, FuncType):
                    unify(self.domain_for(expr), self.domain_for(expr.args[0]), always=True)
            case Call(op=Op()) if isinstance(expr.attrs, BindDimsAttrs):
                pass  # an alias, and sources that are put apart
            case Call(op=op) if not isinstance(op, (Op, Constructor)) and not is_primitive_function(
                op
            ):
                called = self.domain_for(op)
                result = called.items[-1] if isinstance(called, CompositeDomain) else called
                unify(self.domain_for(expr), result, always=True)
            case Call():
                self._argument_domains(expr)

    def _unify_pattern(self, pattern: Pattern, domain: Domain) -> None:
        stack = [(pattern, domain)]
        while stack:
            position, where = stack.pop()
            match position:
                case PatternVar(var=var):
                    unify(self.domain_for(var), where, always=True)
                case PatternTuple(patterns=inner) if isinstance(where, CompositeDomain):
                    stack.extend(zip(inner, where.items, strict=True))
                case PatternTuple(patterns=inner) | PatternConstructor(patterns=inner):
                    stack.extend((inner_pattern, where) for inner_pattern in inner)

    def _argument_domains(self, call: Call) -> Sequence[Domain | None]:
        """Return the domains that a call requires of its arguments."""
        n = len(call.args)
        if isinstance(call.attrs, (OnDeviceAttrs, DeviceCopyAttrs)):
            return [None]  # the value goes on from here to where it is used
        if not isinstance(call.op, Op):
            if external_compiler_of(call):
                self._pin_result(call)
                return [self._host] * n
            if reads_only_shapes(call.op):
                self._pin_result(call)
                return [None] * n
            if isinstance(call.op, Constructor) or is_primitive_function(call.op):
                return [self._kernel_domain(call)] * n
            called = self.domain_for(call.op)
            return called.items[:-1] if isinstance(called, CompositeDomain) else [called] * n
        row = call.op.definition
        if isinstance(call.attrs, BindDimsAttrs):
            return [self.domain_for(call), self._dimension_source_domain(call, call.attrs)]
        if row.shape_only:
            self._pin_result(call)
            return [None] * n
        if row.host:
            # An operator that passes arguments on returns them where they are; others return host
            # values.
            is_apart = not row.forwarded_args or row.memory is MemoryAliasing.NO_ALIAS
            if is_apart:
                self._pin_result(call)
            free = None if is_apart else self.domain_for(call)
            return [free if position in row.forwarded_args else self._host for position in range(n)]
        if row.memory is MemoryAliasing.MUST_ALIAS:
            return [self.domain_for(call)]
        return [self._kernel_domain(call)] * n

    def _kernel_domain(self, call: Call) -> DeviceDomain:
        """Return the domain that a call's arguments and results share."""
        if call not in self._kernel_domains:
            self._kernel_domains[call] = DeviceDomain()
            unify(self.domain_for(call), self._kernel_domains[call], always=True)
        return self._kernel_domains[call]

    def _dimension_source_domain(self, call: Call, attrs: BindDimsAttrs) -> Domain | None:
        """Return the domain of a `bind_dims` call's sources: the host for those whose elements are
        read.
        """
        sources = self.domain_for(call.args[1])
        kind = call.args[1].checked_type
        if not isinstance(sources, CompositeDomain) or not isinstance(kind, TupleType):
            return self._host
        # A shape is known on the host wherever the tensor is.
        read = find_read_sources(attrs, kind.fields)
        return CompositeDomain(
            tuple(
                self._host if is_read else source
                for source, is_read in zip(sources.items, read, strict=True)
            )
        )

    # What nothing says

    def _apply_defaults(self, functions: Iterable[Function]) -> None:
        """Place unconstrained function results on the default device, and parameters with their
        result.

        What a mark leaves open stays where it was computed.
        """
        for root in functions:
            for inner in (root, *reversed(self.orders[root])):
                if isinstance(inner, Function) and not is_atom(inner):
                    self._apply_function_defaults(inner)
        for order in self.orders.values():
            for expr in order:
                if isinstance(expr, Call) and isinstance(expr.attrs, OnDeviceAttrs):
                    unify(self.domain_for(expr), self.domain_for(expr.args[0]))

    def _apply_function_defaults(self, function: Function) -> None:
        domain = self.domain_for(function)
        assert isinstance(domain, CompositeDomain)
        for leaf in leaf_domains(domain.items[-1]):
            leaf.location = leaf.location or self.default
        beside = set(self.locations_of(domain.items[-1]))
        is_pinned = any(result_leaf.is_pinned for result_leaf in leaf_domains(domain.items[-1]))
        # Parameters follow the result, unless it was pinned: a pinned scalar must not pull tensors
        # to the host.
        where = beside.pop() if len(beside) == 1 and not is_pinned else self.default
        for param in domain.items[:-1]:
            for leaf in leaf_domains(param):
                leaf.location = leaf.location or where


def is_primitive_function(op: RelayExpr) -> bool:
    """Return whether the callee is a primitive (fused) function."""
    return isinstance(op, Function) and is_atom(op)


def external_compiler_of(call: Call) -> str:
    """Return the name of the external compiler of a call's function, or "" for none."""
    return str(call.op.attr("Compiler") or "") if isinstance(call.op, Function) else ""


def reads_only_shapes(op: RelayExpr) -> bool:
    """Return whether the callee is a fused function of one operator that reads shapes, not
    elements.
    """
    body = op.body if isinstance(op, Function) and is_primitive_function(op) else None
    return isinstance(body, Call) and isinstance(body.op, Op) and body.op.definition.shape_only


def _result_domain(domain: Domain, kind: Type) -> Domain:
    """Return the domain of a function's result; for any other type the domain itself."""
    is_function = isinstance(kind, FuncType) and isinstance(domain, CompositeDomain)
    return domain.items[-1] if is_function and isinstance(domain, CompositeDomain) else domain


def find_read_sources(attrs: BindDimsAttrs, kinds: Sequence[Type]) -> list[bool]:
    """Return for each source of dimensions whether its elements are read, not only its shape."""
    if not attrs.operator:
        return [True] * len(kinds)
    rule = OPS[attrs.operator].dims
    assert rule is not None
    buffers = [
        Buffer(f"x{i}", k.shape, k.dtype) for i, k in enumerate(kinds) if isinstance(k, TensorType)
    ]
    dims, conditions = rule(attrs.attrs, buffers)
    exprs = [*dims, *(c for c, *_ in conditions)]
    loaded = {e.buffer for d in exprs for e in post_order(d) if isinstance(e, BufferLoad)}
    return [buffer in loaded for buffer in buffers]
