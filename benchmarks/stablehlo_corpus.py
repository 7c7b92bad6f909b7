"""StableHLO's own test programs, checked against their expected values.

    git clone https://github.com/openxla/stablehlo
    python benchmarks/stablehlo_corpus.py stablehlo/stablehlo [--match TEXT] [--share K/N]
                                          [--list FILE] [--limit SECONDS]

FOLDER has `testdata` and `tests/interpret`. Every function that checks its results is a program:
its checks are taken out and what they compare becomes its results; what `@inputs` gives of real
numbers becomes its inputs, so that kernels run and nothing is folded. Each is compiled as bytecode
by the general kernels and compared as the check says: `expect_eq` bit for bit (any NaN is NaN),
`expect_close` within its units in the last place, `expect_almost_eq` within 1e-4. What is within
REAL_TOLERANCE of its dtype though not within those units is counted as agreeing, and said apart.

Left out are programs that jaxlib's parser refuses (quantised types, the dialects of the interpreter
itself) and those that expect no value. Prints a line for each that does not agree, and the totals:
agree, wrong, refused (an error of Ekiden's), raw (any other exception), ended (out of time, or the
process died).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

import ekiden
from ekiden.frontend.jax.dtype import decode_constant, find_narrow_dtype, is_complex, storage_dtype
from ekiden.frontend.jax.stablehlo_parser import make_context, write_bytecode
from ekiden.ir.dtype import to_numpy
from ekiden.runtime.errors import EkidenError

REAL_TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Relative and absolute difference at most, of what is not within the units of its check."""
ALMOST_TOLERANCE = 1e-4
DEFAULT_ULPS = 3
"""What `expect_close` allows unless it says otherwise."""


@dataclass
class ResultCheck:
    """Comparison of two results of a program."""

    kind: str
    """expect_eq, expect_close or expect_almost_eq."""
    first_result_index: int
    num_components: int
    """1, or 2 of complex numbers: results first... against results first + parts..."""
    ulps: int = DEFAULT_ULPS


@dataclass
class CorpusCase:
    """Program that checks its own results."""

    name: str
    program: bytes
    inputs: list[Any]
    checks: list[ResultCheck] = field(default_factory=list)


# Reading.

_CONST_CHECK = re.compile(
    r"(?<![\"@])check\.(expect_\w+?)_const\s+(%[\w#]+)\s*,\s*(dense<.*?>|true|false)\s*:\s*"
    r"(tensor<[^\n]*>)\s*$",
    re.MULTILINE | re.DOTALL,
)
_GENERIC_CONST_CHECK = re.compile(
    r"\"check\.(expect_\w+?)_const\"\((%[\w#]+)\)\s*<\{value = (dense<.*?>) : (tensor<[^\n]*?>)\}>"
    r"[^\n]*"
)
_PAIR_CHECK = re.compile(
    r"(?<![\"@])check\.(expect_\w+)\s+(%[\w#]+)\s*,\s*(%[\w#]+)((?:\s*,\s*\w+ = \d+)*)\s*:\s*"
    r"(tensor<[^\n]*?>)\s*(?:,\s*(tensor<[^\n]*>))?\s*$",
    re.MULTILINE,
)


def to_generic_form(text: str) -> str:
    """Return a program with its `check` operations in MLIR's generic form, since the parser does
    not support that dialect.
    """

    numbers = count()

    def rewrite_const_check(match: re.Match[str]) -> str:
        """Rewrite a check against a constant."""
        name, value, number, kind = match.groups()
        expected = f"%checked_{next(numbers)}"
        definition = f"{expected} = stablehlo.constant {number} : {kind}"
        return f'{definition}\n"check.{name}"({value}, {expected}) : ({kind}, {kind}) -> ()'

    def rewrite_pair_check(match: re.Match[str]) -> str:
        """Rewrite a check of two values."""
        name, first, second, stated, kind, second_kind = match.groups()
        items = [item.strip() for item in stated.split(",") if item.strip()]
        attributes = ", ".join(f"{item} : i64" for item in items)
        kinds = f"{kind}, {second_kind or kind}"
        return f'"check.{name}"({first}, {second}) {{{attributes}}} : ({kinds}) -> ()'

    text = _GENERIC_CONST_CHECK.sub(rewrite_const_check, text)
    return _PAIR_CHECK.sub(rewrite_pair_check, _CONST_CHECK.sub(rewrite_const_check, text))


