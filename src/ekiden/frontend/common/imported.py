"""What an importer gives: a module, and what its user must be told of it.

Names, sequences and the rest travel as attributes of the IRModule, so that passes and users handle
one thing; this is their one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr
from ekiden.relay.transform.language.remove_unused_functions import ENTRIES_ATTRIBUTE
from ekiden.runtime.lazy_dataclass import dataclass

INITIAL = "initial_state"
"""The function that gives what is kept between runs before the first: one value, or a tuple."""


@dataclass(frozen=True, slots=True)
class ImportedModule:
    """A module whose `main` computes the model. All fields but `module` are its attributes."""

    module: IRModule
    input_names: tuple[str, ...] = ()
    """The model's own names of the parameters of main, in order."""
    output_names: tuple[str, ...] = ()
    constraints: tuple[tuple[PrimExpr, str], ...] | None = None
    """(condition on the symbolic dimensions, node that needs it), which every run must meet; None
    where the driver is to find them.
    """
    tensors: tuple[tuple[str, str, int], ...] = ()
    """(tensor of the model, node that makes it, which of its outputs it is)."""
    sequences: bool = False
    """Whether lists of tensors among inputs and outputs are lists of Python at run time."""
    texts: tuple[str, ...] = ()
    """The inputs and outputs that are strings, as bytes (ekiden.runtime.text)."""
    maps: tuple[tuple[str, tuple[int | str, ...]], ...] = ()
    """Outputs whose rows are dictionaries, each with its columns."""
    weight_files: tuple[str, ...] = ()
    """The names of the files beside the model's that weights were read from."""
    states: tuple[str, ...] = ()
    """The names of what is kept between runs: the last inputs of main are its values before a run,
    the last outputs those after it, and a function INITIAL of the module gives the first ones.
    """
    owns_results: bool = False
    """Whether every result has memory of its own, as what its user writes into one must not be seen
    by inputs, constants, states and other results.
    """
    params: Mapping[str, Array] = field(default_factory=dict)
    """Weights that are parameters of main, by name: they stand behind its other inputs."""

    def as_module(self) -> IRModule:
        """The module with all of this as its attributes."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "module"}
        stated = {k: v for k, v in found.items() if v is not None and v not in ((), {}, False)}
        if self.constraints is not None:
            stated["constraints"] = self.constraints
        if self.states:
            stated[ENTRIES_ATTRIBUTE] = (INITIAL,)
        attrs = {**self.module.attrs, **stated}
        return IRModule(dict(self.module.functions.items()), self.module.type_definitions, attrs)

    @staticmethod
    def of(module: IRModule) -> ImportedModule:
        """What the attributes of a module say; nothing, of one that no importer made."""
        given: dict[str, Any] = dict(module.attrs)
        names = [f.name for f in fields(ImportedModule) if f.name != "module"]
        return ImportedModule(module, **{n: given[n] for n in names if n in given})
