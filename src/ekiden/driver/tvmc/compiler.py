"""Implementation of `tvmc compile`, which writes a package of a model."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ekiden.autotvm.record import load_from_file
from ekiden.compiler.export.model_library import export_model_library_format
from ekiden.compiler.options import use_records
from ekiden.contrib.cc import cross_compiler
from ekiden.driver.tvmc.composite_target import get_codegen_by_target
from ekiden.driver.tvmc.model import TVMCModel, TVMCPackage
from ekiden.driver.tvmc.pass_config import parse_configs
from ekiden.driver.tvmc.target import target_from_cli
from ekiden.driver.tvmc.transform import apply_graph_transforms
from ekiden.ir.instrument import PassInstrument, PassPrintingInstrument, PassTimingInstrument
from ekiden.ir.ir_dump import DumpIR
from ekiden.ir.memory_pools import WorkspaceMemoryPools
from ekiden.ir.pass_context import PassContext
from ekiden.relay.backend import Executor, Runtime
from ekiden.relay.backend.build import build
from ekiden.relay.backend.executor_factory import ExecutorFactoryModule
from ekiden.relay.param_dict import save_param_dict
from ekiden.runtime.errors import CompileError, InputError, LoadError
from ekiden.runtime.files import PathName, check_folder
from ekiden.target import Target, TargetLike
from ekiden.tune.records import Best, Records

__all__ = ["compile_model", "read_tuning_records", "save_dumps"]

OUTPUT_FORMATS = ("so", "tar", "mlf")
DUMP_FORMATS: Mapping[str, str] = {
    "relay": "", "tir": "te.tir", "ll": "code.ll", "asm": "code.asm",
}  # fmt: skip
"""Kind of `dump_code` -> the file of a kernel that `ir.ir_dump` writes."""


def read_tuning_records(path: PathName) -> Records:
    """Read the records of a log of Ekiden or of `ekiden.autotvm`. Raises OSError, LoadError."""
    if not Path(path).exists():
        raise FileNotFoundError(f"tvmc: tuning records '{path}' do not exist")
    try:
        return Records.open(path)
    except LoadError:
        records = (inp.config.record for inp, _ in load_from_file(path))
        return Records([record for record in records if isinstance(record, Best)])


def compile_model(
    tvmc_model: TVMCModel,
    target: TargetLike,
    opt_level: int = 3,
    executor: Executor | str = "graph",
    runtime: Runtime | str = "cpp",
    tuning_records: PathName | None = None,
    package_path: PathName | None = None,
    cross: str | None = None,
    cross_options: str | None = None,
    output_format: str = "so",
    dump_code: str | Sequence[str] | None = None,
    target_host: TargetLike | None = None,
    disabled_pass: str | Sequence[str] | None = None,
    pass_context_configs: Sequence[str] | Mapping[str, object] | None = None,
    additional_target_options: Mapping[str, Mapping[str, object]] | None = None,
    use_vm: bool = False,
    mod_name: str = "default",
    desired_layout: str | Sequence[str] | None = None,
    desired_layout_ops: Sequence[str] | None = None,
    print_pass_times: bool = False,
    print_ir_before: Sequence[str] | None = None,
    print_ir_after: Sequence[str] | None = None,
    instruments: Sequence[Any] | None = None,
    workspace_pools: WorkspaceMemoryPools | None = None,
    mixed_precision: bool = False,
    mixed_precision_ops: Sequence[str] | None = None,
    mixed_precision_calculation_type: str | None = None,
    mixed_precision_acc_type: str | None = None,
) -> TVMCPackage:
    """Compile a model to a package.

    Args:
        tvmc_model: The model.
        target: The target.
        opt_level: The level of optimisation.
        executor: "graph" or "aot", or an Executor.
        runtime: "cpp" or "crt", or a Runtime.
        tuning_records: A log that kernels are chosen by.
        package_path: The archive to write; by default one that lasts as long as the model.
        cross: A C compiler that links the library.
        cross_options: Its options, in words.
        output_format: "so", "tar" or "mlf".
        dump_code: Of "relay", "tir", "ll" and "asm", what is written next to the package.
        target_host: The target's host.
        disabled_pass: Names of passes that do not run, also with commas between them.
        pass_context_configs: Options of passes, by name or as "name=value".
        additional_target_options: Options by kind of target.
        use_vm: Unused: a library runs what it has, control flow too.
        mod_name: The name of the module.
        desired_layout: The layout that operators are converted to.
        desired_layout_ops: Those operators; convolutions by default.
        workspace_pools: The memories of a program for the runtime "crt".
        mixed_precision: Whether operators compute in a smaller type of floats.
        mixed_precision_ops: Those operators; convolutions and dense layers by default.
        mixed_precision_calculation_type: That type; "float16" by default.
        mixed_precision_acc_type: The type of their results before the cast; "float16" by default.
        print_pass_times: Whether the times of passes are printed.
        print_ir_before: Passes before which the module is printed.
        print_ir_after: Passes after which the module is printed.
        instruments: Other instruments of passes.

    Raises:
        OSError: A file cannot be read or written.
        InputError: An option has another value.
        CompileError: The model cannot be compiled.
    """
    if output_format not in OUTPUT_FORMATS:
        formats = ", ".join(OUTPUT_FORMATS)
        raise InputError(f"tvmc: output format one of {formats} expected, got '{output_format}'")
    if output_format == "mlf" and package_path is not None and Path(package_path).suffix != ".tar":
        raise InputError("tvmc: a package of the format mlf is a .tar file")
    built_for, codegens = target_from_cli(target, additional_target_options)
    if target_host is not None:
        built_for = Target(built_for, host=target_host)
    module = apply_graph_transforms(
        tvmc_model.mod,
        {
            "desired_layout": desired_layout,
            "desired_layout_ops": desired_layout_ops,
            "mixed_precision": mixed_precision,
            "mixed_precision_ops": mixed_precision_ops,
            "mixed_precision_calculation_type": mixed_precision_calculation_type,
            "mixed_precision_acc_type": mixed_precision_acc_type,
        },
    )
    for codegen in codegens:
        pipeline = get_codegen_by_target(codegen["name"])["pass_pipeline"]
        module = pipeline(module, tvmc_model.params, **codegen["opts"])
    timing = PassTimingInstrument()
    dumped = [dump_code] if isinstance(dump_code, str) else list(dump_code or ())
    if unknown := [kind for kind in dumped if kind not in DUMP_FORMATS]:
        formats = ", ".join(DUMP_FORMATS)
        raise InputError(f"tvmc: --dump-code one of {formats} expected, got '{unknown[0]}'")
    printing = PassPrintingInstrument(print_ir_before or (), print_ir_after or ())
    printed: list[PassInstrument] = [*([timing] if print_pass_times else []), printing]
    names = disabled_pass.split(",") if isinstance(disabled_pass, str) else disabled_pass
    texts = {"relay": str(module)}
    with ExitStack() as stack:
        if any(map(DUMP_FORMATS.get, dumped)):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tvmc-"))
            printed.append(DumpIR(folder))
        if tuning_records is not None:
            stack.enter_context(use_records(read_tuning_records(tuning_records)))
        with PassContext(
            opt_level, disabled_pass=names, instruments=[*printed, *(instruments or ())],
            config=parse_configs(pass_context_configs),
        ):  # fmt: skip
            library = build(
                module, built_for, params=tvmc_model.params, executor=executor, runtime=runtime,
                mod_name=mod_name, workspace_memory_pools=workspace_pools,
            )  # fmt: skip
        if print_pass_times:
            print(timing.render())
        texts |= {
            k: _read_dumped_code(folder, f) for k, f in DUMP_FORMATS.items() if k in dumped and f
        }
    path = check_folder(package_path or tvmc_model.default_package_path())
    assert path is not None
    save_dumps(path.name, {kind: texts[kind] for kind in dumped}, path.parent)
    if output_format == "mlf" or not isinstance(library, ExecutorFactoryModule):
        _write_library_format(library, path)
    else:
        how = executor if isinstance(executor, str) else executor.name
        _write_package(library, path, output_format, how, built_for, cross, cross_options)
    return TVMCPackage(path)


def save_dumps(module_name: str, dumps: Mapping[str, str], dump_root: PathName = ".") -> None:
    """Write texts by kind into a folder, each as a file MODULE_NAME.KIND."""
    for kind, text in dumps.items():
        (Path(dump_root) / f"{module_name}.{kind}").write_text(text)


def _read_dumped_code(folder: str, file_name: str) -> str:
    """Return the code of all dumped kernels, each below its name."""
    files = sorted(Path(folder).rglob(file_name))
    return "\n".join(f"// {file.parent.name}\n{file.read_text()}" for file in files)


def _write_library_format(library: Any, path: Path) -> None:  # noqa: ANN401
    if isinstance(library, ExecutorFactoryModule):
        raise CompileError(
            "tvmc: the format mlf is of programs for microcontrollers: --executor aot --runtime crt"
        )
    export_model_library_format(library, path)


def _write_package(
    library: ExecutorFactoryModule,
    path: Path,
    output_format: str,
    executor: str,
    target: Target,
    cross: str | None,
    cross_options: str | None,
) -> None:
    """Write the library, and for a graph its JSON and parameters."""
    files = {"tvmc.json": json.dumps({"executor": executor, "target": str(target)}).encode()}
    with tempfile.TemporaryDirectory(prefix="tvmc-") as folder:
        name = f"mod.{output_format}"
        options = (cross_options or "").split()
        compile_by = cross_compiler(cross, options=options) if cross else None
        library.export_library(Path(folder) / name, fcompile=compile_by)
        files[name] = (Path(folder) / name).read_bytes()
    try:
        files["mod.json"] = library.get_graph_json().encode()
        files["mod.params"] = bytes(save_param_dict(library.get_params()))
    except CompileError:
        pass  # control flow or computed shapes: no graph says those, the library runs them
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