def parse_cases(path: Path, root: Path) -> Iterator[CorpusCase | str]:
    """Yield the programs of a file, or the name of each part that cannot be parsed."""
    modules = path.read_text().split("// -----")
    for number, module_text in enumerate(modules):
        name = f"{path.relative_to(root)}" + (f":{number}" if len(modules) > 1 else "")
        with make_context() as within, ir.Location.unknown():
            try:
                module = ir.Module.parse(to_generic_form(module_text), within)
            except Exception as error:
                if "func" in module_text:
                    lines = [line for line in str(error).splitlines() if "error:" in line]
                    yield f"{name}: {(lines or [str(error)])[0][:160]}"
                continue
            names = [
                operation_view.operation.attributes["sym_name"].value
                for operation_view in module.body.operations
                if operation_view.operation.name == "func.func"
            ]
            for function in names:
                parsed_case = _make_case(module, function, name)
                if parsed_case is not None:
                    yield parsed_case


def _make_case(module: ir.Module, function: str, name: str) -> CorpusCase | None:
    """Return a function of a module as a program; None if it checks nothing."""
    module_copy = ir.Module.parse(write_bytecode(module), module.context)
    main = next(
        candidate.operation
        for candidate in module_copy.body.operations
        if candidate.operation.name == "func.func"
        and candidate.operation.attributes["sym_name"].value == function
    )
    if not len(main.regions[0].blocks):
        return None
    block = main.regions[0].blocks[0]
    checks_found = [
        operation_view.operation
        for operation_view in block.operations
        if _check_name(operation_view.operation)
    ]
    if not checks_found or any(c.name.endswith("serialized_eq") for c in checks_found):
        return None
    inputs = _lift_inputs(module_copy, main, block)
    results, checks = _return_checked_values(checks_found, block)
    end = block.operations[len(block.operations) - 1].operation
    end.erase()
    with ir.InsertionPoint(block):
        func.return_(results)
    for check in checks_found:
        check.erase()
    kinds = ir.FunctionType.get([a.type for a in block.arguments], [r.type for r in results])
    main.attributes["function_type"] = ir.TypeAttr.get(kinds)
    for attribute in ("res_attrs", "arg_attrs"):
        if attribute in main.attributes:
            del main.attributes[attribute]
    main.attributes["sym_name"] = ir.StringAttr.get("checked_program")
    return CorpusCase(f"{name} @{function}", write_bytecode(module_copy), inputs, checks)


def _check_name(operation: ir.Operation) -> str:
    """Return the check an operation represents, without its dialect; "" for any other."""
    name = str(operation.name)
    if name == "stablehlo.custom_call":
        name = str(operation.attributes["call_target_name"].value)
    if name == "check.eq":
        return "expect_eq"
    return name.partition("check.")[2].removesuffix("_const") if name.startswith("check.") else ""


