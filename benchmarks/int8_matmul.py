"""uint8 x int8 matrix products as a share of the peak rate of dot-product instructions, for each
processor class that this machine can run.

    python benchmarks/int8_matmul.py [MxNxK ...] [--rounds 15]

The peak is a loop of independent sums of products by the instructions of the class: dot products
where there are any, else sums of two products of int16 (two products of bytes take as long: another
such instruction behind the first). Weights are of three kinds: all bytes alike, and with standard
deviations of 26 and 15, as a normal distribution over all of a weight gives in 8 and in 7 bits; for
those `listed` counts the words that need a second step (kernels/quantized/int8_dot.py). Beside
stands
ONNX Runtime's MatMulInteger, which takes what the processor itself has (with VNNI or AMX compare it
with the class of this machine alone), then told to be exact where there is neither: its sums of
uint8 and int8 saturate there. One thread, thread CPU time, the least of the rounds; every result is
compared with integers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ekiden import te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.compiler.machine_peak import dot_product_loop
from ekiden.kernels import schedule, select_kernel
from ekiden.kernels.cost_model import are_int16_sums_faster
from ekiden.kernels.cpu.dense import FAMILY
from ekiden.kernels.family import INT16_PAIR_SUMS, MatmulSizes
from ekiden.kernels.quantized.int8_dot import split_large_pairs
from ekiden.runtime import load_image, num_threads, tensor
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.transform import lower
from ekiden.topi.nn import dense_pack
from ekiden.topi.nn.weight_packing import DOT_WORD_CHANNELS, pack_weight

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from onnx_runtime import EXACT
from processor import processors

Call = Callable[[], object]
BYTE_MATMUL_SHAPES = ("1x768x768", "8x768x768", "37x768x768", "128x768x768", "128x3072x768")
PEAK_LOOP_STEPS = 400_000
WEIGHT_STDDEVS = (0, 26, 15)
"""Standard deviations of weights; 0: all bytes alike."""


def build_kernel(func: PrimFunc, target: Target) -> Callable[..., object]:
    """Return the compiled kernel."""
    kernel: Callable[..., object] = load_image(
        link_image([compile_object([lower(func, target)], target)], [func.name], target)
    )[func.name]
    return kernel


def build_peak_loop(target: Target) -> tuple[Call, int]:
    """Return a loop of independent dot-product accumulations, and its number of multiply-adds."""
    loop = dot_product_loop(target, "int8")
    assert loop is not None, target
    func, work = loop
    (out,) = func.buffers
    kernel, result = build_kernel(func, target), tensor(np.zeros(out.shape[0].value, np.int32))  # type: ignore[attr-defined]
    return lambda: kernel(result), work


def build_ekiden_matmul(x: np.ndarray, w: np.ndarray, target: Target) -> tuple[Call, str]:
    """Return a checked uint8 x int8 product with a constant weight, and how it multiplies words."""
    (m, k), n = x.shape, len(w)
    plain = MatmulSizes(m, n, k // DOT_WORD_CHANNELS, "uint8")
    narrow, listed_words = replace(plain, dtype=INT16_PAIR_SUMS), None
    tile = FAMILY.choose_panel_width(narrow, target, {})
    packed, listed = split_large_pairs(pack_weight(w, "dense_u8s8", tile))
    operands = [tensor(x), tensor(packed)]
    if are_int16_sums_faster(listed.shape[1], k // DOT_WORD_CHANNELS, target):
        listed_words = te.placeholder(listed.shape, "int32", "places")
        operands.append(tensor(listed))
    else:
        tile = FAMILY.choose_panel_width(plain, target, {})
        packed = pack_weight(w, "dense_u8s8", tile)
        operands[1] = tensor(packed)
    data = te.placeholder(x.shape, "uint8", "data")
    weight = te.placeholder(packed.shape, "int8", "weight")
    result = dense_pack(data, weight, n, tile, "int32", listed_words)
    inputs = [data, weight, *([] if listed_words is None else [listed_words])]
    kernel = build_kernel(schedule(inputs, [result], target, "product"), target)
    operands.append(tensor(np.zeros((m, n), np.int32)))
    kernel(*operands)
    np.testing.assert_array_equal(operands[-1].numpy(), x.astype(np.int64) @ w.T.astype(np.int64))
    dot = str(select_kernel([result], target).decision["dot"])
    count = "" if listed_words is None else f" {listed.shape[1]}/{k // DOT_WORD_CHANNELS}"
    return lambda: kernel(*operands), f"{dot}{count}"


def build_ort_matmul(x: np.ndarray, w: np.ndarray, exact: bool) -> Call:
    """Return ONNX Runtime's MatMulInteger with a constant weight, either with its default
    saturation or exact.
    """
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    input_info = helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)
    output_info = helper.make_tensor_value_info("y", TensorProto.INT32, (len(x), len(w)))
    weight = numpy_helper.from_array(np.ascontiguousarray(w.T), "w")
    graph = helper.make_graph([node], "product", [input_info], [output_info], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # By default ONNX Runtime's U8S8 kernels saturate at 16 bits on processors without VNNI.
    if exact:
        options.add_session_config_entry(EXACT, "1")
    run = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return lambda: run.run(None, {"x": x})


def interleaved_min_times(calls: dict[str, tuple[Call, int]], rounds: int) -> dict[str, float]:
    """Return the minimum duration of each call in seconds, measured alternately."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, (call, repeat) in calls.items():
            start = time.thread_time()
            for _ in range(repeat):
                call()
            best[name] = min(best[name], (time.thread_time() - start) / repeat)
    return best


