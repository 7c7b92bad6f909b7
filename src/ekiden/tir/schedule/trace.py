"""Traces: the primitives of a schedule as data, which can be replayed, printed as Python and saved
as JSON.

    Instruction   what was done: kind, inputs (handles and numbers), attributes, outputs (handles)
    Trace         instructions in order, and the decision of each that samples

A handle is a random variable, as in TVM: on replay it stands for the output of the instruction that
defines it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol, TypeAlias

from ekiden.ir.json import load_json, save_json
from ekiden.ir.prim import IntImm, PrimExpr, Var
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.profile.html import PYTHON_TOKENS, colour_tokens, program_html
from ekiden.tir.index_map import IndexMap, format_index_expr, format_index_map


class BlockRV:
    """A handle of a block of the program being scheduled."""

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return f"BlockRV({id(self):#x})"


class LoopRV:
    """A handle of a loop of the program being scheduled."""

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return f"LoopRV({id(self):#x})"


class ExprRV(Var):
    """A sampled number: an integer expression whose value the schedule knows (`Schedule.get`)."""

    __slots__ = ()


Handle: TypeAlias = BlockRV | LoopRV | ExprRV
Input: TypeAlias = object
"""Input of an instruction: a handle, an expression of ExprRVs, an int, None, or a list of those."""


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One recorded primitive of a schedule."""

    kind: str
    inputs: tuple[Input, ...]
    attrs: Mapping[str, object]
    outputs: tuple[Handle, ...]


QUERY_KINDS = frozenset(
    {
        "get_block",
        "get_loops",
        "get_child_blocks",
        "get_producers",
        "get_consumers",
        "get_output_blocks",
    }
)
"""Instruction kinds that do not change the program."""
SAMPLING_KINDS = frozenset(
    {
        "sample_perfect_tile",
        "sample_partitioned_tile",
        "sample_categorical",
        "sample_compute_location",
    }
)
"""Instruction kinds that make a random decision."""
SINGLE_OUTPUT_KINDS = frozenset(
    {
        "get_block",
        "fuse",
        "add_unit_loop",
        "cache_read",
        "cache_write",
        "reindex",
        "reindex_cache_read",
        "reindex_cache_write",
        "read_at",
        "write_at",
        "decompose_padding",
        "merge",
        "decompose_reduction",
        "rfactor",
        "blockize",
        "sample_categorical",
        "sample_compute_location",
    }
)
"""Instruction kinds that return one handle instead of a list."""


class ReplayTarget(Protocol):
    """The interface that a trace is replayed on: a Schedule."""

    def replay(
        self,
        instruction: Instruction,
        inputs: Sequence[Input],
        attrs: Mapping[str, object],
        decision: object,
    ) -> Sequence[Handle]:
        """Apply an instruction with the target's own handles; return its outputs."""


def map_handles(value: Input, change: Callable[[Handle], Input]) -> Input:
    """Return an input with its handles replaced."""
    if isinstance(value, (BlockRV, LoopRV, ExprRV)):
        return change(value)
    if isinstance(value, PrimExpr):
        values: dict[Var, PrimExpr] = {}
        for v in free_vars(value):
            if isinstance(v, ExprRV):
                new = change(v)
                values[v] = new if isinstance(new, PrimExpr) else IntImm(int(new))  # type: ignore[call-overload]
        return substitute(value, values)
    if isinstance(value, (list, tuple)):
        return [map_handles(v, change) for v in value]
    return value


def iter_handles(value: Input) -> Iterable[Handle]:
    """Yield the handles in an input."""
    if isinstance(value, (BlockRV, LoopRV, ExprRV)):
        yield value
    elif isinstance(value, PrimExpr):
        yield from (v for v in free_vars(value) if isinstance(v, ExprRV))
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from iter_handles(element)


