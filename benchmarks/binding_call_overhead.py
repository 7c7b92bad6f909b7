"""Call overhead of each language binding with three tensors, and memory growth over many calls.

    python benchmarks/binding_call_overhead.py FOLDER [--calls 1000000] [--npm node_modules]
        [--only NAME]

The model is x * y + z on four numbers, called by position with tensors that are there. Each program
makes a tenth of the calls, then measures the rest: nanoseconds of one, and how much the resident
memory grew. ONNX Runtime's peers are its packages of PyPI and npm (`npm install --ignore-scripts
onnxruntime-node onnxruntime-web`), and its C interface, from the wheel, for the languages of which
no registry has one. A language whose tools are missing is left out by name; programs are built in
FOLDER, for which ziglang compiles the runtime in WebAssembly.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import onnx
from onnx import TensorProto, helper

import ekiden
from ekiden import runtime
from ekiden.compiler.export.web import WEB_TARGETS, write_web_folder

BINDINGS_FOLDER = Path(__file__).parents[1] / "bindings"
LIBRARY_FOLDER = runtime.library_path().resolve().parent
Command = Sequence[str]

PYTHON_HARNESS = """
import sys, time
import numpy as np
RESIDENT = lambda: int(open("/proc/self/statm").read().split()[1]) * 4
def measure(call, calls):
    for _ in range(calls // 10): call()
    before, started = RESIDENT(), time.perf_counter()
    for _ in range(calls - calls // 10): call()
    took = time.perf_counter() - started
    print(took / (calls - calls // 10) * 1e9, RESIDENT() - before)
x, y, z = (np.full(4, v, np.float32) for v in (2, 3, 4))
"""
EKIDEN_PYTHON_CALL = """
from ekiden import runtime
main = runtime.load_module("calls.eki")["main"]
x, y, z = map(runtime.tensor, (x, y, z))
measure(lambda: main(x, y, z), int(sys.argv[1]))
"""
ORT_PYTHON_CALL = """
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession("calls.onnx", options, providers=["CPUExecutionProvider"])
feed = {"x": x, "y": y, "z": z}
measure(lambda: session.run(None, feed), int(sys.argv[1]))
"""
JAVASCRIPT_HARNESS = """
const resident = () => Math.round(process.memoryUsage().rss / 1024);
const [x, y, z] = [2, 3, 4].map((v) => new Float32Array(4).fill(v));
async function measure(call, calls) {
  for (let i = 0; i < calls / 10; i++) await call();
  globalThis.gc();
  const [before, begin] = [resident(), performance.now()];
  for (let i = calls / 10; i < calls; i++) await call();
  const took = performance.now() - begin;
  globalThis.gc();
  console.log(took / (calls - calls / 10) * 1e6, resident() - before);
}
const calls = Number(process.argv[2]);
"""
EKIDEN_NODE_CALL = """
const {Model, Tensor} = require(process.env.EKIDEN_PACKAGE);
const main = Model.load('calls.eki').module.get('main');
const given = [x, y, z].map((data) => new Tensor('float32', [4], data));
measure(() => main.call(...given), calls);
"""
EKIDEN_NODE_ASYNC_CALL = EKIDEN_NODE_CALL.replace("main.call(", "main.callAsync(")
ORT_JAVASCRIPT_CALL = """
const given = (ort) => Object.fromEntries([['x', x], ['y', y], ['z', z]].map(
  ([name, data]) => [name, new ort.Tensor('float32', data, [4])]));
"""
ORT_NODE_CALL = f"""{ORT_JAVASCRIPT_CALL}
const ort = require('onnxruntime-node');
ort.InferenceSession.create('calls.onnx', {{intraOpNumThreads: 1}}).then((session) => {{
  const feed = given(ort);
  return measure(() => session.run(feed), calls);
}});
"""
EKIDEN_WEB_CALL = """
import('./site/index.js').then(async ({init, load, Tensor}) => {
  await init({threads: 1});
  const main = (await load('web.eki')).module.get('main');
  const given = [x, y, z].map((data) => new Tensor('float32', [4], data));
  await measure(() => main.call(...given), calls);
});
"""
ORT_WEB_CALL = f"""{ORT_JAVASCRIPT_CALL}
import(process.env.ORT_WEB).then(async (ort) => {{
  ort.env.wasm.numThreads = 1;
  const file = require('node:fs').readFileSync('calls.onnx');
  const session = await ort.InferenceSession.create(file, {{executionProviders: ['wasm']}});
  const feed = given(ort);
  await measure(() => session.run(feed), calls);
}});
"""
CPP_PROGRAM = r"""
#include <chrono>
#include <cstdio>
#include <ekiden/runtime.hpp>
#include <fstream>
static long resident() {
  long all = 0, here = 0;
  std::ifstream("/proc/self/statm") >> all >> here;
  return here * 4;
}
int main(int, char** argv) {
  long calls = std::atol(argv[1]), warm = calls / 10;
  auto main_ = ekiden::Module::load("calls.eki")["main"];
  auto make = [](float v) {
    auto made = ekiden::Tensor::empty({4}, ekiden::dtype_of<float>());
    for (int i = 0; i < 4; i++) made.data<float>()[i] = v;
    return made;
  };
  auto x = make(2), y = make(3), z = make(4);
  for (long i = 0; i < warm; i++) main_(x, y, z);
  long before = resident();
  auto begin = std::chrono::steady_clock::now();
  for (long i = warm; i < calls; i++) main_(x, y, z);
  std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  std::printf("%f %ld\n", took.count() / (calls - warm), resident() - before);
}
"""
RUST_PROGRAM = r"""
use ekiden::{Module, Tensor, Value};
fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * 4
}
fn main() {
    let calls: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let main = Module::load("calls.eki").unwrap().function("main").unwrap();
    let make = |v: f32| Value::Tensor(Tensor::from_slice(&[v; 4], &[4]).unwrap());
    let given = [make(2.0), make(3.0), make(4.0)];
    for _ in 0..calls / 10 { main.call(&given).unwrap(); }
    let (before, begin) = (resident(), std::time::Instant::now());
    for _ in calls / 10..calls { main.call(&given).unwrap(); }
    let took = begin.elapsed().as_nanos() as f64;
    println!("{} {}", took / (calls - calls / 10) as f64, resident() - before);
}
"""
GO_PROGRAM = r"""
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"ekiden.dev/ekiden"
)

func resident() int {
	text, _ := os.ReadFile("/proc/self/statm")
	pages, _ := strconv.Atoi(strings.Fields(string(text))[1])
	return pages * 4
}

func main() {
	calls, _ := strconv.Atoi(os.Args[1])
	module, err := ekiden.Load("calls.eki")
	if err != nil {
		panic(err)
	}
	function, _ := module.Function("main")
	given := []ekiden.Value{}
	for _, v := range []float32{2, 3, 4} {
		tensor, _ := ekiden.NewTensor([]float32{v, v, v, v}, 4)
		given = append(given, tensor)
	}
	for range calls / 10 {
		function.Call(given...)
	}
	before, begin := resident(), time.Now()
	for range calls - calls/10 {
		if _, err := function.Call(given...); err != nil {
			panic(err)
		}
	}
	took := float64(time.Since(begin).Nanoseconds())
	fmt.Println(took/float64(calls-calls/10), resident()-before)
}
"""
JAVA_PROGRAM = r"""
import dev.ekiden.*;
import java.nio.file.*;

public class Calls {
  static long resident() throws Exception {
    return 4 * Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]);
  }

  public static void main(String[] args) throws Exception {
    long calls = Long.parseLong(args[0]);
    Func main = Model.load(Path.of("calls.eki")).module().get("main");
    Object[] given = new Object[3];
    for (int i = 0; i < 3; i++) given[i] = Tensor.of(new float[] {i + 2, i + 2, i + 2, i + 2}, 4);
    for (long i = 0; i < calls / 10; i++) main.call(given);
    System.gc();
    long before = resident(), begin = System.nanoTime();
    for (long i = calls / 10; i < calls; i++) main.call(given);
    double took = System.nanoTime() - begin;
    System.gc();
    System.out.println(took / (calls - calls / 10) + " " + (resident() - before));
  }
}
"""

ORT_C_PROGRAM = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The functions of OrtApi by their places, which never change: onnxruntime_c_api.h */
enum { ENV = 3, SESSION = 7, RUN = 9, OPTIONS = 10, THREADS = 24, TENSOR = 49, DATA = 51,
       MEMORY = 69, RELEASE_VALUE = 96 };
typedef struct { void **(*api)(uint32_t); const char *(*version)(void); } base;
static void **api;
#define CALL(n, kinds, ...) if (((void *(*)kinds)api[n])(__VA_ARGS__)) exit(2)

static long resident(void) {
  long all = 0, here = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (fscanf(file, "%ld %ld", &all, &here) != 2) exit(3);
  fclose(file);
  return here * 4;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *session, *given[3];

static void call(void) {
  static const char *const names[] = {"x", "y", "z"}, *const results[] = {"r"};
  void *out = NULL;
  CALL(RUN, (void *, void *, const char *const *, void **, size_t, const char *const *, size_t,
             void **), session, NULL, names, given, 3, results, 1, &out);
  float *data;
  CALL(DATA, (void *, float **), out, &data);
  if (data[3] != 10) exit(4);
  ((void (*)(void *))api[RELEASE_VALUE])(out);
}

int main(int argc, char **argv) {
  static float elements[3][4];
  long calls = atol(argv[1]), warm = calls / 10;
  int64_t shape = 4;
  void *env, *options, *memory, *library = dlopen(getenv("ORT_LIBRARY"), RTLD_NOW);
  base *(*get)(void);
  *(void **)&get = dlsym(library, "OrtGetApiBase");
  api = get()->api(16);
  CALL(ENV, (int, const char *, void **), 3, "calls", &env);
  CALL(OPTIONS, (void **), &options);
  CALL(THREADS, (void *, int), options, 1);
  CALL(SESSION, (void *, const char *, void *, void **), env, "calls.onnx", options, &session);
  CALL(MEMORY, (int, int, void **), 0, 0, &memory);
  for (int i = 0; i < 3; i++) {
    for (int k = 0; k < 4; k++) elements[i][k] = (float)(i + 2);
    CALL(TENSOR, (void *, void *, size_t, int64_t *, size_t, int, void **), memory, elements[i], 16,
         &shape, 1, 1, &given[i]);
  }
  for (long i = 0; i < warm; i++) call();
  long before = resident();
  double begin = now();
  for (long i = warm; i < calls; i++) call();
  double took = now() - begin;
  printf("%f %ld\n", took / (double)(calls - warm), resident() - before);
  return argc == 2 ? 0 : 1;
}
"""


