"""Where the names of `ekiden.relay.op` stand. Made by scripts/generate_exports.py."""

EXPORTS = {
    "": """
        annotation contrib dyn:dynamic image linalg memory ml nn op random sequence text vision
        vm
    """,
    "ekiden.ir.op": """
        get
    """,
    "ekiden.relay.expr": """
        const
    """,
    "algebra": """
        broadcast_to_like collapse_sum_like collapse_sum_to det dft einsum fixed_point_multiply
        fixed_point_multiply_per_axis full_like invert_permutation logsumexp matrix_set_diag
        mean_std mean_variance meshgrid slice_like std stft trilu unravel_index variance
    """,
    "annotation": """
        device_copy
    """,
    "broadcast": """
        add bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater
        greater_equal left_shift less less_equal logical_and logical_or logical_xor maximum
        minimum mod multiply not_equal power right_shift subtract trunc_divide trunc_mod where
        widening_multiply
    """,
    "create": """
        arange extents full ndarray_size ones ones_like shape_of zeros zeros_like
    """,
    "debugging": """
        debug
    """,
    "elementwise": """
        abs acos acosh asin asinh atan atanh bitwise_not cast ceil clip copy cos cosh erf exp
        fast_erf fast_exp fast_tanh floor isfinite isinf isnan log log10 log2 logical_not
        negative reinterpret round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
    """,
    "gradient": """
        register_gradient
    """,
    "index": """
        gather gather_nd one_hot take
    """,
    "join": """
        concatenate split stack
    """,
    "likeness": """
        cast_like reshape_like reverse_reshape segment_sum sliding_window
    """,
    "op": """
        register_alter_op_layout register_convert_op_layout
        register_fake_quantization_to_integer register_infer_correct_layout
        register_mixed_precision_conversion register_optional_fake_quantization_to_integer
        register_reference
    """,
    "placing": """
        adv_index reverse_sequence scatter_elements scatter_nd sequence_mask sparse_to_dense
        strided_set
    """,
    "reduce": """
        all any argmax argmin max mean min prod sum
    """,
    "reshaping": """
        expand_dims reshape squeeze
    """,
    "scan": """
        cummax cummin cumprod cumsum
    """,
    "shape_func": """
        register_shape_func
    """,
    "slice": """
        strided_slice
    """,
    "sorting": """
        argsort argwhere argwhere_padded row_ranks searchsorted sort topk unique
    """,
    "sparse": """
        sparse_fill_empty_rows sparse_reshape
    """,
    "strategy": """
        OpImplementation OpSpecialization OpStrategy SpecializedCondition register_compute
        register_schedule register_strategy
    """,
    "transform": """
        broadcast_to layout_transform repeat reverse tile transpose
    """,
}
"""Module -> its names."""

OPERATORS = {
}
"""Module -> the operators that it declares."""
