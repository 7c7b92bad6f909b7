#!/usr/bin/env python3
"""Run PyTorch's own operator (op_db) and module (module_db) samples through Ekiden, and write
docs/pytorch-coverage.md.

pytorch_coverage.py [--samples 3] [--ops add,mul] [--results FILE] [--write]

Of each operator that is core ATen, at float32, int64 and bool, and of each module at float32, the
first samples are exported, compiled and compared with PyTorch. Results are kept in a file of JSON
lines, and what is there is not run again. Takes about an hour for all; `--write` writes the page of
what the file has.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

import ekiden
from ekiden.runtime import Tensor

TESTED_DTYPES = (torch.float32, torch.int64, torch.bool)
PYTORCH_COVERAGE_PAGE = Path(__file__).parents[1] / "docs" / "pytorch-coverage.md"
NONDETERMINISTIC_OPERATORS = (
    "empty", "empty_strided", "empty_like", "rand", "randn", "randint", "rand_like", "randn_like",
    "randint_like", "randperm", "normal", "bernoulli", "native_dropout", "nn.FractionalMaxPool2d",
    "nn.FractionalMaxPool3d",
)  # fmt: skip
"""What draws numbers, or leaves elements as they are: nobody can know the results."""
DISAGREEMENT_NOTES = {
    "_native_batch_norm_legit": "the sample's running statistics are inputs of the program, which "
    "torch.export says it changes; buffers that change are kept between runs",
    "as_strided": "the sample looks into memory beyond its tensor, which PyTorch cannot do either "
    "with a copy",
    "nn.GaussianNLLLoss": "the module branches on data",
    "sort": "equal elements: PyTorch gives them in no defined order, Ekiden in their own",
    "topk": "equal elements: PyTorch gives them in no defined order, Ekiden the first ones first",
}
"""Operator -> why its samples cannot agree, or what is missing."""
SAMPLE_TIMEOUT_S = 60
"""Seconds that one sample may take."""


class OperatorSample(torch.nn.Module):
    """Module that calls one operator, with the sample's tensors as inputs and its other arguments
    as constants.
    """

    def __init__(self, function: Any, arguments: object) -> None:  # noqa: ANN401
        super().__init__()
        self.function = function
        self.leaves, self.spec = pytree.tree_flatten(arguments)

    def input_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the sample's input tensors."""
        return tuple(x.detach() for x in self.leaves if isinstance(x, torch.Tensor))

    def forward(self, *tensors: torch.Tensor) -> object:
        """Call the operator on the input tensors."""
        waiting = iter(tensors)
        leaves = [next(waiting) if isinstance(x, torch.Tensor) else x for x in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


def core_aten_names() -> set[str]:
    """Return the names of the core ATen operators."""
    names = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        overloads = packet.overloads() if hasattr(packet, "overloads") else ()
        if any(torch.Tag.core in getattr(packet, o).tags for o in overloads):
            names.add(name)
    return names


def select_operators(names: Sequence[str]) -> list[Any]:
    """Return the requested entries of op_db; by default those of core ATen."""
    core = core_aten_names() - set(NONDETERMINISTIC_OPERATORS)
    if names:
        return [o for o in op_db if o.name in names or o.aten_name in names]
    return [o for o in op_db if o.aten_name in core]


def iter_samples(entry: Any, dtype: torch.dtype) -> Iterator[OperatorSample]:  # noqa: ANN401
    """Yield the samples of an operator, or of a module in inference."""
    if hasattr(entry, "op"):
        for sample in entry.sample_inputs("cpu", dtype):
            yield OperatorSample(entry.op, ((sample.input, *sample.args), sample.kwargs))
        return
    for sample in entry.module_inputs_func(entry, "cpu", dtype, False, False):
        constructor = sample.constructor_input
        module = entry.module_cls(*constructor.args, **constructor.kwargs).to(dtype).eval()
        yield OperatorSample(module, (sample.forward_input.args, sample.forward_input.kwargs))


def check_sample(case: OperatorSample) -> str:
    """Run a sample in Ekiden and in PyTorch; return the difference or error as text, "" if they
    agree.
    """
    inputs = case.input_tensors()
    expected = case(*(x.clone() for x in inputs))
    if any(x.is_sparse or x.is_complex() for x in inputs):
        return "skipped: a sparse or complex tensor"
    leaves = [x for x in pytree.tree_leaves(expected) if isinstance(x, torch.Tensor)]
    if not leaves or any(x.is_complex() or x.is_sparse for x in leaves):
        return "skipped: no dense real result"
    exe = ekiden.compile(case, example_inputs=inputs)
    # Clones, since an operator that works in place would change the inputs of the comparison.
    outputs = exe(*(x.clone() for x in inputs))
    output_tuple = outputs if isinstance(outputs, tuple) else (outputs,)
    if len(output_tuple) != len(leaves):
        return f"{len(leaves)} results expected, got {len(output_tuple)}"
    for ours, theirs in zip(output_tuple, leaves, strict=True):
        assert isinstance(ours, Tensor)
        try:
            torch.testing.assert_close(
                torch.from_numpy(ours.numpy().copy()), theirs.detach(), equal_nan=True
            )
        except AssertionError as error:
            return "differs: " + " ".join(str(error).split())[:200]
    return ""


class TooLongError(Exception):
    """Error raised when a sample exceeds its time limit."""


def _raise_timeout(*_: object) -> None:
    raise TooLongError(f"takes longer than {SAMPLE_TIMEOUT_S} s")


def iter_results(entry: Any, dtype: torch.dtype, count: int) -> Iterator[str]:  # noqa: ANN401
    """Yield the `check_sample` result of each of the first samples."""
    for case in islice(iter_samples(entry, dtype), count):
        signal.alarm(SAMPLE_TIMEOUT_S)
        try:
            yield check_sample(case)
        except (Exception, TooLongError) as error:  # each is a line of the table
            lines = str(error).strip().splitlines() or [""]
            text = " ".join(lines[:2] if "not supported" in lines[0] else lines[:1])
            yield f"{type(error).__name__}: {text}"[:240]
        finally:
            # A pending alarm would otherwise interrupt the next sample.
            signal.alarm(0)


def run_missing(options: argparse.Namespace) -> None:
    """Run every sample that the results file does not have."""
    done = {(r["name"], r["variant"], r["dtype"]) for r in read_results(options.results)}
    names = [n for n in options.ops.split(",") if n]
    modules = [m for m in module_db if names in ([], ["modules"]) or m.name in names]
    modules = [m for m in modules if m.name not in NONDETERMINISTIC_OPERATORS]
    entries = [(m, torch.float32) for m in modules]
    entries += [
        (o, d)
        for o in select_operators(names)
        for d in TESTED_DTYPES
        if d in o.supported_dtypes("cpu")
    ]
    with open(options.results, "a") as file:
        for entry, dtype in entries:
            variant = getattr(entry, "variant_test_name", "module")
            key = (entry.name, variant, str(dtype).removeprefix("torch."))
            if key in done:
                continue
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sample_results = list(iter_results(entry, dtype, options.samples))
            line = {"name": key[0], "variant": key[1], "dtype": key[2], "results": sample_results}
            file.write(json.dumps(line) + "\n")
            file.flush()
            wrong = [r for r in sample_results if r and not r.startswith("skipped")]
            print(
                key,
                f"{len(sample_results) - len(wrong)} of {len(sample_results)}",
                wrong[:1],
                flush=True,
            )


def read_results(path: str) -> list[dict[str, Any]]:
    """Read the lines of a results file."""
    where = Path(path)
    return [json.loads(line) for line in where.read_text().splitlines()] if where.exists() else []


def page(lines: Sequence[dict[str, Any]]) -> str:
    """Return the coverage page of results: how many samples agree, and why the others do not."""
    agree, total, rows = Counter[bool](), Counter[bool](), []
    for line in (entry for entry in lines if entry["name"] not in NONDETERMINISTIC_OPERATORS):
        counted = [r for r in line["results"] if not r.startswith("skipped")]
        wrong = [r for r in counted if r]
        is_module = line["variant"] == "module"
        agree[is_module] += len(counted) - len(wrong)
        total[is_module] += len(counted)
        if wrong:
            name = line["name"] + (f" ({line['variant']})" if line["variant"] else "")
            why = DISAGREEMENT_NOTES.get(line["name"]) or "; ".join(dict.fromkeys(wrong)).replace(
                "|", "\\|"
            )
            rows.append(f"| `{name}` | {line['dtype']} | {len(wrong)} of {len(counted)} | {why} |")
    shares = [
        f"{agree[kind]} of {total[kind]} ({100 * agree[kind] / max(total[kind], 1):.1f} %)"
        for kind in (False, True)
    ]
    head = [
        "# Coverage of PyTorch's operators",
        "",
        "Written by `scripts/pytorch_coverage.py`: samples of PyTorch's own tables of operators "
        "(op_db: those that",
        "are core ATen, at float32, int64 and bool) and modules (module_db: in inference, at "
        "float32), exported,",
        f"compiled and compared with PyTorch {torch.__version__}. Of operators {shares[0]} samples "
        "agree, of modules",
        f"{shares[1]}; the others are these. Of each the first samples are run, at most three;",
        "what draws numbers, or leaves elements as they are, has no results to be compared.",
        "",
        "| operator | dtype | samples that do not | why |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *sorted(rows)]) + "\n"


def main(argv: Sequence[str]) -> int:
    """Run the samples and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--ops", default="")
    parser.add_argument("--results", default="pytorch-coverage.jsonl")
    parser.add_argument("--write", action="store_true", help="write the page")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGALRM, _raise_timeout)
    if not options.write or not Path(options.results).exists():
        run_missing(options)
    if options.write:
        PYTORCH_COVERAGE_PAGE.write_text(page(read_results(options.results)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
