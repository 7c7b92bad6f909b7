"""Export in TVM's Model Library Format (version 7) for microTVM tools.

metadata.json                  the memory, the entry points, the target
codegen/host/src/*.c           the program, its kernels, its constants
codegen/host/include/*.h       its interface
parameters/NAME.params         the constants, as TVM saves parameters
src/relay.txt                  what was imported, as Relay
"""

from __future__ import annotations

import io
import json
import tarfile
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, cast

from ekiden import runtime
from ekiden.backend.crt.c_emitter import emit_files, tvmgen_prefix
from ekiden.backend.crt.interfaces import interfaces_of
from ekiden.backend.crt.micro_module import MicroModule, MicroTensor
from ekiden.compiler.export.micro import MicroProgram
from ekiden.runtime.files import PathName, Writer, check_folder, write_atomic

MLF_VERSION = 7
DLPACK_CPU_DEVICE_TYPE = 1
"""DLPack device type of the CPU, the only device."""


def build_metadata(module: MicroModule) -> dict[str, Any]:
    """Build the content of metadata.json."""
    return {"version": MLF_VERSION, "modules": {module.name: _module_metadata(module)}}


def _module_metadata(module: MicroModule) -> dict[str, Any]:
    main, *interfaces = interfaces_of(module)
    return {
        "model_name": module.name,
        "export_datetime": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
        "style": "full-model",
        "target": [str(module.target)],
        "executors": ["aot"],
        "memory": {"functions": _memory_use(module)},
        "external_dependencies": [],
        "entry_points": {
            "run": f"{main.prefix}_run",
            "model": f"ekiden_{main.name}",
            "functions": {
                entry.name: {"run": f"{interface.prefix}_run", "model": f"ekiden_{interface.name}"}
                for entry, interface in zip(module.entry_points, interfaces, strict=True)
            },
        },
        "producer": f"ekiden {version('ekiden')}",
    }


def _memory_use(module: MicroModule) -> dict[str, Any]:
    """Return the memory use of the program, and of each kernel."""
    used = sum(t.nbytes for t in (*module.inputs, *module.outputs))
    main: dict[str, Any] = {
        "device": DLPACK_CPU_DEVICE_TYPE,
        "inputs": {t.name: _describe_tensor(t) for t in module.inputs},
        "outputs": {t.name: _describe_tensor(t) for t in module.outputs},
        "io_size_bytes": used,
        "workspace_size_bytes": module.workspace,
        "constants_size_bytes": module.constant_bytes,
    }
    if not module.has_own_memory:
        main["workspace_pools"] = {
            p.name: {"size_bytes": p.used, "limit_bytes": p.limit} for p in module.pools
        }
    operators = [
        {
            "function_name": k.name,
            "workspace": [{"device": DLPACK_CPU_DEVICE_TYPE, "workspace_size_bytes": k.workspace}],
        }
        for k in module.kernels
    ]
    return {"main": [main], "operator_functions": operators}


def _describe_tensor(tensor: MicroTensor) -> dict[str, object]:
    return {"size": tensor.nbytes, "dtype": tensor.dtype, "shape": list(tensor.shape)}


def library_files(program: MicroProgram) -> dict[str, bytes]:
    """Return the archive's files: contents by path."""
    module = program.module
    names = {
        f"{tvmgen_prefix(module.name)}_constant_{n}": a for n, a in enumerate(module.constants)
    }
    params = {name: runtime.tensor(array) for name, array in names.items()}
    texts = {f"codegen/host/{path}": text for path, text in emit_files(module).items()}
    texts["metadata.json"] = json.dumps(build_metadata(module), indent=2, sort_keys=True) + "\n"
    texts["src/relay.txt"] = program.relay
    contents = {path: text.encode() for path, text in texts.items()}
    contents[f"parameters/{module.name}.params"] = bytes(runtime.save_param_dict(params))
    return dict(sorted(contents.items()))


def export_model_library_format(program: MicroProgram, file_name: PathName) -> PathName:
    """Write a program in Model Library Format and return the path. Raises ExportError where the
    folder does not exist. TVM: `tvm.micro.export_model_library_format`.
    """
    files = library_files(program)

    def write_tar(file: Writer) -> None:
        """Write the files under `./`, as TVM's archives have them."""
        with tarfile.open(fileobj=cast(Any, file), mode="w|", format=tarfile.GNU_FORMAT) as archive:
            for path, data in files.items():
                about = tarfile.TarInfo(f"./{path}")
                about.size = len(data)
                archive.addfile(about, io.BytesIO(data))

    write_atomic(check_folder(file_name), write_tar)
    return file_name


__all__ = ["MLF_VERSION", "build_metadata", "export_model_library_format", "library_files"]
