"""Layout rewriting shared by ConvertLayout and AlterOpLayout: some calls change layout, and others
adapt.

    nn.relu(nn.conv2d(%x, %w))                                            NCHW, and NHWC is desired
    ->  layout_transform(nn.relu(nn.conv2d(layout_transform(%x), ..)))    from NHWC, to NHWC

Each value records the layout that it had and the one it has now; a call is asked
(infer_layout_utils) which layouts it took before, is changed, and asked which it takes now. Where
that is not what its inputs have, they are transformed, each at most once. A call that does not know
gets its inputs as they were.

The same transformation of a value is created once (`moves`), so that of two convolutions that read
one tensor both get one copy. The final result has the layout that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OP_ATTRS, Op
from ekiden.ir.prim import is_const
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Tuple, TupleGetItem
from ekiden.relay.transform.infer_layout_utils import Layout, infer_layouts, primal_axes
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.relay.visitor import children, rebuild
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te import Tensor, placeholder


@dataclass(frozen=True, slots=True, eq=False)
class LayoutValue:
    """Value in a new layout, with the layout it had before."""

    value: RelayExpr
    old: Layout = None
    new: Layout = None


LayoutChange = Callable[[Call, Any, Sequence[RelayExpr]], RelayExpr | None]
"""Function (old call, attributes, new arguments) -> call in new layouts, or None."""
RewrittenValue = RelayExpr | LayoutValue | list["RewrittenValue"]
"""Rewritten form of an expression: itself, a value in another layout, or tuple fields."""


@dataclass(slots=True)
class LayoutRewriter:
    """Layout rewriter of one typed expression."""

    change: LayoutChange
    alteration_attr: str
    """Attribute of operators whose calls change layout without a layout rule."""
    rewritten: dict[RelayExpr, RewrittenValue] = field(default_factory=dict)
    transforms: dict[tuple[RelayExpr, Layout, Layout], RelayExpr] = field(default_factory=dict)
    realized: dict[int, tuple[object, RelayExpr]] = field(default_factory=dict)

    def run(self, root: RelayExpr) -> RelayExpr:
        """Return the rewritten expression, whose result is in its old layout."""
        for expr in evaluation_order(root):
            self.rewritten[expr] = self.rewrite_expr(expr)
        return self.in_old_layout(self.rewritten[root])

    def rewrite_expr(self, expr: RelayExpr) -> RewrittenValue:
        """Rewrite an expression whose operands are rewritten."""
        match expr:
            case Call(op=Op()):
                new_call = self.rewrite_call(expr)
                return new_call if new_call is not None else self.rebuild_in_old_layouts(expr)
            case Tuple(fields=fields) if any(
                isinstance(self.rewritten[f], LayoutValue) for f in fields
            ):
                return [self.rewritten[f] for f in fields]
            case TupleGetItem(tuple_value=value, index=index):
                tuple_value_ = self.rewritten[value]
                # Fields of a tuple keep their own layouts until someone needs the tuple itself.
                if isinstance(tuple_value_, list):
                    return tuple_value_[index]
                if isinstance(tuple_value_, Tuple):
                    return tuple_value_.fields[index]
        return self.rebuild_in_old_layouts(expr)

    def rebuild_in_old_layouts(self, expr: RelayExpr) -> RelayExpr:
        """Rebuild an expression over inputs in their old layouts."""
        old_inputs = [
            self.in_old_layout(self.rewritten[c]) if c in self.rewritten else c
            for c in children(expr)
        ]
        return rebuild(expr, old_inputs)

    def in_old_layout(self, entry: RewrittenValue) -> RelayExpr:
        """Return a value transformed back to its old layout."""
        if isinstance(entry, RelayExpr):
            return entry
        if id(entry) not in self.realized:
            if isinstance(entry, LayoutValue):
                converted = self.transform_layout(entry.value, entry.new, entry.old)
            else:
                converted = Tuple(tuple(map(self.in_old_layout, entry)))
            # The entry is kept with its result, so that its id is not reused.
            self.realized[id(entry)] = (entry, converted)
        return self.realized[id(entry)][1]

    def transform_layout(self, value: RelayExpr, source: Layout, target: Layout) -> RelayExpr:
        """Transform a value from one layout to another, which may have more axes."""
        if source == target or source is None or target is None:
            return value
        # Several users of a value share one transformation.
        key = (value, source, target)
        if key not in self.transforms:
            self.transforms[key] = self._emit_layout_transform(value, source, target)
        return self.transforms[key]

    def _emit_layout_transform(self, value: RelayExpr, source: str, target: str) -> RelayExpr:
        missing = len(primal_axes(target)) - len(primal_axes(source))
        if missing > 0:
            if _is_scalar(value):
                return value
            have = primal_axes(source)
            # Axes that broadcasting leaves out get leading extents of 1 first.
            source = "".join(a for a in primal_axes(target) if a not in have)[:missing] + source
            value = op.expand_dims(value, 0, missing)
        return value if source == target else op.layout_transform(value, source, target)

    def rewrite_call(self, before: Call) -> RewrittenValue | None:
        """Rewrite an operator call to its new layouts; None to leave it.

        Raises:
            CompileError: For a change to a call of a function.
        """
        assert isinstance(before.op, Op)
        inputs: list[LayoutValue] = []
        args: list[RelayExpr] = []
        for arg in before.args:
            args.append(self._rewrite_argument(arg, inputs))
        types = [a.checked_type for a in before.args]
        olds, news = [i.old for i in inputs], [i.new for i in inputs]
        first = infer_layouts(before.op, before.attrs, None, olds, types)
        if first is None:
            return self._change_without_rule(before)
        first_inputs = list(first.input_layouts)
        if len(first_inputs) != len(inputs):
            return None
        changed = self.change(before, first.new_attrs, args)
        after = changed if changed is not None else Call(before.op, tuple(args), first.new_attrs)
        if not isinstance(after, Call) or not isinstance(after.op, Op):
            raise CompileError(f"layout of {before.op.name}: expected a call of an operator")
        new_layouts = [n if n is not None else w for n, w in zip(news, first_inputs, strict=True)]
        old_layouts = [o if o is not None else w for o, w in zip(olds, first_inputs, strict=True)]
        # The second answer sees the changed call and the layouts that really arrive.
        second = infer_layouts(after.op, after.attrs, new_layouts, old_layouts, types)
        if second is None or len(second.input_layouts) != len(inputs):
            return None
        flows = iter(zip(olds, first_inputs, news, second.input_layouts, strict=True))
        new_args = [self._adapt_argument(a, flows) for a in after.args]
        result = Call(
            after.op, tuple(new_args), second.new_attrs, after.type_args, span=before.span
        )
        return self._wrap_results(before, result, first.output_layouts, second.output_layouts)

    def _rewrite_argument(self, arg: RelayExpr, inputs: list[LayoutValue]) -> RelayExpr:
        """Return the value of an argument, and append its layout, or those of its fields, to the
        inputs.
        """
        entry = self.rewritten.get(arg, arg)
        if isinstance(entry, (list, Tuple)):
            fields = entry if isinstance(entry, list) else list(entry.fields)
            return Tuple(tuple(self._append_input(f, inputs) for f in fields))
        return self._append_input(entry, inputs)

    def _append_input(self, entry: RewrittenValue, inputs: list[LayoutValue]) -> RelayExpr:
        if not isinstance(entry, LayoutValue):
            # No layout is known: rules may choose one.
            entry = LayoutValue(self.in_old_layout(entry))
        inputs.append(entry)
        return entry.value

    def _change_without_rule(self, before: Call) -> RewrittenValue | None:
        assert isinstance(before.op, Op)
        if before.op.name not in OP_ATTRS.get(self.alteration_attr, {}):
            return None
        # Without a rule the operator knows no layouts but its own.
        args = [self.in_old_layout(self.rewritten.get(a, a)) for a in before.args]
        return self.change(before, before.attrs, args)

    def _adapt_argument(self, arg: RelayExpr, flows: Iterator[tuple[Layout, ...]]) -> RelayExpr:
        if isinstance(arg, Tuple):
            return Tuple(tuple(self._adapt_argument(f, flows) for f in arg.fields))
        old, first_layout, new, target = next(flows)
        if old == first_layout:  # one change, not one back and one there
            return self.transform_layout(arg, new, target)
        if old is not None:
            # The rule has answered for the old layout, so the value returns to it first.
            arg = self.transform_layout(arg, new, old)
        return self.transform_layout(arg, first_layout, target)

    def _wrap_results(
        self, before: Call, result: Call, olds: Sequence[Layout], news: Sequence[Layout]
    ) -> RewrittenValue:
        if len(olds) != len(news):
            raise CompileError(f"layout of {before}: expected as many results as before")
        if not isinstance(before.checked_type, TupleType):
            return LayoutValue(result, olds[0], news[0])
        fields = range(len(before.checked_type.fields))
        return [LayoutValue(TupleGetItem(result, i), olds[i], news[i]) for i in fields]


def _is_scalar(value: RelayExpr) -> bool:
    """Return whether a value has a single element, which broadcasts in any layout."""
    if isinstance(value, Constant):
        return value.data.size == 1
    kind = value.checked_type_or_none()
    return isinstance(kind, TensorType) and all(is_const(d, 1) for d in kind.shape)


def tensor_infos(types: Sequence[Type]) -> list[Tensor]:
    """Return placeholder tensors for a call's argument types, as TVM's rules expect them."""
    flat = [f for t in types for f in (t.fields if isinstance(t, TupleType) else (t,))]
    return [placeholder(t.shape, t.dtype) for t in flat if isinstance(t, TensorType)]
