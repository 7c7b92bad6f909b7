"""The names of `ekiden.relay.transform`, loaded when the first is used."""

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
from ekiden.relay.transform.alter_op_layout import AlterOpLayout
from ekiden.relay.transform.annotate_spans import AnnotateSpans
from ekiden.relay.transform.annotate_target import AnnotateTarget
from ekiden.relay.transform.annotate_used_memory import AnnotateUsedMemory
from ekiden.relay.transform.backward_fold_scale_axis import BackwardFoldScaleAxis
from ekiden.relay.transform.bind_dimensions import BindDimensions
from ekiden.relay.transform.call_prim_funcs import CallPrimFuncs
from ekiden.relay.transform.canonicalize_cast import CanonicalizeCast
from ekiden.relay.transform.canonicalize_ops import CanonicalizeOps
from ekiden.relay.transform.carry_dimensions import CarryDimensions
from ekiden.relay.transform.change_batch import ChangeBatch
from ekiden.relay.transform.combine_parallel import (
    BatchingOps,
    CombineFewRows,
    CombineParallelBatchMatmul,
    CombineParallelConv2D,
    CombineParallelDense,
)
from ekiden.relay.transform.compiler_functions import (
    InlineCompilerFunctionsBoundTo,
    MarkCompilerFunctionsAsExtern,
    OutlineCompilerFunctionsWithExistingGlobalSymbols,
)
from ekiden.relay.transform.concatenate_in_place import ConcatenateInPlace
from ekiden.relay.transform.convert_layout import ConvertLayout
from ekiden.relay.transform.cps import ToCPS, UnCPS, to_cps, un_cps
from ekiden.relay.transform.dead_code_elimination import DeadCodeElimination
from ekiden.relay.transform.defunctionalization import Defunctionalization, Defunctionalize
from ekiden.relay.transform.defuse_ops import DefuseOps
from ekiden.relay.transform.desired_layouts import LayoutConfig
from ekiden.relay.transform.differentiate import FirstOrderGradient, gradient
from ekiden.relay.transform.div_to_mul import DivToMul
from ekiden.relay.transform.dynamic_to_static import DynamicToStatic
from ekiden.relay.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from ekiden.relay.transform.eta_expand import EtaExpand
from ekiden.relay.transform.expand_ops import ExpandOps
from ekiden.relay.transform.fake_quantization_to_integer import FakeQuantizationToInteger
from ekiden.relay.transform.fast_math import FastMath
from ekiden.relay.transform.flatten_atrous_conv import FlattenAtrousConv
from ekiden.relay.transform.flexible_shape import FlexibleShapeDispatch
from ekiden.relay.transform.fold_constant import FoldConstant, FoldConstantExpr
from ekiden.relay.transform.fold_explicit_padding import FoldExplicitPadding
from ekiden.relay.transform.fold_scale_axis import FoldScaleAxis
from ekiden.relay.transform.forward_fold_scale_axis import ForwardFoldScaleAxis
from ekiden.relay.transform.fuse_attention import FuseAttention
from ekiden.relay.transform.fuse_ops import FuseOps
from ekiden.relay.transform.hoist_dimensions import HoistDimensions
from ekiden.relay.transform.hoist_invariants import HoistInvariants
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.inline import Inline
from ekiden.relay.transform.inline_kernels import InlineKernels
from ekiden.relay.transform.inline_primitives import InlinePrimitives
from ekiden.relay.transform.integer_products import IntegerProducts
from ekiden.relay.transform.lambda_lift import LambdaLift
from ekiden.relay.transform.lazy_gradient_init import LazyGradientInit
from ekiden.relay.transform.legalize import Legalize, register_legalize
from ekiden.relay.transform.manifest_alloc import ManifestAlloc
from ekiden.relay.transform.manifest_lifetimes import ManifestLifetimes
from ekiden.relay.transform.match_declared_shapes import MatchDeclaredShapes
from ekiden.relay.transform.memory_plan import MemoryPlan
from ekiden.relay.transform.merge_compiler_regions import MergeCompilerRegions
from ekiden.relay.transform.merge_composite import MergeComposite
from ekiden.relay.transform.multiply_einsums import MultiplyEinsums
from ekiden.relay.transform.name_dimensions import NameDimensions
from ekiden.relay.transform.own_results import OwnResults
from ekiden.relay.transform.partial_evaluate import PartialEvaluate
from ekiden.relay.transform.partition_graph import PartitionGraph
from ekiden.relay.transform.plan_devices import PlanDevices
from ekiden.relay.transform.product_precision import ProductPrecision
from ekiden.relay.transform.recast_graph import recast
from ekiden.relay.transform.rematerialize import Rematerialize
from ekiden.relay.transform.remove_unused_functions import RemoveUnusedFunctions
from ekiden.relay.transform.simplify_expr import SimplifyExpr
from ekiden.relay.transform.simplify_inference import SimplifyInference
from ekiden.relay.transform.slice_in_place import SliceInPlace
from ekiden.relay.transform.sparse_weights import (
    Conv2dToSparse,
    Conv2dToSparse2,
    DenseToSparse,
    SimplifyFCTranspose,
)
from ekiden.relay.transform.split_args import SplitArgs
from ekiden.relay.transform.sum_convolutions import SumConvolutions
from ekiden.relay.transform.to_a_normal_form import ToANormalForm
from ekiden.relay.transform.to_basic_block_normal_form import ToBasicBlockNormalForm
from ekiden.relay.transform.to_graph_normal_form import ToGraphNormalForm
from ekiden.relay.transform.to_mixed_precision import ToMixedPrecision
from ekiden.relay.transform.update_in_place import UpdateInPlace
from ekiden.relay.type_infer import infer_expr_type

InferTypeLocal = infer_expr_type
"""The type of one expression (TVM's name)."""
function_pass = function_pass_over(Function)
"""Decorator: (relay.Function, module, context) -> relay.Function becomes a pass."""

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
