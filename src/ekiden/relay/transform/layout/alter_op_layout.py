"""Weight packing: convert constant weights to the layouts that the target's kernels read.

    nn.dense(%x, W)               ->  the operator of a packed weight, which is W in panels
    nn.conv2d(%x, W, NHWC, OIHW)  ->  nn.conv2d(%x, packed W, NHWC, OHWI64o)

What else reads such a weight and can read it packed (a table of tokens that is the last layer too)
does, so that it is stored once. Each operator has a rule (relay/packing), which asks the families
of kernels for the layout. The packing itself is an operator, which FoldConstant computes where the
weight is constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import OP_ATTRS, Op
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.strategy import version_of
from ekiden.relay.packing import packing_rule_of, weight_reader_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)
from ekiden.target import Target

if TYPE_CHECKING:
    from ekiden.relay.transform.layout import layout_rewriter
else:
    layout_rewriter = LazyModule("ekiden.relay.transform.layout.layout_rewriter")

ALTER_OP_LAYOUT_ATTR = "FTVMAlterOpLayout"


def has_user_implementation(call: Call) -> bool:
    """Return whether a user has registered an implementation of the operator, which fixes the
    layout of its weights.
    """
    return isinstance(call.op, Op) and version_of(call.op.name) is not None


def alter_op_layout(root: RelayExpr, target: Target) -> RelayExpr:
    """Pack the constant weights below root for a target. Needs checked types."""
    packed: list[tuple[Constant, Call]] = []
    readers: list[Call] = []

    def pack_call(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Pack the weight of a call by its operator's rule.

        One that has an implementation of the user's own stays, as that reads the weight as it is.
        The type does not change.
        """
        if not isinstance(new, Call):
            return new
        new.set_checked_type(old.checked_type)
        if weight_reader_of(new) is not None:
            readers.append(new)
        rule = packing_rule_of(new)
        if rule is None or has_user_implementation(new):
            return new
        packed_call = rule(new, target)
        packed_call.set_checked_type(old.checked_type)
        if isinstance(packed_call, Call) and packed_call is not new:
            # Noted for readers of the same weight, so that it is stored once.
            packed.extend((w, packed_call) for w in new.args[1:2] if isinstance(w, Constant))
        return packed_call

    def share_packed_weight(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Redirect another reader of an unpacked weight to its packed copy."""
        if (
            not isinstance(new, Call)
            or (reader := weight_reader_of(new)) is None
            or has_user_implementation(new)
        ):
            return new
        for weight, product in packed:
            if (
                _equal_constants(weight, reader[0])
                and (shared_call := reader[1](new, product)) is not new
            ):
                shared_call.set_checked_type(old.checked_type)
                return shared_call
        return new

    # Sharing needs a second pass: a reader may come before the call whose weight is packed.
    altered = rewrite_graph(root, pack_call)
    # Readers may come before the product that packs their weight, so they take a second walk.
    return rewrite_graph(altered, share_packed_weight) if packed and readers else altered


def _equal_constants(weight: Constant, expr: RelayExpr) -> bool:
    """Return whether an expression is a constant equal to the weight."""
    if not isinstance(expr, Constant):
        return False
    data_a, data_b = weight.data, expr.data
    # Equal weights may be separate constants, one for each use.
    return weight is expr or (data_a.shape == data_b.shape and np.array_equal(data_a, data_b))


def _apply_user_alteration(
    call: Call, attrs: Attrs | None, args: Sequence[RelayExpr]
) -> RelayExpr | None:
    """Return the call altered by a user's FTVMAlterOpLayout, or None."""
    assert isinstance(call.op, Op)
    user_rule: Any = OP_ATTRS.get(ALTER_OP_LAYOUT_ATTR, {}).get(call.op.name)
    if user_rule is None:
        return None
    infos = layout_rewriter.tensor_infos([a.checked_type for a in call.args])
    return user_rule(attrs, list(args), infos, call.checked_type)  # type: ignore[no-any-return]


def _apply_user_alterations(body: RelayExpr) -> RelayExpr:
    return layout_rewriter.LayoutRewriter(_apply_user_alteration, ALTER_OP_LAYOUT_ATTR).run(body)


def AlterOpLayout(target: Target | None = None) -> Pass:  # noqa: N802
    """Return a pass that alters operator layouts for a target (TVM's AlterOpLayout).

    Without a target, calls become what users say by `relay.op.register_alter_op_layout`, and others
    follow their layouts (TVM's pass).
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Pack the weights of a module for the target.

        Without a target the alterations of TVM's name run instead, which may change types, so that
        these are inferred again.
        """
        if target is None:
            return InferType()(map_functions(module, lift_body_rewrite(_apply_user_alterations)))
        return map_functions(module, lift_body_rewrite(lambda body: alter_op_layout(body, target)))

    return Pass("AlterOpLayout", transform, 3, (InferType(),))
