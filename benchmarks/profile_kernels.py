"""Where the time of a model goes, kernel by kernel.

    python benchmarks/profile_kernels.py MODEL.onnx [--dim name=value ...] [--rounds 15] [--top 25]

Runs every kernel call of `main` in program order on the buffers the memory plan gives it, so that
caches are as in a real run, on one thread. Prints each distinct kernel: calls, median time of all
its calls in a run, share of the run, and what it reaches: GFLOP/s where it multiplies matrices or
convolves, GB/s of its arguments otherwise. The first line has the peaks measured in this process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matmul_peak import build

from ekiden.arith import evaluate
from ekiden.backend.kernels import build_kernels
from ekiden.backend.vm.compile import primitive_functions
from ekiden.backend.vm.pipeline import optimize
from ekiden.driver.build import import_model
from ekiden.driver.peak import CHAINS, STEPS, peak_loop
from ekiden.ir.op import Op
from ekiden.ir.prim import PrimExpr, Var
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.type import TensorType, TupleType
from ekiden.relay.expr import Call, Constant, Expr, Function, Let, Tuple
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs
from ekiden.relay.op.vm import ReshapeTensorAttrs
from ekiden.relay.transform.scopes import evaluation_order
from ekiden.runtime import Tensor, load_image, num_threads, tensor
from ekiden.target import Target

if TYPE_CHECKING:
    from ekiden.relay.expr import Var as RelayVar

MULTIPLY = ("conv2d", "dense", "matmul", "conv2d_transpose")


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call: its name, what it is called with, floating point operations, bytes."""

    name: str
    run: Callable[[], object]
    flops: int
    traffic: int
    shapes: str


class Plan:
    """The kernel calls of a module with explicit memory, for given values of its symbols."""

    def __init__(
        self, main: Function, env: dict[Var, int], kernels: dict[Function, str], image: bytes
    ) -> None:
        self.env, self.kernels = env, kernels
        self.code = load_image(image)
        self.values: dict[Expr, Tensor | np.ndarray] = {}
        self.steps: list[Step] = []
        random = np.random.default_rng(0)
        for param in main.params:
            kind = param.checked_type
            assert isinstance(kind, TensorType)
            shape = self.shape(kind.shape)
            fill = random.random(shape) if kind.dtype.startswith("float") else np.ones(shape)
            self.values[param] = tensor(fill.astype(kind.dtype))
        body = main.body
        while isinstance(body, Let):
            self.bind(body.var, body.value)
            body = body.body

    def shape(self, dims: tuple[PrimExpr, ...]) -> tuple[int, ...]:
        """Dimensions as numbers."""
        return tuple(int(evaluate(d, self.env)) for d in dims)

    def atom(self, expr: Expr) -> Tensor | np.ndarray:
        """The value of an argument."""
        if isinstance(expr, Constant) and expr not in self.values:
            self.values[expr] = tensor(np.ascontiguousarray(expr.data))
        return self.values[expr]

    def bind(self, variable: RelayVar, value: Expr) -> None:
        """Make what a binding makes."""
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            if not isinstance(value, Tuple):
                self.values[variable] = self.atom(value)
            return
        attrs = value.attrs
        if isinstance(attrs, AllocStorageAttrs):
            size = self.shape((attrs.size,))[0] + 128
            raw = np.zeros(size, np.uint8)
            self.values[variable] = raw[-raw.ctypes.data % 64 :]
        elif isinstance(attrs, AllocTensorAttrs):
            offset, *shape = self.shape((attrs.offset, *attrs.shape))
            self.values[variable] = self.view(value.args[0], offset, tuple(shape), attrs.dtype)
        elif isinstance(attrs, ReshapeTensorAttrs):
            old = self.atom(value.args[0])
            assert isinstance(old, Tensor)
            self.values[variable] = tensor(old.numpy().reshape(self.shape(attrs.shape)))
        elif value.op.name == "vm.invoke_tvm_op":
            self.call(value)

    def view(self, storage: Expr, offset: int, shape: tuple[int, ...], dtype: str) -> Tensor:
        """A tensor within a storage."""
        raw = self.values[storage]
        assert isinstance(raw, np.ndarray)
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return tensor(raw[offset : offset + count].view(dtype).reshape(shape))

    def call(self, call: Call) -> None:
        """Add the step of a kernel call."""
        function, inputs, outputs = call.args
        assert isinstance(function, Function)
        assert isinstance(inputs, Tuple)
        assert isinstance(outputs, Tuple)
        args = [self.atom(e) for e in (*inputs.fields, *outputs.fields)]
        run = self.code[self.kernels[function]]
        traffic = sum(a.numpy().nbytes for a in args if isinstance(a, Tensor))
        shapes = " ".join(
            "x".join(map(str, a.numpy().shape)) for a in args if isinstance(a, Tensor)
        )
        self.steps.append(
            Step(self.kernels[function], lambda: run(*args), self.flops(function), traffic, shapes)
        )

    def flops(self, function: Function) -> int:
        """Multiplications and additions of the products inside."""
        total = 0
        for e in evaluation_order(function.body):
            if (
                isinstance(e, Call)
                and isinstance(e.op, Op)
                and any(m in e.op.name for m in MULTIPLY)
            ):
                total += self.product(e)
        return total

    def product(self, call: Call) -> int:
        """2 * elements of the result * terms of each."""
        result, weight = call.checked_type, call.args[1].checked_type
        assert isinstance(result, TensorType)
        assert isinstance(weight, TensorType)
        w = self.shape(weight.shape)
        count = int(np.prod(self.shape(result.shape)))
        attrs = call.attrs
        if "winograd" in call.op.name:  # type: ignore[attr-defined]
            return 2 * count * 9 * w[-2]
        if "conv2d" in call.op.name:  # type: ignore[attr-defined]
            depthwise = getattr(attrs, "kernel_layout", "") == "HWOI"
            terms = (
                w[0] * w[1] * (w[3] if depthwise else 1) if depthwise else int(np.prod(w[-4:-1]))
            )
            return 2 * count * terms
        if "dense_pack" in call.op.name:  # type: ignore[attr-defined]
            return 2 * count * w[-2]
        data = call.args[0].checked_type
        assert isinstance(data, TensorType)
        a = self.shape(data.shape)
        return 2 * count * (a[-2] if getattr(attrs, "transpose_a", False) else a[-1])


