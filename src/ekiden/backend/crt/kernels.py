"""Compilation of a module's kernels to C, once per distinct fused function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from ekiden.backend.crt.micro_module import KernelParameter, MicroKernel
from ekiden.backend.external import is_external_function
from ekiden.backend.kernels.canonical_form import canonicalize
from ekiden.backend.kernels.kernel_facts import kernel_facts
from ekiden.backend.kernels.lower import describe_kernel_name, display_name, lower_primitive
from ekiden.codegen.c.freestanding import emit_freestanding, remove_prefetches
from ekiden.codegen.c.helpers import HelperFunctions
from ekiden.codegen.cache import kernel_key
from ekiden.ir.expr import RelayExpr
from ekiden.ir.name_uniquer import NameUniquer
from ekiden.ir.pass_context import DEBUG_LEVEL, notify_product, time_phase
from ekiden.kernels.families import override_options
from ekiden.relay.expr import Function
from ekiden.relay.transform.memory_plan import KernelMemoryInfo
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.tir.transform.narrow_data_type import narrow_data_type

MAX_KERNEL_NAME_CHARS = 60
"""Maximum length of the descriptive part of a kernel's name."""


@dataclass(slots=True)
class MicroKernels:
    """Kernels of a target, compiled on demand; their names begin with `prefix`."""

    target: Target
    prefix: str
    helpers: HelperFunctions = field(init=False)
    kernel_by_key: dict[str, MicroKernel] = field(default_factory=dict)
    """Compiled kernels by the key of their canonical function."""
    facts: dict[RelayExpr, KernelMemoryInfo] = field(default_factory=dict)
    _facts: dict[str, KernelMemoryInfo] = field(default_factory=dict)
    _names: NameUniquer = field(default_factory=NameUniquer)

    def __post_init__(self) -> None:
        """Initialise with the math functions of the target."""
        self.helpers = HelperFunctions(self.target)

    def kernel(self, function: Function) -> MicroKernel:
        """Return the kernel of a fused function. Raises CompileError, with the function's source
        node, for one that needs the runtime.
        """
        if is_external_function(function):
            raise CompileError(
                f"compile: {describe_kernel_name(function, 'the region')} needs the runtime"
            )
        form = canonicalize(function)
        key = kernel_key(form, self.target, "")
        if key not in self.kernel_by_key:
            self.kernel_by_key[key], self._facts[key] = self._get_or_compile(form, function)
        self.facts[function] = self._facts[key]
        return self.kernel_by_key[key]

    def _get_or_compile(
        self, form: Function, function: Function
    ) -> tuple[MicroKernel, KernelMemoryInfo]:
        name = self._unique_name(display_name(form))
        with time_phase(f"kernel: {name}", DEBUG_LEVEL):
            return self._compile_kernel(form, function, name)

    def _compile_kernel(
        self, form: Function, function: Function, name: str
    ) -> tuple[MicroKernel, KernelMemoryInfo]:
        try:
            func = lower_primitive(form, name, self.target, override_options())
            func = func.with_fields(attrs={**(func.attrs or {}), "tir.noalias": True})
            lowered = narrow_data_type(remove_prefetches(lower(func, self.target)))
            bare = emit_freestanding(lowered, name, self.helpers)
            notify_product("code.c", "the code as C", lambda: bare.text)
        except Exception as error:
            if not getattr(error, "__notes__", None):
                error.add_note(f"while compiling {describe_kernel_name(function, name)}")
            raise
        parameters = tuple(KernelParameter(*row) for row in bare.parameters)
        kernel = MicroKernel(name, parameters, bare.text, bare.workspace_bytes)
        return kernel, kernel_facts(lowered, self.target)

    def _unique_name(self, hint: str) -> str:
        base = f"{self.prefix}_{hint[:MAX_KERNEL_NAME_CHARS].rstrip('_')}"
        return self._names.fresh(base)

    def in_place_inputs(self, function: RelayExpr) -> Sequence[int]:
        """Return the inputs whose memory the output of a kernel may reuse."""
        facts = self.facts.get(function)
        return () if facts is None else facts.in_place


def c_identifier(text: str) -> str:
    """Return a model's name as a C identifier."""
    clean = re.sub(r"[^A-Za-z0-9_]", "_", text) or "_"
    return f"_{clean}" if clean[0].isdigit() else clean


__all__ = ["MicroKernels", "c_identifier"]
