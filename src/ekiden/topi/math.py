"""Elementwise mathematics under TVM's module name. `topi.math.exp` is `topi.exp`."""

from ekiden._lazy import attach, exported_names

_MATH_EXPORTS = {
    "ekiden.topi": "abs cast ceil clip cos erf exp fast_erf fast_exp fast_tanh"
    " fixed_point_multiply fixed_point_multiply_per_axis floor identity isfinite isinf isnan"
    " left_shift log negative reinterpret right_shift round rsqrt sigmoid sign sin sqrt tanh"
    " trunc"
}
__all__ = exported_names(_MATH_EXPORTS)

__getattr__, __dir__ = attach(__name__, _MATH_EXPORTS)
