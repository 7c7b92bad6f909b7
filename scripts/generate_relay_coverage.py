#!/usr/bin/env python3
"""Generate docs/relay-coverage.md:

A name that is neither there nor in one of the tables below is an error: the tables cannot go stale
unseen. Nor may a table excuse what exists.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping

from ekiden.ir.op import OPS
from ekiden.relay import transform

importlib.import_module("ekiden.relay")

COVERAGE_HEAD = """# Relay: what exists

Made by `scripts/generate_relay_coverage.py`.

The transforms and operators of TVM 0.16's Relay. Those that exist have TVM's names;
[operators](operators.md) describes each, [coming from TVM](coming-from-tvm.md) what differs. *In
another form* is what a program writes instead; *by design* is what will not exist.
"""

TVM_TRANSFORMS = """
InferType InferTypeLocal FoldScaleAxis ForwardFoldScaleAxis BackwardFoldScaleAxis
RemoveUnusedFunctions SimplifyInference FastMath CanonicalizeOps CanonicalizeCast
DeadCodeElimination LazyGradientInit FoldConstant FoldConstantExpr FuseOps DefuseOps
CombineParallelConv2D CombineParallelDense CombineParallelBatchMatmul BatchingOps AlterOpLayout
LayoutConfig ConvertLayout Legalize MergeComposite AnnotateTarget MergeCompilerRegions
PartitionGraph InlineCompilerFunctionsBoundTo OutlineCompilerFunctionsWithExistingGlobalSymbols
MarkCompilerFunctionsAsExtern CollagePartition CapturePostDfsIndexInSpans ToANormalForm
ToANormalFormExpr ToBasicBlockNormalForm ToGraphNormalForm ToCPS to_cps un_cps EtaExpand
EliminateCommonSubexpr PartialEvaluate Defunctionalization LambdaLift Inline gradient
FirstOrderGradient DynamicToStatic SimplifyExpr FoldExplicitPadding FlattenAtrousConv DivToMul
SplitArgs SimplifyFCTranspose DenseToSparse Conv2dToSparse Conv2dToSparse2 ToMixedPrecision
FakeQuantizationToInteger PlanDevices ManifestLifetimes ManifestAlloc MemoryPlan LiftConstants
AnnotateMemoryScope LabelOps AnnotateUsedMemory RemoveStandaloneReshapes
AutoSchedulerLayoutRewrite MetaScheduleLayoutRewrite AnnotateSpans ChangeBatch recast
FlexibleShapeDispatch build_config function_pass
"""

TVM_OPERATORS = """
abs acos acosh add adv_index all annotation.bitpack_end annotation.bitpack_start
annotation.cast_hint annotation.checkpoint annotation.compiler_begin annotation.compiler_end
annotation.stop_fusion annotation.with_funcid any arange argmax argmin argsort argwhere asin asinh
atan atanh auto_scheduler_layout_transform bitwise_and bitwise_not bitwise_or bitwise_xor
broadcast_to broadcast_to_like call_lowered cast cast_like ceil clip collapse_sum_like
collapse_sum_to concatenate contrib.ethosu.binary_elementwise contrib.ethosu.conv2d
contrib.ethosu.depthwise_conv2d contrib.ethosu.identity contrib.ethosu.pooling
contrib.ethosu.unary_elementwise contrib_reverse_reshape copy cos cosh cumprod cumsum debug
device_copy dft divide dyn.broadcast_to dyn.expand_dims dyn.full dyn.image.resize2d dyn.nn.pad
dyn.nn.upsampling dyn.nn.upsampling3d dyn.one_hot dyn.ones dyn.reshape dyn.sparse_to_dense
dyn.squeeze dyn.strided_slice dyn.tile dyn.topk dyn.zeros einsum equal erf exp expand_dims
fast_erf fast_exp fast_tanh fixed_point_multiply fixed_point_multiply_per_axis floor floor_divide
floor_mod full full_like gather gather_nd greater greater_equal image.affine_grid
image.crop_and_resize image.dilation2d image.grid_sample image.resize1d image.resize2d
image.resize3d invert_permutation isfinite isinf isnan layout_transform left_shift less less_equal
log log10 log2 logical_and logical_not logical_or logical_xor matrix_set_diag max maximum mean
memory.alloc_storage memory.alloc_tensor memory.kill meshgrid meta_schedule_layout_transform min
minimum mod multiply ndarray_size negative nn.avg_pool1d nn.avg_pool2d nn.avg_pool2d_grad
nn.avg_pool3d nn.batch_flatten nn.batch_matmul nn.batch_norm nn.batch_to_space_nd nn.bias_add
nn.bitpack nn.bitserial_conv2d nn.bitserial_dense nn.contrib_conv2d_NCHWc nn.contrib_dense_pack
nn.contrib_depthwise_conv2d_NCHWc nn.conv1d nn.conv1d_transpose nn.conv2d
nn.conv2d_backward_weight nn.conv2d_transpose nn.conv3d nn.conv3d_transpose nn.correlation
nn.cross_entropy nn.cross_entropy_with_logits nn.deformable_conv2d nn.dense nn.depth_to_space
nn.dilate nn.dropout nn.fast_softmax nn.fifo_buffer nn.global_avg_pool2d nn.global_max_pool2d
nn.group_norm nn.instance_norm nn.internal.sparse_dense_padded nn.l2_normalize nn.layer_norm
nn.leaky_relu nn.log_softmax nn.lrn nn.matmul nn.max_pool1d nn.max_pool2d nn.max_pool2d_grad
nn.max_pool3d nn.mirror_pad nn.nll_loss nn.pad nn.prelu nn.relu nn.softmax nn.space_to_batch_nd
nn.space_to_depth nn.sparse_add nn.sparse_conv2d nn.sparse_dense nn.sparse_transpose nn.upsampling
nn.upsampling3d not_equal on_device one_hot ones ones_like parser.MetaRef power prod qnn.abs
qnn.add qnn.avg_pool2d qnn.batch_matmul qnn.concatenate qnn.contrib_dense_pack qnn.conv2d
qnn.conv2d_transpose qnn.dense qnn.dequantize qnn.erf qnn.exp qnn.hardswish qnn.leaky_relu qnn.log
qnn.mul qnn.quantize qnn.requantize qnn.rsqrt qnn.sigmoid qnn.simulated_dequantize
qnn.simulated_quantize qnn.softmax qnn.sqrt qnn.subtract qnn.tanh random.multinomial random.normal
random.threefry_generate random.threefry_split random.uniform reinterpret
relay.op.annotation.simulated_quantize repeat reshape reshape_like reverse reverse_sequence
right_shift round rsqrt scatter_elements scatter_nd searchsorted sequence_mask shape_of sigmoid
sign sin sinh slice_like sliding_window sort sparse_fill_empty_rows sparse_reshape sparse_to_dense
split sqrt squeeze stack stft strided_set strided_slice subtract sum take tan tanh tile topk
torch_op transpose trilu trunc trunc_divide trunc_mod unique unravel_index variance
vision.all_class_non_max_suppression vision.get_valid_counts vision.multibox_prior
vision.multibox_transform_loc vision.non_max_suppression vision.proposal
vision.regular_non_max_suppression vision.roi_align vision.roi_pool vision.yolo_reorg
vm.invoke_tvm_op vm.reshape_tensor vm.shape_of where zeros zeros_like
"""

REPLACEMENTS = {
    "ToANormalFormExpr": "`ToANormalForm` over `IRModule.from_expr(expr)`",
    "AnnotateMemoryScope": "memory has one scope",
    "LabelOps": "kernels are named after their operators and nodes",
    "LiftConstants": "constants are sections of the artifact",
    "build_config": "`PassContext`",
    "RemoveStandaloneReshapes": "a reshape has no kernel: it is an instruction of the machine",
    "vision.regular_non_max_suppression": "`vision.non_max_suppression` of rows with their class",
    "nn.contrib_conv2d_NCHWc": "`nn.conv2d`, which `relay.nn.contrib_conv2d_nchwc` makes",
    "nn.contrib_depthwise_conv2d_NCHWc": "`nn.conv2d` with `groups`",
    "dyn.nn.upsampling": "`nn.upsampling` with factors that are expressions",
    "dyn.nn.upsampling3d": "`nn.upsampling3d` with factors that are expressions",
    "sparse_fill_empty_rows": "`relay.sparse_fill_empty_rows`, made of other operators",
    "nn.bitserial_conv2d": "`relay.nn.bitserial_conv2d`, made of other operators",
    "nn.bitserial_dense": "`relay.nn.bitserial_dense`, made of other operators",
    "sparse_reshape": "`relay.sparse_reshape`, made of other operators",
}
"""What is written instead."""

NO_TUNING_REASON = "there is no AutoTVM, auto-scheduler or MetaSchedule"
NO_COLLAGE_REASON = "collage partitions by measuring other compilers"
NO_HARDWARE_REASON = "for hardware that there is no code generator for"
REJECTED_BY_DESIGN = {
    "AutoSchedulerLayoutRewrite": NO_TUNING_REASON,
    "MetaScheduleLayoutRewrite": NO_TUNING_REASON,
    "auto_scheduler_layout_transform": NO_TUNING_REASON,
    "meta_schedule_layout_transform": NO_TUNING_REASON,
    "CollagePartition": NO_COLLAGE_REASON,
    "CapturePostDfsIndexInSpans": NO_COLLAGE_REASON,
    "annotation.bitpack_start": NO_HARDWARE_REASON,
    "annotation.bitpack_end": NO_HARDWARE_REASON,
    "parser.MetaRef": "the parser resolves references to metadata while it reads",
    "torch_op": "calls PyTorch from inside of a program",
    "annotation.with_funcid": "names functions for a code generator of TVM",
    "qnn.contrib_dense_pack": "kernel families pack weights",
    "nn.internal.sparse_dense_padded": "the form of `nn.sparse_dense` for kernels of CUDA",
    "contrib.ethosu.binary_elementwise": NO_HARDWARE_REASON,
    "contrib.ethosu.conv2d": NO_HARDWARE_REASON,
    "contrib.ethosu.depthwise_conv2d": NO_HARDWARE_REASON,
    "contrib.ethosu.identity": NO_HARDWARE_REASON,
    "contrib.ethosu.pooling": NO_HARDWARE_REASON,
    "contrib.ethosu.unary_elementwise": NO_HARDWARE_REASON,
}
"""What will not exist, and why."""


def coverage_status(name: str, is_there: Callable[[str], bool]) -> str:
    """Return whether a TVM name exists, or why it does not. Raises SystemExit for a missing name
    without an explanation, or an existing one with one.
    """
    excuses = [t for t in (REPLACEMENTS, REJECTED_BY_DESIGN) if name in t]
    if is_there(name):
        if excuses:
            raise SystemExit(f"{name} exists, and is excused in scripts/generate_relay_coverage.py")
        return "exists"
    if not excuses:
        raise SystemExit(f"{name} is missing: say why in scripts/generate_relay_coverage.py")
    if name in REPLACEMENTS:
        return f"in another form: {REPLACEMENTS[name]}"
    return f"by design: {REJECTED_BY_DESIGN[name]}"


def coverage_table(title: str, names: str, is_there: Callable[[str], bool]) -> Iterator[str]:
    """Yield the page's section on some names."""
    status_by_name: Mapping[str, str] = {
        n: coverage_status(n, is_there) for n in sorted(names.split(), key=str.lower)
    }
    existing = [n for n, what in status_by_name.items() if what == "exists"]
    yield f"## {title}"
    yield ""
    listed = ", ".join(f"`{name}`" for name in existing)
    yield f"{len(existing)} of {len(status_by_name)} exist: {listed}."
    yield ""
    yield "| name | |"
    yield "|---|---|"
    yield from (f"| `{n}` | {what} |" for n, what in status_by_name.items() if what != "exists")
    yield ""


def page() -> str:
    """Return the page."""
    sections = [COVERAGE_HEAD]
    sections += coverage_table("Transforms", TVM_TRANSFORMS, lambda name: hasattr(transform, name))
    sections += coverage_table("Operators", TVM_OPERATORS, OPS.__contains__)
    return "\n".join(sections).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