def main() -> None:
    """Print a line per class and shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("byte_shapes", nargs="*", default=BYTE_MATMUL_SHAPES, metavar="MxNxK")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    num_threads(1)
    for text in processors():
        print_percent_of_peak(Target.parse(f"{text} -cores=1"), options)


def print_percent_of_peak(target: Target, options: argparse.Namespace) -> None:
    """Print the share of the peak for each shape on one processor class."""
    rng = np.random.default_rng(0)
    loop, work = build_peak_loop(target)
    print(f"\n{target.cpu}, products of bytes: {target}")
    print(
        f"{'MxNxK':>16} {'weight':>8} {'dot, listed':>18}"
        f" {'GOP/s':>8} {'of peak':>8} {'ort':>8} {'exact':>8}"
    )
    for shape, spread in product(
        getattr(options, "byte_shapes", BYTE_MATMUL_SHAPES), WEIGHT_STDDEVS
    ):
        m, n, k = (int(d) for d in shape.split("x"))
        x = rng.integers(0, 256, (m, k)).astype(np.uint8)
        wide = rng.standard_normal((n, k)) * spread if spread else rng.integers(-128, 128, (n, k))
        w = np.clip(np.rint(wide), -128, 127).astype(np.int8)
        # Small products are repeated to at least 40 million operations, above the clock's
        # resolution.
        repeat = max(1, int(4e7 // (2 * m * n * k)))
        kernel, how = build_ekiden_matmul(x, w, target)
        calls = {"ours": (kernel, repeat), "peak": (loop, 1)}
        calls |= {
            "ort": (build_ort_matmul(x, w, False), repeat),
            "exact": (build_ort_matmul(x, w, True), repeat),
        }
        spent = interleaved_min_times(calls, options.rounds)
        rate = {name: 2e-9 * m * n * k / s for name, s in spent.items()}
        share = rate["ours"] / (work / spent["peak"] / 1e9)
        numbers = f"{rate['ours']:8.1f} {share:8.1%} {rate['ort']:8.1f} {rate['exact']:8.1f}"
        print(f"{shape:>16} {spread or 'all':>8} {how:>18} {numbers}", flush=True)


if __name__ == "__main__":
    main()
