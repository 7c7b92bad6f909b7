"""Tiered execution: an executable starts with general kernels, which are replaced by specialised
ones as they are compiled, and finally by the whole program.
"""

from __future__ import annotations

import atexit
import contextvars
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ekiden import runtime
from ekiden.backend.kernels.general import general_function
from ekiden.codegen import llvm, worker_process
from ekiden.codegen.parallel import CancellationToken, CancelledError
from ekiden.ir.pass_context import PassContext
from ekiden.runtime import load_image
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_logger import LazyLogger
from ekiden.target import Target

if TYPE_CHECKING:
    from ekiden.compiler.build import CompiledModel, GeneralProgram

_LOG = LazyLogger(__name__)
GENERAL_TIER, COMPILED_TIER = "general", "compiled"
"""Tiers of a kernel: general or specialised."""
EXIT_TIMEOUT_S = 10.0
"""Seconds that the exit waits for an upgrade thread, which must not be inside the runtime when it
is unloaded. Such a thread must not be inside the runtime when that goes.
"""
UPGRADE_START_DELAY_S = 0.05
"""Delay of an upgrade in seconds, so that it does not contend for the interpreter during the first
run.
"""
StoreArtifact = Callable[["CompiledModel"], runtime.Executable]
"""Function that stores an artifact in the cache and returns its program."""


class TierUpgrade:
    """Background compilation of the specialised kernels of a running executable. `done` is set once
    with the final program, or with `error`.
    """

    def __init__(
        self,
        raw: runtime.Executable,
        general: GeneralProgram,
        target: Target,
        store: StoreArtifact,
        worker_modules: Sequence[str] = (),
    ) -> None:
        """Prepare an upgrade; worker processes preload `worker_modules`."""
        self._raw = raw
        self._finish = general.finish
        self._target = target
        self._store = store
        self._worker_modules = worker_modules
        self._tiers = _kernel_tiers(raw, general.general_kernels)
        self._cancellation = CancellationToken()
        # A fork has the object but not the thread.
        self._owner = os.getpid()
        self.error: BaseException | None = None
        self.program: runtime.Executable | None = None
        self.done = threading.Event()
        self._thread: threading.Thread | None = None
        swap = runtime.get_global_func("ek.executable.swap")
        for name, form in general.general_kernels.items():
            swap(raw, name, general_function(form))
        self._swap = swap

    def start(self, become: Callable[[runtime.Executable], None]) -> None:
        """Start the upgrade; `become` is called with the final program."""
        self._on_final_program = become
        # The PassContext is a context variable, which a new thread would not inherit.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._compile_full_tier,), name="ekiden-tiers", daemon=True
        )
        _RUNNING_UPGRADES.add(self)
        self._thread.start()

    @property
    def tiers(self) -> dict[str, str]:
        """Return the current tier of each kernel."""
        return dict(self._tiers)

    def wait(self, timeout: float | None = None) -> runtime.Executable:
        """Wait for the upgrade; return the final program. Raises what compiling raised,
        TimeoutError, and CompileError in a fork of the process that compiles.
        """
        if os.getpid() != self._owner and not self.done.is_set():
            raise CompileError(
                "wait: the kernels are compiled for another process, of which this is a fork: wait "
                "before it forks"
            )
        if not self.done.wait(timeout):
            pending = sum(tier == GENERAL_TIER for tier in self._tiers.values())
            raise TimeoutError(f"wait: {pending} kernels are not compiled after {timeout} s")
        if self.error is not None:
            raise self.error
        assert self.program is not None, "either a program or an error"
        return self.program

    def stop(self) -> None:
        """Stop the upgrade; kernels keep their current code. Nothing in a fork of the process."""
        if os.getpid() == self._owner:
            self._cancellation.cancel()

    def join(self) -> None:
        """Wait for the thread of a stopped upgrade."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(EXIT_TIMEOUT_S)

    def _compile_full_tier(self) -> None:
        started = time.perf_counter()
        try:
            self._cancellation.wait(UPGRADE_START_DELAY_S)
            worker_process.preload_modules(self._worker_modules)
            with _context_without_instruments():
                artifact = self._finish(self._install_kernel, self._cancellation)
                self.program = self._store(artifact)
            # The swap comes last: until then calls run with kernels replaced one by one.
            self._on_final_program(self.program)
            self._tiers = dict.fromkeys(self.program.primitives, COMPILED_TIER)
            seconds = time.perf_counter() - started
            _LOG.info("compile: every kernel has its own code %.2f s later", seconds)
        except CancelledError:
            self.error = CompileError("compile in the background: it was stopped")
        except Exception as error:
            self.error = error
            _LOG.error("compile: kernels stay general: %s: %s", type(error).__name__, error)
        finally:
            del self._finish  # which holds the whole program that was compiled
            self.done.set()
            _RUNNING_UPGRADES.discard(self)

    def _install_kernel(self, name: str, code: bytes) -> None:
        """Install a kernel's specialised code in the running executable."""
        self._cancellation.check()
        image = load_image(llvm.link_image([code], [name], self._target))
        self._swap(self._raw, name, image[name])
        self._tiers[name] = COMPILED_TIER
        _LOG.debug("kernel %s: its own code", name)


def _kernel_tiers(raw: runtime.Executable, general: Mapping[str, bytes]) -> dict[str, str]:
    return {name: GENERAL_TIER if name in general else COMPILED_TIER for name in raw.primitives}


def _context_without_instruments() -> PassContext:
    """Return the current PassContext without instruments: they observe the compilation in the
    thread that created them.
    """
    current = PassContext.current()
    return PassContext(
        current.opt_level, current.required_pass, current.disabled_pass, config=current.config
    )


_RUNNING_UPGRADES: weakref.WeakSet[TierUpgrade] = weakref.WeakSet()


def _stop_at_exit() -> None:
    """Stop all running upgrades at exit, before the runtime is unloaded."""
    running = list(_RUNNING_UPGRADES)
    for upgrade in running:
        upgrade.stop()
    for upgrade in running:
        upgrade.join()


atexit.register(_stop_at_exit)
if hasattr(os, "register_at_fork"):  # the threads are the parent's
    os.register_at_fork(after_in_child=_RUNNING_UPGRADES.clear)

__all__ = ["COMPILED_TIER", "GENERAL_TIER", "TierUpgrade"]
