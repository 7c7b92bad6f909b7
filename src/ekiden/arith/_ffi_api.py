"""Global functions of TVM's arith without another Python name."""

from ekiden.arith.narrow_predicate import narrow_predicate_expression as NarrowPredicateExpression  # noqa: N812

__all__ = ["NarrowPredicateExpression"]
