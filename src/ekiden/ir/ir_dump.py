"""IR dumps: write the module after each pass into a folder (`EKIDEN_DUMP` and `DumpIR`).

    folder/index.txt                what each file is, and how long its pass took
    folder/000-input.relay          the module before the first pass
    folder/001-InferType.relay      the module after each pass that changed its text
    folder/bytecode.txt
    folder/kernels/NAME/index.txt   the same of one kernel, each in a folder of its own
    folder/kernels/NAME/te.tir      what it computes, before any schedule
    folder/kernels/NAME/schedule.txt, 000-input.tir, 001-tir.LowerOpaqueBlock.tir, ..., code.ll

Numbers count the passes that ran, so that they are the same under every filter. A process that
compiles kernels writes their folders itself: what it had written stays if it ends early.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path

from ekiden.ir.hashes import blake2b
from ekiden.ir.module import IRModule
from ekiden.ir.package_versions import package_version
from ekiden.ir.pass_context import PassContext, PassInfo, PassInstrument, with_instruments
from ekiden.runtime.environment import DumpRequest
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName, os_error_text
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["CompilationDump", "DumpIR", "dump_compilation"]

KERNEL_PHASE_PREFIX = "kernel: "
"""Prefix of the names of phases that compile one kernel."""
PRIM_FUNC_TYPE_KEY = "tir.PrimFunc"
INDEX_FILE_NAME = "index.txt"
INDEX_HEADER = f"{'file':48}{'ms':>10}  what it is\n"
MAX_FILE_NAME_CHARS = 100
"""Maximum length of a dump file's name; file systems allow 255 bytes."""


@dataclass(slots=True)
class _PassRun:
    """Run of a pass or phase that has started: its start time and the dump time accumulated until
    then.
    """

    name: str
    started: float
    dump_seconds: float

    def elapsed_without_dump(self, ended: float, dump_seconds: float) -> float:
        """Return the run's duration in seconds without the time spent dumping."""
        return ended - self.started - (dump_seconds - self.dump_seconds)


@dataclass(slots=True)
class _DumpStage:
    """Sequence of passes with the folder of its dump files: the model's, or one kernel's."""

    folder: Path
    is_selected: bool
    """Whether the function filter selects the whole stage, as it does a kernel by name."""
    num_passes: int = 0
    """Number of passes that have run."""
    text: str = ""
    """Text of the module at the previous pass, for detecting changes."""
    module: IRModule | None = None
    """Module whose text is `text`, so that it is not printed again."""
    running_passes: list[_PassRun] = field(default_factory=list)
    """Passes in progress, outermost first."""


