"""Startup times: imports, and first answers of small programs, beside another commit.

    python benchmarks/start_times.py [--beside COMMIT] [--rounds N] [ROW ...]

Each row is a statement or a program, run in fresh processes of one thread:

    cpu     milliseconds of the processor, the median of the rounds; what NumPy takes is left out
            of imports, the interpreter's own start of all
    own     modules of Ekiden that are loaded then, and `num_other_modules`: all others
    cold    of programs: with an empty cache, compiling in the process itself
    cached  with what the cold run has left there

With --beside the same of that commit (of another branch: where this one left it) stands behind a
slash. Exits with 1 where a row fails or is over its budget. The time of the processor depends on it
and on what runs beside, the numbers of modules do not.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import onnx

REPOSITORY_ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY_ROOT / "tests" / "replay"))

from onnx_replays import onnx_model  # noqa: E402
from other_commit import Checkout, check_out, merge_base  # noqa: E402
from relay_replays import LANGUAGE  # noqa: E402

IMPORTS: Mapping[str, str] = {
    "import ekiden": "import ekiden",
    "runtime": "import ekiden.runtime",
    "compile": "import ekiden; ekiden.compile",
    "relay": "from ekiden import relay; relay.var('x'); relay.op.add",
    "te": "from ekiden import te; te.compute",
    "tir": "from ekiden import tir; tir.Schedule",
    "topi": "from ekiden import topi; topi.nn.dense",
    "target": "from ekiden.target import Target; Target('llvm')",
    "pass context": "from ekiden.ir.transform import PassContext; PassContext()",
    "frontend onnx": "from ekiden.frontend.onnx import register",
    "quantization": "import ekiden.quantization",
    "tune": "import ekiden.tune",
    "rpc": "import ekiden.rpc; ekiden.rpc.connect",
    "llm": "import ekiden.llm; ekiden.llm.load",
    "command line": "import ekiden.cli",
}
"""Row -> statement."""
BUDGETS_MS: Mapping[str, float] = {"runtime": 60}
"""Row -> the processor's time that it may take."""
ANSWERS = (
    "onnx lstm",
    "onnx transformer_block",
    "onnx loop",
    "relay loop_of_tensors",
    "relay lists",
)
"""Rows of programs: texts of the replay's, with zeros for inputs and 2 for sizes that are open."""

IMPORT_CLOCK = """
import sys, time, numpy
before = set(sys.modules)
start = time.process_time()
{statement}
spent = (time.process_time() - start) * 1e3
new = set(sys.modules) - before
own = sum(name.partition(".")[0] == "ekiden" for name in new)
print(spent, own, len(new) - own)
"""
FIRST_ANSWER_PROGRAM = """
import ekiden
exe = ekiden.compile(sys.argv[1])
arguments = []
for about in exe.inputs:
    shape = [d if isinstance(d, int) else 2 for d in about.shape]
    arguments.append(numpy.zeros(shape, about.dtype))
exe(*arguments)
"""


@dataclass(frozen=True)
class StartFigure:
    """The cost of one row."""

    cpu_ms: float
    num_own_modules: int
    num_other_modules: int


def run_statement(
    checkout: Checkout, statement: str, *arguments: object, **environment: str
) -> StartFigure | None:
    """Run a statement in a fresh process. Return None if it fails, as for features missing in
    another commit; its output is then on standard error.
    """
    command = [
        *checkout.python,
        "-c",
        IMPORT_CLOCK.format(statement=statement),
        *map(str, arguments),
    ]
    env = {**checkout.environment, "EKIDEN_COMPILE_JOBS": "1", **environment}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # or sources are compiled in each process
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, cwd=checkout.folder)
    if ran.returncode != 0:
        return None
    spent, own, other_modules = ran.stdout.split()
    return StartFigure(float(spent), int(own), int(other_modules))


def median_figure(rounds: Sequence[StartFigure | None]) -> StartFigure | None:
    """Return the median of the times and the modules of the last round, without the first round,
    which compiled sources; None where one failed.
    """
    figures = [figure for figure in rounds[1:] if figure is not None]
    if len(figures) < len(rounds) - 1:
        return None
    return StartFigure(
        median(f.cpu_ms for f in figures),
        figures[-1].num_own_modules,
        figures[-1].num_other_modules,
    )


def write_program(row: str, folder: Path) -> Path:
    """Write a benchmark row's model as .onnx or .relay, and return the path."""
    kind, name = row.split()
    if kind == "onnx":
        onnx.save(onnx_model(name), folder / f"{name}.onnx")
        return folder / f"{name}.onnx"
    path = folder / f"{name}.relay"
    path.write_text(LANGUAGE[name])
    return path


def measure_row(row: str, checkout: Checkout, rounds: int) -> dict[str, StartFigure | None]:
    """Return the figures of a row: one for an import, a cold and a cached start for a program."""
    if row in IMPORTS:
        return {
            row: median_figure([run_statement(checkout, IMPORTS[row]) for _ in range(rounds + 1)])
        }
    cold, cached = [], []
    for _ in range(rounds + 1):
        with tempfile.TemporaryDirectory() as scratch:
            path = write_program(row, Path(scratch))
            cache = {"EKIDEN_CACHE_DIR": str(Path(scratch) / "cache")}
            cold.append(run_statement(checkout, FIRST_ANSWER_PROGRAM, path, **cache))
            cached.append(run_statement(checkout, FIRST_ANSWER_PROGRAM, path, **cache))
    return {f"{row}, cold": median_figure(cold), f"{row}, cached": median_figure(cached)}


def format_line(name: str, figures: Sequence[StartFigure | None]) -> str:
    """Format a line of the table: columns hold the figure of this tree, then the other's; "-" for
    what failed.
    """
    cells = [
        " / ".join("-" if f is None else f"{f.cpu_ms:.0f}" for f in figures),
        " / ".join("-" if f is None else str(f.num_own_modules) for f in figures),
        " / ".join("-" if f is None else str(f.num_other_modules) for f in figures),
    ]
    return f"{name:32}" + "".join(f"{cell:>15}" for cell in cells)


def main(arguments: Sequence[str]) -> int:
    """Print the table, and return the exit status."""
    rows = [*IMPORTS, *ANSWERS]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of: {', '.join(rows)}")
    parser.add_argument("--beside", metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    for row in options.rows:
        if row not in rows:
            parser.error(f"no row is called {row!r}; there are {', '.join(rows)}")
    is_bad = False
    with tempfile.TemporaryDirectory() as scratch:
        sides = [Checkout(REPOSITORY_ROOT, (sys.executable,), os.environ)]
        if options.beside:
            sides.append(check_out(merge_base(options.beside), Path(scratch) / "tree"))
        print(f"{'':32}{'cpu ms':>15}{'own':>15}{'others':>15}")
        for row in options.rows or rows:
            measured = [measure_row(row, side, options.rounds) for side in sides]
            for name in measured[0]:
                print(format_line(name, [side[name] for side in measured]), flush=True)
            for name, figure in measured[0].items():
                budget = BUDGETS_MS.get(name, float("inf"))
                if figure is None or figure.cpu_ms > budget:
                    print(f"  {name}: expected to take at most {budget:g} ms")
                    is_bad = True
    return is_bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
