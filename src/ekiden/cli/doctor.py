"""`ekiden doctor`: check the installation, and print how to fix what fails.

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
from ekiden.compiler.machine_peak import measure_peak
from ekiden.runtime.files import make_private_folder
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

FAILED_CHECK_EXIT_STATUS = 3


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. state: "ok", "missing" for something optional, or "broken"."""

    name: str
    state: str
    detail: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="skip the measurements")


def run(options: argparse.Namespace) -> int:
    """Run every check and print the results."""
    findings = [_run_check(name, check, mend) for name, check, mend in SYSTEM_CHECKS]
    if not options.quick:
        findings.append(_run_check("speed", _check_cpu_performance, ""))
    present_kinds = [name for name in CODEGEN_ONLY_DEVICES if runtime.device(name).exist]
    findings += [
        _check_device_kind(name, not options.quick) for name in (*TARGET_DEVICES, *present_kinds)
    ]
    findings += [_check_optional_package(name, why) for name, why in OPTIONAL_PACKAGES.items()]
    is_sound = all(f.state != "broken" for f in findings)
    if options.json:
        report = {"works": is_sound, "findings": [asdict(f) for f in findings]}
        print(json.dumps(report, indent=1))
    else:
        for finding in findings:
            print(f"{finding.state:8} {finding.name:20} {finding.detail}")
            if finding.state != "ok" and finding.fix:
                print(f"{'':8} {'':20} {finding.fix}")
    return 0 if is_sound else FAILED_CHECK_EXIT_STATUS


def _run_check(name: str, check: Callable[[], str], mend: str) -> CheckResult:
    """Run one check and return its result, with a hint if it fails."""
    try:
        return CheckResult(name, "ok", check())
    except Exception as error:  # whatever is wrong is what is asked for
        reason = str(error).partition("\n")[0]
        state = "missing" if name in OPTIONAL_CHECK_NAMES else "broken"
        return CheckResult(name, state, f"{type(error).__name__}: {reason}", mend)


DEVICE_ATTRIBUTES = {"NAME": 0, "DRIVER": 2, "VERSION": 3, "ABILITIES": 4, "MEMORY": 9}
"""The numbers of ek_device_attribute in runtime.h."""
TARGET_DEVICES = ("opencl", "cuda", "vulkan")
"""Kinds of devices that Ekiden has drivers of."""
CODEGEN_ONLY_DEVICES = ("metal", "rocm", "webgpu")
"""Kinds that somebody else may have one of."""


def _check_device_kind(name: str, is_measured: bool) -> CheckResult:
    """Check the drivers, capabilities and attainable performance of the devices of one kind; if
    there are none, name what to install.
    """
    first = runtime.device(name)
    try:
        count = int(str(runtime.get_global_func("ek.device.count")(first)))
    except runtime.errors.DeviceError as error:
        reason = str(error).removeprefix("ek.device.count: ")
        return CheckResult(f"devices {name}", "missing", reason)
    devices = [runtime.device(name, number) for number in range(count)]
    rows = [
        _describe_device(one_device) + (_measure_device_peak(one_device) if is_measured else "")
        for one_device in devices
    ]
    return CheckResult(f"devices {name}", "ok", "; ".join(rows))


def _describe_device(device: runtime.Device) -> str:
    """Describe a device by the attributes that its driver reports."""
    query = runtime.get_global_func("ek.device.attribute")
    try:
        facts = {name: str(query(device, number)) for name, number in DEVICE_ATTRIBUTES.items()}
    except runtime.errors.DeviceError as error:
        return f"{device}, of which its driver says nothing ({error})"
    memory = f"{int(facts['MEMORY']) / 2**30:.1f} GiB"
    return f"{device} {facts['NAME']}, {facts['DRIVER']}, {facts['VERSION']}, {memory}, " + (
        facts["ABILITIES"] or "no extensions"
    )


