"""From a module in A-normal form with explicit memory to a MicroModule: its bindings in order, then
a place for each storage.

    let %t = alloc_tensor(%s, ..); invoke(f, (%x,), (%t,)); let %y = reshape_tensor(%t); %y
    ->  step f(input 0, output 0)          %s is all of the result: it is the caller's memory

What is left of the program are calls and addresses: tuples, views and names are resolved here.
Storages that are results lie where the caller says, others in pools, by the planner of the virtual
machine (storage_places), fast memories first. A result that is also an input, a constant, or there
twice is copied as a last step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from ekiden.backend.crt.kernels import Kernels
from ekiden.backend.crt.module import (
    ALIGNMENT,
    Home,
    Kernel,
    MicroModule,
    Place,
    Pool,
    Step,
    Tensor,
)
from ekiden.codegen.c.helium import functions_in
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Array
from ekiden.ir.pass_context import PLANNER, PLANS_MEMORY, PassContext
from ekiden.ir.prim import IntImm, const
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem, Var
from ekiden.relay.op.memory import AllocTensorAttrs
from ekiden.relay.transform.memory.storage_in_place import merge_in_place
from ekiden.relay.transform.memory.storage_lifetimes import Lifetimes, Request, is_alias, op_name
from ekiden.relay.transform.memory.storage_places import place_in
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

ALGORITHMS = ("", "greedy_by_size", "greedy_by_conflicts", "hill_climb")
"""Names of ways to plan memory in TVM; for each the one way here stands."""


@dataclass(frozen=True, slots=True)
class _At:
    """Bytes in a storage, before it has a place."""

    storage: Var
    offset: int


_Home: TypeAlias = _At | Place
_Value: TypeAlias = "_Home | tuple[_Value, ...]"


@dataclass(slots=True)
class _Call:
    """A step whose values have no places yet."""

    kernel: Kernel | None
    homes: list[_Home]
    workspace: Request | None = None
    nbytes: int = 0
    source: str = ""


@dataclass(slots=True)
class _Reader:
    """Goes through the bindings of `main`."""

    kernels: Kernels
    lifetimes: Lifetimes
    values: dict[RelayExpr, _Value] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    constants: dict[int, tuple[int, Array]] = field(default_factory=dict)
    """Identity of an array -> its number, and the array."""

    def read(self) -> None:
        """All bindings. Raises CompileError for what is no straight line of kernels on tensors."""
        (block, *others) = self.lifetimes.blocks
        for at, (variable, value) in enumerate(block.chain.bindings):
            self.binding(variable, value, block.positions[at], at)
        assert not others, "bindings with bodies were refused"

    def binding(self, variable: Var, value: RelayExpr, position: int, index: int) -> None:
        """What a variable is."""
        name = op_name(value)
        if name == "memory.alloc_storage":
            return
        if name == "memory.alloc_tensor":
            assert isinstance(value, Call) and isinstance(value.attrs, AllocTensorAttrs)
            storage = value.args[0]
            assert isinstance(storage, Var)
            self.values[variable] = _At(storage, _number(value.attrs.offset, value))
        elif name == "vm.invoke_tvm_op":
            assert isinstance(value, Call)
            self.invoke(value, position, index)
        elif name == "vm.reshape_tensor":
            assert isinstance(value, Call)
            self.values[variable] = self.value(value.args[0])
        elif is_alias(value) or isinstance(value, Constant):
            self.values[variable] = self.value(value)
        else:
            raise CompileError(_refusal(value, name))

    def value(self, expr: RelayExpr) -> _Value:
        """Where an atom lies."""
        match expr:
            case Constant(data=data):
                known = self.constants.setdefault(id(data), (len(self.constants), data))
                return Place(Home.CONSTANT, known[0])
            case Tuple(fields=fields):
                return tuple(map(self.value, fields))
            case TupleGetItem(tuple_value=of, index=index):
                whole = self.value(of)
                assert isinstance(whole, tuple)
                return whole[index]
            case _ if expr in self.values:
                return self.values[expr]
            case _:
                raise CompileError(_refusal(expr, op_name(expr)))

    def invoke(self, call: Call, position: int, index: int) -> None:
        """A call of a kernel; its working memory is one more storage, which lives for the call."""
        function = call.args[0]
        assert isinstance(function, Function)
        kernel = self.kernels.kernel(function)
        homes = [h for each in call.args[1:3] for h in _leaves(self.value(each))]
        made = _Call(kernel, homes, source=str(call.span or ""))
        if kernel.workspace:
            root = self.lifetimes.blocks[0]
            made.workspace = Request(
                Var("workspace"), const(kernel.workspace), root, index, position,
                uses={root: position},
            )  # fmt: skip
        self.calls.append(made)


def _leaves(value: _Value) -> Iterator[_Home]:
    stack = [value]
    while stack:
        at = stack.pop()
        if isinstance(at, tuple):
            stack.extend(reversed(at))
        else:
            yield at


def _number(expr: object, value: RelayExpr) -> int:
    if not isinstance(expr, IntImm):
        where = f" of {value.span}" if value.span else ""
        raise CompileError(f"compile: a size{where} is known when it runs only: no allocator")
    return expr.value


def _refusal(value: RelayExpr, name: str) -> str:
    what = name or type(value).__name__
    where = f"{value.span}: " if value.span else ""
    return (
        f"compile: runtime 'crt': {where}{what} is no kernel on tensors of known shapes; models of "
        "straight lines and static shapes can be compiled so, the virtual machine runs this one"
    )


def _check_types(function: Function, names: Sequence[str]) -> None:
    for param, name in zip(function.params, names, strict=True):
        kind = param.checked_type
        if not isinstance(kind, TensorType) or not all(isinstance(d, IntImm) for d in kind.shape):
            raise CompileError(
                f"compile: runtime 'crt': input '{name}' has no static shape: {kind}; give one "
                "(--shape NAME=1,3,224,224)"
            )


def plan_module(
    function: Function,
    kernels: Kernels,
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    pools: Sequence[Pool] = (),
) -> MicroModule:
    """The program of `main`, as the VM pipeline without MemoryPlan prepares it. Without `pools` it
    has one memory of its own.

    Raises CompileError for control flow, sizes that are known when it runs only, what needs the
    runtime, and memories that are too small.
    """
    asked = PassContext.current().option
    if asked(PLANNER) not in ALGORITHMS:
        names = ", ".join(filter(None, ALGORITHMS))
        raise CompileError(f"compile: {PLANNER!r}: one of {names} expected, got {asked(PLANNER)!r}")
    if not asked(PLANS_MEMORY):
        never = "memory is always planned as a whole"
        raise CompileError(f"compile: runtime 'crt': {never}, got {PLANS_MEMORY!r}: False")
    _check_types(function, [t.name for t in inputs])
    reader = _Reader(kernels, Lifetimes(function.body, lambda callee: False))
    for number, param in enumerate(function.params):
        reader.values[param] = Place(Home.INPUT, number)
    reader.read()
    result = reader.lifetimes.blocks[0].chain.result
    assert result is not None
    fixed = _bind_outputs(reader, result, outputs)
    places, used = _place(reader, set(fixed), pools or (Pool("workspace"),))
    places |= fixed
    helpers = (*kernels.helpers.externs.values(), *kernels.helpers.texts.values())
    texts = (*helpers, *(kernel.text for kernel in kernels.made.values()))
    return MicroModule(
        name=name,
        target=kernels.target,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        constants=tuple(data for _, data in reader.constants.values()),
        kernels=tuple(kernels.made.values()),
        steps=tuple(_step(call, places) for call in reader.calls),
        pools=tuple(used),
        helpers=(*functions_in(texts), *helpers),
        has_own_memory=not pools,
    )


def _bind_outputs(
    reader: _Reader, result: RelayExpr, outputs: Sequence[Tensor]
) -> dict[Var, Place]:
    """Storages that are outputs; for all others among the results, a copy as a last step."""
    fixed: dict[Var, Place] = {}
    found = list(_leaves(reader.value(result)))
    assert len(found) == len(outputs)
    for number, (home, tensor) in enumerate(zip(found, outputs, strict=True)):
        place = Place(Home.OUTPUT, number)
        if isinstance(home, _At) and home.offset == 0 and home.storage not in fixed:
            size = reader.lifetimes.requests[home.storage].size
            if isinstance(size, IntImm) and size.value == tensor.nbytes:
                fixed[home.storage] = place
                continue
        reader.calls.append(_Call(None, [home, place], nbytes=tensor.nbytes))
    return fixed


def _place(
    reader: _Reader, outputs: set[Var], pools: Sequence[Pool]
) -> tuple[dict[Var, Place], list[Pool]]:
    """Where each storage lies that is no output, and what is used of each pool then."""
    lifetimes = reader.lifetimes
    own = [r for v, r in lifetimes.requests.items() if v not in outputs]
    for each in own:
        _number(each.size, each.storage)
    free = [r for r in own if r.storage not in lifetimes.escaped]
    merged = merge_in_place(lifetimes, free, reader.kernels.in_place)
    merged += [r for r in own if r.storage in lifetimes.escaped]
    merged += [c.workspace for c in reader.calls if c.workspace is not None]
    try:
        found, used = place_in(merged, [p.limit for p in pools], ALIGNMENT)
    except ValueError as error:
        memories = ", ".join(f"{p.name} ({p.limit} bytes)" for p in pools)
        raise CompileError(
            f"compile: the memories {memories} are too small: a tensor of {error} bytes finds no "
            "room"
        ) from error
    places = {
        each.storage: Place(Home.POOL, number, offset)
        for request, (number, offset) in zip(merged, found, strict=True)
        for each in (request, *request.shares)
    }
    return places, [replace(p, used=n) for p, n in zip(pools, used, strict=True)]


def _step(call: _Call, places: dict[Var, Place]) -> Step:
    homes = [_placed(home, places) for home in call.homes]
    if call.workspace is not None:
        homes.append(places[call.workspace.storage])
    return Step(call.kernel, tuple(homes), call.nbytes, call.source)


def _placed(home: _Home, places: dict[Var, Place]) -> Place:
    if isinstance(home, Place):
        return home
    start = places[home.storage]
    return replace(start, offset=start.offset + home.offset)


__all__ = ["plan_module"]
