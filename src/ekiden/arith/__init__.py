"""Integer analysis: bounds, simplification and proofs over shapes and indices."""

from ekiden.arith.analyzer import Analyzer, prove_equal, simplify
from ekiden.arith.evaluate import evaluate, substitute

__all__ = ["Analyzer", "evaluate", "prove_equal", "simplify", "substitute"]
