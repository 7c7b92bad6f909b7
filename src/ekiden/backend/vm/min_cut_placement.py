"""Cost-based device placement of operators by minimum cut, minimising the time of computation and
copies.

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
from ekiden.backend.vm.unsupported_operators import UnsupportedOperators
from ekiden.ir.dtype import itemsize
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.pass_context import PLACEMENT_COSTS_OPTION
from ekiden.ir.prim import IntImm
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.analysis.minimum_cut import INFINITE_COST, FlowNetwork
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
from ekiden.relay.transform.fusion.fuse_ops import is_primitive_call, single_operator_function
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)
from ekiden.relay.visitor import children
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import CompilationConfig
from ekiden.target.virtual_device import HOST, VirtualDevice

__all__ = ["DeviceCosts", "PlaceByCost"]

ASSUMED_DYNAMIC_DIM = 16
"""Assumed value of an unknown dimension."""
PICOSECONDS_PER_S = 1e12
"""Unit of costs: whole picoseconds."""


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """Measured costs of the host and a device, in this order, and of copies: operations and bytes
    per second, launch time in seconds, and the time of the whole program on each (0: not
    measured).
    """

    flops: tuple[float, float]
    bandwidth: tuple[float, float]
    launch: tuple[float, float]
    program: tuple[float, float]
    copy_to_device: float
    copy_to_host: float
    latency: float

    def operator_seconds(self, where: int, work: float, nbytes: float) -> float:
        """Return the estimated seconds of an operator."""
        return self.launch[where] + max(work / self.flops[where], nbytes / self.bandwidth[where])


def PlaceByCost(config: CompilationConfig | None) -> Pass:  # noqa: N802
    """Return the pass that places operators on the host or a device by cost."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Annotate with `on_device` the operators that are faster on the one device that is not the
        host; the module is unchanged without measured costs (PLACEMENT_COSTS_OPTION) or devices.
        """
        measured = context.config.get(PLACEMENT_COSTS_OPTION)
        if not measured or config is None:
            return module
        assert isinstance(measured, Mapping)
        (device,) = (
            virtual_device for virtual_device in config.devices if not virtual_device.is_host
        )
        refuses = UnsupportedOperators(config.by_kind[device.device_type_int])
        costs = DeviceCosts(**measured)
        scale = _calibration_factors(module, costs)

        def place_function(function: Function) -> Function:
            """Place one function separately: in `main` parameters and results are the host's."""
            network = _PlacementNetwork(costs, scale, refuses, device)
            on_device_calls = network.on_device(function, module["main"] is function)
            return lift_body_rewrite(
                lambda body: _annotate_devices(body, on_device_calls, network.declared, device)
            )(function)

        return InferType()(map_functions(module, place_function))

    return Pass("PlaceByCost", transform, 0, (InferType(),))


