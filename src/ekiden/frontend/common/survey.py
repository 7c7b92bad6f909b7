"""Survey of a model: its operators, inputs, outputs and unsupported nodes, in one form for all
frontends.
"""

from __future__ import annotations

from ekiden.runtime.lazy_dataclass import dataclass

Dim = int | str


@dataclass(frozen=True, slots=True)
class Port:
    """Input or output of a model: name, element type and shape; a non-tensor's dtype is a word such
    as "sequence".

    The shape is None where the model states none.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        """Format the port as `x: float32[n, 3]`."""
        return (
            self.name
            + f": {self.dtype}"
            + ("" if self.shape is None else f"[{', '.join(map(str, self.shape))}]")
        )


@dataclass(frozen=True, slots=True)
class Operator:
    """Operator of a model with the number of its nodes and how it is imported.

    implementation_kind: "kernel" for one that has a converter, "function" for one that is expanded
    by its definition, "none".
    """

    domain: str
    name: str
    count: int
    implementation_kind: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Node of a model that cannot be imported, and why."""

    node: str
    domain: str
    operator: str
    opset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Survey:
    """Import survey of a model, its operators, inputs, outputs and parameters."""

    label: str
    opsets: dict[str, int]
    operators: tuple[Operator, ...]
    problems: tuple[Problem, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    parameters: int
    parameter_bytes: int

    @property
    def symbolic_dims(self) -> tuple[str, ...]:
        """Return the names of the inputs' symbolic dimensions, in order."""
        dims = [d for port in self.inputs for d in port.shape or () if isinstance(d, str)]
        return tuple(dict.fromkeys(dims))
