"""Schedule templates of `te` with knobs: AutoTVM's face, over the same spaces as everything else.

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
from ekiden.kernels.decision import Decision, Fixed, Knob, Value
from ekiden.kernels.family import known_extent
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
from ekiden.tune.program import TaskSource
from ekiden.tune.space import FamilySpace
from ekiden.tune.task import Task, program_flops

Function: TypeAlias = Callable[..., tuple[Schedule, Sequence[Tensor]]]
Axes: TypeAlias = Sequence[Axis]
MAX_KNOB_VALUES = 20_000
"""Values of a knob: more are a mistake."""
ANNOTATION_POLICIES: Mapping[str, tuple[str, ...]] = {
    "parallel": ("none", "parallel"),
    "unroll": ("none", "unroll"),
    "vectorize": ("none", "vec"),
    "try_unroll": ("none", "unroll"),
    "try_vec": ("none", "vec"),
    "try_unroll_vec": ("none", "unroll", "vec"),
}
"""A policy of `define_annotate` -> what the innermost axes may be, one axis at most; "parallel" is
for the outermost."""


def _parse_numbers(text: Value) -> list[int]:
    return [int(n) for n in str(text).split(",")]


def _find_stage(schedule: Schedule, op: object) -> Any:  # noqa: ANN401  a stage, whatever asked for it
    return op if hasattr(op, "reorder") else schedule[cast("Tensor", op)]


@dataclass(frozen=True, slots=True)
class SplitEntity:
    """Split of an axis. size: the extents of its parts, outermost first."""

    size: list[int]

    def apply(self, sch: Schedule, op: object, axis: Axis) -> list[Axis]:
        """Split the axis and return its parts, outermost first."""
        stage, inner_axes = _find_stage(sch, op), list[Axis]()
        for factor in reversed(self.size[1:]):
            axis, inner = stage.split(axis, factor=factor)
            inner_axes.insert(0, inner)
        return [axis, *inner_axes]


@dataclass(frozen=True, slots=True)
class ReorderEntity:
    """Order of axes. perm: the index of each axis in the new order."""

    perm: list[int]

    def apply(self, sch: Schedule, op: object, axes: Axes) -> list[Axis]:
        """Reorder the axes and return them in their new order."""
        reordered = [axes[n] for n in self.perm]
        _find_stage(sch, op).reorder(*reordered)
        return reordered


@dataclass(frozen=True, slots=True)
class AnnotateEntity:
    """Annotations of axes. anns: "none", "parallel", "unroll" or "vec" for each."""

    anns: list[str]

    def apply(self, sch: Schedule, op: object, axes: Axes) -> list[Axis]:
        """Annotate the axes and return them."""
        stage = _find_stage(sch, op)
        steps = {"parallel": stage.parallel, "unroll": stage.unroll, "vec": stage.vectorize}
        for axis, ann in zip(axes, self.anns, strict=True):
            if ann != "none":
                steps[ann](axis)
        return list(axes)


@dataclass(frozen=True, slots=True)
class OtherOptionEntity:
    """Value of a knob. val: the original object."""

    val: object


Entity: TypeAlias = SplitEntity | ReorderEntity | AnnotateEntity | OtherOptionEntity


@dataclass(slots=True)
class Config:
    """Configuration of a template: knobs and their values, read as `cfg["tile"]`."""

    fixed: Fixed = field(default_factory=dict)
    choices: dict[str, Knob] = field(default_factory=dict)
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
        """Define the factors of an axis: all factorizations ("factors"), inner powers of two
        ("power2"), any inner sizes ("verbose"), or `candidate`s, where -1 is inferred. Raises
        InputError.
        """
        length = self._axis_length(name, axis)
        if policy == "candidate" or candidate is not None:
            factorizations = [_infer_factor(name, list(c), length) for c in candidate or ()]
        elif policy in ("factors", "power2", "verbose"):
            factorizations = list(_factorizations(length, num_outputs, max_factor, policy))
        else:
            raise InputError(f"define_split '{name}': there is no policy '{policy}'")
        accepted = [f for f in factorizations if filter is None or filter(SplitEntity(f))]
        texts = (",".join(map(str, f)) for f in accepted)
        self._define_knob(name, texts, lambda v: SplitEntity(_parse_numbers(v)))

    def define_reorder(
        self,
        name: str,
        axes: Sequence[object],
        policy: str = "all",
        candidate: Sequence[Sequence[object]] | None = None,
    ) -> None:
        """Define an order of axes: all permutations ("all"), the given one ("identity"), or one of
        the `candidate`s. Raises InputError.
        """
        positions = {id(axis): n for n, axis in enumerate(axes)}
        if candidate is not None:
            orders = [[positions[id(axis)] for axis in order] for order in candidate]
        elif policy == "all":
            orders = [list(p) for p in itertools.permutations(range(len(axes)))]
        elif policy == "identity":
            orders = [list(range(len(axes)))]
        else:
            raise InputError(f"define_reorder '{name}': there is no policy '{policy}'")
        texts = (",".join(map(str, order)) for order in orders)
        self._define_knob(name, texts, lambda v: ReorderEntity(_parse_numbers(v)))

    def define_annotate(
        self,
        name: str,
        axes: Sequence[object],
        policy: str,
        candidate: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """Define annotations of axes, by a policy of ANNOTATIONS or as one of the `candidate`s.
        Raises InputError.
        """
        if candidate is not None:
            annotations = [list(c) for c in candidate]
        elif policy in ANNOTATION_POLICIES:
            plain = ["none"] * (len(axes) - 1)
            kinds = ANNOTATION_POLICIES[policy]
            first = policy == "parallel"
            annotations = [[k, *plain] if first else [*plain, k] for k in kinds]
        else:
            raise InputError(f"define_annotate '{name}': there is no policy '{policy}'")
        self._define_knob(
            name, (",".join(f) for f in annotations), lambda v: AnnotateEntity(str(v).split(","))
        )

    def define_knob(self, name: str, candidate: Sequence[object]) -> None:
        """Define a knob with the given values, read as `cfg[name].val`. Raises InputError."""
        values = {str(v).replace(" ", ""): v for v in candidate}
        if len(values) != len(candidate):
            raise InputError(f"define_knob '{name}': values that print apart expected")
        self._define_knob(name, values, lambda v: OtherOptionEntity(values[str(v)]))

    def add_flop(self, flop: float) -> None:
        """Set the number of operations of a call, instead of counting them."""
        self.flop += int(flop)

    def axis(self, axis: Axis) -> Axis:
        """Return the axis itself: AutoTVM's virtual axes are not needed."""
        return axis

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  of the kind of the knob
        """Return the value of a knob. Raises InputError for an undefined one."""
        if name not in self.choices:
            names = ", ".join(self.choices) or "none"
            raise InputError(f"config: no knob is called '{name}'; there are: {names}")
        return self._make[name](self.fixed.get(name, self.choices[name].domain[0]))

    def __contains__(self, name: str) -> bool:
        return name in self.choices

    def _axis_length(self, name: str, axis: Axis | int) -> int:
        length = known_extent(axis if isinstance(axis, int) else cast(Range, axis.dom).extent)
        if length is None or length < 1:
            raise InputError(f"define_split '{name}': an axis of a known length expected")
        return length

    def _define_knob(self, name: str, texts: object, make: Callable[[Value], Entity]) -> None:
        """Define a knob. Raises InputError if it is empty, too large, or defined differently
        before.
        """
        values = dict.fromkeys(cast("Iterator[str]", texts))
        domain: tuple[Value, ...] = tuple(int(t) if t.isdigit() else t for t in values)
        if not domain or len(domain) > MAX_KNOB_VALUES:
            raise InputError(
                f"config: '{name}' has {len(domain)} values, 1 to {MAX_KNOB_VALUES} expected"
            )
        if name in self.choices and self.choices[name].domain != domain:
            raise InputError(f"config: '{name}' is defined twice, with other values")
        self.choices[name] = Knob(name, domain, "a knob of a template")
        self._make[name] = make


