"""PassContext: opt level, typed options and pass instruments.

with PassContext(opt_level=3, instruments=[PassTimingInstrument()], disabled_pass=["FoldConstant"]):
    module = pipeline(module)
"""

from __future__ import annotations

import contextvars
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ekiden._lazy import LazyModule
from ekiden.runtime import Object, environment
from ekiden.runtime.errors import PassError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.lazy_logger import LazyLogger

if TYPE_CHECKING:
    import difflib

    import ekiden.ir.ir_dump as dumps
    from ekiden.ir.module import IRModule
else:
    difflib = LazyModule("difflib")
    dumps = LazyModule("ekiden.ir.ir_dump")

LOG = LazyLogger(__name__)
T = TypeVar("T")
DEBUG_LEVEL, INFO_LEVEL = 10, 20
"""DEBUG_LEVEL: `logging` level of a compilation's details. INFO_LEVEL: `logging` level of a
compilation's progress.
"""


@Object.register
@dataclass(frozen=True, slots=True)
class PassInfo:
    """Pass metadata for instruments and contexts (TVM's PassInfo).

    required: names of the passes that run right before it. is_sequence: it only runs others.
    """

    name: str
    opt_level: int = 0
    required: tuple[str, ...] = ()
    is_sequence: bool = False

    def __str__(self) -> str:
        needs = f", needs {', '.join(self.required)}" if self.required else ""
        return f"{self.name} (opt level {self.opt_level}{needs})"


class PassInstrument:
    """Observer of pass execution. Override what is needed; `should_run` False skips the pass.

    A sequence of passes is itself a pass and is seen as one (`info.is_sequence`), around its
    members.
    """

    compiles_cached: bool = False
    """Whether cached kernels are compiled again, so that their passes are observed."""
    dumps_compilation: bool = False
    """Whether it is the dump that EKIDEN_DUMP requests for this compilation."""

    def enter_pass_ctx(self) -> None:
        """Hook called when a PassContext with this instrument is entered."""

    def exit_pass_ctx(self) -> None:
        """Hook called when that PassContext is left."""

    def should_run(self, module: IRModule, info: PassInfo) -> bool:
        """Return whether the pass should run at all."""
        return True

    def run_before_pass(self, module: IRModule, info: PassInfo) -> None:
        """Hook called with the input module of a pass."""

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        """Hook called with the module that a pass returned."""

    def run_failed(self, module: IRModule, info: PassInfo, error: BaseException) -> None:
        """Hook called with the input module of a pass that raised an error."""

    def enter_phase(self, name: str) -> None:
        """Hook called at the start of a compilation phase that is not a pass: importing,
        kernels.
        """

    def exit_phase(self, name: str) -> None:
        """Hook called at the end of a phase, whether or not it failed."""

    def see_product(self, file_name: str, meaning: str, render: Callable[[], str]) -> None:
        """Hook called with a textual product of a stage (schedule, assembly, bytecode): file name,
        description, and a function that renders it.
        """

    def for_worker(self) -> PassInstrument | None:
        """Return a picklable instrument for worker processes that compile kernels, or None (the
        default) to compile in this process.
        """
        return None

    def take_seen(self) -> object:
        """Return, in a worker, what was observed since the last call, for `add_seen` in the main
        process; None for nothing.
        """
        return None

    def add_seen(self, seen: object) -> None:
        """Merge what a worker's instrument has observed."""


@dataclass(frozen=True, slots=True)
class ContextOption:
    """Pass context option: type, default (None: unset) and description."""

    kind: type
    default: object
    doc: str
    fields: Mapping[str, ContextOption] | None = None
    """Fields of a dictionary option, with their defaults. None: anything."""


CONTEXT_OPTIONS: dict[str, ContextOption] = {}
"""Options of `PassContext(config=...)`, by key. `register_option` adds to it."""


def register_option(
    key: str,
    kind: type,
    default: object,
    doc: str,
    fields: Mapping[str, ContextOption] | None = None,
) -> str:
    """Register an option that passes read with `PassContext.option`, or `PassContext.fields` for a
    dictionary with fields; return its key.

    Raises ValueError when the key is taken.
    """
    if key in CONTEXT_OPTIONS:
        raise ValueError(f"register option {key!r}: it is registered already")
    CONTEXT_OPTIONS[key] = ContextOption(kind, default, doc, fields)
    return key


