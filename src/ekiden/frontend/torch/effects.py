"""Effectful calls in PyTorch graphs: error checks of decompositions, and the tokens that order
them.
"""

from __future__ import annotations

import operator

import torch

LINALG_CHECK = "_linalg_check_errors"
WITH_EFFECTS = "with_effects"


def is_effect_call(node: torch.fx.Node) -> bool:
    """Return whether a node runs another operator for its effect: with_effects(token, op, ...)."""
    target = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator):
        return False
    return bool(target._name == WITH_EFFECTS)


def is_effect_token(node: torch.fx.Node) -> bool:
    """Return whether a node is an effect token; tokens only order effects, and PyTorch passes None
    for them.
    """
    if node.op == "placeholder":
        return any(is_effect_call(user) and user.args[0] is node for user in node.users)
    if node.target is not operator.getitem or node.args[1] != 0:
        return False
    return isinstance(node.args[0], torch.fx.Node) and is_effect_call(node.args[0])


__all__ = ["LINALG_CHECK", "is_effect_call", "is_effect_token"]
