"""Exports of `ekiden.relay.analysis`, loaded on first use."""

from ekiden._lazy import attach
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.analysis.fake_quantized import list_fake_quantized_op_freqs
from ekiden.relay.analysis.feature import Feature, detect_feature
from ekiden.relay.analysis.kind_checking import check_kind
from ekiden.relay.analysis.liveness import dead_bindings, last_uses
from ekiden.relay.analysis.match_exhaustion import pattern_text, unmatched_cases
from ekiden.relay.analysis.op_counts import (
    check_constant,
    count_layers,
    extract_fused_functions,
    get_total_mac_number,
    list_op_freqs,
    post_order_visit,
)
from ekiden.relay.analysis.search import extract_intermdeiate_expr, search_fc_transpose
from ekiden.relay.analysis.shape_constraints import kernel_conditions, shape_conditions
from ekiden.relay.analysis.type_variables import (
    all_dtypes,
    all_type_vars,
    bound_type_vars,
    free_type_vars,
)
from ekiden.relay.analysis.well_formedness import (
    check_basic_block_normal_form,
    find_errors,
    verify,
    well_formed,
)
from ekiden.relay.visitor import all_vars, bound_vars, free_vars

__getattr__, __dir__ = attach(
    __name__,
    {
        "ekiden.relay.transform.external.compiler_regions": "AnnotatedRegionSet",
        "ekiden.relay.backend.calibration": "get_calibration_data",
    },
)  # TVM's names of what stands above this folder


__all__ = [
    "CallGraph",
    "Feature",
    "all_dtypes",
    "all_type_vars",
    "all_vars",
    "bound_type_vars",
    "bound_vars",
    "check_basic_block_normal_form",
    "check_constant",
    "check_kind",
    "count_layers",
    "dead_bindings",
    "detect_feature",
    "extract_fused_functions",
    "extract_intermdeiate_expr",
    "find_errors",
    "free_type_vars",
    "free_vars",
    "get_total_mac_number",
    "kernel_conditions",
    "last_uses",
    "list_fake_quantized_op_freqs",
    "list_op_freqs",
    "pattern_text",
    "post_order_visit",
    "search_fc_transpose",
    "shape_conditions",
    "unmatched_cases",
    "verify",
    "well_formed",
]
