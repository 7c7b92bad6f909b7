"""Give the zeros that are put around an image to the convolution or pooling that reads it.

nn.conv2d(nn.pad(%x, 0, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), %w)
->  nn.conv2d(%x, %w, padding=[1, 1, 1, 1])

Average pooling takes them where it counts borders, maximum pooling those of the least value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OPS, Borders, Op
from ekiden.ir.transform import Pass
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.nn.pad import PadAttrs
from ekiden.relay.transform.calls import call_pass


def _padding(data: RelayExpr, layout: str, fits: Callable[[float], bool]) -> list[int] | None:
    """(before each spatial axis..., after each...) of a pad below, if it can be taken over."""
    if not isinstance(data, Call) or not isinstance(data.op, Op) or data.op.name != "nn.pad":
        return None
    attrs, value = data.attrs, data.args[1]
    assert isinstance(attrs, PadAttrs)
    if not isinstance(value, Constant) or value.data.size != 1 or attrs.pad_mode != "constant":
        return None
    spatial = [i for i, axis in enumerate(layout) if axis not in "NC"]
    widths = [(w if isinstance(w, int) else -1) for pair in attrs.pad_width for w in pair]
    others = [widths[2 * i : 2 * i + 2] for i in range(len(layout)) if i not in spatial]
    if min(widths) < 0 or any(map(any, others)) or not fits(float(value.data.item())):
        return None
    return [widths[2 * i] for i in spatial] + [widths[2 * i + 1] for i in spatial]


def _is_lowest(attrs: Attrs, value: float) -> bool:
    return value in (-np.inf, float(np.finfo(np.float32).min))


def _counts_zeros(attrs: Attrs, value: float) -> bool:
    return value == 0 and bool(getattr(attrs, "count_include_pad", False))


FITS: Mapping[Borders, Callable[[Attrs, float], bool]] = {
    Borders.ZEROS: lambda attrs, value: value == 0,
    Borders.LOWEST: _is_lowest,
    Borders.COUNTED: _counts_zeros,
}
"""Whether borders of a value are those that an operator makes itself."""


def _fold(call: Call) -> Call | None:
    attrs = call.attrs
    assert attrs is not None and isinstance(call.op, Op)
    fits = FITS[call.op.definition.borders]
    layout = getattr(attrs, "data_layout", "") or getattr(attrs, "layout")  # noqa: B009
    padding = getattr(attrs, "padding")  # noqa: B009
    found = _padding(call.args[0], layout, lambda value: fits(attrs, value))
    if found is None:
        return None
    inner = call.args[0]
    assert isinstance(inner, Call)
    both = tuple(a + b for a, b in zip(padding, found, strict=True))
    args = (inner.args[0], *call.args[1:])
    return Call(call.op, args, attrs.with_fields(padding=both), span=call.span)


def FoldExplicitPadding() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    table = {name: _fold for name, row in OPS.items() if row.borders is not Borders.NO}
    return call_pass("FoldExplicitPadding", 0, table)
