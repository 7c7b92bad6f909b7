"""Products and convolutions of bytes as quantisers write them: a grid of small ONNX models.

Shared by tests (which family multiplies, exact results) and benchmarks/quantized_operators.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ekiden.backend.kernels.canonical_form import canonicalize
from ekiden.backend.kernels.lower import choose_primitive
from ekiden.backend.vm.module_kernels import primitive_functions
from ekiden.backend.vm.pipeline import vm_pipeline
from ekiden.compiler.build import import_model
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Function
from ekiden.relay.visitor import post_order
from ekiden.target import Target

Array = np.ndarray[Any, Any]
WAYS = ("integer", "dynamic", "linear", "qdq", "qdq-floats")
"""ConvInteger or MatMulInteger alone; those behind DynamicQuantizeLinear with scales; QLinearConv
or QLinearMatMul; a node of floats between DequantizeLinear and QuantizeLinear, its weight bytes;
the same with a weight of floats behind QuantizeLinear."""
KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "float32": TensorProto.FLOAT}


@dataclass(frozen=True)
class Case:
    """One model: a convolution of `channels` to `out` over `size` x `size` pixels with a `window`,
    or, where that is 0, a product of `size` rows."""

    way: str
    data: str = "uint8"
    weight: str = "int8"
    channels: int = 64
    out: int = 64
    size: int = 28
    window: int = 3
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    border: bool = True
    points: bool = True
    """Whether zero points are others than 0."""
    per_channel: bool = False
    is_dynamic: bool = False
    """Whether only the run knows sizes."""
    batch: int = 0
    """Of a product of two computed matrices, whose number of columns is `out`; 0: the weight is
    known."""

    @property
    def name(self) -> str:
        """What it is called in tables."""
        kind = f"{self.window}x{self.window}" if self.window else "matmul"
        marks = [
            *([f"s{self.stride}"] if self.stride > 1 else []),
            *([f"d{self.dilation}"] if self.dilation > 1 else []),
            *([f"g{self.groups}"] if self.groups > 1 else []),
            *(["no border"] if self.window > 1 and not self.border else []),
            *(["points"] if self.points else []),
            *(["per channel"] if self.per_channel else []),
            *(["dynamic"] if self.is_dynamic else []),
            *([f"batch {self.batch}"] if self.batch else []),
        ]
        sizes = f"{self.channels}->{self.out} at {self.size}"
        return f"{self.way} {kind} {sizes} {self.data}*{self.weight} {' '.join(marks)}".strip()

    @property
    def small(self) -> Case:
        """The same with an eighth of the channels and fewer pixels or rows, for tests."""
        least = 3 if self.channels == 3 else 8
        channels, out = (max(least, n // 8) for n in (self.channels, self.out))
        groups = self.groups if self.groups < 8 else self.groups // 8
        size = self.size if self.size == 1 else 9
        batch = min(self.batch, 3)
        return replace(self, channels=channels, out=out, groups=groups, size=size, batch=batch)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the data."""
        if self.batch:
            return (self.batch, self.size, self.channels)
        return (
            (1, self.channels, self.size, self.size) if self.window else (self.size, self.channels)
        )

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        if not self.window:
            return 2 * max(self.batch, 1) * self.size * self.channels * self.out
        side = (
            self.size + 2 * self.padding - (self.window - 1) * self.dilation - 1
        ) // self.stride + 1
        return 2 * side**2 * self.out * self.channels // self.groups * self.window**2

    @property
    def padding(self) -> int:
        """Pixels on each side."""
        return self.dilation * (self.window // 2) if self.border else 0

    @property
    def is_quantised(self) -> bool:
        """Whether data come as bytes; else as floats."""
        return self.way in ("integer", "linear")

    def tolerance(self, result: Array) -> float:
        """How far results of two engines may be apart: not at all, a step, rounding of sums."""
        if self.way == "integer":
            return 0.0
        if self.way == "dynamic":
            return 1e-5 * float(np.abs(result).max())
        return 1.0 if self.way == "linear" else 0.05 + 1e-6

    def integers(self, dtype: str, shape: Sequence[int], seed: int) -> Array:
        """All bytes, and runs of the extreme ones."""
        info = np.iinfo(dtype)
        result = np.random.default_rng([seed, *shape]).integers(info.min, info.max + 1, shape)
        flat = result.reshape(-1)
        flat[: flat.size // 8], flat[-(flat.size // 8) :] = info.max, info.min
        return result.astype(dtype)

    def feed(self) -> dict[str, Array]:
        """Its inputs."""
        if self.is_quantised:
            return {"x": self.integers(self.data, self.shape, 0), **self._second()}
        rng = np.random.default_rng(0)
        x = (rng.standard_normal(self.shape) * 2).astype("float32")
        return {"x": x, **self._second()}

    def _second(self) -> dict[str, Array]:
        if not self.batch:
            return {}
        shape = (self.batch, self.channels, self.out)
        if self.is_quantised:
            return {"w": self.integers(self.weight, shape, 1)}
        return {"w": np.random.default_rng(1).standard_normal(shape).astype("float32")}

    def model(self) -> onnx.ModelProto:
        """The model of ONNX."""
        return _Builder(self).model()


class _Builder:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: Array) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def point(self, dtype: str, number: int) -> Array:
        return np.asarray((number if self.case.points else 0), dtype)

    def weight_point(self) -> Array:
        """Of int8 weights 0 but in integer nodes: quantisers of them know no other."""
        case = self.case
        if case.weight == "uint8":
            return np.asarray(131 if case.points else 128, "uint8")
        return self.point("int8", 3 if case.way == "integer" and case.points else 0)

    def scales(self) -> Array:
        """Of the weight: one, or one for each channel."""
        case = self.case
        result = np.float32(0.01) * (1 + np.arange(case.out, dtype="float32") / case.out)
        return result if case.per_channel else np.float32(0.01).reshape(())

    def points(self) -> Array:
        point = self.weight_point()
        return np.full(self.case.out, point, point.dtype) if self.case.per_channel else point

    @property
    def window(self) -> dict[str, object]:
        case = self.case
        if not case.window:
            return {}
        return {
            "pads": [case.padding] * 4,
            "strides": [case.stride] * 2,
            "dilations": [case.dilation] * 2,
            "group": case.groups,
        }

    def op(self, integer: str) -> str:
        kind = "Conv" if self.case.window else "MatMul"
        return {"linear": f"QLinear{kind}", "integer": f"{kind}Integer", "plain": kind}[integer]

    def weight(self) -> str:
        case = self.case
        if case.batch:
            return "w"
        shape: tuple[int, ...] = (case.channels, case.out)
        if case.window:
            shape = (case.out, case.channels // case.groups, case.window, case.window)
        return self.constant("w", case.integers(case.weight, shape, 1))

    def model(self) -> onnx.ModelProto:
        case = self.case
        result = {
            "integer": self.integer,
            "dynamic": self.dynamic,
            "linear": self.linear,
            "qdq": self.dequantised,
            "qdq-floats": self.dequantised,
        }[case.way]()
        kind = case.data if case.is_quantised else "float32"
        shape: list[int | str] = list(case.shape)
        if case.is_dynamic:
            shape[-2:] = ["h", "w"] if case.window else ["m", case.channels]
        inputs = [helper.make_tensor_value_info("x", KINDS[kind], shape)]
        if case.batch:
            wide = case.weight if case.is_quantised else "float32"
            sizes = (case.batch, case.channels, case.out)
            inputs.append(helper.make_tensor_value_info("w", KINDS[wide], sizes))
        out = onnx.ValueInfoProto(name=result)
        graph = helper.make_graph(self.nodes, "case", inputs, [out], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def integer(self) -> str:
        case = self.case
        sides = ["x", self.weight()]
        if case.points or case.weight == "uint8":
            sides.append(self.constant("xp", self.point(case.data, 7)))
            sides.append(self.constant("wp", self.points()))
        return self.node(self.op("integer"), sides, "y", **self.window)

    def dynamic(self) -> str:
        case = self.case
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "p"]))
        weight = self.weight()
        if case.batch:
            self.nodes.append(helper.make_node("DynamicQuantizeLinear", ["w"], ["wq", "ws", "wp"]))
            sides = ["q", "wq", "p", "wp"]
        else:
            scale = self.scales()
            if case.window and case.per_channel:
                scale = scale.reshape(-1, 1, 1)
            self.constant("ws", scale)
            sides = ["q", weight, "p", self.constant("wp", self.points())]
        total = self.node(self.op("integer"), sides, "t", **self.window)
        wide = self.node("Cast", [total], "f", to=TensorProto.FLOAT)
        return self.node("Mul", [wide, self.node("Mul", ["s", "ws"], "m")], "y")

    def linear(self) -> str:
        case = self.case
        data = [
            "x",
            self.constant("xs", np.float32(0.05)),
            self.constant("xp", self.point(case.data, 7)),
        ]
        weight = [
            self.weight(),
            self.constant("ws", self.scales()),
            self.constant("wp", self.points()),
        ]
        out = [self.constant("ys", np.float32(0.9)), self.constant("yp", self.point(case.data, 5))]
        return self.node(self.op("linear"), [*data, *weight, *out], "y", **self.window)

    def dequantised(self) -> str:
        case = self.case
        steps = [
            self.constant("xs", np.float32(0.05)),
            self.constant("xp", self.point(case.data, 7)),
        ]
        data = self.rounded("x", steps, "x")
        axis = 0 if case.window else 1
        kernel = [self.constant("ws", self.scales()), self.constant("wp", self.points())]
        if case.batch:
            weight = self.rounded("w", steps, "v")
        elif case.way == "qdq":
            weight = self.node("DequantizeLinear", [self.weight(), *kernel], "wd", axis=axis)
        else:
            self.weight()
            integers = numpy_helper.to_array(self.constants.pop())
            around = [-1 if n == axis else 1 for n in range(integers.ndim)]
            scale, point = (np.asarray(v) for v in (self.scales(), self.points()))
            if case.per_channel:
                scale, point = scale.reshape(around), point.reshape(around)
            floats = ((integers.astype(np.int32) - point.astype(np.int32)) * scale).astype(
                "float32"
            )
            self.constant("wf", floats)
            levels = self.node("QuantizeLinear", ["wf", *kernel], "wq", axis=axis)
            weight = self.node("DequantizeLinear", [levels, *kernel], "wd", axis=axis)
        total = self.node(self.op("plain"), [data, weight], "t", **self.window)
        out = [self.constant("ys", np.float32(0.05)), self.constant("yp", self.point(case.data, 5))]
        return self.rounded(total, out, "y")

    def rounded(self, value: str, steps: Sequence[str], name: str) -> str:
        levels = self.node("QuantizeLinear", [value, *steps], f"{name}_q")
        return self.node("DequantizeLinear", [levels, *steps], f"{name}_d")


