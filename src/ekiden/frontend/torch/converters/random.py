"""Random numbers of exported programs, from a generator whose state persists between runs
(`Graph.generator`).

Graphs of torch.compile are passed PyTorch's own numbers instead (see draws).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import Converter, ConverterRow, FxNode, Operand
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem
from ekiden.topi.dimensions import Shape, known_int, to_attr_dims

if TYPE_CHECKING:
    from ekiden.frontend.torch.graph import FxImporter

RANDOM_DTYPES = ("float32", "float64")
"""What is drawn; other dtypes are made of the first."""


def _emit_draw(node: FxNode, draw: Callable[[Expr], Expr]) -> Expr:
    """Draw random numbers from the generator and advance its state."""
    graph = cast("FxImporter", node.graph)
    if graph.generator is None:
        node.reject(
            "random numbers are drawn by a program of torch.export, outside of choices and loops"
        )
    pair = node.scope.attach_span(draw(node.to_expr(graph.generator)))
    # The next draw must use the advanced state, in program order.
    graph.generator = node.as_value(node.scope.attach_span(TupleGetItem(pair, 0)))
    return TupleGetItem(pair, 1)


def _unit_uniform(node: FxNode, shape: Shape, dtype: str) -> Expr:
    """Draw uniform numbers in [0, 1)."""
    return _emit_draw(node, lambda key: op.random.uniform(key, to_attr_dims(shape), dtype))


def _draw_dtype(node: FxNode) -> str:
    return node.out_dtype if node.out_dtype in RANDOM_DTYPES else RANDOM_DTYPES[0]


def _uniform(node: FxNode, *_: object, **__: object) -> Expr:
    return _unit_uniform(node, node.out_shape, _draw_dtype(node))


def _normal(node: FxNode, *_: object, **__: object) -> Expr:
    shape, dtype = to_attr_dims(node.out_shape), _draw_dtype(node)
    return _emit_draw(node, lambda key: op.random.normal(key, shape, dtype))


def _uniform_integers(node: FxNode, low: Operand, high: Operand) -> Expr:
    """Draw integers in [low, high)."""
    # float64 is exact for ranges below 2**53.
    first = node.to_expr(low, "float64")
    span = op.subtract(node.to_expr(high, "float64"), first)
    drawn = op.multiply(_unit_uniform(node, node.out_shape, "float64"), span)
    return op.cast(op.add(op.floor(drawn), first), node.out_dtype)


def _permutation(node: FxNode, *_: object, **__: object) -> Expr:
    """Draw a random permutation: the argsort of uniform numbers."""
    return op.argsort(_unit_uniform(node, node.out_shape, "float64"), axis=0, dtype="int64")


def _bernoulli(node: FxNode, x: Value, p: Operand | None = None, **_: object) -> Expr:
    """Draw 1 with probability `p`, or with each element as its own probability."""
    chance = node.to_expr(x if p is None else p, "float64")
    return op.cast(op.less(_unit_uniform(node, node.out_shape, "float64"), chance), node.out_dtype)


def _multinomial(
    node: FxNode, weights: Value, count: Operand, replacement: bool = False, **_: object
) -> Expr:
    """Draw indices of the last axis by weight; without replacement by the Gumbel top-k trick.

    Without replacement: the largest keys log(weight) - log(-log(u)), the Gumbel-top-k trick
    (Efraimidis and Spirakis 2006).
    """
    shape = weights.type.shape
    count_dim = node.out_shape[-1]
    chances = node.to_expr(
        weights, weights.type.dtype if weights.type.dtype in RANDOM_DTYPES else RANDOM_DTYPES[0]
    )
    # A single sample is the same with and without replacement.
    if replacement or known_int(count_dim) == 1:
        (samples,) = to_attr_dims([count_dim])
        return _emit_draw(node, lambda key: op.random.multinomial(key, chances, samples))
    # Sampling without replacement by the Gumbel-top-k trick (Kool et al. 2019).
    noise = op.negative(op.log(op.negative(op.log(_unit_uniform(node, shape, "float64")))))
    keys = op.add(op.log(op.cast(chances, "float64")), noise)
    order = op.argsort(op.negative(keys), axis=-1, dtype="int64")
    return op.strided_slice(order, [0], to_attr_dims([count_dim]), axes=[len(shape) - 1])


def _randint_range(node: FxNode, low: Operand, high: Operand, *_: object, **__: object) -> Expr:
    return _uniform_integers(node, low, high)


def _shape_only_converter(convert: Converter) -> Converter:
    """Return the converter for a leading tensor argument of which only the shape is read."""
    return lambda node, x, *args, **named: convert(node, *args, **named)


def _randint_below(node: FxNode, high: Operand, *_: object, **__: object) -> Expr:
    return _uniform_integers(node, 0, high)


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    *((name, _uniform) for name in ("rand", "rand_like")),
    *((name, _normal) for name in ("randn", "randn_like")),
    *((f"randint.{name}", _randint_below) for name in ("default", "generator")),
    *((f"randint.{name}", _randint_range) for name in ("low", "low_generator")),
    *((f"randint_like.{name}", _shape_only_converter(_randint_below)) for name in (
        "default", "generator", "Tensor", "Tensor_generator")),
    *((f"randint_like.{name}", _shape_only_converter(_randint_range)) for name in (
        "low_dtype", "low_generator_dtype")),
    ("randperm", _permutation),
    ("bernoulli", _bernoulli),
    ("multinomial", _multinomial),
)
# fmt: on
