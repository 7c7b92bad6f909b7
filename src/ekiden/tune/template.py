"""Schedules of `te` with knobs: AutoTVM's face, over the same spaces as everything else.

    @tune.template("product")
    def product(n, m, k):
        ...                             # a, b, c by te.compute, s = te.create_schedule(c.op)
        cfg = tune.get_config()
        cfg.define_split("tile", s[c].op.axis[1], num_outputs=2)
        outer, inner = cfg["tile"].apply(s, c, s[c].op.axis[1])
        return s, [a, b, c]

    task = tune.template_task("product", (128, 128, 128), "llvm")

A knob is a `Choice` whose values are texts: factors "16,8", an order "1,0,2", annotations
"none,vec". A candidate is a decision of them; its loops are what the function makes under it, and
what is measured are those loops. The default has the first value of each knob.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any, TypeAlias, cast

from ekiden.ir.range import Range
from ekiden.ir.structural import structural_digest
from ekiden.kernels.decision import Choice, Decision, Fixed, Value
from ekiden.kernels.family import size_of
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import TargetLike, target_or_current
from ekiden.te.prim_func import create_prim_func
from ekiden.te.schedule import Schedule
from ekiden.te.schedule.lowering import lower
from ekiden.te.schedule.relations import Axis
from ekiden.te.tensor import Tensor
from ekiden.tir.stmt import PrimFunc
from ekiden.tune.candidate import Candidate
from ekiden.tune.program import Source
from ekiden.tune.space import FamilySpace
from ekiden.tune.task import Task, program_flops

Function: TypeAlias = Callable[..., tuple[Schedule, Sequence[Tensor]]]
Axes: TypeAlias = Sequence[Axis]
MOST = 20_000
"""Values of a knob: more are a mistake."""
ANNOTATIONS: Mapping[str, tuple[str, ...]] = {
    "parallel": ("none", "parallel"),
    "unroll": ("none", "unroll"),
    "vectorize": ("none", "vec"),
    "try_unroll": ("none", "unroll"),
    "try_vec": ("none", "vec"),
    "try_unroll_vec": ("none", "unroll", "vec"),
}
"""A policy of `define_annotate` -> what the innermost axes may be, one axis at most; "parallel" is
for the outermost."""


def _numbers(text: Value) -> list[int]:
    return [int(n) for n in str(text).split(",")]


def _stage(schedule: Schedule, op: object) -> Any:  # noqa: ANN401  a stage, whatever asked for it
    return op if hasattr(op, "reorder") else schedule[cast("Tensor", op)]


@dataclass(frozen=True, slots=True)
class SplitEntity:
    """Factors of an axis. size: of the parts, outermost first."""

    size: list[int]

    def apply(self, sch: Schedule, op: object, axis: Axis) -> list[Axis]:
        """Split the axis; gives its parts, outermost first."""
        stage, parts = _stage(sch, op), list[Axis]()
        for factor in reversed(self.size[1:]):
            axis, inner = stage.split(axis, factor=factor)
            parts.insert(0, inner)
        return [axis, *parts]


@dataclass(frozen=True, slots=True)
class ReorderEntity:
    """An order of axes. perm: which comes first, second, ..."""

    perm: list[int]

    def apply(self, sch: Schedule, op: object, axes: Axes) -> list[Axis]:
        """Reorder the axes; gives them in their new order."""
        made = [axes[n] for n in self.perm]
        _stage(sch, op).reorder(*made)
        return made


@dataclass(frozen=True, slots=True)
class AnnotateEntity:
    """How axes run. anns: "none", "parallel", "unroll" or "vec", of each."""

    anns: list[str]

    def apply(self, sch: Schedule, op: object, axes: Axes) -> list[Axis]:
        """Let the axes run so; gives them."""
        stage = _stage(sch, op)
        steps = {"parallel": stage.parallel, "unroll": stage.unroll, "vec": stage.vectorize}
        for axis, ann in zip(axes, self.anns, strict=True):
            if ann != "none":
                steps[ann](axis)
        return list(axes)


@dataclass(frozen=True, slots=True)
class OtherOptionEntity:
    """A value of a knob. val: as it was given."""

    val: object


Entity: TypeAlias = SplitEntity | ReorderEntity | AnnotateEntity | OtherOptionEntity


@dataclass(slots=True)
class Config:
    """The knobs of a template, and what is chosen for each: `cfg["tile"]`."""

    fixed: Fixed = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    flop: int = 0
    _make: dict[str, Callable[[Value], Entity]] = field(default_factory=dict)

    def define_split(
        self,
        name: str,
        axis: Axis | int,
        policy: str = "factors",
        num_outputs: int = 2,
        max_factor: int = 1 << 31,
        candidate: Sequence[Sequence[int]] | None = None,
        filter: Callable[[SplitEntity], bool] | None = None,
    ) -> None:
        """Factors of an axis: all that multiply to it ("factors"), powers of two inside ("power2"),
        any inside ("verbose"), or `candidate`s, where -1 is the rest. Raises InputError."""
        length = self._length(name, axis)
        if policy == "candidate" or candidate is not None:
            found = [_whole(name, list(c), length) for c in candidate or ()]
        elif policy in ("factors", "power2", "verbose"):
            found = list(_factors(length, num_outputs, max_factor, policy))
        else:
            raise InputError(f"define_split '{name}': there is no policy '{policy}'")
        kept = [f for f in found if filter is None or filter(SplitEntity(f))]
        texts = (",".join(map(str, f)) for f in kept)
        self._define(name, texts, lambda v: SplitEntity(_numbers(v)))

    def define_reorder(
        self,
        name: str,
        axes: Sequence[object],
        policy: str = "all",
        candidate: Sequence[Sequence[object]] | None = None,
    ) -> None:
        """An order of axes: any ("all"), as they are ("identity"), or one of `candidate`s. Raises
        InputError."""
        places = {id(axis): n for n, axis in enumerate(axes)}
        if candidate is not None:
            orders = [[places[id(axis)] for axis in each] for each in candidate]
        elif policy == "all":
            orders = [list(p) for p in itertools.permutations(range(len(axes)))]
        elif policy == "identity":
            orders = [list(range(len(axes)))]
        else:
            raise InputError(f"define_reorder '{name}': there is no policy '{policy}'")
        texts = (",".join(map(str, order)) for order in orders)
        self._define(name, texts, lambda v: ReorderEntity(_numbers(v)))

    def define_annotate(
        self,
        name: str,
        axes: Sequence[object],
        policy: str,
        candidate: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """How axes run, by a policy of ANNOTATIONS or one of `candidate`s. Raises InputError."""
        if candidate is not None:
            found = [list(c) for c in candidate]
        elif policy in ANNOTATIONS:
            plain = ["none"] * (len(axes) - 1)
            kinds = ANNOTATIONS[policy]
            first = policy == "parallel"
            found = [[k, *plain] if first else [*plain, k] for k in kinds]
        else:
            raise InputError(f"define_annotate '{name}': there is no policy '{policy}'")
        self._define(
            name, (",".join(f) for f in found), lambda v: AnnotateEntity(str(v).split(","))
        )

    def define_knob(self, name: str, candidate: Sequence[object]) -> None:
        """One of some values, `cfg[name].val`. Raises InputError."""
        values = {str(v).replace(" ", ""): v for v in candidate}
        if len(values) != len(candidate):
            raise InputError(f"define_knob '{name}': values that print apart expected")
        self._define(name, values, lambda v: OtherOptionEntity(values[str(v)]))

    def add_flop(self, flop: float) -> None:
        """Say how many operations a call has, where they are not to be counted."""
        self.flop += int(flop)

    def axis(self, axis: Axis) -> Axis:
        """The axis itself: AutoTVM's virtual axes are not needed."""
        return axis

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  of the kind of the knob
        """What is chosen for a knob. Raises InputError for one that is not defined."""
        if name not in self.choices:
            there = ", ".join(self.choices) or "none"
            raise InputError(f"config: no knob is called '{name}'; there are: {there}")
        return self._make[name](self.fixed.get(name, self.choices[name].domain[0]))

    def __contains__(self, name: str) -> bool:
        return name in self.choices

    def _length(self, name: str, axis: Axis | int) -> int:
        length = size_of(axis if isinstance(axis, int) else cast(Range, axis.dom).extent)
        if length is None or length < 1:
            raise InputError(f"define_split '{name}': an axis of a known length expected")
        return length

    def _define(self, name: str, texts: object, make: Callable[[Value], Entity]) -> None:
        found = dict.fromkeys(cast("Iterator[str]", texts))
        domain: tuple[Value, ...] = tuple(int(t) if t.isdigit() else t for t in found)
        if not domain or len(domain) > MOST:
            raise InputError(f"config: '{name}' has {len(domain)} values, 1 to {MOST} expected")
        if name in self.choices and self.choices[name].domain != domain:
            raise InputError(f"config: '{name}' is defined twice, with other values")
        self.choices[name] = Choice(name, domain, "a knob of a template")
        self._make[name] = make


