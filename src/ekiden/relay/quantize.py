"""`relay.quantize`: TVM's names for making integers of a program of Relay.

with relay.quantize.qconfig(calibrate_mode="kl_divergence"):
    module = relay.quantize.quantize(module, params, dataset)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ekiden.compiler.compile import compile
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.transform import Pass, PassContext, Sequential
from ekiden.quantization.relay.annotate import annotate
from ekiden.quantization.relay.calibrate import ranges, with_steps
from ekiden.quantization.relay.config import (
    MODES,
    QAnnotateKind,
    QConfig,
    current_qconfig,
    kind2str,
    qconfig,
)
from ekiden.quantization.relay.conversions import partition_conversions
from ekiden.quantization.relay.realize import realize
from ekiden.relay.build_module import bind_params_in_module
from ekiden.relay.expr import Function
from ekiden.relay.transform.graph.canonicalize_ops import CanonicalizeOps
from ekiden.relay.transform.graph.fold_constant import FoldConstant
from ekiden.relay.transform.graph.fold_scale_axis import FoldScaleAxis
from ekiden.relay.transform.graph.simplify_inference import SimplifyInference
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.runtime.errors import InputError
from ekiden.target import Target

__all__ = [
    "QAnnotateKind",
    "QConfig",
    "annotate",
    "calibrate",
    "current_qconfig",
    "kind2str",
    "partition_conversions",
    "prerequisite_optimize",
    "qconfig",
    "quantize",
    "realize",
]

Dataset = Iterable[Mapping[str, object]]


def prerequisite_optimize(mod: IRModule, params: Mapping[str, object] | None = None) -> IRModule:
    """The module with `params` as constants by name, what inference does not need taken out, and
    scales folded into weights."""
    module = bind_params_in_module(mod, params) if params else mod
    passes = [
        InferType(), SimplifyInference(), FoldConstant(), FoldScaleAxis(), CanonicalizeOps(),
        FoldConstant(), InferType(),
    ]  # fmt: skip
    with PassContext(opt_level=3):
        return Sequential(passes)(module)


def _runner(module: IRModule) -> Callable[[Mapping[str, object]], Sequence[Array]]:
    """What runs a module on inputs by name; others that a sample has are left out."""
    executable = compile(module, target=Target.current(allow_none=True))
    main = module["main"]
    assert isinstance(main, Function)
    kinds: dict[str, Any] = {each.name_hint: each.checked_type for each in main.params}

    def run(sample: Mapping[str, object]) -> list[Array]:
        """One sample, its values converted to the dtypes of the parameters. Raises InputError where
        it lacks a parameter.
        """
        missing = [name for name in kinds if name not in sample]
        if missing:
            got = ", ".join(f"'{name}'" for name in sample)
            raise InputError(f"relay.quantize: the data have no '{missing[0]}'; they have {got}")
        given = [np.asarray(_array(sample[name]), kind.dtype) for name, kind in kinds.items()]
        found = executable(*given)
        values = found if isinstance(found, tuple) else (found,)
        return [np.asarray(value.numpy()) for value in values]

    return run


def _array(value: Any) -> object:  # noqa: ANN401 - a tensor, or what NumPy takes
    return value.numpy() if hasattr(value, "numpy") else value


def calibrate(dataset: Dataset | None = None) -> Callable[[IRModule, object], IRModule]:
    """A function (module, context) -> module for a pass: the steps of all rounding that `annotate`
    put in, as the current `qconfig` says. `dataset` has inputs by name, a mapping for each run.

    Raises InputError where the mode needs data and there are none, or they lack an input.
    """
    samples = None if dataset is None else list(dataset)

    def transform(module: IRModule, context: object = None) -> IRModule:
        """The pass: (module, context) -> module; the context is not asked."""
        config = current_qconfig()
        if not MODES[config.calibrate_mode]:
            return with_steps(module, config, {})
        if not samples:
            raise InputError(f"relay.quantize: '{config.calibrate_mode}' needs a dataset")
        return with_steps(module, config, ranges(module, config, samples, _runner))

    return transform


def quantize(
    mod: IRModule,
    params: Mapping[str, object] | None = None,
    dataset: Dataset | None = None,
) -> IRModule:
    """A program of floats with its products in integers of 8 bits, as the current `qconfig` says:
    rounding is put in, its steps are found, and integers are made of it, in operators of `qnn`.

    `params` become constants by name; `dataset` has inputs by name for each run. Products that
    the configuration skips, and what has no form in integers, stay floats. Raises InputError as
    `calibrate` does, and CompileError for what is not "fully_integral" where that is asked for.
    """
    config = current_qconfig()
    module = prerequisite_optimize(mod, params)
    steps = calibrate(dataset)
    passes = [annotate(), Pass("QuantizeCalibrate", steps, 1, (InferType(),)), InferType()]
    if not config.do_simulation:
        passes.append(realize())
    passes.append(FoldConstant())
    with PassContext(opt_level=3):
        module = Sequential(passes)(module)
    if config.partition_conversions == "disabled":
        return module
    dtypes = {config.dtype_input, config.dtype_weight, config.dtype_activation}
    return partition_conversions(module, dtypes, config.partition_conversions == "fully_integral")
