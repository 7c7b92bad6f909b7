"""Inline computations into their consumers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from ekiden.arith import Analyzer
from ekiden.ir.prim import IntImm, PrimExpr, Var
from ekiden.ir.prim_visitor import post_order, rewrite
from ekiden.te.reducer import Reduce
from ekiden.te.tensor import ComputeOp, ExternOp, ProducerLoad, Tensor

MAX_INLINE_DEPTH = 32
"""Maximum depth of nested substitutions, each of which takes five Python stack frames."""


def input_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that an operation reads, each once, in order of appearance."""
    return tensor.op.input_tensors


def post_order_tensors(outputs: Iterable[Tensor]) -> list[Tensor]:
    """Return all tensors that the outputs depend on, producers first; outputs of one operation stay
    separate.
    """
    visited: set[Tensor] = set()
    order: list[Tensor] = []
    stack = [(t, False) for t in reversed(list(outputs))]
    while stack:
        tensor, done = stack.pop()
        if done:
            order.append(tensor)
        elif tensor not in visited:
            visited.add(tensor)
            stack.append((tensor, True))
            stack.extend((t, False) for t in reversed(input_tensors(tensor)))
    return order


def is_injective(tensor: Tensor) -> bool:
    """Return whether each element is an expression of input elements without a reduction."""
    op = tensor.op
    return isinstance(op, ComputeOp) and not isinstance(op.body[0], Reduce)


STORED_ATTR = "stored"
"""Attribute of a computation that is stored instead of recomputed by its readers."""


def is_stored(tensor: Tensor) -> bool:
    """Return whether a computation must be stored, not recomputed by its readers."""
    return isinstance(tensor.op, ComputeOp) and bool(tensor.op.attrs.get(STORED_ATTR))


class ProducerInliner:
    """A rewriter that replaces loads of chosen tensors by their expressions, once per distinct
    element. Equal indices share one expression, so that a diamond of computations stays a graph.
    """

    def __init__(self, chosen: Collection[Tensor]) -> None:
        self._inlined_tensors = chosen
        self._memo: dict[int, PrimExpr] = {}
        self._keepalive: list[PrimExpr] = []
        self._element_cache: dict[object, PrimExpr] = {}
        self._flat_bodies: dict[Tensor, PrimExpr] = {}
        self._chain_depths: dict[Tensor, int] = {}
        self._analyzer = Analyzer()
        if len(chosen) > MAX_INLINE_DEPTH:
            for tensor in post_order_tensors(chosen):
                if tensor in chosen:
                    self._record_chain_depth(tensor)

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression with every load of a chosen tensor replaced, recursively."""
        self._keepalive.append(expr)
        return rewrite(expr, self._inline_load, self._memo)

    def _record_chain_depth(self, tensor: Tensor) -> None:
        """Record the length of the chain of chosen tensors up to this one.

        Its producers have been prepared. After MAX_INLINE_DEPTH of them one is inlined immediately,
        which bounds the nesting of substitutions.
        """
        op = tensor.op
        assert isinstance(op, ComputeOp)
        depth = 1 + max(
            (self._chain_depths.get(load.producer, 0) for load in tensor_loads(op)), default=0
        )
        if depth > MAX_INLINE_DEPTH:
            self._flat_bodies[tensor] = self.rewrite_expr(op.body[tensor.value_index])
            depth = 0
        self._chain_depths[tensor] = depth

    def _inline_load(self, expr: PrimExpr) -> PrimExpr:
        if not isinstance(expr, ProducerLoad) or expr.producer not in self._inlined_tensors:
            return expr
        key = (expr.producer, *(_index_key(i) for i in expr.indices))
        inlined = self._element_cache.get(key)
        if inlined is None:
            # Keys contain ids of indices: these stay referenced so that no id is reused.
            self._keepalive.extend(expr.indices)
            inlined = self._element_cache[key] = self._inlined_element(expr)
        return inlined

    def _inlined_element(self, load: ProducerLoad) -> PrimExpr:
        op = load.producer.op
        assert isinstance(op, ComputeOp)
        values = {
            a.var: self._analyzer.simplify(i) for a, i in zip(op.axis, load.indices, strict=True)
        }

        def substitute_axis(e: PrimExpr) -> PrimExpr:
            return self._inline_load(values.get(e, e) if isinstance(e, Var) else e)

        body = self._flat_bodies.get(load.producer, op.body[load.producer.value_index])
        return rewrite(body, substitute_axis)


def _index_key(index: PrimExpr) -> object:
    return ("int", index.value) if isinstance(index, IntImm) else id(index)


def inline_injective(outputs: Sequence[Tensor], keep: Collection[Tensor] = ()) -> list[Tensor]:
    """Return the outputs with every injective producer inlined into its consumers, except outputs
    and those in `keep`, which are rebuilt over what was inlined into them.
    """
    stay = set(keep) | set(outputs)
    order = post_order_tensors(outputs)
    inlined = {t for t in order if is_injective(t) and t not in stay}
    inliner = ProducerInliner(inlined)
    return rewrite_tensors(outputs, inliner.rewrite_expr, inlined)


def rewrite_tensors(
    outputs: Sequence[Tensor],
    change: Callable[[PrimExpr], PrimExpr],
    left_out: Collection[Tensor] = (),
) -> list[Tensor]:
    """Return the outputs with `change` applied to the bodies of all computations, except those left
    out, which nothing may read any more. Bodies are changed as written, then redirected to their
    rebuilt producers.
    """
    new: dict[Tensor, Tensor] = {}
    ops: dict[ComputeOp, ComputeOp] = {}

    def redirect_load(e: PrimExpr) -> PrimExpr:
        """Redirect a read of a rebuilt tensor."""
        if isinstance(e, ProducerLoad) and e.producer in new:
            return e.with_fields(producer=new[e.producer])
        return e

    for tensor in post_order_tensors(outputs):
        op = tensor.op
        if isinstance(op, ExternOp):
            swapped = tuple(new.get(t, t) for t in op.inputs)
            new[tensor] = (
                tensor
                if swapped == op.inputs
                else tensor.with_fields(op=op.with_fields(inputs=swapped))
            )
        elif isinstance(op, ComputeOp) and tensor not in left_out:
            # Outputs of one operation go on sharing one operation.
            if op not in ops:
                body = tuple(rewrite(change(b), redirect_load) for b in op.body)
                ops[op] = op.with_fields(
                    body=body
                    if any(a is not b for a, b in zip(body, op.body, strict=True))
                    else op.body
                )
            new[tensor] = tensor.with_fields(op=ops[op])
    return [new.get(t, t) for t in outputs]


def tensor_loads(op: ComputeOp) -> list[ProducerLoad]:
    """Return every tensor read of a computation."""
    return [e for e in post_order(*op.body) if isinstance(e, ProducerLoad)]
