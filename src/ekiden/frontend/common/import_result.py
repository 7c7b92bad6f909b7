"""Result of an import: a Relay module and its metadata.

Names, sequences and the rest travel as attributes of the IRModule, so that passes and users handle
one thing; this is their one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from ekiden.frontend.common.spans import drop_spans
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.pass_context import FILL_SPAN_OPTION, PassContext
from ekiden.ir.prim import PrimExpr
from ekiden.relay.transform.language.remove_unused_functions import (
    ENTRY_FUNCTIONS_ATTR,
    declared_entries,
)
from ekiden.runtime.lazy_dataclass import dataclass

INITIAL_STATE_FUNCTION = "initial_state"
"""Function that returns the initial states of the first run: one value, or a tuple."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Relay module whose `main` computes the model, with its metadata. All fields but `module` are
    its attributes.
    """

    module: IRModule
    input_names: tuple[str, ...] = ()
    """The model's names of the parameters of main, in order."""
    output_names: tuple[str, ...] = ()
    constraints: tuple[tuple[PrimExpr, str], ...] | None = None
    """(condition on the symbolic dimensions, node that requires it), checked at every run; None if
    the compiler is to derive them.
    """
    tensors: tuple[tuple[str, str, int], ...] = ()
    """(tensor name, producing node, index among the node's outputs)."""
    sequences: bool = False
    """Whether inputs and outputs that are lists of tensors are Python lists at run time."""
    texts: tuple[str, ...] = ()
    """Names of inputs and outputs of strings, stored as bytes (ekiden.runtime.string_tensors)."""
    maps: tuple[tuple[str, tuple[int | str, ...]], ...] = ()
    """(output, keys): outputs whose rows are dictionaries."""
    weight_files: tuple[str, ...] = ()
    """Names of the external weight files, relative to the model's folder."""
    states: tuple[str, ...] = ()
    """Names of the states between runs: the last inputs of main are their values before a run, the
    last outputs those after it; the function INITIAL_STATE_FUNCTION returns the first ones.
    """
    owns_results: bool = False
    """Whether every result has its own memory, so that writing to it changes neither inputs,
    constants and states nor other results.
    """
    params: Mapping[str, Array] = field(default_factory=dict)
    """Weights that are parameters of main, by name, after its other inputs."""

    def to_module(self) -> IRModule:
        """Return the module with all metadata as module attributes."""
        metadata = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "module"}
        attributes = {
            k: v for k, v in metadata.items() if v is not None and v not in ((), {}, False)
        }
        if self.constraints is not None:
            attributes["constraints"] = self.constraints
        if self.states:
            entries = dict.fromkeys((*declared_entries(self.module), INITIAL_STATE_FUNCTION))
            attributes[ENTRY_FUNCTIONS_ATTR] = tuple(entries)
        attrs = {**self.module.attrs, **attributes}
        functions: dict[GlobalVar | str, BaseFunc] = dict(self.module.functions.items())
        if not PassContext.current().option(FILL_SPAN_OPTION):
            functions = dict(drop_spans(self.module.functions).items())
        return IRModule(functions, self.module.type_definitions, attrs)

    @staticmethod
    def from_module(module: IRModule) -> ImportResult:
        """Read the metadata from a module's attributes; empty for modules that no importer
        created.
        """
        attributes: dict[str, Any] = dict(module.attrs)
        names = [f.name for f in fields(ImportResult) if f.name != "module"]
        return ImportResult(module, **{n: attributes[n] for n in names if n in attributes})
