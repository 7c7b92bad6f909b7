"""Where the names of `ekiden.arith` stand. Made by scripts/generate_exports.py."""

EXPORTED_NAMES = {
    "analyzer": "Analyzer ConstIntBound ProofStrength prove_equal simplify",
    "detect": """
        detect_clip_bound detect_common_subexpr detect_linear_equation
        estimate_region_lower_bound estimate_region_strict_bound estimate_region_upper_bound
    """,
    "equations": "IntConstraints IntConstraintsTransform solve_linear_equations",
    "evaluation": "evaluate substitute",
    "injectivity": "determines image_box",
    "int_set": "IntSet IntervalSet eval_set",
    "iter_map": """
        IterMapLevel IterMapResult IterMark IterSplit IterSplitExpr:IterSplit IterSum
        IterSumExpr:IterSum detect_iter_map is_bijective keep_digits simplify_around_digits
    """,
    "iter_space": """
        inverse_affine_iter_map iter_map_simplify normalize_iter_map_to_expr
        normalize_to_iter_sum subspace_divide
    """,
    "linear": "IntGroupBounds deduce_bound solve_inequalities_to_range solve_linear_inequalities",
    "modular": "ModularSet",
    "narrow_predicate": "narrow_predicate_expression",
}
"""Module -> its names."""
