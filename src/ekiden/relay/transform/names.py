"""Lazy exports of `ekiden.relay.transform`, imported on first use."""

from ekiden.ir.transform import (
    FunctionPass,
    ModulePass,
    Pass,
    PassContext,
    PassInfo,
    PassInstrument,
    Sequential,
    function_pass_over,
    module_pass,
    register_pass,
    share_passes,
)
from ekiden.relay.expr import Function
from ekiden.relay.transform import _ffi_api as _ffi_api
from ekiden.relay.transform.devices.plan_devices import PlanDevices
from ekiden.relay.transform.differentiation.differentiate import FirstOrderGradient, gradient
from ekiden.relay.transform.differentiation.lazy_gradient_init import LazyGradientInit
from ekiden.relay.transform.external.annotate_target import AnnotateTarget
from ekiden.relay.transform.external.compiler_functions import (
    InlineCompilerFunctionsBoundTo,
    MarkCompilerFunctionsAsExtern,
    OutlineCompilerFunctionsWithExistingGlobalSymbols,
)
from ekiden.relay.transform.external.merge_compiler_regions import MergeCompilerRegions
from ekiden.relay.transform.external.merge_composite import MergeComposite
from ekiden.relay.transform.external.partition_graph import PartitionGraph
from ekiden.relay.transform.flexible_shape import FlexibleShapeDispatch
from ekiden.relay.transform.fusion.defuse_ops import DefuseOps
from ekiden.relay.transform.fusion.fuse_ops import FuseOps
from ekiden.relay.transform.fusion.rematerialize import Rematerialize
from ekiden.relay.transform.fusion.split_args import SplitArgs
from ekiden.relay.transform.graph.backward_fold_scale_axis import BackwardFoldScaleAxis
from ekiden.relay.transform.graph.canonicalize_cast import CanonicalizeCast
from ekiden.relay.transform.graph.canonicalize_ops import CanonicalizeOps
from ekiden.relay.transform.graph.combine_parallel import (
    BatchingOps,
    CombineFewRows,
    CombineParallelBatchMatmul,
    CombineParallelConv2D,
    CombineParallelDense,
)
from ekiden.relay.transform.graph.div_to_mul import DivToMul
from ekiden.relay.transform.graph.einsum_to_matmul import MultiplyEinsums
from ekiden.relay.transform.graph.eliminate_common_subexpr import EliminateCommonSubexpr
from ekiden.relay.transform.graph.expand_ops import ExpandOps
from ekiden.relay.transform.graph.fast_math import FastMath
from ekiden.relay.transform.graph.flatten_atrous_conv import FlattenAtrousConv
from ekiden.relay.transform.graph.fold_constant import FoldConstant, FoldConstantExpr
from ekiden.relay.transform.graph.fold_explicit_padding import FoldExplicitPadding
from ekiden.relay.transform.graph.fold_scale_axis import FoldScaleAxis
from ekiden.relay.transform.graph.forward_fold_scale_axis import ForwardFoldScaleAxis
from ekiden.relay.transform.graph.fuse_attention import FuseAttention
from ekiden.relay.transform.graph.legalize import Legalize, register_legalize
from ekiden.relay.transform.graph.simplify_expr import SimplifyExpr
from ekiden.relay.transform.graph.simplify_inference import SimplifyInference
from ekiden.relay.transform.graph.sparse_weights import (
    Conv2dToSparse,
    Conv2dToSparse2,
    DenseToSparse,
    SimplifyFCTranspose,
)
from ekiden.relay.transform.graph.sum_convolutions import SumConvolutions
from ekiden.relay.transform.language.annotate_spans import AnnotateSpans
from ekiden.relay.transform.language.call_prim_funcs import CallPrimFuncs
from ekiden.relay.transform.language.cps import ToCPS, UnCPS, to_cps, un_cps
from ekiden.relay.transform.language.dead_code_elimination import DeadCodeElimination
from ekiden.relay.transform.language.defunctionalization import Defunctionalization, Defunctionalize
from ekiden.relay.transform.language.eta_expand import EtaExpand
from ekiden.relay.transform.language.hoist_invariants import HoistInvariants
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.inline import Inline
from ekiden.relay.transform.language.inline_kernels import InlineKernels
from ekiden.relay.transform.language.inline_primitives import InlinePrimitives
from ekiden.relay.transform.language.lambda_lift import LambdaLift
from ekiden.relay.transform.language.match_declared_shapes import MatchDeclaredShapes
from ekiden.relay.transform.language.partial_evaluate import PartialEvaluate
from ekiden.relay.transform.language.remove_unused_functions import RemoveUnusedFunctions
from ekiden.relay.transform.language.to_a_normal_form import ToANormalForm
from ekiden.relay.transform.language.to_basic_block_normal_form import ToBasicBlockNormalForm
from ekiden.relay.transform.language.to_graph_normal_form import ToGraphNormalForm
from ekiden.relay.transform.layout.alter_op_layout import AlterOpLayout
from ekiden.relay.transform.layout.convert_layout import ConvertLayout
from ekiden.relay.transform.layout.desired_layouts import LayoutConfig
from ekiden.relay.transform.memory.annotate_used_memory import AnnotateUsedMemory
from ekiden.relay.transform.memory.concatenate_in_place import ConcatenateInPlace
from ekiden.relay.transform.memory.manifest_alloc import ManifestAlloc
from ekiden.relay.transform.memory.manifest_lifetimes import ManifestLifetimes
from ekiden.relay.transform.memory.slice_in_place import SliceInPlace
from ekiden.relay.transform.memory.unalias_results import OwnResults
from ekiden.relay.transform.memory.update_in_place import UpdateInPlace
from ekiden.relay.transform.memory_plan import MemoryPlan
from ekiden.relay.transform.precision.product_precision import ProductPrecision
from ekiden.relay.transform.precision.recast_graph import recast
from ekiden.relay.transform.precision.to_mixed_precision import ToMixedPrecision
from ekiden.relay.transform.quantization.fake_quantization_to_integer import (
    FakeQuantizationToInteger,
)
from ekiden.relay.transform.quantization.integer_products import IntegerProducts
from ekiden.relay.transform.quantization.merge_requantization import MergeRequantization
from ekiden.relay.transform.shapes.bind_dimensions import BindDimensions
from ekiden.relay.transform.shapes.carry_dimensions import CarryDimensions
from ekiden.relay.transform.shapes.change_batch import ChangeBatch
from ekiden.relay.transform.shapes.dynamic_to_static import DynamicToStatic
from ekiden.relay.transform.shapes.hoist_dimensions import HoistDimensions
from ekiden.relay.transform.shapes.name_dimensions import NameDimensions
from ekiden.relay.type_infer import infer_expr_type

