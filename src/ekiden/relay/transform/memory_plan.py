"""Give the intermediate tensors of a function places in one storage, so that those not alive
together share bytes.

    let %s0 = memory.alloc_storage(size=64); let %t0 = memory.alloc_tensor(%s0, offset=0, ...); ...
    let %s1 = memory.alloc_storage(size=64); let %t1 = memory.alloc_tensor(%s1, offset=0, ...); ...
->  let %arena = memory.alloc_storage(size=128);
    let %t0 = memory.alloc_tensor(%arena, offset=0, ...); ...

Tensors that leave the function (its result, arguments of calls, fields of data, captured variables)
keep a storage of their own. Places are found greedily, largest first, among constant sizes; a
symbolic size takes the place of a dead tensor of the same symbolic size or a new one after all
constant ones.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Hashable
from dataclasses import dataclass

from ekiden.arith import simplify
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm, PrimExpr, const
from ekiden.ir.prim import Var as PrimVar
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.structural import structural_key
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Tuple, TupleGetItem, Var
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs, alloc_storage
from ekiden.relay.op.vm import BindDimsAttrs, MatchShapeAttrs
from ekiden.relay.transform.chains import Binding, Chain, map_chains
from ekiden.relay.transform.scopes import bodies, evaluation_order, map_functions, on_body, operands

ALIGNMENT = 64
_VIEWS = (
    "memory.alloc_tensor", "vm.reshape_tensor",
    "vm.match_shape", "vm.forget_shape", "vm.bind_dims",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class _Request:
    """A storage of the chain: its size in bytes, and the positions between which it is alive (both
    included).
    """

    storage: Var
    size: PrimExpr
    first: int
    last: int
    offset: PrimExpr | None = None


def op_name(value: RelayExpr) -> str:
    """The name of the operator a value calls; empty if it calls none."""
    return value.op.name if isinstance(value, Call) and isinstance(value.op, Op) else ""


class _Lifetimes:
    """Which storage each variable of a chain lives in, when it is last used, and which escape."""

    def __init__(self, chain: Chain) -> None:
        self.home: dict[RelayExpr, frozenset[Var]] = {}
        self.requests: dict[Var, _Request] = {}
        self.escaped: set[Var] = set()
        for at, (variable, value) in enumerate(chain.bindings):
            self._visit(at, variable, value)
        if chain.result is not None:
            for each in evaluation_order(chain.result):
                self.escaped |= self.home.get(each, frozenset())

    def _visit(self, at: int, variable: Var, value: RelayExpr) -> None:
        name = op_name(value)
        if isinstance(value, Call) and isinstance(value.attrs, AllocStorageAttrs):
            self.requests[variable] = _Request(variable, _round_up(value.attrs.size), at, at)
            self.home[variable] = frozenset((variable,))
            return
        used = self._used(value)
        for storage in used:
            self.requests[storage].last = at
        if name in _VIEWS or isinstance(value, (Var, Tuple, TupleGetItem)):
            self.home[variable] = used
        elif name != "vm.invoke_tvm_op":  # calls, branches, closures, cells: may keep what they get
            self.escaped |= used

    def _used(self, value: RelayExpr) -> frozenset[Var]:
        used = self.home.get(value, frozenset())
        if isinstance(value, Var):
            return used
        for each in evaluation_order(value) if bodies(value) else _leaves(value):
            used |= self.home.get(each, frozenset())
        return used


def _leaves(value: RelayExpr) -> list[RelayExpr]:
    found: list[RelayExpr] = []
    for operand in operands(value):
        found.extend(operand.fields if isinstance(operand, Tuple) else (operand,))
    return found


def _round_up(size: PrimExpr) -> PrimExpr:
    return simplify((size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT)


class _Timeline:
    """Requests that have a place, found by the positions at which they are alive.

    A segment tree over the positions finds those alive at the first one asked for, a sorted list
    those that begin later: a search costs the logarithm of their number, and what it finds.
    """

    def __init__(self, length: int) -> None:
        self.size = max(length, 1)
        self.nodes: dict[int, list[_Request]] = {}
        self.begins: list[tuple[int, int]] = []
        self.placed: list[_Request] = []

    def add(self, request: _Request) -> None:
        """Remember a request."""
        insort(self.begins, (request.first, len(self.placed)))
        self.placed.append(request)
        low, high = request.first + self.size, request.last + self.size
        while low <= high:
            if low % 2:
                self.nodes.setdefault(low, []).append(request)
            if not high % 2:
                self.nodes.setdefault(high, []).append(request)
            low, high = (low + 1) // 2, (high - 1) // 2

    def rivals(self, request: _Request) -> list[_Request]:
        """The requests that are alive at some position together with one."""
        found: list[_Request] = []
        at = request.first + self.size
        while at:
            found += self.nodes.get(at, ())
            at //= 2
        start = bisect_right(self.begins, (request.first, len(self.placed)))
        end = bisect_right(self.begins, (request.last, len(self.placed)))
        return found + [self.placed[n] for _, n in self.begins[start:end]]


def _place_constant(requests: list[_Request]) -> int:
    """Offsets for constant sizes, largest first, each at the lowest free place; gives the bytes
    needed in all.
    """
    timeline = _Timeline(max((r.last for r in requests), default=0) + 1)
    total = 0
    for request in sorted(requests, key=lambda r: (-_value(r.size), r.first)):
        size, offset = _value(request.size), 0
        for begin, end in sorted(_bytes(rival) for rival in timeline.rivals(request)):
            if offset + size <= begin:
                break
            offset = max(offset, end)
        request.offset = const(offset)
        timeline.add(request)
        total = max(total, offset + size)
    return total


def _bytes(request: _Request) -> tuple[int, int]:
    """The first byte of a request that has a place, and the one after the last."""
    assert request.offset is not None
    begin = _value(request.offset)
    return begin, begin + _value(request.size)


def _value(expr: PrimExpr) -> int:
    assert isinstance(expr, IntImm)
    return expr.value


def _place_symbolic(requests: list[_Request], start: int) -> PrimExpr:
    """Offsets for symbolic sizes in order of first use, from byte `start`; gives the bytes needed
    in all.
    """
    total: PrimExpr = const(start)
    places: dict[Hashable, list[tuple[int, int]]] = {}
    offsets: list[PrimExpr] = []
    for request in requests:
        dying = places.setdefault(structural_key(request.size), [])
        if dying and dying[0][0] < request.first:
            _, index = heapq.heappop(dying)
        else:
            index = len(offsets)
            offsets.append(total)
            total = simplify(total + request.size)
        request.offset = offsets[index]
        heapq.heappush(dying, (request.last, index))
    return total


def _late_symbols(chain: Chain) -> set[PrimVar]:
    """The dimensions that get their names inside of a chain: not known when it begins."""
    found: set[PrimVar] = set()
    for _, value in chain.bindings:
        if isinstance(value, Call) and isinstance(value.attrs, BindDimsAttrs):
            found |= set(free_vars(*value.attrs.symbols))
        elif op_name(value) == "vm.match_shape":
            assert isinstance(value, Call) and isinstance(value.attrs, MatchShapeAttrs)
            before = value.args[0].checked_type
            assert isinstance(before, TensorType)
            found |= set(free_vars(*value.attrs.shape)) - set(free_vars(*before.shape))
    return found


def _plan_chain(chain: Chain, is_function_body: bool) -> Chain:
    lifetimes = _Lifetimes(chain)
    late = _late_symbols(chain)
    planned = {
        s: r
        for s, r in lifetimes.requests.items()
        if s not in lifetimes.escaped and late.isdisjoint(free_vars(r.size))
    }
    if len(planned) < 2 or not is_function_body:
        return chain
    fixed = [r for r in planned.values() if isinstance(r.size, IntImm)]
    symbolic = [r for r in planned.values() if not isinstance(r.size, IntImm)]
    total = _place_symbolic(symbolic, _place_constant(fixed))
    arena = Var("arena")
    bindings: list[Binding] = [(arena, alloc_storage(total, ALIGNMENT))]
    bindings.extend(_moved(b, planned, arena) for b in chain.bindings if b[0] not in planned)
    return Chain(bindings, chain.result)


def _moved(binding: Binding, planned: dict[Var, _Request], arena: Var) -> Binding:
    variable, value = binding
    if isinstance(value, Call) and isinstance(value.attrs, AllocTensorAttrs):
        request = planned.get(value.args[0]) if isinstance(value.args[0], Var) else None
        if request is not None:
            attrs = value.attrs.with_fields(offset=request.offset)
            return variable, value.with_fields(args=(arena,), attrs=attrs)
    return binding


@module_pass(name="MemoryPlan")
def _memory_plan(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, on_body(lambda body: map_chains(body, _plan_chain)))


def MemoryPlan() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return _memory_plan
