"""Replace calls that a target cannot run by ones it can, by a table that users add to.

    @register_legalize("nn.conv2d")
    def legalize_conv2d(attrs, inputs, types):
        return None                      # None: the call is fine as it is

`types` are those of the inputs, then that of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.extensions import note_extension
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import Type
from ekiden.relay.expr import Call
from ekiden.relay.transform.calls import Rewrite, rewrite_calls
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import map_functions, on_body

Legalization = Callable[[Attrs | None, Sequence[RelayExpr], Sequence[Type]], RelayExpr | None]

LEGALIZATIONS: dict[str, dict[str, Legalization]] = {"FTVMLegalize": {}}
"""Name of a table -> operator -> its legalization."""


def register_legalize(
    op_name: str, legal_op: Legalization | None = None, table: str = "FTVMLegalize"
) -> object:
    """Give an operator a legalization; without one, a decorator.

    Raises KeyError when there is no such operator.
    """

    def register(legalization: Legalization) -> Legalization:
        if op_name not in OPS:
            raise KeyError(f"register legalize: no operator {op_name!r}")
        note_extension(legalization)
        LEGALIZATIONS.setdefault(table, {})[op_name] = legalization
        return legalization

    return register if legal_op is None else register(legal_op)


def _rewrite(legalization: Legalization) -> Rewrite:
    def rewrite(call: Call) -> RelayExpr | None:
        types = [*(a.checked_type for a in call.args), call.checked_type]
        return legalization(call.attrs, call.args, types)

    return rewrite


def Legalize(  # noqa: N802
    legalize_map_attr_name: str = "FTVMLegalize", name: str = "Legalize", opt_level: int = 1
) -> Pass:
    """The pass described at the top of this file, for one table; `name` is the pass's."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        rows = LEGALIZATIONS.get(legalize_map_attr_name, {})
        table = {name: _rewrite(legal) for name, legal in rows.items()}
        return map_functions(module, on_body(lambda body: rewrite_calls(body, table)))

    return Pass(name, transform, opt_level, (InferType(),))
