"""Compile options as one frozen value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule, load_module
from ekiden.frontend.common.options import NO_OPTIONS, ImportOptions
from ekiden.ir.pass_context import (
    BYOC_ENGINE_OPTION,
    DENORMALS_KINDS,
    DENORMALS_OPTION,
    FLOAT_REWRITES_KINDS,
    FLOAT_REWRITES_OPTION,
    KERNEL_DECISIONS_OPTION,
    PRODUCT_PRECISION_OPTION,
    TUNING_RECORDS_OPTION,
    WEIGHT_SIZE_OPTION,
    PassContext,
    with_options,
)
from ekiden.runtime import environment
from ekiden.runtime.debug.short_repr import short_repr
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.codegen.parallel import ProgressCallback
    from ekiden.target import virtual_device
    from ekiden.target.virtual_device import Targets
    from ekiden.tune.records import RecordsLike
else:
    virtual_device = LazyModule("ekiden.target.virtual_device")

DEVICE_CHOICES = ("", "auto")
EXECUTOR_KINDS = ("vm", "aot", "async")
"""Executor kinds: interpreted bytecode, bytecode with native code, or bytecode with concurrent
kernels.
"""
SIZE_CHOICES = ("", "small")
TIER_CHOICES = ("full", "quick")
"""Tiers that `compile` waits for: specialised kernels, or general ones."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of one compilation, as a frozen value. `ekiden.compile` documents what each does for
    a user.

    Raises CompileError for a value that an option does not have. Options of passes that are not
    said here are those of the current PassContext; records and the limit of time that are None are
    the environment's.
    """

    target: Targets = None
    """Targets of the generated code and their devices; None is this machine."""
    inputs: ImportOptions = NO_OPTIONS
    """Shapes, examples and signature passed to the model's frontend."""
    executor: str = "vm"
    """Executor kind, one of EXECUTOR_KINDS."""
    tier: str = "full"
    """Initial tier, one of TIER_CHOICES."""
    devices: str = ""
    """One of DEVICE_CHOICES: "auto" measures on which devices the model runs fastest."""
    bounds: str = ""
    """Bounds checking: "check" compares every buffer access with its extent."""
    size: str = ""
    """One of SIZE_CHOICES: "small" stores weights in the artifact unpacked and unfolded."""
    denormals: str = "keep"
    """Handling of denormals, one of DENORMALS_KINDS."""
    float_rewrites: str = ""
    """Allowed tier of value-changing rewrites, one of FLOAT_REWRITES_KINDS; "" uses the context's.
    """
    precision: str = ""
    """Dtype that operands of dense layers are rounded to; "" uses the context's."""
    byoc: str = ""
    """Third-party engine for regions of the model; "auto" for where one is faster, "" for none."""
    decisions: Mapping[str, object] | None = None
    """Overrides of kernel decisions by family, kernel or node."""
    records: RecordsLike = None
    """Tuning records; `()` for none."""
    num_threads: int | None = None
    """Maximum threads per run; not part of the artifact. No part of the artifact."""
    timeout_s: float | None = None
    """Time limit of the compilation in seconds."""
    progress: ProgressCallback | None = None
    """Callback (kernels done, total kernels, kernel name)."""
    in_place: bool = True
    """Whether tensors may be views of others, which graph executors cannot express."""
    mod_name: str = ""
    """Name of the graph executor factory."""

    def __post_init__(self) -> None:
        for name in _STRING_OPTIONS:
            value: object = getattr(self, name)
            if not isinstance(value, str):
                raise CompileError(f"compile: {name}: a text expected, got {short_repr(value)}")
        signature: object = self.inputs.signature
        if not isinstance(signature, str):
            raise CompileError(f"compile: signature: a text expected, got {short_repr(signature)}")
        for name, kinds in _OPTION_CHOICES.items():
            if getattr(self, name) not in kinds:
                expectation = _EXPECTED_TEXTS[name]
                raise CompileError(
                    f"compile: {name} {expectation}, got {short_repr(getattr(self, name))}"
                )
        if self.devices and (self.bounds or self.tier == "quick"):
            raise CompileError("compile: devices 'auto' takes neither bounds nor tier 'quick'")
        decisions: object = self.decisions
        if decisions is not None and not isinstance(decisions, Mapping):
            raise CompileError(
                f"compile: decisions: a mapping expected, got {short_repr(decisions)}"
            )
        limit: object = self.timeout_s
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0
        ):
            raise CompileError(f"compile: timeout: seconds above 0 expected, got {limit!r}")

    @property
    def targets(self) -> Targets:
        """Return the targets, with bounds checks enabled if requested. Raises CompileError."""
        if not self.bounds:
            return self.target
        return virtual_device.with_bounds(self.target, self.bounds)

    @property
    def time_limit_s(self) -> float | None:
        """Return the time limit in seconds, from the options or the environment."""
        return environment.compile_timeout_s() if self.timeout_s is None else float(self.timeout_s)

    def pass_options(self) -> dict[str, object]:
        """Return these options as pass options, by the keys of PassContext. Raises OSError,
        LoadError and InputError for records that cannot be read.
        """
        pass_options = {
            WEIGHT_SIZE_OPTION: self.size,
            FLOAT_REWRITES_OPTION: self.float_rewrites,
            DENORMALS_OPTION: "" if self.denormals == "keep" else self.denormals,
            PRODUCT_PRECISION_OPTION: self.precision,
            BYOC_ENGINE_OPTION: self.byoc,
            KERNEL_DECISIONS_OPTION: dict(self.decisions or {}),
        }
        chosen: dict[str, object] = {key: value for key, value in pass_options.items() if value}
        return chosen | tuning_record_options(self.records)

    def context(self) -> AbstractContextManager[object]:
        """Return a context manager that enters the current PassContext extended by these
        options.
        """
        config = self.pass_options()
        return with_options(config) if config else nullcontext()


