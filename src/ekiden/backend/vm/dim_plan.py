"""Plan of where a function computes its symbolic sizes, offsets and shapes.

They stand in int64 vectors. The first is computed at entry, from the shapes of the parameters; a
further one wherever a binding names dimensions that were not known before: from its tensors' shapes
or elements, and from the vectors before it.

    def @main(%x: Tensor[(n, 4), float32])       entry: [n * 16, n, 4]: bytes of a result, its shape
    let %i = nonzero(%x)  of (m, 2)              stage 1, behind it: [m, m * 16]

One kernel per stage computes all of its numbers, each once, and checks what kernels take for
granted of them; a kernel for each shape would be a call for each. Straight code has one stage where
no dimension depends on data. Conditions inside of a branch are checked in it: a branch that is not
taken asks for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from ekiden.backend.kernels.lower import Constraint
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.ir.prim_visitor import ExprInterner, free_vars
from ekiden.ir.type import TensorType
from ekiden.relay.analysis.shape_constraints import kernel_conditions
from ekiden.relay.expr import Call, Function
from ekiden.relay.expr import Var as RelayVar
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs
from ekiden.relay.op.vm import BindDimsAttrs, MatchShapeAttrs, ReshapeTensorAttrs
from ekiden.relay.transform.language.let_chains import parse_let_chain
from ekiden.relay.transform.language.scope_tree import bodies
from ekiden.relay.visitor import type_post_order
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.backend.vm.stage_kernels import ShapeSources


def is_static(exprs: Sequence[PrimExpr]) -> bool:
    """Return whether all expressions are constants."""
    return all(isinstance(e, IntImm) for e in exprs)


def constant_values(exprs: Sequence[PrimExpr]) -> tuple[int, ...]:
    """Return the values of constants."""
    return tuple(e.value for e in exprs if isinstance(e, IntImm))


class DimVector:
    """Vector of size expressions, in which equal sequences share a slot and conditions on the
    symbols are checked.
    """

    def __init__(self, constraints: Sequence[Constraint] = ()) -> None:
        self.constraints: list[Constraint] = []
        # A vector without elements is never computed, but its checks must run.
        self.exprs: list[PrimExpr] = [const(0)] if constraints else []
        self._slot_by_exprs: dict[tuple[int, ...], int] = {}
        self._checked: set[int] = set()
        self._interner = ExprInterner()
        for constraint in constraints:
            self.check(constraint)

    def slot_of(self, exprs: Sequence[PrimExpr]) -> int:
        """Return the slot of the first of `exprs`, whose values are stored consecutively."""
        shared = [*map(self._interner, exprs)]
        # Interned, so that equality of expressions is identity and the key is small.
        key = tuple(map(id, shared))
        if key not in self._slot_by_exprs:
            self._slot_by_exprs[key] = len(self.exprs)
            self.exprs.extend(shared)
        return self._slot_by_exprs[key]

    def check(self, constraint: Constraint) -> None:
        """Add a condition, once."""
        if not self.has_check(constraint):
            self._checked.add(id(self._interner(constraint[0])))
            self.constraints.append(constraint)
            self.mark_used()

    def mark_used(self) -> None:
        """Mark the vector as used even if nothing reads it, since computing it performs the
        checks.
        """
        if not self.exprs:
            self.slot_of((const(0),))

    def has_check(self, constraint: Constraint) -> bool:
        """Return whether a condition is checked."""
        return id(self._interner(constraint[0])) in self._checked


@dataclass(eq=False, slots=True)
class DimStage:
    """Program point at which a size vector is computed: function entry, or after bindings that name
    dimensions.
    """

    name: str
    """Name of the stage's kernel without the prefix of all such kernels."""
    parent: DimStage | None
    chain: RelayExpr
    """Let-chain that contains it."""
    dims: DimVector
    calls: list[Call] = field(default_factory=list)
    """vm.match_shape and vm.bind_dims calls that bind symbols here."""
    symbols: dict[Var, int] = field(default_factory=dict)
    """Slot of each symbol bound here."""
    earlier_vectors: dict[DimStage, set[Var]] = field(default_factory=dict)
    """Slots read from the vectors of earlier stages."""
    depth: int = 0


