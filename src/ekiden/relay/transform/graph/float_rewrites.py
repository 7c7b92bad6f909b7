"""Table of value-changing floating-point rewrites with the tier and the passes of each.

A pass that applies one asks `allows(name)` before it begins, so that the option
"relay.float_rewrites" reaches every row. The equations of SimplifyExpr carry their tiers themselves
(simplify_rules.py). `docs/float-rewrites.md` is generated from both tables by
`scripts/generate_float_rewrites.py`.

Not here: the order of sums in the kernel of one operator, as no operator specifies one; and passes
that compute in another dtype, which a program has to name (ToMixedPrecision).
"""

from __future__ import annotations

from ekiden.ir.float_tier import FloatTier
from ekiden.ir.pass_context import PassContext
from ekiden.runtime.lazy_dataclass import dataclass

EXACT_TIER, ROUNDED_TIER, FREE_TIER = FloatTier


@dataclass(frozen=True, slots=True)
class FloatRewrite:
    """Floating-point rewrite: its equation, its tier, and the passes that apply it."""

    name: str
    tier: FloatTier
    passes: tuple[str, ...]
    equation: str
    condition: str = ""
    """Precondition of the rewrite, or bound of the difference."""


SCALE_FOLDING_PASSES = ("FoldScaleAxis", "ForwardFoldScaleAxis", "BackwardFoldScaleAxis")
COMBINING_PASSES = ("CombineParallelConv2D", "CombineParallelDense", "CombineParallelBatchMatmul",
                    "CombineFewRows", "BatchingOps")  # fmt: skip

# fmt: off
FLOAT_REWRITES: tuple[FloatRewrite, ...] = (
    FloatRewrite("scale weights", ROUNDED_TIER, SCALE_FOLDING_PASSES,
        "conv(x, w) * s + t = conv(x, w * s) + t",
        "scales and biases by constants go into weights and into each other; products keep their "
        "range, sums do not cancel; (x * a + t) * b + u = x * (a * b) + (t * b + u) of factors "
        "near 1"),
    FloatRewrite("sum weights", ROUNDED_TIER, ("SumConvolutions",),
        "conv(x, v) + conv(x, w) = conv(x, v + w)",
        "no channel of v + w cancels"),
    FloatRewrite("normalise by a factor", ROUNDED_TIER, ("SimplifyInference",),
        "(x - mean) * s + b = x * s + (b - mean * s)",
        "batch normalisation by trained statistics"),
    FloatRewrite("fuse attention", ROUNDED_TIER, ("FuseAttention",),
        "softmax(q k^T * s + b) v = attention(q, k, v, b, s)",
        "sums in another order; what a mask of -1e9 or less hides is lost in its rounding"),
    FloatRewrite("multiply einsums", ROUNDED_TIER, ("MultiplyEinsums",),
        'einsum("bi,io->bo", x, w) = dense(x, transpose(w))',
        "sums in another order"),
    FloatRewrite("join products", ROUNDED_TIER, COMBINING_PASSES,
        "(dense(x, v), dense(x, w)) = cut(dense(x, concatenate(v, w)))",
        "sums in another order"),
    FloatRewrite("Winograd", ROUNDED_TIER, ("AlterOpLayout",),
        "conv(x, w) = A^T ((G w G^T) * (B^T x B)) A",
        "of windows of 3x3, F(2x2) to F(6x6)"),
    FloatRewrite("multiply bytes", ROUNDED_TIER, ("IntegerProducts",),
        "dense((x - p) * s, (w - q) * t) = dense(x - p, w - q) * (s * t)",
        "of bytes: sums of integers, which are exact; a number that was no number when it was "
        "rounded to a byte is a byte"),
    FloatRewrite("requantise by one factor", ROUNDED_TIER, ("MergeRequantization",),
        "round((x * s + b) / y) = round(x * (s / y) + b / y)",
        "scales and biases by constants: a sum that ends between two levels may become either"),
    FloatRewrite("keep operands wide", ROUNDED_TIER, ("ProductPrecision",),
        "dense(cast(x, bfloat16), w) = dense(x, cast(w, float32))",
        "products of small floats take the float32 from which an operand was rounded"),
    FloatRewrite("multiply by inverses", ROUNDED_TIER, ("DivToMul",),
        "x / c = x * (1 / c)",
        "1 / c keeps its range; powers of two are exact"),
    FloatRewrite("approximate functions", FREE_TIER, ("FastMath",),
        "exp(x) = fast_exp(x)",
        "exp, erf, tanh and softmax; opt level 4 asks for it by itself"),
)
"""Rewrites outside SimplifyExpr."""
# fmt: on

_TIER_BY_REWRITE = {row.name: row.tier for row in FLOAT_REWRITES}


def is_rewrite_allowed(name: str, context: PassContext | None = None) -> bool:
    """Return whether a pass context (default: the current one) allows the named rewrite."""
    return _TIER_BY_REWRITE[name] <= FloatTier.allowed(context)


__all__ = ["FLOAT_REWRITES", "FloatRewrite", "is_rewrite_allowed"]