@dataclass(slots=True)
class Trace:
    """The recorded primitives of a schedule, with the decisions of those that sample."""

    insts: list[Instruction] = field(default_factory=list)
    decisions: dict[Instruction, object] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.insts)

    def append(self, inst: Instruction, decision: object = None) -> None:
        """Append an instruction."""
        self.insts.append(inst)
        if decision is not None:
            self.decisions[inst] = decision

    def pop(self) -> Instruction | None:
        """Remove and return the last instruction."""
        if not self.insts:
            return None
        inst = self.insts.pop()
        self.decisions.pop(inst, None)
        return inst

    def get_decision(self, inst: Instruction) -> object:
        """Return the decision of a sampling instruction; None for others."""
        return self.decisions.get(inst)

    def copy(self) -> Trace:
        """Return an independent copy."""
        return Trace(list(self.insts), dict(self.decisions))

    def with_decision(
        self, inst: Instruction, decision: object, remove_postproc: bool = True
    ) -> Trace:
        """Return the trace with another decision for one of its sampling instructions.

        Raises ScheduleError for an instruction that does not sample or is not in the trace.
        """
        del remove_postproc
        if inst not in self.insts:
            raise ScheduleError(f"with_decision: the step {inst.kind!r} is not of this trace")
        if inst.kind not in SAMPLING_KINDS:
            raise ScheduleError(f"with_decision: the step {inst.kind!r} decides nothing")
        return Trace(list(self.insts), {**self.decisions, inst: decision})

    def simplified(self, remove_postproc: bool = True) -> Trace:
        """Return the trace without dead instructions: queries and samples whose outputs nothing
        uses.
        """
        del remove_postproc
        used: set[Handle] = set()
        live: list[Instruction] = []
        # Backwards, as in liveness analysis: all uses of an output have been seen before its
        # definition.
        for inst in reversed(self.insts):
            pure = inst.kind in QUERY_KINDS or inst.kind in SAMPLING_KINDS
            if pure and used.isdisjoint(inst.outputs):
                continue
            live.append(inst)
            for operand in (*inst.inputs, *inst.attrs.values()):
                used.update(iter_handles(operand))
        live.reverse()
        return Trace(live, {i: self.decisions[i] for i in live if i in self.decisions})

    def apply_to_schedule(
        self,
        sch: ReplayTarget,
        remove_postproc: bool = True,
        decision_provider: Callable[
            [Instruction, list[Input], Mapping[str, object], object], object
        ]
        | None = None,
    ) -> None:
        """Replay the instructions on a schedule of the same program or another.

        `decision_provider(inst, inputs, attrs, decision)` may return other decisions. Raises
        ScheduleError where a primitive is refused there.
        """
        del remove_postproc
        handle_map: dict[Handle, Handle] = {}
        for inst in self.insts:
            inputs = [map_handles(v, lambda h: handle_map.get(h, h)) for v in inst.inputs]
            attrs = {
                k: map_handles(v, lambda h: handle_map.get(h, h)) for k, v in inst.attrs.items()
            }
            decision = self.decisions.get(inst)
            if decision_provider is not None and inst.kind in SAMPLING_KINDS:
                decision = decision_provider(inst, inputs, attrs, decision)
            handle_map.update(
                zip(inst.outputs, sch.replay(inst, inputs, attrs, decision), strict=False)
            )

    # Text.

    def _handle_names(self) -> dict[Handle, str]:
        names: dict[Handle, str] = {}
        for inst in self.insts:
            for output in inst.outputs:
                letter = (
                    "b"
                    if isinstance(output, BlockRV)
                    else "l"
                    if isinstance(output, LoopRV)
                    else "v"
                )
                names[output] = f"{letter}{len(names)}"
        return names

    def as_python(self, remove_postproc: bool = True) -> list[str]:
        """Return the instructions as lines of Python over a schedule `sch`."""
        del remove_postproc
        names = self._handle_names()
        return [self._format_instruction(inst, names) for inst in self.insts]

    def _format_instruction(self, inst: Instruction, names: Mapping[Handle, str]) -> str:
        arguments = [_to_python_literal(v, names) for v in inst.inputs]
        arguments += [f"{key}={_to_python_literal(v, names)}" for key, v in inst.attrs.items()]
        if inst in self.decisions:
            arguments.append(f"decision={_to_python_literal(self.decisions[inst], names)}")
        call = f"sch.{inst.kind}({', '.join(arguments)})"
        output_names = [names[h] for h in inst.outputs]
        if not output_names:
            return call
        if inst.kind in SINGLE_OUTPUT_KINDS:
            return f"{output_names[0]} = {call}"
        comma = "," if len(output_names) == 1 else ""  # a tuple of one
        return f"{', '.join(output_names)}{comma} = {call}"

    def __str__(self) -> str:
        lines = ["from ekiden import tir", "", "def apply_trace(sch: tir.Schedule) -> None:"]
        lines += [f"  {line}" for line in self.as_python()]
        return "\n".join(lines if self.insts else [*lines, "  pass"])

    def _repr_html_(self) -> str:
        return program_html(colour_tokens(str(self), PYTHON_TOKENS))

    def show(self) -> None:
        """Print the trace."""
        print(self)

    # JSON.

    def as_json(self, remove_postproc: bool = True) -> list[object]:
        """Return [[[kind, inputs, attrs, outputs], ...], [[step, decision], ...]] of plain JSON
        values.

        Handles are {"rv": name}; index maps and expressions are saved nodes.
        """
        del remove_postproc
        names = self._handle_names()
        insts = [
            [
                inst.kind,
                [_encode_json(v, names) for v in inst.inputs],
                {key: _encode_json(v, names) for key, v in inst.attrs.items()},
                [names[h] for h in inst.outputs],
            ]
            for inst in self.insts
        ]
        decisions = [
            [n, _encode_json(self.decisions[inst], names)]
            for n, inst in enumerate(self.insts)
            if inst in self.decisions
        ]
        return [insts, decisions]

    @staticmethod
    def from_json(json_obj: object) -> Trace:
        """Return the trace that `as_json` encoded, given as values or text. Raises ScheduleError
        for anything else.
        """
        try:
            return _load_trace(
                json.loads(json_obj) if isinstance(json_obj, (str, bytes)) else json_obj
            )
        except _DECODING_ERRORS as error:
            raise ScheduleError(f"not a saved trace: {type(error).__name__}: {error}") from error

    @staticmethod
    def apply_json_to_schedule(json_obj: object, sch: ReplayTarget) -> None:
        """Replay a saved trace on a schedule."""
        Trace.from_json(json_obj).apply_to_schedule(sch)