def _lift_inputs(module: ir.Module, main: ir.Operation, block: ir.Block) -> list[Any]:
    """Turn the real tensors that `@inputs` returns into parameters of `main`, and return their
    values.
    """
    bodies = {
        function_view.operation.attributes["sym_name"].value: function_view.operation.regions[
            0
        ].blocks[0]
        for function_view in module.body.operations
        if function_view.operation.name == "func.func"
        and len(function_view.operation.regions[0].blocks)
    }
    inputs = []
    for operation in [operation_view.operation for operation_view in block.operations]:
        if operation.name != "func.call" or operation.attributes["callee"].value != "inputs":
            continue
        *_, end = bodies["inputs"].operations
        for result, source in zip(operation.results, end.operation.operands, strict=True):
            maker = source.owner
            if maker.name != "stablehlo.constant" or is_complex(source.type):
                continue
            try:
                stored = to_numpy(storage_dtype(source.type))
                inputs.append(
                    np.array(decode_constant(maker.attributes["value"]), stored, order="C")
                )
            except Exception:  # a dtype that there is not: the program is refused as it stands
                continue
            argument = block.add_argument(result.type, ir.Location.unknown())
            result.replace_all_uses_with(argument)
    return inputs


def _return_checked_values(
    check_operations: Sequence[ir.Operation], block: ir.Block
) -> tuple[list[ir.Value], list[ResultCheck]]:
    """Make the compared values results of the program, and return them with the comparisons."""
    results: list[ir.Value] = []
    checks = []
    for check in check_operations:
        with ir.InsertionPoint(check):
            first = len(results)
            components = [_real_components(value) for value in check.operands]
        results += [component for side in components for component in side]
        stated = (
            check.attributes["max_ulp_difference"].value
            if "max_ulp_difference" in check.attributes
            else DEFAULT_ULPS
        )
        checks.append(ResultCheck(_check_name(check), first, len(components[0]), stated))
    return results, checks


def _real_components(value: ir.Value) -> list[ir.Value]:
    """Return the components a tensor is compared as: both parts of complex numbers, and float32 of
    floats that no tensor of Ekiden's has.
    """
    narrow = find_narrow_dtype(value.type)
    if narrow is not None and not narrow.storage_dtype:
        return [
            stablehlo.convert(ir.RankedTensorType.get(value.type.shape, ir.F32Type.get()), value)
        ]
    if not is_complex(value.type):
        return [value]
    return [stablehlo.real(value), stablehlo.imag(value)]


# Running and comparing.


def run_case(case: CorpusCase) -> tuple[str, str]:
    """Return a program's outcome as (kind, details)."""
    try:
        raw_results = ekiden.compile(case.program, signature="checked_program", tier="quick")(
            *case.inputs
        )
    except EkidenError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception as error:  # what the corpus looks for
        return "raw", f"{type(error).__name__}: {error}"
    results = [
        np.asarray(raw)
        for raw in (raw_results if isinstance(raw_results, tuple) else (raw_results,))
    ]
    worst = "agree"
    for check in case.checks:
        for position in range(
            check.first_result_index, check.first_result_index + check.num_components
        ):
            verdict, text = compare_arrays(
                results[position], results[position + check.num_components], check
            )
            if verdict == "wrong":
                return verdict, text
            worst = verdict if verdict == "near" else worst
    return worst, ""


def compare_arrays(mine: Any, expected: Any, check: ResultCheck) -> tuple[str, str]:  # noqa: ANN401
    """Compare two arrays: "agree", "near" (within REAL_TOLERANCE) or "wrong", and why."""
    if mine.shape != expected.shape or mine.dtype != expected.dtype:
        return "wrong", f"{mine.dtype}{mine.shape} for {expected.dtype}{expected.shape}"
    dtype = str(mine.dtype)
    if "float" not in dtype:
        same = mine.view(np.uint8) == expected.view(np.uint8) if mine.shape else mine == expected
        return ("agree", "") if np.all(same) else ("wrong", _format_differences(mine, expected))
    x, y = mine.astype(np.float64), expected.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if check.kind == "expect_eq":
        return ("agree", "") if np.all(same) else ("wrong", _format_differences(x, y))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(x - y)
        bound = ALMOST_TOLERANCE * (1 + np.abs(y))
        if check.kind == "expect_close" and dtype in REAL_TOLERANCE:
            bound = check.ulps * np.abs(np.spacing(np.abs(expected))).astype(np.float64)
        if np.all(same | (distance <= bound)):
            return "agree", ""
        limit = REAL_TOLERANCE.get(dtype, ALMOST_TOLERANCE)
        if np.all(same | (distance <= limit * (1 + np.abs(y)))):
            return "near", ""
    return "wrong", _format_differences(x, y)


