"""Integer analysis: bounds, simplification and proofs over shapes and indices."""

from ekiden.arith.analyzer import Analyzer, prove_equal, simplify
from ekiden.arith.determine import determines, image_box
from ekiden.arith.evaluate import evaluate, substitute
from ekiden.arith.iter_map import (
    IterMapLevel,
    IterMapResult,
    IterMark,
    IterSplit,
    IterSum,
    detect_iter_map,
    inverse_affine_iter_map,
    is_bijective,
    iter_map_simplify,
    normalize_iter_map_to_expr,
    normalize_to_iter_sum,
    subspace_divide,
)

__all__ = [
    "Analyzer",
    "IterMapLevel",
    "IterMapResult",
    "IterMark",
    "IterSplit",
    "IterSum",
    "detect_iter_map",
    "determines",
    "evaluate",
    "image_box",
    "inverse_affine_iter_map",
    "is_bijective",
    "iter_map_simplify",
    "normalize_iter_map_to_expr",
    "normalize_to_iter_sum",
    "prove_equal",
    "simplify",
    "subspace_divide",
    "substitute",
]
