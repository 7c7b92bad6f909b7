"""Selection of a group's kernel family and decision, and the construction of its loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ekiden import te
from ekiden.ir.pass_context import notify_product
from ekiden.ir.prim import is_const
from ekiden.kernels.decision import Decision, Overrides
from ekiden.kernels.families import FAMILIES, merged_overrides
from ekiden.kernels.family import Family
from ekiden.kernels.in_place import aliasable_inputs, updated_input
from ekiden.kernels.output_ranges import append_ranges, split_ranges
from ekiden.kernels.range_checks import add_range_checks
from ekiden.kernels.scheduled_kernel import ScheduledKernel, create_inlined_program
from ekiden.kernels.stages import (
    copy_repeated_outputs,
    inline_cheap_stages,
    is_anchor_with_epilogue,
    stages_of,
)
from ekiden.runtime import environment
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc

_NO_OVERRIDES: Mapping[str, Overrides] = {}


@dataclass(frozen=True, slots=True)
class KernelSelection:
    """Selected family of a group, its anchor (None: the whole group), and the decision.

    is_default: Whether the family made the whole decision, which its tests have proved.
    """

    family: Family
    anchor: te.Tensor | None
    decision: Decision
    is_default: bool = True


def select_kernel(
    outputs: list[te.Tensor],
    target: Target,
    overrides: Mapping[str, Overrides] = _NO_OVERRIDES,
    names: tuple[str, ...] = (),
) -> KernelSelection:
    """Select the family and the decision for a group.

    Args:
        outputs: The outputs of the group.
        target: The processor.
        overrides: Overrides by family or by one of the group's own names.
        names: The group's own names.

    Raises:
        CompileError: For an override that the family has no knob for.
    """
    family, anchor = _select_family(split_ranges(outputs, target)[0], target)
    if anchor is None:
        return KernelSelection(family, None, Decision())
    fixed = merged_overrides((family.name, *names), overrides) if overrides else {}
    decision = family.choose_decision(anchor, target, fixed)
    return KernelSelection(family, anchor, decision, not fixed)


def _select_gpu_family(outputs: list[te.Tensor], target: Target) -> tuple[Family, te.Tensor | None]:
    """Select the GPU kernel family of a group whose cheap producers are inlined."""
    chosen = inline_cheap_stages(copy_repeated_outputs(outputs))
    anchors = [t for t in stages_of(chosen) if not te.is_injective(t)]
    if len(anchors) == 1 and is_anchor_with_epilogue(anchors[0], chosen):
        for row in FAMILIES.values():
            if (
                row.is_gpu_family
                and row.supports_target(target)
                and row.accepts(anchors[0], target)
            ):
                return row, anchors[0]
    return FAMILIES["threads"], None


def _is_single_operation(outputs: list[te.Tensor]) -> bool:
    """Return whether a kernel is a single operation on the kernel's own inputs."""
    op = outputs[0].op
    operands = op.inputs if isinstance(op, te.ExternOp) else ()
    is_one = all(t.op is op for t in outputs)
    return is_one and all(isinstance(t.op, te.PlaceholderOp) for t in operands)


def _has_no_elements(tensor: te.Tensor) -> bool:
    """Return whether a tensor is empty; blocks over it cannot be scheduled."""
    return any(is_const(dim, 0) for dim in tensor.shape)


def _select_family(outputs: list[te.Tensor], target: Target) -> tuple[Family, te.Tensor | None]:
    if target.kind.has_threads:
        return _select_gpu_family(outputs, target)
    whole_family = FAMILIES.get(outputs[0].op.tag)
    if whole_family is not None and whole_family.prevents_fusion and _is_single_operation(outputs):
        return whole_family, outputs[0]
    for tensor in te.post_order_tensors(outputs):
        row = FAMILIES.get(tensor.op.tag)
        if row is None or row.prevents_fusion or _has_no_elements(tensor):
            continue
        if not row.supports_target(target) or not row.accepts(tensor, target):
            continue
        # The micro-kernel reads full vectors of a panel without masks.
        if not _has_full_vector_panels(tensor, target):
            continue
        # All that follows must be elementwise on the anchor, so that it runs on sums in registers.
        if is_anchor_with_epilogue(tensor, row.anchored_outputs(outputs)):
            return row, tensor
    return FAMILIES["default"], None


