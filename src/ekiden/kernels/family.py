"""Kernel family: the computations it accepts, the target features it needs, its search space,
default decision and builder.

Relay reads the table of families too: the panel width of packed weights (`default_panel_width`),
the epilogues that a kernel supports (`special_epilogues`), and whether results may be slices of
longer rows (`writes_strided_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ekiden import te
from ekiden._lazy import LazyModule
from ekiden.ir.prim import IntImm
from ekiden.kernels.decision import (
    Decision,
    Knob,
    Overrides,
    SearchSpace,
    require_valid_overrides,
    with_current_names,
)
from ekiden.kernels.micro_kernels.register_tiles import WIDENED_DTYPE
from ekiden.kernels.scheduled_kernel import (
    KernelSpec,
    ScheduledKernel,
    ScheduleSteps,
    apply_schedule_steps,
    create_inlined_program,
)
from ekiden.kernels.stages import has_known_weights
from ekiden.runtime.errors import CompileError, ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc
from ekiden.topi.nn.weight_packing import DOT_WORD_BY_DTYPE, WORD_PAIR_ELEMENTS

if TYPE_CHECKING:
    from ekiden.kernels.gpu import vector_access
else:
    vector_access = LazyModule("ekiden.kernels.gpu.vector_access")

INT16_PAIR_SUMS = "narrow"
"""Pseudo-dtype of byte products whose pair sums fit int16."""
BYTE_PAIRS = "byte pairs"
"""Pseudo-dtype of products of int16 data and weights in pairs of bytes, widened where loaded."""
RANGE_EPILOGUE = "range"
"""Epilogue that reduces all that a kernel stores to its maximum or minimum; each element is stored
once, unless sums are kept in the output."""
Tensors: TypeAlias = list[te.Tensor]
BuildKernel: TypeAlias = Callable[[Tensors, Tensors, Target, str, Decision], PrimFunc]
"""Builder function (inputs, outputs, target, name, decision) -> PrimFunc."""


CreateInitialProgram: TypeAlias = Callable[[Tensors, KernelSpec, str], PrimFunc]
"""Function (inputs, kernel, name) -> initial program of the schedule."""


def create_kernel_program(inputs: Tensors, kernel: KernelSpec, name: str) -> PrimFunc:
    """Create a program with a block for the anchor and one for its elementwise consumers."""
    return create_inlined_program(inputs, list(kernel.outputs), name)


@dataclass(frozen=True, slots=True)
class MatmulSizes:
    """Sizes of a matrix product: `rows` of data, `columns` of results, `depth` terms of each; None
    where dynamic.
    """

    rows: int | None
    columns: int | None
    depth: int | None
    dtype: str = "float32"
    """Data dtype, or INT16_PAIR_SUMS or BYTE_PAIRS."""

    @staticmethod
    def from_dims(
        rows: object, columns: object, depth: object, dtype: str = "float32"
    ) -> MatmulSizes:
        """Return the sizes of a product with these dimensions."""
        return MatmulSizes(known_extent(rows), known_extent(columns), known_extent(depth), dtype)


def product_dtype(data_dtype: str, weight: te.Tensor) -> str:
    """Return the dtype whose step cost a product has: that of the data as they are multiplied by a
    packed weight.
    """
    if weight.dtype == "int8" and elements_per_word(weight) == WORD_PAIR_ELEMENTS:
        return BYTE_PAIRS
    return WIDENED_DTYPE if weight.dtype == WIDENED_DTYPE else data_dtype


def elements_per_word(weight: te.Tensor) -> int:
    """Return the elements of the words of a packed weight, which its last axis has; 1 where it has
    no words.
    """
    if weight.dtype not in DOT_WORD_BY_DTYPE:
        return 1
    elements = known_extent(weight.shape[-1])
    assert elements is not None, "words have a known size"
    return elements


def known_extent(dim: object) -> int | None:
    """Return a dimension as an int, or None if it is dynamic."""
    if isinstance(dim, IntImm):
        return dim.value
    return dim if isinstance(dim, int) else None


def empty_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the empty search space of a family without knobs."""
    return ()


