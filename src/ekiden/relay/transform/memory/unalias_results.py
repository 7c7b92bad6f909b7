"""Unalias results: give every result of `main` its own memory, where the frontend requires it.

    def @main(%x) { let %y = f(%x); (%x, %y, %y) }
    ->  def @main(%x) { let %y = f(%x); let %a = memory.own(%x); let %b = memory.own(%y);
                        let %c = memory.own(%y); (%a, %b, %c) }

A functional program may return an input, a constant, or one tensor twice; passes create more of
such results, as they drop copies and merge equal values. Who may write into results (a user of
PyTorch) must see no other tensor change by it. `memory.own` decides by reference counts when the
program runs: a result that nothing else refers to is returned as it is, others are copied. Follows
MemoryPlan, as UpdateInPlace does.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Constant, Function, Tuple, Var
from ekiden.relay.op.memory import own
from ekiden.relay.transform.devices.plan_devices import device_table
from ekiden.relay.transform.language.let_chains import (
    LetBinding,
    LetChain,
    build_lets,
    parse_let_chain,
)
from ekiden.relay.transform.language.scope_tree import lift_body_rewrite
from ekiden.runtime import Device
from ekiden.target.virtual_device import RESULT_DEVICE_ATTR, VirtualDevice

OWNS_RESULTS_ATTR = "owns_results"
"""Module attribute: results of `main` own their memory."""


def OwnResults() -> Pass:  # noqa: N802
    """Return a pass that copies results of `main` that alias an input, a constant or another
    result.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Rewrite `main` if the module has the attribute OWNS_RESULTS_ATTR."""
        # Most frontends accept results that share memory with inputs or constants.
        if not module.attrs.get(OWNS_RESULTS_ATTR):
            return module
        numbers = {
            virtual_device.device: index
            for index, virtual_device in enumerate(device_table(module))
        }
        functions: dict[GlobalVar | str, BaseFunc] = dict(module.functions.items())
        entry = module.get_global_var("main")
        main = functions[entry]
        assert isinstance(main, Function)
        functions[entry] = _unalias_results(main, numbers)
        return IRModule(functions, module.type_definitions, module.attrs)

    return Pass("OwnResults", transform)


def _unalias_results(main: Function, numbers: Mapping[Device, int]) -> Function:
    """Return `main` with unaliased results; `numbers` maps devices to their index in the module's
    table.
    """
    result_device = main.attr(RESULT_DEVICE_ATTR)
    field_devices = result_device if isinstance(result_device, tuple) else None

    def device_index(at: int) -> int:
        """Return the device index of a result."""
        one = field_devices[at] if field_devices is not None else result_device
        return numbers[one.device] if isinstance(one, VirtualDevice) else 0

    def unalias_body(body: RelayExpr) -> RelayExpr:
        """Insert an Own for each tensor that the body returns."""
        chain = parse_let_chain(body)
        values = dict(chain.bindings)
        result = chain.result
        result_value = values.get(result) if isinstance(result, Var) else result
        if isinstance(result_value, Tuple):
            owned = [
                _bind_owned(chain, field, device_index(index))
                for index, field in enumerate(result_value.fields)
            ]
            owned_tuple: RelayExpr = result_value.with_fields(fields=tuple(owned))
            variable = Var("results")
        else:
            assert result is not None
            return build_lets(chain.bindings, _bind_owned(chain, result, device_index(0)))
        owned_tuple.set_checked_type(result_value.checked_type)
        variable.set_checked_type(result_value.checked_type)
        # The old tuple would hold references, so that every field would be copied.
        other_bindings = [b for b in chain.bindings if b[0] is not result]
        return build_lets([*other_bindings, (variable, owned_tuple)], variable)

    return lift_body_rewrite(unalias_body)(main)


def _bind_owned(chain: LetChain, value: RelayExpr, device: int) -> RelayExpr:
    """Bind an owned copy of a tensor in the chain; other values are returned unchanged."""
    kind = value.checked_type
    if not isinstance(value, (Var, Constant)) or not isinstance(kind, TensorType):
        return value
    # Own decides at run time: a uniquely referenced tensor is returned without a copy.
    call = own(value, device)
    variable = Var("owned")
    for typed_expr in (call, variable):
        typed_expr.set_checked_type(kind)
    binding: LetBinding = (variable, call)
    chain.bindings.append(binding)
    return variable


__all__ = ["OWNS_RESULTS_ATTR", "OwnResults"]