@dataclass(frozen=True)
class BindingProgram:
    """Benchmark program of one language binding: the language, the engine called, and a function
    that builds its command.
    """

    language: str
    engine: str
    build: Callable[[Path], tuple[Command, Mapping[str, str]]]


def _make_python_builder(text: str) -> Callable[[Path], tuple[Command, Mapping[str, str]]]:
    return lambda folder: ([sys.executable, "-c", PYTHON_HARNESS + text], {})


def _make_node_builder(text: str, npm: Path) -> Callable[[Path], tuple[Command, Mapping[str, str]]]:
    def build_node(folder: Path) -> tuple[Command, Mapping[str, str]]:
        """Build and return a Node program."""
        addon = folder / "ekiden.node"
        if "EKIDEN_PACKAGE" in text and not addon.exists():
            environment = {**os.environ, "EKIDEN_LIB_DIR": str(LIBRARY_FOLDER)}
            _run_command(
                ["node", str(BINDINGS_FOLDER / "node/build.js"), str(addon)],
                BINDINGS_FOLDER / "node",
                environment,
            )
        (folder / "calls.cjs").write_text(JAVASCRIPT_HARNESS + text)
        return ["node", "--expose-gc", "calls.cjs"], {
            "EKIDEN_PACKAGE": str(BINDINGS_FOLDER / "node"),
            "EKIDEN_NODE_ADDON": str(addon),
            "NODE_PATH": str(npm),
            "ORT_WEB": str(npm / "onnxruntime-web/dist/ort.node.min.mjs"),
        }

    return build_node


