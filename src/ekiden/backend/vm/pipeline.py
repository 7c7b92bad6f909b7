"""What turns an imported module into one the VM compiler takes: a literal list, in order."""

from __future__ import annotations

from ekiden.backend.vm.module_kernels import CompileKernels, ModuleKernels
from ekiden.backend.vm.place_by_cost import PlaceByCost
from ekiden.backend.vm.place_refused import PlaceRefused
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import COSTS, PassContext
from ekiden.ir.transform import Sequential, needed
from ekiden.relay import qnn, transform
from ekiden.target import CompilationConfig, Target

FEW = "as a kernel of a device takes no more inputs"


def pipeline(
    target: Target,
    config: CompilationConfig | None = None,
    *,
    in_place: bool = True,
    kernels: ModuleKernels | None = None,
    concurrent: bool = False,
    plans_memory: bool = True,
) -> Sequential:
    """The passes of the virtual machine for a target; `config` says on which devices.

    `in_place`: whether tensors may be parts of others: several kernels then write the parts of a
    concatenation, and slices lie in what they are cut from. Graphs cannot say so, and kernels that
    may run at the same time would wait for each other, or not know that they have to. `kernels`
    takes what CompileKernels makes; without it none are compiled, and MemoryPlan knows nothing of
    them. `concurrent`: as in MemoryPlan. Without `plans_memory` each tensor keeps a storage of its
    own, for who gives them places by other means.
    """
    layout = config.layout_target if config is not None else None
    layout = layout or target
    devices = (layout, *(config.device_targets if config is not None else ()))
    most_inputs = min((t.most_inputs for t in devices if t.most_inputs), default=0)
    infer_type = needed(transform.InferType(), "to know the types of a program")
    return Sequential(
        (
            transform.RemoveUnusedFunctions(),
            needed(transform.CallPrimFuncs(), "to call loop programs"),
            infer_type,
            needed(transform.EtaExpand(), "to make constructors functions"),
            infer_type,
            transform.Inline(),  # also what external compilers make, as functions in place
            qnn.transform.Legalize(),
            needed(qnn.transform.CanonicalizeOps(), "as no later pass knows the dialect"),
            needed(transform.ExpandOps(), "as there are no kernels for these operators"),
            transform.SimplifyInference(),
            transform.FoldConstant(),
            # shapes that are constants are known now
            needed(transform.BindDimensions(), "to give names to dimensions that are data"),
            transform.SimplifyExpr(exact=True),  # what rounds as before
            transform.FastMath(),  # for who asks: from opt level 4 on, or by its name
            transform.FlattenAtrousConv(),
            transform.MultiplyEinsums(),
            transform.FuseAttention(),  # before layouts hide its transpositions
            transform.CombineFewRows(),
            transform.ProductPrecision(layout),
            transform.FoldConstant(),  # weights in the type they are multiplied in
            transform.EliminateCommonSubexpr(),
            transform.FoldScaleAxis(),  # before layouts change: it knows OIHW only
            *(
                ()
                if layout.kind.has_threads
                else (
                    transform.ConvertLayout(),
                    transform.AlterOpLayout(layout),  # needs NHWC
                )
            ),
            transform.FoldConstant(),  # packs the weights
            transform.Rematerialize(),
            # nothing that merges values may follow
            *((needed(transform.SplitArgs(most_inputs), FEW),) if most_inputs else ()),
            needed(PlaceByCost(config), "as who measured has asked for")
            if PassContext.current().config.get(COSTS)
            else needed(PlaceRefused(config), "to run on the host what a device has no code for"),
            needed(transform.PlanDevices(config, marks=False), "to say where each value lives"),
            needed(
                transform.FuseOps(most_inputs=most_inputs),
                "to make kernels; the option relay.FuseOps.max_depth=1 keeps operators apart",
            ),
            needed(transform.ToANormalForm(), "to put the program into order"),
            transform.DeadCodeElimination(),
            transform.InlinePrimitives(),
            needed(transform.LambdaLift(), "to make functions inside of others global"),
            transform.RemoveUnusedFunctions(),  # what was inlined everywhere
            infer_type,
            needed(transform.HoistDimensions(), "to compute dimensions where they are known"),
            needed(transform.CarryDimensions(), "to pass dimensions to where they are needed"),
            needed(transform.ManifestAlloc(), "to allocate results"),
            *((transform.ConcatenateInPlace(), transform.SliceInPlace()) if in_place else ()),
            *((CompileKernels(kernels),) if kernels is not None else ()),
            *(
                (
                    transform.MemoryPlan(kernels.facts if kernels else None, concurrent=concurrent),
                    transform.UpdateInPlace(kernels.facts if kernels else None),
                )
                if plans_memory
                else ()
            ),
        ),
        "vm",
    )


def optimize(
    module: IRModule,
    target: Target,
    config: CompilationConfig | None = None,
    *,
    in_place: bool = True,
    kernels: ModuleKernels | None = None,
    concurrent: bool = False,
) -> IRModule:
    """A module ready for `compile_module`; see `pipeline`."""
    passes = pipeline(target, config, in_place=in_place, kernels=kernels, concurrent=concurrent)
    return passes(module)
