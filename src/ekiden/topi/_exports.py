"""Where the names of `ekiden.topi` stand. Made by scripts/generate_exports.py."""

EXPORTED_NAMES = {
    "": "image linalg ml nn random sampling sparse testing text vision",
    "broadcast": """
        add atan2 bitwise_and bitwise_or bitwise_xor broadcast_to divide elemwise_sum equal
        floor_divide floor_mod full_like greater greater_equal left_shift less less_equal
        logical_and logical_or logical_xor maximum minimum mod multiply not_equal power
        right_shift subtract trunc_divide trunc_mod where widening_multiply
    """,
    "contractions": "einsum matmul tensordot",
    "create": "arange constant full meshgrid ndarray_size ones shape zeros",
    "elementwise": """
        abs bitwise_not cast ceil clip copy cos erf exp fast_erf fast_exp fast_tanh
        fixed_point_multiply fixed_point_multiply_per_axis floor identity isfinite isinf isnan
        log logical_not negative reinterpret round rsqrt sigmoid sign sin sqrt tanh trunc
    """,
    "index": "adv_index gather gather_nd one_hot sequence_mask take",
    "reduce": "all any argmax argmin collapse_sum max mean min prod sum variance",
    "scan": "cummax cummin cumprod cumsum scanop",
    "scattering": "scatter scatter_add scatter_elements scatter_nd sparse_to_dense strided_set",
    "signal": "dft stft",
    "slice": "dynamic_strided_slice slice_like sliding_window split strided_slice",
    "sorting": "argsort argwhere row_ranks searchsorted sort topk unique",
    "transcendental": "acos acosh asin asinh atan atanh cosh log10 log1p log2 sinh tan",
    "transform": """
        concatenate expand_dims expand_like flip invert_permutation layout_transform
        matrix_set_diag repeat reshape reverse_sequence squeeze stack tile transpose trilu
        unravel_index
    """,
}
"""Module -> its names."""
