"""Annotate operators with the external compiler that supports them, by compiler_begin and
compiler_end.

    abs(nn.relu(%x))
    ->  %0 = end(nn.relu(begin(%x, "test")), "test");
        end(abs(begin(%0, "default")), "default")

An operator is taken by the first target for which it has an attribute "target.<name>" (see
`ir.register_op_attr`) whose predicate holds for the call; a composite function by the target its
name begins with; what none takes stays with Ekiden, as "default". Tuples, projections and
references join their operands. What an earlier run gave to a target stays there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Function, RefCreate, RefRead, RefWrite, Tuple, TupleGetItem, Var
from ekiden.relay.op.annotation import CompilerAttrs, compiler_begin, compiler_end
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    lift_body_rewrite,
    map_functions,
    replace_children,
)
from ekiden.relay.visitor import children, rebuild

DEFAULT_TARGET = "default"
NON_CALL_NODES = (Tuple, TupleGetItem, RefCreate, RefRead, RefWrite)
"""Node classes that adopt the target of their operands."""


def compiler_annotation(expr: RelayExpr, which: str) -> str | None:
    """Return the compiler that a compiler_begin or compiler_end names, or None for any other
    expression.
    """
    is_mark = isinstance(expr, Call) and isinstance(expr.op, Op) and (
        expr.op.name == f"annotation.compiler_{which}"
    )  # fmt: skip
    if not is_mark:
        return None
    assert isinstance(expr, Call) and isinstance(expr.attrs, CompilerAttrs)
    return expr.attrs.compiler


def annotated_value(mark: RelayExpr) -> RelayExpr:
    """Return the operand of an annotation."""
    assert isinstance(mark, Call)
    return mark.args[0]


class _TargetAnnotator:
    """Annotator of one graph in post-order.

    `target_of` has the compilers of new expressions without an end.
    """

    def __init__(self, targets: Sequence[str], include_non_call_ops: bool) -> None:
        self.targets, self.includes_non_call_ops = targets, include_non_call_ops
        self.target_of: dict[RelayExpr, str] = {}

    def run(self, root: RelayExpr) -> RelayExpr:
        """Annotate `root` with compiler_begin and compiler_end."""
        new: dict[RelayExpr, RelayExpr] = {}
        for expr in evaluation_order(root):
            # A composite function goes to its compiler as a whole; its body is not annotated.
            if isinstance(expr, Function) and expr.attr("Composite") is not None:
                new[expr] = expr
            else:
                new[expr] = self._annotate_expr(replace_children(expr, new))
        return self._close_region(new[root])

    def _annotate_expr(self, expr: RelayExpr) -> RelayExpr:
        if compiler_annotation(expr, "begin") is not None:
            return expr
        if (compiler := compiler_annotation(expr, "end")) is not None:
            # A user may have put the end there: it says whose region this is.
            current_target = self.target_of.setdefault(annotated_value(expr), compiler)
            return expr if current_target == compiler else self._insert_end(annotated_value(expr))
        # Calls of local functions have bodies of their own, which are annotated for themselves.
        is_local = (
            isinstance(expr, Call) and isinstance(expr.op, Var) and not self.includes_non_call_ops
        )
        if isinstance(expr, Call) and not is_local:
            return (
                expr
                if _has_target(expr)
                else self._annotate_operands(expr, self._select_target(expr))
            )
        if self.includes_non_call_ops and isinstance(expr, NON_CALL_NODES):
            return self._annotate_operands(expr, None)
        return replace_children(
            expr, {child: self._close_region(child) for child in children(expr)}
        )

    def _select_target(self, call: Call) -> str:
        if isinstance(call.op, Op):
            for target in self.targets:
                predicate = call.op.get_attr(f"target.{target}")
                if callable(predicate) and predicate(call):
                    return target
        if isinstance(call.op, Function):
            # Composite functions are named COMPILER.PATTERN.
            owner = str(call.op.attr("Composite") or "").partition(".")[0]
            return owner if owner in self.targets else DEFAULT_TARGET
        return DEFAULT_TARGET

    def _annotate_operands(self, expr: RelayExpr, target: str | None) -> RelayExpr:
        """Insert compiler_begin around each operand; without a target, for the target that all
        operands share.
        """
        # The callee is a child too, but no data.
        operator = [expr.op] if isinstance(expr, Call) else []
        data = children(expr)[len(operator) :]
        if target is None:
            target = _common_target(self._operand_target(operand) for operand in data)
        begun = [self._insert_begin(datum, target) for datum in data]
        annotated = rebuild(expr, [*operator, *begun])
        annotated.set_checked_type(expr.checked_type)
        self.target_of[annotated] = target
        return annotated

    def _operand_target(self, data: RelayExpr) -> str:
        inner = annotated_value(data) if compiler_annotation(data, "begin") is not None else data
        return compiler_annotation(inner, "end") or self.target_of.get(inner, DEFAULT_TARGET)

    def _insert_begin(self, data: RelayExpr, target: str) -> RelayExpr:
        before = compiler_annotation(data, "begin")
        # A later target may take over from Ekiden, but not from another compiler.
        if before not in (None, DEFAULT_TARGET):
            return data
        inner = data if before is None else annotated_value(data)
        return infer_new_types(compiler_begin(self._close_region(inner), target))

    def _close_region(self, expr: RelayExpr) -> RelayExpr:
        """Insert compiler_end around `expr` if it closes a region."""
        # Without operands there was no begin, so there is no region to end.
        is_open = expr in self.target_of and len(children(expr)) > isinstance(expr, Call)
        return self._insert_end(expr) if is_open else expr

    def _insert_end(self, expr: RelayExpr) -> RelayExpr:
        return infer_new_types(compiler_end(expr, self.target_of[expr]))


def _has_target(call: Call) -> bool:
    """Return whether an earlier annotation assigned the call to a target."""
    return bool(call.args) and compiler_annotation(call.args[0], "begin") not in (
        None,
        DEFAULT_TARGET,
    )


def _common_target(targets: Iterable[str]) -> str:
    """Return the single target of all operands, or the default target."""
    distinct = set(targets)
    return distinct.pop() if len(distinct) == 1 else DEFAULT_TARGET


def AnnotateTarget(  # noqa: N802
    targets: str | Sequence[str], include_non_call_ops: bool = True
) -> Pass:
    """Return a pass that annotates operators with the first target that supports them (TVM's
    AnnotateTarget).
    """
    names = [targets] if isinstance(targets, str) else list(targets)

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Annotate the supported operators of each function."""
        return map_functions(
            module,
            lift_body_rewrite(lambda body: _TargetAnnotator(names, include_non_call_ops).run(body)),
        )

    return Pass("AnnotateTargetFunc", transform, 0, (InferType(),))
