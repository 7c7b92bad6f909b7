"""User-registered conversion rules for ToMixedPrecision, with TVM's names and values.

    @register_mixed_precision_conversion("nn.dense")
    def keep(call, mixed_precision_type):
        return [MIXED_PRECISION_NEVER, "float32", "float32"]

A rule returns what becomes of a call, the dtype of its accumulators, and that of its result.
Kernels accumulate in float32 in any case, and round once; the third is the result's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.op import OP_ATTRS, PrecisionPolicy
from ekiden.relay.expr import Call
from ekiden.relay.op.op import MIXED_PRECISION_ATTR, register_mixed_precision_conversion
from ekiden.runtime.errors import PassError

MIXED_PRECISION_ALWAYS = 0
MIXED_PRECISION_FOLLOW = 1
MIXED_PRECISION_NEVER = 2
PRECISION_BY_CATEGORY = {
    MIXED_PRECISION_ALWAYS: PrecisionPolicy.ALWAYS,
    MIXED_PRECISION_FOLLOW: PrecisionPolicy.FOLLOW,
    MIXED_PRECISION_NEVER: PrecisionPolicy.NEVER,
}


def apply_user_rule(call: Call, name: str, small: str) -> tuple[PrecisionPolicy, str] | None:
    """Apply a user's conversion rule to a call; return (precision category, output dtype), or None
    if there is no rule.

    Returns:
        What becomes of the call, and the dtype of its result; None where there is no rule.

    Raises:
        PassError: For what is no such answer.
    """
    rule = OP_ATTRS.get(MIXED_PRECISION_ATTR, {}).get(name)
    if rule is None:
        return None
    assert callable(rule)
    answer = rule(call, small)
    if (
        not isinstance(answer, Sequence)
        or len(answer) != 3
        or answer[0] not in PRECISION_BY_CATEGORY
    ):
        raise PassError(
            f"ToMixedPrecision: the rule of {name!r} expected to give [0, 1 or 2, dtype, dtype],"
            f" got {answer!r}"
        )
    return PRECISION_BY_CATEGORY[answer[0]], str(answer[2])


__all__ = [
    "MIXED_PRECISION_ALWAYS",
    "MIXED_PRECISION_FOLLOW",
    "MIXED_PRECISION_NEVER",
    "apply_user_rule",
    "register_mixed_precision_conversion",
]
