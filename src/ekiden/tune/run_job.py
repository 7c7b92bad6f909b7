"""Run job of a worker process, which checks the results of candidates and times them in interleaved
rounds: checks what each computes against the first, then times all in turns.

Arrays have guards around them, inputs must stay as they were. Turns go through all candidates, the
default first, so that what disturbs the machine disturbs all; one that cannot win any more is left
out of the next (racing).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TypeAlias, cast

import numpy as np

from ekiden import runtime
from ekiden.ir.dtype import to_numpy
from ekiden.runtime.errors import EkidenError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tune.candidate_code import load_candidate_code
from ekiden.tune.job_messages import Head, Message

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"
GUARD_ZONE_BYTES = 4096
"""Size in bytes of the guard zones before and after each array."""
PAGE_OFFSET_STEP = 17 * 64
"""Page offset in bytes between consecutive arrays: with equal offsets, equal elements share a few
L1 cache sets, unlike a model's tensors (Zen 3, a transposed convolution: 248 GFLOP/s instead of
304).
"""
GUARD_FILL_BYTE = 0xA5
MIN_TIMING_S = 2e-3
"""Minimum duration in seconds of one timing of the default."""
MAX_CALLS_PER_TIMING = 1000
CACHE_EVICTION_BYTES = 64 << 20
"""Bytes written to evict all caches."""
ELIMINATION_RATIO = 3.0
"""Ratio to the default's time above which a candidate whose first call also exceeds a turn is not
timed again: with kernels of a tenth of a second such candidates took most of a search.
"""
ELIMINATION_STAGES = ((3, 1.5), (5, 1.2), (9, 1.08))
"""Ratio to the best candidate above which one is eliminated, by round."""
MAX_ROUNDS_PER_CALL = 3
"""Maximum number of rounds that one slow call counts for: a tenth of a second is fifty timings, and
few candidates of such kernels are worth the three calls of three rounds.
"""
COMPARE_BLOCK_ELEMENTS = 1 << 15
"""Elements compared or summed at a time, so that they stay in the cache: millions at once took five
times as long as the convolution that made them.
"""


@dataclass(slots=True)
class KernelArrays:
    """Arguments of a kernel for one set of sizes, in guarded memory."""

    inputs: list[Array]
    outputs: list[Array]
    guarded_blocks: list[Array]
    initial_inputs: list[Array] = field(default_factory=list)

    device: runtime.Device | None = None
    """Device of the kernels; None for host memory."""
    device_tensors: list[runtime.Tensor] = field(default_factory=list)

    def tensors(self) -> list[runtime.Tensor]:
        """Return the tensors a kernel takes."""
        if self.device is None:
            return [runtime.from_dlpack(a) for a in (*self.inputs, *self.outputs)]
        self.device_tensors = [
            runtime.nd.array(a, self.device) for a in (*self.inputs, *self.outputs)
        ]
        return self.device_tensors

    def copy_to_device(self) -> None:
        """Copy the arrays to the device for the next kernel."""
        for tensor, array in zip(self.device_tensors, (*self.inputs, *self.outputs), strict=False):
            tensor.copyfrom(array)

    def copy_from_device(self) -> None:
        """Copy a kernel's results back from the device."""
        for tensor, array in zip(self.device_tensors, (*self.inputs, *self.outputs), strict=False):
            array[...] = tensor.numpy()

    def memory_violation(self) -> str:
        """Describe a memory violation; empty if there is none."""
        for block in self.guarded_blocks:
            if (block[:GUARD_ZONE_BYTES] != GUARD_FILL_BYTE).any() or (
                block[-GUARD_ZONE_BYTES:] != GUARD_FILL_BYTE
            ).any():
                return "it wrote outside its arrays"
        for before, array in zip(self.initial_inputs, self.inputs, strict=True):
            if before.tobytes() != array.tobytes():
                return "it changed its inputs"
        return ""


def make_arrays(args: list[tuple[list[int], str]], outputs: int, seed: int) -> KernelArrays:
    """Return random inputs and outputs in guarded memory."""
    rng = np.random.default_rng(seed)
    arrays, blocks = [], []
    for number, (shape, dtype) in enumerate(args):
        array, block = _allocate_guarded(
            tuple(shape), dtype, number * PAGE_OFFSET_STEP % GUARD_ZONE_BYTES
        )
        if number < len(args) - outputs:
            _fill_random(array, dtype, rng)
        arrays.append(array)
        blocks.append(block)
    inputs = arrays[: len(args) - outputs]
    return KernelArrays(inputs, arrays[len(inputs) :], blocks, [a.copy() for a in inputs])


