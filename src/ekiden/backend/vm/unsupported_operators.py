"""Detection of operators without device code, whose type or instruction the device language lacks.

Whoever compiles for the host beside a default device has these run on the host (PlanDevices) rather
than be an error. Each operator is lowered and printed alone, once for each of its forms.
"""

from __future__ import annotations

from ekiden.backend.kernels.canonical_form import canonicalize
from ekiden.backend.kernels.lower import lower_primitive
from ekiden.codegen import device
from ekiden.codegen.cache import kernel_key
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.fusion.fuse_ops import single_operator_function
from ekiden.runtime.errors import CompileError
from ekiden.target import CompilationConfig, Target

__all__ = ["UnsupportedOperators", "unsupported_on_device"]


class UnsupportedOperators:
    """Predicate of operator calls for which a target has no code."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._is_unsupported_cache: dict[str, bool] = {}

    def __call__(self, call: Call) -> bool:
        """Return whether the target does not support code for an operator call."""
        form = canonicalize(single_operator_function(call))
        key = kernel_key(form, self._target, "")
        if key not in self._is_unsupported_cache:
            self._is_unsupported_cache[key] = self._is_unsupported(form)
        return self._is_unsupported_cache[key]

    def _is_unsupported(self, form: Function) -> bool:
        try:
            device.split_host_and_device(lower_primitive(form, "alone", self._target), self._target)
        except CompileError:
            return True
        return False


def unsupported_on_device(config: CompilationConfig | None) -> UnsupportedOperators | None:
    """Return the operators that the default device of a compilation does not support; None if the
    default is the host, or the host is not among its devices.
    """
    if config is None or not any(virtual_device.is_host for virtual_device in config.devices):
        return None
    target = config.layout_target
    return None if target is None else UnsupportedOperators(target)