def environment(main: Function, given: dict[str, int]) -> dict[Var, int]:
    """A value for every symbol of the parameters."""
    env: dict[Var, int] = {}
    for param in main.params:
        kinds = (
            [param.checked_type]
            if not isinstance(param.checked_type, TupleType)
            else param.checked_type.fields
        )
        for var in (
            v for k in kinds if isinstance(k, TensorType) for d in k.shape for v in free_vars(d)
        ):
            if var.name not in given:
                raise SystemExit(f"the dimension {var.name} needs a value: --dim {var.name}=N")
            env[var] = given[var.name]
    return env


def peaks(target: Target) -> tuple[float, float]:
    """(multiply-add operations per second, bytes per second of a large copy), medians."""
    peak, _ = build(peak_loop(target), target)
    out = tensor(np.zeros(CHAINS * target.lanes("float32"), np.float32))
    work = 2 * CHAINS * STEPS * target.lanes("float32")
    source, to = np.ones(1 << 24, np.float32), np.zeros(1 << 24, np.float32)
    rates, copies = [], []
    for _ in range(9):
        rates.append(work / elapsed(lambda: peak(out)))
        copies.append(2 * source.nbytes / elapsed(lambda: np.copyto(to, source)))
    return statistics.median(rates), statistics.median(copies)


def elapsed(call: Callable[[], object]) -> float:
    """Seconds of processor time of one call: other programs on the machine do not count."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--top", type=int, default=25)
    options = parser.parse_args()
    num_threads(1)
    target = Target.host()
    module = optimize(import_model(options.model), target)
    function = module["main"]
    assert isinstance(function, Function)
    given = {k: int(v) for k, v in (text.split("=") for text in options.dim)}
    fused = primitive_functions(module)
    kernels = build_kernels(fused, [], target)
    plan = Plan(
        function,
        environment(function, given),
        dict(zip(fused, kernels.names, strict=True)),
        kernels.image,
    )
    report(plan, options.rounds, options.top, peaks(target))


def report(plan: Plan, rounds: int, top: int, limits: tuple[float, float]) -> None:
    """Run the plan and print the table."""
    spent: list[list[float]] = [[] for _ in plan.steps]
    for n in range(rounds + 1):
        for times, step in zip(spent, plan.steps, strict=True):
            seconds = elapsed(step.run)
            if n:
                times.append(seconds)
    groups: dict[str, list[tuple[Step, float]]] = {}
    for times, step in zip(spent, plan.steps, strict=True):
        groups.setdefault(step.name, []).append((step, statistics.median(times)))
    total = sum(t for group in groups.values() for _, t in group)
    compute, copy = limits[0] / 1e9, limits[1] / 1e9
    print(f"total {total * 1e3:.3f} ms, peak {compute:.0f} GFLOP/s, copy {copy:.1f} GB/s")
    print(f"{'ms':>9} {'share':>6} {'calls':>5} {'rate':>18}  kernel, shapes of its first call")
    for name, group in sorted(groups.items(), key=lambda g: -sum(t for _, t in g[1]))[:top]:
        seconds = sum(t for _, t in group)
        flops, traffic = sum(s.flops for s, _ in group), sum(s.traffic for s, _ in group)
        if flops:
            rate = f"{flops / seconds / 1e9:.0f} GFLOP/s {flops / seconds / limits[0]:4.0%}"
        else:
            rate = f"{traffic / seconds / 1e9:.1f} GB/s {traffic / seconds / limits[1]:4.0%}"
        short = name.rpartition("_")[0].removeprefix("fused_")
        row = f"{seconds * 1e3:9.3f} {seconds / total:6.1%} {len(group):5} {rate:>18}"
        print(f"{row}  {short} {group[0][0].shapes}")


if __name__ == "__main__":
    main()
