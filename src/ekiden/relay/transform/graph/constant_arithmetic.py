"""Range- and precision-preserving arithmetic on constants that passes merge: sums, products,
quotients.

    x * 1e30 * 1e30  =  x * 1e60         of real numbers; of float32 the right side is x * inf

x may be what brings the left side back into range (1e-30), or 0, of which inf makes NaN. The same
holds where a product is too small for its dtype: x * 1e-30 * 1e-30 is 1e-20 for x = 1e40, not 0. So
what is merged is finite where its parts are, and of full precision or no smaller than each of them;
else it is None and the program stays. Integers wrap around in a ring, in which all may be merged.

    (x + c) - c  =  x                    of real numbers; of float32 and c = 1.5 * 2**23 the left
                                         side rounds x to a whole number
    (x * 1e30) * 1e-30  =  x             of float32 the left side is inf for x = 1e10

So a merged constant must be no smaller than its parts: a sum's |a + b| >= |a|, |b| (one sign), a
factor's |log(a * b)| >= |log a|, |log b| (both grow or both shrink what they scale). Then no
intermediate result of the program as it is written is larger, or closer to 0, than those of both
programs at their ends, and what the two differ by is the rounding of the terms that are left. Where
the tier "free" is allowed (ir/float_tier.py), constants that cancel are merged too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.ir.dtype import SMALL_FLOATS, is_float
from ekiden.ir.float_tier import FloatTier
from ekiden.ir.op import Array

if TYPE_CHECKING:
    import ml_dtypes
else:
    ml_dtypes = LazyModule("ml_dtypes")


def fold_sum(a: Array, b: Array, terms: Array | None = None) -> Array | None:
    """Return a + b for folding `(x + a) + b`; None where the sum overflows or cancels.

    Args:
        terms: of a sum of many terms beside the constants, such as a convolution's, how large
            these are: its weights' magnitudes. Order of such a sum is free to choose, and a
            constant that loses less than half of the significand's digits beside them is one of
            its terms.
    """
    # Overflow is tested for below; NumPy's warnings would reach the user.
    with np.errstate(all="ignore"):
        total = np.asarray(a + b)
    if not _stays_finite(total, a, b):
        return None
    return None if _has_cancellation(total, a, b, terms) else total


def fold_product(a: Array, b: Array) -> Array | None:
    """Return a * b for a term `a` scaled by `b`; None where it overflows or underflows."""
    with np.errstate(all="ignore"):
        product = np.asarray(a * b)
    return product if _stays_finite(product, a, b) and not _underflows(product, a, b) else None


def fold_factors(a: Array, b: Array) -> Array | None:
    """Return a * b for folding `(x * a) * b`; None where it leaves the range, or where the factors
    compensate each other's overflow.
    """
    if not _is_floating(a) or FloatTier.allowed() is FloatTier.FREE:
        return fold_product(a, b)
    with np.errstate(all="ignore"):
        sizes = [np.abs(np.asarray(factor)) for factor in (a, b)]
        grow, shrink = (
            np.broadcast_arrays(*(test(s, 1) for s in sizes)) for test in MAGNITUDE_TESTS
        )
    # Factors of opposite directions may go through inf or 0 where their product does not.
    is_one_way = bool(np.all((grow[0] & grow[1]) | (shrink[0] & shrink[1])))
    return fold_product(a, b) if is_one_way else None


def fold_affine_factors(a: Array, b: Array) -> Array | None:
    """Return a * b for folding `(x * a + t) * b` into `x * (a * b) + t * b`, as for two batch
    normalisations in a row; None where it leaves the range or a factor is far from 1.

    Such an `a` is a weight of one tap, and a folded weight is rounding. Factors of opposite
    directions are folded while each is within an eighth of the exponents' range: then `x * a`
    overflows, or loses digits that `t` would not hide, only for an x of the outermost eighth.
    """
    product = fold_factors(a, b)
    if product is not None:
        return product
    margin = 2.0 ** (ml_dtypes.finfo(a.dtype).maxexp // 8)
    sizes = [np.abs(np.asarray(factor, np.float64)) for factor in (a, b)]
    # A factor of 0 loses nothing that the other one could bring back.
    is_near_one = all(np.all((s == 0) | ((s >= 1 / margin) & (s <= margin))) for s in sizes)
    return fold_product(a, b) if is_near_one else None


def fold_quotient(a: Array, b: Array) -> Array | None:
    """Return a / b for non-zero b; None where it leaves the normal range."""
    with np.errstate(all="ignore"):
        quotient = np.asarray(a / b)
        tiny = _smallest_normal(quotient)
        is_lost = (np.abs(quotient) < tiny) & (a != 0) & np.isfinite(b)
    return quotient if _stays_finite(quotient, a, b) and not np.any(is_lost) else None


def scale_weights(weight: Array, scale: Array) -> Array | None:
    """Return weight * scale for weights whose products with data are summed; None where the scaling
    loses precision.

    A lost element is lost in the sum too where the rounding of the largest is more: a network of
    trained weights has channels that came close to 0.
    """
    with np.errstate(all="ignore"):
        product = np.asarray(weight * scale)
        if not _stays_finite(product, weight, scale):
            return None
        loses_any = _underflows(product, weight, scale)
    if not loses_any:
        return product
    # Elements that became too small do not matter beside a large term of the same sum.
    largest = float(np.max(np.abs(product)))
    return (
        product
        if float(_smallest_normal(product)) <= largest * float(ml_dtypes.finfo(product.dtype).eps)
        else None
    )


MAGNITUDE_TESTS = (np.greater_equal, np.less_equal)
"""Predicates: whether a factor may grow, and may shrink, magnitudes (both hold for 1)."""


def _is_floating(value: Array) -> bool:
    """Return whether a constant is of a rounding dtype (not integer or bool)."""
    name = str(value.dtype)
    return is_float(name) or name in SMALL_FLOATS


def _has_cancellation(total: Array, a: Array, b: Array, terms: Array | None) -> bool:
    """Return whether a + b is smaller than one of its terms (cancellation), so that folding changes
    the rounding.
    """
    if not _is_floating(total) or FloatTier.allowed() is FloatTier.FREE:
        return False
    size_a, size_b, size = (np.abs(np.asarray(value)) for value in (a, b, total))
    if terms is not None:
        # what is lost stays below the square root of eps beside the largest term
        digits = float(ml_dtypes.finfo(total.dtype).eps) ** -0.5
        size = np.maximum(size, np.abs(terms)).astype(np.float64) * digits
    return bool(np.any((size_a > size) | (size_b > size)))


# Nearly always all is well, which a pass or two over the products tells; who is asked of each
# element beyond that is one of few.


def _stays_finite(result: Array, a: Array, b: Array) -> bool:
    """Return whether a result is finite wherever both operands are."""
    strange = ~np.isfinite(result)
    if not strange.any():
        return True
    own_a, own_b = (np.broadcast_to(operand, result.shape)[strange] for operand in (a, b))
    return not np.any(np.isfinite(own_a) & np.isfinite(own_b))


def _underflows(product: Array, a: Array, b: Array) -> bool:
    """Return whether a product underflows to subnormals although both operands are larger."""
    tiny = _smallest_normal(product)
    small = np.abs(product) < tiny
    if not small.any():
        return False
    own_a, own_b = (np.abs(np.broadcast_to(operand, product.shape)[small]) for operand in (a, b))
    smaller = np.minimum(np.minimum(own_a, own_b), tiny)
    return bool(np.any((np.abs(product[small]) < smaller) & (smaller != 0)))


def _smallest_normal(like: Array) -> Array:
    """Return the smallest normal number of the dtype; 0 for exact dtypes."""
    if np.issubdtype(like.dtype, np.integer) or like.dtype == bool:
        return np.asarray(0, like.dtype)
    return np.asarray(ml_dtypes.finfo(like.dtype).tiny, like.dtype)
