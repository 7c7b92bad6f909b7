"""Profiling with TVM's interface; a virtual machine that reports where its time goes.

machine = VirtualMachineProfiler(executable, ekiden.cpu()) print(machine.profile(x))
"""

from __future__ import annotations

from ekiden.runtime.errors import UnsupportedError
from ekiden.runtime.executable.remote_program import RemoteExecutable
from ekiden.runtime.profile.report import Report, profile
from ekiden.runtime.vm import VirtualMachine


def enabled() -> bool:
    """Return True: machines can always be profiled."""
    return True


class VirtualMachineProfiler(VirtualMachine):
    """Virtual machine with a `profile` method."""

    def profile(
        self,
        *args: object,
        func_name: str = "main",
        collectors: object = None,
        **kwargs: object,
    ) -> Report:
        """Run a function with these arguments, or with what `set_input` set, and return its report.

        `collectors` must be None: there are none but time. Raises ValueError for others,
        UnsupportedError for a program on another machine.
        """
        if collectors is not None:
            raise ValueError("profile: collectors are not known here; None expected")
        if args or kwargs:
            self.set_input(func_name, *args, **kwargs)
        if isinstance(self.module, RemoteExecutable):
            raise UnsupportedError("profile: the program runs on another machine")
        return profile(self.module, func_name, self._collect_inputs(func_name))


__all__ = ["VirtualMachineProfiler", "enabled"]
