"""Share of the peak that kernels reach on each processor class that this machine can run: products
of matrices with constant and with variable operands beside other engines, the convolutions of
ResNet-50, products of bytes. One command for what matmul_peak.py, conv_peak.py and int8_matmul.py
print.

    python benchmarks/processor_classes.py [--class x86-64-v3 skylake-avx512] [--threads 2]

Whole tables take minutes for each class.
"""

from __future__ import annotations

import argparse

import conv_peak
import int8_matmul
import matmul_peak

from ekiden.runtime import num_threads
from ekiden.target import Target

PROCESSOR_CLASSES = ("x86-64-v2", "x86-64-v3", "skylake-avx512", "cascadelake", "cooperlake")
"""From the oldest to the newest: no FMA; AVX2; AVX-512, then with VNNI, then with BF16."""


def is_supported_class(name: str) -> bool:
    """Return whether this machine supports a class."""
    return Target(f"llvm -mcpu={name}").serves(Target.host())


def main() -> None:
    """Print all tables for each class."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    available = tuple(filter(is_supported_class, PROCESSOR_CLASSES))
    parser.add_argument("--class", dest="classes", nargs="+", default=available, metavar="CPU")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    num_threads(options.threads)
    print(f"{matmul_peak.cpu_model_name()}, {options.threads} thread(s), {options.rounds} rounds")
    print(f"not run here: {', '.join(sorted(set(PROCESSOR_CLASSES) - set(available))) or 'none'}")
    for name in options.classes:
        for variable in (False, True):
            of_class = argparse.Namespace(
                shapes=matmul_peak.MATMUL_SHAPES,
                variable=variable,
                threads=options.threads,
                rounds=options.rounds,
            )
            matmul_peak.print_percent_of_peak(name, of_class)
        conv_peak.print_percent_of_peak(name, options)
        if options.threads == 1:
            int8_matmul.print_percent_of_peak(matmul_peak.processor_class_target(name, 1), options)


if __name__ == "__main__":
    main()