_CURRENT_RECORDS: ContextVar[tuple[RecordsLike, str]] = ContextVar("records", default=(None, ""))
"""Records of the innermost `use_records`, and the option that switches them off."""


@contextmanager
def use_records(records: RecordsLike, option: str = "") -> Iterator[None]:
    """Compile with these tuning records whatever names none of its own, instead of with those of
    EKIDEN_RECORDS: `with tune.use_records("records.json"): ekiden.compile(model)`.

    `option` names a bool option of PassContext whose False switches them off.
    """
    token = _CURRENT_RECORDS.set((records, option))
    try:
        yield
    finally:
        _CURRENT_RECORDS.reset(token)


def tuning_record_options(records: RecordsLike) -> dict[str, object]:
    """Return the pass option of tuning records; None uses the environment's. Raises OSError,
    LoadError and InputError for files without records.
    """
    if records is None:
        records, option = _CURRENT_RECORDS.get()
        if option and not PassContext.current().option(option):
            return {}
    if records is None:
        if TUNING_RECORDS_OPTION in PassContext.current().config or not (
            environment_files := environment.tuning_record_files()
        ):
            return {}
        records = list(environment_files)
    records_by_key = load_module("ekiden.tune.records").to_records(records).by_sizes()
    return {TUNING_RECORDS_OPTION: records_by_key} if records_by_key else {}


_STRING_OPTIONS = (
    "executor",
    "bounds",
    "size",
    "denormals",
    "tier",
    "byoc",
    "devices",
    "float_rewrites",
)
_OPTION_CHOICES = {
    "tier": TIER_CHOICES,
    "devices": DEVICE_CHOICES,
    "size": SIZE_CHOICES,
    "denormals": DENORMALS_KINDS,
    "float_rewrites": ("", *FLOAT_REWRITES_KINDS),
    "executor": EXECUTOR_KINDS,
}
_EXPECTED_TEXTS = {
    "tier": "'full' or 'quick' expected",
    "devices": "'auto' or '' expected",
    "size": "'small' or '' expected",
    "denormals": f"{' or '.join(map(repr, DENORMALS_KINDS))} expected",
    "float_rewrites": f"one of {', '.join(map(repr, FLOAT_REWRITES_KINDS))} expected",
    "executor": f"one of {', '.join(map(repr, EXECUTOR_KINDS))} expected",
}
DEFAULT_OPTIONS = CompileOptions()

__all__ = [
    "DEFAULT_OPTIONS",
    "EXECUTOR_KINDS",
    "CompileOptions",
    "tuning_record_options",
    "use_records",
]