def _allocate_guarded(shape: tuple[int, ...], dtype: str, page_offset: int) -> tuple[Array, Array]:
    """Allocate an array at an offset in a page, and return it with its guarded block."""
    kind = to_numpy(dtype)
    size = math.prod(shape) * kind.itemsize
    block = np.full(size + 3 * GUARD_ZONE_BYTES, GUARD_FILL_BYTE, np.uint8)
    # The array begins at the given offset in a page, and both guards lie within the block.
    start = (
        GUARD_ZONE_BYTES + (page_offset - block.ctypes.data - GUARD_ZONE_BYTES) % GUARD_ZONE_BYTES
    )
    block = block[start - GUARD_ZONE_BYTES : start + size + GUARD_ZONE_BYTES]
    return block[GUARD_ZONE_BYTES : GUARD_ZONE_BYTES + size].view(kind).reshape(shape), block


def _fill_random(array: Array, dtype: str, rng: np.random.Generator) -> None:
    if dtype == "bool":
        array[...] = rng.integers(0, 2, array.shape, np.uint8).astype(bool)
    elif dtype in ("int8", "uint8"):
        info = np.iinfo(dtype)
        # int16, so that the exclusive upper bound of uint8 is representable.
        array[...] = rng.integers(info.min, info.max + 1, array.shape, np.int16).astype(dtype)
    elif dtype.startswith(("int", "uint")):
        array[...] = rng.integers(0, 2, array.shape, np.int64).astype(array.dtype)  # also indices
    else:
        array[...] = rng.standard_normal(array.shape, np.float32).astype(array.dtype)


def results_agree(result: Array, expected: Array, tolerance: float) -> bool:
    """Return whether results match: floats up to summation order, integers exactly."""
    if result.dtype.kind in "biu":
        return bool((result == expected).all())
    a, b = result.reshape(-1), expected.reshape(-1)
    blocks = [
        slice(start, start + COMPARE_BLOCK_ELEMENTS)
        for start in range(0, b.size, COMPARE_BLOCK_ELEMENTS)
    ]
    # Elements near zero have an error relative to the terms of their sum, which the scale
    # estimates.
    scale = _root_mean_square([b[chunk] for chunk in blocks])
    return all(_floats_agree(a[piece], b[piece], tolerance, scale) for piece in blocks)


def _root_mean_square(blocks: list[Array]) -> float:
    """Return the root mean square of the finite elements; 0 if there are none."""
    total, count = 0.0, 0
    for block in blocks:
        x = block.astype(np.float64)
        x = x[np.isfinite(x)]
        total, count = total + float(x @ x), count + x.size
    return math.sqrt(total / count) if count else 0.0


def _floats_agree(result: Array, expected: Array, tolerance: float, scale: float) -> bool:
    """Return whether two blocks of floats match within the tolerance."""
    a, b = result.astype(np.float64), expected.astype(np.float64)
    plain = np.isfinite(b)
    # Infinities and NaNs must be in the same positions.
    if not np.array_equal(plain, np.isfinite(a)):
        return False
    if not plain.all():
        a, b = a[plain], b[plain]
    return bool((np.abs(a - b) <= tolerance * (np.abs(b) + scale)).all())


TOLERANCE_BY_DTYPE = {"float64": 1e-12, "float32": 5e-4, "float16": 4e-3, "bfloat16": 3.2e-2}
"""Tolerance relative to |element| + root mean square, by dtype: 4096 roundings, a long row summed
sequentially; four for types to which sums are only rounded.
"""


def output_fingerprint(outputs: list[Array], seed: int) -> list[float]:
    """Return a fingerprint of the outputs: a randomly signed sum of each output's elements."""
    rng = np.random.default_rng(seed + 1)
    # Random signs keep elements from cancelling systematically, and detect permuted results.
    signs, sums = rng.choice([-1.0, 1.0], COMPARE_BLOCK_ELEMENTS), []
    for output in outputs:
        flat, total = output.reshape(-1), 0.0
        for start in range(0, flat.size, COMPARE_BLOCK_ELEMENTS):
            block = np.nan_to_num(
                flat[start : start + COMPARE_BLOCK_ELEMENTS].astype(np.float64), posinf=0, neginf=0
            )
            total += float(block @ signs[: block.size]) * rng.choice([-1.0, 1.0])
        sums.append(total / max(1.0, flat.size**0.5))
    return sums


