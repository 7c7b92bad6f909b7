"""Programs of the replay that are written in Relay's text: families of kernels, what stands around
them, and the language. Parameters that begin with `w_` are constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from recorder import TARGETS
from replay_programs import WEIGHT_PREFIX, Program, weights

from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType
from ekiden.relay import Function, parse
from ekiden.relay.build_module import bind_params_by_name
from ekiden.relay.transform import InferType

KERNELS: Mapping[str, str] = {
    "dense_any_rows": """
        def @main(%x: Tensor[(n, 64), float32], %w_a: Tensor[(96, 64), float32],
                  %w_b: Tensor[(96,), float32]) {
          nn.relu(nn.bias_add(nn.dense(%x, %w_a), %w_b)) }""",
    "dense_one_row": """
        def @main(%x: Tensor[(1, 256), float32], %w_a: Tensor[(512, 256), float32]) {
          nn.dense(%x, %w_a) }""",
    "dense_of_two_inputs": """
        def @main(%x: Tensor[(48, 64), float32], %y: Tensor[(80, 64), float32]) {
          sigmoid(nn.dense(%x, %y)) }""",
    "dense_half": """
        def @main(%x: Tensor[(n, 32), float16], %w_a: Tensor[(48, 32), float16]) {
          nn.dense(%x, %w_a) }""",
    "batch_matmul": """
        def @main(%x: Tensor[(b, 32, 24), float32], %y: Tensor[(b, 24, 40), float32]) {
          nn.batch_matmul(%x, %y, transpose_b=False) }""",
    "conv_direct": """
        def @main(%x: Tensor[(1, 16, 20, 20), float32], %w_a: Tensor[(32, 16, 3, 3), float32]) {
          nn.conv2d(%x, %w_a, strides=[2, 2], padding=[1, 1], channels=32, kernel_size=[3, 3]) }""",
    "conv_any_image": """
        def @main(%x: Tensor[(n, 3, h, w), float32], %w_a: Tensor[(16, 3, 3, 3), float32]) {
          nn.relu(nn.conv2d(%x, %w_a, padding=[1, 1], channels=16, kernel_size=[3, 3])) }""",
    "conv_winograd": """
        def @main(%x: Tensor[(1, 64, 28, 28), float32], %w_a: Tensor[(64, 64, 3, 3), float32],
                  %w_b: Tensor[(64,), float32]) {
          nn.relu(nn.bias_add(nn.conv2d(%x, %w_a, padding=[1, 1], channels=64,
                                        kernel_size=[3, 3]), %w_b)) }""",
    "conv_pointwise_residual": """
        def @main(%x: Tensor[(1, 32, 14, 14), float32], %r: Tensor[(1, 64, 14, 14), float32],
                  %w_a: Tensor[(64, 32, 1, 1), float32]) {
          nn.relu(add(nn.conv2d(%x, %w_a, channels=64, kernel_size=[1, 1]), %r)) }""",
    "conv_depthwise": """
        def @main(%x: Tensor[(1, 32, 14, 14), float32], %w_a: Tensor[(32, 1, 3, 3), float32]) {
          clip(nn.conv2d(%x, %w_a, padding=[1, 1], groups=32, channels=32, kernel_size=[3, 3]),
               a_min=0f, a_max=6f) }""",
    "conv_grouped": """
        def @main(%x: Tensor[(1, 32, 10, 10), float32], %w_a: Tensor[(32, 8, 3, 3), float32]) {
          nn.conv2d(%x, %w_a, padding=[1, 1], groups=4, channels=32, kernel_size=[3, 3]) }""",
    "conv_dilated": """
        def @main(%x: Tensor[(1, 8, 16, 16), float32], %w_a: Tensor[(8, 8, 3, 3), float32]) {
          nn.conv2d(%x, %w_a, padding=[2, 2], dilation=[2, 2], channels=8, kernel_size=[3, 3]) }""",
    "conv_transposed": """
        def @main(%x: Tensor[(1, 16, 8, 8), float32], %w_a: Tensor[(16, 8, 4, 4), float32]) {
          nn.conv2d_transpose(%x, %w_a, strides=[2, 2], padding=[1, 1], channels=8,
                              kernel_size=[4, 4]) }""",
    "conv_1d": """
        def @main(%x: Tensor[(1, 8, n), float32], %w_a: Tensor[(16, 8, 3), float32]) {
          nn.conv1d(%x, %w_a, padding=[1], channels=16, kernel_size=[3]) }""",
    "conv_3d": """
        def @main(%x: Tensor[(1, 4, 6, 8, 8), float32], %w_a: Tensor[(8, 4, 3, 3, 3), float32]) {
          nn.conv3d(%x, %w_a, padding=[1, 1, 1], channels=8, kernel_size=[3, 3, 3]) }""",
    "conv_deformable": """
        def @main(%x: Tensor[(1, 4, 8, 8), float32], %o: Tensor[(1, 18, 8, 8), float32],
                  %w_a: Tensor[(4, 4, 3, 3), float32]) {
          nn.deformable_conv2d(%x, %o, %w_a, padding=[1, 1], channels=4, kernel_size=[3, 3]) }""",
    "pools": """
        def @main(%x: Tensor[(1, 16, 12, 12), float32]) {
          %0 = nn.max_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1]);
          (%0, nn.avg_pool2d(%x, pool_size=[2, 2], strides=[2, 2]), nn.global_avg_pool2d(%0)) }""",
    "network_block": """
        def @main(%x: Tensor[(n, 16, 16, 16), float32], %w_a: Tensor[(32, 16, 3, 3), float32],
                  %w_g: Tensor[(32,), float32], %w_b: Tensor[(32,), float32],
                  %w_m: Tensor[(32,), float32], %w_v: Tensor[(32,), float32],
                  %w_c: Tensor[(32, 32, 1, 1), float32], %w_d: Tensor[(10, 32), float32]) {
          %0 = nn.conv2d(%x, %w_a, strides=[2, 2], padding=[1, 1], channels=32,
                         kernel_size=[3, 3]);
          %1 = nn.batch_norm(%0, %w_g, %w_b, %w_m, %w_v);
          %2 = nn.relu(%1.0);
          %3 = add(nn.conv2d(%2, %w_c, channels=32, kernel_size=[1, 1]), %2);
          nn.softmax(nn.dense(nn.batch_flatten(nn.global_avg_pool2d(%3)), %w_d)) }""",
    "attention": """
        def @main(%q: Tensor[(4, n, 32), float32], %k: Tensor[(4, m, 32), float32],
                  %v: Tensor[(4, m, 32), float32]) {
          %0 = multiply(nn.batch_matmul(%q, %k), 0.17677669f);
          nn.batch_matmul(nn.softmax(%0), %v, transpose_b=False) }""",
    "norms": """
        def @main(%x: Tensor[(n, 48), float32], %w_g: Tensor[(48,), float32],
                  %w_b: Tensor[(48,), float32]) {
          (nn.layer_norm(%x, %w_g, %w_b), nn.rms_norm(%x, %w_g), nn.l2_normalize(%x, eps=1e-6f,
           axis=[1])) }""",
    "group_norm": """
        def @main(%x: Tensor[(1, 16, 6, 6), float32], %w_g: Tensor[(16,), float32],
                  %w_b: Tensor[(16,), float32]) {
          nn.group_norm(%x, %w_g, %w_b, num_groups=4) }""",
    "softmax": """
        def @main(%x: Tensor[(n, m), float32]) { (nn.softmax(%x), nn.log_softmax(%x, axis=1)) }""",
    "reductions": """
        def @main(%x: Tensor[(n, 6, 40), float32]) {
          (sum(%x, axis=[2]), mean(%x, axis=[0, 2]), max(%x, axis=[1]), argmax(%x, axis=[2]),
           variance(%x, axis=[2])) }""",
    "elementwise": """
        def @main(%x: Tensor[(n, m), float32], %y: Tensor[(m,), float32]) {
          %0 = multiply(%x, add(1f, erf(multiply(%x, 0.70710678f))));
          (multiply(%0, 0.5f), where(greater(%x, %y), tanh(%x), exp(%y)), sin(%x),
           log(power(%x, %y))) }""",
    "integers": """
        def @main(%x: Tensor[(n,), int32], %y: Tensor[(n,), int32]) {
          (floor_divide(%x, %y), floor_mod(%x, %y), right_shift(%x, 3), cast(%x, dtype="int8"),
           bitwise_xor(%x, %y), multiply(cast(%x, dtype="int64"), cast(%y, dtype="int64"))) }""",
    "small_floats": """
        def @main(%x: Tensor[(n, 16), float16], %y: Tensor[(n, 16), bfloat16]) {
          (exp(%x), add(%y, %y), cast(%x, dtype="float32"), cast(%y, dtype="float64")) }""",
    "transposes": """
        def @main(%x: Tensor[(2, 12, 10, 8), float32]) {
          (transpose(%x, axes=[0, 2, 3, 1]), reverse(%x, axis=1), tile(%x, reps=[1, 1, 1, 2]),
           nn.pad(%x, 0f, pad_width=[[0, 0], [1, 1], [2, 2], [0, 0]])) }""",
    "concatenate_and_slice": """
        def @main(%x: Tensor[(n, 16), float32], %y: Tensor[(n, 24), float32]) {
          %0 = concatenate((nn.relu(%x), exp(%y)), axis=1);
          (%0, strided_slice(%0, begin=[0, 3], end=[1, 21], strides=[1, 2]),
           split(%0, indices_or_sections=2, axis=1)) }""",
    "gather_and_scatter": """
        def @main(%x: Tensor[(n, 8), float32], %i: Tensor[(m,), int64], %u: Tensor[(m, 8), float32],
                  %j: Tensor[(1, m), int64], %e: Tensor[(n, 8), int64]) {
          (take(%x, %i, axis=0), gather(%x, %e, axis=0),
           scatter_nd(%x, %j, %u, mode="add"),
           scatter_elements(%x, %e, %x, axis=0, reduction="update"), one_hot(%i, 1f, 0f, depth=5,
           axis=-1, dtype="float32")) }""",
    "sorts": """
        def @main(%x: Tensor[(4, n), float32]) {
          (sort(%x, axis=1), argsort(%x, axis=1, is_ascend=False, dtype="int32"),
           topk(%x, k=3, axis=1, dtype="int64")) }""",
    "scans": """
        def @main(%x: Tensor[(n, 20), float32]) {
          (cumsum(%x, axis=1), cumsum(%x, axis=0, exclusive=True), cumprod(%x, axis=1)) }""",
    "random_numbers": """
        def @main(%k: Tensor[(10,), uint64]) {
          %0 = random.uniform(%k, 0f, 1f, out_shape=[3, 16], out_dtype="float32");
          %1 = random.normal(%0.0, 0f, 2f, out_shape=[8], out_dtype="float32");
          (%0.1, %1.1, random.threefry_split(%1.0)) }""",
    "resize": """
        def @main(%x: Tensor[(1, 4, 7, 9), float32]) {
          (image.resize2d(%x, size=[14, 18], method="nearest_neighbor",
                          coordinate_transformation_mode="asymmetric"),
           image.resize2d(%x, size=[11, 5], method="linear"),
           image.resize2d(%x, size=[11, 5], method="cubic")) }""",
    "detection": """
        def @main(%x: Tensor[(1, 4, 8, 8), float32], %r: Tensor[(n, 5), float32],
                  %b: Tensor[(1, 20, 6), float32], %c: Tensor[(1,), int32],
                  %i: Tensor[(1, 20), int32]) {
          (vision.roi_align(%x, %r, pooled_size=[3, 3], spatial_scale=0.5f, sample_ratio=2),
           vision.non_max_suppression(%b, %c, %i, -1, 0.5f, return_indices=False)) }""",
    "sparse_dense": """
        def @main(%x: Tensor[(n, 16), float32], %d: Tensor[(12,), float32],
                  %i: Tensor[(12,), int32], %p: Tensor[(9,), int32]) {
          nn.sparse_dense(%x, %d, %i, %p) }""",
    "linear_algebra": """
        def @main(%x: Tensor[(n, 5, 5), float32], %y: Tensor[(n, 5, 2), float32]) {
          (linalg.cholesky(%x), einsum((%x, %y), equation="bij,bjk->bki")) }""",
    "quantised_dense": """
        def @main(%x: Tensor[(n, 64), uint8], %w_a: Tensor[(48, 64), int8],
                  %w_b: Tensor[(48,), int32]) {
          %0 = qnn.dense(%x, %w_a, 3, 0, 0.5f, 0.25f, units=48, out_dtype="int32");
          qnn.requantize(nn.bias_add(%0, %w_b, axis=1), 0.125f, 0, 2f, 5, out_dtype="uint8") }""",
    "quantised_conv": """
        def @main(%x: Tensor[(1, 16, 12, 12), int8], %w_a: Tensor[(32, 16, 3, 3), int8]) {
          %0 = qnn.conv2d(%x, %w_a, 1, 0, 0.5f, 0.25f, padding=[1, 1], channels=32,
                          kernel_size=[3, 3], out_dtype="int32");
          qnn.requantize(%0, 0.125f, 0, 2f, 5, out_dtype="int8") }""",
    "blocks_of_bits": """
        def @main(%x: Tensor[(n, 64), float32], %w_a: Tensor[(48, 2, 18), uint8],
                  %w_b: Tensor[(48, 2, 34), uint8]) {
          (nn.dense_blocks(%x, %w_a, format="q4_0"), nn.dense_blocks(%x, %w_b, format="q8_0")) }""",
    "quantised_adds": """
        def @main(%x: Tensor[(n, 8), float32]) {
          %0 = qnn.quantize(%x, 0.1f, 3, out_dtype="int8");
          %1 = qnn.add(%0, %0, 0.1f, 3, 0.1f, 3, 0.2f, 1);
          qnn.dequantize(%1, 0.2f, 1) }""",
}
"""Families of kernels, the host's and those of devices."""

