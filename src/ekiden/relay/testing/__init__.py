"""Networks and helpers for tests and benchmarks, under TVM's module name."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ekiden import runtime
from ekiden.ir.dtype import to_numpy
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass
from ekiden.relay.analysis.op_counts import list_op_freqs
from ekiden.relay.expr import Expr, Function
from ekiden.relay.prelude import Prelude
from ekiden.relay.testing import (
    densenet,
    dqn,
    inception_v3,
    init,
    layers,
    lstm,
    mlp,
    mobilenet,
    resnet,
    squeezenet,
    vgg,
)
from ekiden.relay.testing.gradient import check_grad
from ekiden.relay.testing.init import create_workload
from ekiden.relay.testing.nat import count, make_nat_expr, make_nat_value
from ekiden.relay.testing.py_converter import run_as_python, to_python
from ekiden.relay.transform.differentiation.differentiate import gradient
from ekiden.relay.transform.language.infer_type import InferType


def run_opt_pass(expr: Expr, opt_pass: Pass, import_prelude: bool = False) -> Expr:
    """Run a pass on an expression after type inference; return its body if it is no function."""
    module = IRModule.from_expr(expr)
    if import_prelude:
        Prelude(module)
    entry = opt_pass(InferType()(module))["main"]
    return entry if isinstance(expr, Function) or not isinstance(entry, Function) else entry.body


def run_infer_type(expr: Expr) -> Expr:
    """Infer the types of an expression."""
    return run_opt_pass(expr, InferType())


def rand(dtype: str, *shape: int) -> runtime.Tensor:
    """Return a random tensor in [0, 1)."""
    return runtime.tensor(np.random.rand(*shape).astype(to_numpy(dtype)))


def count_ops(expr: Expr) -> Counter[str]:
    """Count the operator calls in an expression."""
    return Counter(list_op_freqs(IRModule.from_expr(expr)))


__all__ = [
    "Prelude",
    "check_grad",
    "count",
    "count_ops",
    "create_workload",
    "densenet",
    "dqn",
    "gradient",
    "inception_v3",
    "init",
    "layers",
    "lstm",
    "make_nat_expr",
    "make_nat_value",
    "mlp",
    "mobilenet",
    "rand",
    "resnet",
    "run_as_python",
    "run_infer_type",
    "run_opt_pass",
    "squeezenet",
    "to_python",
    "vgg",
]
