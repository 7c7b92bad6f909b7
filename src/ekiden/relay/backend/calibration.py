"""Calibration data of external compilers' functions: their inputs and outputs on sample data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import cast

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.type import TupleType
from ekiden.relay.backend.executors import create_executor
from ekiden.relay.expr import Call, Function, Tuple, TupleGetItem
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.visitor import post_order
from ekiden.runtime import Tensor
from ekiden.runtime.errors import CompileError

Values = dict[str, list[Tensor]]
Runner = Callable[..., Iterable[Tensor]]


def get_calibration_data(mod: IRModule, data: Mapping[str, object]) -> dict[GlobalVar, Values]:
    """Return the inputs and outputs of each external function that `main` calls, on sample data.

    Each function is compiled as if it were Ekiden's own.

    Args:
        mod: The module.
        data: Values of the parameters of `main` by name.

    Returns:
        For each function its "inputs" and "outputs", in order.

    Raises:
        CompileError: A function is called twice, or in a branch or function inside of `main`.
    """
    typed = InferType()(mod)
    main = typed["main"]
    assert isinstance(main, Function)
    external = {
        name
        for name, f in typed.functions.items()
        if isinstance(f, Function) and f.attr("Compiler") is not None
    }
    calls = _external_calls(main, external)
    observed = [value for call in calls for value in (*call.args, *_call_outputs(call))]
    plain: dict[GlobalVar, BaseFunc] = {
        **typed.functions,
        **{n: _strip_compiler(typed[n]) for n in external},
    }
    # `main` now returns all arguments and results of the calls instead of its own result.
    plain[typed.get_global_var("main")] = main.with_fields(
        body=Tuple(tuple(observed)), ret_type=None
    )
    run = cast(Runner, create_executor("vm", typed.with_functions(plain)).evaluate())
    arguments = {p.name_hint: data[p.name_hint] for p in main.params if p.name_hint in data}
    values = iter(run(**arguments) if observed else ())
    by_function: dict[GlobalVar, Values] = {}
    for call in calls:
        assert isinstance(call.op, GlobalVar)
        inputs = [next(values) for _ in call.args]
        by_function[call.op] = {
            "inputs": inputs,
            "outputs": [next(values) for _ in _call_outputs(call)],
        }
    return by_function


def _strip_compiler(function: BaseFunc) -> Function:
    assert isinstance(function, Function)
    return function.without_attr("Compiler")


def _external_calls(main: Function, external: set[GlobalVar]) -> list[Call]:
    calls = [e for e in post_order(main) if isinstance(e, Call) and e.op in external]
    inside = [e for e in post_order(main, True) if isinstance(e, Call) and e.op in external]
    once = {c.op for c in calls}
    if len(once) < len(inside):
        raise CompileError("get_calibration_data: expected each function to be called once in main")
    return calls


def _call_outputs(call: Call) -> list[Call | TupleGetItem]:
    kind = call.checked_type
    if not isinstance(kind, TupleType):
        return [call]
    return [TupleGetItem(call, i) for i in range(len(kind.fields))]


__all__ = ["get_calibration_data"]
