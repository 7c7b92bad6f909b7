"""Analyses of Relay programs, without changing them.

Names follow `tvm.relay.analysis`. `get_calibration_data` runs programs: it stands on a higher floor
and is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach, exported_names
from ekiden.relay.analysis._exports import EXPORTED_NAMES

if TYPE_CHECKING:
    from ekiden.relay.analysis.call_graph import CallGraph as CallGraph
    from ekiden.relay.analysis.fake_quantized import (
        list_fake_quantized_op_freqs as list_fake_quantized_op_freqs,
    )
    from ekiden.relay.analysis.feature import Feature as Feature
    from ekiden.relay.analysis.feature import detect_feature as detect_feature
    from ekiden.relay.analysis.kind_checking import check_kind as check_kind
    from ekiden.relay.analysis.liveness import dead_bindings as dead_bindings
    from ekiden.relay.analysis.liveness import last_uses as last_uses
    from ekiden.relay.analysis.match_exhaustion import pattern_text as pattern_text
    from ekiden.relay.analysis.match_exhaustion import unmatched_cases as unmatched_cases
    from ekiden.relay.analysis.op_counts import check_constant as check_constant
    from ekiden.relay.analysis.op_counts import count_layers as count_layers
    from ekiden.relay.analysis.op_counts import extract_fused_functions as extract_fused_functions
    from ekiden.relay.analysis.op_counts import get_total_mac_number as get_total_mac_number
    from ekiden.relay.analysis.op_counts import list_op_freqs as list_op_freqs
    from ekiden.relay.analysis.op_counts import post_order_visit as post_order_visit
    from ekiden.relay.analysis.search import extract_intermdeiate_expr as extract_intermdeiate_expr
    from ekiden.relay.analysis.search import search_fc_transpose as search_fc_transpose
    from ekiden.relay.analysis.shape_constraints import kernel_conditions as kernel_conditions
    from ekiden.relay.analysis.shape_constraints import shape_conditions as shape_conditions
    from ekiden.relay.analysis.type_variables import all_dtypes as all_dtypes
    from ekiden.relay.analysis.type_variables import all_type_vars as all_type_vars
    from ekiden.relay.analysis.type_variables import bound_type_vars as bound_type_vars
    from ekiden.relay.analysis.type_variables import free_type_vars as free_type_vars
    from ekiden.relay.analysis.well_formedness import (
        check_basic_block_normal_form as check_basic_block_normal_form,
    )
    from ekiden.relay.analysis.well_formedness import find_errors as find_errors
    from ekiden.relay.analysis.well_formedness import verify as verify
    from ekiden.relay.analysis.well_formedness import well_formed as well_formed
    from ekiden.relay.visitor import all_vars as all_vars
    from ekiden.relay.visitor import bound_vars as bound_vars
    from ekiden.relay.visitor import free_vars as free_vars

_HIGHER_LAYER_EXPORTS = {
    "ekiden.relay.transform.external.compiler_regions": "AnnotatedRegionSet",
    "ekiden.relay.backend.calibration": "get_calibration_data",
}
"""TVM's names of what stands above this folder."""
__all__ = exported_names(EXPORTED_NAMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES | _HIGHER_LAYER_EXPORTS)
