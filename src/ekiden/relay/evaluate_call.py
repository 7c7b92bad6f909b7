"""Reference evaluation of operators, for the interpreter and constant folding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.op import OPS, Array, Op
from ekiden.relay.op._interpreter_fallback import InterpretedReference
from ekiden.runtime.errors import EkidenError, RunError
from ekiden.tir.interpreter_limits import StepBudget


def evaluate_call(
    op: Op | str,
    attrs: Attrs | None,
    arrays: Sequence[object],
    budget: StepBudget | None = None,
) -> Array | tuple[Array, ...]:
    """Evaluate an operator on NumPy arrays by its reference semantics.

    Args:
        op: The operator, or its name.
        attrs: Its attributes.
        arrays: Its arguments; a tuple argument is a tuple of arrays.
        budget: What a loop program may take that is interpreted; None for no limit.

    Raises:
        RunError: The operator has no reference semantics, or the shapes of the arrays do not fit.
        StepLimitError: The budget is too small.
    """
    name = op if isinstance(op, str) else op.name
    reference = OPS[name].reference
    if reference is None:
        raise RunError(
            f"{name}: the operator has no reference semantics, so it cannot be interpreted"
        )
    # A variadic operator gets its tuple as one value; references take the fields.
    if OPS[name].variadic and len(arrays) == 1 and isinstance(arrays[0], tuple):
        arrays = arrays[0]
    try:
        if budget is not None and isinstance(reference, InterpretedReference):
            result = reference.run_within_budget(budget, attrs, *arrays)
        else:
            result = reference(attrs, *arrays)
    except EkidenError:
        raise
    # NumPy's words where sizes that types leave open do not fit; a compiled program checks them.
    except (ValueError, IndexError) as error:
        raise RunError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from error
    return (
        tuple(map(np.asarray, result)) if isinstance(result, (tuple, list)) else np.asarray(result)
    )
