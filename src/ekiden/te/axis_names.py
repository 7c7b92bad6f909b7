"""Names of a computation's axes: the parameters of the function that computes an element."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType


def _positional_parameters(function: Callable[..., object]) -> tuple[list[str], bool]:
    """Return the names of the parameters without a default, and whether there is a *args. Of a
    plain function the code object tells it, in a tenth of the time of a signature.
    """
    if isinstance(function, FunctionType) and not function.__dict__:
        code, defaults = function.__code__, len(function.__defaults__ or ())
        if not code.co_kwonlyargcount and not code.co_flags & inspect.CO_VARKEYWORDS:
            names = code.co_varnames[: code.co_argcount - defaults]
            return list(names), bool(code.co_flags & inspect.CO_VARARGS)
    signature_params = inspect.signature(function).parameters.values()
    parameters = [p for p in signature_params if p.default is p.empty]
    fixed = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    return fixed, len(fixed) != len(parameters)


def axis_names(fcompute: Callable[..., object], rank: int) -> tuple[list[str], int]:
    """Return names of all axes, and how many of the last ones the function does not take. Raises
    ValueError for a function of more indices.
    """
    fixed, is_open = _positional_parameters(fcompute)
    if len(fixed) > rank:
        raise ValueError(rank_mismatch_message(rank, len(fixed)))
    missing = rank - len(fixed)
    return fixed + [f"i{n}" for n in range(missing)], 0 if is_open else missing


def rank_mismatch_message(rank: int, actual: int) -> str:
    """Return the message for a function of another number of indices than axes."""
    return f"compute: expected a function of {rank} indices, got one of {actual}"
