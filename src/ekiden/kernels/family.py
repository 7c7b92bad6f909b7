"""A family of kernels is one row: which computations it takes, what it needs of a processor, what
may be chosen, what is chosen unless told otherwise, and how the loops are built.

Relay asks the row too: how weights lie that its kernels read (`panel`), what may follow in the
same kernel (`endings`), and whether results may be a part of longer rows (`writes_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ekiden import te
from ekiden._lazy import LazyModule
from ekiden.ir.prim import IntImm
from ekiden.kernels.decision import Choice, Decision, Fixed, Space, check_fixed
from ekiden.kernels.stages import has_known_weights
from ekiden.kernels.steps import Kernel, Scheduled, Steps, program_of, scheduled
from ekiden.runtime.errors import CompileError, ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc

if TYPE_CHECKING:
    from ekiden.kernels.gpu import vector_access
else:
    vector_access = LazyModule("ekiden.kernels.gpu.vector_access")

NARROW = "narrow"
"""What stands for the dtype of bytes whose sums of two products fit int16."""
Tensors: TypeAlias = list[te.Tensor]
Build: TypeAlias = Callable[[Tensors, Tensors, Target, str, Decision], PrimFunc]
"""(inputs, outputs, target, name, decision) -> the loops, parameters in that order."""


Start: TypeAlias = Callable[[Tensors, Kernel, str], PrimFunc]
"""(inputs, what is to be made, name) -> the program before."""


def program_of_kernel(inputs: Tensors, kernel: Kernel, name: str) -> PrimFunc:
    """One block for the anchor, and one for what is made of it."""
    return program_of(inputs, list(kernel.outputs), name)


@dataclass(frozen=True, slots=True)
class Product:
    """The sizes of a product of matrices as far as they are known: `rows` of data, `columns` of
    results, `depth` terms of each; None for what only a run knows."""

    rows: int | None
    columns: int | None
    depth: int | None
    dtype: str = "float32"
    """Of data; NARROW for bytes whose sums of two products fit int16."""

    @staticmethod
    def of(rows: object, columns: object, depth: object, dtype: str = "float32") -> Product:
        """From dimensions."""
        return Product(size_of(rows), size_of(columns), size_of(depth), dtype)


def size_of(dim: object) -> int | None:
    """A dimension as a number, if it is known."""
    if isinstance(dim, IntImm):
        return dim.value
    return dim if isinstance(dim, int) else None


def no_choices(anchor: te.Tensor, target: Target) -> Space:
    """The space of a family without choices."""
    return ()


def decide_nothing(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """The decision of such a family."""
    return Decision()


def as_they_are(outputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """All outputs follow the anchor."""
    return list(outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row of the table of kernels.

    name: the tag of the anchor, the operation that its kernels are made around. accepts: whether
    an anchor is one it computes. needs: abilities that a target must have (`Target.has`);
    needs_one: of which it must have one. space: what may be chosen for an anchor on a target.
    default: what is, given what is fixed.
    steps: the schedule of a kernel, of the program that `start` gives. build: what writes the loops
    by hand instead, and why it does; by_hand: the anchors for which it does, where there are steps.
    ends: of the outputs, what must be elementwise on the anchor (the kernel does the rest).
    is_whole: the anchor is an operation with outputs of its own that nothing joins.
    panel, panels: columns of a panel of packed weights for a product, and all that there may be.
    endings: what may end a kernel beside elementwise operators, by name. writes_rows: whether
    results may be a part of longer rows. keeps_sums: whether a decision makes kernels that keep
    something in their result before they have read all inputs. on_threads: kernels are bound to
    threads, for targets of such devices alone, and anchors are told by `accepts`, not by a tag.
    together: threads of a block wait for each other, which is of no use where they run one after
    the other and compute with vectors.
    """

    name: str
    steps: Steps | None = None
    build: Build | None = None
    why: str = ""
    by_hand: Callable[[te.Tensor], bool] = lambda anchor: False
    start: Start = program_of_kernel
    accepts: Callable[[te.Tensor, Target], bool] = lambda anchor, target: has_known_weights(anchor)
    needs: tuple[str, ...] = ()
    needs_one: tuple[str, ...] = ()
    space: Callable[[te.Tensor, Target], Space] = no_choices
    default: Callable[[te.Tensor, Target, Fixed], Decision] = decide_nothing
    ends: Callable[[Sequence[te.Tensor]], Sequence[te.Tensor]] = as_they_are
    is_whole: bool = False
    panel: Callable[[Product, Target], int] | None = None
    panels: Callable[[Target], Choice] | None = None
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
        """The loops of a kernel, parameters in that order. Raises CompileError for a decision of
        which there is no kernel."""
        if self.steps is None or (anchor is not None and self.by_hand(anchor)):
            assert self.build is not None, self.name
            made = self.build(inputs, outputs, target, name, decision)
            return Scheduled(made, why=self.why)
        assert anchor is not None, self.name
        kernel = Kernel(outputs, anchor, target, decision)
        try:
            return scheduled(self.start(inputs, kernel, name), self.steps, kernel)
        except ScheduleError as error:
            raise CompileError(f"decisions: '{self.name}' {decision}: {error}") from error

    def serves(self, target: Target) -> bool:
        """Whether a target has what the kernels need."""
        has_one = not self.needs_one or any(map(target.has, self.needs_one))
        is_kind = self.on_threads == target.kind.has_threads
        if self.together and vector_access.has_vectors(target):
            return False
        return is_kind and has_one and all(map(target.has, self.needs))

    def decide(self, anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
        """The decision for a kernel. Raises CompileError for a fixed choice that there is not, or a
        value that it cannot have.
        """
        if fixed:
            check_fixed(self.space(anchor, target), fixed, f"'{self.name}'")
        made = self.default(anchor, target, fixed)
        missing = [
            c.name for c in self.space(anchor, target) if not c.is_early and c.name not in made
        ]
        assert not missing, f"{self.name}: {made} does not say {missing}"
        return made

    def panel_of(self, product: Product, target: Target, fixed: Fixed) -> int:
        """Columns of a panel of packed weights. Raises CompileError for a fixed one that cannot
        be."""
        assert self.panel is not None and self.panels is not None, self.name
        asked = fixed.get("panel")
        if asked is None:
            return self.panel(product, target)
        choice = self.panels(target)
        choice.check(asked, f"'{self.name}'")
        assert isinstance(asked, int)
        return narrowed(asked, product, target)


def narrowed(panel: int, product: Product, target: Target) -> int:
    """The width of a panel where there may be fewer columns than that: whole vectors of them."""
    lanes = target.lanes("float32")
    return panel if product.columns is None else min(panel, -(-product.columns // lanes) * lanes)


Table: TypeAlias = Mapping[str, Family]