def grid() -> Iterator[Case]:
    """All cases."""
    for way in WAYS:
        base = Case(way)
        per_channel = replace(base, per_channel=True)
        signs = (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8"))
        if way == "dynamic":
            signs = (("uint8", "int8"), ("uint8", "uint8"))
        elif way != "integer":
            signs = signs[:3]
        for data, weight in signs:
            for points in (True, False):
                yield replace(base, data=data, weight=weight, points=points)
        if way not in ("integer", "dynamic"):
            yield per_channel
        yield replace(base, channels=192, out=48, window=1)
        yield replace(base, weight="uint8", channels=48, out=192, stride=2)
        yield replace(base, weight="uint8", channels=48, out=192, stride=2, is_dynamic=True)
        yield replace(base, stride=2, window=1, channels=128, out=256)
        yield replace(base, dilation=2)
        yield replace(base, border=False)
        yield replace(base, channels=3, out=64, window=7, stride=2, size=112)
        yield replace(base, channels=128, out=128, groups=2)
        yield replace(base, channels=128, out=128, groups=32)
        yield replace(base, channels=128, out=128, groups=128)
        yield replace(base, channels=128, out=128, groups=128, stride=2, is_dynamic=True)
        yield replace(base, size=7, channels=512, out=512)
        yield replace(base, is_dynamic=True)
        product = replace(base, window=0, channels=768, out=768)
        for data, weight in signs:
            yield replace(product, data=data, weight=weight, size=128)
        yield replace(product, size=1)
        yield replace(product, size=128, is_dynamic=True)
        if way not in ("integer", "dynamic"):
            yield replace(product, size=128, per_channel=True)
        if way != "linear":
            yield replace(product, size=128, channels=64, out=128, batch=12)
            yield replace(product, size=128, channels=128, out=64, batch=12)


def families_of(model: onnx.ModelProto, target: Target) -> list[str]:
    """The families of the kernels that multiply, with how they multiply words of bytes."""
    seen: list[str] = []

    def note(functions: Sequence[Function]) -> None:
        for function in filter(multiplies, functions):
            chosen = choose_primitive(canonicalize(function), target)
            dot = chosen.decision.get("dot") if chosen.anchor is not None else None
            seen.append(chosen.family.name + (f"({dot})" if dot else ""))

    module = vm_pipeline(target)(import_model(model))
    note([function for function, _ in primitive_functions(module)])
    return list(dict.fromkeys(seen))


def multiplies(kernel: Function) -> bool:
    """Whether one of a kernel's operators is a product."""
    calls = [e for e in post_order(kernel) if isinstance(e, Call) and isinstance(e.op, Op)]
    return any(c.op.definition.macs is not None for c in calls)
