"""Serialized source program of a task: a fused function, or a loop program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ekiden import tir
from ekiden.arith import simplify
from ekiden.backend.kernels.lower import lower_primitive
from ekiden.codegen.build import compile_function
from ekiden.codegen.llvm import link_image
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
from ekiden.tune.candidate_code import pack_code

CANDIDATE_KERNEL_NAME = "candidate"
"""Function name in every candidate's code."""
DEFAULT_RULE_NAME = "default"
"""Rule name of an unscheduled loop program."""


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """Built candidate: its code, whose function is CANDIDATE_KERNEL_NAME, with the arguments it
    takes.
    """

    code: bytes
    """Code as `load_candidate_code` accepts it."""
    args: list[tuple[list[int], str]]
    """Shapes and dtypes, for each of the sizes asked for: inputs, then outputs."""
    outputs: int


@dataclass(frozen=True, slots=True)
class TaskSource:
    """Source program of a task: a fused function in canonical form, or a loop program; `untuned` is
    the baseline program that candidates of a loop program are compared with, by default itself.
    """

    function: Function | PrimFunc
    untuned: PrimFunc | None = field(default=None, compare=False)

    def texts(self) -> tuple[bytes, ...]:
        """Return the programs as JSON."""
        programs = [self.function] if self.untuned is None else [self.function, self.untuned]
        return tuple(save_json(p).encode() for p in programs)

    @staticmethod
    def read(texts: list[bytes]) -> TaskSource:
        """Parse the output of `texts`."""
        programs = [load_json(t.decode()) for t in texts]
        first, untuned = programs[0], programs[1] if len(programs) > 1 else None
        if isinstance(first, Function):
            typed = InferType()(IRModule.from_expr(first))["main"]
            assert isinstance(typed, Function)
            first = typed
        assert isinstance(first, (Function, PrimFunc))
        assert untuned is None or isinstance(untuned, PrimFunc)
        return TaskSource(first, untuned)

    def lower(self, candidate: Candidate, target: Target) -> PrimFunc:
        """Return the loops of a candidate. Raises CompileError or ScheduleError for an
        invalid one.
        """
        if isinstance(self.function, Function):
            fixed = Decision.parse(candidate.choice)
            overrides = {candidate.rule: fixed} if fixed else {}
            if candidate.rule not in FAMILIES:
                raise CompileError(f"tune: no family of kernels is called '{candidate.rule}'")
            lowered = lower_primitive(self.function, CANDIDATE_KERNEL_NAME, target, overrides)
        else:
            lowered = self._schedule(candidate)
        attrs = {
            **(lowered.attrs or {}),
            "global_symbol": CANDIDATE_KERNEL_NAME,
            "tir.noalias": True,
        }
        return lowered.with_fields(attrs=attrs)

    def _schedule(self, candidate: Candidate) -> PrimFunc:
        assert isinstance(self.function, PrimFunc)
        if candidate.rule == DEFAULT_RULE_NAME:
            return self.untuned or self.function
        schedule = tir.Schedule(self.function)
        Trace.from_json(candidate.choice).apply_to_schedule(schedule)
        return schedule.func


def build_candidate(
    source: TaskSource, candidate: Candidate, target: Target, sizes: Sequence[Mapping[str, int]]
) -> BuiltProgram:
    """Compile a candidate. Raises CompileError or ScheduleError for an invalid one."""
    program = source.lower(candidate, target)
    code = compile_function(program, target)
    args = [argument_shapes(program, run_sizes) for run_sizes in sizes]
    return BuiltProgram(
        pack_code(
            link_image([code.object], [CANDIDATE_KERNEL_NAME], target.code_host),
            pack_kernels(list(code.kernels)) if code.kernels else b"",
        ),
        [a for run_sizes in args for a in run_sizes],
        num_outputs(program),
    )


def num_outputs(program: PrimFunc) -> int:
    """Return how many of its last buffers a program writes."""
    return int(str((program.attrs or {}).get("num_outputs", 1)))


def argument_shapes(program: PrimFunc, sizes: Mapping[str, int]) -> list[tuple[list[int], str]]:
    """Return the argument shapes and dtypes of a program for the given symbol sizes. Raises
    ScheduleError.
    """
    for number in program.scalars:
        raise ScheduleError(f"tune: {program.name!r} takes {number.name!r}, a number no size gives")
    return [
        ([_evaluate_dim(dim, sizes) for dim in buffer.shape], buffer.dtype)
        for buffer in program.buffers
    ]


def _evaluate_dim(dim: PrimExpr, sizes: Mapping[str, int]) -> int:
    """Evaluate a dimension. Raises ScheduleError for an unknown symbol."""
    values: dict[object, PrimExpr] = {}
    for var in free_vars(dim):
        if var.name not in sizes:
            raise ScheduleError(f"tune: the size of '{var.name}' is not known")
        values[var] = IntImm(sizes[var.name])
    value = substitute(dim, values) if values else dim  # type: ignore[arg-type]
    value = simplify(value)
    assert isinstance(value, IntImm), value
    return value.value


__all__ = [
    "CANDIDATE_KERNEL_NAME",
    "DEFAULT_RULE_NAME",
    "BuiltProgram",
    "TaskSource",
    "argument_shapes",
    "build_candidate",
    "num_outputs",
]
