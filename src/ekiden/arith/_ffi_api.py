"""TVM arith functions that its Python exposes under no other name."""

from ekiden.arith.narrow_predicate import narrow_predicate_expression as NarrowPredicateExpression  # noqa: N812

__all__ = ["NarrowPredicateExpression"]