LANGUAGE: Mapping[str, str] = {
    "choice": """
        def @main(%c: bool, %x: Tensor[(n, 4), float32]) {
          %0 = nn.relu(%x);
          if (%c) { add(%0, 1f) } else { %1 = negative(%0); multiply(%1, %1) } }""",
    "loop_of_tensors": """
        def @main(%n: int32, %x: Tensor[(b, 16), float32], %w_a: Tensor[(16, 16), float32]) {
          let %go = fn (%i: int32, %h: Tensor[(b, 16), float32]) -> Tensor[(b, 16), float32] {
            if (%i <= 0) { %h } else { %go(%i - 1, tanh(nn.dense(%h, %w_a))) } };
          %go(%n, %x) }""",
    "lists": """
        type List[A] { Cons(A, List[A]), Nil, }
        def @map[A, B](%f: fn (A) -> B, %l: List[A]) -> List[B] {
          match (%l) { Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)), Nil => Nil, } }
        def @sum(%l: List[Tensor[(3,), float32]]) -> Tensor[(3,), float32] {
          match (%l) { Cons(%x, %rest) => add(%x, @sum(%rest)), Nil => zeros(shape=[3],
            dtype="float32"), } }
        def @main(%x: Tensor[(3,), float32], %y: Tensor[(3,), float32]) {
          @sum(@map(fn (%v: Tensor[(3,), float32]) { exp(%v) }, Cons(%x, Cons(%y, Nil)))) }""",
    "closures": """
        def @compose[A](%f: fn (A) -> A, %g: fn (A) -> A) -> fn (A) -> A {
          fn (%x: A) -> A { %f(%g(%x)) } }
        def @main(%c: bool, %x: Tensor[(n,), float32], %y: float32) {
          let %add = fn (%a: Tensor[(n,), float32]) -> Tensor[(n,), float32] { %a + %y };
          let %twice = @compose(%add, %add);
          if (%c) { %twice(%x) } else { @compose(%twice, %add)(%x) } }""",
    "mutual_recursion": """
        def @even(%n: int32) -> bool { if (%n == 0) { True } else { @odd(%n - 1) } }
        def @odd(%n: int32) -> bool { if (%n == 0) { False } else { @even(%n - 1) } }
        def @main(%n: int32) { @even(%n) }""",
    "references": """
        def @main(%x: Tensor[(4,), float32]) {
          let %r: ref(Tensor[(4,), float32]) = ref(%x);
          let %written = ref_write(%r, add(ref_read(%r), 1f));
          (ref_read(%r), %x) }""",
    "sizes_from_data": """
        def @main(%x: Tensor[(n, 4), float32]) {
          %0 = argwhere(greater(%x, 0f));
          (%0, unique(reshape(%x, newshape=[-1]), sorted=True, return_counts=False),
           dyn.reshape(%x, concatenate((shape_of(%0, dtype="int64"), shape_of(%x, dtype="int64")),
           axis=0)) ) }""",
    "sizes_of_inputs": """
        def @main(%x: Tensor[(n, m), float32], %y: Tensor[(n * 2, 1), float32]) {
          %0 = concatenate((%x, %x), axis=0);
          (add(%0, %y), reshape(%x, newshape=[n * m]), strided_slice(%x, begin=[1], end=[n],
           axes=[0])) }""",
    "updates_in_place": """
        def @main(%n: int32, %x: Tensor[(8, 4), float32], %r: Tensor[(4,), float32]) {
          let %go = fn (%i: int32, %h: Tensor[(8, 4), float32]) -> Tensor[(8, 4), float32] {
            if (%i <= 0) { %h } else {
              %go(%i - 1, scatter_nd(%h, reshape(%i - 1, newshape=[1, 1]),
                                     expand_dims(%r, axis=0), mode="update")) } };
          %go(%n, %x) }""",
}
"""The language, sizes and effects."""

