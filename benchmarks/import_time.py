"""What `import ekiden.runtime` takes beyond `import numpy`, each in a fresh process.

python benchmarks/import_time.py [--rounds N]
"""

import argparse
import subprocess
import sys
from statistics import median

BUDGET_MS = 60
PROGRAM = """
import time, numpy
begin = time.perf_counter()
import ekiden.runtime
print((time.perf_counter() - begin) * 1e3)
"""


def main(arguments: list[str]) -> int:
    """Print the figures; 1 if the median is over the budget."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args(arguments).rounds
    times = [
        float(subprocess.run([sys.executable, "-c", PROGRAM], stdout=-1, check=True).stdout)
        for _ in range(rounds)
    ]
    print(f"median of {rounds}: {median(times):.1f} ms, fastest {min(times):.1f}, of {BUDGET_MS}")
    return median(times) > BUDGET_MS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