_DECODING_ERRORS = (
    ValueError, LookupError, TypeError, AssertionError, AttributeError, OverflowError,
    RecursionError,
)  # fmt: skip
"""Exceptions that decoding malformed JSON raises."""


def _to_python_literal(value: object, names: Mapping[Handle, str]) -> str:
    match value:
        case BlockRV() | LoopRV() | ExprRV():
            return names[value]
        case IntImm():
            return repr(value.value)
        case IndexMap():
            return format_index_map(value)
        case PrimExpr():
            return format_index_expr(value, {v: names[v] for v in free_vars(value) if v in names})  # type: ignore[index]
        case list():
            return f"[{', '.join(_to_python_literal(v, names) for v in value)}]"
        case tuple():
            inside = ", ".join(_to_python_literal(v, names) for v in value)
            return f"({inside},)" if len(value) == 1 else f"({inside})"
        case Mapping():
            inside = ", ".join(f"{k!r}: {_to_python_literal(v, names)}" for k, v in value.items())
            return f"{{{inside}}}"
    return repr(value)


def _encode_json(value: object, names: Mapping[Handle, str]) -> object:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case BlockRV() | LoopRV() | ExprRV():
            return {"rv": names[value]}
        case IntImm() if value.dtype == "int64":
            return int(value.value)
        case IndexMap():
            return {"node": json.loads(save_json(value))}
        case PrimExpr():
            inside = [v for v in free_vars(value) if isinstance(v, ExprRV)]
            plain: dict[Var, PrimExpr] = {v: Var(names[v]) for v in inside}
            return {"expr": json.loads(save_json(substitute(value, plain)))}
        case list() | tuple():
            return [_encode_json(v, names) for v in value]
        case Mapping():
            return {"map": {str(k): _encode_json(v, names) for k, v in value.items()}}
    raise ScheduleError(f"a trace cannot save a {type(value).__name__}: {value!r}")


def _load_trace(document: object) -> Trace:
    assert isinstance(document, (list, tuple))
    insts, decisions = document
    trace = Trace()
    handles: dict[str, Handle] = {}
    # The first letter of a handle's name tells its kind, as `_handle_names` writes it.
    makers: dict[str, Callable[[], Handle]] = {
        "b": BlockRV,
        "l": LoopRV,
        "v": lambda: ExprRV("v", "int64"),
    }
    for kind, inputs, attrs, outputs in insts:
        decoded_inputs = tuple(_decode_json(v, handles) for v in inputs)
        notes = {str(k): _decode_json(v, handles) for k, v in attrs.items()}
        output_handles = tuple(makers[name[0]]() for name in outputs)
        handles.update(zip(outputs, output_handles, strict=True))
        trace.insts.append(Instruction(str(kind), decoded_inputs, notes, output_handles))
    for n, decision in decisions:
        trace.decisions[trace.insts[n]] = _decode_json(decision, handles)
    return trace


def _decode_json(value: object, handles: Mapping[str, Handle]) -> object:
    if isinstance(value, list):
        return [_decode_json(v, handles) for v in value]
    if not isinstance(value, dict):
        return value
    ((key, inside),) = value.items()
    match key:
        case "rv":
            return handles[inside]
        case "node":
            return load_json(json.dumps(inside))
        case "map":
            return {k: _decode_json(v, handles) for k, v in inside.items()}
        case "expr":
            expr = load_json(json.dumps(inside))
            assert isinstance(expr, PrimExpr)
            values: dict[Var, PrimExpr] = {
                v: h for v in free_vars(expr) if isinstance(h := handles[v.name], ExprRV)
            }
            return substitute(expr, values)
    raise ValueError(f"unexpected {key!r}")