def _annotate_devices(
    body: RelayExpr,
    on_device_calls: set[RelayExpr],
    annotated: set[RelayExpr],
    device: VirtualDevice,
) -> RelayExpr:
    """Return a body whose operators are annotated with their device."""

    def annotate_call(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Annotate an operator call with its device; other expressions and the program's own
        annotations stay.
        """
        if not is_primitive_call(old) or old in annotated:
            return new
        return on_device(new, device if old in on_device_calls else HOST, constrain_result=True)

    return rewrite_graph(body, annotate_call)


def _calibration_factors(module: IRModule, costs: DeviceCosts) -> tuple[float, float]:
    """Return the factors by which measured program times on host and device exceed the
    predictions.
    """
    calls = [
        call
        for function in module.functions.values()
        if isinstance(function, Function)
        for call in evaluation_order(function.body)
        if is_primitive_call(call) and isinstance(call, Call)
    ]
    sums = [
        sum(costs.operator_seconds(where, *_operator_work(call)) for call in calls)
        for where in (0, 1)
    ]
    # Measured whole-program times correct the estimate of each device by one factor.
    host, device = (
        seconds / total if seconds and total else 1.0
        for seconds, total in zip(costs.program, sums, strict=True)
    )
    return host, device


@dataclass(slots=True)
class _PlacementNetwork:
    """Flow network of one function's expressions: the source is the host, the sink the device."""

    costs: DeviceCosts
    scale: tuple[float, float]
    unsupported_operators: UnsupportedOperators
    device: VirtualDevice
    declared: set[RelayExpr] = field(default_factory=set)
    """Devices that the program declares, by expression."""
    network: FlowNetwork = field(default_factory=FlowNetwork)
    nodes: dict[RelayExpr, int] = field(default_factory=dict)
    uses: dict[RelayExpr, list[int]] = field(default_factory=dict)
    """Users of each value."""

    def on_device(self, function: Function, is_main: bool) -> set[RelayExpr]:
        """Return the operators that run on the device."""
        order = evaluation_order(function.body)
        # Arguments arrive in host memory.
        for param in function.params:
            self._pin_to_host(param)
        for expr in order:
            self._add_expr(expr)
        if is_main:
            self._record_use(function.body, FlowNetwork.SOURCE)
        for value, users in self.uses.items():
            self._add_copy_costs(value, users)
        host = self.network.source_side()
        calls = (candidate for candidate in order if is_primitive_call(candidate))
        return {operator_call for operator_call in calls if self.nodes[operator_call] not in host}

    def _network_node(self, expr: RelayExpr) -> int:
        if expr not in self.nodes:
            self.nodes[expr] = self.network.add_node()
        return self.nodes[expr]

    def _pin_to_host(self, expr: RelayExpr) -> None:
        """Fix an expression to the host."""
        self.network.add_edge(FlowNetwork.SOURCE, self._network_node(expr), INFINITE_COST)

    def _pin_to_declared(self, expr: RelayExpr, where: VirtualDevice) -> None:
        """Fix an expression to the device that the program declares; a third device is costed like
        the host, which copies to and from it.
        """
        self.declared.add(expr)
        if where.device == self.device.device:
            self.network.add_edge(self._network_node(expr), FlowNetwork.SINK, INFINITE_COST)
        else:
            self._pin_to_host(expr)

    def _record_annotation(self, call: Call) -> None:
        """Record the devices that an annotation or copy of the program declares."""
        (value,), attrs = call.args, call.attrs
        if isinstance(attrs, DeviceCopyAttrs):
            self._pin_to_declared(value, attrs.src_virtual_device)
            self._pin_to_declared(call, attrs.dst_virtual_device)
        elif isinstance(attrs, OnDeviceAttrs):
            if attrs.constrain_body:
                self._pin_to_declared(value, attrs.virtual_device)
            if attrs.constrain_result:
                self._pin_to_declared(call, attrs.virtual_device)

    def _record_use(self, value: RelayExpr, user: int) -> None:
        if isinstance(value, (Constant, Constructor, GlobalVar, Op)):
            return  # a constant is put where it is used, once; the others are of the program
        self._network_node(value)
        self.uses.setdefault(value, []).append(user)

    def _add_expr(self, expr: RelayExpr) -> None:
        """Add an expression: its costs, and what it uses."""
        node = self._network_node(expr)
        operands: Sequence[RelayExpr] = children(expr)
        match expr:
            case Call() if is_primitive_call(expr):
                self._set_operator_costs(expr, node)
            case Call(attrs=OnDeviceAttrs() | DeviceCopyAttrs()):
                self._record_annotation(expr)
            case If():
                # The virtual machine reads conditions on the host.
                self._record_use(expr.cond, FlowNetwork.SOURCE)
                operands = (expr.true_branch, expr.false_branch)
            case Let():
                self._tie_placement(expr.var, expr.value)
                operands = (expr.body,)
            case Tuple() | TupleGetItem() | Var() | Constant():
                pass
            case _:
                self._pin_to_host(expr)
        for operand in operands:
            self._record_use(operand, node)

    def _tie_placement(self, one: RelayExpr, second: RelayExpr) -> None:
        a, b = self._network_node(one), self._network_node(second)
        self.network.add_edge(a, b, INFINITE_COST)
        self.network.add_edge(b, a, INFINITE_COST)

    def _set_operator_costs(self, call: Call, node: int) -> None:
        if self.unsupported_operators(call):
            self._pin_to_host(call)
            return
        host, device = (
            s * self.costs.operator_seconds(n, *_operator_work(call))
            for n, s in enumerate(self.scale)
        )
        self.network.add_edge(node, FlowNetwork.SINK, int(host * PICOSECONDS_PER_S))
        self.network.add_edge(FlowNetwork.SOURCE, node, int(device * PICOSECONDS_PER_S))

    def _add_copy_costs(self, value: RelayExpr, users: Sequence[int]) -> None:
        """Add the cost of one copy to the device, shared by all users there, and of one
        copy back.
        """
        node, size = self._network_node(value), _type_bytes(value.checked_type)
        to_device, back = self.network.add_node(), self.network.add_node()
        self.network.add_edge(
            node,
            to_device,
            int((self.costs.latency + size / self.costs.copy_to_device) * PICOSECONDS_PER_S),
        )
        self.network.add_edge(
            back,
            node,
            int((self.costs.latency + size / self.costs.copy_to_host) * PICOSECONDS_PER_S),
        )
        # One auxiliary node per direction makes all users on a side share a single copy.
        for user in users:
            self.network.add_edge(to_device, user, INFINITE_COST)
            self.network.add_edge(user, back, INFINITE_COST)


def _operator_work(call: RelayExpr) -> tuple[float, float]:
    """Return an operator's operation count, and the bytes that it reads and writes."""
    assert isinstance(call, Call)
    flops = count_flops(single_operator_function(call))
    flop_count = flops.value if isinstance(flops, IntImm) else 0
    nbytes = sum(_type_bytes(a.checked_type) for a in call.args) + _type_bytes(call.checked_type)
    return flop_count, nbytes


def _type_bytes(kind: Type) -> float:
    if isinstance(kind, TupleType):
        return sum(map(_type_bytes, kind.fields))
    if not isinstance(kind, TensorType):
        return 0
    sizes = (d.value if isinstance(d, IntImm) else ASSUMED_DYNAMIC_DIM for d in kind.shape)
    return prod(sizes) * itemsize(kind.dtype)
