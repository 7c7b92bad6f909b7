"""Engine templates compile without the vendor's library; the NPU template runs on a C model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ekiden import runtime

HERE = Path(__file__).parents[2] / "examples/engines"
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]


def compiler(name: str) -> str:
    result = shutil.which(name)
    if result is None:
        pytest.skip(f"needs the compiler {name}: install gcc or clang")
    return result


def includes() -> list[str]:
    return [f"-I{runtime.include_dir()}", f"-I{HERE / 'headers'}"]


def test_tensorrt_template_compiles() -> None:
    words = [compiler("c++"), "-std=c++17", *WARNINGS, *includes(), "-fsyntax-only"]
    done = subprocess.run(
        [*words, HERE / "tensorrt.cpp"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


DOUBLES = r"""
#include <npu.h>
#include <stdlib.h>

/* An NPU that doubles floats: its code says by what it multiplies, in one byte. */
struct npu_program { float factor; };

int npu_context_create(npu_context **context) { *context = NULL; return 0; }
int npu_program_load(npu_context *context, const void *code, size_t size, npu_program **program) {
  (void)context;
  if (size != 1) return 7;
  *program = malloc(sizeof **program);
  (*program)->factor = (float)*(const unsigned char *)code;
  return 0;
}
int npu_program_counts(const npu_program *program, uint32_t *inputs, uint32_t *outputs) {
  (void)program;
  *inputs = *outputs = 1;
  return 0;
}
int npu_program_run(npu_program *program, const npu_buffer *inputs, npu_buffer *outputs) {
  const float *from = inputs->data;
  float *to = outputs->data;
  for (size_t i = 0; i < inputs->size / sizeof(float); i++) {
    if (from[i] != from[i]) return 8;
    to[i] = program->factor * from[i];
  }
  return 0;
}
void npu_program_free(npu_program *program) { free(program); }
const char *npu_message(int code) { return code == 7 ? "no code of mine" : "no number"; }
"""
USES = """
import numpy as np, ekiden
from ekiden import byoc, relay
from ekiden.relay.dataflow_pattern import is_op, wildcard
from ekiden.runtime.devices.engines import load_region

class Npu:
    name = "npu"

    def patterns(self):
        x = wildcard()
        return [("npu.twice", is_op("add")(x, x))]

    def compile(self, function):
        return bytes([2])

    def load(self, symbol, code):
        return load_region("npu", symbol, code)

byoc.register(Npu())
module = relay.parse("def @main(%x: Tensor[(2), float32]) { nn.relu(add(%x, %x)) }")
exe = ekiden.compile(byoc.partition(module, "npu"))
print(exe(np.float32([1, -3])).numpy().tolist())
for run in (lambda: exe(np.float32([1, np.nan])), lambda: Npu().load("part", b"xx")):
    try:
        run()
    except ekiden.EkidenError as error:
        print(error)
"""


def test_npu_template_runs(tmp_path: Path) -> None:
    (tmp_path / "npu_of_c.c").write_text(DOUBLES)
    words = [compiler("cc"), "-std=c11", *WARNINGS, *includes(), "-shared", "-fPIC"]
    sources = [HERE / "npu.c", tmp_path / "npu_of_c.c"]
    subprocess.run([*words, *sources, "-o", tmp_path / "libekiden_npu.so"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", USES], capture_output=True, text=True, check=False,
        env=os.environ | {"EKIDEN_DRIVERS": str(tmp_path)},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0] == "[2.0, 0.0]", done.stderr
    assert lines[1].startswith("run 'tvmgen_default_npu_main_0") and "npu: no number" in lines[1]
    assert lines[2] == "link executable: 'part': npu: no code of mine"
