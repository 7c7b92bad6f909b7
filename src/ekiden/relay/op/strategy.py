"""Operator strategies: user-supplied implementations by target (TVM's names).

    def strategy(attrs, inputs, out_type, target):
        made = OpStrategy()
        made.add_implementation(compute, None, name="mine", plevel=20)
        with SpecializedCondition(inputs[0].shape[0] <= 16):
            made.add_implementation(compute_few_rows, schedule_few_rows, plevel=30)
        return made

    relay.op.register_strategy("nn.dense", strategy)

An implementation computes with te; of those whose condition is known to hold, that of the highest
`plevel` is taken, and the operator's own where there is none. Its schedule gets the results of the
whole kernel, in which other operators may be fused, and gives a `tir.Schedule` of its program,
whose parameters are inputs, then results; without one, or where it gives None, a family of kernels
chooses the loops, by the tags of the computations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import field
from types import TracebackType
from typing import Any, ClassVar

from ekiden.arith import Analyzer
from ekiden.ir.attrs import Attrs, unwrap_user_attrs
from ekiden.ir.expr_text import format_shape, format_type
from ekiden.ir.op import OP_ATTRS, get, make_attr_registrar
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.runtime.errors import CompileError, EkidenError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te import Tensor

Compute = Callable[[Any, Sequence[Tensor], Type], Sequence[Tensor]]
"""Function (attributes, tensors, result type) -> result tensors."""
Schedule = Callable[[Any, Sequence[Tensor], Target], Any]
"""Function (attributes, kernel outputs, target) -> tir.Schedule or None."""

STRATEGY_ATTR, COMPUTE_ATTR, SCHEDULE_ATTR = "FTVMStrategy", "FTVMCompute", "FTVMSchedule"
_VERSION_COUNTER = itertools.count()
_versions: dict[str, int] = {}


class SpecializedCondition:
    """Context in which implementations are added for tensors that satisfy all clauses
    (TVM's name).
    """

    entered: ClassVar[list[SpecializedCondition]] = []

    def __init__(self, *clauses: PrimExpr | bool | Sequence[PrimExpr | bool]) -> None:
        flat = [c if isinstance(c, (list, tuple)) else (c,) for c in clauses]
        self.clauses = tuple(itertools.chain(*flat))

    def holds(self) -> bool:
        """Return whether all clauses are proven."""
        # A clause that cannot be proved does not hold: the general implementation stays valid.
        prove = Analyzer().can_prove
        return all(c if isinstance(c, bool) else prove(c) for c in self.clauses)

    def __enter__(self) -> SpecializedCondition:
        SpecializedCondition.entered.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        SpecializedCondition.entered.pop()


def _matches_type(tensor: Tensor, kind: Type) -> bool:
    """Return whether a tensor matches a type as far as static sizes go."""
    if not isinstance(kind, TensorType):
        return True
    shapes = zip(tensor.shape, kind.shape, strict=False)
    differ = any(isinstance(a, IntImm) and isinstance(b, IntImm) and a.value != b.value
                 for a, b in shapes)  # fmt: skip
    return tensor.dtype == kind.dtype and len(tensor.shape) == len(kind.shape) and not differ


@dataclass(frozen=True, slots=True)
class OpImplementation:
    """Implementation of an operator: compute, schedule, priority level."""

    fcompute: Compute
    fschedule: Schedule | None = None
    name: str = "default"
    plevel: int = 10

    def compute(
        self, attrs: Attrs | None, inputs: Sequence[Tensor], out_type: Type
    ) -> list[Tensor]:
        """Return the result tensors; a single tensor stands for a one-element list.

        Raises:
            CompileError: The computation raises, or returns anything but tensors of the number,
                dtype
                and shape of `out_type`.
        """
        try:
            computed: object = self.fcompute(unwrap_user_attrs(attrs), inputs, out_type)
        except EkidenError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise CompileError(f"compute '{self.name}' raised {reason}") from error
        tensors = [computed] if isinstance(computed, Tensor) else computed
        if not isinstance(tensors, Sequence) or not all(isinstance(t, Tensor) for t in tensors):
            raise CompileError(
                f"compute '{self.name}': expected a list of tensors (te.Tensor), got "
                f"{computed!r:.100}"
            )
        kinds = out_type.fields if isinstance(out_type, TupleType) else (out_type,)
        if len(tensors) != len(kinds) or not all(map(_matches_type, tensors, kinds)):
            actual = ", ".join(f"{t.dtype} of shape {format_shape(t.shape)}" for t in tensors)
            raise CompileError(
                f"compute '{self.name}': expected {format_type(out_type)}, as the type relation"
                f" says, got {actual or 'no tensor'}"
            )
        return list(tensors)

    def schedule(self, attrs: Attrs | None, outs: Sequence[Tensor], target: Target) -> Any:  # noqa: ANN401
        """Return the schedule of a kernel with these results, or None for the family's default."""
        if self.fschedule is None:
            return None
        return self.fschedule(unwrap_user_attrs(attrs), outs, target)


@dataclass(frozen=True, slots=True)
class OpSpecialization:
    """Implementations under one condition; None for all tensors."""

    condition: SpecializedCondition | None
    implementations: list[OpImplementation] = field(default_factory=list)


@dataclass(slots=True)
class OpStrategy:
    """Implementations of an operator for one target and given tensors."""

    specializations: list[OpSpecialization] = field(default_factory=list)

    def add_implementation(
        self,
        compute: Compute,
        schedule: Schedule | None = None,
        name: str = "default",
        plevel: int = 10,
    ) -> None:
        """Add an implementation under the innermost active SpecializedCondition."""
        entered = SpecializedCondition.entered
        condition = entered[-1] if entered else None
        group = next((s for s in self.specializations if s.condition is condition), None)
        if group is None:
            group = OpSpecialization(condition)
            self.specializations.append(group)
        group.implementations.append(OpImplementation(compute, schedule, name, plevel))

    def valid(self) -> list[OpImplementation]:
        """Return the implementations whose conditions hold."""
        return [
            i
            for s in self.specializations
            if s.condition is None or s.condition.holds()
            for i in s.implementations
        ]

    def best(self) -> OpImplementation | None:
        """Return the valid implementation of the highest level (the latest of equals), or None."""
        # max keeps the first of equal levels: reversed, that is the latest registration.
        return max(reversed(self.valid()), key=lambda i: i.plevel, default=None)


def _bump_version(op_name: str) -> None:
    """Bump an operator's version, which invalidates cached kernels."""
    _versions[op_name] = next(_VERSION_COUNTER)


register_strategy = make_attr_registrar(
    STRATEGY_ATTR,
    "Give an operator (attributes, tensors, type of the result, target) -> OpStrategy.",
    _bump_version,
)
register_compute = make_attr_registrar(
    COMPUTE_ATTR,
    "Give an operator one computation for all targets: see Compute in this file.",
    _bump_version,
)
register_schedule = make_attr_registrar(
    SCHEDULE_ATTR,
    "Give an operator the schedule of its `register_compute`: see Schedule in this file.",
    _bump_version,
)


def strategy_of(
    name: str, attrs: Attrs | None, inputs: Sequence[Tensor], out_type: Type, target: Target | None
) -> OpStrategy | None:
    """Evaluate an operator's strategy for a call, or return None if it has none.

    Raises:
        CompileError: The result is no OpStrategy.
    """
    strategy: Any = OP_ATTRS.get(STRATEGY_ATTR, {}).get(name)
    if strategy is None:
        return None
    chosen = strategy(unwrap_user_attrs(attrs), inputs, out_type, target)
    if not isinstance(chosen, OpStrategy):
        raise CompileError(f"{name}: its strategy gave {chosen!r}, expected an OpStrategy")
    return chosen


def own_lowering(name: str) -> OpImplementation | None:
    """Return the default implementation of an operator, or None if it has no kernel."""
    lower = get(name).definition.lower
    if lower is None:
        return None

    def lower_default(
        attrs: Attrs | None, inputs: Sequence[Tensor], out_type: Type
    ) -> Sequence[Tensor]:
        """Lower by the operator's default computation, without non-tensor results."""
        return [t for t in lower(attrs, inputs, out_type) if isinstance(t, Tensor)]

    return OpImplementation(lower_default, None, name)


def implementation_of(
    name: str, attrs: Attrs | None, inputs: Sequence[Tensor], out_type: Type, target: Target | None
) -> OpImplementation | None:
    """Select the user's implementation of an operator, or None for the default lowering.

    Raises:
        CompileError: A schedule is registered for an operator that has no kernel.
    """
    strategy = strategy_of(name, attrs, inputs, out_type, target)
    if strategy is not None:
        return strategy.best()
    compute: Any = OP_ATTRS.get(COMPUTE_ATTR, {}).get(name)
    schedule: Any = OP_ATTRS.get(SCHEDULE_ATTR, {}).get(name)
    if compute is not None:
        return OpImplementation(compute, schedule, name)
    # A schedule alone goes with the operator's own computation.
    if schedule is None:
        return None
    user_lowering = own_lowering(name)
    if user_lowering is None:
        raise CompileError(f"{name}: a schedule was registered, and the operator has no kernel")
    return OpImplementation(user_lowering.fcompute, schedule, name)


def version_of(name: str) -> int | None:
    """Return the version of an operator's user implementations, or None if it has none."""
    has_any = any(
        name in OP_ATTRS.get(key, {}) for key in (STRATEGY_ATTR, COMPUTE_ATTR, SCHEDULE_ATTR)
    )
    # Attributes set directly, without the registration functions, have a version from here on.
    return _versions.setdefault(name, next(_VERSION_COUNTER)) if has_any else None


__all__ = [
    "OpImplementation",
    "OpSpecialization",
    "OpStrategy",
    "SpecializedCondition",
    "implementation_of",
    "own_lowering",
    "register_compute",
    "register_schedule",
    "register_strategy",
    "strategy_of",
    "version_of",
]