# Options of built-in passes are registered here, not in the passes' modules, so that all are known
# whichever modules are imported.
MAX_FUSE_DEPTH_OPTION = register_option(
    "relay.FuseOps.max_depth", int, 256, "how many operators one kernel may hold"
)
FILL_SPAN_OPTION = register_option(
    "relay.frontend.fill_span",
    bool,
    True,
    "whether expressions of an imported module say which node of the model they come from; without "
    "that, messages cannot name it",
)
FALLBACK_DEVICE_OPTION = register_option(
    "relay.fallback_device_type",
    int,
    0,
    "of a compilation for several devices the kind that operators run on which nothing places, in "
    "DLPack's numbers; 0 for that of the device that is named first",
)
PRODUCT_PRECISION_OPTION = register_option(
    "relay.ProductPrecision.dtype",
    str,
    "",
    'the type that operands of dense layers are rounded to: "bfloat16", or "" for none',
)
BYOC_ENGINE_OPTION = register_option(
    "byoc.engine",
    str,
    "",
    'the engine of others that takes regions of a model: its name; "auto" for where one is faster '
    'than Ekiden, as measured; "" for none',
)
WEIGHT_SIZE_OPTION = register_option(
    "relay.AlterOpLayout.size",
    str,
    "",
    'of weights in an artifact: "small" has them as large as they are in the model, "" as kernels '
    "take them",
)
KEEP_OUTPUT_DTYPE_OPTION = register_option(
    "relay.ToMixedPrecision.keep_orig_output_dtype",
    bool,
    False,
    "whether results of functions keep their dtype",
)
PLACEMENT_COSTS_OPTION = register_option(
    "relay.PlaceByCost.costs",
    dict,
    {},
    "what operators and copies cost on the host and on a device, by which PlaceByCost places them: "
    "the fields of its Costs; \"devices='auto'\" measures them",
)
DENORMALS_OPTION = register_option(
    "kernels.denormals",
    str,
    "keep",
    'what kernels make of subnormal numbers: "keep" them (those of recurrent layers do not), or '
    '"flush" them to 0',
)
DENORMALS_KINDS = ("keep", "flush")
"""Values of the option kernels.denormals."""
FLOAT_REWRITES_OPTION = register_option(
    "relay.float_rewrites",
    str,
    "rounded",
    'how far rewrites of floating point may change a result: "exact" (equal bits), "rounded" (by '
    'the rounding of its terms) or "free" (without bound: constants may cancel)',
)
FLOAT_REWRITES_KINDS = ("exact", "rounded", "free")
"""Values of the option relay.float_rewrites, strictest first."""
KERNEL_DECISIONS_OPTION = register_option(
    "kernels.decisions",
    dict,
    {},
    "what is chosen about kernels: {family, kernel or node: {choice: value} or 'choice=value ...'}",
)
TUNING_RECORDS_OPTION = register_option(
    "kernels.records",
    dict,
    {},
    "what tuning has found about kernels: {'workload target': [[sizes, rule, choice], ...]}"
    " (docs/tuning.md)",
)
USE_AUTO_SCHEDULER_OPTION = register_option(
    "relay.backend.use_auto_scheduler",
    bool,
    True,
    "whether the records of auto_scheduler.ApplyHistoryBest choose kernels",
)
USE_META_SCHEDULE_OPTION = register_option(
    "relay.backend.use_meta_schedule",
    bool,
    True,
    "whether the records of an entered meta_schedule.Database choose kernels",
)
UNROLL_LOOP_OPTION = register_option(
    "tir.UnrollLoop",
    dict,
    {},
    "which serial loops are unrolled that no schedule unrolls",
    {
        "auto_max_step": ContextOption(int, 0, "those that make at most so many statements"),
        "auto_max_depth": ContextOption(int, 8, "those with at most so many unrolled ones inside"),
        "auto_max_extent": ContextOption(int, 0, "those of at most so many turns"),
    },
)
SIMPLIFY_OPTION = register_option(
    "tir.Simplify",
    dict,
    {},
    "what TVM's simplifier may do besides: permissions, which this one does not need",
    {
        name: ContextOption(bool, False, "a permission: results are equal without it")
        for name in (
            "transitively_prove_inequalities",
            "convert_boolean_to_and_of_ors",
            "apply_constraints_to_boolean_branches",
            "propagate_knowns_to_prove_conditional",
            "propagate_knowns_to_simplify_expressions",
        )
    },
)
REMOVE_NO_OP_OPTION = register_option(
    "tir.RemoveNoOp",
    dict,
    {},
    "what counts as without effect",
    {
        "use_dataflow_analysis": ContextOption(
            bool, False, "stores that are overwritten unread, too"
        ),
        "max_simplification_steps": ContextOption(
            int, 0, "TVM's; proofs here have an end of their own"
        ),
    },
)
DISABLE_VECTORIZE_OPTION = register_option(
    "tir.disable_vectorize",
    bool,
    False,
    "whether loops that a schedule vectorizes stay loops; tiles that are written in vectors do not "
    "change",
)
DISABLE_STORAGE_REWRITE_OPTION = register_option(
    "tir.disable_storage_rewrite",
    bool,
    False,
    "whether each intermediate inside of a kernel has memory of its own",
)
USMP_ENABLE_OPTION = register_option(
    "tir.usmp.enable",
    bool,
    True,
    "whether the memory of C programs without the runtime is planned as a whole: always",
)
USMP_ALGORITHM_OPTION = register_option(
    "tir.usmp.algorithm", str, "", "TVM's choice of how; the planner here has one way"
)
HOIST_IF_OPTION = register_option(
    "tir.HoistIfThenElse",
    dict,
    {},
    "which loops conditions are taken out of",
    {
        "support_block_scope_hosting": ContextOption(
            bool, False, "those of a device's threads, too"
        ),
    },
)
LOOP_PARTITION_OPTION = register_option(
    "tir.LoopPartition",
    dict,
    {},
    "which loops are cut into parts whose conditions are decided",
    {"partition_const_loop": ContextOption(bool, True, "those whose extent is a number, too")},
)