def _infer_factor(name: str, factors: list[int], length: int) -> list[int]:
    """Infer the -1 factor of a split. Raises InputError if the factors do not cover the length."""
    known_product = math.prod(f for f in factors if f > 0)
    completed = [-(-length // known_product) if f < 0 else f for f in factors]
    if sum(f < 0 for f in factors) > 1 or math.prod(completed) < length:
        raise InputError(f"define_split '{name}': {factors} are no factors of {length}")
    return completed


def _factorizations(length: int, count: int, max_factor: int, policy: str) -> Iterator[list[int]]:
    """Yield all factorizations of a length, outermost first, beginning with the unsplit axis."""
    if count == 1:
        yield [length]
        return
    for inner in range(1, min(length, max_factor) + 1):
        divides = length % inner == 0
        if (policy == "factors" and not divides) or (policy == "power2" and inner & (inner - 1)):
            continue
        for outer in _factorizations(-(-length // inner), count - 1, max_factor, policy):
            yield [*outer, inner]


_CURRENT_CONFIG: ContextVar[Config | None] = ContextVar("config", default=None)
_REGISTERED_TEMPLATES: dict[str, Function] = {}


def get_config() -> Config:
    """Return the knobs of the running template; outside of one, unsearched knobs at their first
    values.
    """
    return _CURRENT_CONFIG.get() or Config()


@contextmanager
def _with_config(config: Config) -> Iterator[Config]:
    token = _CURRENT_CONFIG.set(config)
    try:
        yield config
    finally:
        _CURRENT_CONFIG.reset(token)


def template(name: str) -> Callable[[Function], Function]:
    """Register a function as a template: it gives a schedule and its tensors, inputs first. A name
    that is taken is taken over.
    """

    def register_template(function: Function) -> Function:
        """Register the template under its name."""
        _REGISTERED_TEMPLATES[name] = function
        return function

    return register_template


@dataclass(frozen=True)
class ScheduleTemplate:
    """Schedule template: a function with its arguments."""

    name: str
    function: Function
    args: tuple[object, ...]

    def run(self, fixed: Fixed) -> tuple[PrimFunc, Config]:
        """Return the loops under some overrides, and the knobs. Raises what the function raises."""
        with _with_config(Config(fixed)) as config:
            schedule, tensors = self.function(*self.args)
        return lower(schedule, list(tensors)), config

    def decide(self, fixed: Fixed) -> Decision:
        """Return the decision with the first value of every knob that is not overridden. Raises
        CompileError for incompatible knobs.
        """
        _, config = self.run(fixed)
        return Decision.from_mapping(
            {n: fixed.get(n, c.domain[0]) for n, c in config.choices.items()}
        )

    def lower(self, candidate: Candidate) -> PrimFunc:
        """Return the loops of a candidate."""
        return self.run(Decision.parse(candidate.choice))[0]


@dataclass(frozen=True)
class TemplateSpace(FamilySpace):
    """Search space of a template for given arguments."""

    args: tuple[object, ...] = ()


def template_task(
    which: str | Function, args: Sequence[object], target: TargetLike | None = None, name: str = ""
) -> Task:
    """Return the task of a template, given by name or function, for some arguments. TVM:
    `autotvm.task.create`. Raises InputError for an unknown name or a template without knobs, and
    what the function raises.
    """
    if isinstance(which, str):
        if which not in _REGISTERED_TEMPLATES:
            names = ", ".join(_REGISTERED_TEMPLATES) or "none"
            raise InputError(f"tune: no template is called '{which}'; there are: {names}")
        name, function = name or which, _REGISTERED_TEMPLATES[which]
    else:
        name, function = name or which.__name__, which
    bound_template = ScheduleTemplate(name, function, tuple(args))
    with _with_config(Config()) as config:
        schedule, tensors = function(*args)
    if not any(len(c.domain) > 1 for c in config.choices.values()):
        raise InputError(f"tune: the template '{name}' has no knobs")
    plain = create_prim_func(list(tensors))
    space = TemplateSpace(
        name, tuple(config.choices.values()), bound_template.decide, bound_template.args
    )
    return Task(
        name, structural_digest(plain), TaskSource(lower(schedule, list(tensors))),
        target_or_current(target), space, flops=config.flop or program_flops(plain),
        lowering=bound_template.lower,
    )  # fmt: skip


__all__ = ["Config", "ScheduleTemplate", "TemplateSpace", "get_config", "template", "template_task"]
