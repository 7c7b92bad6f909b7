"""What goes into the functions that external compilers take, and what comes out, for some data."""

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
    """For each function that `main` calls and that has a `Compiler`, its arguments, "inputs", and
    its results, "outputs", in order; `data` gives the parameters of `main` by name. Every such
    function is compiled as if it were Ekiden's own.

    Raises CompileError where one is called twice, or in a branch or function inside of `main`.
    """
    typed = InferType()(mod)
    main = typed["main"]
    assert isinstance(main, Function)
    taken = {
        name
        for name, f in typed.functions.items()
        if isinstance(f, Function) and f.attr("Compiler") is not None
    }
    calls = _calls(main, taken)
    kept = [part for call in calls for part in (*call.args, *_results(call))]
    plain: dict[GlobalVar, BaseFunc] = {**typed.functions, **{n: _own(typed[n]) for n in taken}}
    plain[typed.get_global_var("main")] = main.with_fields(body=Tuple(tuple(kept)), ret_type=None)
    whole = cast(Runner, create_executor("vm", typed.with_functions(plain)).evaluate())
    given = {p.name_hint: data[p.name_hint] for p in main.params if p.name_hint in data}
    values = iter(whole(**given) if kept else ())
    found: dict[GlobalVar, Values] = {}
    for call in calls:
        assert isinstance(call.op, GlobalVar)
        inputs = [next(values) for _ in call.args]
        found[call.op] = {"inputs": inputs, "outputs": [next(values) for _ in _results(call)]}
    return found


def _own(function: BaseFunc) -> Function:
    assert isinstance(function, Function)
    return function.without_attr("Compiler")


def _calls(main: Function, taken: set[GlobalVar]) -> list[Call]:
    calls = [e for e in post_order(main) if isinstance(e, Call) and e.op in taken]
    inside = [e for e in post_order(main, True) if isinstance(e, Call) and e.op in taken]
    once = {c.op for c in calls}
    if len(once) < len(inside):
        raise CompileError("get_calibration_data: expected each function to be called once in main")
    return calls


def _results(call: Call) -> list[Call | TupleGetItem]:
    kind = call.checked_type
    if not isinstance(kind, TupleType):
        return [call]
    return [TupleGetItem(call, i) for i in range(len(kind.fields))]


__all__ = ["get_calibration_data"]
