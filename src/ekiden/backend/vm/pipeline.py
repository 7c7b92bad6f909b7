"""Pass pipeline from an imported module to the VM compiler's input, as a list in order.

    language   constructors, inlining, the quantised dialect: what later passes need not know
    graph      values rewritten into cheaper ones, layouts, weights packed: nothing has a place
    kernels    what runs together (FuseOps): from here on values are not merged any more
    order      A-normal form: a list of steps, effects in place, functions global
    memory     allocations, parts of others in place, kernels compiled, one arena per function

A pass may count on what those before it have left; `needed` ones run at every opt level, as what
follows cannot do without them. Why one stands where it does is said beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.backend.kernels.tiered_compilation import FullTierRequest
from ekiden.backend.vm.module_kernels import ModuleKernels, compile_kernels
from ekiden.backend.vm.unsupported_operators import unsupported_on_device
from ekiden.codegen.parallel import ProgressCallback
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import PLACEMENT_COSTS_OPTION, PassContext
from ekiden.ir.transform import Pass, Sequential, as_required_pass
from ekiden.relay.qnn import transform as qnn
from ekiden.relay.transform.devices.plan_devices import PlanDevices
from ekiden.relay.transform.devices.schedule_device_work import DevicesFirst
from ekiden.relay.transform.fusion.fuse_ops import FuseOps
from ekiden.relay.transform.fusion.fuse_ranges import FuseRanges
from ekiden.relay.transform.fusion.rematerialize import Rematerialize
from ekiden.relay.transform.fusion.split_args import SplitArgs
from ekiden.relay.transform.graph.combine_parallel import CombineFewRows
from ekiden.relay.transform.graph.constant_evaluation_cache import cache_results
from ekiden.relay.transform.graph.einsum_to_matmul import MultiplyEinsums
from ekiden.relay.transform.graph.eliminate_common_subexpr import EliminateCommonSubexpr
from ekiden.relay.transform.graph.expand_ops import ExpandOps
from ekiden.relay.transform.graph.fast_math import FastMath
from ekiden.relay.transform.graph.flatten_atrous_conv import FlattenAtrousConv
from ekiden.relay.transform.graph.fold_constant import FoldConstant
from ekiden.relay.transform.graph.fold_explicit_padding import FoldExplicitPadding
from ekiden.relay.transform.graph.fold_scale_axis import FoldScaleAxis
from ekiden.relay.transform.graph.fuse_attention import FuseAttention
from ekiden.relay.transform.graph.legalize import Legalize
from ekiden.relay.transform.graph.simplify_expr import SimplifyExpr
from ekiden.relay.transform.graph.simplify_inference import SimplifyInference
from ekiden.relay.transform.graph.sum_convolutions import SumConvolutions
from ekiden.relay.transform.language.call_prim_funcs import CallPrimFuncs
from ekiden.relay.transform.language.dead_code_elimination import DeadCodeElimination
from ekiden.relay.transform.language.eta_expand import EtaExpand
from ekiden.relay.transform.language.hoist_invariants import HoistInvariants
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.inline import Inline
from ekiden.relay.transform.language.inline_kernels import InlineKernels
from ekiden.relay.transform.language.inline_primitives import InlinePrimitives
from ekiden.relay.transform.language.lambda_lift import LambdaLift
from ekiden.relay.transform.language.remove_unused_functions import RemoveUnusedFunctions
from ekiden.relay.transform.language.to_a_normal_form import ToANormalForm
from ekiden.relay.transform.layout.alter_op_layout import AlterOpLayout
from ekiden.relay.transform.layout.convert_layout import ConvertLayout
from ekiden.relay.transform.memory.concatenate_in_place import ConcatenateInPlace
from ekiden.relay.transform.memory.manifest_alloc import ManifestAlloc
from ekiden.relay.transform.memory.slice_in_place import SliceInPlace
from ekiden.relay.transform.memory.unalias_results import OwnResults
from ekiden.relay.transform.memory.update_in_place import UpdateInPlace
from ekiden.relay.transform.memory_plan import MemoryPlan
from ekiden.relay.transform.precision.product_precision import ProductPrecision
from ekiden.relay.transform.quantization.integer_products import IntegerProducts
from ekiden.relay.transform.quantization.merge_requantization import MergeRequantization
from ekiden.relay.transform.shapes.bind_dimensions import BindDimensions
from ekiden.relay.transform.shapes.carry_dimensions import CarryDimensions
from ekiden.relay.transform.shapes.hoist_dimensions import HoistDimensions
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import CompilationConfig, Target

if TYPE_CHECKING:
    from ekiden.backend.vm import min_cut_placement
else:
    min_cut_placement = LazyModule("ekiden.backend.vm.min_cut_placement")

MAX_CONCAT_INPUTS = 64
"""Maximum number of tensors that one kernel concatenates: LLVM's compile time grows faster than
linearly, and kernels with the same number of inputs are shared. Nor does it read more of what it
computes them from: a part with operators of its own is a kernel then, which many parts share.
"""
FEW_INPUTS_REASON = "as a kernel of a device takes no more inputs"


def vm_pipeline(
    target: Target,
    config: CompilationConfig | None = None,
    *,
    in_place: bool = True,
    concurrent: bool = False,
    plans_memory: bool = True,
) -> Sequential:
    """Build the pass pipeline of the virtual machine for a target. `config` says on which devices.

    `in_place`: whether tensors may be parts of others: several kernels then write the parts of a
    concatenation, and slices lie in what they are cut from. Graphs cannot say so, and kernels that
    may run at the same time would wait for each other, or not know that they have to. `concurrent`:
    as in MemoryPlan. Without `plans_memory` each tensor keeps a storage of its own, for who gives
    them places later (`lower`, once kernels have said what memory they need) or by other means.
    """
    layout = config.layout_target if config is not None else None
    layout = layout or target
    devices = (layout, *(config.device_targets if config is not None else ()))
    most_inputs = min((t.most_inputs for t in devices if t.most_inputs), default=0)
    infer_type = as_required_pass(InferType(), "to know the types of a program")
    return Sequential(
        (
            RemoveUnusedFunctions(),
            as_required_pass(CallPrimFuncs(), "to call loop programs"),
            infer_type,
            as_required_pass(EtaExpand(), "to make constructors functions"),
            infer_type,
            as_required_pass(InlineKernels(), "to know what is a kernel by its call"),
            Inline(),
            as_required_pass(
                Legalize(), "as an operator may have no kernel but what it is legalized to"
            ),
            qnn.Legalize(),
            IntegerProducts(),  # before weights fold to the floats they stand for
            FoldConstant(fold_qnn=True),  # the dialect's products of bytes want constant weights
            FoldExplicitPadding(),  # also by zero points, which the next pass forgets
            as_required_pass(qnn.CanonicalizeOps(), "as no later pass knows the dialect"),
            as_required_pass(ExpandOps(), "as there are no kernels for these operators"),
            SimplifyInference(),
            FoldConstant(),
            # shapes that are constants are known now
            as_required_pass(BindDimensions(), "to give names to dimensions that are data"),
            SimplifyExpr(exact=True),  # what rounds as before
            FastMath(),  # for who asks: from opt level 4 on, or by its name
            FlattenAtrousConv(),
            MultiplyEinsums(),
            FuseAttention(),  # before layouts hide its transpositions
            CombineFewRows(),
            ProductPrecision(layout),
            FoldConstant(),  # weights in the type they are multiplied in
            EliminateCommonSubexpr(),
            MergeRequantization(),
            FoldScaleAxis(),  # before layouts change: it knows OIHW only
            SumConvolutions(),  # the same
            *(
                ()
                if layout.kind.has_threads
                else (
                    ConvertLayout(),
                    AlterOpLayout(layout),  # needs NHWC
                    EliminateCommonSubexpr(),  # layouts of one tensor for several readers
                )
            ),
            FoldConstant(),  # packs the weights
            as_required_pass(SplitArgs(most_inputs), FEW_INPUTS_REASON)
            if most_inputs
            else SplitArgs(MAX_CONCAT_INPUTS),
            # also what inlining and the passes above put into loops
            HoistInvariants(),
            Rematerialize(),
            # nothing that merges values may follow
            *(
                (
                    as_required_pass(
                        min_cut_placement.PlaceByCost(config), "as who measured has asked for"
                    ),
                )
                if PassContext.current().config.get(PLACEMENT_COSTS_OPTION)
                else ()
            ),
            as_required_pass(
                PlanDevices(config, marks=False, refuses=unsupported_on_device(config)),
                "to say where each value lives",
            ),
            as_required_pass(
                FuseOps(most_inputs=most_inputs or MAX_CONCAT_INPUTS),
                "to make kernels; the option relay.FuseOps.max_depth=1 keeps operators apart",
            ),
            *(() if any(t.kind.has_threads for t in devices) else (FuseRanges(),)),
            as_required_pass(ToANormalForm(), "to put the program into order"),
            DeadCodeElimination(),
            InlinePrimitives(),
            DevicesFirst(),
            as_required_pass(LambdaLift(), "to make functions inside of others global"),
            RemoveUnusedFunctions(),  # what was inlined everywhere
            infer_type,
            as_required_pass(HoistDimensions(), "to compute dimensions where they are known"),
            as_required_pass(CarryDimensions(), "to pass dimensions to where they are needed"),
            as_required_pass(ManifestAlloc(), "to allocate results"),
            *((ConcatenateInPlace(), SliceInPlace()) if in_place else ()),
            *(_memory_passes(None, concurrent) if plans_memory else ()),
        ),
        "vm",
    )


def _memory_passes(kernels: ModuleKernels | None, concurrent: bool) -> tuple[Pass, ...]:
    """Return the memory planning passes, which include the workspaces of compiled kernels."""
    facts = kernels.facts if kernels is not None else None
    return (MemoryPlan(facts, concurrent=concurrent), UpdateInPlace(facts), OwnResults())


def optimize_module(
    module: IRModule,
    target: Target,
    config: CompilationConfig | None = None,
    *,
    in_place: bool = True,
    concurrent: bool = False,
) -> IRModule:
    """Run the pass pipeline on a module, without compiling kernels."""
    with cache_results():
        return vm_pipeline(target, config, in_place=in_place, concurrent=concurrent)(module)


@dataclass(frozen=True, eq=False, slots=True)
class LoweredModule:
    """Lowered module, with memory planned and kernels compiled, ready for `compile_variants`."""

    module: IRModule
    kernels: ModuleKernels
    unplanned: IRModule | None
    """Module before memory planning in the quick tier, whose compiled kernels may need workspaces.
    """


def lower(
    module: IRModule,
    target: Target,
    config: CompilationConfig | None = None,
    *,
    in_place: bool = True,
    concurrent: bool = False,
    tier: str = "full",
    progress: ProgressCallback | None = None,
) -> LoweredModule:
    """Run the pipeline for a target and compile the kernels; arguments as those of `pipeline` and
    `compile_kernels`. Raises what these do."""
    passes = vm_pipeline(
        target, config, in_place=in_place, concurrent=concurrent, plans_memory=False
    )
    devices = config.device_targets_by(target) if config is not None else {}
    with cache_results():
        unplanned = passes(module)
        kernels = compile_kernels(unplanned, target, devices, progress, tier=tier)
        planned = _plan_memory(unplanned, kernels, concurrent)
    return LoweredModule(planned, kernels, unplanned if kernels.kernels.general_forms else None)


def lower_full_tier(
    general: LoweredModule, finishing: FullTierRequest, concurrent: bool
) -> LoweredModule:
    """Lower a module that was lowered with general kernels to the full tier."""
    assert general.unplanned is not None, "it has general kernels"
    general_kernels = general.kernels
    kernels = compile_kernels(
        general.unplanned, general_kernels.target, general_kernels.devices, finishing=finishing
    )
    return LoweredModule(_plan_memory(general.unplanned, kernels, concurrent), kernels, None)


def _plan_memory(module: IRModule, kernels: ModuleKernels, concurrent: bool) -> IRModule:
    return Sequential(_memory_passes(kernels, concurrent), "memory")(module)