def _whole(name: str, factors: list[int], length: int) -> list[int]:
    rest = math.prod(f for f in factors if f > 0)
    made = [-(-length // rest) if f < 0 else f for f in factors]
    if sum(f < 0 for f in factors) > 1 or math.prod(made) < length:
        raise InputError(f"define_split '{name}': {factors} are no factors of {length}")
    return made


def _factors(length: int, parts: int, most: int, policy: str) -> Iterator[list[int]]:
    """All factors of a length, outermost first; the whole axis outside comes first."""
    if parts == 1:
        yield [length]
        return
    for inner in range(1, min(length, most) + 1):
        divides = length % inner == 0
        if (policy == "factors" and not divides) or (policy == "power2" and inner & (inner - 1)):
            continue
        for outer in _factors(-(-length // inner), parts - 1, most, policy):
            yield [*outer, inner]


_CURRENT: ContextVar[Config | None] = ContextVar("config", default=None)
_TEMPLATES: dict[str, Function] = {}


def get_config() -> Config:
    """The knobs of the template that runs; of none, knobs that nobody searches, at their first
    values."""
    return _CURRENT.get() or Config()


@contextmanager
def _under(config: Config) -> Iterator[Config]:
    token = _CURRENT.set(config)
    try:
        yield config
    finally:
        _CURRENT.reset(token)


def template(name: str) -> Callable[[Function], Function]:
    """Register a function as a template: it gives a schedule and its tensors, inputs first. A name
    that is taken is taken over."""

    def register(function: Function) -> Function:
        _TEMPLATES[name] = function
        return function

    return register


@dataclass(frozen=True)
class Template:
    """A function and what it is called with."""

    name: str
    function: Function
    args: tuple[object, ...]

    def run(self, fixed: Fixed) -> tuple[PrimFunc, Config]:
        """The loops under a decision, and the knobs. Raises what the function does."""
        with _under(Config(fixed)) as config:
            schedule, tensors = self.function(*self.args)
        return lower(schedule, list(tensors)), config

    def decide(self, fixed: Fixed) -> Decision:
        """The decision with the first values of what is not fixed. Raises CompileError for knobs
        that do not go together."""
        _, config = self.run(fixed)
        return Decision.of({n: fixed.get(n, c.domain[0]) for n, c in config.choices.items()})

    def lower(self, candidate: Candidate) -> PrimFunc:
        """The loops of a candidate."""
        return self.run(Decision.parse(candidate.choice))[0]


@dataclass(frozen=True)
class TemplateSpace(FamilySpace):
    """The decisions of a template for some arguments."""

    args: tuple[object, ...] = ()


def template_task(
    which: str | Function, args: Sequence[object], target: TargetLike | None = None, name: str = ""
) -> Task:
    """The task of a template, by its name or the function, for arguments. TVM:
    `autotvm.task.create`.

    Raises InputError for a name that there is not and for one without knobs, and what it raises.
    """
    if isinstance(which, str):
        if which not in _TEMPLATES:
            there = ", ".join(_TEMPLATES) or "none"
            raise InputError(f"tune: no template is called '{which}'; there are: {there}")
        name, function = name or which, _TEMPLATES[which]
    else:
        name, function = name or which.__name__, which
    made = Template(name, function, tuple(args))
    with _under(Config()) as config:
        schedule, tensors = function(*args)
    if not any(len(c.domain) > 1 for c in config.choices.values()):
        raise InputError(f"tune: the template '{name}' has no knobs")
    plain = create_prim_func(list(tensors))
    space = TemplateSpace(name, tuple(config.choices.values()), made.decide, made.args)
    return Task(
        name, structural_digest(plain), Source(lower(schedule, list(tensors))),
        target_or_current(target), space, flops=config.flop or program_flops(plain),
        lowering=made.lower,
    )  # fmt: skip


__all__ = ["Config", "Template", "TemplateSpace", "get_config", "template", "template_task"]