class DimPlan:
    """Plan of one function's stages, with the slot of each symbolic size, offset and shape."""

    def __init__(
        self, name: str, function: Function, constraints: Sequence[Constraint] = ()
    ) -> None:
        self.name = name
        self.function = function
        self.sources: ShapeSources | None = None
        """Shape sources of the entry stage (stage_kernels.entry_sources), computed once."""
        self.entry = DimStage(name, None, function.body, DimVector(constraints))
        self.stages = [self.entry]
        self._last_binding: dict[DimStage, RelayVar] = {}
        self._free_symbols_cache: dict[int, tuple[PrimExpr, list[Var]]] = {}
        """Symbols of each expression by identity, with the expression, which is kept alive."""
        self.before: dict[RelayExpr, DimStage] = {}
        """Stage at the beginning of each inner chain."""
        kinds = [t for p in function.params for t in type_post_order(p.checked_type)]
        parameter_symbols = free_vars(
            *(d for t in kinds if isinstance(t, TensorType) for d in t.shape)
        )
        self._bound_at: dict[Var, DimStage] = dict.fromkeys(parameter_symbols, self.entry)
        self._is_checked = bool(constraints)
        stack: list[tuple[RelayExpr, DimStage]] = [(function.body, self.entry)]
        # An explicit stack: let-chains and branches nest deeper than Python's recursion limit.
        while stack:
            body, stage = stack.pop()
            stack.extend(self._plan_chain(body, stage))
        self.after = {variable: stage for stage, variable in self._last_binding.items()}
        """Stage computed after each variable's binding."""
        # Later stages first: they add the symbols that they read to the vectors of earlier ones.
        for stage in reversed(self.stages):
            self._collect_symbols(stage)

    def stage_and_slot(
        self, exprs: Sequence[PrimExpr], beside: Sequence[PrimExpr] = ()
    ) -> tuple[DimStage, int]:
        """Return the stage that computes some expressions and their slot in its vector; constants
        are stored in the stage of `beside`.
        """
        stage = self._latest_stage(beside if is_static(exprs) else exprs)
        return stage, stage.dims.slot_of(exprs)

    def _latest_stage(self, exprs: Sequence[PrimExpr]) -> DimStage:
        stages = (self._bound_at.get(v, self.entry) for e in exprs for v in self._free_symbols(e))
        return max(stages, key=lambda stage: stage.depth, default=self.entry)

    def _free_symbols(self, expr: PrimExpr) -> list[Var]:
        """Return the symbols of an expression, cached."""
        cached = self._free_symbols_cache.get(id(expr))
        if cached is None:
            cached = self._free_symbols_cache[id(expr)] = expr, free_vars(expr)
        return cached[1]

    def _new_stage(self, parent: DimStage, chain: RelayExpr) -> DimStage:
        name = f"{self.name}__stage{len(self.stages)}"  # not that of another function
        stage = DimStage(name, parent, chain, DimVector(), depth=parent.depth + 1)
        self.stages.append(stage)
        return stage

    def _plan_chain(self, body: RelayExpr, stage: DimStage) -> list[tuple[RelayExpr, DimStage]]:
        """Assign slots to the dimensions that a let-chain computes or reads; return the inner
        chains with the stage in which each begins.
        """
        inner: list[tuple[RelayExpr, DimStage]] = []
        chain = parse_let_chain(body)
        bindings, open_stage = chain.bindings, None
        for variable, value in bindings:
            call = value if isinstance(value, Call) else None
            if call is not None and isinstance(call.attrs, (MatchShapeAttrs, BindDimsAttrs)):
                if isinstance(call.op, Op) and call.op.definition.stateful:
                    stage = open_stage = open_stage or self._new_stage(stage, body)
                    self._bind_symbols(stage, call)
                    self._last_binding[stage] = variable
                continue
            open_stage = None
            if call is not None:
                self._plan_call(call)
                self._add_call_checks(call, stage, body)
            inner.extend((inner_body, stage) for inner_body in bodies(value))
        if chain.result is not None:
            inner.extend((inner_body, stage) for inner_body in bodies(chain.result))
        return inner

    def _bind_symbols(self, stage: DimStage, call: Call) -> None:
        stage.calls.append(call)
        attrs = call.attrs
        if isinstance(attrs, BindDimsAttrs):
            named: Sequence[PrimExpr] = [s for s in attrs.symbols if isinstance(s, Var)]
        else:
            assert isinstance(attrs, MatchShapeAttrs)
            tensor_type = call.args[0].checked_type
            assert isinstance(tensor_type, TensorType)
            named = [
                d for d in attrs.shape if isinstance(d, Var) and not _occurs_in_type(d, tensor_type)
            ]
        for symbol in named:
            assert isinstance(symbol, Var)
            if symbol not in self._bound_at:
                self._bound_at[symbol] = stage
                stage.symbols[symbol] = stage.dims.slot_of((symbol,))
        stage.dims.mark_used()  # where it only checks; symbols come first

    def _plan_call(self, call: Call) -> None:
        match call.attrs:
            case AllocStorageAttrs(size=size) if not is_static((size,)):
                self.stage_and_slot((size,))
            case AllocTensorAttrs(offset=offset, shape=shape) if not is_static((offset, *shape)):
                self.stage_and_slot((offset,), beside=shape)
                self.stage_and_slot(shape, beside=(offset,))
            case ReshapeTensorAttrs(shape=shape) if not is_static(shape):
                self.stage_and_slot(shape)

    def _add_call_checks(self, call: Call, stage: DimStage, body: RelayExpr) -> None:
        """Add checks of what a kernel assumes about its arguments."""
        if not (isinstance(call.op, Op) and call.op.name == "vm.invoke_tvm_op"):
            return
        is_known = self._is_checked and stage is self.entry and body is self.function.body
        if is_known or not isinstance(call.args[0], Function):
            return
        for constraint in kernel_conditions(call.args[0]):
            self._add_check(constraint, stage, body)

    def _add_check(self, constraint: Constraint, stage: DimStage, body: RelayExpr) -> None:
        current: DimStage | None = stage
        # An enclosing stage that checks the condition has run by then.
        while current is not None:
            if current.dims.has_check(constraint):
                return
            current = current.parent
        chosen = self._latest_stage((constraint[0],))
        # A check inside a branch must run only where the branch is taken.
        if chosen.chain is not body:
            chosen = self.before.get(body) or self._new_stage(chosen, body)
            self.before[body] = chosen
        chosen.dims.check(constraint)

    def _collect_symbols(self, stage: DimStage) -> None:
        """Collect the symbols that a stage reads from earlier stages."""
        exprs = [*stage.dims.exprs, *(c for c, _ in stage.dims.constraints)]
        exprs += [d for c in stage.calls if isinstance(c.attrs, MatchShapeAttrs)
                  for d in c.attrs.shape]  # fmt: skip
        for symbol in free_vars(*exprs):  # parts that they share once
            if symbol in stage.symbols:
                continue
            origin = self._bound_at.get(symbol, self.entry)
            if origin is not stage:
                origin.dims.slot_of((symbol,))
                stage.earlier_vectors.setdefault(origin, set()).add(symbol)


def _occurs_in_type(symbol: PrimExpr, kind: TensorType) -> bool:
    """Return whether a symbol occurs in a type."""
    return any(symbol in free_vars(d) for d in kind.shape)
