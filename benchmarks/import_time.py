"""What `import ekiden.runtime` takes beyond `import numpy`, each in a fresh process.

Prints the time on the clock and the processor's own, which other programs do not lengthen; exits
with 1 if the latter is over the budget.

    python benchmarks/import_time.py [--rounds N]
"""

import argparse
import subprocess
import sys
from statistics import median

BUDGET_MS = 60
PROGRAM = """
import time, numpy
clock, processor = time.perf_counter(), time.process_time()
import ekiden.runtime
print((time.perf_counter() - clock) * 1e3, (time.process_time() - processor) * 1e3)
"""


def measure() -> tuple[float, float]:
    """Milliseconds on the clock and of the processor, of one process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    clock, processor = map(float, done.stdout.split())
    return clock, processor


def main(arguments: list[str]) -> int:
    """Print the figures; 1 if the processor's median is over the budget."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args(arguments).rounds
    clocks, processors = zip(*(measure() for _ in range(rounds)), strict=True)
    print(f"import ekiden.runtime beyond numpy, median of {rounds}, of {BUDGET_MS} ms:")
    print(f"  clock {median(clocks):.1f} ms, fastest {min(clocks):.1f}")
    print(f"  processor {median(processors):.1f} ms")
    return median(processors) > BUDGET_MS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
