"""`ekiden quantize MODEL --calibrate data.npz -o FILE`: integers where they are worth it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from ekiden.cli.options import add_output_arguments
from ekiden.compiler.artifact import compile_artifact
from ekiden.compiler.export.library import export_format_of, write_artifact
from ekiden.compiler.options import CompileOptions
from ekiden.compiler.quantize import quantize
from ekiden.frontend.registry import identify_model
from ekiden.ir.op import Array
from ekiden.quantization.plan import QUANT_KINDS, QuantPlan, Recipe
from ekiden.quantization.range_calibration import RANGE_METHODS
from ekiden.quantization.weight_rounding import ROUNDING_METHODS
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import check_folder, write_text

_DEFAULT_RECIPE = Recipe()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", help="an ONNX model in floating point")
    parser.add_argument(
        "--calibrate",
        metavar="data.npz",
        help="calibration data: inputs by name, samples along the first axis",
    )
    add_output_arguments(parser)
    kinds = "; ".join(f"{row.name}: {row.meaning}" for row in QUANT_KINDS.values())
    parser.add_argument(
        "--kind", choices=tuple(QUANT_KINDS), default=_DEFAULT_RECIPE.kind, help=kinds
    )
    methods = "; ".join(f"{row.name}: {row.meaning}" for row in RANGE_METHODS.values())
    parser.add_argument("--method", choices=tuple(RANGE_METHODS), default=_DEFAULT_RECIPE.method,
                        help=methods.replace("%", "%%"))  # fmt: skip
    parser.add_argument(
        "--bits", type=int, default=_DEFAULT_RECIPE.bits, help="bits of a weight (8)"
    )
    parser.add_argument(
        "--group", type=int, default=0, help="number of elements of a weight that share a scale"
    )
    parser.add_argument(
        "--per-tensor",
        action="store_true",
        help="use one scale per weight instead of one per channel",
    )
    parser.add_argument(
        "--smooth", type=float, default=0.0, metavar="A",
        help="how much of the inputs' range moves into the weights (SmoothQuant), 0 to 1 (0)",
    )  # fmt: skip
    roundings = "; ".join(f"{row.name}: {row.meaning}" for row in ROUNDING_METHODS.values())
    parser.add_argument(
        "--rounding", choices=tuple(ROUNDING_METHODS), default=_DEFAULT_RECIPE.rounding,
        help=f"of weights; {roundings}",
    )  # fmt: skip
    parser.add_argument(
        "--awq", action="store_true",
        help="with --kind weight: finer steps for weights that multiply large inputs (AWQ)",
    )  # fmt: skip
    parser.add_argument(
        "--bias-correction", action="store_true",
        help="correct biases for the mean error of rounded weights",
    )  # fmt: skip
    parser.add_argument(
        "--skip", action="append", default=[], metavar="LAYER", help="do not quantise this layer"
    )
    parser.add_argument(
        "--least-snr", type=float, default=_DEFAULT_RECIPE.least_snr, metavar="DB",
        help="do not quantise layers with a lower signal-to-noise ratio"
        f" ({_DEFAULT_RECIPE.least_snr:g} dB)",
    )  # fmt: skip
    parser.add_argument(
        "--faster",
        action="store_true",
        help="do not quantise layers that are not faster on this machine",
    )
    parser.add_argument(
        "--gain", type=float, default=_DEFAULT_RECIPE.gain, metavar="TIMES",
        help="with --faster: leave the model as it is unless it becomes this many times as fast"
        f" ({_DEFAULT_RECIPE.gain:g})",
    )  # fmt: skip
    parser.add_argument("--plan", metavar="FILE", help="apply the plan that --plan-out wrote")
    parser.add_argument("--plan-out", metavar="FILE", help="write the decisions as JSON")


def run(options: argparse.Namespace) -> int:
    """Quantize and write the model, and print the decision for each layer."""
    is_onnx = str(options.output).endswith(".onnx")
    if not is_onnx:
        export_format_of(options.output).check_compiler(options.output, options.cc)
    _validate_options(options, is_onnx)
    check_folder(options.output)
    if options.plan_out:
        check_folder(options.plan_out)
    started = time.perf_counter()
    data = None if options.calibrate is None else load_calibration_data(options.calibrate)
    if options.plan is None:
        quantised = quantize(options.model, data, **_parse_recipe(options))
    else:
        quantised = quantize(
            options.model, data, plan=QuantPlan.from_json(_read_plan_text(options.plan))
        )
    if is_onnx:
        quantised.save(options.output)
    else:
        artifact = compile_artifact(identify_model(quantised.model), CompileOptions("llvm"))
        write_artifact(artifact.to_bytes(), options.output, cc=options.cc)
    if options.plan_out:
        write_text(options.plan_out, quantised.plan.json())
    print(quantised)
    sizes = (Path(options.output).stat().st_size, time.perf_counter() - started)
    print(f"{options.output}: {sizes[0]:,} bytes, {sizes[1]:.1f} s")
    return 0


def _validate_options(options: argparse.Namespace, is_onnx: bool) -> None:
    """Raise InputError for an option that this kind of model does not support."""
    if is_onnx and options.cc is not None:
        raise InputError("--cc: an .onnx file needs no C compiler")
    recipe_options = _parse_recipe(options)
    changed = [
        name for name, value in recipe_options.items() if value != getattr(_DEFAULT_RECIPE, name)
    ]
    if options.plan is not None and changed:
        option = _NEGATED_OPTION_NAMES.get(changed[0], changed[0].replace("_", "-"))
        raise InputError(f"--{option}: --plan already sets the recipe: give one of them")
    if "gain" in changed and not options.faster:
        raise InputError("--gain needs --faster")


_NEGATED_OPTION_NAMES = {"per_channel": "per-tensor"}
"""Field of a recipe -> the option that changes it, where that is another word."""


def _parse_recipe(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "kind": options.kind, "method": options.method, "bits": options.bits,
        "group": options.group, "per_channel": not options.per_tensor, "smooth": options.smooth,
        "rounding": options.rounding, "awq": options.awq,
        "bias_correction": options.bias_correction, "skip": tuple(options.skip),
        "least_snr": options.least_snr, "faster": options.faster,
        "gain": options.gain,
    }  # fmt: skip


def _read_plan_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--plan: cannot read '{path}': {error}") from None


def load_calibration_data(path: str) -> dict[str, Array]:
    """Load the calibration arrays of an .npz file, refusing pickled objects. Raises InputError."""
    try:
        # Pickled arrays can execute code when they are loaded.
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise InputError(f"--calibrate: '{path}' is one array: an .npz of them expected")
        with opened as archive:
            return {name: archive[name] for name in archive.files}
    except InputError:
        raise
    except Exception as error:  # of zipfile, NumPy and the system, of many classes
        raise InputError(f"--calibrate: cannot read '{path}': {error}") from None
