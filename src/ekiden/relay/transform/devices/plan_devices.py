"""Decide which device each value is on, and copy values that are used on another.

    def @main(%a, %b) { %0 = on_device(nn.relu(%a), virtual_device=cpu(1)); add(%0, %b) }
->  def @main(%a {virtual_device=cpu(1)}, %b {virtual_device=cpu(0)}, virtual_device=cpu(0)) {
      %0 = nn.relu(%a); %1 = on_device(%0, virtual_device=cpu(1), constrain_result=True);
      add(device_copy(%1, cpu(1), cpu(0)), %b) }

Afterwards copies and the attributes of functions (`PARAM_PLACES` of ekiden.target.virtual_device)
say where each value is. Marks, `on_device` with both constraints, say it once more where it is not
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
    HOST_WORK,
    TABLE,
    Domain,
    Domains,
    Parts,
    Place,
)
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import evaluation_order, infer_here, is_atom
from ekiden.relay.visitor import children, pattern_vars, rebuild
from ekiden.runtime import register_func
from ekiden.runtime.errors import CompileError
from ekiden.target.virtual_device import (
    HOST,
    PARAM_PLACES,
    RESULT_PLACE,
    CompilationConfig,
    VirtualDevice,
    Where,
    all_on_host,
    check_supported,
)

_UNMARKED = Var, GlobalVar, Op, Constructor, Function
"""What says itself where it is, or is everywhere."""


def device_table(module: IRModule) -> tuple[VirtualDevice, ...]:
    """The devices of a planned module; of another, the host."""
    found = module.attrs.get(TABLE, (HOST,))
    assert isinstance(found, tuple)
    return found


class _Planner:
    """Rewrites the functions of one module."""

    def __init__(self, domains: Domains, marks: bool) -> None:
        self.domains = domains
        self.marks = marks
        self._new: dict[RelayExpr, RelayExpr] = {}
        self._moved: dict[tuple[object, ...], RelayExpr] = {}
        """(value, from, to) -> its copy, which all uses share."""

    def plan(self, function: Function) -> Function:
        """A global function with its copies and the places of its parameters and result."""
        for expr in self.domains.orders[function]:
            self._new[expr] = self._rewritten(expr)
        domain = self.domains.of(function)
        assert isinstance(domain, Parts)
        body = self._at(function.body, domain.items[-1])
        return self._placed(function.with_fields(body=body), domain)

    def _rewritten(self, expr: RelayExpr) -> RelayExpr:
        if is_atom(expr) or isinstance(expr, Constant):
            return expr
        if isinstance(expr, Call) and isinstance(expr.attrs, (OnDeviceAttrs, DeviceCopyAttrs)):
            return self._at(expr.args[0], self.domains.of(expr))
        given = self._given(expr)
        if isinstance(expr, TupleGetItem) and not isinstance(expr.tuple_value, Tuple):
            whole = given[0]
            if isinstance(whole, Tuple):  # copied field by field
                return whole.fields[expr.index]
        made = _with_parts(expr, given)
        if isinstance(made, Function):
            domain = self.domains.of(expr)
            assert isinstance(domain, Parts)
            made = self._placed(made, domain)
        if made is not expr and (known := expr.checked_type_or_none()) is not None:
            made.set_checked_type(known)
        return made

    def _given(self, expr: RelayExpr) -> list[RelayExpr]:
        """The children of an expression where it needs them."""
        takes_constants = self.domains.is_worker(expr)
        around = self.domains.around(expr)
        given: list[RelayExpr] = []
        for child, where in zip(children(expr), self.domains.uses(expr), strict=True):
            if takes_constants and isinstance(child, Constant):
                given.append(child)
                continue
            value = self._new.get(child, child) if where is None else self._at(child, where)
            if self.marks and not (isinstance(expr, Let) and child is expr.body):
                here = (where and self.domains.only(where)) or self.domains.around(child)
                value = value if here == around else self._marked(value, here)
            given.append(value)
        return given

    def _marked(self, value: RelayExpr, here: Where | None) -> RelayExpr:
        """A value with a mark that says where it is; itself if it needs none, as a variable."""
        is_marked = isinstance(value, Call) and isinstance(value.attrs, OnDeviceAttrs)
        if not self.marks or here is None or is_marked or isinstance(value, _UNMARKED):
            return value
        made = on_device(value, here.virtual_device(), constrain_result=True)
        if (known := value.checked_type_or_none()) is not None:
            made.set_checked_type(known)
        return made

    def _at(self, child: RelayExpr, where: Domain) -> RelayExpr:
        """What stands for a child where it is needed."""
        value = self._new.get(child, child)
        if isinstance(child, Constant):
            infer_here(child)
        return self._move(value, child.checked_type, self.domains.of(child), where)

    def _move(self, value: RelayExpr, kind: Type, here: Domain, there: Domain) -> RelayExpr:
        """A value of domain `here` as one of domain `there`."""
        if isinstance(here, Place) and isinstance(there, Place):
            if self.domains.where(here) == self.domains.where(there):
                return value
            if self.marks and isinstance(value, Constant):
                return self._marked(value, self.domains.where(there))
        elif self._agree(here, there):
            return value
        key = value, *self.domains.each(here), None, *self.domains.each(there)
        if key not in self._moved:
            self._moved[key] = self._copied(value, kind, here, there)
        return self._moved[key]

    def _agree(self, here: Domain, there: Domain) -> bool:
        """Whether two domains are on the same devices, part by part."""
        if isinstance(here, Place) and isinstance(there, Place):
            return self.domains.where(here) == self.domains.where(there)
        pairs = zip(_parts(here, there), _parts(there, here), strict=True)
        return all(self._agree(a, b) for a, b in pairs)

    def _copied(self, value: RelayExpr, kind: Type, here: Domain, there: Domain) -> RelayExpr:
        if isinstance(kind, TupleType):
            fields = [
                self._move(_field(value, n), k, a, b)
                for n, (k, a, b) in enumerate(
                    zip(kind.fields, _parts(here, there), _parts(there, here), strict=True)
                )
            ]
            return infer_here(Tuple(tuple(fields)))
        if isinstance(kind, FuncType):
            return self._wrapped(value, kind, _parts(here, there), _parts(there, here))
        assert isinstance(here, Place) and isinstance(there, Place)
        source, target = self.domains.where(here), self.domains.where(there)
        if isinstance(kind, RelayRefType):
            where = f" ({value.span})" if value.span else ""
            raise CompileError(
                f"PlanDevices{where}: a reference on {target.device} expected, got one on"
                f" {source.device}, and a"
                " reference cannot be copied"
            )
        value = self._marked(value, source)
        made = device_copy(value, source.virtual_device(), target.virtual_device())
        return infer_here(made.with_fields(span=value.span))

    def _wrapped(
        self,
        value: RelayExpr,
        kind: FuncType,
        here: tuple[Domain, ...],
        there: tuple[Domain, ...],
    ) -> RelayExpr:
        """fn (%x) { copy(value(copy(%x))) }"""
        params = tuple(Var("x", each) for each in kind.arg_types)
        for param, each in zip(params, kind.arg_types, strict=True):
            param.set_checked_type(each)
        moved = zip(params, kind.arg_types, there[:-1], here[:-1], strict=True)
        call = Call(value, tuple(self._move(*each) for each in moved))
        call.set_checked_type(kind.ret_type)
        body = self._move(call, kind.ret_type, here[-1], there[-1])
        made = self._placed(Function(params, body, kind.ret_type), Parts(there, is_function=True))
        made.set_checked_type(kind)
        return made

    def _placed(self, function: Function, domain: Parts) -> Function:
        """A function with the places of its domain as attributes."""
        pairs = zip(domain.items, _kinds(function), strict=True)
        *params, result = (self.domains.said(at, of, self.marks) for at, of in pairs)
        plain = function.without_attr(PARAM_PLACES).without_attr(RESULT_PLACE)
        if not self.marks and all_on_host((*params, result)):
            return plain
        places = {PARAM_PLACES: tuple(params)} if any(params) else {}  # as the text says them
        return plain.with_attr({**places, RESULT_PLACE: result})


def _kinds(function: Function) -> list[Type]:
    return [*(p.checked_type for p in function.params), function.body.checked_type]


def _parts(domain: Domain, like: Domain) -> tuple[Domain, ...]:
    """The parts of a domain; of one place, as many as the other has."""
    if isinstance(domain, Parts):
        return domain.items
    assert isinstance(like, Parts)
    return (domain,) * len(like.items)


def _field(value: RelayExpr, index: int) -> RelayExpr:
    return (
        value.fields[index] if isinstance(value, Tuple) else infer_here(TupleGetItem(value, index))
    )


def _with_parts(expr: RelayExpr, parts: list[RelayExpr]) -> RelayExpr:
    """An expression with other children; a variable that a pattern binds and a clause gives back
    may be two of them.
    """
    if not isinstance(expr, Match):
        return rebuild(expr, parts)
    results = _results(expr, parts)
    same = all(c.rhs is made for c, made in zip(expr.clauses, results, strict=True))
    if same and parts[0] is expr.data:
        return expr
    clauses = tuple(Clause(c.lhs, made) for c, made in zip(expr.clauses, results, strict=True))
    return Match(parts[0], clauses, expr.complete, span=expr.span)


def _results(expr: Match, parts: list[RelayExpr]) -> list[RelayExpr]:
    """Of the children of a match, those that its clauses give."""
    found, at = [], 0
    for clause in expr.clauses:
        at += len(pattern_vars(clause.lhs)) + 1
        found.append(parts[at])
    return found


def said_places(module: IRModule) -> Iterator[VirtualDevice]:
    """The places that a module names: in marks, copies and attributes of functions, or in TABLE."""
    yield from _flat(module.attrs.get(TABLE, ()))
    for function in module.functions.values():
        if not isinstance(function, Function):
            continue
        for each in (function, *evaluation_order(function.body)):
            match each:
                case Call(attrs=OnDeviceAttrs() as mark):
                    yield mark.virtual_device
                case Call(attrs=DeviceCopyAttrs() as copy):
                    yield from (copy.src_virtual_device, copy.dst_virtual_device)
                case Function():
                    yield from _flat((each.attr(PARAM_PLACES), each.attr(RESULT_PLACE)))


def _flat(places: object) -> Iterator[VirtualDevice]:
    """The virtual devices in the places of a function."""
    if isinstance(places, tuple):
        for each in places:
            yield from _flat(each)
    elif isinstance(places, VirtualDevice):
        yield places


def _says_devices(module: IRModule) -> bool:
    """Whether something in a module is about devices."""
    return any(True for _ in said_places(module))


def PlanDevices(  # noqa: N802
    config: CompilationConfig | None = None,
    *,
    marks: bool = True,
    refuses: Callable[[Call], bool] | None = None,
) -> Pass:
    """The pass described at the top of this file. `config` says where programs are that do not say
    otherwise: the host, unless it is given. Any devices may be planned for; without `marks`, raises
    CompileError for those that no code can be made for, and for others than those of a `config`.
    `refuses` says which calls of operators the default device has no code for: they run on the
    host.
    """
    chosen = config or CompilationConfig()

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """The module planned; as it is where all of it is on the host. Without marks the devices
        stand in the module's attribute TABLE, which the next run reads.
        """
        default = HOST if TABLE in module.attrs else chosen.default_primitive_virtual_device
        if default.is_host and not _says_devices(module):
            return module
        domains = Domains(module, default.where, refuses if TABLE not in module.attrs else None)
        attrs = {name: value for name, value in module.attrs.items() if name != TABLE}
        if not marks:
            attrs[TABLE] = table = _table(domains, config)
            if TABLE not in module.attrs and len(table) > 1:
                rows = domains.host_reasons().items()
                attrs[HOST_WORK] = [[reason.value, *names] for reason, names in rows]
        planner = _Planner(domains, marks)
        planned: dict[GlobalVar | str, BaseFunc] = {
            g: planner.plan(f) if isinstance(f, Function) else f
            for g, f in module.functions.items()
        }
        return InferType()(IRModule(planned, module.type_definitions, attrs))

    return Pass("PlanDevices", transform, 0, (InferType(),))


def _table(domains: Domains, config: CompilationConfig | None) -> tuple[VirtualDevice, ...]:
    """The devices of a program, which code must be there for, and which must be among those that it
    is compiled for: all processors are the one that is there."""
    made = tuple(each.virtual_device() for each in domains.used())
    for each in made:
        check_supported(each)
        given = [] if config is None else [d.device for d in config.devices]
        if given and each.device_type != HOST.device_type and each.device not in given:
            raise CompileError(
                f"compile: the program places values on {each.device}, and is compiled for"
                f" {', '.join(map(str, given))}: name it, as in [cpu(0), {each.device}]"
            )
    return made


@register_func("relay.transform.RecoverVirtualDeviceMap")
def recover_virtual_device_map(
    module: IRModule, function: Function
) -> dict[RelayExpr, VirtualDevice]:
    """Where each expression of a function of a planned module is; what is on several devices, as
    some tuples are, and operators, which are everywhere, are left out.
    """
    domains = Domains(module)
    found = {}
    for expr in (function, *function.params, *evaluation_order(function.body)):
        where = None if isinstance(expr, (Op, Constructor)) else domains.only(domains.of(expr))
        if where is not None:
            found[expr] = where.virtual_device()
    return found
