"""Overhead of the virtual machine: each simple instruction, each call of a kernel, each node.

    python benchmarks/vm_overhead.py [--threads 1]

The first table is of programs in bytecode that repeat one instruction 1,000 times, less one that
does not; times are minima over rounds in which all of them take turns. The second is of a chain of
1,000 adds of one element, not fused, next to ONNX Runtime's with its optimisations off, turn by
turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np

import ekiden
from ekiden import relay
from ekiden.backend.vm.write_executable import VMFunction, write_executable
from ekiden.compiler.build import compile_to_bytes
from ekiden.ir.pass_context import PassContext
from ekiden.runtime import Executable, VirtualMachine, load_image, num_threads
from ekiden.runtime.debug.instructions import Instruction, make_instruction

REPEAT, ROUNDS = 1000, 60
Run = Callable[[], object]


def instruction_programs() -> dict[str, list[Instruction]]:
    """Return the measured instruction sequences by name; $0 is a one-element tensor, $1 an integer,
    $2 a pair.
    """
    call = {"packed_index": 0, "output_size": 1}
    return {
        "empty": [],
        "move": [make_instruction("Move", dst=4, src=1)],
        "move of a tensor": [make_instruction("Move", dst=4, src=0)],
        "load_consti": [make_instruction("LoadConsti", dst=4, value=7)],
        "load_const": [make_instruction("LoadConst", dst=4, const_index=0)],
        "get_field": [make_instruction("GetField", dst=4, object=2, index=0)],
        "get_tag": [make_instruction("GetTag", dst=4, object=2)],
        "goto": [make_instruction("Goto", offset=1)],
        "if": [make_instruction("If", test=1, target=1, true_offset=1, false_offset=1)],
        "switch": [make_instruction("Switch", value=2, offsets=(1, 1))],
        "kill_register": [make_instruction("KillRegister", dst=4)],
        "invoke and ret": [make_instruction("Invoke", dst=4, func=1, args=(1,))],
        "alloc_data": [make_instruction("AllocADT", dst=4, tag=0, fields=(1, 1))],
        "alloc_tensor": [
            make_instruction("AllocTensor", dst=4, storage=3, offset=0, dtype="float32", shape=(1,))
        ],
        "invoke_packed": [make_instruction("InvokePacked", args=(0, 0, 5), **call)],
    }


def repeat_function(body: list[Instruction]) -> VMFunction:
    """Return a function that runs the body REPEAT times."""
    start = [
        make_instruction("LoadConsti", dst=1, value=64),
        make_instruction("AllocADT", dst=2, tag=0, fields=(1, 1)),
        make_instruction("AllocStorage", dst=3, size=1, size_index=0, alignment=64, device=0),
        make_instruction("AllocTensor", dst=5, storage=3, offset=0, dtype="float32", shape=(1,)),
    ]
    return VMFunction("main", ("x",), 6, (*start, *(body * REPEAT), make_instruction("Ret", src=1)))


def build_runs() -> tuple[dict[str, Run], Run]:
    """Return runs of all programs, and of their kernel alone."""
    x, y = relay.var("x", shape=(1,)), relay.var("y", shape=(1,))
    module = ekiden.IRModule.from_expr(relay.Function([x, y], relay.add(x, y)))
    compiled_executable = Executable.from_bytes(compile_to_bytes(module))
    kernel = next(name for name in compiled_executable.primitives if "add" in name)
    image = _serialize_executable(compiled_executable)
    one = ekiden.runtime.tensor(np.ones(1, np.float32))
    runs: dict[str, Run] = {}
    for name, body in instruction_programs().items():
        identity = VMFunction("identity", ("x",), 1, (make_instruction("Ret", src=0),))
        constants = [np.ones(1, np.float32)]
        data = write_executable([repeat_function(body), identity], constants, [kernel], image, {})
        machine = VirtualMachine(Executable.from_bytes(data))
        runs[name] = lambda machine=machine: machine.invoke("main", one)  # type: ignore[misc]
    evaluator = load_image(image).time_evaluator(kernel, number=REPEAT * 10)
    out = ekiden.runtime.tensor(np.ones(1, np.float32))
    return runs, lambda: evaluator(one, one, out).min


def _serialize_executable(executable: Executable) -> bytes:
    data = executable.to_bytes()
    n = int.from_bytes(data[24:28], "little")
    for position in range(32, 32 + 24 * n, 24):
        if int.from_bytes(data[position : position + 4], "little") == 5:
            start = int.from_bytes(data[position + 8 : position + 16], "little")
            return data[
                start : start + int.from_bytes(data[position + 16 : position + 24], "little")
            ]
    raise SystemExit("the executable has no native code")


def interleaved_minima(runs: dict[str, Run], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the minimum duration of each run in seconds over alternating rounds."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def print_instruction_costs() -> None:
    """Print the table of instructions."""
    runs, kernel = build_runs()
    best = interleaved_minima(runs)
    empty = best.pop("empty")
    alone = min(float(str(kernel())) for _ in range(5)) * 1e9
    print(f"empty call from Python {empty * 1e9:.0f} ns; the kernel alone {alone:.1f} ns")
    for name, seconds in best.items():
        per_instruction = (seconds - empty) / REPEAT * 1e9
        if name == "invoke_packed":
            print(
                f"{name:>18} {per_instruction:7.1f} ns, {per_instruction - alone:.1f} beyond "
                "the kernel (at most 120)"
            )
        else:
            print(f"{name:>18} {per_instruction:7.1f} ns (at most 40)")


def measure_add_chain() -> None:
    """Measure 1,000 consecutive adds of one element."""
    import onnx  # noqa: PLC0415  # only here: the rest runs without
    import onnxruntime  # noqa: PLC0415

    helper = onnx.helper
    names = ["x", *(f"t{i}" for i in range(REPEAT - 1)), "y"]
    nodes = [helper.make_node("Add", [a, "one"], [b]) for a, b in pairwise(names)]
    values = [helper.make_tensor_value_info(n, 1, [1]) for n in ("x", "one", "y")]
    graph = helper.make_graph(nodes, "chain", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    # Without fusion each node stays one kernel call.
    with PassContext(config={"relay.FuseOps.max_depth": 1}):
        ours = ekiden.compile(model)
        native = ekiden.compile(model, executor="aot")
    calls = ours.disassemble().count("invoke_packed PackedFunc")
    if calls < REPEAT:
        raise SystemExit(f"the chain has {calls} kernel calls, expected {REPEAT}")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x, one = np.ones(1, np.float32), np.full(1, 0.5, np.float32)
    (expected,) = session.run(None, {"x": x, "one": one})
    np.testing.assert_array_equal(np.asarray(ours(x, one)), expected)
    np.testing.assert_array_equal(np.asarray(native(x, one)), expected)
    best = interleaved_minima(
        {
            "ekiden": lambda: ours(x, one),
            "ekiden aot": lambda: native(x, one),
            "onnxruntime": lambda: session.run(None, {"x": x, "one": one}),
        }
    )
    limit = best["onnxruntime"]
    for name, seconds in best.items():
        share = f"{seconds / limit:6.1%} of ONNX Runtime (at most 50%)"
        print(f"{name:>18} {seconds / REPEAT * 1e9:7.1f} ns a node, {share}")


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    num_threads(parser.parse_args().threads)
    print_instruction_costs()
    measure_add_chain()


if __name__ == "__main__":
    main()
