"""Kernel family: the computations it accepts, the target features it needs, its search space,
default decision and builder.

Relay asks the row too: the panels in which its kernels read weights (`panel`), the epilogues that
the same kernel can have, and whether results may be slices of longer rows (`writes_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ekiden import te
from ekiden._lazy import LazyModule
from ekiden.ir.prim import IntImm
from ekiden.kernels.decision import Decision, Knob, Overrides, Space, require_valid_overrides
from ekiden.kernels.scheduled_kernel import (
    Scheduled,
    ScheduledKernel,
    Steps,
    apply_steps,
    create_inlined_program,
)
from ekiden.kernels.stages import has_known_weights
from ekiden.runtime.errors import CompileError, ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc

if TYPE_CHECKING:
    from ekiden.kernels.gpu import vector_access
else:
    vector_access = LazyModule("ekiden.kernels.gpu.vector_access")

INT16_PAIR_SUMS = "narrow"
"""Pseudo-dtype of byte products whose pair sums fit int16."""
RANGE_EPILOGUE = "range"
"""Epilogue that reduces all that a kernel stores to its maximum or minimum; each element is stored
once, unless sums are kept in the output."""
Tensors: TypeAlias = list[te.Tensor]
Build: TypeAlias = Callable[[Tensors, Tensors, Target, str, Decision], PrimFunc]
"""Builder function (inputs, outputs, target, name, decision) -> PrimFunc."""


Start: TypeAlias = Callable[[Tensors, ScheduledKernel, str], PrimFunc]
"""Function (inputs, kernel, name) -> initial program of the schedule."""


def create_kernel_program(inputs: Tensors, kernel: ScheduledKernel, name: str) -> PrimFunc:
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
    """Data dtype, or INT16_PAIR_SUMS for byte products whose pair sums fit int16."""

    @staticmethod
    def from_dims(
        rows: object, columns: object, depth: object, dtype: str = "float32"
    ) -> MatmulSizes:
        """Return the sizes of a product with these dimensions."""
        return MatmulSizes(known_extent(rows), known_extent(columns), known_extent(depth), dtype)


def known_extent(dim: object) -> int | None:
    """Return a dimension as an int, or None if it is dynamic."""
    if isinstance(dim, IntImm):
        return dim.value
    return dim if isinstance(dim, int) else None


def empty_space(anchor: te.Tensor, target: Target) -> Space:
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

    The fields are, besides the name, which is the tag of the anchor operation:

        steps           the schedule of the program that `start` gives
        build, why      builds the loops instead of a schedule, and why; `by_hand` says for which
                        anchors, where there are steps too
        accepts         whether the family computes an anchor
        needs           abilities that a target must have (`Target.has`)
        needs_one       abilities of which a target must have at least one
        space, default  the search space of an anchor on a target, and the default decision
        ends            the outputs that must be elementwise on the anchor; the kernel does the rest
        is_whole        the anchor has outputs of its own, and nothing fuses with it
        panel, panels   columns of a panel of packed weights for a product, and the knob of them
        endings         names of what may end a kernel besides elementwise operators
        writes_rows     whether results may be slices of longer rows
        keeps_sums      whether a decision stores sums before all inputs have been read
        on_threads      kernels are bound to GPU threads; `accepts` tells the anchors, not a tag
        together        threads of a block wait for one another, which is of no use where threads
                        run one after the other and compute with vectors
    """

    name: str
    steps: Steps | None = None
    build: Build | None = None
    why: str = ""
    by_hand: Callable[[te.Tensor], bool] = lambda anchor: False
    start: Start = create_kernel_program
    accepts: Callable[[te.Tensor, Target], bool] = lambda anchor, target: has_known_weights(anchor)
    needs: tuple[str, ...] = ()
    needs_one: tuple[str, ...] = ()
    space: Callable[[te.Tensor, Target], Space] = empty_space
    default: Callable[[te.Tensor, Target, Overrides], Decision] = empty_decision
    ends: Callable[[Sequence[te.Tensor]], Sequence[te.Tensor]] = identity_outputs
    is_whole: bool = False
    panel: Callable[[MatmulSizes, Target], int] | None = None
    panels: Callable[[Target], Knob] | None = None
    endings: tuple[str, ...] = ()
    writes_rows: bool = False
    keeps_sums: Callable[[Decision], bool] = lambda decision: False
    on_threads: bool = False
    together: bool = False

    def make(
        self,
        inputs: Tensors,
        outputs: Tensors,
        target: Target,
        name: str,
        decision: Decision,
        anchor: te.Tensor | None,
    ) -> Scheduled:
        """Build the loops of a kernel.

        Args:
            inputs: The parameters that are read, in order.
            outputs: The parameters that are written, in order.
            target: The processor.
            name: The symbol of the kernel.
            decision: The values of all knobs.
            anchor: The operation that the kernel is built around.

        Raises:
            CompileError: For a decision that no kernel follows.
        """
        # Handwritten loops come first: a family with both names the anchors that a schedule cannot
        # build.
        if self.steps is None or (anchor is not None and self.by_hand(anchor)):
            assert self.build is not None, self.name
            func = self.build(inputs, outputs, target, name, decision)
            return Scheduled(func, why=self.why)
        assert anchor is not None, self.name
        kernel = ScheduledKernel(outputs, anchor, target, decision)
        try:
            return apply_steps(self.start(inputs, kernel, name), self.steps, kernel)
        except ScheduleError as error:
            raise CompileError(f"decisions: '{self.name}' {decision}: {error}") from error

    def serves(self, target: Target) -> bool:
        """Return whether a target has the features that the kernels need."""
        has_one = not self.needs_one or any(map(target.has, self.needs_one))
        is_kind = self.on_threads == target.kind.has_threads
        # Threads that run one after the other would have to give up their registers at each
        # barrier.
        if self.together and vector_access.computes_with_vectors(target):
            return False
        return is_kind and has_one and all(map(target.has, self.needs))

    def decide(self, anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
        """Return the decision for a kernel.

        Args:
            anchor: The operation that the kernel is built around.
            target: The processor.
            fixed: Values that the decision must have.

        Raises:
            CompileError: For an override that is no knob, or a value outside its domain.
        """
        if fixed:
            require_valid_overrides(self.space(anchor, target), fixed, f"'{self.name}'")
        decision = self.default(anchor, target, fixed)
        missing = [
            c.name for c in self.space(anchor, target) if not c.is_early and c.name not in decision
        ]
        assert not missing, f"{self.name}: {decision} does not say {missing}"
        return decision

    def panel_of(self, product: MatmulSizes, target: Target, fixed: Overrides) -> int:
        """Return the panel width of packed weights, in columns. Raises CompileError for an invalid
        override.
        """
        assert self.panel is not None and self.panels is not None, self.name
        override = fixed.get("panel")
        if override is None:
            return self.panel(product, target)
        choice = self.panels(target)
        choice.check(override, f"'{self.name}'")
        assert isinstance(override, int)
        return clamp_panel_width(override, product, target)


def clamp_panel_width(panel: int, product: MatmulSizes, target: Target) -> int:
    """Clamp a panel width to the columns of the product, rounded up to whole vectors."""
    lanes = target.lanes("float32")
    return panel if product.columns is None else min(panel, -(-product.columns // lanes) * lanes)


Table: TypeAlias = Mapping[str, Family]
