"""Integer arithmetic analysis: bounds, simplification and proofs over shapes and indices (TVM's
arith).

There is one simplifier, `Analyzer.simplify`; `simplify` is that of an analyzer without bindings.
Its stages, in order: constructors of `ir.prim` fold constants and apply the identities of 0 and 1
(`ir.arithmetic_identities`); the canonical form turns an expression into a polynomial over atoms,
children first, where the rules of integers hold (`canonical`); nodes that no polynomial represents
are rewritten by the rows of `rewrite_rules`, whose conditions the form itself proves
(`polynomial_proofs`); the polynomial is converted back to an expression.
"""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach, exported_names
from ekiden.arith._exports import EXPORTED_NAMES

if TYPE_CHECKING:
    from ekiden.arith.analyzer import Analyzer as Analyzer
    from ekiden.arith.analyzer import ConstIntBound as ConstIntBound
    from ekiden.arith.analyzer import ProofStrength as ProofStrength
    from ekiden.arith.analyzer import prove_equal as prove_equal
    from ekiden.arith.analyzer import simplify as simplify
    from ekiden.arith.equations import IntConstraints as IntConstraints
    from ekiden.arith.equations import IntConstraintsTransform as IntConstraintsTransform
    from ekiden.arith.equations import solve_linear_equations as solve_linear_equations
    from ekiden.arith.evaluation import evaluate as evaluate
    from ekiden.arith.evaluation import substitute as substitute
    from ekiden.arith.injectivity import determines as determines
    from ekiden.arith.injectivity import image_box as image_box
    from ekiden.arith.injectivity import injectivity_error as injectivity_error
    from ekiden.arith.int_set import IntervalSet as IntervalSet
    from ekiden.arith.int_set import IntSet as IntSet
    from ekiden.arith.int_set import eval_set as eval_set
    from ekiden.arith.iter_map import IterMapLevel as IterMapLevel
    from ekiden.arith.iter_map import IterMapResult as IterMapResult
    from ekiden.arith.iter_map import IterMark as IterMark
    from ekiden.arith.iter_map import IterSplit as IterSplit
    from ekiden.arith.iter_map import IterSplit as IterSplitExpr
    from ekiden.arith.iter_map import IterSum as IterSum
    from ekiden.arith.iter_map import IterSum as IterSumExpr
    from ekiden.arith.iter_map import detect_iter_map as detect_iter_map
    from ekiden.arith.iter_map import is_bijective as is_bijective
    from ekiden.arith.iter_map import keep_digits as keep_digits
    from ekiden.arith.iter_map import simplify_around_digits as simplify_around_digits
    from ekiden.arith.iter_space import inverse_affine_iter_map as inverse_affine_iter_map
    from ekiden.arith.iter_space import iter_map_simplify as iter_map_simplify
    from ekiden.arith.iter_space import normalize_iter_map_to_expr as normalize_iter_map_to_expr
    from ekiden.arith.iter_space import normalize_to_iter_sum as normalize_to_iter_sum
    from ekiden.arith.iter_space import subspace_divide as subspace_divide
    from ekiden.arith.linear import IntGroupBounds as IntGroupBounds
    from ekiden.arith.linear import deduce_bound as deduce_bound
    from ekiden.arith.linear import solve_inequalities_to_range as solve_inequalities_to_range
    from ekiden.arith.linear import solve_linear_inequalities as solve_linear_inequalities
    from ekiden.arith.modular import ModularSet as ModularSet
    from ekiden.arith.narrow_predicate import (
        narrow_predicate_expression as narrow_predicate_expression,
    )
    from ekiden.arith.pattern import detect_clip_bound as detect_clip_bound
    from ekiden.arith.pattern import detect_common_subexpr as detect_common_subexpr
    from ekiden.arith.pattern import detect_linear_equation as detect_linear_equation
    from ekiden.arith.region_bounds import (
        estimate_region_lower_bound as estimate_region_lower_bound,
    )
    from ekiden.arith.region_bounds import (
        estimate_region_strict_bound as estimate_region_strict_bound,
    )
    from ekiden.arith.region_bounds import (
        estimate_region_upper_bound as estimate_region_upper_bound,
    )

__all__ = ["IterSplitExpr", "IterSumExpr"]
__all__ += [name for name in exported_names(EXPORTED_NAMES) if name not in __all__]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)
