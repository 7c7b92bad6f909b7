"""Geometry that convolution and pooling share: kernels, strides, explicit and automatic padding."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.onnx.node import Node
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import PrimExpr, maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.shape import Dim, as_dim, as_ints, ceil_div, known, tidy, windows_fit

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "")
"""What `auto_pad` may be; nothing is NOTSET, as ONNX Runtime reads it."""


def auto_pad(node: Node) -> str:
    """Return how borders follow from the shapes, one of AUTO_PADS; NOTSET where they do not."""
    return node.get_string("auto_pad", "NOTSET") or "NOTSET"


@dataclass(frozen=True, slots=True)
class Window:
    """Sizes by spatial axis; `before` and `after` are padding, symbolic where auto_pad meets a
    symbolic extent. `extents` are those of the kernel, symbolic where a weight's are.
    """

    extents: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[Dim, ...]
    after: tuple[Dim, ...]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The kernel's extents where these are numbers, as they are of pooling."""
        return as_ints(self.extents)

    @property
    def padding(self) -> tuple[int, ...] | None:
        """Padding before each axis, then after each; None if it is symbolic."""
        numbers = [known(p) for p in (*self.before, *self.after)]
        return None if None in numbers else tuple(n for n in numbers if n is not None)


def read_window(node: Node, kernel: Sequence[Dim]) -> Window:
    """The window of a node over the spatial axes of its first input."""
    rank = len(kernel)
    if node.rank(0) != rank + 2:
        node.unsupported(
            f"the kernel has {rank} axes; expected {node.rank(0) - 2} "
            f"for an input of rank {node.rank(0)}"
        )
    strides = node.get_ints("strides", (1,) * rank)
    dilations = node.get_ints("dilations", (1,) * rank)
    auto = auto_pad(node)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            _same(d, k, s, e)
            for d, k, s, e in zip(node.shape(0)[2:], kernel, strides, dilations, strict=True)
        ]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    else:
        pads = node.get_ints("pads", (0,) * 2 * rank) if auto == "NOTSET" else (0,) * 2 * rank
        before, after = [as_dim(p) for p in pads[:rank]], [as_dim(p) for p in pads[rank:]]
        _check_fit(node, kernel, strides, dilations, pads)
    return Window(tuple(kernel), strides, dilations, _plain(before), _plain(after))


def _check_fit(
    node: Node,
    kernel: Sequence[Dim],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> None:
    """Require symbolic extents to be as large as a window."""
    rounds_up = node.get_int("ceil_mode", 0)
    for i, extent in enumerate(node.shape(0)[2:]):
        if known(extent) is None or known(kernel[i]) is None:
            reach = (as_dim(kernel[i]) - 1) * dilations[i] + 1
            slack = 2 * strides[i] - 1 if rounds_up else strides[i]
            node.scope.require(windows_fit(extent, reach, slack, pads[i], pads[i + len(kernel)]))


def _plain(dims: Sequence[PrimExpr]) -> tuple[Dim, ...]:
    return tuple(d if (n := known(tidy(d))) is None else n for d in dims)


def _same(extent: PrimExpr, kernel: Dim, stride: int, dilation: int) -> PrimExpr:
    """All padding of an axis so that the result has extent / stride elements, rounded up."""
    reach = (as_dim(kernel) - 1) * dilation + 1
    if stride == 1:
        return tidy(reach - 1)
    return tidy(maximum((ceil_div(extent, stride) - 1) * stride + reach - extent, 0))


def padded(node: Node, data: Expr, window: Window, fill: float) -> Expr:
    """`data` with the symbolic padding of a window as a tensor operation."""
    zero = as_dim(0)
    widths: list[tuple[Dim, Dim]] = [
        (zero, zero),
        (zero, zero),
        *zip(window.before, window.after, strict=True),
    ]
    value = fill if is_float(node.dtype(0)) else int(fill)
    return op.nn.pad(data, widths, const(value, node.dtype(0)))
