"""Place each operator on the host or on a device, so that work and copies together cost least.

compiled for [cpu(0), opencl(0)], with what both were measured to do:
    softmax(dense(%x, %w))  ->  on_device(softmax(on_device(dense(%x, %w), opencl(0))), cpu(0))

For who asks for it by the option "relay.PlaceByCost.costs". An operator costs the start of its
kernel and its operations or bytes, whichever take longer, by the figures of where it would run; all
of a device by one factor more, with which the whole program would take what it was measured to. A
value that is used on the other side costs one copy, however many use it there. Conditions,
arguments and the result of `main`, and what no kernel computes are of the host, and what the
device's language refuses; what the program itself places is where it says. The cheapest of all such
places is a minimum cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

from ekiden.backend.kernels.flops import count_flops
from ekiden.backend.vm.refusals import Refusals
from ekiden.ir.dtype import itemsize
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.pass_context import COSTS
from ekiden.ir.prim import IntImm
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.analysis.minimum_cut import NEVER, Network
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Function,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.op.annotation import DeviceCopyAttrs, OnDeviceAttrs, on_device
from ekiden.relay.transform.fusion.fuse_ops import alone, is_primitive_call
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import (
    evaluation_order,
    map_functions,
    on_body,
    rewrite_graph,
)
from ekiden.relay.visitor import children
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import CompilationConfig
from ekiden.target.virtual_device import HOST, VirtualDevice

__all__ = ["Costs", "PlaceByCost"]

UNKNOWN = 16
"""A size that only a run knows."""
TICKS = 1e12
"""Costs are counted in whole picoseconds."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured of the host and of a device, in this order, and of copies: operations and
    bytes in a second, seconds until a kernel is done, and of the whole program where all of it is
    there (0: not known); bytes in a second there and back, seconds of the smallest copy.
    """

    flops: tuple[float, float]
    bandwidth: tuple[float, float]
    launch: tuple[float, float]
    program: tuple[float, float]
    there: float
    back: float
    latency: float

    def of(self, where: int, work: float, nbytes: float) -> float:
        """Seconds of an operator."""
        return self.launch[where] + max(work / self.flops[where], nbytes / self.bandwidth[where])


def PlaceByCost(config: CompilationConfig | None) -> Pass:  # noqa: N802
    """The pass described at the top of this file."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """The module with `on_device` around what is faster on the one device that is not the host;
        unchanged without measured costs (pass option COSTS) or without devices.
        """
        given = context.config.get(COSTS)
        if not given or config is None:
            return module
        assert isinstance(given, Mapping)
        (device,) = (each for each in config.devices if not each.is_host)
        refuses = Refusals(config.by_kind[device.device_type_int])
        costs = Costs(**given)
        scale = _scales(module, costs)

        def place(function: Function) -> Function:
            """One function, placed by itself: in `main` parameters and results are the host's."""
            found = _Places(costs, scale, refuses, device)
            there = found.on_device(function, module["main"] is function)
            return on_body(lambda body: _marked(body, there, found.said, device))(function)

        return InferType()(map_functions(module, place))

    return Pass("PlaceByCost", transform, 0, (InferType(),))