class DumpIR(PassInstrument):
    """Pass instrument that writes the module after each pass, and other compilation products, into
    a folder.

    A pass that changes nothing is a line of `index.txt` without a file; passes that another pass
    runs belong to that one. Kernels that a cache has are compiled again, in their processes.
    """

    compiles_cached = True
    _folder_origin = "DumpIR"
    """Option or variable that chose the folder, for error messages."""

    def __init__(
        self,
        folder: PathName,
        show_meta_data: bool = False,
        function: str = "*",
        pass_name: str = "*",
    ) -> None:
        """Configure the dump; files are written from the first pass on.

        Args:
            folder: Where files go; it is made when it is missing.
            show_meta_data: Whether constants are written out, so that the text parses back.
            function: Names of global functions and kernels that are written, as of files in a
                shell: `*` for any letters.
            pass_name: The same of passes, and of what stages make: `schedule`, `code`, `bytecode`.
        """
        self.folder = Path(os.path.abspath(folder))
        self._show_meta_data = show_meta_data
        self._function = function
        self._pass_name = pass_name
        self._stage_of_kernel: dict[str, _DumpStage] = {}
        self._open_kernels: list[_PassRun] = []
        """Kernels whose compilation is in progress."""
        self._open_phases: list[_PassRun] = []
        """Other compilation phases in progress."""
        self._unreported_kernels: list[tuple[str, float]] | None = None
        """Kernels compiled in this worker process and their seconds, not yet reported to the
        program. None in the program.
        """
        self._dump_seconds = 0.0

    # Passes.

    def run_before_pass(self, module: IRModule, info: PassInfo) -> None:
        """Write the module before an outermost pass unless it equals the one written last."""
        if info.is_sequence:
            return
        with self._exclude_dump_time():
            stage = self._stage_for_module(module)
            # Only outermost passes have files: `running` holds the pass around this one, if any.
            if not stage.running_passes and self._matches_pass_filter(info.name):
                name = (
                    "000-input"
                    if stage.num_passes == 0
                    else f"{_numbered_pass_name(stage, info)}-before"
                )
                what = "before the first pass" if stage.num_passes == 0 else f"before {info.name}"
                self._write_module(stage, module, name, None, what)
        stage.running_passes.append(self._start_run(info.name))

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        """Write the module that the pass returned, and its time into the index."""
        ended = time.perf_counter()
        if info.is_sequence:
            return
        with self._exclude_dump_time():
            stage = self._stage_for_module(module)
            # Passes inside of this one that an exception left open are dropped with it.
            run = _pop_finished_run(stage.running_passes, info.name)
            if run is None or stage.running_passes:
                return
            if self._matches_pass_filter(info.name):
                seconds = run.elapsed_without_dump(ended, self._dump_seconds)
                name, what = _numbered_pass_name(stage, info), f"after {info.name}"
                if not self._write_module(stage, module, name, seconds, what):
                    self._append_index_line(stage, "-", seconds, f"{name}: nothing changed")
            stage.num_passes += 1

    def run_failed(self, module: IRModule, info: PassInfo, error: BaseException) -> None:
        """Write the input module of a pass that raised an error."""
        if info.is_sequence:
            return
        with self._exclude_dump_time():
            stage = self._stage_for_module(module)
            # The pass is over; what it ran and left open goes with it.
            _pop_finished_run(stage.running_passes, info.name)
            if stage.running_passes or not self._matches_pass_filter(info.name):
                return
            name, what = _numbered_pass_name(stage, info), f"{info.name} failed"
            self._write_module(stage, module, f"{name}-failed", None, f"before {what}")
            self._append_index_line(
                stage, "-", None, f"{what}: {type(error).__name__}: {_first_message_line(error)}"
            )

    def _stage_for_module(self, module: IRModule) -> _DumpStage:
        """Return the stage of a pass: the kernel's while one is compiled or if the module holds
        PrimFuncs only, else the model's.
        """
        if self._open_kernels:
            return self._kernel_stage(self._open_kernels[-1].name)
        if _is_prim_func_module(module):
            kernel = next(iter(module.functions)).name_hint
            is_new = kernel not in self._stage_of_kernel
            stage = self._kernel_stage(kernel)
            if is_new and stage.is_selected and self._pass_name == "*":
                model_stage = self._get_stage("", self.folder, is_selected=False)
                self._append_index_line(
                    model_stage, f"kernels/{stage.folder.name}/", None, "a loop program"
                )
            return stage
        return self._get_stage("", self.folder, is_selected=False)

    def _kernel_stage(self, kernel: str) -> _DumpStage:
        folder = self.folder / "kernels" / _safe_file_name(kernel)
        return self._get_stage(kernel, folder, self._matches_function_filter(kernel))

    def _get_stage(self, key: str, folder: Path, is_selected: bool) -> _DumpStage:
        if key not in self._stage_of_kernel:
            self._stage_of_kernel[key] = _DumpStage(folder, is_selected)
        return self._stage_of_kernel[key]

    # What stages make beside modules.

    def see_product(self, file_name: str, meaning: str, render: Callable[[], str]) -> None:
        """Write a textual product of a stage: a schedule, assembly, bytecode."""
        if not self._matches_pass_filter(file_name.partition(".")[0]):
            return
        with self._exclude_dump_time():
            is_kernel = bool(self._open_kernels)
            if is_kernel:
                stage = self._kernel_stage(self._open_kernels[-1].name)
            else:
                stage = self._get_stage("", self.folder, is_selected=False)
            if stage.is_selected or (not is_kernel and self._function == "*"):
                stem, _, suffix = file_name.partition(".")
                self._append_index_line(
                    stage, self._write_new_file(stage, stem, suffix, render()), None, meaning
                )

    def enter_phase(self, name: str) -> None:
        """Record the start of a phase or of a kernel's compilation."""
        is_kernel = name.startswith(KERNEL_PHASE_PREFIX)
        phases = self._open_kernels if is_kernel else self._open_phases
        phases.append(self._start_run(name.removeprefix(KERNEL_PHASE_PREFIX)))

    def _start_run(self, name: str) -> _PassRun:
        return _PassRun(name, time.perf_counter(), self._dump_seconds)

    def exit_phase(self, name: str) -> None:
        """Append the finished kernel or phase with its time to the index."""
        ended = time.perf_counter()
        if not name.startswith(KERNEL_PHASE_PREFIX):
            run = _pop_finished_run(self._open_phases, name)
            if run is not None and (stage := self._stage_for_phase()) is not None:
                with self._exclude_dump_time():
                    seconds = run.elapsed_without_dump(ended, self._dump_seconds)
                    self._append_index_line(stage, "-", seconds, f"phase: {name}")
            return
        kernel = name.removeprefix(KERNEL_PHASE_PREFIX)
        run = _pop_finished_run(self._open_kernels, kernel)
        if run is None or not self._matches_function_filter(kernel):
            return
        seconds = run.elapsed_without_dump(ended, self._dump_seconds)
        # A worker has no index of the compilation: it reports the kernel to the program.
        if self._unreported_kernels is not None:
            self._unreported_kernels.append((kernel, seconds))
        else:
            self._index_kernel(kernel, seconds)

    def _stage_for_phase(self) -> _DumpStage | None:
        """Return the stage whose index lists the phase, or None if a filter excludes phases."""
        if self._pass_name != "*":
            return None
        if not self._open_kernels:
            return self._get_stage("", self.folder, is_selected=False)
        stage = self._kernel_stage(self._open_kernels[-1].name)
        return stage if stage.is_selected else None

    def _index_kernel(self, kernel: str, seconds: float | None) -> None:
        """Append a kernel to the compilation's index if the kernel has a dump folder."""
        with self._exclude_dump_time():
            stage = self._kernel_stage(kernel)
            if stage.folder.is_dir():
                model_stage = self._get_stage("", self.folder, is_selected=False)
                self._append_index_line(
                    model_stage, f"kernels/{stage.folder.name}/", seconds, "a kernel"
                )

    # Processes that compile kernels.

    def for_worker(self) -> DumpIR:
        """Return the instrument for a worker process, which writes the kernels' folders."""
        # A list instead of None marks the copy as that of a worker, which reports its kernels to
        # the program.
        copy = type(self)(self.folder, self._show_meta_data, self._function, self._pass_name)
        copy._unreported_kernels = []
        return copy

    def take_seen(self) -> object:
        """Return the kernels compiled since the last call, with their seconds, and forget them."""
        kernels, self._unreported_kernels = self._unreported_kernels, []
        return kernels

    def add_seen(self, seen: object) -> None:
        """Append the kernels reported by a worker process to the index."""
        assert isinstance(seen, list), "what take_seen gives"
        for kernel, seconds in seen:
            self._index_kernel(kernel, seconds)

    # Files.

    def _matches_pass_filter(self, name: str) -> bool:
        return fnmatchcase(name, self._pass_name)

    def _matches_function_filter(self, name: str) -> bool:
        return fnmatchcase(name, self._function)

    def _write_module(
        self, stage: _DumpStage, module: IRModule, name: str, seconds: float | None, what: str
    ) -> bool:
        """Write the module's text if it differs from the last one; return whether it was
        written.
        """
        # Printing is the expensive part; passes that change nothing return the same object.
        if module is stage.module:
            return False
        text, suffix = self._render_module(module, stage.is_selected)
        # The object is kept to recognize it; its text, to see that a new object prints the same.
        stage.module = module
        if text == stage.text:
            return False
        stage.text = text
        if text:
            self._append_index_line(
                stage, self._write_new_file(stage, name, suffix, text), seconds, what
            )
        return bool(text)

    def _render_module(self, module: IRModule, is_selected: bool) -> tuple[str, str]:
        """Return the text of the selected functions and the file suffix ("relay" or "tir")."""
        functions = {
            name: function
            for name, function in module.functions.items()
            if is_selected or self._matches_function_filter(name.name_hint)
        }
        if _is_prim_func_module(module):
            return "\n".join(map(str, functions.values())), "tir"
        if not functions:
            return "", "relay"
        if len(functions) < len(module.functions):
            module = module.with_functions(functions)
        return module.astext(self._show_meta_data), "relay"

    def _write_new_file(self, stage: _DumpStage, stem: str, suffix: str, text: str) -> str:
        """Create a file with an unused name, write the text, and return the name. Raises InputError
        where that cannot be.
        """
        stem, name, number = _safe_file_name(stem), f"{_safe_file_name(stem)}.{suffix}", 1
        with self._explain_os_errors(stage.folder):
            stage.folder.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    with (stage.folder / name).open("x", encoding="utf-8", newline="\n") as file:
                        file.write(text)
                        return name
                # Another kernel, or another process, has the name: opening with "x" decides it
                # without a race.
                except FileExistsError:
                    number += 1
                    name = f"{stem}-{number}.{suffix}"

    def _append_index_line(
        self, stage: _DumpStage, name: str, seconds: float | None, what: str
    ) -> None:
        """Append a line to the stage's index. Raises InputError where that cannot be."""
        duration = "" if seconds is None else f"{1e3 * seconds:.1f}"
        with self._explain_os_errors(stage.folder):
            stage.folder.mkdir(parents=True, exist_ok=True)
            with (stage.folder / INDEX_FILE_NAME).open("a", encoding="utf-8", newline="\n") as file:
                if file.tell() == 0:
                    file.write(INDEX_HEADER)
                file.write(f"{name:48}{duration:>10}  {what}\n")

    @contextmanager
    def _explain_os_errors(self, folder: Path) -> Iterator[None]:
        """Convert an OSError into an InputError that names the option that chose the folder."""
        try:
            yield
        except OSError as error:
            reason = os_error_text(error)
            text = f"{self._folder_origin}: no file can be written in '{folder}': {reason}"
            raise InputError(text) from error

    @contextmanager
    def _exclude_dump_time(self) -> Iterator[None]:
        """Accumulate the time spent dumping, which is subtracted from the enclosing pass."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._dump_seconds += time.perf_counter() - started


class CompilationDump(DumpIR):
    """Dump of one compilation requested by `EKIDEN_DUMP`, also in its worker processes."""

    _folder_origin = "the variable EKIDEN_DUMP"
    dumps_compilation = True

    def write_index_header(self, what: str, dump: DumpRequest) -> None:
        """Write the first index line: what is compiled, the version, and the filters."""
        filters = [f"{key}={value}" for key, value in dump.filters().items() if value != "*"]
        filter_note = f" ({', '.join(filters)})" if filters else ""
        version = f"ekiden {package_version('ekiden')}"
        self._append_index_line(
            self._get_stage("", self.folder, is_selected=False),
            "-", None, f"{what} by {version}, process {os.getpid()}{filter_note}",
        )  # fmt: skip

    def write_failure(self, error: BaseException) -> None:
        """Append the compilation's error to the index; an unwritable index is ignored."""
        stage = self._get_stage("", self.folder, is_selected=False)
        with suppress(InputError):
            self._append_index_line(
                stage, "-", None, f"failed: {type(error).__name__}: {_first_message_line(error)}"
            )


