"""Fold explicit padding: an nn.pad moves into the padding attribute of the convolution or pooling
that reads it.

nn.conv2d(nn.pad(%x, 0, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), %w)
->  nn.conv2d(%x, %w, padding=[1, 1, 1, 1])

Average pooling takes them where it counts borders, maximum pooling those of the least value, a
quantised convolution those of its zero point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.ir.op import OPS, Op, PaddingAbsorption
from ekiden.ir.transform import Pass
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.nn.window_attrs import MaxPoolAttrs
from ekiden.relay.transform.graph.call_rewrites import call_pass

if TYPE_CHECKING:
    import ekiden.relay.op.nn.padding as pad
else:
    pad = LazyModule("ekiden.relay.op.nn.padding")


def _foldable_padding(data: Call, layout: str) -> list[int] | None:
    """Return the constant pad widths (before each spatial axis, then after each), or None if they
    cannot be folded.
    """
    attrs, value = data.attrs, data.args[1]
    assert isinstance(attrs, pad.PadAttrs)
    if not isinstance(value, Constant) or value.data.size != 1 or attrs.pad_mode != "constant":
        return None
    # Padding of batch or channels has no counterpart in the operator's attributes.
    spatial = [i for i, axis in enumerate(layout) if axis not in "NC"]
    # Symbolic widths become -1, which is refused below.
    widths = [(w if isinstance(w, int) else -1) for pair in attrs.pad_width for w in pair]
    other_widths = [widths[2 * i : 2 * i + 2] for i in range(len(layout)) if i not in spatial]
    if min(widths) < 0 or any(map(any, other_widths)):
        return None
    return [widths[2 * i] for i in spatial] + [widths[2 * i + 1] for i in spatial]


def _is_zero_padding(call: Call, value: float) -> bool:
    assert isinstance(call.op, Op)
    row = call.op.definition
    if not row.quantizes:
        return value == 0
    point = call.args[row.arguments.index("input_zero_point")]
    return isinstance(point, Constant) and point.data.size == 1 and point.data.item() == value


def _is_lowest_padding(call: Call, value: float) -> bool:
    """Return whether a pad value is -inf, or the lowest float where no window lies in the padding
    entirely.
    """
    if value == -np.inf:
        return True
    attrs = call.attrs
    assert isinstance(attrs, MaxPoolAttrs)
    # A window of border alone would give the lowest number instead of minus infinity.
    reach = [(k - 1) * d + 1 for k, d in zip(attrs.pool_size, attrs.dilation, strict=True)]
    fits = all(p < wide for p, wide in zip(attrs.padding, [*reach, *reach], strict=True))
    return fits and value == float(np.finfo(np.float32).min)


def _is_counted_zero_padding(call: Call, value: float) -> bool:
    return value == 0 and bool(getattr(call.attrs, "count_include_pad", False))


PADDING_VALUE_TESTS: Mapping[PaddingAbsorption, Callable[[Call, float], bool]] = {
    PaddingAbsorption.ZEROS: _is_zero_padding,
    PaddingAbsorption.LOWEST: _is_lowest_padding,
    PaddingAbsorption.COUNTED: _is_counted_zero_padding,
}
"""Predicates (call, pad value) of implicit padding by operator."""


def _fold_pad(call: Call) -> Call | None:
    attrs, inner = call.attrs, call.args[0]
    assert attrs is not None and isinstance(call.op, Op)
    if not (isinstance(inner, Call) and isinstance(inner.op, Op) and inner.op.name == "nn.pad"):
        return None
    layout = getattr(attrs, "data_layout", "") or getattr(attrs, "layout")  # noqa: B009
    pad_widths = _foldable_padding(inner, layout)
    if pad_widths is None:
        return None
    padding = getattr(attrs, "padding")  # noqa: B009
    total_padding = tuple(a + b for a, b in zip(padding, pad_widths, strict=True))
    args = (inner.args[0], *call.args[1:])
    folded = Call(call.op, args, attrs.with_fields(padding=total_padding), span=call.span)
    value = inner.args[1]
    assert isinstance(value, Constant)
    fits = PADDING_VALUE_TESTS[call.op.definition.padding_absorption]
    # Tested with the total padding, on which the answer may depend.
    return folded if fits(folded, float(value.data.item())) else None


def FoldExplicitPadding() -> Pass:  # noqa: N802
    """Return a pass that folds nn.pad into convolutions and poolings (TVM's
    FoldExplicitPadding).
    """
    return call_pass(
        "FoldExplicitPadding",
        0,
        lambda: {
            name: _fold_pad
            for name, row in OPS.rows()
            if row.padding_absorption is not PaddingAbsorption.NO
        },
    )
