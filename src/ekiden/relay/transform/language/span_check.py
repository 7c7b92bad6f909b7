"""Check that every call has a span, its source location in a model or text.

add(%x, %y)   without a span   ->   CompileError: SpanCheck: @main: 1 call without a span: add
"""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Function
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import CompileError

MAX_SHOWN_CALLS = 5
"""Maximum calls named in an error message."""


def _callee_name(call: Call) -> str:
    op = call.op
    return op.name if isinstance(op, Op) else getattr(op, "name_hint", "a function")


def _check_spans(module: IRModule, context: PassContext) -> IRModule:
    for var, function in module.functions.items():
        if not isinstance(function, Function):
            continue
        calls = [e for e in post_order(function, into_functions=True) if isinstance(e, Call)]
        bare = [_callee_name(c) for c in calls if c.span is None]
        if bare:
            count_text = "1 call" if len(bare) == 1 else f"{len(bare)} calls"
            more = ", ..." if len(bare) > MAX_SHOWN_CALLS else ""
            shown = ", ".join(bare[:MAX_SHOWN_CALLS]) + more
            raise CompileError(f"SpanCheck: @{var.name_hint}: {count_text} without a span: {shown}")
    return module


def SpanCheck() -> Pass:  # noqa: N802
    """Return a pass that raises an error for calls without a span, and changes nothing (TVM's
    SpanCheck).
    """
    return Pass("SpanCheck", _check_spans)