def _measure_device_peak(device: runtime.Device) -> str:
    """Return the measured peak performance of a device, or why it was not measured."""
    try:
        return f", {measure_device(device)}"
    except (runtime.errors.EkidenError, ValueError, MemoryError) as error:
        return f", not measured ({error})"


def _check_cpu_performance() -> str:
    peak = measure_peak()
    return f"{peak.flops / 1e9:.3g} GFLOP/s, {peak.bandwidth / 1e9:.3g} GB/s"


def _check_optional_package(name: str, why: str) -> CheckResult:
    """Check whether an optional Python package can be imported."""
    if importlib.util.find_spec(name) is None:
        return CheckResult(f"package {name}", "missing", why, f"pip install {name}")
    try:
        installed = version(name)
    except PackageNotFoundError:
        installed = "of unknown version"
    return CheckResult(f"package {name}", "ok", installed)


def _check_system() -> str:
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def _check_package_conflicts() -> str:
    """Check that ekiden and ekiden-runtime are not both installed: their files overwrite each
    other.
    """
    try:
        small = version("ekiden-runtime")
    except PackageNotFoundError:
        return f"ekiden {ekiden.__version__}"
    # Both wheels contain ekiden/runtime: removing either breaks the other.
    raise RuntimeError(f"ekiden and ekiden-runtime {small} are both installed, over each other")


def _check_cpu() -> str:
    target = Target.parse("llvm")
    return f"{target.cpu}, {target.vector_bits}-bit vectors, {target.cores} cores"


def _check_runtime_library() -> str:
    tensor = runtime.tensor(np.arange(3))
    assert tensor.shape == (3,)
    return f"{runtime.num_threads()} threads"


def _check_kernel_compilation() -> str:
    """Check that a kernel can be compiled and run."""
    x = relay.var("x", shape=(4,))
    executable = ekiden.compile(ekiden.IRModule.from_expr(relay.Function((x,), x + x)))
    result = executable(np.ones(4, np.float32))
    assert isinstance(result, runtime.Tensor) and result.numpy().tolist() == [2.0] * 4
    return f"ekiden {version('ekiden')}, llvmlite {version('llvmlite')}: a kernel ran"


def _check_compile_cache() -> str:
    folder = KernelCache.default().folder
    if folder is None:
        return "turned off"
    make_private_folder(folder)
    # Creating a file is the only sure test of write permission.
    with tempfile.NamedTemporaryFile(dir=folder):
        free = shutil.disk_usage(folder).free
    return f"{folder}, {free / 2**30:.1f} GiB free"


def _check_library_export() -> str:
    x = relay.var("x", shape=(1,))
    executable = ekiden.compile(ekiden.IRModule.from_expr(relay.Function((x,), x + x)))
    with tempfile.TemporaryDirectory() as where:
        export_library(executable.raw, Path(where, "model.so"))
    return "a shared library was made"


SYSTEM_CHECKS: tuple[tuple[str, Callable[[], str], str], ...] = (
    ("system", _check_system, ""),
    ("processor", _check_cpu, "name the processor: ekiden compile --target 'llvm -mcpu=...'"),
    ("runtime", _check_runtime_library, "pip install --force-reinstall ekiden"),
    ("compiler", _check_kernel_compilation, "pip install --force-reinstall ekiden llvmlite"),
    (
        "packages",
        _check_package_conflicts,
        "pip uninstall ekiden-runtime; pip install --force-reinstall ekiden",
    ),
    ("kernel cache", _check_compile_cache, "export EKIDEN_CACHE_DIR=/a/folder/you/may/write"),
    ("export library", _check_library_export, "install a C compiler, or: pip install ziglang"),
)
OPTIONAL_CHECK_NAMES = ("export library", "speed")
"""What only some need: its lack breaks nothing else."""
OPTIONAL_PACKAGES = {
    "onnx": "to import ONNX models",
    "onnxruntime": "for ekiden verify against it",
    "torch": "to export PyTorch models",
    "rich": "for a progress bar",
    "ziglang": "to make libraries without a C compiler",
}
"""Optional package -> what it is for."""
