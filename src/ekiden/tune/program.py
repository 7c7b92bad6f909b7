"""What a task computes, as it travels: a fused function, or a loop program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ekiden import tir
from ekiden.arith import simplify
from ekiden.backend.kernels.lower import lower_primitive
from ekiden.codegen.build import compile_function
from ekiden.codegen.llvm import link
from ekiden.ir.json import load_json, save_json
from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.kernels.decision import Decision
from ekiden.kernels.families import FAMILIES
from ekiden.relay.expr import Function
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.runtime.artifact.device_code import pack_kernels
from ekiden.runtime.errors import CompileError, ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.schedule.trace import Trace
from ekiden.tir.stmt import PrimFunc
from ekiden.tune.candidate import Candidate
from ekiden.tune.code import joined

NAME = "candidate"
"""Of the function of every candidate's code."""
DEFAULT = "default"
"""The rule of a loop program that stays as it is written."""


@dataclass(frozen=True, slots=True)
class Built:
    """Code of a candidate, with the function NAME, and what the function takes."""

    code: bytes
    """As `code.load` takes it."""
    args: list[tuple[list[int], str]]
    """Shapes and dtypes, for each of the sizes asked for: inputs, then outputs."""
    outputs: int


@dataclass(frozen=True, slots=True)
class Source:
    """A fused function in canonical form, or a loop program; `untuned` is the program that
    candidates of a loop program are compared with, itself by default."""

    function: Function | PrimFunc
    untuned: PrimFunc | None = field(default=None, compare=False)

    def texts(self) -> tuple[bytes, ...]:
        """As JSON."""
        parts = [self.function] if self.untuned is None else [self.function, self.untuned]
        return tuple(save_json(p).encode() for p in parts)

    @staticmethod
    def read(texts: list[bytes]) -> Source:
        """What `texts` wrote."""
        found = [load_json(t.decode()) for t in texts]
        first, untuned = found[0], found[1] if len(found) > 1 else None
        if isinstance(first, Function):
            typed = InferType()(IRModule.from_expr(first))["main"]
            assert isinstance(typed, Function)
            first = typed
        assert isinstance(first, (Function, PrimFunc))
        assert untuned is None or isinstance(untuned, PrimFunc)
        return Source(first, untuned)

    def lower(self, candidate: Candidate, target: Target) -> PrimFunc:
        """The loops of a candidate. Raises CompileError or ScheduleError for one that cannot be."""
        if isinstance(self.function, Function):
            fixed = Decision.parse(candidate.choice)
            given = {candidate.rule: fixed} if fixed else {}
            if candidate.rule not in FAMILIES:
                raise CompileError(f"tune: no family of kernels is called '{candidate.rule}'")
            made = lower_primitive(self.function, NAME, target, given)
        else:
            made = self._scheduled(candidate)
        attrs = {**(made.attrs or {}), "global_symbol": NAME, "tir.noalias": True}
        return made.with_fields(attrs=attrs)

    def _scheduled(self, candidate: Candidate) -> PrimFunc:
        assert isinstance(self.function, PrimFunc)
        if candidate.rule == DEFAULT:
            return self.untuned or self.function
        schedule = tir.Schedule(self.function)
        Trace.from_json(candidate.choice).apply_to_schedule(schedule)
        return schedule.func


def build(
    source: Source, candidate: Candidate, target: Target, sizes: Sequence[Mapping[str, int]]
) -> Built:
    """The code of a candidate. Raises CompileError or ScheduleError for one that cannot be."""
    program = source.lower(candidate, target)
    code = compile_function(program, target)
    args = [shapes_of(program, each) for each in sizes]
    return Built(
        joined(
            link([code.object], [NAME], target.code_host),
            pack_kernels(list(code.kernels)) if code.kernels else b"",
        ),
        [a for each in args for a in each],
        outputs_of(program),
    )


def outputs_of(program: PrimFunc) -> int:
    """How many of its last buffers a program writes."""
    return int(str((program.attrs or {}).get("num_outputs", 1)))


def shapes_of(program: PrimFunc, sizes: Mapping[str, int]) -> list[tuple[list[int], str]]:
    """What a program takes where symbols have these sizes. Raises ScheduleError."""
    for number in program.scalars:
        raise ScheduleError(f"tune: {program.name!r} takes {number.name!r}, a number no size gives")
    return [
        ([_extent(dim, sizes) for dim in buffer.shape], buffer.dtype) for buffer in program.buffers
    ]


def _extent(dim: PrimExpr, sizes: Mapping[str, int]) -> int:
    values: dict[object, PrimExpr] = {}
    for var in free_vars(dim):
        if var.name not in sizes:
            raise ScheduleError(f"tune: the size of '{var.name}' is not known")
        values[var] = IntImm(sizes[var.name])
    found = substitute(dim, values) if values else dim  # type: ignore[arg-type]
    found = simplify(found)
    assert isinstance(found, IntImm), found
    return found.value


__all__ = ["DEFAULT", "NAME", "Built", "Source", "build", "outputs_of", "shapes_of"]
