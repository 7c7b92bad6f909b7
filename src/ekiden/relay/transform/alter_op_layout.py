"""Put weights into the order in which the target's kernels read them.

    nn.dense(%x, W)               ->  the operator of a packed weight, which is W in panels
    nn.conv2d(%x, W, NHWC, OIHW)  ->  nn.conv2d(%x, packed W, NHWC, OHWI64o)

Each operator has a rule (relay/packing), which asks the families of kernels how they want it. The
packing itself is an operator, which FoldConstant does where the weight is constant.
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call
from ekiden.relay.packing import rule_of
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import map_functions, on_body, rewrite_graph
from ekiden.target import Target


def alter_op_layout(root: RelayExpr, target: Target) -> RelayExpr:
    """Pack the weights below root for a target. Needs checked types."""

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        if not isinstance(new, Call):
            return new
        new.set_checked_type(old.checked_type)
        rule = rule_of(new)
        if rule is None:
            return new
        made = rule(new, target)
        made.set_checked_type(old.checked_type)
        return made

    return rewrite_graph(root, rewrite)


def AlterOpLayout(target: Target) -> Pass:  # noqa: N802
    """The pass described at the top of this file."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        return map_functions(module, on_body(lambda body: alter_op_layout(body, target)))

    return Pass("AlterOpLayout", transform, 3, (InferType(),))