def _marked(
    body: RelayExpr, there: set[RelayExpr], said: set[RelayExpr], device: VirtualDevice
) -> RelayExpr:
    """A body whose operators say where they are."""

    def mark(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """An operator's call under the place that was found for it; what is no operator stays, and
        what the program has said of."""
        if not is_primitive_call(old) or old in said:
            return new
        return on_device(new, device if old in there else HOST, constrain_result=True)

    return rewrite_graph(body, mark)


def _scales(module: IRModule, costs: Costs) -> tuple[float, float]:
    """By how much all operators of host and device take longer than their figures say."""
    calls = [
        call
        for function in module.functions.values()
        if isinstance(function, Function)
        for call in evaluation_order(function.body)
        if is_primitive_call(call) and isinstance(call, Call)
    ]
    sums = [sum(costs.of(where, *_work(call)) for call in calls) for where in (0, 1)]
    host, device = (
        seconds / total if seconds and total else 1.0
        for seconds, total in zip(costs.program, sums, strict=True)
    )
    return host, device


@dataclass(slots=True)
class _Places:
    """The places of the expressions of one function, as a network: the source is the host."""

    costs: Costs
    scale: tuple[float, float]
    refuses: Refusals
    device: VirtualDevice
    said: set[RelayExpr] = field(default_factory=set)
    """What the program places itself."""
    network: Network = field(default_factory=Network)
    nodes: dict[RelayExpr, int] = field(default_factory=dict)
    uses: dict[RelayExpr, list[int]] = field(default_factory=dict)
    """Where each value is used."""

    def on_device(self, function: Function, is_main: bool) -> set[RelayExpr]:
        """The operators that run on the device."""
        order = evaluation_order(function.body)
        for param in function.params:
            self._fix(param)
        for each in order:
            self._add(each)
        if is_main:
            self._use(function.body, Network.SOURCE)
        for value, users in self.uses.items():
            self._copies(value, users)
        host = self.network.with_source()
        calls = (each for each in order if is_primitive_call(each))
        return {each for each in calls if self.nodes[each] not in host}

    def _node(self, expr: RelayExpr) -> int:
        if expr not in self.nodes:
            self.nodes[expr] = self.network.node()
        return self.nodes[expr]

    def _fix(self, expr: RelayExpr) -> None:
        """It is of the host."""
        self.network.edge(Network.SOURCE, self._node(expr), NEVER)

    def _place(self, expr: RelayExpr, where: VirtualDevice) -> None:
        """It is where the program says; on another device than the two it costs what it does on
        the host: that one copies to and from it."""
        self.said.add(expr)
        if where.device == self.device.device:
            self.network.edge(self._node(expr), Network.SINK, NEVER)
        else:
            self._fix(expr)

    def _said(self, call: Call) -> None:
        """What a mark or a copy of the program says of places."""
        (value,), attrs = call.args, call.attrs
        if isinstance(attrs, DeviceCopyAttrs):
            self._place(value, attrs.src_virtual_device)
            self._place(call, attrs.dst_virtual_device)
        elif isinstance(attrs, OnDeviceAttrs):
            if attrs.constrain_body:
                self._place(value, attrs.virtual_device)
            if attrs.constrain_result:
                self._place(call, attrs.virtual_device)

    def _use(self, value: RelayExpr, user: int) -> None:
        if isinstance(value, (Constant, Constructor, GlobalVar, Op)):
            return  # a constant is put where it is used, once; the others are of the program
        self._node(value)
        self.uses.setdefault(value, []).append(user)

    def _add(self, expr: RelayExpr) -> None:
        """An expression, by its kind: what it costs where, and what it uses."""
        node = self._node(expr)
        parts: Sequence[RelayExpr] = children(expr)
        match expr:
            case Call() if is_primitive_call(expr):
                self._price(expr, node)
            case Call(attrs=OnDeviceAttrs() | DeviceCopyAttrs()):
                self._said(expr)
            case If():
                self._use(expr.cond, Network.SOURCE)
                parts = (expr.true_branch, expr.false_branch)
            case Let():
                self._same(expr.var, expr.value)
                parts = (expr.body,)
            case Tuple() | TupleGetItem() | Var() | Constant():
                pass
            case _:
                self._fix(expr)
        for part in parts:
            self._use(part, node)

    def _same(self, one: RelayExpr, other: RelayExpr) -> None:
        a, b = self._node(one), self._node(other)
        self.network.edge(a, b, NEVER)
        self.network.edge(b, a, NEVER)

    def _price(self, call: Call, node: int) -> None:
        if self.refuses(call):
            self._fix(call)
            return
        host, device = (s * self.costs.of(n, *_work(call)) for n, s in enumerate(self.scale))
        self.network.edge(node, Network.SINK, int(host * TICKS))
        self.network.edge(Network.SOURCE, node, int(device * TICKS))

    def _copies(self, value: RelayExpr, users: Sequence[int]) -> None:
        """One copy there where any user is there and the value is not, and one back."""
        node, size = self._node(value), _nbytes(value.checked_type)
        there, back = self.network.node(), self.network.node()
        self.network.edge(node, there, int((self.costs.latency + size / self.costs.there) * TICKS))
        self.network.edge(back, node, int((self.costs.latency + size / self.costs.back) * TICKS))
        for user in users:
            self.network.edge(there, user, NEVER)
            self.network.edge(user, back, NEVER)


def _work(call: RelayExpr) -> tuple[float, float]:
    """The operations of an operator, and the bytes that it takes and gives."""
    assert isinstance(call, Call)
    flops = count_flops(alone(call))
    known = flops.value if isinstance(flops, IntImm) else 0
    nbytes = sum(_nbytes(a.checked_type) for a in call.args) + _nbytes(call.checked_type)
    return known, nbytes


def _nbytes(kind: Type) -> float:
    if isinstance(kind, TupleType):
        return sum(map(_nbytes, kind.fields))
    if not isinstance(kind, TensorType):
        return 0
    sizes = (d.value if isinstance(d, IntImm) else UNKNOWN for d in kind.shape)
    return prod(sizes) * itemsize(kind.dtype)