def _build_cpp(folder: Path) -> tuple[Command, Mapping[str, str]]:
    (folder / "calls.cpp").write_text(CPP_PROGRAM)
    library = [str(LIBRARY_FOLDER / "libekiden_runtime.so"), f"-Wl,-rpath,{LIBRARY_FOLDER}"]
    words = ["c++", "-O2", "-std=c++17", f"-I{runtime.include_dir()}", "calls.cpp", *library]
    _run_command([*words, "-o", "calls_cpp"], folder, os.environ)
    return ["./calls_cpp"], {}


def _build_ort_c(folder: Path) -> tuple[Command, Mapping[str, str]]:
    """Build a C program that calls ONNX Runtime."""
    (folder / "calls_ort.c").write_text(ORT_C_PROGRAM)
    _run_command(["cc", "-O2", "calls_ort.c", "-ldl", "-o", "calls_ort"], folder, os.environ)
    library_dir = Path(str(find_spec("onnxruntime").submodule_search_locations[0])) / "capi"  # type: ignore[union-attr, index]
    library = next(iter(sorted(library_dir.glob("libonnxruntime.so*"))), None)
    if library is None:
        raise FileNotFoundError(f"{library_dir} has no libonnxruntime.so")
    return ["./calls_ort"], {"ORT_LIBRARY": str(library)}


def _build_rust(folder: Path) -> tuple[Command, Mapping[str, str]]:
    """Build the Rust program."""
    home = folder / "rust"
    (home / "src").mkdir(parents=True, exist_ok=True)
    (home / "src/main.rs").write_text(RUST_PROGRAM)
    (home / "Cargo.toml").write_text(
        '[package]\nname = "calls"\nversion = "0.1.0"\nedition = "2021"\n\n'
        f'[dependencies]\nekiden = {{ path = "{BINDINGS_FOLDER / "rust"}" }}\n'
    )
    environment = {**os.environ, "EKIDEN_LIB_DIR": str(LIBRARY_FOLDER)}
    _run_command(["cargo", "build", "--release", "--offline", "--quiet"], home, environment)
    return [str(home / "target/release/calls")], {"LD_LIBRARY_PATH": str(LIBRARY_FOLDER)}


