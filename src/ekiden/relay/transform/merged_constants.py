"""Constants that passes merge into one: sums, products and quotients that keep their range.

    x * 1e30 * 1e30  =  x * 1e60         of real numbers; of float32 the right side is x * inf

x may be what brings the left side back into range (1e-30), or 0, of which inf makes NaN. The same
holds where a product is too small for its dtype: x * 1e-30 * 1e-30 is 1e-20 for x = 1e40, not 0. So
what is merged is finite where its parts are, and of full precision or no smaller than each of them;
else it is None and the program stays. Integers wrap around in a ring, in which all may be merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ekiden.ir.op import Array
from ekiden.runtime.late import Late

if TYPE_CHECKING:
    import ml_dtypes
else:
    ml_dtypes = Late("ml_dtypes")


def merged_sum(a: Array, b: Array) -> Array | None:
    """a + b; what cancels out is as exact as a sum can be."""
    with np.errstate(all="ignore"):
        made = np.asarray(a + b)
    return made if _is_finite(made, a, b) else None


def merged_product(a: Array, b: Array) -> Array | None:
    """a * b"""
    with np.errstate(all="ignore"):
        made = np.asarray(a * b)
    return made if _is_finite(made, a, b) and not _loses_any(made, a, b) else None


def merged_quotient(a: Array, b: Array) -> Array | None:
    """a / b, b without zeros"""
    with np.errstate(all="ignore"):
        made = np.asarray(a / b)
        tiny = _tiny(made)
        is_lost = (np.abs(made) < tiny) & (a != 0) & np.isfinite(b)
    return made if _is_finite(made, a, b) and not np.any(is_lost) else None


def scaled_terms(weight: Array, scale: Array) -> Array | None:
    """weight * scale, whose elements are summed after they meet data. One that is lost is lost in
    the sum too where the rounding of the largest is more: a network of trained weights has channels
    that came close to 0."""
    with np.errstate(all="ignore"):
        made = np.asarray(weight * scale)
        if not _is_finite(made, weight, scale):
            return None
        loses_any = _loses_any(made, weight, scale)
    if not loses_any:
        return made
    largest = float(np.max(np.abs(made)))
    return made if float(_tiny(made)) <= largest * float(ml_dtypes.finfo(made.dtype).eps) else None


# Nearly always all is well, which a pass or two over the products tells; who is asked of each
# element beyond that is one of few.


def _is_finite(made: Array, a: Array, b: Array) -> bool:
    """Whether what is made is finite wherever its parts are."""
    strange = ~np.isfinite(made)
    if not strange.any():
        return True
    own_a, own_b = (np.broadcast_to(each, made.shape)[strange] for each in (a, b))
    return not np.any(np.isfinite(own_a) & np.isfinite(own_b))


def _loses_any(made: Array, a: Array, b: Array) -> bool:
    """Whether a product left the numbers of full precision, and is smaller than both parts."""
    tiny = _tiny(made)
    small = np.abs(made) < tiny
    if not small.any():
        return False
    own_a, own_b = (np.abs(np.broadcast_to(each, made.shape)[small]) for each in (a, b))
    smaller = np.minimum(np.minimum(own_a, own_b), tiny)
    return bool(np.any((np.abs(made[small]) < smaller) & (smaller != 0)))


def _tiny(like: Array) -> Array:
    """The smallest positive number of full precision; 0 where all numbers are of one."""
    if np.issubdtype(like.dtype, np.integer) or like.dtype == bool:
        return np.asarray(0, like.dtype)
    return np.asarray(ml_dtypes.finfo(like.dtype).tiny, like.dtype)