InferTypeLocal = infer_expr_type
"""Infer the type of one expression (TVM's name)."""
function_pass = function_pass_over(Function)
"""Decorator that turns (relay.Function, module, context) -> relay.Function into a pass."""

for _factory in (
    NameDimensions,
    BindDimensions,
    CallPrimFuncs,
    CarryDimensions,
    HoistDimensions,
    HoistInvariants,
    MatchDeclaredShapes,
    AnnotateSpans,
    AnnotateUsedMemory,
    BackwardFoldScaleAxis,
    ConcatenateInPlace,
    ConvertLayout,
    DeadCodeElimination,
    EliminateCommonSubexpr,
    FirstOrderGradient,
    FoldConstant,
    FoldScaleAxis,
    ForwardFoldScaleAxis,
    FuseAttention,
    FuseOps,
    InferType,
    IntegerProducts,
    MergeRequantization,
    LambdaLift,
    ManifestAlloc,
    ManifestLifetimes,
    MemoryPlan,
    MultiplyEinsums,
    OwnResults,
    PlanDevices,
    SimplifyInference,
    CanonicalizeCast,
    CanonicalizeOps,
    BatchingOps,
    CombineFewRows,
    CombineParallelBatchMatmul,
    CombineParallelConv2D,
    CombineParallelDense,
    DefuseOps,
    DivToMul,
    FastMath,
    FoldExplicitPadding,
    Legalize,
    SimplifyExpr,
    ToBasicBlockNormalForm,
    ToCPS,
    UnCPS,
    ToMixedPrecision,
    MergeCompilerRegions,
    PartitionGraph,
    PartialEvaluate,
    Defunctionalize,
    ToANormalForm,
    ToGraphNormalForm,
    Rematerialize,
    RemoveUnusedFunctions,
    Inline,
    InlineKernels,
    InlinePrimitives,
    EtaExpand,
    FakeQuantizationToInteger,
    DynamicToStatic,
    SliceInPlace,
    SumConvolutions,
    UpdateInPlace,
):
    register_pass(_factory.__name__, _factory)  # its name can stand in `required` and Sequential

