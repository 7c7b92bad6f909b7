"""`relay.frontend.from_jax`, in the style of TVM's importers."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.jax.entry import import_model
from ekiden.frontend.registry import frontend_by_name
from ekiden.ir.module import IRModule
from ekiden.relay import printer  # noqa: F401 - so that the functions of a module print as text
from ekiden.runtime import Tensor


def from_jax(
    function: object, example_inputs: Sequence[object] | None = None, dynamic_shapes: object = None
) -> tuple[IRModule, dict[str, Tensor]]:
    """Import a JAX function as a module and its (empty) parameters.

    Weights are constants of the module where the function closes over them, else inputs.

    Args:
        function: a function with example inputs, a program of jax.export, or the path or bytes of
            one.
        example_inputs: the arguments that it is traced with.
        dynamic_shapes: as jax.export.symbolic_args_specs expects them.

    Returns:
        The module, and no parameters.
    """
    frontend_by_name("jax").check_model(function, "from_jax")
    options = ImportOptions(example_inputs=example_inputs, dynamic_shapes=dynamic_shapes)
    return import_model(function, options).to_module(), {}
