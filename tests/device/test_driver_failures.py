"""Driver failures are errors; the process and other devices continue."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.cli import main
from ekiden.codegen.device import DeviceKernel, pack_kernels, unpack_kernels
from ekiden.ir.module import IRModule
from ekiden.runtime import Device
from ekiden.runtime.errors import DeviceError, InternalError, LoadError

CODE = b"__kernel void f(__global char *p, const long at) { ((__global float *)(p + at))[0] = 2; }"


def kernel(code: bytes = CODE) -> DeviceKernel:
    return DeviceKernel("f", 4, "opencl", "b", code)


def called(result: DeviceKernel, there: runtime.Tensor) -> None:
    """One block of one thread on the device of a tensor."""
    module = runtime.load_device_code(pack_kernels([result]))
    module[result.name](there.device.id, 1, 1, 1, 1, 1, 1, there)


def program() -> IRModule:
    x = relay.var("x", shape=(3,))
    return IRModule.from_expr(relay.Function([x], relay.add(x, relay.const(1.0))))


def test_device_kernels_serialize_round_trip() -> None:
    inputs = [kernel(), DeviceKernel("g", 2, "cuda", "bl", b"\0\xff", (("ValueError", "%lld"),))]
    data = pack_kernels(inputs)
    assert unpack_kernels(data) == inputs
    assert runtime.load_device_code(data).names() == ["f", "g"]
    for cut in range(len(data)):
        with pytest.raises(LoadError):
            runtime.load_device_code(data[:cut])
    with pytest.raises(LoadError):
        runtime.load_device_code(data + b"\0")


def test_device_works_after_failures(opencl: Device) -> None:
    there = runtime.nd.array(np.zeros(1, "float32"), opencl)
    with pytest.raises(
        DeviceError, match=r"kernel 'f': line 1 \(__kernel .*\): the OpenCL compiler"
    ):
        called(kernel(CODE.replace(b"= 2", b"= nothing")), there)
    with pytest.raises(DeviceError, match="of format 'opencl' or 'spirv' expected, got 'ptx'"):
        called(DeviceKernel("f", 4, "ptx", "b", CODE), there)
    with pytest.raises(MemoryError, match="too little memory"):
        runtime.nd.empty((1 << 50,), "float32", opencl)
    with pytest.raises(DeviceError, match=r"opencl\(9\): there is no such device"):
        runtime.nd.empty((1,), "float32", runtime.device("opencl", 9))
    called(kernel(), there)
    assert there.numpy().tolist() == [2.0]
    exe = ekiden.compile(program())
    assert exe(np.ones(3, "float32")).numpy().tolist() == [2.0] * 3


def test_mismatched_kernel_code_is_an_error(opencl: Device) -> None:
    """Each message has the kernel's name, as it is."""
    there = runtime.nd.array(np.zeros(1, "float32"), opencl)
    odd = DeviceKernel('f"%s', 4, "opencl", "b", CODE)
    with pytest.raises(DeviceError, match=r"""kernel 'f"%s': its code has none of that name"""):
        called(odd, there)
    more = kernel(CODE.replace(b"const long at", b"const long at, const long n"))
    with pytest.raises(DeviceError, match="kernel 'f': it takes other arguments than it is given"):
        called(more, there)
    module = runtime.load_device_code(pack_kernels([kernel()]))
    with pytest.raises(DeviceError, match=r"kernel 'f': argument 0, at 0x\w+, is no memory of the"):
        module["f"](0, 1, 1, 1, 1, 1, 1, runtime.tensor(np.zeros(1, "float32")))
    with pytest.raises(InternalError, match="kernel 'f': there is no such device"):
        module["f"](1 << 32, 1, 1, 1, 1, 1, 1, there)
    called(kernel(), there)


FORKED = """
import os, numpy as np
from ekiden import runtime
there = runtime.nd.array(np.ones(3, "float32"), runtime.device("opencl", 0))
child = os.fork()
if child == 0:
    try:
        there.numpy()
    except runtime.errors.DeviceError as error:
        print(error, flush=True)
    del there
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(there.numpy())
"""


def test_device_in_forked_process_is_an_error(opencl: Device) -> None:
    """Where the system's library would wait for threads that are not there."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert re.fullmatch(
        r"opencl\(0\): this process was forked .*: start it afresh .*\n\[1\. 1\. 1\.\]\n",
        ran.stdout,
    )


def test_too_many_threads_per_block_are_refused(opencl: Device) -> None:
    there = runtime.nd.array(np.zeros(1, "float32"), opencl)
    module = runtime.load_device_code(pack_kernels([kernel()]))
    with pytest.raises(DeviceError, match="threads a block, of which this device runs at most"):
        module["f"](0, 1, 1, 1, 1 << 20, 1, 1, there)


def test_missing_driver_says_what_to_install(tmp_path: Path) -> None:
    """Where libOpenCL is not found, and where there is no driver."""
    text = """