BOUND_CHECKERS_OPTION = register_option(
    "tir.instrument_bound_checkers",
    bool,
    False,
    "whether kernels compare every access of a buffer with its extent, as by `bounds='check'`",
)
ADDED_PASSES_OPTION = register_option(
    "tir.add_lower_pass",
    list,
    [],
    "passes of the program's own among those that lower loop programs: (phase, pass), with phase 0 "
    "before all, 1 once buffers are flat, 2 once loops are vectors and unrolled, 3 after all",
)


@dataclass(frozen=True, slots=True)
class AddedPass:
    """User pass inserted into the lowering of PrimFuncs at a given phase.

    token: what tells this context from all others, so that kernels which such a pass made are found
    again under it alone: nothing says whether two functions do the same.
    """

    phase: int
    run: Callable[[IRModule], IRModule]
    token: str

    def __repr__(self) -> str:
        return f"({self.phase}, {getattr(self.run, 'name', self.run)}, {self.token})"


def _parse_added_passes(value: Iterable[object]) -> list[AddedPass]:
    """Parse TVM's (phase, pass) pairs into AddedPass objects. Raises PassError."""
    passes = []
    for entry in value:
        if not isinstance(entry, AddedPass):
            phase, run = (
                entry if isinstance(entry, (tuple, list)) and len(entry) == 2 else (-1, None)
            )
            if run is None or not isinstance(phase, int) or phase < 0 or not hasattr(run, "info"):
                raise PassError(
                    f"PassContext: {ADDED_PASSES_OPTION!r} has (phase, pass), got {entry!r}"
                )
            # Random, so that no other context, here or in another process, has the same token.
            entry = AddedPass(min(phase, 3), run, os.urandom(16).hex())
        passes.append(entry)
    return passes


def _suggest_options(key: str, table: Mapping[str, ContextOption]) -> str:
    """Return the tail of an unknown-option message: the closest names and where to list all.

    Those of one dictionary are few, and are all named.
    """
    if table is not CONTEXT_OPTIONS:
        return f"; there are {', '.join(table)}"
    last = {name.rpartition(".")[2].lower(): name for name in table}  # "max_depth" is asked for too
    near = difflib.get_close_matches(key, table, n=3, cutoff=0.6)
    near += [last[n] for n in difflib.get_close_matches(key.lower(), last, n=3, cutoff=0.6)]
    nearest = ", ".join(dict.fromkeys(near))
    suggestion = f"; nearest: {nearest}" if near else ""
    return f"{suggestion}; PassContext.list_configs() has all"


def _validate_option(
    key: str, value: object, table: Mapping[str, ContextOption] = CONTEXT_OPTIONS
) -> object:
    """Validate an option's value and return it, with 0 or 1 converted for a bool option."""
    if key not in table:
        raise PassError(f"PassContext: no option {key!r}{_suggest_options(key, table)}")
    kind, fields = table[key].kind, table[key].fields
    if fields is not None and isinstance(value, dict):
        return {
            name: _validate_option(name, field_value, fields) for name, field_value in value.items()
        }
    # TVM's programs give 0 and 1 for bools.
    if kind is bool and type(value) is int and value in (0, 1):
        return bool(value)
    if key == ADDED_PASSES_OPTION and isinstance(value, (list, tuple)):
        return _parse_added_passes(value)
    # A bool is an int to Python, and no number to a reader of the option.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PassError(
            f"PassContext: option {key!r} is a {kind.__name__}, got {type(value).__name__}: "
            f"{value!r}"
        )
    return value


