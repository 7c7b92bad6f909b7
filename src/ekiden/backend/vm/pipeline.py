"""What turns an imported module into one the VM compiler takes: a literal list, in order."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.transform import Sequential
from ekiden.relay import qnn, transform
from ekiden.target import CompilationConfig, Target


def pipeline(
    target: Target, config: CompilationConfig | None = None, *, in_place: bool = True
) -> Sequential:
    """The passes of the virtual machine for a target; `config` says on which devices. MemoryPlan
    follows them when the kernels are compiled.

    `in_place`: whether several kernels may write one tensor, the parts of a concatenation. Graphs
    cannot say so, and kernels that may run at the same time would wait for each other.
    """
    return Sequential(
        (
            transform.RemoveUnusedFunctions(),
            transform.InferType(),
            transform.EtaExpand(),
            transform.InferType(),
            transform.Inline(),  # also what external compilers make, as functions in place
            qnn.transform.Legalize(),
            qnn.transform.CanonicalizeOps(),  # no later pass knows the dialect
            transform.SimplifyInference(),
            transform.FoldConstant(),
            transform.BindDimensions(),  # shapes that are constants are known now
            transform.MultiplyEinsums(),
            transform.FuseAttention(),  # before layouts hide its transpositions
            transform.CombineFewRows(),
            transform.ProductPrecision(target),
            transform.FoldConstant(),  # weights in the type they are multiplied in
            transform.EliminateCommonSubexpr(),
            transform.FoldScaleAxis(),  # before layouts change: it knows OIHW only
            transform.ConvertLayout(),
            transform.AlterOpLayout(target),  # needs NHWC
            transform.FoldConstant(),  # packs the weights
            transform.Rematerialize(),
            transform.PlanDevices(config),  # nothing that merges values may follow
            transform.FuseOps(),
            transform.ToANormalForm(),
            transform.DeadCodeElimination(),
            transform.InlinePrimitives(),
            transform.LambdaLift(),
            transform.RemoveUnusedFunctions(),  # what was inlined everywhere
            transform.InferType(),
            transform.HoistDimensions(),
            transform.CarryDimensions(),
            transform.ManifestAlloc(),
            *((transform.ConcatenateInPlace(),) if in_place else ()),
        ),
        "vm",
    )


def optimize(
    module: IRModule,
    target: Target,
    config: CompilationConfig | None = None,
    *,
    in_place: bool = True,
) -> IRModule:
    """A module ready for `compile_module`."""
    return pipeline(target, config, in_place=in_place)(module)