def empty_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the empty decision of a family without knobs."""
    return Decision()


def identity_outputs(outputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Return the outputs unchanged: all of them belong to the anchor's kernel."""
    return list(outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Kernel family: accepted computations, required target features, search space, default
    decision and builder.

    Attributes:
        name: The tag of the anchor operation.
        schedule_steps: Schedules the program that `create_initial_program` returns.
        build_unscheduled: Builds the loops without a schedule.
        unscheduled_reason: Why no schedule builds them.
        create_initial_program: Creates the program to schedule.
        accepts: Whether the family computes an anchor.
        required_features: Features that the target must have (`Target.has`).
        alternative_features: Features of which the target must have at least one.
        search_space: Returns the search space of an anchor on a target.
        default_decision: Returns the default decision, with overrides applied.
        anchored_outputs: Returns the outputs that must be elementwise on the anchor; the kernel
            computes the others.
        prevents_fusion: Whether the anchor has several outputs, so that nothing fuses with it.
        default_panel_width: Returns the columns of a panel of packed weights.
        panel_width_knob: Returns the knob of the panel width.
        special_epilogues: Epilogues other than elementwise operators, by name.
        writes_strided_rows: Whether results may be slices of longer rows.
        stores_partial_sums: Whether a decision stores sums before all inputs have been read.
        is_gpu_family: Whether loops are bound to GPU threads; `accepts` selects the anchors, not
            the tag.
        needs_barriers: Whether threads of a block synchronise, which does not pay where threads
            run one after the other and compute with vectors.
    """

    name: str
    schedule_steps: ScheduleSteps | None = None
    build_unscheduled: BuildKernel | None = None
    unscheduled_reason: str = ""
    create_initial_program: CreateInitialProgram = create_kernel_program
    accepts: Callable[[te.Tensor, Target], bool] = lambda anchor, target: has_known_weights(anchor)
    required_features: tuple[str, ...] = ()
    alternative_features: tuple[str, ...] = ()
    search_space: Callable[[te.Tensor, Target], SearchSpace] = empty_space
    default_decision: Callable[[te.Tensor, Target, Overrides], Decision] = empty_decision
    anchored_outputs: Callable[[Sequence[te.Tensor]], Sequence[te.Tensor]] = identity_outputs
    prevents_fusion: bool = False
    default_panel_width: Callable[[MatmulSizes, Target], int] | None = None
    panel_width_knob: Callable[[Target], Knob] | None = None
    special_epilogues: tuple[str, ...] = ()
    writes_strided_rows: bool = False
    stores_partial_sums: Callable[[Decision], bool] = lambda decision: False
    is_gpu_family: bool = False
    needs_barriers: bool = False

    def build_kernel(
        self,
        inputs: Tensors,
        outputs: Tensors,
        target: Target,
        name: str,
        decision: Decision,
        anchor: te.Tensor | None,
        proofs: str = "checked",
    ) -> ScheduledKernel:
        """Build the loops of a kernel.

        Args:
            inputs: The parameters that are read, in order.
            outputs: The parameters that are written, in order.
            target: The processor.
            name: The symbol of the kernel.
            decision: The values of all knobs.
            anchor: The operation that the kernel is built around.
            proofs: Whether the steps of a schedule are "checked" or "trusted".

        Raises:
            CompileError: For a decision that no kernel follows.
        """
        if self.schedule_steps is None:
            assert self.build_unscheduled is not None, self.name
            func = self.build_unscheduled(inputs, outputs, target, name, decision)
            return ScheduledKernel(func, unscheduled_reason=self.unscheduled_reason)
        assert anchor is not None, self.name
        kernel = KernelSpec(outputs, anchor, target, decision, proofs)
        try:
            return apply_schedule_steps(
                self.create_initial_program(inputs, kernel, name), self.schedule_steps, kernel
            )
        except ScheduleError as error:
            raise CompileError(f"decisions: '{self.name}' {decision}: {error}") from error

    def supports_target(self, target: Target) -> bool:
        """Return whether a target has the features that the kernels need."""
        has_one = not self.alternative_features or any(map(target.has, self.alternative_features))
        is_kind = self.is_gpu_family == target.kind.has_threads
        # Threads that run one after the other would have to give up their registers at each
        # barrier.
        if self.needs_barriers and vector_access.computes_with_vectors(target):
            return False
        return is_kind and has_one and all(map(target.has, self.required_features))

    def choose_decision(self, anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
        """Return the decision for a kernel.

        Args:
            anchor: The operation that the kernel is built around.
            target: The processor.
            fixed: Values that the decision must have.

        Raises:
            CompileError: For an override that is no knob, or a value outside its domain.
        """
        if fixed:
            space = self.search_space(anchor, target)
            fixed = with_current_names(space, fixed)
            require_valid_overrides(space, fixed, f"'{self.name}'")
        decision = self.default_decision(anchor, target, fixed)
        missing = [
            c.name
            for c in self.search_space(anchor, target)
            if not c.is_early and c.name not in decision
        ]
        assert not missing, f"{self.name}: {decision} does not say {missing}"
        return decision

    def choose_panel_width(self, product: MatmulSizes, target: Target, fixed: Overrides) -> int:
        """Return the panel width of packed weights, in columns. Raises CompileError for an invalid
        override.
        """
        assert self.default_panel_width is not None and self.panel_width_knob is not None, self.name
        override = fixed.get("panel")
        if override is None:
            return self.default_panel_width(product, target)
        choice = self.panel_width_knob(target)
        choice.check(override, f"'{self.name}'")
        assert isinstance(override, int)
        return clamp_panel_width(override, product, target)


def clamp_panel_width(panel: int, product: MatmulSizes, target: Target) -> int:
    """Clamp a panel width to the columns of the product, rounded up to whole vectors."""
    lanes = target.lanes("float32")
    return panel if product.columns is None else min(panel, -(-product.columns // lanes) * lanes)


FamilyTable: TypeAlias = Mapping[str, Family]