BoundCall: TypeAlias = Callable[[], object]


def _timing_clock(threads: int) -> Callable[[], float]:
    """Return the clock for a thread count: one thread uses its own CPU time, which other processes
    do not affect; a device (0) uses wall time.
    """
    return time.thread_time if threads == 1 else time.perf_counter


def _time_calls(call: BoundCall, count: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(count):
        call()
    return (clock() - started) / count


def race_candidates(
    calls: list[BoundCall], alive: list[int], rounds: int, seconds: float, threads: int, is_cold:
    bool,
    first: Sequence[float] = (),
) -> list[list[float]]:  # fmt: skip
    """Time candidates in interleaved rounds and return the seconds per call, by candidate and
    round; slow candidates are eliminated, the first never.

    Args:
        calls: The calls, the default's first.
        alive: The indices of the calls to time.
        rounds: The maximum number of rounds.
        seconds: The time limit.
        threads: The thread count, which selects the clock.
        is_cold: Whether to evict the caches before each call.
        first: The seconds of each call's checked run; by default each is called once.
    """
    clock = _timing_clock(threads)
    begun = first or [_time_calls(c, 1, clock) if i in alive else 0.0 for i, c in enumerate(calls)]
    once = _time_calls(calls[0], 1, clock)
    # One timing of a hopeless candidate would cost as much as several of the others.
    slow = [
        i for i in alive if begun[i] > max(ELIMINATION_RATIO * max(begun[0], once), MIN_TIMING_S)
    ]
    count = 1 if is_cold else max(1, min(MAX_CALLS_PER_TIMING, int(MIN_TIMING_S / max(once, 1e-7))))
    # A call that takes long averages over more noise, so it counts as several rounds.
    rounds_per_call = max(1, min(MAX_ROUNDS_PER_CALL, int(once / MIN_TIMING_S)))
    evicted = np.zeros(CACHE_EVICTION_BYTES if is_cold else 0, np.uint8)
    until = time.perf_counter() + seconds
    times: list[list[float]] = [[begun[i]] if i in slow else [] for i in range(len(calls))]
    alive = [i for i in alive if i not in slow]
    for round_index in range(rounds):
        # Alternating directions cancel drift of the clock frequency within a round.
        for index in alive if round_index % 2 else reversed(alive):
            # Touches every line of the eviction buffer; it is empty unless caches are to be cold.
            evicted += 1
            times[index].append(_time_calls(calls[index], count, clock))
        alive = surviving_candidates(times, alive, (round_index + 1) * rounds_per_call)
        if time.perf_counter() > until and round_index >= 2:
            break
    return times


def time_ratio(times: list[float], base: list[float]) -> float:
    """Return how many times as long a candidate takes: the larger of the median ratio over rounds,
    which is robust to drift, and the ratio of minima, which is robust to load.
    """
    pairs = zip(times, base, strict=False)
    middle = statistics.median(
        candidate_seconds / max(default_seconds, 1e-12)
        for candidate_seconds, default_seconds in pairs
    )
    return max(middle, min(times) / max(min(base), 1e-12))


def surviving_candidates(times: list[list[float]], alive: list[int], rounds: int) -> list[int]:
    """Return the candidates that may still win after `rounds` rounds; the first is always kept."""
    limit = next(
        (factor for position, factor in reversed(ELIMINATION_STAGES) if rounds >= position),
        math.inf,
    )
    best = min(min(times[i]) for i in alive)
    return [i for i in alive if i == 0 or min(times[i]) <= limit * best]


def job(head: Head, images: list[bytes], tell: Callable[[Head], None]) -> Message:
    """Run candidates: {"name", "args", "outputs", "shares", "seed", "turns", "race_seconds",
    "threads", "cold", "device"} and the code of each candidate, the default's first, give
    {"results": [{"seconds", "ratio", "sample"} or {"wrong": why}]}. `args` are those of all
    sizes in sequence; `shares` weight the sizes. Ratios are relative to the default.
    """
    runtime.num_threads(int(str(head["threads"])))
    device = _first_device(str(head["device"]))
    args = cast("list[tuple[list[int], str]]", head["args"])
    shares = cast("list[float]", head["shares"])
    args_per_size = len(args) // len(shares)
    results: list[Head] = [{"seconds": 0.0, "ratio": 0.0, "sample": []} for _ in images]
    functions = []
    for number, image in enumerate(images):
        # Sent before the candidate runs: if the process dies, the parent knows which one it was.
        tell({"at": number})
        functions.append(load_candidate_code(image)[str(head["name"])])
    for index, share in enumerate(shares):
        arrays = make_arrays(
            args[index * args_per_size : (index + 1) * args_per_size],
            int(str(head["outputs"])),
            int(str(head["seed"])),
        )
        arrays.device = device
        tensors = arrays.tensors()
        calls = [_synchronous_call(f, tensors, device) for f in functions]
        threads = int(str(head["threads"])) if device is None else 0
        first = _check_candidates(
            calls, arrays, results, int(str(head["seed"])), tell, _timing_clock(threads)
        )
        alive = [i for i, r in enumerate(results) if "wrong" not in r]
        # The default failed on these sizes, so there is nothing to compare with.
        if 0 not in alive:
            break
        tell({"at": "times"})
        times = race_candidates(
            calls, alive, int(str(head["turns"])), float(str(head["race_seconds"])),
            threads, bool(head["cold"]), first,
        )  # fmt: skip
        for i in alive:
            ratio = time_ratio(times[i], times[0])
            results[i]["seconds"] = float(str(results[i]["seconds"])) + share * min(times[i])
            results[i]["ratio"] = float(str(results[i]["ratio"])) + share * ratio
    tell({"at": "end"})
    return {"results": results}, []


def _first_device(kind: str) -> runtime.Device | None:
    """Return the first device of a kind; None for the CPU."""
    return runtime.device(kind, 0) if kind else None


def _synchronous_call(
    function: Callable[..., object], tensors: list[runtime.Tensor], device: runtime.Device | None
) -> BoundCall:
    """Return a call that, on a device, waits for completion."""

    def call_and_sync() -> None:
        function(*tensors)
        device.sync()  # type: ignore[union-attr]

    return (lambda: function(*tensors)) if device is None else call_and_sync


def _check_candidates(
    calls: list[BoundCall], arrays: KernelArrays, results: list[Head], seed: int,
    tell: Callable[[Head], None], clock: Callable[[], float],
) -> list[float]:  # fmt: skip
    """Run each candidate once and compare its results with the first one's; return the seconds of
    each, 0 for one already known to be wrong.
    """
    expected: list[Array] = []
    first = [0.0] * len(calls)
    for number, call in enumerate(calls):
        if "wrong" in results[number]:
            continue
        tell({"at": number})
        for out in arrays.outputs:
            # A result that was never written must not look right because an earlier candidate wrote
            # it.
            out.view(np.uint8).fill(
                GUARD_FILL_BYTE
            ) if out.flags.c_contiguous and out.ndim else out.fill(0)
        try:
            arrays.copy_to_device()
            first[number] = _time_calls(call, 1, clock)
            arrays.copy_from_device()
        except EkidenError as error:
            results[number] = {"wrong": f"{type(error).__name__}: {error}"}
            continue
        if number == 0:
            expected = [out.copy() for out in arrays.outputs]
        if fault := arrays.memory_violation() or describe_difference(arrays.outputs, expected):
            results[number] = {"wrong": fault}
            # The next candidate must see the original inputs and intact guards.
            for before, array in zip(arrays.initial_inputs, arrays.inputs, strict=True):
                array[...] = before
            for block in arrays.guarded_blocks:
                block[:GUARD_ZONE_BYTES] = block[-GUARD_ZONE_BYTES:] = GUARD_FILL_BYTE
            continue
        sample_so_far = cast("list[float]", results[number]["sample"])
        results[number]["sample"] = [*sample_so_far, *output_fingerprint(arrays.outputs, seed)]
    return first


def describe_difference(results: list[Array], expected: list[Array]) -> str:
    """Describe how results differ from the expected ones; empty if they agree."""
    for number, (a, b) in enumerate(zip(results, expected, strict=True)):
        if not results_agree(a, b, TOLERANCE_BY_DTYPE.get(str(a.dtype), 5e-4)):
            return f"its result {number} is not that of the default"
    return ""
