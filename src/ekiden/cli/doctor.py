"""`ekiden doctor`: what works on this machine, and what would mend what does not.

Exit codes: 0 everything that is needed works, 2 wrong usage, 3 something that is needed does not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

import ekiden
from ekiden import relay, runtime
from ekiden.codegen.cache import KernelCache
from ekiden.compiler.device_peak import measure_device
from ekiden.compiler.export.library import export_library
from ekiden.compiler.peak import measure_peak
from ekiden.runtime.files import make_own_folder
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

BROKEN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried. state: "ok", "missing" for what is optional, "broken"."""

    name: str
    state: str
    detail: str
    mend: str = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="measure nothing")


def run(options: argparse.Namespace) -> int:
    """Try everything and print what works."""
    findings = [_tried(name, check, mend) for name, check, mend in CHECKS]
    if not options.quick:
        findings.append(_tried("speed", _speed, ""))
    others = [name for name in OTHERS if runtime.device(name).exist]
    findings += [_device(name, not options.quick) for name in (*DEVICES, *others)]
    findings += [_package(name, why) for name, why in PACKAGES.items()]
    is_sound = all(f.state != "broken" for f in findings)
    if options.json:
        made = {"works": is_sound, "findings": [asdict(f) for f in findings]}
        print(json.dumps(made, indent=1))
    else:
        for each in findings:
            print(f"{each.state:8} {each.name:20} {each.detail}")
            if each.state != "ok" and each.mend:
                print(f"{'':8} {'':20} {each.mend}")
    return 0 if is_sound else BROKEN


def _tried(name: str, check: Callable[[], str], mend: str) -> Finding:
    try:
        return Finding(name, "ok", check())
    except Exception as error:  # whatever is wrong is what is asked for
        reason = str(error).partition("\n")[0]
        state = "missing" if name in OPTIONAL else "broken"
        return Finding(name, state, f"{type(error).__name__}: {reason}", mend)


ATTRIBUTES = {"NAME": 0, "DRIVER": 2, "VERSION": 3, "ABILITIES": 4, "MEMORY": 9}
"""The numbers of ek_device_attribute in runtime.h."""
DEVICES = ("opencl", "cuda", "vulkan")
"""Kinds of devices that Ekiden has drivers of."""
OTHERS = ("metal", "rocm", "webgpu")
"""Kinds that somebody else may have one of."""


def _device(name: str, is_measured: bool) -> Finding:
    """The devices of a kind, their drivers, what they can do and reach; what is to be installed if
    there are none."""
    first = runtime.device(name)
    try:
        count = int(str(runtime.get_global_func("ek.device.count")(first)))
    except runtime.errors.DeviceError as error:
        reason = str(error).removeprefix("ek.device.count: ")
        return Finding(f"devices {name}", "missing", reason)
    found = [runtime.device(name, number) for number in range(count)]
    rows = [_about(each) + (_reached(each) if is_measured else "") for each in found]
    return Finding(f"devices {name}", "ok", "; ".join(rows))


def _about(device: runtime.Device) -> str:
    """What a device says of itself; a driver of somebody else need not say anything."""
    asked = runtime.get_global_func("ek.device.attribute")
    try:
        found = {name: str(asked(device, number)) for name, number in ATTRIBUTES.items()}
    except runtime.errors.DeviceError as error:
        return f"{device}, of which its driver says nothing ({error})"
    memory = f"{int(found['MEMORY']) / 2**30:.1f} GiB"
    return f"{device} {found['NAME']}, {found['DRIVER']}, {found['VERSION']}, {memory}, " + (
        found["ABILITIES"] or "no extensions"
    )


def _reached(device: runtime.Device) -> str:
    """What was measured of a device, or why nothing was."""
    try:
        return f", {measure_device(device)}"
    except (runtime.errors.EkidenError, ValueError, MemoryError) as error:
        return f", not measured ({error})"


def _speed() -> str:
    peak = measure_peak()
    return f"{peak.flops / 1e9:.3g} GFLOP/s, {peak.bandwidth / 1e9:.3g} GB/s"


def _package(name: str, why: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(f"package {name}", "missing", why, f"pip install {name}")
    try:
        found = version(name)
    except PackageNotFoundError:
        found = "of unknown version"
    return Finding(f"package {name}", "ok", found)


def _system() -> str:
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def _packages() -> str:
    """The packages ekiden and ekiden-runtime have the same files: the later one overwrote some."""
    try:
        small = version("ekiden-runtime")
    except PackageNotFoundError:
        return f"ekiden {ekiden.__version__}"
    raise RuntimeError(f"ekiden and ekiden-runtime {small} are both installed, over each other")


def _processor() -> str:
    target = Target.parse("llvm")
    return f"{target.cpu}, {target.vector_bits}-bit vectors, {target.cores} cores"


def _runtime() -> str:
    tensor = runtime.tensor(np.arange(3))
    assert tensor.shape == (3,)
    return f"{runtime.num_threads()} threads"


def _compiler() -> str:
    x = relay.var("x", shape=(4,))
    executable = ekiden.compile(ekiden.IRModule.from_expr(relay.Function((x,), x + x)))
    found = executable(np.ones(4, np.float32))
    assert isinstance(found, runtime.Tensor) and found.numpy().tolist() == [2.0] * 4
    return f"ekiden {version('ekiden')}, llvmlite {version('llvmlite')}: a kernel ran"


def _cache() -> str:
    folder = KernelCache.default().folder
    if folder is None:
        return "turned off"
    make_own_folder(folder)
    with tempfile.NamedTemporaryFile(dir=folder):
        free = shutil.disk_usage(folder).free
    return f"{folder}, {free / 2**30:.1f} GiB free"


def _export() -> str:
    x = relay.var("x", shape=(1,))
    executable = ekiden.compile(ekiden.IRModule.from_expr(relay.Function((x,), x + x)))
    with tempfile.TemporaryDirectory() as where:
        export_library(executable.raw, Path(where, "model.so"))
    return "a shared library was made"


CHECKS: tuple[tuple[str, Callable[[], str], str], ...] = (
    ("system", _system, ""),
    ("processor", _processor, "name the processor: ekiden compile --target 'llvm -mcpu=...'"),
    ("runtime", _runtime, "pip install --force-reinstall ekiden"),
    ("compiler", _compiler, "pip install --force-reinstall ekiden llvmlite"),
    ("packages", _packages, "pip uninstall ekiden-runtime; pip install --force-reinstall ekiden"),
    ("kernel cache", _cache, "export EKIDEN_CACHE_DIR=/a/folder/you/may/write"),
    ("export library", _export, "install a C compiler, or: pip install ziglang"),
)
OPTIONAL = ("export library", "speed")
"""What only some need: its lack breaks nothing else."""
PACKAGES = {
    "onnx": "to import ONNX models",
    "onnxruntime": "for ekiden verify against it",
    "torch": "to export PyTorch models",
    "rich": "for a progress bar",
    "ziglang": "to make libraries without a C compiler",
}
"""Optional package -> what it is for."""
