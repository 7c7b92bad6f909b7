"""Windows that slide over a tensor, element by element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from ekiden.frontend.common.node import Node
from ekiden.frontend.common.slices import pad
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.shape import Dim, as_attr, as_dim, known, tidy


@dataclass(frozen=True, slots=True)
class Windows:
    """How windows lie on a tensor: a number for each axis of it. Raises Unsupported for extents and
    steps that no window has: the readers of formats do not all check them."""

    size: Sequence[Dim]
    strides: Sequence[int]
    inner: Sequence[int]
    """Elements between those of the tensor."""
    dilation: Sequence[int]
    low: Sequence[Dim]
    high: Sequence[Dim]

    def __post_init__(self) -> None:
        rank = len(self.size)
        fields = (self.strides, self.inner, self.dilation, self.low, self.high)
        if any(len(field) != rank for field in fields):
            raise Unsupported(f"its windows do not have {rank} axes in all of their options")
        least = {"extents": (self.size, 1), "strides": (self.strides, 1),
                 "dilations": (self.dilation, 1), "gaps": (self.inner, 0)}  # fmt: skip
        for what, (dims, limit) in least.items():
            for dim in dims:
                number = known(as_dim(dim))
                if number is not None and number < limit:
                    raise Unsupported(f"windows need {what} of {limit} at least, got {number}")

    def numbers(self) -> tuple[int, ...] | None:
        """The extents of a window, where they are numbers."""
        found = [known(as_dim(s)) for s in self.size]
        return None if None in found else tuple(n for n in found if n is not None)

    def counts(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """How many there are along each axis of a tensor that has its padding."""
        pairs = zip(shape, self.size, self.dilation, self.strides, strict=True)
        return as_attr(tidy((as_dim(n) - (as_dim(w) - 1) * d - 1) // s + 1) for n, w, d, s in pairs)


def padded(node: Node, windows: Windows, value: Value, fill: Expr) -> Value:
    """A tensor with the padding of its windows."""
    return node.given(pad(node, value, fill, windows.low, windows.high, windows.inner))


def taps(node: Node, windows: Windows, wide: Value, shape: Sequence[Dim]) -> Iterator[Value]:
    """The first elements of all windows, then the second ones, and so on."""
    size = windows.numbers()
    assert size is not None, "windows have constant extents here"
    counts = windows.counts(shape)
    for tap in product(*map(range, size)):
        begin = [t * d for t, d in zip(tap, windows.dilation, strict=True)]
        end = as_attr(
            tidy((as_dim(n) - 1) * s + 1 + b)
            for n, s, b in zip(counts, windows.strides, begin, strict=True)
        )
        data = node.scope.expr(wide)
        yield node.given(op.strided_slice(data, begin, end, strides=list(windows.strides)))
