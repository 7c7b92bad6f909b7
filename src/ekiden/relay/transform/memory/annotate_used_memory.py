"""Annotate each kernel call with the bytes of the tensors alive during it.

    let %a = fn (%p, Primitive=1) {..}(%x); let %b = fn (%q, Primitive=1) {..}(%x); concatenate(..)
    ->  let %a = fn (%p, Primitive=1, used_memory=[240]) {..}(%x); ...         x and a
        let %b = fn (%q, Primitive=1, used_memory=[360]) {..}(%x); ...         x, a and b

In A-normal form, of `main`: `used_memory` has a number for each call of a function, in order, and
`io_used_memory` of `main` the bytes of its parameters and its result. What a call reads is alive in
it, and its result; constants are not counted. TVM's pass of this name.
"""

from __future__ import annotations

from dataclasses import field

from ekiden.ir import dtype as dt
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Function, Var
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.let_chains import LetChain, parse_let_chain
from ekiden.relay.transform.language.scope_tree import (
    bodies,
    evaluation_order,
    operands,
    replace_children,
)
from ekiden.runtime.errors import PassError
from ekiden.runtime.lazy_dataclass import dataclass

TensorVars = frozenset[Var]
"""Variables of the tensors in a value."""


def tensor_bytes(kind: Type) -> int:
    """Return the size in bytes of all tensors of a type, 0 for other types. Raises PassError for a
    size that is known when it runs only.
    """
    total, stack = 0, [kind]
    while stack:
        current = stack.pop()
        if isinstance(current, TupleType):
            stack.extend(current.fields)
        elif isinstance(current, TensorType):
            size = dt.itemsize(current.dtype)
            for dim in current.shape:
                if not isinstance(dim, IntImm):
                    raise PassError(
                        f"AnnotateUsedMemory does not support dynamic shapes: {current}"
                    )
                size *= dim.value
            total += size
    return total


@dataclass(slots=True)
class _UsedMemoryAnnotator:
    """Annotator of the let chains of `main`, outer chains first."""

    tensors_by_expr: dict[RelayExpr, TensorVars] = field(default_factory=dict)
    used_bytes: dict[Function, list[int]] = field(default_factory=dict)

    def annotate_chain(
        self, chain: LetChain, alive_after: TensorVars, alive: TensorVars
    ) -> list[tuple[RelayExpr, TensorVars]]:
        """Annotate the kernel calls of one chain; return its nested bodies with the tensors alive
        during them.

        Args:
            chain: The chain.
            alive_after: The tensors that are used after it.
            alive: Those that are alive before it.

        Returns:
            The bodies in it, each with what is alive after that.
        """
        assert chain.result is not None
        reads = [self._record_binding(variable, value) for variable, value in chain.bindings]
        last: dict[Var, int] = {}
        for index, read in enumerate([*reads, self._tensors_of(chain.result) | alive_after]):
            last.update(dict.fromkeys(read, index))
        # What nobody reads here or later is not counted.
        live = {v for v in alive if v in last}
        total = sum(tensor_bytes(v.checked_type) for v in live)
        ending: dict[int, list[Var]] = {}
        for variable, index in last.items():
            ending.setdefault(index, []).append(variable)
        inner: list[tuple[RelayExpr, TensorVars]] = []
        for index, (variable, value) in enumerate(chain.bindings):
            # An alias has no bytes of its own.
            is_own = self.tensors_by_expr[variable] == {variable}
            size = tensor_bytes(variable.checked_type) if is_own else 0
            if isinstance(value, Call) and isinstance(value.op, Function):
                # Inputs that end with this call are still alive in it: they are subtracted
                # afterwards.
                self.used_bytes.setdefault(value.op, []).append(total + size)
            gone = [v for v in ending.get(index, ()) if v in live]
            live.difference_update(gone)
            total -= sum(tensor_bytes(v.checked_type) for v in gone)
            inner += [(body, frozenset(live)) for body in bodies(value)]
            if is_own and last.get(variable, -1) > index:
                live.add(variable)
                total += size
        return inner

    def _record_binding(self, variable: Var, value: RelayExpr) -> TensorVars:
        """Return the tensors that a binding reads, and record those that its variable denotes."""
        exprs = [value, *(e for body in bodies(value) for e in evaluation_order(body))]
        read = frozenset(r for e in exprs for o in operands(e) for r in self._tensors_of(o))
        is_alias = not isinstance(value, Call) and not bodies(value)
        # Reads of an alias are reads of what it stands for, at the place of its users.
        self.tensors_by_expr[variable] = (
            self._tensors_of(value) if is_alias else frozenset((variable,))
        )
        return read if not is_alias else frozenset()

    def captured_tensors(self, body: RelayExpr) -> TensorVars:
        """Return the outer tensors that a body reads."""
        inside = {v for v, _ in parse_let_chain(body).bindings}
        exprs = evaluation_order(body)
        return (
            frozenset(r for e in exprs for o in operands(e) for r in self._tensors_of(o)) - inside
        )

    def _tensors_of(self, expr: RelayExpr) -> TensorVars:
        if isinstance(expr, Var):
            return self.tensors_by_expr.setdefault(expr, frozenset((expr,)))
        if isinstance(expr, (Call, Function)):
            return frozenset()
        return frozenset(r for o in operands(expr) for r in self._tensors_of(o))


def _annotate_main(main: Function) -> Function:
    kinds = [*(p.checked_type for p in main.params), main.body.checked_type]
    total = sum(map(tensor_bytes, kinds))
    annotator = _UsedMemoryAnnotator()
    stack: list[tuple[RelayExpr, TensorVars, TensorVars]] = [
        (main.body, frozenset(), frozenset(main.params))
    ]
    while stack:
        body, after, before = stack.pop()
        for inner, alive in annotator.annotate_chain(parse_let_chain(body), after, before):
            # A branch reads tensors from around it, which are alive in it from its start.
            stack.append((inner, alive, alive | annotator.captured_tensors(inner)))
    new: dict[RelayExpr, RelayExpr] = {
        f: f.with_attr("used_memory", tuple(sizes)) for f, sizes in annotator.used_bytes.items()
    }
    for expr in evaluation_order(main.body):
        if expr in new:
            continue
        if isinstance(expr, Call) and expr.op in new:
            args = tuple(new.get(a, a) for a in expr.args)
            new_call: RelayExpr = expr.with_fields(op=new[expr.op], args=args)
            new_call.set_checked_type(expr.checked_type)
            new[expr] = new_call
        else:
            new[expr] = replace_children(expr, new)
    body = new[main.body]
    return main.with_fields(body=body).with_attr("io_used_memory", total)


def AnnotateUsedMemory() -> Pass:  # noqa: N802
    """Return a pass that annotates used memory (TVM's AnnotateUsedMemory). It raises PassError for
    dynamic shapes.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Annotate `main`. Raises PassError for dynamic shapes."""
        main = module["main"]
        assert isinstance(main, Function)
        return module.with_function("main", _annotate_main(main))

    return Pass("AnnotateUsedMemory", transform, 0, (InferType(),))
