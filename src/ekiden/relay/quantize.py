"""Implementation of `relay.quantize`: TVM's interface of post-training quantisation.

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
from ekiden.quantization.relay.calibrate import calibrate_input_ranges, set_quantization_steps
from ekiden.quantization.relay.config import (
    CALIBRATE_MODES,
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
    """Prepare a module for quantisation.

    `params` become constants by name, operators that inference does not need are removed, and
    scales are folded into weights.
    """
    module = bind_params_in_module(mod, params) if params else mod
    passes = [
        InferType(), SimplifyInference(), FoldConstant(), FoldScaleAxis(), CanonicalizeOps(),
        FoldConstant(), InferType(),
    ]  # fmt: skip
    # FoldScaleAxis runs at level 3: scales that stayed apart would be rounded separately.
    with PassContext(opt_level=3):
        return Sequential(passes)(module)


def _make_runner(module: IRModule) -> Callable[[Mapping[str, object]], Sequence[Array]]:
    """Return a function that runs a module on named inputs; unknown names are ignored."""
    executable = compile(module, target=Target.current(allow_none=True))
    main = module["main"]
    assert isinstance(main, Function)
    kinds: dict[str, Any] = {param.name_hint: param.checked_type for param in main.params}

    def run(sample: Mapping[str, object]) -> list[Array]:
        """Run one sample, cast to the parameters' dtypes.

        Raises:
            InputError: The sample lacks a parameter.
        """
        missing = [name for name in kinds if name not in sample]
        if missing:
            present = ", ".join(f"'{name}'" for name in sample)
            raise InputError(
                f"relay.quantize: the data have no '{missing[0]}'; they have {present}"
            )
        arguments = [
            np.asarray(_to_array(sample[name]), kind.dtype) for name, kind in kinds.items()
        ]
        outputs = executable(*arguments)
        values = outputs if isinstance(outputs, tuple) else (outputs,)
        return [np.asarray(value.numpy()) for value in values]

    return run


def _to_array(value: Any) -> object:  # noqa: ANN401 - a tensor, or what NumPy takes
    return value.numpy() if hasattr(value, "numpy") else value


def calibrate(dataset: Dataset | None = None) -> Callable[[IRModule, object], IRModule]:
    """Return a calibration pass function (module, context) -> module.

    The rounding is that of `annotate`, with the mode of the current `qconfig`.

    Args:
        dataset: Inputs by name, a mapping for each run.

    Raises:
        InputError: The mode needs data and there is none, or it does not have an input.
    """
    samples = None if dataset is None else list(dataset)

    def transform(module: IRModule, context: object = None) -> IRModule:
        """Return the calibrated module; the context is unused."""
        config = current_qconfig()
        if not CALIBRATE_MODES[config.calibrate_mode]:
            return set_quantization_steps(module, config, {})
        if not samples:
            raise InputError(f"relay.quantize: '{config.calibrate_mode}' needs a dataset")
        return set_quantization_steps(
            module, config, calibrate_input_ranges(module, config, samples, _make_runner)
        )

    return transform


def quantize(
    mod: IRModule,
    params: Mapping[str, object] | None = None,
    dataset: Dataset | None = None,
) -> IRModule:
    """Quantise a float program to int8 products, as configured by the current `qconfig`.

    Rounding is inserted, its steps are found, and integers are computed, in operators of `qnn`.
    Products that the configuration skips, and operators without a form in integers, stay floats.

    Args:
        mod: The program.
        params: Values that become constants by name.
        dataset: Inputs by name for each run.

    Raises:
        InputError: As in `calibrate`.
        CompileError: The program is not "fully_integral" where that is required.
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
    # Without partitioning, the conversions of inputs and outputs stay in main.
    if config.partition_conversions == "disabled":
        return module
    dtypes = {config.dtype_input, config.dtype_weight, config.dtype_activation}
    return partition_conversions(module, dtypes, config.partition_conversions == "fully_integral")
