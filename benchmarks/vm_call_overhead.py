"""Call overhead of a virtual machine run from Python, including the creation of its tensors.

The calls of functions are in call_overhead.py.
"""

from collections.abc import Callable
from timeit import repeat

import numpy as np

from ekiden import runtime
from ekiden.backend.vm.write_executable import VMFunction, write_executable
from ekiden.runtime.debug.instructions import make_instruction

CALLS_PER_ROUND = 100_000


def call_nanoseconds(function: Callable[..., object], *args: object) -> float:
    """Return the nanoseconds of a call: the best of five rounds, minus that of an empty
    function.
    """

    def empty(*args: object) -> None:
        return None

    def best_round(called: Callable[..., object]) -> float:
        return (
            min(repeat(lambda: called(*args), number=CALLS_PER_ROUND, repeat=5))
            / CALLS_PER_ROUND
            * 1e9
        )

    return best_round(function) - best_round(empty)


def identity_machine(n_params: int) -> runtime.VirtualMachine:
    """Return a machine whose only function returns its first argument."""
    params = tuple(f"x{i}" for i in range(n_params))
    main = VMFunction("main", params, n_params, (make_instruction("Ret", src=0),))
    data = write_executable([main], [], [], b"", {})
    return runtime.VirtualMachine(runtime.Executable.from_bytes(data))


def main() -> None:
    """Print a line per kind of call."""
    array = np.zeros((4, 4), "float32")
    tensor = runtime.tensor(array)
    rows: list[tuple[str, float]] = [
        ("tensor of a NumPy array", call_nanoseconds(runtime.tensor, array)),
        ("NumPy array of a tensor", call_nanoseconds(tensor.numpy)),
    ]
    for count in (1, 3, 8):
        run = identity_machine(count).invoke
        for kind, source in (("tensors", tensor), ("arrays", array)):
            time = call_nanoseconds(run, "main", *[source] * count)
            rows.append((f"virtual machine, {count} {kind}", time))
    for label, time in rows:
        print(f"{label:42}{time:8.0f} ns")


if __name__ == "__main__":
    main()
