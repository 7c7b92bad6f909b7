"""AutoTVM-style schedule templates with knobs, on the search spaces of `ekiden.tune`: AutoTVM's
face, over the same spaces as everything else.

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
from ekiden.kernels.decision import Decision, Knob, KnobValue, Overrides
from ekiden.kernels.family import known_extent
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target, TargetLike, target_or_current
from ekiden.te.prim_func import create_prim_func
from ekiden.te.schedule import Schedule
from ekiden.te.schedule.lowering import lower
from ekiden.te.schedule.relations import Axis, thread_axis
from ekiden.te.tensor import Tensor
from ekiden.tir.stmt import PrimFunc
from ekiden.tune.candidate import Candidate
from ekiden.tune.program import TaskSource
from ekiden.tune.space import FamilySpace
from ekiden.tune.task import Task, program_flops

Function: TypeAlias = Callable[..., tuple[Schedule, Sequence[Tensor]]]
Axes: TypeAlias = Sequence[Axis]
MAX_KNOB_VALUES = 20_000
"""Maximum number of values of a knob."""
ANNOTATION_POLICIES: Mapping[str, tuple[str, ...]] = {
    "parallel": ("none", "parallel"),
    "unroll": ("none", "unroll"),
    "vectorize": ("none", "vec"),
    "try_unroll": ("none", "unroll"),
    "try_vec": ("none", "vec"),
    "try_unroll_vec": ("none", "unroll", "vec"),
}
"""Annotations that each policy of `define_annotate` allows for the innermost axes."""
GPU_BINDINGS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "bind_gpu": (
        ("blockIdx.z", "blockIdx.y", "blockIdx.x", "threadIdx.z", "threadIdx.y", "threadIdx.x"),
        ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"),
        ("blockIdx.x", "threadIdx.x"),
    ),
    "bind_gpu_virtual": (
        ("blockIdx.z", "blockIdx.y", "blockIdx.x", *("vthread",) * 3, "threadIdx.z", "threadIdx.y",
         "threadIdx.x"),
        ("blockIdx.y", "blockIdx.x", "vthread", "vthread", "threadIdx.y", "threadIdx.x"),
        ("blockIdx.x", "vthread", "threadIdx.x"),
    ),
}  # fmt: skip
"""A policy of `define_annotate` -> the threads of the innermost axes, the longest list that there
are axes for; axes before them are fused into the first."""


def _parse_numbers(text: KnobValue) -> list[int]:
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
    """Annotations of axes. anns: "none", "parallel", "unroll", "vec", "fuse" (with the next axis)
    or the name of a thread, for each.
    """

    anns: list[str]

    def apply(self, sch: Schedule, op: object, axes: Axes) -> list[Axis]:
        """Annotate the axes and return them."""
        stage, annotated = _find_stage(sch, op), list(axes)
        steps = {"parallel": stage.parallel, "unroll": stage.unroll, "vec": stage.vectorize}
        for n, ann in enumerate(self.anns):
            if ann == "fuse":
                annotated[n + 1] = stage.fuse(annotated[n], annotated[n + 1])
            elif ann in steps:
                steps[ann](annotated[n])
            elif ann != "none":
                stage.bind(annotated[n], thread_axis(ann))
        return annotated


@dataclass(frozen=True, slots=True)
class OtherOptionEntity:
    """Value of a user-defined knob. val: the original object."""

    val: object


Entity: TypeAlias = SplitEntity | ReorderEntity | AnnotateEntity | OtherOptionEntity


@dataclass(slots=True)
class Config:
    """Configuration of a template: knobs and their values, read as `cfg["tile"]`."""

    fixed: Overrides = field(default_factory=dict)
    choices: dict[str, Knob] = field(default_factory=dict)
    flop: int = 0
    _entity_factories: dict[str, Callable[[KnobValue], Entity]] = field(default_factory=dict)

    def define_split(
        self,
        name: str,
        axis: Axis | int,
        policy: str = "factors",
        num_outputs: int = 2,
        max_factor: int = 1 << 31,
        candidate: Sequence[Sequence[int]] | None = None,
        filter: Callable[[SplitEntity], bool] | None = None,
        no_tail: bool | None = None,
    ) -> None:
        """Define the factors of an axis.

        Args:
            name: The name of the knob.
            axis: The axis, or its length.
            policy: What inner extents are: divisors of the length ("factors"), powers of two
                ("power2"), either ("verbose"), or one of the `candidate`s.
            num_outputs: The number of parts.
            max_factor: The largest inner extent.
            candidate: Extents of the parts, where -1 is inferred.
            filter: Says of a split whether it is one of the knob's.
            no_tail: Whether the product of inner extents divides the length; None for "factors".

        Raises:
            InputError: An unknown policy, an unknown length, or no split.
        """
        length = self._axis_length(name, axis)
        if policy == "candidate" or candidate is not None:
            factorizations = [_infer_factor(name, list(c), length) for c in candidate or ()]
        elif policy in ("factors", "power2", "verbose"):
            no_tail = policy == "factors" if no_tail is None else no_tail
            extents = [n for n in _inner_extents(length, policy) if n <= max_factor]
            factorizations = [
                [-(-length // math.prod(inner)), *inner]
                for inner in _inner_factors(extents, num_outputs - 1, length)
                if not no_tail or length % math.prod(inner) == 0
            ]
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
        """Define annotations of axes, by a policy of ANNOTATION_POLICIES or GPU_BINDINGS, or as one
        of the `candidate`s. Raises InputError.
        """
        if candidate is not None:
            annotations = [list(c) for c in candidate]
        elif policy in ANNOTATION_POLICIES:
            plain = ["none"] * (len(axes) - 1)
            kinds = ANNOTATION_POLICIES[policy]
            first = policy == "parallel"
            annotations = [[k, *plain] if first else [*plain, k] for k in kinds]
        elif threads := next((t for t in GPU_BINDINGS.get(policy, ()) if len(t) <= len(axes)), ()):
            annotations = [["fuse"] * (len(axes) - len(threads)) + list(threads)]
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
        return self._entity_factories[name](self.fixed.get(name, self.choices[name].domain[0]))

    def __contains__(self, name: str) -> bool:
        return name in self.choices

    def _axis_length(self, name: str, axis: Axis | int) -> int:
        length = known_extent(axis if isinstance(axis, int) else cast(Range, axis.dom).extent)
        if length is None or length < 1:
            raise InputError(f"define_split '{name}': an axis of a known length expected")
        return length

    def _define_knob(self, name: str, texts: object, make: Callable[[KnobValue], Entity]) -> None:
        """Define a knob. Raises InputError if it is empty, too large, or defined differently
        before.
        """
        values = dict.fromkeys(cast("Iterator[str]", texts))
        domain: tuple[KnobValue, ...] = tuple(int(t) if t.isdigit() else t for t in values)
        if not domain or len(domain) > MAX_KNOB_VALUES:
            raise InputError(
                f"config: '{name}' has {len(domain)} values, 1 to {MAX_KNOB_VALUES} expected"
            )
        if name in self.choices and self.choices[name].domain != domain:
            raise InputError(f"config: '{name}' is defined twice, with other values")
        self.choices[name] = Knob(name, domain, "a knob of a template")
        self._entity_factories[name] = make


def _infer_factor(name: str, factors: list[int], length: int) -> list[int]:
    """Infer the -1 factor of a split. Raises InputError if the factors do not cover the length."""
    known_product = math.prod(f for f in factors if f > 0)
    completed = [-(-length // known_product) if f < 0 else f for f in factors]
    if sum(f < 0 for f in factors) > 1 or math.prod(completed) < length:
        raise InputError(f"define_split '{name}': {factors} are no factors of {length}")
    return completed


def _inner_extents(length: int, policy: str) -> list[int]:
    """Return the extents that the inner parts of an axis may have, in order."""
    root = math.isqrt(length)
    small = [n for n in range(1, root + 1) if length % n == 0] if policy != "power2" else []
    powers = [1 << n for n in range(length.bit_length())] if policy != "factors" else []
    return sorted({*small, *(length // n for n in small), *powers})


def _inner_factors(extents: Sequence[int], count: int, limit: int) -> Iterator[list[int]]:
    """Yield the extents of `count` inner parts, outermost first, whose product is at most `limit`;
    the innermost changes slowest.
    """
    if count == 0:
        yield []
        return
    for inner in extents:
        if inner > limit:
            return
        for outer in _inner_factors(extents, count - 1, limit // inner):
            yield [*outer, inner]


CURRENT_CONFIG: ContextVar[Config | None] = ContextVar("config", default=None)
"""The knobs of the running template."""
REGISTERED_TEMPLATES: dict[str, Function] = {}
"""Name -> template."""


def get_config() -> Config:
    """Return the knobs of the running template; outside of one, unsearched knobs at their first
    values.
    """
    return CURRENT_CONFIG.get() or Config()


@contextmanager
def with_config(config: Config) -> Iterator[Config]:
    """Set the configuration that `get_config` returns inside the context."""
    token = CURRENT_CONFIG.set(config)
    try:
        yield config
    finally:
        CURRENT_CONFIG.reset(token)


def template(name: str) -> Callable[[Function], Function]:
    """Register a function as a template: it gives a schedule and its tensors, inputs first. A name
    that is taken is taken over.
    """

    def register_template(function: Function) -> Function:
        """Register the template under its name."""
        REGISTERED_TEMPLATES[name] = function
        return function

    return register_template


@dataclass(frozen=True)
class ScheduleTemplate:
    """Schedule template: a function with its arguments and the target it is run for."""

    name: str
    function: Function
    args: tuple[object, ...]
    target: Target

    def run(self, config: Config) -> tuple[Schedule, Sequence[Tensor]]:
        """Return the schedule and tensors of a configuration. Raises what the function raises."""
        with self.target, with_config(config):
            return self.function(*self.args)

    def decide(self, fixed: Overrides) -> Decision:
        """Return the decision with the first value of every knob that is not overridden. Raises
        CompileError for incompatible knobs.
        """
        config = Config(fixed)
        self.run(config)
        return Decision.from_mapping(
            {n: fixed.get(n, c.domain[0]) for n, c in config.choices.items()}
        )

    def lower(self, candidate: Candidate) -> PrimFunc:
        """Return the loops of a candidate."""
        schedule, tensors = self.run(Config(Decision.parse(candidate.choice)))
        return lower(schedule, list(tensors))


@dataclass(frozen=True)
class TemplateSpace(FamilySpace):
    """Search space of a template for given arguments."""

    args: tuple[object, ...] = ()


def template_task(
    which: str | Function,
    args: Sequence[object],
    target: TargetLike | None = None,
    name: str = "",
    config: Config | None = None,
) -> Task:
    """Return the task of a template for some arguments. TVM: `autotvm.task.create`.

    Args:
        which: The template, or the name that it was registered under.
        args: Its arguments.
        target: The target, which is the current one while the template runs.
        name: The name of the task; that of the template by default.
        config: What the template defines its knobs in; a new one by default.

    Raises:
        InputError: An unknown name, or a template without knobs; and what the function raises.
    """
    if isinstance(which, str):
        if which not in REGISTERED_TEMPLATES:
            names = ", ".join(REGISTERED_TEMPLATES) or "none"
            raise InputError(f"tune: no template is called '{which}'; there are: {names}")
        name, function = name or which, REGISTERED_TEMPLATES[which]
    else:
        name, function = name or which.__name__, which
    target = target_or_current(target)
    bound_template = ScheduleTemplate(name, function, tuple(args), target)
    config = Config() if config is None else config
    schedule, tensors = bound_template.run(config)
    if not any(len(c.domain) > 1 for c in config.choices.values()):
        raise InputError(f"tune: the template '{name}' has no knobs")
    plain = create_prim_func(list(tensors))
    space = TemplateSpace(
        name, tuple(config.choices.values()), bound_template.decide, bound_template.args
    )
    return Task(
        name, structural_digest(plain), TaskSource(lower(schedule, list(tensors))),
        target, space, flops=config.flop or program_flops(plain),
        lowering=bound_template.lower,
    )  # fmt: skip


__all__ = ["Config", "ScheduleTemplate", "TemplateSpace", "get_config", "template", "template_task"]
