"""Lowering rules of intrinsics that users register for a kind of target.

A rule is the attribute "KIND.FLowerIntrinsic" of the intrinsic's operator, as in TVM; the kind
"default" serves every target without a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from ekiden.ir.op import OP_ATTRS, register_op_attr
from ekiden.ir.prim import Intrinsic
from ekiden.ir.user_extensions import PROCESS_CACHE_SALT

_V = TypeVar("_V")
LoweringRule = Callable[[Intrinsic], object]
"""Function from a call to an expression of its dtype, which is checked when it is applied."""

RULE_ATTR = "FLowerIntrinsic"


def register_intrin_lowering(
    op_name: str, target: str, *, f: _V | None = None, level: int = 10
) -> Callable[[_V], _V] | object:
    """Register the rule that lowers an intrinsic for a kind of target, or return a decorator if no
    rule is given (TVM's ir.register_intrin_lowering).

    Args:
        op_name: the intrinsic, "tir.exp".
        target: a kind of target, "cuda", or "default".
        f: the rule, a function from the call to an expression of its dtype; the call itself leaves
            it to Ekiden.
        level: TVM's priority; the latest rule counts.

    Raises:
        KeyError: for an unknown operator whose name does not begin with "tir.".
    """
    return register_op_attr(op_name, f"{target}.{RULE_ATTR}", f, level)


def lowering_rules(target_kind: str) -> dict[str, LoweringRule]:
    """Return the rules for a kind of target by the names of their operators."""
    tables = (OP_ATTRS.get(f"{kind}.{RULE_ATTR}", {}) for kind in ("default", target_kind))
    return cast("dict[str, LoweringRule]", {op: rule for t in tables for op, rule in t.items()})


def lowering_rules_key(target_kind: str) -> str:
    """Return the part of a cache key that tells the registered rules apart, empty without rules."""
    rules = lowering_rules(target_kind)
    # Registered functions are never freed, so that their addresses are unique.
    numbers = (f"{name}={id(rule)}" for name, rule in sorted(rules.items()))
    return f"rules {PROCESS_CACHE_SALT} {' '.join(numbers)}" if rules else ""