def _format_differences(mine: Any, expected: Any) -> str:  # noqa: ANN401
    """Return the first three elements that differ."""
    differs = ~((mine == expected) | ((mine != mine) & (expected != expected)))
    position = np.argwhere(differs)
    pairs = [
        f"{mine[tuple(i)]} for {expected[tuple(i)]} at {tuple(map(int, i))}" for i in position[:3]
    ]
    return f"{len(position)} of {mine.size}: " + ", ".join(pairs)


def run_files(paths: Sequence[str], root: str, connection: Connection) -> None:
    """Run the programs of these files, sending a message before and after each."""
    for path in paths:
        for case in parse_cases(Path(path), Path(root)):
            if isinstance(case, str):
                connection.send(("unparsed", case, "", path))
                continue
            connection.send(("start", case.name, "", path))
            kind, text = run_case(case)
            connection.send((kind, case.name, text, path))
    connection.send(("end", "", "", ""))


def iter_outcomes(
    paths: Sequence[Path], root: Path, limit: float
) -> Iterator[tuple[str, str, str]]:
    """Yield the outcome of each program of these files; a program that times out costs its process
    and the rest of its file.
    """
    remaining = [str(path) for path in paths]
    spawn = multiprocessing.get_context("spawn")
    while remaining:
        mine, theirs = spawn.Pipe(duplex=False)
        process = spawn.Process(target=run_files, args=(remaining, str(root), theirs))
        process.start()
        theirs.close()
        name, path, ended = "", remaining[0], False
        try:
            while mine.poll(limit):
                kind, verdict_text, text, where = mine.recv()
                if kind == "end":
                    ended = True
                    break
                name, path = verdict_text, where
                if kind != "start":
                    yield kind, verdict_text, text
                    name = ""
        except EOFError:
            pass
        if ended:
            process.join()
            return
        process.kill()
        process.join()
        yield "ended", name or path, "out of time, or the process died"
        # The process is gone, and with it the rest of the file that it was reading.
        remaining = remaining[remaining.index(path) + 1 :]


def main() -> None:
    """Run the corpus, and print disagreements and totals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder stablehlo of openxla/stablehlo")
    parser.add_argument("--match", default="", help="only files whose path has this")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a program")
    parser.add_argument("--share", default="0/1", help="k/n: files k, k + n, ... of all")
    parser.add_argument("--list", type=Path, help="a file for a line of JSON each")
    options = parser.parse_args()
    folders = [options.folder / "testdata", options.folder / "tests" / "interpret"]
    paths = [p for f in folders for p in sorted(f.rglob("*.mlir")) if options.match in str(p)]
    first, step = map(int, options.share.split("/"))
    totals: Counter[str] = Counter()
    begin = time.perf_counter()
    for kind, name, text in iter_outcomes(paths[first::step], options.folder, options.limit):
        totals[kind] += 1
        if options.list is not None:
            with options.list.open("a") as file:
                file.write(json.dumps([kind, name, text]) + os.linesep)
        if kind not in ("agree", "near", "unparsed"):
            print(f"{kind:8} {name}\n         {text[:400]}", flush=True)
    programs = sum(totals[kind] for kind in ("agree", "near", "wrong", "refused", "raw", "ended"))
    agree = totals["agree"] + totals["near"]
    print(f"{programs} programs, {totals['unparsed']} files or parts that the parser refuses")
    print(
        f"agree    {agree} ({agree / max(programs, 1):.1%}), {totals['near']} of them only nearly"
    )
    for kind in ("wrong", "refused", "raw", "ended"):
        print(f"{kind:8} {totals[kind]}")
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
