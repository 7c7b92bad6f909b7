"""C interfaces of a MicroModule: that of `main`, and one for each entry point beside it."""

from __future__ import annotations

from ekiden.backend.crt.emit_routines import ENTRY_POINT_NAME
from ekiden.backend.crt.kernels import c_identifier
from ekiden.backend.crt.micro_module import MicroModule, MicroTensor
from ekiden.ir.name_uniquer import NameUniquer
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Interface:
    """Interface of a function that C may call."""

    name: str
    """What its C names have after `ekiden_` and `tvmgen_`: MODEL, or MODEL_ENTRY."""
    label: str
    """Name in its table."""
    inputs: tuple[MicroTensor, ...]
    outputs: tuple[MicroTensor, ...]
    run: str
    """Static C function over arrays of addresses that runs it."""

    @property
    def prefix(self) -> str:
        """Return what its structures and its function begin with."""
        return f"tvmgen_{self.name}"


def interfaces_of(module: MicroModule) -> list[Interface]:
    """Return the interface of `main`, then those of the other entry points, in their order."""
    name, uniquer = c_identifier(module.name), NameUniquer()
    interfaces = [Interface(name, module.name, module.inputs, module.outputs, ENTRY_POINT_NAME)]
    for entry in module.entry_points:
        suffix = uniquer.fresh(c_identifier(entry.name))
        interfaces.append(
            Interface(
                f"{name}_{suffix}",
                f"{module.name}.{entry.name}",
                entry.inputs,
                entry.outputs,
                f"enter_{suffix}",
            )
        )
    return interfaces


__all__ = ["Interface", "interfaces_of"]
