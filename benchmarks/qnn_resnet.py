"""A quantized ResNet-18 in Relay's `qnn` dialect, compared with the same network from ONNX (QDQ),
in turns in one process.

    python benchmarks/qnn_resnet.py [--size 224] [--target llvm] [--rounds 30]

Both have the same weights of int8, drawn from one seed, scales per tensor, and activations of
uint8: in `qnn` conv2d, add, dense and requantize, in ONNX operators between DequantizeLinear and
QuantizeLinear. Results may differ by one step, which is checked: `qnn` rounds products in fixed
point, ONNX in floating point. Printed are how many do, thread CPU times, the least of the rounds,
their ratio, and the median of the ratios of rounds. One thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay import qnn
from ekiden.relay.expr import Expr, const
from ekiden.runtime import num_threads

Array = np.ndarray[Any, Any]
T = TypeVar("T")
INPUT_SCALE, ACTIVATION_SCALE, ZERO_POINT = 0.02, 0.02, 0
"""The scales of the input and of all other activations; their zero point."""
STAGE_CHANNELS = (64, 128, 256, 512)
NUM_CLASSES = 1000


class QuantizedWeights:
    """Seeded quantized weights in the order in which a network requests them."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def next_weight(self, *shape: int) -> tuple[Array, Array, float]:
        """Return the int8 weight of a shape (outputs, ...), int32 bias and scale of the
        next layer.
        """
        scale = float(np.float32(1 / (40 * np.sqrt(np.prod(shape[1:])))))
        weight = np.clip(np.rint(self.rng.normal(0, 40, shape)), -127, 127).astype(np.int8)
        return weight, self.rng.integers(-500, 500, shape[:1], dtype=np.int32), scale


class LayerBuilder(Protocol[T]):
    """Interface of a network's layers, one implementation per form; values are uint8."""

    def conv(self, data: T, scale: float, shape: Sequence[int], stride: int) -> T: ...
    def add(self, lhs: T, rhs: T) -> T: ...
    def max_pool(self, data: T) -> T: ...
    def classify(self, data: T) -> T: ...


def build_resnet18(layers: LayerBuilder[T], data: T) -> T:
    """Return the network of He et al. (2015), Table 1; each ReLU is part of the quantization, whose
    minimum is 0.
    """
    data = layers.max_pool(layers.conv(data, INPUT_SCALE, (64, 3, 7, 7), 2))
    width = 64
    for stage, channels in enumerate(STAGE_CHANNELS):
        for block in range(2):
            stride = 2 if stage and not block else 1
            inner = layers.conv(data, ACTIVATION_SCALE, (channels, width, 3, 3), stride)
            inner = layers.conv(inner, ACTIVATION_SCALE, (channels, channels, 3, 3), 1)
            if width != channels:
                data = layers.conv(data, ACTIVATION_SCALE, (channels, width, 1, 1), stride)
            data, width = layers.add(data, inner), channels
    return layers.classify(data)


class QnnLayerBuilder:
    """Layers as calls of `qnn` operators."""

    def __init__(self) -> None:
        self.weights = QuantizedWeights()
        self.step, self.zero = const(np.float32(ACTIVATION_SCALE)), const(np.int32(ZERO_POINT))

    def _requantize(self, data: Expr, scale: float) -> Expr:
        own = const(np.float32(scale))
        return qnn.op.requantize(
            data, own, self.zero, self.step, self.zero, axis=1, out_dtype="uint8"
        )

    def conv(self, data: Expr, scale: float, shape: Sequence[int], stride: int) -> Expr:
        """Return a quantized convolution."""
        weight, bias, own = self.weights.next_weight(*shape)
        steps = const(np.float32(scale)), const(np.float32(own))
        side = (shape[2] // 2,) * 2
        product = qnn.op.conv2d(
            data, const(weight), self.zero, self.zero, *steps,
            kernel_size=tuple(shape[2:]), channels=shape[0], strides=(stride,) * 2, padding=side,
        )  # fmt: skip
        return self._requantize(relay.nn.bias_add(product, const(bias)), scale * own)

    def add(self, lhs: Expr, rhs: Expr) -> Expr:
        step = self.step, self.zero
        return qnn.op.add(lhs, rhs, *step, *step, *step)

    def max_pool(self, data: Expr) -> Expr:
        return relay.nn.max_pool2d(data, (3, 3), (2, 2), padding=(1, 1))

    def classify(self, data: Expr) -> Expr:
        """Return the pooled and classified result."""
        dequantised = qnn.op.dequantize(data, self.step, self.zero)
        mean = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(dequantised))
        level = qnn.op.quantize(mean, self.step, self.zero, out_dtype="uint8")
        weight, bias, own = self.weights.next_weight(NUM_CLASSES, STAGE_CHANNELS[-1])
        steps = self.step, const(np.float32(own))
        product = qnn.op.dense(
            level, const(weight), self.zero, self.zero, *steps, units=NUM_CLASSES
        )
        return self._requantize(relay.nn.bias_add(product, const(bias)), ACTIVATION_SCALE * own)


