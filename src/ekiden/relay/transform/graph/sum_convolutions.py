"""Merge convolutions of the same tensor whose results are added, by summing their kernels.

    add(nn.conv2d(%x, V), nn.conv2d(%x, W))            ->  nn.conv2d(%x, V + W)
    add(nn.conv2d(%x, V [c, c, 3, 3], padding=1),
        nn.conv2d(%x, W [c, c, 1, 1]))                 ->  nn.conv2d(%x, V + W at the centre of V)
    add(nn.conv2d(%x, V), multiply(%x, s))             ->  nn.conv2d(%x, V + s at the centre, on
                                                           the diagonal)
    add(add(%y, a), add(%z, b))                        ->  add(add(%y, %z), a + b)

Only for floating point and constants V, W, s, a, b.

    (V x) + (W x) = (V + W) x

holds for real numbers; of floats sums are rounded otherwise than before, as where scales go into
weights. Networks that are trained with several branches and written as such (RepVGG, MobileOne) are
then as fast as the plain ones that they are equivalent to.

A window is added to a larger one where its taps read what some taps of that read: strides are
equal, and dilations along axes where both have several taps. Then no convolution gets more taps
than it had. A tensor itself, without a factor, stays: to add it costs its convolution no pass of
its own (FuseOps). What another node reads too stays, as it would be computed twice.

Runs behind FoldScaleAxis, which folds scales into weights, and before layouts change: it knows
OIHW.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ekiden.ir.dtype import is_float
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array, LinearForm
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.nn.window_attrs import ConvAttrs, ConvTransposeAttrs, DeformableConv2DAttrs
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.graph.constant_arithmetic import fold_sum
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.graph.fold_scale_axis import is_same_shape, op_definition_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    lift_body_rewrite,
    map_functions,
    operands,
    replace_children,
)
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(slots=True)
class _MergedConvolution:
    """Convolution of a sum with its accumulated kernel."""

    call: Call
    attrs: ConvAttrs
    weight: Array

    @staticmethod
    def match(expr: RelayExpr) -> _MergedConvolution | None:
        """Match a channels-first convolution with a constant float weight, or return None."""
        row = op_definition_of(expr)
        if row is None or row.channels is None:
            return None
        assert isinstance(expr, Call)
        attrs = expr.attrs
        if not isinstance(attrs, ConvAttrs) or isinstance(
            attrs, (ConvTransposeAttrs, DeformableConv2DAttrs)
        ):
            return None
        weight, result = expr.args[1], attrs.out_layout or attrs.data_layout
        layouts = attrs.data_layout[:2], attrs.kernel_layout[:2], result
        is_plain = layouts == ("NC", "OI", attrs.data_layout)
        if not is_plain or not isinstance(weight, Constant) or not is_float(str(weight.data.dtype)):
            return None
        return _MergedConvolution(expr, attrs, weight.data)

    @property
    def data(self) -> RelayExpr:
        """Return the data operand."""
        return self.call.args[0]

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """Return the spatial shape of the kernel."""
        return self.weight.shape[2:]

    def tap_offset_of(self, smaller: _MergedConvolution) -> tuple[int, ...] | None:
        """Return the tap offset of a smaller kernel within this one; None where its taps do not
        coincide with taps of this one.
        """
        larger_attrs, smaller_attrs = self.attrs, smaller.attrs
        alike = (
            larger_attrs.strides,
            larger_attrs.groups,
            self.weight.shape[:2],
            self.weight.dtype,
        )
        if alike != (
            smaller_attrs.strides,
            smaller_attrs.groups,
            smaller.weight.shape[:2],
            smaller.weight.dtype,
        ):
            return None
        for taps, one, two in zip(
            smaller.kernel_shape, larger_attrs.dilation, smaller_attrs.dilation, strict=True
        ):
            # With a single tap the dilation has no effect.
            if taps > 1 and one != two:
                return None
        # Padding by p lets the first tap read p elements before a result's own index.
        first = smaller_attrs.padding[: len(smaller.kernel_shape)]
        return self._tap_at([-side for side in first], smaller.kernel_shape)

    def _tap_at(self, first: Sequence[int], taps: Sequence[int]) -> tuple[int, ...] | None:
        """Return the tap that reads the data at an offset from the output index, or None.

        Returns:
            None where that, or some behind it, are no taps.
        """
        own, taps_found = self.attrs.padding[: len(taps)], []
        axes = zip(first, own, self.attrs.dilation, self.kernel_shape, taps, strict=True)
        for position, padding, dilation, size, count in axes:
            tap, remainder = divmod(position + padding, dilation)
            if remainder or tap < 0 or tap + count > size:
                return None
            taps_found.append(tap)
        return tuple(taps_found)

    def merge_kernel(self, smaller: _MergedConvolution) -> bool:
        """Add the weight of a convolution whose taps this kernel covers; return whether it could be
        added.
        """
        offset = self.tap_offset_of(smaller)
        if offset is None:
            return False
        indices = tuple(
            slice(tap, tap + size) for tap, size in zip(offset, smaller.kernel_shape, strict=True)
        )
        return self._add_to_weight(smaller.weight, (slice(None), slice(None), *indices))

    def merge_scale(self, scale: Array) -> bool:
        """Add a per-channel scale of the data as a diagonal weight at the centre tap; return
        whether it could be added.
        """
        channels, depth = self.weight.shape[:2]
        rank = len(self.kernel_shape)
        # Results and data must correspond one to one.
        if set(self.attrs.strides) != {1} or channels != depth * self.attrs.groups:
            return False
        centre = self._tap_at([0] * rank, [1] * rank)
        if centre is None or scale.dtype != self.weight.dtype:
            return False
        channel_range = np.arange(channels)
        # Channel i reads input i % depth of its group.
        return self._add_to_weight(
            np.broadcast_to(scale, (channels,)), (channel_range, channel_range % depth, *centre)
        )

    def _add_to_weight(self, what: Array, at: tuple[slice | int | Array, ...]) -> bool:
        wider = np.zeros_like(self.weight)
        wider[at] = what
        with np.errstate(all="ignore"):  # a sum out of range is refused below
            terms = _channel_magnitude(self.weight + wider)
        total = fold_sum(self.weight, wider, terms)
        if total is not None:
            self.weight = total
        return total is not None


@dataclass(frozen=True, slots=True)
class _ScaledTensor:
    """Tensor times a per-channel constant."""

    data: RelayExpr
    scale: Array

    @staticmethod
    def match(expr: RelayExpr) -> _ScaledTensor | None:
        """Match a multiplication by a per-channel constant, or return None."""
        row = op_definition_of(expr)
        if row is None or row.linear is not LinearForm.SCALES or not row.commutes:
            return None
        assert isinstance(expr, Call)
        for index, factor in enumerate(expr.args):
            data, kind = expr.args[1 - index], expr.checked_type
            assert isinstance(kind, TensorType)
            if isinstance(factor, Constant) and is_same_shape(kind, _tensor_type(data)):
                shape = (1,) * (len(kind.shape) - factor.data.ndim) + factor.data.shape
                if all(size == 1 for axis, size in enumerate(shape) if axis != 1):
                    return _ScaledTensor(data, factor.data.reshape(-1))
        return None


def _tensor_type(expr: RelayExpr) -> TensorType:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind


def _is_add(expr: RelayExpr) -> bool:
    row = op_definition_of(expr)
    return row is not None and row.linear is LinearForm.SHIFTS and row.commutes


class _SumRewriter:
    """Rewriter that merges the convolutions in the sums of one graph."""

    def __init__(self, root: RelayExpr) -> None:
        self.order = evaluation_order(root)
        self.uses = Counter(id(o) for e in self.order for o in operands(e))
        self.nested_sums = {
            id(o)
            for e in self.order
            if _is_add(e)
            for o in operands(e)
            if _is_add(o)
            and self.uses[id(o)] == 1
            and is_same_shape(_tensor_type(o), _tensor_type(e))
        }
        """Sums that are terms of a single other sum."""
        self.rewritten: dict[RelayExpr, RelayExpr] = {}

    def run(self, root: RelayExpr) -> RelayExpr:
        """Return the graph with merged sums."""
        for expr in self.order:
            is_whole = _is_add(expr) and id(expr) not in self.nested_sums
            shortened = (
                self._merge_sum_terms(expr)
                if is_whole and is_float(_tensor_type(expr).dtype)
                else None
            )
            self.rewritten[expr] = shortened or replace_children(expr, self.rewritten)
        return self.rewritten[root]

    def _flatten_sum(self, root: RelayExpr) -> Iterator[RelayExpr]:
        """Yield the terms of a sum from left to right, with nested sums flattened."""
        stack = [root]
        while stack:
            expr = stack.pop()
            if expr is root or id(expr) in self.nested_sums:
                stack.extend(reversed(operands(expr)))
            else:
                yield expr

    def _merge_sum_terms(self, root: RelayExpr) -> RelayExpr | None:
        """Return an equal sum of fewer terms, or None."""
        terms = list(self._flatten_sum(root))
        num_terms, windows = len(terms), [self._match_convolution(t, root) for t in terms]
        self._merge_kernels(terms, windows)
        constant_terms = [t.data for t in terms if isinstance(t, Constant)]
        weights = [
            _channel_magnitude(w.weight).max() for w in windows if w is not None and w.weight.size
        ]
        constants = _sum_constants(constant_terms, np.max(weights) if weights else None)
        remaining = self._remaining_terms(terms, windows)
        if len(remaining) + len(constants) == num_terms:
            return None
        new_terms: list[RelayExpr] = [*remaining, *map(Constant, constants)]
        total = new_terms[0]
        for term in new_terms[1:]:
            total = op.add(total, term).with_fields(span=root.span)
        return infer_new_types(total)

    def _match_convolution(self, term: RelayExpr, root: RelayExpr) -> _MergedConvolution | None:
        # Another reader needs the result of this convolution alone.
        if self.uses[id(term)] != 1 or isinstance(term, Constant):
            return None
        return (
            _MergedConvolution.match(term)
            if is_same_shape(_tensor_type(term), _tensor_type(root))
            else None
        )

    def _merge_kernels(
        self, terms: list[RelayExpr], windows: list[_MergedConvolution | None]
    ) -> None:
        """Merge kernels and scales into larger kernels, and remove the merged terms from both
        lists.
        """
        hosts = {i: window for i, window in enumerate(windows) if window is not None}
        gone: set[int] = set()
        # Largest kernels first, so that a chain of nested windows collapses in one sweep.
        for i in sorted(hosts, key=lambda i: -hosts[i].weight.size):  # those with most taps first
            if i not in hosts:
                continue
            absorbed = [
                j for j, candidate in hosts.items() if j != i and hosts[i].data is candidate.data
                and hosts[i].merge_kernel(candidate)
            ]  # fmt: skip
            gone.update(absorbed)
            hosts = {j: host_left for j, host_left in hosts.items() if j not in gone}
        for j, term in enumerate(terms):
            # A scale is a window of one tap with a diagonal weight, so it fits into any that has
            # the centre.
            scaled = _ScaledTensor.match(term) if self.uses[id(term)] == 1 else None
            if scaled is not None and any(
                host.data is scaled.data and host.merge_scale(scaled.scale)
                for host in hosts.values()
            ):
                gone.add(j)
        for j in sorted(gone, reverse=True):
            del terms[j], windows[j]

    def _remaining_terms(
        self, terms: Sequence[RelayExpr], windows: Sequence[_MergedConvolution | None]
    ) -> list[RelayExpr]:
        """Return the rewritten non-constant terms with their merged weights."""
        remaining = []
        for term, window in zip(terms, windows, strict=True):
            if isinstance(term, Constant):
                continue
            new_term = self.rewritten[term]
            # The weight has changed, as another convolution was added.
            if window is not None and window.weight is not _constant_weight(window.call):
                assert isinstance(new_term, Call)
                weight = Constant(window.weight, span=window.call.args[1].span)
                new_term = new_term.with_fields(args=(new_term.args[0], weight))
            remaining.append(new_term)
        return remaining


def _constant_weight(call: Call) -> Array:
    weight = call.args[1]
    assert isinstance(weight, Constant)
    return weight.data


def _channel_magnitude(weight: Array) -> Array:
    """Return the largest magnitude per output channel, in the rank of the weight."""
    taps = tuple(range(1, weight.ndim))
    return np.asarray(np.abs(weight).max(axis=taps, keepdims=True, initial=0))


def _sum_constants(constants: Sequence[Array], terms: Array | None) -> list[Array]:
    """Sum constants of equal shape and dtype; `terms` bounds the other terms, as in fold_sum."""
    sums: list[Array] = []
    for value in constants:
        for i, partial_sum in enumerate(sums):
            is_alike = partial_sum.shape == value.shape and partial_sum.dtype == value.dtype
            total = fold_sum(partial_sum, value, terms) if is_alike else None
            if total is not None:
                sums[i] = total
                break
        else:
            sums.append(value)
    return sums


def _sum_convolutions(module: IRModule, context: PassContext) -> IRModule:
    if not is_rewrite_allowed("sum weights", context):
        return module
    return map_functions(module, lift_body_rewrite(lambda body: _SumRewriter(body).run(body)))


def SumConvolutions() -> Pass:  # noqa: N802
    """Return a pass that merges added convolutions of one tensor."""
    return Pass("SumConvolutions", _sum_convolutions, 3, (InferType(),))
