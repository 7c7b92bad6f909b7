"""Inference time of models in WebAssembly: Node, Chromium and wasmtime beside onnxruntime-web, on
one thread each.

    python benchmarks/web.py prepare FOLDER MANIFEST CACHE ID ...
    python benchmarks/web.py run FOLDER --ort node_modules/onnxruntime-web [--threads N]
                                        [--chromium] [--wasmtime]

`prepare` compiles models of the benchmark cache for WebAssembly and for this machine, and keeps
inputs and what this machine says to them; it writes the package beside them (ziglang). `run` has
each host do the same: the table says by how much results differ from this machine's, and medians.
Node's flag for relaxed vectors is set where it has one. The peer is a package of npm (`npm install
--ignore-scripts onnxruntime-web`); playwright and wasmtime are packages of PyPI.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import math
import runpy
import shutil
import statistics
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import ekiden
from ekiden.compiler.export.web import RUNTIME_FILE, WEB_TARGETS, write_web_folder

SCRIPT_FOLDER = Path(__file__).parent
ORT_WEB_BUNDLE = "dist/ort.wasm.bundle.min.mjs"
ORT_NODE_MODULE = "dist/ort.node.min.mjs"
RELAXED_SIMD_FLAG = "--experimental-wasm-relaxed-simd"
Row = dict[str, Any]


def prepare_models(folder: Path, manifest: Path, cache: Path, names: Sequence[str]) -> None:
    """Compile, run on this machine, and save everything a host needs."""
    tools = runpy.run_path(str(manifest.parent / "fetch_models.py"))
    entries = {
        manifest_entry["id"]: manifest_entry for manifest_entry in tools["load"](str(manifest))
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        entry = entries[name]
        path = tools["fetch"]([entry], str(cache))[name]
        model = tools["prepare"](entry, path, str(cache))
        feed = tools["make_inputs"](entry, entry["cases"][0])
        artifact = folder / f"{name}.eki"
        ekiden.export(model, artifact, list(WEB_TARGETS))
        exe = ekiden.compile(model)
        result = exe(*(feed[model_input.name] for model_input in exe.inputs))
        results = result if isinstance(result, tuple) else (result,)
        arrays = [np.asarray(output) for output in results]
        for what, array_group in (("in", list(feed.values())), ("out", arrays)):
            for at, array in enumerate(array_group):
                array.tofile(folder / f"{name}.{what}{at}")
        about = {
            "inputs": [_describe_array(key, value) for key, value in feed.items()],
            "outputs": [_describe_array("", array_out) for array_out in arrays],
        }
        (folder / f"{name}.json").write_text(json.dumps(about))
        shutil.copyfile(model, folder / f"{name}.onnx")
        write_web_folder(artifact.read_bytes(), folder / "site")
        print(f"{name}: {artifact.stat().st_size / 1e6:.1f} MB", flush=True)
    shutil.copyfile(SCRIPT_FOLDER / "web_measure.js", folder / "site" / "web_measure.js")
    (folder / "page.html").write_text("<!doctype html><link rel=icon href='data:,'>")


def _describe_array(name: str, array: np.ndarray[Any, Any]) -> Row:
    return {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}


def run_in_node(folder: Path, order: Row) -> Row:
    """Measure in Node."""
    program = f"""
      import {{readFileSync}} from 'node:fs';
      import {{measure}} from '{folder}/site/web_measure.js';
      const read = (name) => new Uint8Array(readFileSync(`{folder}/${{name}}`));
      console.log(JSON.stringify(await measure({json.dumps(order)}, read)));
    """
    has = (
        subprocess.run(["node", RELAXED_SIMD_FLAG, "-e", "0"], capture_output=True).returncode == 0
    )
    written = folder / "measure.mjs"  # workers of the peer are refused beside a program of -e
    written.write_text(program)
    done = subprocess.run(
        ["node", *([RELAXED_SIMD_FLAG] if has else []), str(written)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(f"web: node: {order}: {done.stderr[-2000:]}")
    figures: Row = json.loads(done.stdout.splitlines()[-1])
    return figures


class _IsolatedHandler(http.server.SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        """Add the headers that let a page share memory between threads."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def open_chromium(folder: Path) -> Iterator[Any]:
    """Open a page of headless Chromium, with the folder served."""
    handler = functools.partial(_IsolatedHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with import_module("playwright.sync_api").sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/page.html")
        yield page
        browser.close()
    server.shutdown()


def run_in_page(page: Any, order: Row) -> Row:  # noqa: ANN401
    """Measure in a page."""
    figures: Row = page.evaluate(
        """async (order) => {
          const {measure} = await import('/site/web_measure.js');
          const bytes = async (name) => (await fetch(`/${name}`)).arrayBuffer();
          const read = async (name) => new Uint8Array(await bytes(name));
          return measure(order, read);
        }""",
        order,
    )
    return figures


def run_in_wasmtime(folder: Path, name: str) -> Row:
    """Measure in wasmtime: its results and minimum time."""
    run_model = import_module("web_wasmtime").run_model
    about = json.loads((folder / f"{name}.json").read_text())

    def load_arrays(what: str, rows: Sequence[Row]) -> list[np.ndarray[Any, Any]]:
        files = [folder / f"{name}.{what}{at}" for at in range(len(rows))]
        return [
            np.fromfile(f, r["dtype"]).reshape(r["shape"]) for f, r in zip(files, rows, strict=True)
        ]

    names = [row["name"] for row in about["inputs"]]
    inputs = dict(zip(names, load_arrays("in", about["inputs"]), strict=True))
    runtime, artifact = (folder / "site" / RUNTIME_FILE), folder / f"{name}.eki"
    outputs, min_ms = run_model(runtime.read_bytes(), artifact.read_bytes(), inputs)
    worst = 0.0
    for actual, expected in zip(outputs, load_arrays("out", about["outputs"]), strict=True):
        top = max(1.0, float(np.abs(expected).max(initial=0)))
        by = np.abs(actual.astype(float) - expected.astype(float)).max(initial=0)
        worst = max(worst, float(by) / top)
    return {"median": min_ms, "difference": worst}


def print_web_table(folder: Path, options: argparse.Namespace) -> None:
    """Print the table."""
    names = options.only or sorted(path.stem for path in folder.glob("*.json"))
    ort = Path(options.ort).resolve() if options.ort else Path()
    ratios: dict[str, list[float]] = {"node": [], "page": []}
    hosts = ("node", *(("page",) if options.chromium else ()))
    print(
        f"{'model':24} {'host':9} {'ekiden ms':>10} {'ort ms':>10} {'ratio':>6} {'difference':>11}"
    )
    with open_chromium(folder) if options.chromium else _null_page() as page:
        if options.ort and options.chromium and not (folder / "ort").exists():
            shutil.copytree(ort / "dist", folder / "ort" / "dist")
        for name in names:
            for host in hosts:
                where = f"{folder}/site" if host == "node" else "/site"
                peer = str(ort / ORT_NODE_MODULE) if host == "node" else f"/ort/{ORT_WEB_BUNDLE}"
                clock = "cpu" if options.cpu and host == "node" else "wall"
                order = {"id": name, "budget": options.budget, "threads": options.threads,
                         "clock": clock}  # fmt: skip
                rows = []
                for engine, url in (("ekiden", where), ("onnxruntime", peer)):
                    if engine == "ekiden" or options.ort:
                        page_order = {**order, "engine": engine, "url": url}
                        rows.append(run_in_page(page, page_order) if page and host == "page"
                                    else run_in_node(folder, page_order))  # fmt: skip
                own, ort_median = rows[0], rows[1]["median"] if options.ort else math.nan
                ratios[host].append(ort_median / own["median"])
                _print_row(name, host, own, ort_median)
            if options.wasmtime:
                _print_row(name, "wasmtime", run_in_wasmtime(folder, name), math.nan)
    for host in hosts if options.ort else ():
        mean = statistics.geometric_mean(ratios[host])
        print(f"{host}: {mean:.2f} times onnxruntime-web, geometric mean of {len(ratios[host])}")


def _print_row(name: str, host: str, row: Row, ort_median: float) -> None:
    """Print a row."""
    ratio = ort_median / row["median"]
    numbers = f"{row['median']:10.2f} {ort_median:10.2f} {ratio:6.2f} {row['difference']:11.1e}"
    print(f"{name:24} {host:9} {numbers}", flush=True)


@contextmanager
def _null_page() -> Iterator[None]:
    yield None


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("rest", nargs="*", help="of prepare: manifest, cache, names of models")
    parser.add_argument("--ort", help="the folder of the package onnxruntime-web")
    parser.add_argument("--only", action="append", help="one of the models")
    parser.add_argument("--budget", type=int, default=1000, help="milliseconds for each")
    parser.add_argument("--threads", type=int, default=1, help="of both engines")
    parser.add_argument("--cpu", action="store_true", help="in Node, time of the processor")
    parser.add_argument("--chromium", action="store_true")
    parser.add_argument("--wasmtime", action="store_true")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.what == "run":
        return print_web_table(folder, options)
    manifest, cache, *names = options.rest
    return prepare_models(folder, Path(manifest), Path(cache), names)


if __name__ == "__main__":
    main()
