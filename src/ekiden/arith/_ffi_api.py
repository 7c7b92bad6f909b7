"""Functions of TVM's arith that its Python has under no other name."""

from ekiden.arith.narrow import narrow_predicate_expression as NarrowPredicateExpression  # noqa: N812

__all__ = ["NarrowPredicateExpression"]
