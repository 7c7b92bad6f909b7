"""`ekiden check MODEL`: what a model contains and whether it can be compiled.

Exit codes: 0 everything is supported, 1 the file cannot be read as a model, 2 wrong usage, 3
something is not supported.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping

from ekiden.backend.vm.compile import check_module, host_functions
from ekiden.backend.vm.pipeline import optimize_module
from ekiden.cli.options import add_dim_argument, parse_dim_sizes
from ekiden.compiler.build import import_model
from ekiden.compiler.sample_inputs import trial_dims
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.common.survey import Survey
from ekiden.frontend.registry import find_frontend
from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm
from ekiden.relay.analysis.op_counts import get_total_mac_number
from ekiden.relay.expr import Call, Function
from ekiden.relay.op.memory import AllocStorageAttrs
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.runtime.artifact.metadata import Dim
from ekiden.runtime.errors import CompileError, InputError, InternalError, UnsupportedError
from ekiden.target import Target

UNSUPPORTED_EXIT_STATUS = 3
REGISTER_OPERATOR_HINT = (
    "teach the import an operator: @ekiden.frontend.onnx.register(domain, operator); "
    "see docs/cli.md"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", help="an ONNX model")
    add_dim_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print what the model contains; return 3 if something in it is not supported."""
    survey = _survey_model(options.file)
    dims = _parse_symbol_sizes(survey, options.dim)
    figures: dict[str, object] = {}
    problems = [
        f"{p.node} ({p.domain or 'ai.onnx'} {p.opset}): {p.reason}" for p in survey.problems
    ]
    if not problems:
        try:
            figures = _estimate_costs(options.file, survey, dims, options.dim)
        except UnsupportedError as error:
            problems = list(error.nodes) or [str(error)]
    if options.json:
        print(json.dumps(_report_to_json(survey, dims, problems, figures), indent=1))
    else:
        _print_report(survey, dims, problems, figures)
    return UNSUPPORTED_EXIT_STATUS if problems else 0


def _survey_model(file: str) -> Survey:
    row = find_frontend(file)
    if row is None or not row.has_survey:
        raise InputError(f"'{file}': only ONNX models can be listed without importing them")
    return row.entry_module().survey(file)


def _parse_symbol_sizes(survey: Survey, texts: list[str]) -> dict[str, int]:
    """Return the size of each symbolic dimension of the model, 1 by default. Raises InputError for
    an unknown symbol.
    """
    fixed = parse_dim_sizes(texts)
    if unknown := [n for n in fixed if n not in survey.symbolic_dims]:
        symbols = ", ".join(f"'{n}'" for n in survey.symbolic_dims) or "none"
        raise InputError(
            f"read a dimension: no symbol is named '{unknown[0]}'; there are {symbols}"
        )
    return {n: fixed.get(n, 1) for n in survey.symbolic_dims}


def _estimate_costs(
    file: str, survey: Survey, dims: dict[str, int], texts: list[str]
) -> dict[str, object]:
    """Return the FLOPs, activation bytes and host functions of the model at these sizes. Where a
    model does not accept dimensions of 1, those not among `texts` are increased one by one;
    `dims` is updated to the sizes found. Errors in importing the model itself are raised; sizes
    for which it cannot be imported are omitted.
    """
    module = InferType()(import_model(file))
    _check_lowerable(module)
    note = ""
    # Some models reject dimensions of 1, such as convolutions larger than their input.
    for bound in trial_dims(dims, parse_dim_sizes(texts)):
        try:
            measured = _estimate_static_costs(file, survey, bound, module)
        except CompileError as error:
            note = note or str(error)
            continue
        dims.update(bound)
        return measured
    return {"flops": None, "activation_bytes": None, "note": note}


def _check_lowerable(module: IRModule) -> None:
    """Raise UnsupportedError for whatever prevents kernels from being generated, so that a model
    known only to be invalid is not reported as supported.
    """
    try:
        check_module(optimize_module(module, Target.parse("llvm")))
    except (CompileError, InternalError) as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        raise UnsupportedError(text, (), (text,)) from error


def _estimate_static_costs(
    file: str, survey: Survey, dims: Mapping[str, int], module: IRModule
) -> dict[str, object]:
    """Return the cost figures of a model with static shapes."""
    shapes: dict[str, tuple[Dim, ...]] = {
        p.name: tuple(dims.get(d, 1) if isinstance(d, str) else d for d in p.shape or ())
        for p in survey.inputs
    }
    fixed = InferType()(import_model(file, ImportOptions(shapes))) if dims else module
    optimized = optimize_module(fixed, Target.parse("llvm"))
    return {
        # A multiply-accumulate counts as two operations.
        "flops": 2 * get_total_mac_number(fixed),
        "activation_bytes": _activation_bytes(optimized),
        "host_functions": host_functions(optimized),
    }


def _activation_bytes(module: IRModule) -> int:
    """Return the bytes of the storage that `main` allocates, including outputs."""
    main = module["main"]
    assert isinstance(main, Function)
    calls = [e.attrs for e in evaluation_order(main.body) if isinstance(e, Call)]
    sizes = [a.size for a in calls if isinstance(a, AllocStorageAttrs)]
    return sum(s.value for s in sizes if isinstance(s, IntImm))


def _report_to_json(
    survey: Survey, dims: dict[str, int], problems: list[str], figures: dict[str, object]
) -> dict[str, object]:
    """Return the report as JSON values."""
    values = dataclasses.asdict(survey)
    values["supported"] = not problems
    values["unsupported"] = problems
    values["dimensions"] = dims
    return {**values, **figures}


def _print_report(
    survey: Survey, dims: dict[str, int], problems: list[str], figures: dict[str, object]
) -> None:
    """Print the report."""
    versions = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in survey.opsets.items())
    print(f"{survey.label}: opsets {versions}")
    for what, ports in (("input", survey.inputs), ("output", survey.outputs)):
        for port in ports:
            print(f"  {what:6}  {port}")
    print(f"  weights {survey.parameters:,} ({_format_bytes(survey.parameter_bytes)})")
    if dims:
        print(f"  sizes   {', '.join(f'{n} = {v}' for n, v in dims.items())}")
    _print_costs(figures)
    print(f"{'operator':40} {'nodes':>6}  how")
    for operator in survey.operators:
        name = f"{operator.domain}::{operator.name}" if operator.domain else operator.name
        print(f"{name:40} {operator.count:6}  {operator.implementation_kind}")
    if problems:
        print(f"not supported ({len(problems)}):")
        for text in problems:
            print(f"  {text}")
        print(REGISTER_OPERATOR_HINT)
    else:
        print("everything is supported")


def _print_costs(figures: dict[str, object]) -> None:
    flops, activations = figures.get("flops"), figures.get("activation_bytes")
    if isinstance(flops, int):
        print(f"  work    {flops / 1e6:,.1f} MFLOP in products and convolutions")
    if isinstance(activations, int):
        print(f"  memory  {_format_bytes(activations)} of activations")
    hosts = figures.get("host_functions")
    if isinstance(hosts, list) and hosts:
        print(f"  host    {', '.join(hosts)}")
    if "note" in figures:
        print(f"  figures are left out: {figures['note']}")


def _format_bytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"