@contextmanager
def dump_compilation(what: str, dump: DumpRequest) -> Iterator[None]:
    """Dump the enclosed compilation into a new numbered folder whose name ends with `what`.

    A compilation inside of another one has a folder of its own, and none in that of the other.
    Raises InputError, naming the variable, where the folder cannot be made or written.
    """
    folder = _create_numbered_folder(dump.folder, what)
    instrument = CompilationDump(folder, function=dump.function, pass_name=dump.pass_name)
    instrument.write_index_header(what, dump)
    watching = PassContext.current().instruments
    # The dump of an outer compilation must not count the passes of this one as its own.
    kept_instruments = [
        watching_instrument
        for watching_instrument in watching
        if not watching_instrument.dumps_compilation
    ]
    with with_instruments((*kept_instruments, instrument)):
        try:
            yield
        # KeyboardInterrupt too: an interrupted dump must not look complete.
        except BaseException as error:
            instrument.write_failure(error)
            raise


def _create_numbered_folder(parent: str, what: str) -> Path:
    """Create the folder `parent/NNN-what` with the next free number, safe against concurrent
    processes. Raises InputError.
    """
    try:
        os.makedirs(parent, exist_ok=True)
        numbers = (re.match(r"(\d+)-", name) for name in os.listdir(parent))
        # Behind the highest number, not in a gap: folders sort in the order of compilations.
        number = max((int(match[1]) for match in numbers if match), default=0)
        while True:
            number += 1
            folder = Path(parent, f"{number:03}-{what}")
            with suppress(FileExistsError):
                folder.mkdir()
                return folder
    except OSError as error:
        raise InputError(
            f"{CompilationDump._folder_origin}: no folder can be made in '{parent}': "
            f"{os_error_text(error)}"
        ) from error


def _is_prim_func_module(module: IRModule) -> bool:
    """Return whether the module holds PrimFuncs and nothing else."""
    functions = module.functions.values()
    return bool(functions) and all(f.type_key == PRIM_FUNC_TYPE_KEY for f in functions)


def _numbered_pass_name(stage: _DumpStage, info: PassInfo) -> str:
    return f"{stage.num_passes + 1:03}-{info.name}"


def _pop_finished_run(running: list[_PassRun], name: str) -> _PassRun | None:
    """Pop and return the innermost run of that name, and drop the runs nested in it."""
    while running:
        run = running.pop()
        if run.name == name:
            return run
    return None


def _safe_file_name(text: str) -> str:
    """Return a portable file name; a changed name gets a digest suffix so that it stays unique."""
    plain = re.sub(r"[^\w.+-]", "_", text, flags=re.ASCII)
    if plain == text and len(text) <= MAX_FILE_NAME_CHARS and text.strip("."):
        return text
    # Two names that become one after replacement must not share a file.
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{plain[:MAX_FILE_NAME_CHARS].strip('.')}-{digest}"


def _first_message_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
