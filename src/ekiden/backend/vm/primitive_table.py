"""Numbering of the primitives that `InvokePacked` calls: kernels and host functions.

A primitive is a name on a device, as one function may have a kernel for each of several devices:

    fused_add on the host, fused_add on the GPU, shape_func_main on any   ->   0, 1, 2

They stand in the order in which the module calls them, then what makes constants at loading, then
what looks at shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.backend.vm.module_kernels import ModuleKernels
from ekiden.ir.module import IRModule
from ekiden.relay.expr import Function
from ekiden.relay.transform.devices.device_domains import reads_only_shapes

__all__ = ["ANY_DEVICE_INDEX", "HOST_DEVICE_INDEX", "PrimitiveTable"]

HOST_DEVICE_INDEX = 0
"""Device index of the host."""
ANY_DEVICE_INDEX = -1
"""Device index of primitives that read only shapes or host values."""


class PrimitiveTable:
    """Table of the primitives of a module with compiled kernels; `anywhere` are the names of those
    without a device.
    """

    def __init__(
        self, module: IRModule, module_kernels: ModuleKernels, anywhere: Iterable[str]
    ) -> None:
        names = module_kernels.kernels.names
        self._module, self._made = module, module_kernels
        self._kernel_names = dict(zip(module_kernels.functions, names, strict=True))
        names_by_function = {
            f: name for (f, _), name in zip(module_kernels.functions, names, strict=True)
        }
        self._external_names = {**names_by_function, **module_kernels.symbols}
        called = [
            (self._kernel_name(f, device), _kernel_device(f, device))
            for f, device in module_kernels.calls
        ]
        called += [
            (self._external_names[f], HOST_DEVICE_INDEX)
            for f in module_kernels.load_time_functions.values()
        ]
        called += [(name, ANY_DEVICE_INDEX) for name in anywhere]
        self._numbers = {primitive: index for index, primitive in enumerate(dict.fromkeys(called))}

    def _kernel_name(self, f: Function, device: int) -> str:
        """Return the name of a function's kernel on a device; external code has one for all."""
        return self._kernel_names.get(
            (f, self._made.target_of(self._module, device)), self._external_names[f]
        )

    @property
    def names(self) -> list[str]:
        """Return the names of the primitives, in order."""
        return [name for name, _ in self._numbers]

    @property
    def devices(self) -> tuple[int, ...]:
        """Return the device of each primitive, in order."""
        return tuple(device for _, device in self._numbers)

    def kernel_number(self, f: Function, device: int) -> int:
        """Return the number of a function's kernel on a device."""
        return self._numbers[self._kernel_name(f, device), _kernel_device(f, device)]

    def load_time_number(self, f: Function) -> int:
        """Return the number of the primitive that computes a constant at load time, on the host."""
        return self._numbers[self._external_names[f], HOST_DEVICE_INDEX]

    def device_free_number(self, name: str) -> int:
        """Return the number of a primitive without a device."""
        return self._numbers[name, ANY_DEVICE_INDEX]


def _kernel_device(f: Function, device: int) -> int:
    """Return the device that a kernel's arguments must be on."""
    return ANY_DEVICE_INDEX if reads_only_shapes(f) else device
