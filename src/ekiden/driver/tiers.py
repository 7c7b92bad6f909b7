"""An executable whose kernels get better while it runs: general ones at first, then their own code
one by one, in the end the whole program as it is compiled without tiers.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ekiden import runtime
from ekiden.backend.kernels.general import general_function
from ekiden.codegen import llvm
from ekiden.codegen.background import FAILED, Background, stop_all
from ekiden.runtime import load_image
from ekiden.runtime.errors import CompileError
from ekiden.runtime.late import Late, LateLog
from ekiden.target import Target

if TYPE_CHECKING:
    import mmap
else:  # for what stands in the end
    mmap = Late("mmap")

LOG = LateLog(__name__)
GENERAL, COMPILED = "general", "compiled"
"""What a kernel runs as."""
Keep = Callable[[bytes | memoryview], runtime.Executable | None]
"""Puts an artifact into the cache: as it is mapped from there, or None."""


class Upgrade:
    """What follows the compilation in the background. `done` is set once with the program that
    stands in the end, or with `error`.
    """

    def __init__(
        self,
        raw: runtime.Executable,
        job: Background,
        general: Mapping[str, bytes],
        target: Target,
        keep: Keep,
    ) -> None:
        self._raw = raw
        self._job = job
        self._target = target
        self._keep = keep
        self._tiers = {name: GENERAL if name in general else COMPILED for name in raw.primitives}
        self._images: list[runtime.Module] = []
        self.error: BaseException | None = None
        self.made: runtime.Executable | None = None
        self.done = threading.Event()
        self._thread: threading.Thread | None = None
        swap = runtime.get_global_func("ek.executable.swap")
        for name, form in general.items():
            swap(raw, name, general_function(form))
        self._swap = swap

    def begin(self, become: Callable[[runtime.Executable], None]) -> None:
        """Follow what is compiled; `become` gets the program that stands in the end."""
        self._become = become
        self._thread = threading.Thread(target=self._follow, name="ekiden-tiers", daemon=True)
        _FOLLOWED.add(self)
        self._thread.start()

    @property
    def tiers(self) -> dict[str, str]:
        """Name of a kernel -> GENERAL or COMPILED."""
        return dict(self._tiers)

    def wait(self, timeout: float | None = None) -> runtime.Executable:
        """The program that stands in the end. Raises what compiling raised, TimeoutError, and
        CompileError in a fork of the process that compiled.
        """
        if not self._job.is_here and not self.done.is_set():
            raise CompileError(
                "wait: the kernels are compiled for another process, of which this is a fork: wait "
                "before it forks"
            )
        if not self.done.wait(timeout):
            left = sum(tier == GENERAL for tier in self._tiers.values())
            raise TimeoutError(f"wait: {left} kernels are not compiled after {timeout} s")
        if self.error is not None:
            raise self.error
        assert self.made is not None, "either a program or an error"
        return self.made

    def stop(self) -> None:
        """End what is compiled in the background; the kernels stay as they are."""
        if self._thread is None:
            self._job.close()
        else:
            self._job.stop()

    def join(self) -> None:
        """Wait for the thread that follows a job which has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)

    def _follow(self) -> None:
        started = time.perf_counter()
        try:
            for message in self._job.messages():
                self._take(message)
            LOG.info("compile: every kernel has its own code %.2f s later", _since(started))
        except Exception as error:
            self.error = error
            if self._job.is_wanted:
                LOG.error("compile: kernels stay general: %s: %s", type(error).__name__, error)
        finally:
            self._job.close()
            self.done.set()
            _FOLLOWED.discard(self)

    def _take(self, message: tuple[object, ...]) -> None:
        match message:
            case ("kernel", str(name), bytes(code)):
                self._replace(name, code)
            case ("done", int(size)):
                self.made = self._loaded(size)
                self._become(self.made)
                self._tiers = dict.fromkeys(self.made.primitives, COMPILED)
            case (str(kind), BaseException() as error) if kind == FAILED:
                raise error
            case _:
                raise CompileError(f"compile in the background: message {message[:1]} not known")

    def _replace(self, name: str, code: bytes) -> None:
        """Let a kernel be its own code from now on."""
        image = load_image(llvm.link([code], [name], self._target))
        self._swap(self._raw, name, image[name])
        self._tiers[name] = COMPILED
        LOG.debug("kernel %s: its own code", name)

    def _loaded(self, size: int) -> runtime.Executable:
        """The program that the child has written."""
        mapped = mmap.mmap(self._job.result, size, access=mmap.ACCESS_READ)
        with mapped, memoryview(mapped) as data:
            return self._keep(data) or runtime.Executable.from_bytes(data)


def _since(started: float) -> float:
    return time.perf_counter() - started


_FOLLOWED: weakref.WeakSet[Upgrade] = weakref.WeakSet()


def _at_exit() -> None:
    """Nothing of this process stays behind it, and no thread is inside the runtime when it goes."""
    followed = list(_FOLLOWED)
    stop_all()
    for each in followed:
        each.join()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):  # the threads, and the jobs, are the parent's
    os.register_at_fork(after_in_child=_FOLLOWED.clear)

__all__ = ["COMPILED", "GENERAL", "Upgrade"]