@Object.register
class PassContext:
    """Compilation context: opt level, required and disabled passes, instruments and options.

    `with PassContext(opt_level=3):` makes it the current one of this thread of control. A pass runs
    when its opt level is at most the context's, or it is in `required_pass`, and it is not in
    `disabled_pass`. Raises PassError for an option that does not exist or has another type.

    An exception in an instrument (not in a pass) empties `instruments` before it goes on, so that a
    broken instrument is not called again while the stack unwinds.
    """

    __slots__ = ("_tokens", "config", "disabled_pass", "instruments", "opt_level", "required_pass")

    def __init__(
        self,
        opt_level: int = 3,
        required_pass: Iterable[str] | None = None,
        disabled_pass: Iterable[str] | None = None,
        instruments: Iterable[PassInstrument] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.opt_level = opt_level
        self.required_pass = frozenset(required_pass or ())
        self.disabled_pass = frozenset(disabled_pass or ())
        self.instruments: tuple[PassInstrument, ...] = tuple(instruments or ())
        self.config = {key: _validate_option(key, value) for key, value in (config or {}).items()}
        self._tokens: list[contextvars.Token[PassContext]] = []

    @staticmethod
    def current() -> PassContext:
        """Return the innermost active context, or the default one."""
        return _CURRENT.get()

    @staticmethod
    def list_configs() -> dict[str, dict[str, object]]:
        """Return every option with its type, default and description."""
        return {
            key: {"type": row.kind.__name__, "default": row.default, "doc": row.doc}
            for key, row in sorted(CONTEXT_OPTIONS.items())
        }

    def option(self, key: str) -> object:
        """Return an option's value, or its default if this context does not set it."""
        if key in self.config:
            return self.config[key]
        # For the message that names the nearest options.
        if key not in CONTEXT_OPTIONS:
            _validate_option(key, None)
        return CONTEXT_OPTIONS[key].default

    def fields(self, key: str) -> Mapping[str, int]:
        """Return all fields of a dictionary option, with defaults for those not set."""
        rows = CONTEXT_OPTIONS[key].fields
        values = self.option(key)
        assert rows is not None and isinstance(values, dict), f"{key!r} is an option with fields"
        return {name: values.get(name, row.default) for name, row in rows.items()}

    def of_lowering(self) -> list[str]:
        """Return the settings that affect the lowering of PrimFuncs, as part of a kernel's cache
        key.
        """
        options = [f"{key}={self.config[key]}" for key in sorted(self.config)]
        lists = [*sorted(self.disabled_pass), *(f"+{name}" for name in sorted(self.required_pass))]
        # Relay's options do not reach a kernel, and would only make its key miss the cache.
        return [setting for setting in (*options, *lists) if setting.startswith(("tir.", "+tir."))]

    def enables(self, info: PassInfo) -> bool:
        """Return whether the opt level and the pass lists allow the pass."""
        if info.name in self.disabled_pass:
            return False
        return info.name in self.required_pass or info.opt_level <= self.opt_level

    def override_instruments(self, instruments: Iterable[PassInstrument] | None) -> None:
        """Replace the instruments of an active context, exiting the old and entering the new ones.

        Raises what they raise, with no instruments set.
        """
        self._leave_instruments()
        self._enter_instruments(tuple(instruments or ()))

    @property
    def is_watched(self) -> bool:
        """Return whether an instrument requires all passes to run in this process.

        Each pass runs here then, also one whose result a cache has.
        """
        # An instrument that cannot go to a worker keeps all passes in this process.
        return any(instrument.for_worker() is None for instrument in self.instruments)

    @property
    def compiles_cached(self) -> bool:
        """Return whether an instrument needs the passes of cached kernels too, so that they are
        compiled again.
        """
        return self.is_watched or any(instrument.compiles_cached for instrument in self.instruments)

    def notify(self, call: Callable[[PassInstrument], object]) -> bool:
        """Call a hook on each instrument; return False as soon as one returns False.

        After an exception all are told that the context is left, and it has no instruments any
        more.
        """
        try:
            return all(call(instrument) is not False for instrument in self.instruments)
        # The instruments are dropped: one that raised is in no state to see further passes.
        except BaseException:
            self._leave_instruments()
            raise

    def __enter__(self) -> PassContext:
        """Make this the current context."""
        # A list, as one context may be entered several times.
        self._tokens.append(_CURRENT.set(self))
        try:
            self._enter_instruments(self.instruments)
        except BaseException:
            # A context whose instrument fails to start is not entered.
            _CURRENT.reset(self._tokens.pop())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Make the context around it current again."""
        _CURRENT.reset(self._tokens.pop())
        # They are put back below: a context may be entered again.
        instruments = self.instruments
        self._leave_instruments()
        self.instruments = instruments

    def _leave_instruments(self) -> None:
        # Emptied first: an instrument that raises here is not told a second time.
        leaving, self.instruments = self.instruments, ()
        for instrument in leaving:
            instrument.exit_pass_ctx()

    def _enter_instruments(self, instruments: tuple[PassInstrument, ...]) -> None:
        entered: list[PassInstrument] = []
        self.instruments = ()
        try:
            for instrument in instruments:
                instrument.enter_pass_ctx()
                entered.append(instrument)
        # Instruments that were entered are exited again, also on a KeyboardInterrupt.
        except BaseException:
            for instrument in entered:
                instrument.exit_pass_ctx()
            raise
        self.instruments = instruments

    def __repr__(self) -> str:
        lists = "".join(
            f", {name}={sorted(getattr(self, name))}"
            for name in ("required_pass", "disabled_pass")
            if getattr(self, name)
        )
        return f"PassContext(opt_level={self.opt_level}{lists}, config={self.config})"


@contextmanager
def with_options(config: Mapping[str, object]) -> Iterator[PassContext]:
    """Activate a context with further options for the enclosed block, keeping the instruments.

    Raises PassError for an option that does not exist or has another type.
    """
    around = PassContext.current()
    # A context is immutable to those that run in it; a new one carries the options.
    extended = PassContext(
        around.opt_level,
        around.required_pass,
        around.disabled_pass,
        config={**around.config, **config},
    )
    # Set here and not passed: they were entered by the context around, and are not entered again.
    extended.instruments = around.instruments
    token = _CURRENT.set(extended)
    try:
        yield extended
    finally:
        _CURRENT.reset(token)
        # An instrument that raised has emptied those of this context, and must be silent outside
        # too.
        around.instruments = extended.instruments


@contextmanager
def with_instruments(instruments: tuple[PassInstrument, ...]) -> Iterator[None]:
    """Replace the current context's instruments for the enclosed block. Hooks of entering and
    leaving are not called for instruments that are active already.
    """
    around = PassContext.current()
    inside = PassContext(
        around.opt_level, around.required_pass, around.disabled_pass, config=around.config
    )
    inside.instruments = instruments
    token = _CURRENT.set(inside)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        if instruments and not inside.instruments:  # one of them raised
            around.instruments = ()


def notify_product(file_name: str, meaning: str, render: Callable[[], str]) -> None:
    """Pass a stage's textual product to the current instruments; `render` is called only
    on demand.
    """
    PassContext.current().notify(
        lambda instrument: instrument.see_product(file_name, meaning, render)
    )


def current_dump() -> PassInstrument | None:
    """Return the instrument that dumps this compilation, or None."""
    return next((d for d in PassContext.current().instruments if d.dumps_compilation), None)


@contextmanager
def attach_dump(dump: PassInstrument | None) -> Iterator[None]:
    """Add a compilation's dump to the instruments of the enclosed block, possibly in another
    thread.
    """
    if dump is None:
        yield
    else:
        with with_instruments((*PassContext.current().instruments, dump)):
            yield


@contextmanager
def dump_if_requested(what: str) -> Iterator[None]:
    """Dump the enclosed compilation if EKIDEN_DUMP requests it; also usable as a decorator. Raises
    InputError for an invalid value of it.
    """
    dump = environment.dump_request()
    with nullcontext() if dump is None else dumps.dump_compilation(what, dump):
        yield


_CURRENT: contextvars.ContextVar[PassContext] = contextvars.ContextVar(
    "PassContext",
    default=PassContext(),  # noqa: B039  every thread of control starts with the same default
)


@contextmanager
def time_phase(name: str, level: int = INFO_LEVEL) -> Iterator[None]:
    """Run a compilation phase under the current instruments and log its duration.

    Around a block or, as a decorator, around a function.
    """
    context = PassContext.current()
    context.notify(lambda instrument: instrument.enter_phase(name))
    started = time.perf_counter()
    try:
        yield
    finally:
        context.notify(lambda instrument: instrument.exit_phase(name))
        LOG.log(level, "%s: %.0f ms", name, 1e3 * (time.perf_counter() - started))
