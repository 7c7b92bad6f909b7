"""What a model contains and which of it can be imported, in the words of all frontends."""

from __future__ import annotations

from ekiden.runtime.lazy_dataclass import dataclass

Dim = int | str


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: its name, element type ("sequence" and the like where it is no tensor)
    and shape; None where the model says nothing of its shape.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        """`x: float32[n, 3]`"""
        return (
            self.name
            + f": {self.dtype}"
            + ("" if self.shape is None else f"[{', '.join(map(str, self.shape))}]")
        )


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the model and how many nodes call it. how: "kernel" for one that has a
    converter, "function" for one that is expanded by its definition, "none".
    """

    domain: str
    name: str
    count: int
    how: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A node that cannot be imported."""

    node: str
    domain: str
    operator: str
    opset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Survey:
    """What a model contains."""

    label: str
    opsets: dict[str, int]
    operators: tuple[Operator, ...]
    problems: tuple[Problem, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    parameters: int
    parameter_bytes: int

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of symbolic dimensions of the inputs, in order."""
        dims = [d for port in self.inputs for d in port.shape or () if isinstance(d, str)]
        return tuple(dict.fromkeys(dims))
