"""Integer arithmetic analysis: bounds, simplification and proofs over shapes and indices (TVM's
arith).

There is one simplifier, `Analyzer.simplify`; `simplify` is that of an analyzer that knows nothing.
Its stages, in order: constructors of `ir.prim` fold constants and drop 0 and 1 (`ir.identities`);
the canonical form makes a polynomial over atoms, children first, where rules of whole numbers hold
(`canonical`); what the polynomial cannot take apart is rewritten by the rows of `rules`, whose
conditions are proved by the form itself (`proofs`); the polynomial is written as an expression.
"""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach
from ekiden.arith._exports import EXPORTED_NAMES

if TYPE_CHECKING:
    from ekiden.arith.analyzer import Analyzer, ConstIntBound, ProofStrength, prove_equal, simplify
    from ekiden.arith.detect import (
        detect_clip_bound,
        detect_common_subexpr,
        detect_linear_equation,
        estimate_region_lower_bound,
        estimate_region_strict_bound,
        estimate_region_upper_bound,
    )
    from ekiden.arith.equations import (
        IntConstraints,
        IntConstraintsTransform,
        solve_linear_equations,
    )
    from ekiden.arith.evaluation import evaluate, substitute
    from ekiden.arith.injectivity import determines, image_box
    from ekiden.arith.int_set import IntervalSet, IntSet, eval_set
    from ekiden.arith.iter_map import (
        IterMapLevel,
        IterMapResult,
        IterMark,
        IterSplit,
        IterSum,
        detect_iter_map,
        is_bijective,
        keep_digits,
        simplify_around_digits,
    )
    from ekiden.arith.iter_map import IterSplit as IterSplitExpr
    from ekiden.arith.iter_map import IterSum as IterSumExpr
    from ekiden.arith.iter_space import (
        inverse_affine_iter_map,
        iter_map_simplify,
        normalize_iter_map_to_expr,
        normalize_to_iter_sum,
        subspace_divide,
    )
    from ekiden.arith.linear import (
        IntGroupBounds,
        deduce_bound,
        solve_inequalities_to_range,
        solve_linear_inequalities,
    )
    from ekiden.arith.modular import ModularSet
    from ekiden.arith.narrow_predicate import narrow_predicate_expression

__all__ = [
    "Analyzer",
    "ConstIntBound",
    "IntConstraints",
    "IntConstraintsTransform",
    "IntGroupBounds",
    "IntSet",
    "IntervalSet",
    "IterMapLevel",
    "IterMapResult",
    "IterMark",
    "IterSplit",
    "IterSplitExpr",
    "IterSum",
    "IterSumExpr",
    "ModularSet",
    "ProofStrength",
    "deduce_bound",
    "detect_clip_bound",
    "detect_common_subexpr",
    "detect_iter_map",
    "detect_linear_equation",
    "determines",
    "estimate_region_lower_bound",
    "estimate_region_strict_bound",
    "estimate_region_upper_bound",
    "eval_set",
    "evaluate",
    "image_box",
    "inverse_affine_iter_map",
    "is_bijective",
    "iter_map_simplify",
    "keep_digits",
    "narrow_predicate_expression",
    "normalize_iter_map_to_expr",
    "normalize_to_iter_sum",
    "prove_equal",
    "simplify",
    "simplify_around_digits",
    "solve_inequalities_to_range",
    "solve_linear_equations",
    "solve_linear_inequalities",
    "subspace_divide",
    "substitute",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)
