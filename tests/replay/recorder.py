"""Record what the compiler makes of a program: the text of each lowered kernel and of the bytecode.

Code generation is left out: the rows of the table of generators note the loop programs they are
given in place of compiling them. Nothing of the machine is read (its processor, cores, devices and
C compiler, the user's records, caches and variables), so that the texts are the same everywhere.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ekiden.codegen import build, device, llvm
from ekiden.codegen.device.split import Split
from ekiden.compiler.build import compile_to_bytes, import_model
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import PassContext
from ekiden.runtime import Executable
from ekiden.runtime.artifact import container_format
from ekiden.runtime.debug.disassemble import disassemble
from ekiden.target import Target, facts
from ekiden.target import target as target_module
from ekiden.target.processors import PROCESSORS
from ekiden.tir.stmt import PrimFunc

__all__ = ["BYTECODE", "NATIVE", "TARGETS", "import_model", "record"]

_HOST = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -cores=4"
# fmt: off
TARGETS: Mapping[str, Target] = {
    "vnni":    Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=icelake-server -cores=4"),
    "haswell": Target(_HOST),
    "neon":    Target("llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1 -cores=4"),
    "c":       Target("c -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v3 -cores=4"),
    "opencl":  Target("opencl -device=replay -cores=16 -max_num_threads=256", host=_HOST),
    "vectors": Target("opencl -device=replay -cores=16 -max_num_threads=256 -thread_warp_size=1"
                      " -vector-bits=256", host=_HOST),  # threads one after the other, of vectors
    "cuda":    Target("cuda -device=replay -cores=16 -arch=sm_80", host=_HOST),
}
# fmt: on
"""Column of the table of digests -> target, with everything that would be asked of the machine."""

BYTECODE, NATIVE = "bytecode", "native"
"""Items of a record that are no kernels; NATIVE is the code of functions of the executor "aot"."""
KEYED_NAME = re.compile(r"\b([A-Za-z_]\w*?)_([0-9a-f]{12})(?![0-9A-Za-z])")
"""A kernel's name: its operators, then the key of the cache, which says nothing of the code."""
MAX_NAME = 42
"""Characters of a kernel's name in records; long ones list all operators of a kernel."""


@dataclass
class _Notes:
    """What generators were given while one program was compiled for one target."""

    funcs: list[PrimFunc] = field(default_factory=list)
    device_code: dict[str, list[str]] = field(default_factory=dict)
    """Name of the function on the host -> the texts of the kernels that it launches."""
    native: list[str] = field(default_factory=list)


def record(module: IRModule, target: Target, executor: str = "vm") -> dict[str, str]:
    """Compile a program as far as its lowered kernels and its bytecode.

    Returns:
        Item -> text: kernels by the names of their operators, numbered where several have one, and
        the items BYTECODE and NATIVE.

    Raises what compiling raises.
    """
    with _recording() as notes, PassContext():
        data = compile_to_bytes(module, target, executor=executor)
    executable = container_format.load_executable(memoryview(data))
    names = _short_names([f.name for f in notes.funcs])
    texts = {}
    for func in notes.funcs:
        lines = [func.script(), *notes.device_code.get(func.name, ())]
        if target.kind.name == "c":
            lines.append(c_text(func, target))
        texts[names[func.name]] = "\n".join(lines)
    texts[BYTECODE] = _bytecode(executable)
    if notes.native:
        texts[NATIVE] = "\n".join(notes.native)
    return {item: _with_names(text, names) for item, text in sorted(texts.items())}


def c_text(func: PrimFunc, target: Target) -> str:
    """Return the C of a lowered function."""
    return build.CODE_GENERATORS["c"].sources(target)["c"]([func], target)


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Map names of kernels to those in records, which hold no key and are unique."""
    seen: Counter[str] = Counter()
    short = {}
    for name in dict.fromkeys(names):
        stem = KEYED_NAME.sub(r"\1", name).removeprefix("fused_")[:MAX_NAME]
        seen[stem] += 1
        short[name] = stem if seen[stem] == 1 else f"{stem}.{seen[stem]}"
    return short


def _with_names(text: str, names: Mapping[str, str]) -> str:
    """Replace the names of kernels in a text; those of kernels that were not compiled again lose
    their key."""

    def shown(match: re.Match[str]) -> str:
        return names.get(match[0], match[1])

    replaced = KEYED_NAME.sub(shown, text)
    for name in names:
        match = KEYED_NAME.search(name)
        assert match is None or match[2] not in replaced, f"the key of {name} is in a text"
    return replaced


def _bytecode(executable: Executable) -> str:
    """Return the text of an executable: functions, constants without their elements (folding may
    round otherwise on another machine) and what callers are told of inputs, memory and states."""
    constants = [
        "made at loading" if array is None else f"{array.dtype}{list(array.shape)}"
        for array in executable.constants
    ]
    about = {k: executable.metadata.get(k) for k in ("main", "memory", "states")}
    lines = [f"Const[{number}]: {text}" for number, text in enumerate(constants)]
    return "\n".join([disassemble(executable), *lines, *(f"{k}: {v}" for k, v in about.items())])


@contextmanager
def _recording() -> Iterator[_Notes]:
    """Put recorders in the place of code generators, and a fixed machine in that of this one, for
    the thread that calls; others compile as ever."""
    notes, thread = _Notes(), threading.get_ident()

    def here(recorder: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        """Return the recorder for this thread, the real function for others."""

        def chosen(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            function = recorder if threading.get_ident() == thread else real
            return function(*args, **options)

        return chosen

    def note_functions(funcs: Sequence[PrimFunc], target: Target) -> bytes:
        notes.funcs.extend(funcs)
        return b"object"

    def note_device_code(func: PrimFunc, target: Target) -> Split:
        split = split_program(func, target)
        codes = [kernel.code.decode("latin-1") for kernel in split.kernels]
        notes.device_code[split.host.name] = codes
        return split

    def note_native(text: str, target: Target) -> bytes:
        notes.native.append(text)
        return b"object"

    split_program = device.split_host_and_device
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("EKIDEN_")]:
            patch.delenv(name)
        patch.setenv("EKIDEN_CACHE_DIR", "")  # nothing is read from it, and nothing kept
        patch.setenv("EKIDEN_COMPILE_JOBS", "1")
        for name, row in build.CODE_GENERATORS.items():
            noting = replace(
                row,
                compile=here(note_functions, row.compile),
                check=here(lambda target, what: None, row.check),
                version=here(lambda: "", row.version),  # that of a C compiler, which need not be
                sources=here(lambda target: {"none": lambda funcs, target: ""}, row.sources),
            )
            patch.setitem(build.CODE_GENERATORS, name, noting)
        patch.setattr(device, "split_host_and_device", here(note_device_code, split_program))
        patch.setattr(llvm, "link_image", here(lambda *args, **options: b"", llvm.link_image))
        patch.setattr(llvm, "compile_ir", here(note_native, llvm.compile_ir))
        oldest = PROCESSORS["x86-64-v2"]
        machine = facts.MachineFacts(
            oldest.name, oldest.architecture, (), oldest.core, oldest.core.caches
        )
        patch.setattr(facts, "host_facts", here(lambda: machine, facts.host_facts))
        target_module._host_machine.cache_clear()
        try:
            yield notes
        finally:
            target_module._host_machine.cache_clear()