__all__ = [
    "AlterOpLayout",
    "AnnotateSpans",
    "AnnotateTarget",
    "AnnotateUsedMemory",
    "BackwardFoldScaleAxis",
    "BatchingOps",
    "BindDimensions",
    "CallPrimFuncs",
    "CanonicalizeCast",
    "CanonicalizeOps",
    "CarryDimensions",
    "ChangeBatch",
    "CombineFewRows",
    "CombineParallelBatchMatmul",
    "CombineParallelConv2D",
    "CombineParallelDense",
    "ConcatenateInPlace",
    "Conv2dToSparse",
    "Conv2dToSparse2",
    "ConvertLayout",
    "DeadCodeElimination",
    "Defunctionalization",
    "Defunctionalize",
    "DefuseOps",
    "DenseToSparse",
    "DivToMul",
    "DynamicToStatic",
    "EliminateCommonSubexpr",
    "EtaExpand",
    "ExpandOps",
    "FakeQuantizationToInteger",
    "FastMath",
    "FirstOrderGradient",
    "FlattenAtrousConv",
    "FlexibleShapeDispatch",
    "FoldConstant",
    "FoldConstantExpr",
    "FoldExplicitPadding",
    "FoldScaleAxis",
    "ForwardFoldScaleAxis",
    "FunctionPass",
    "FuseAttention",
    "FuseOps",
    "HoistDimensions",
    "HoistInvariants",
    "InferType",
    "InferTypeLocal",
    "Inline",
    "InlineCompilerFunctionsBoundTo",
    "InlineKernels",
    "InlinePrimitives",
    "IntegerProducts",
    "LambdaLift",
    "LayoutConfig",
    "LazyGradientInit",
    "Legalize",
    "ManifestAlloc",
    "ManifestLifetimes",
    "MarkCompilerFunctionsAsExtern",
    "MatchDeclaredShapes",
    "MemoryPlan",
    "MergeCompilerRegions",
    "MergeComposite",
    "MergeRequantization",
    "ModulePass",
    "MultiplyEinsums",
    "NameDimensions",
    "OutlineCompilerFunctionsWithExistingGlobalSymbols",
    "OwnResults",
    "PartialEvaluate",
    "PartitionGraph",
    "Pass",
    "PassContext",
    "PassInfo",
    "PassInstrument",
    "PlanDevices",
    "ProductPrecision",
    "Rematerialize",
    "RemoveUnusedFunctions",
    "Sequential",
    "SimplifyExpr",
    "SimplifyFCTranspose",
    "SimplifyInference",
    "SliceInPlace",
    "SplitArgs",
    "SumConvolutions",
    "ToANormalForm",
    "ToBasicBlockNormalForm",
    "ToCPS",
    "ToGraphNormalForm",
    "ToMixedPrecision",
    "UnCPS",
    "UpdateInPlace",
    "function_pass",
    "gradient",
    "module_pass",
    "recast",
    "register_legalize",
    "to_cps",
    "un_cps",
]

share_passes("relay._transform", {name: globals()[name] for name in __all__})
