"""Binding of parameters to constants, under TVM's module name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ekiden._lazy import attach
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import PassContext, PassInstrument
from ekiden.relay.expr import Constant, Function, Var, const
from ekiden.relay.visitor import bind
from ekiden.runtime.errors import CompileError


def bind_params_by_name(func: Function, params: Mapping[str, object]) -> Function:
    """Bind named parameters of a function to constants.

    Raises:
        CompileError: Two parameters have one of the names.
    """
    by_name: dict[str, Var] = {}
    for param in func.params:
        # Binding both would be a guess at which of them is meant.
        if param.name_hint in params and param.name_hint in by_name:
            raise CompileError(f"bind: two parameters are named {param.name_hint!r}")
        by_name[param.name_hint] = param
    values = {by_name[n]: _to_constant(v) for n, v in params.items() if n in by_name}
    bound = bind(func, values)
    assert isinstance(bound, Function)
    return bound


def _to_constant(value: object) -> Constant:
    return value if isinstance(value, Constant) else const(value)


def bind_params_in_module(mod: IRModule, params: Mapping[str, object]) -> IRModule:
    """Bind named parameters of a module's `main` to constants."""
    main = mod["main"]
    assert isinstance(main, Function)
    return mod.with_function("main", bind_params_by_name(main, params))


def build_config(
    opt_level: int = 2,
    required_pass: Iterable[str] | None = None,
    disabled_pass: Iterable[str] | None = None,
    instruments: Iterable[PassInstrument] | None = None,
) -> PassContext:
    """Return a PassContext, by the name used before TVM 0.8."""
    return PassContext(opt_level, required_pass, disabled_pass, instruments)


__getattr__, __dir__ = attach(
    __name__,
    {
        "ekiden.relay.backend.build": "build optimize",
        "ekiden.relay.backend.executors": "create_executor",
    },
)  # what compiles stands on a higher floor


__all__ = ["bind_params_by_name", "bind_params_in_module", "build_config"]
