"""Programs of C99 around models without the runtime, compiled strictly and with sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ekiden import micro
from ekiden.backend.crt.c_emitter import emit_files
from ekiden.backend.crt.interfaces import interfaces_of

STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fwrapv", "-ffp-contract=off",
          "-fno-math-errno")  # fmt: skip
SANITIZE = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")
PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "ekiden_{header}.h"
{buffers}
int main(void) {{
  void *const inputs[] = {{{inputs}}};
  void *const outputs[] = {{{outputs}}};
  void *const pools[] = {{{pools}}};
  for (int n = 0; n < ekiden_{name}.num_inputs; n++)
    if (fread(inputs[n], ekiden_{name}.inputs[n].nbytes, 1, stdin) != 1) return 3;
  for (int run = 0; run < 2; run++) {{
    for (int n = 0; n < ekiden_{name}.num_outputs; n++)
      memset(outputs[n], 0xA5, ekiden_{name}.outputs[n].nbytes);
    for (int n = 0; n < ekiden_{name}.num_pools; n++)
      memset(pools[n], 0xC3, ekiden_{name}.pools[n].nbytes);
    if (ekiden_{name}.run(inputs, outputs, pools) != 0) return 2;
  }}
  for (int n = 0; n < ekiden_{name}.num_outputs; n++)
    fwrite(outputs[n], 1, ekiden_{name}.outputs[n].nbytes, stdout);
  return 0;
}}
"""
"""Runs twice over memories of arbitrary content: nothing may be left over or be taken for 0."""
REFUSED = 2
BOARDS = {
    "qemu-mps2-an500": "c -mcpu=cortex-m7",
    "qemu-mps3-an547": "c -mcpu=cortex-m55",
}


def need_board() -> None:
    """Skip a test where boards cannot be built for or run."""
    for program in ("arm-none-eabi-gcc", "qemu-system-arm", "make"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: apt install gcc-arm-none-eabi"
                        " libnewlib-arm-none-eabi qemu-system-arm make")  # fmt: skip


def write_files(program: micro.MicroProgram, folder: Path) -> list[Path]:
    """Write the files of a program; its sources."""
    for path, text in emit_files(program.module).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return sorted(folder.glob("src/*.c"))


def build_bare(program: micro.MicroProgram, folder: Path, entry: int = 0) -> Path:
    """Compile a program of an entry point, by default `main`, that reads its inputs from standard
    input.
    """
    module, interface = program.module, interfaces_of(program.module)[entry]
    sizes = {"in": interface.inputs, "out": interface.outputs}
    rows = {w: [(f"{w}{n}", t.nbytes) for n, t in enumerate(found)] for w, found in sizes.items()}
    rows["pool"] = (
        [] if module.has_own_memory else [(f"pool{p.name}", p.used) for p in module.pools]
    )
    aligned = "__attribute__((aligned(16)))"
    texts = [
        f"static unsigned char {b}[{max(n, 1)}] {aligned};" for r in rows.values() for b, n in r
    ]
    names = {what: ", ".join(b for b, _ in found) or "NULL" for what, found in rows.items()}
    main = folder / "main.c"
    main.write_text(
        PROGRAM.format(header=module.name, name=interface.name, buffers="\n".join(texts),
                       inputs=names["in"], outputs=names["out"], pools=names["pool"])
    )  # fmt: skip
    sources = [*write_files(program, folder), main]
    made = folder / "program"
    command = ["cc", *STRICT, *SANITIZE, f"-I{folder}/include", *map(str, sources), "-lm"]
    subprocess.run([*command, "-o", str(made)], check=True)
    return made


def run_bare(
    path: Path, program: micro.MicroProgram, *inputs: np.ndarray, entry: int = 0
) -> list[np.ndarray]:
    """The outputs of a program that `build_bare` made."""
    interface = interfaces_of(program.module)[entry]
    rows = zip(inputs, interface.inputs, strict=True)
    given = b"".join(np.ascontiguousarray(x, dtype=t.dtype).tobytes() for x, t in rows)
    done = subprocess.run([str(path)], input=given, check=True, capture_output=True).stdout
    found = []
    for tensor in interface.outputs:
        data, done = done[: tensor.nbytes], done[tensor.nbytes :]
        found.append(np.frombuffer(data, tensor.dtype).reshape(tensor.shape))
    return found
