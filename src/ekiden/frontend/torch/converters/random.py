"""Random numbers of exported programs, from a generator whose state is kept between runs (see
`Graph.generator`).

Graphs of torch.compile are passed PyTorch's own numbers instead (see draws).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import Converter, Node, Operand, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem
from ekiden.topi.dimensions import Shape, as_attr, known

if TYPE_CHECKING:
    from ekiden.frontend.torch.graph import Graph

WIDE = ("float32", "float64")
"""What is drawn; other dtypes are made of the first."""


def _drawn(node: Node, draw: Callable[[Expr], Expr]) -> Expr:
    """Return the numbers that `draw` makes from the generator, and advance its state."""
    graph = cast("Graph", node.graph)
    if graph.generator is None:
        node.unsupported(
            "random numbers are drawn by a program of torch.export, outside of choices and loops"
        )
    pair = node.scope.spanned(draw(node.of(graph.generator)))
    # The next draw must use the advanced state, in program order.
    graph.generator = node.value_of(node.scope.spanned(TupleGetItem(pair, 0)))
    return TupleGetItem(pair, 1)


def _unit(node: Node, shape: Shape, dtype: str) -> Expr:
    """Return uniform numbers in [0, 1)."""
    return _drawn(node, lambda key: op.random.uniform(key, as_attr(shape), dtype))


def _wide(node: Node) -> str:
    return node.out_dtype if node.out_dtype in WIDE else WIDE[0]


def _uniform(node: Node, *_: object, **__: object) -> Expr:
    return _unit(node, node.out_shape, _wide(node))


def _normal(node: Node, *_: object, **__: object) -> Expr:
    shape, dtype = as_attr(node.out_shape), _wide(node)
    return _drawn(node, lambda key: op.random.normal(key, shape, dtype))


def _integers(node: Node, low: Operand, high: Operand) -> Expr:
    """Return integers in [low, high)."""
    # float64 is exact for ranges below 2**53.
    first = node.of(low, "float64")
    span = op.subtract(node.of(high, "float64"), first)
    drawn = op.multiply(_unit(node, node.out_shape, "float64"), span)
    return op.cast(op.add(op.floor(drawn), first), node.out_dtype)


def _order(node: Node, *_: object, **__: object) -> Expr:
    """Return a random permutation: the argsort of uniform numbers."""
    return op.argsort(_unit(node, node.out_shape, "float64"), axis=0, dtype="int64")


def _chances(node: Node, x: Value, p: Operand | None = None, **_: object) -> Expr:
    """Return 1 with probability `p`, or with the element's own value as probability."""
    chance = node.of(x if p is None else p, "float64")
    return op.cast(op.less(_unit(node, node.out_shape, "float64"), chance), node.out_dtype)


def _choices(
    node: Node, weights: Value, count: Operand, replacement: bool = False, **_: object
) -> Expr:
    """Return indices of the last axis drawn by weight.

    Without replacement: the largest keys log(weight) - log(-log(u)), the Gumbel-top-k trick
    (Efraimidis and Spirakis 2006).
    """
    shape = weights.type.shape
    count_dim = node.out_shape[-1]
    chances = node.of(weights, weights.type.dtype if weights.type.dtype in WIDE else WIDE[0])
    # A single sample is the same with and without replacement.
    if replacement or known(count_dim) == 1:
        (samples,) = as_attr([count_dim])
        return _drawn(node, lambda key: op.random.multinomial(key, chances, samples))
    noise = op.negative(op.log(op.negative(op.log(_unit(node, shape, "float64")))))
    keys = op.add(op.log(op.cast(chances, "float64")), noise)
    order = op.argsort(op.negative(keys), axis=-1, dtype="int64")
    return op.strided_slice(order, [0], as_attr([count_dim]), axes=[len(shape) - 1])


def _between(node: Node, low: Operand, high: Operand, *_: object, **__: object) -> Expr:
    return _integers(node, low, high)


def _like(convert: Converter) -> Converter:
    """Return the converter for a leading tensor argument, of which only the shape matters."""
    return lambda node, x, *args, **named: convert(node, *args, **named)


def _below(node: Node, high: Operand, *_: object, **__: object) -> Expr:
    return _integers(node, 0, high)


# fmt: off
ROWS: tuple[Row, ...] = (
    *((name, _uniform) for name in ("rand", "rand_like")),
    *((name, _normal) for name in ("randn", "randn_like")),
    *((f"randint.{name}", _below) for name in ("default", "generator")),
    *((f"randint.{name}", _between) for name in ("low", "low_generator")),
    *((f"randint_like.{name}", _like(_below)) for name in (
        "default", "generator", "Tensor", "Tensor_generator")),
    *((f"randint_like.{name}", _like(_between)) for name in (
        "low_dtype", "low_generator_dtype")),
    ("randperm", _order),
    ("bernoulli", _chances),
    ("multinomial", _choices),
)
# fmt: on