def _build_go(folder: Path) -> tuple[Command, Mapping[str, str]]:
    """Build the Go program."""
    home = folder / "go"
    home.mkdir(exist_ok=True)
    (home / "main.go").write_text(GO_PROGRAM)
    (home / "go.mod").write_text(
        "module calls\n\ngo 1.23\n\nrequire ekiden.dev/ekiden v0.0.0\n\n"
        f"replace ekiden.dev/ekiden => {BINDINGS_FOLDER / 'go'}\n"
    )
    environment = {
        **os.environ,
        "CGO_CFLAGS": f"-I{runtime.include_dir()} -O2",
        "CGO_LDFLAGS": f"-L{LIBRARY_FOLDER} -Wl,-rpath,{LIBRARY_FOLDER}",
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
    }
    _run_command(["go", "build", "-o", "calls", "."], home, environment)
    return [str(home / "calls")], {}


def _build_java(folder: Path) -> tuple[Command, Mapping[str, str]]:
    (folder / "Calls.java").write_text(JAVA_PROGRAM)
    sources = [*map(str, (BINDINGS_FOLDER / "java/src").rglob("*.java")), "Calls.java"]
    home = os.environ.get("JAVA_HOME")
    position = f"{home}/bin/" if home else ""
    _run_command([f"{position}javac", "-d", "classes", *sources], folder, os.environ)
    heap = ["-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch"]  # resident before: what grows is ours
    options = [*heap, "--enable-native-access=ALL-UNNAMED"]
    command = [f"{position}java", *options, "-cp", "classes", "Calls"]
    return command, {"EKIDEN_LIB_DIR": str(LIBRARY_FOLDER)}


def binding_programs(npm: Path) -> list[BindingProgram]:
    """Return all benchmark programs, each followed by the peer engines in the same language."""
    return [
        BindingProgram("python", "ekiden", _make_python_builder(EKIDEN_PYTHON_CALL)),
        BindingProgram("python", "onnxruntime", _make_python_builder(ORT_PYTHON_CALL)),
        BindingProgram("node", "ekiden", _make_node_builder(EKIDEN_NODE_CALL, npm)),
        BindingProgram("node, promises", "ekiden", _make_node_builder(EKIDEN_NODE_ASYNC_CALL, npm)),
        BindingProgram("node, promises", "onnxruntime", _make_node_builder(ORT_NODE_CALL, npm)),
        BindingProgram("web", "ekiden", _make_node_builder(EKIDEN_WEB_CALL, npm)),
        BindingProgram("web", "onnxruntime", _make_node_builder(ORT_WEB_CALL, npm)),
        BindingProgram("c++", "ekiden", _build_cpp),
        BindingProgram("c", "onnxruntime", _build_ort_c),
        BindingProgram("rust", "ekiden", _build_rust),
        BindingProgram("go", "ekiden", _build_go),
        BindingProgram("java", "ekiden", _build_java),
    ]


def _run_command(command: Command, folder: Path, variables: Mapping[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr)[-1500:])
    return done.stdout


def write_models(folder: Path) -> None:
    """Write the model as ONNX, and compiled for this machine and for WebAssembly."""
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xyzr"]
    nodes = [helper.make_node("Mul", ["x", "y"], ["p"]), helper.make_node("Add", ["p", "z"], ["r"])]
    graph = helper.make_graph(nodes, "calls", sides[:3], sides[3:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "calls.onnx")
    ekiden.export(str(folder / "calls.onnx"), folder / "calls.eki")
    ekiden.export(str(folder / "calls.onnx"), folder / "web.eki", list(WEB_TARGETS))
    write_web_folder((folder / "web.eki").read_bytes(), folder / "site")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--npm", type=Path, default=Path("node_modules"))
    parser.add_argument("--only", action="append")
    parser.add_argument("--build", action="store_true", help="build the programs, and run none")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "site").exists():
        write_models(folder)
    print(f"{'language':16} {'engine':12} {'ns a call':>10} {'KB grown':>9}")
    for row in binding_programs(options.npm.resolve()):
        if options.only and row.language not in options.only:
            continue
        try:
            command, more = row.build(folder)
            if options.build:
                continue
            output = _run_command([*command, str(options.calls)], folder, {**os.environ, **more})
            nanoseconds, grown = output.split()[-2:]
            print(f"{row.language:16} {row.engine:12} {float(nanoseconds):10.0f} {grown:>9}",
                  flush=True)  # fmt: skip
        except (FileNotFoundError, RuntimeError) as error:
            print(f"{row.language:16} {row.engine:12} left out: {error}", flush=True)


if __name__ == "__main__":
    main()