def schedule(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    overrides: Mapping[str, Overrides] = _NO_OVERRIDES,
    names: tuple[str, ...] = (),
) -> PrimFunc:
    """Return the loop program of a group; see `schedule_kernel`.

    Args:
        inputs: The tensors that are read.
        outputs: The tensors that are written.
        target: The processor.
        name: The symbol of the kernel.
        overrides: Overrides by family or by one of the group's own names.
        names: The group's own names.
    """
    return schedule_kernel(inputs, outputs, target, name, overrides, names).func


def schedule_kernel(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    overrides: Mapping[str, Overrides] = _NO_OVERRIDES,
    names: tuple[str, ...] = (),
) -> ScheduledKernel:
    """Return the loop program of a group, and its schedule.

    A group that no family's anchor covers gets the default kernel of the target's kind. Checks of
    indices come first.

    Args:
        inputs: The tensors that are read.
        outputs: The tensors that are written.
        target: The processor.
        name: The symbol of the kernel.
        overrides: Overrides by family or by one of the group's own names.
        names: The group's own names.
    """
    chosen = select_kernel(outputs, target, overrides, names)
    stored, ranges = split_ranges(outputs, target)
    if chosen.anchor is None:  # kernels of several stages share loops among outputs
        stored, ranges = outputs, []
    proofs = environment.family_schedule_proofs() if chosen.is_default else "checked"
    result = chosen.family.build_kernel(
        inputs, stored, target, name, chosen.decision, chosen.anchor, proofs
    )
    if ranges:
        result = append_ranges(result, stored[0], ranges, target, chosen.family, chosen.decision)
    notify_product(
        "schedule.txt",
        f"the family {chosen.family.name}, its decision, and the steps of the schedule",
        lambda: "\n".join([decision_text(chosen, target), "", schedule_text(result)]),
    )
    func = add_range_checks(
        _mark_aliasable_inputs(result.func, inputs, outputs, chosen), inputs, outputs, target
    )
    return replace(result, func=func)


def decision_text(chosen: KernelSelection, target: Target) -> str:
    """Return the lines of text that describe the family, the decision and all knobs with their
    domains.
    """
    lines = [chosen.family.name]
    if chosen.anchor is None:
        return lines[0]
    if chosen.decision:
        lines.append(f"  {chosen.decision}")
    for choice in chosen.family.search_space(chosen.anchor, target):
        domain = " ".join(map(str, choice.domain))
        early = ", chosen when weights are packed" if choice.is_early else ""
        lines.append(f"    {choice.name}: {choice.doc}{early}; one of {domain}")
    return "\n".join(lines)


def schedule_text(kernel: ScheduledKernel) -> str:
    """Return the schedule's steps as Python, or the reason why there is none."""
    return (
        f"  written by hand: {kernel.unscheduled_reason}\n"
        if kernel.trace is None
        else f"{kernel.trace}\n"
    )


def _has_full_vector_panels(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the panels of a packed weight are whole vectors.

    An explicit layout may have narrower ones, whose last vector would end behind the weight.
    """
    tile = anchor.op.attrs.get("tile")
    return not isinstance(tile, int) or tile % target.lanes("float32") == 0


def _mark_aliasable_inputs(
    func: PrimFunc, inputs: list[te.Tensor], outputs: list[te.Tensor], chosen: KernelSelection
) -> PrimFunc:
    family = chosen.family
    anchor = chosen.anchor
    # A scatter-like kernel must alias its operand; for all others aliasing is an option of the
    # memory planner.
    if updated := updated_input(inputs, outputs):
        func = _attach_in_place_attr(func, updated)
        return func.with_fields(attrs={**(func.attrs or {}), "tir.updates": True})
    # Such kernels may store before they have read all of an input.
    if (
        family.prevents_fusion
        or family.is_gpu_family
        or family.stores_partial_sums(chosen.decision)
    ):
        return func
    if anchor is not None and family.anchored_outputs(outputs) != outputs:
        return func
    return _attach_in_place_attr(func, aliasable_inputs(inputs, outputs, anchor))


def _attach_in_place_attr(function: PrimFunc, inputs: tuple[int, ...]) -> PrimFunc:
    """Attach the indices of the inputs that the output may alias."""
    if not inputs:
        return function
    return function.with_fields(attrs={**(function.attrs or {}), "tir.in_place": inputs})


__all__ = [
    "FAMILIES",
    "Family",
    "KernelSelection",
    "ScheduledKernel",
    "create_inlined_program",
    "decision_text",
    "schedule",
    "schedule_kernel",
    "schedule_text",
    "select_kernel",
]  # fmt: skip