import numpy as np, sys
from ekiden import runtime
try:
    runtime.nd.array(np.zeros(1, "float32"), runtime.device(sys.argv[1]))
except runtime.errors.DeviceError as error:
    print(error)
print(runtime.nd.array(np.ones(1, "float32")).numpy(), runtime.device(sys.argv[1]).exist)
"""
    vendors = {**os.environ, "OCL_ICD_VENDORS": str(tmp_path), "EKIDEN_DRIVERS": ""}
    for name, expected in (("opencl", "install"), ("metal", "there is no driver")):
        command = [sys.executable, "-c", text, name]
        ran = subprocess.run(command, capture_output=True, text=True, env=vendors, check=True)
        assert expected in ran.stdout and "[1.] False" in ran.stdout, ran


def test_user_registered_driver_works(other: Device) -> None:
    """Tensors, copies and code on a device that nothing here knows but by its table."""
    data = np.arange(6, dtype="float32").reshape(2, 3)
    there = runtime.nd.array(data, other)
    kernels = [DeviceKernel(f"by_{n}", other.type, "words", "bl", b"times %d" % n) for n in (2, 5)]
    module = runtime.load_device_code(pack_kernels(kernels))
    for kernel_name in ("by_2", "by_5"):
        module[kernel_name](0, 1, 1, 1, 1, 1, 1, there, 6)
    np.testing.assert_array_equal(there.numpy(), data * 10)
    again = there.copyto(runtime.nd.empty((2, 3), "float32", other))
    np.testing.assert_array_equal(again.numpy(), data * 10)
    wrong = DeviceKernel("f", other.type, "words", "bl", b"plus 2")
    with pytest.raises(DeviceError, match="kernel 'f': 'times' expected, got 'plus 2'"):
        runtime.load_device_code(pack_kernels([wrong]))["f"](0, 1, 1, 1, 1, 1, 1, there, 6)
    assert other.exist and not runtime.device("rocm", 1).exist


def test_doctor_lists_devices(
    opencl: Device, other: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what was measured of each; a driver that says nothing of itself too."""
    assert opencl.exist and other.exist
    assert main(["doctor", "--json"]) == 0
    rows = {f["name"]: f["detail"] for f in json.loads(capsys.readouterr().out)["findings"]}
    measured = r"[\d.e+]+ GFLOP/s, [\d.e+-]+ GB/s"
    assert re.fullmatch(measured, rows["speed"])
    assert re.search(rf"opencl\(0\) .*{measured}, a kernel .* us, copies", rows["devices opencl"])
    assert "of which its driver says nothing" in rows["devices rocm"]
    assert main(["doctor", "--json", "--quick"]) == 0
    assert "GFLOP/s" not in capsys.readouterr().out


def test_driver_failure_mid_program_is_an_error(fake_cuda_libraries: Path, tmp_path: Path) -> None:
    """Each failure names the kernel and the model's node; what can go on does."""
    inputs = {
        "LD_LIBRARY_PATH": str(fake_cuda_libraries),
        "EKIDEN_NVRTC": str(fake_cuda_libraries / "libnvrtc.so"),
    }
    command = [sys.executable, str(Path(__file__).parent / "cuda_failures.py")]
    environment = {**os.environ, **inputs, "EKIDEN_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    message = dict(line.split(": ", 1) for line in ran.stdout.splitlines())
    kernel, node = r"kernel 'fused_nn_softmax_\w+'", r"\(in 'main': Softmax 'probs'\)"
    failed = rf"DeviceError: cuda\(0\): {kernel}: the driver failed: "
    assert re.fullmatch(rf"{failed}CUDA_ERROR_INVALID_IMAGE .* {node}", message["build"])
    memory = r"MemoryError: cuda\(0\): allocate \d+ bytes: it has too little memory"
    assert re.fullmatch(rf"{memory} {node}", message["memory"])
    assert re.fullmatch(rf"{failed}CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES .* {node}", message["launch"])
    lost = rf"DeviceError: cuda\(0\): {kernel}: it is lost to this process: "
    assert re.match(rf"{lost}CUDA_ERROR_LAUNCH_FAILED .* in one of the last 2", message["lost"])
    assert re.match(r"DeviceError: cuda\(0\): .* it is lost to this process", message["after lost"])
    fine = ("after build", "after memory", "kept memory", "after launch", "host", "other device")
    for name in fine:
        assert message[name] == "True", name