class QdqLayerBuilder:
    """Layers as ONNX nodes between DequantizeLinear and QuantizeLinear; values are names."""

    def __init__(self) -> None:
        self.weights = QuantizedWeights()
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []

    def new_name(self) -> str:
        return f"v{len(self.nodes) + len(self.held)}"

    def add_initializer(self, value: Array) -> str:
        """Add an initializer."""
        self.held.append(numpy_helper.from_array(value, name_held := self.new_name()))
        return name_held

    def add_node(self, kind: str, *args: str, **attributes: object) -> str:
        """Add a node."""
        self.nodes.append(helper.make_node(kind, args, [result := self.new_name()], **attributes))
        return result

    def _dequantize(self, data: str, scale: float, dtype: str = "uint8") -> str:
        point = np.zeros((), dtype)
        return self.add_node(
            "DequantizeLinear",
            data,
            self.add_initializer(np.float32(scale).reshape(())),
            self.add_initializer(point),
        )

    def _quantize(self, data: str) -> str:
        steps = np.float32(ACTIVATION_SCALE).reshape(()), np.uint8(ZERO_POINT).reshape(())
        return self.add_node("QuantizeLinear", data, *map(self.add_initializer, steps))

    def _scale_and_zero_point(self, scale: float, *shape: int) -> tuple[str, str]:
        weight, bias, own = self.weights.next_weight(*shape)
        return (
            self._dequantize(self.add_initializer(weight), own, "int8"),
            self._dequantize(self.add_initializer(bias), scale * own, "int32"),
        )

    def conv(self, data: str, scale: float, shape: Sequence[int], stride: int) -> str:
        """Add a quantized convolution."""
        own = self._scale_and_zero_point(scale, *shape)
        result = self.add_node(
            "Conv", self._dequantize(data, scale), *own,
            strides=[stride] * 2, pads=[shape[2] // 2] * 4, kernel_shape=list(shape[2:]),
        )  # fmt: skip
        return self._quantize(result)

    def add(self, lhs: str, rhs: str) -> str:
        return self._quantize(
            self.add_node(
                "Add",
                self._dequantize(lhs, ACTIVATION_SCALE),
                self._dequantize(rhs, ACTIVATION_SCALE),
            )
        )

    def max_pool(self, data: str) -> str:
        return self.add_node("MaxPool", data, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def classify(self, data: str) -> str:
        mean = self.add_node(
            "Flatten", self.add_node("GlobalAveragePool", self._dequantize(data, ACTIVATION_SCALE))
        )
        own = self._scale_and_zero_point(ACTIVATION_SCALE, NUM_CLASSES, STAGE_CHANNELS[-1])
        level = self._dequantize(self._quantize(mean), ACTIVATION_SCALE)
        return self._quantize(self.add_node("Gemm", level, *own, transB=1))

    def make_model(self, shape: Sequence[int]) -> onnx.ModelProto:
        """Return the network's model on "data" of a shape."""
        out = build_resnet18(self, "data")
        graph = helper.make_graph(
            self.nodes,
            "resnet18",
            [helper.make_tensor_value_info("data", TensorProto.UINT8, shape)],
            [helper.make_tensor_value_info(out, TensorProto.UINT8, (shape[0], NUM_CLASSES))],
            self.held,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def build_programs(shape: Sequence[int]) -> tuple[IRModule, IRModule]:
    """Return the network in `qnn` and imported from ONNX, on inputs of this shape (n, 3, h, w)."""
    data = relay.var("data", shape=tuple(shape), dtype="uint8")
    module = IRModule.from_expr(relay.Function([data], build_resnet18(QnnLayerBuilder(), data)))
    imported, _ = relay.frontend.from_onnx(
        QdqLayerBuilder().make_model(shape), {"data": tuple(shape)}
    )
    return module, imported


def interleaved_cpu_times(
    runs: Sequence[Callable[[Array], object]], data: Array, rounds: int
) -> Array:
    """Return the thread CPU seconds (rounds, runs) of runs called alternately."""
    spent = np.empty((rounds, len(runs)))
    for n in range(rounds):
        for which, run in enumerate(runs):
            start = time.thread_time()
            run(data)
            spent[n, which] = time.thread_time() - start
    return spent


def main() -> None:
    """Print the difference of the results, both times and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    num_threads(1)
    shape = (1, 3, options.size, options.size)
    data = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    compiled = [ekiden.compile(module, options.target) for module in build_programs(shape)]
    first, second = (np.asarray(run(data)).astype(int) for run in compiled)
    steps = np.abs(first - second)
    print(f"results from {first.min()} to {first.max()}: {np.count_nonzero(steps)} of {steps.size}"
          f" differ, by at most {steps.max()}")  # fmt: skip
    if steps.max() > 1:
        raise SystemExit("the results differ by more than a step")
    spent = interleaved_cpu_times(compiled, data, options.rounds)
    ekiden_time, onnx_time = spent.min(0)
    ratio = np.median(spent[:, 0] / spent[:, 1])
    print(
        f"qnn {ekiden_time * 1e3:.2f} ms, ONNX {onnx_time * 1e3:.2f} ms: "
        f"{ekiden_time / onnx_time:.3f}, median {ratio:.3f}"
    )


if __name__ == "__main__":
    main()