BRANCHES = """
    def @main(%x: Tensor[(8, 64), float32], %w_a: Tensor[(64, 64), float32],
              %w_b: Tensor[(64, 64), float32], %w_c: Tensor[(64, 64), float32]) {
      %0 = nn.relu(nn.dense(%x, %w_a));
      %1 = tanh(nn.dense(%x, %w_b));
      nn.dense(add(%0, %1), %w_c) }"""


QUICK = (
    "dense_one_row", "elementwise", "norms", "quantised_adds", "scans", "choice", "closures",
    "lists", "mutual_recursion", "references", "sizes_of_inputs", "updates_in_place",
)  # fmt: skip
"""Programs of the quick group."""
FEWER: Mapping[str, Sequence[str]] = dict.fromkeys(
    ("sorts", "random_numbers", "sizes_from_data"), ("vnni", "c", "cuda")
)
"""Targets of programs that take long, and have the same loops on most."""


def relay_module(text: str) -> IRModule:
    """Parse a program and bind its weights."""
    module = parse(text)
    main = module["main"]
    assert isinstance(main, Function)
    values = {}
    for param in main.params:
        kind = param.type_annotation
        if param.name_hint.startswith(WEIGHT_PREFIX) and isinstance(kind, TensorType):
            shape = tuple(d.value for d in kind.shape if isinstance(d, IntImm))
            values[param.name_hint] = weights(param.name_hint, shape, kind.dtype)
    bound = bind_params_by_name(main, values)
    return InferType()(module.with_function("main", bound))


def _programs(texts: Mapping[str, str]) -> dict[str, Program]:
    return {
        name: Program(
            partial(relay_module, text),
            is_quick=name in QUICK,
            targets=FEWER.get(name, tuple(TARGETS)),
        )
        for name, text in texts.items()
    }


PROGRAMS: Mapping[str, Program] = {
    **_programs(KERNELS),
    **_programs(LANGUAGE),
    "native_loop": Program(partial(relay_module, LANGUAGE["loop_of_tensors"]), "aot"),
    "native_lists": Program(partial(relay_module, LANGUAGE["lists"]), "aot"),
    "branches_at_once": Program(partial(relay_module, BRANCHES), "async"),
}
