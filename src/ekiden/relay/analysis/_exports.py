"""Where the names of `ekiden.relay.analysis` stand. Made by scripts/generate_exports.py."""

EXPORTED_NAMES = {
    "call_graph": "CallGraph",
    "fake_quantized": "list_fake_quantized_op_freqs",
    "feature": "Feature detect_feature",
    "kind_checking": "check_kind",
    "liveness": "dead_bindings last_uses",
    "match_exhaustion": "pattern_text unmatched_cases",
    "op_counts": """
        check_constant count_layers extract_fused_functions get_total_mac_number list_op_freqs
        post_order_visit
    """,
    "search": "extract_intermdeiate_expr search_fc_transpose",
    "shape_constraints": "kernel_conditions shape_conditions",
    "type_variables": "all_dtypes all_type_vars bound_type_vars free_type_vars",
    "well_formedness": "check_basic_block_normal_form find_errors verify well_formed",
    "ekiden.relay.visitor": "all_vars bound_vars free_vars",
}
"""Module -> its names."""
