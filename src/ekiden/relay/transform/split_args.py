"""Join many tensors in several steps, so that no kernel has more arguments than a number.

concatenate((%a, %b, %c, %d))  ->  concatenate((stop_fusion(concatenate((%a, %b))), ..(%c, %d)..))
                                                                        of at most 2 inputs
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.transform import Pass
from ekiden.relay import op
from ekiden.relay.expr import Call, Tuple
from ekiden.relay.transform.calls import Rewrite, call_pass


def _joined(most: int) -> Rewrite:
    def rewrite(call: Call) -> RelayExpr | None:
        """A concatenation of more than `most` as a tree of concatenations; stop_fusion keeps the
        inner ones kernels of their own, or fusion would make the many arguments again.
        """
        parts = call.args[0]
        if not isinstance(parts, Tuple) or len(parts.fields) <= most:
            return None
        axis = int(getattr(call.attrs, "axis", 0))
        fields = list(parts.fields)
        while len(fields) > most:
            groups = [fields[i : i + most] for i in range(0, len(fields), most)]
            fields = [
                op.annotation.stop_fusion(op.concatenate(g, axis)) if len(g) > 1 else g[0]
                for g in groups
            ]
        return op.concatenate(fields, axis)

    return rewrite


def SplitArgs(max_function_args: int) -> Pass:  # noqa: N802
    """The pass described at the top of this file; 0 is no limit, nor is -1. Raises ValueError for
    one that nothing can be joined under."""
    if max_function_args in (0, -1):
        return call_pass("SplitArgs", 1, {})
    if max_function_args < 2:
        raise ValueError(f"SplitArgs: expected 0 or at least 2 arguments, got {max_function_args}")
    return call_pass("SplitArgs", 1, {"concatenate": _joined(max_function_args)})
