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
from ekiden.backend.vm.pipeline import optimize
from ekiden.cli.options import add_dims, sizes
from ekiden.compiler.build import import_model
from ekiden.compiler.inputs import tried_sizes
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.common.survey import Survey
from ekiden.frontend.table import frontend_of
from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm
from ekiden.relay.analysis.count import get_total_mac_number
from ekiden.relay.expr import Call, Function
from ekiden.relay.op.memory import AllocStorageAttrs
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import evaluation_order
from ekiden.runtime.artifact.metadata import Dim
from ekiden.runtime.errors import CompileError, InputError, InternalError, UnsupportedError
from ekiden.target import Target

UNSUPPORTED = 3
HINT = (
    "teach the import an operator: @ekiden.frontend.onnx.register(domain, operator); "
    "see docs/cli.md"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("file", help="an ONNX model")
    add_dims(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print what the model contains; 3 if something in it is not supported."""
    found = _survey(options.file)
    dims = _dims(found, options.dim)
    figures: dict[str, object] = {}
    problems = [f"{p.node} ({p.domain or 'ai.onnx'} {p.opset}): {p.reason}" for p in found.problems]
    if not problems:
        try:
            figures = _figures(options.file, found, dims, options.dim)
        except UnsupportedError as error:
            problems = list(error.nodes) or [str(error)]
    if options.json:
        print(json.dumps(_as_json(found, dims, problems, figures), indent=1))
    else:
        _print(found, dims, problems, figures)
    return UNSUPPORTED if problems else 0


def _survey(file: str) -> Survey:
    row = frontend_of(file)
    if row is None or not row.has_survey:
        raise InputError(f"'{file}': what it contains is only known once it is imported")
    return row.entry().survey(file)


def _dims(found: Survey, texts: list[str]) -> dict[str, int]:
    given = sizes(texts)
    if unknown := [n for n in given if n not in found.dimensions]:
        there = ", ".join(f"'{n}'" for n in found.dimensions) or "none"
        raise InputError(f"read a dimension: no symbol is named '{unknown[0]}'; there are {there}")
    return {n: given.get(n, 1) for n in found.dimensions}


def _figures(file: str, found: Survey, dims: dict[str, int], texts: list[str]) -> dict[str, object]:
    """FLOPs, bytes of activations and functions of the host, for these sizes. Where a model takes
    no dimensions of 1, dimensions that are not among `texts` grow one by one; `dims` then has the
    sizes that were found.

    The import of the model as it stands raises; sizes for which it cannot be are left out.
    """
    module = InferType()(import_model(file))
    _prepared(module)
    note = ""
    for bound in tried_sizes(dims, sizes(texts)):
        try:
            measured = _measured(file, found, bound, module)
        except CompileError as error:
            note = note or str(error)
            continue
        dims.update(bound)
        return measured
    return {"flops": None, "activation_bytes": None, "note": note}


def _prepared(module: IRModule) -> None:
    """Raise UnsupportedError for what stands in the way of kernels: a model that is only known to
    be wrong then must not be said to be supported.
    """
    try:
        check_module(optimize(module, Target.parse("llvm")))
    except (CompileError, InternalError) as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        raise UnsupportedError(text, (), (text,)) from error


def _measured(
    file: str, found: Survey, dims: Mapping[str, int], module: IRModule
) -> dict[str, object]:
    shapes: dict[str, tuple[Dim, ...]] = {
        p.name: tuple(dims.get(d, 1) if isinstance(d, str) else d for d in p.shape or ())
        for p in found.inputs
    }
    fixed = InferType()(import_model(file, ImportOptions(shapes))) if dims else module
    optimized = optimize(fixed, Target.parse("llvm"))
    return {
        "flops": 2 * get_total_mac_number(fixed),
        "activation_bytes": _activations(optimized),
        "host_functions": host_functions(optimized),
    }


def _activations(module: IRModule) -> int:
    """Bytes of the storages that `main` allocates, results included."""
    main = module["main"]
    assert isinstance(main, Function)
    calls = [e.attrs for e in evaluation_order(main.body) if isinstance(e, Call)]
    sizes = [a.size for a in calls if isinstance(a, AllocStorageAttrs)]
    return sum(s.value for s in sizes if isinstance(s, IntImm))


def _as_json(
    found: Survey, dims: dict[str, int], problems: list[str], figures: dict[str, object]
) -> dict[str, object]:
    made = dataclasses.asdict(found)
    made["supported"] = not problems
    made["unsupported"] = problems
    made["dimensions"] = dims
    return {**made, **figures}


def _print(
    found: Survey, dims: dict[str, int], problems: list[str], figures: dict[str, object]
) -> None:
    versions = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in found.opsets.items())
    print(f"{found.label}: opsets {versions}")
    for what, ports in (("input", found.inputs), ("output", found.outputs)):
        for port in ports:
            print(f"  {what:6}  {port}")
    print(f"  weights {found.parameters:,} ({_size(found.parameter_bytes)})")
    if dims:
        print(f"  sizes   {', '.join(f'{n} = {v}' for n, v in dims.items())}")
    _print_figures(figures)
    print(f"{'operator':40} {'nodes':>6}  how")
    for each in found.operators:
        name = f"{each.domain}::{each.name}" if each.domain else each.name
        print(f"{name:40} {each.count:6}  {each.how}")
    if problems:
        print(f"not supported ({len(problems)}):")
        for text in problems:
            print(f"  {text}")
        print(HINT)
    else:
        print("everything is supported")


def _print_figures(figures: dict[str, object]) -> None:
    flops, activations = figures.get("flops"), figures.get("activation_bytes")
    if isinstance(flops, int):
        print(f"  work    {flops / 1e6:,.1f} MFLOP in products and convolutions")
    if isinstance(activations, int):
        print(f"  memory  {_size(activations)} of activations")
    hosts = figures.get("host_functions")
    if isinstance(hosts, list) and hosts:
        print(f"  host    {', '.join(hosts)}")
    if "note" in figures:
        print(f"  figures are left out: {figures['note']}")


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"
