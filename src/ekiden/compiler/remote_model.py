"""Compiled model on a remote machine, over an RPC session. `--remote` of the command line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import cast

import numpy as np

from ekiden import runtime
from ekiden.ir.op import Array
from ekiden.rpc import RemoteTensor, RPCSession
from ekiden.runtime.artifact.chunks import Bytes
from ekiden.runtime.artifact.container_format import artifact_metadata, strip_kernels
from ekiden.runtime.artifact.metadata import (
    ANY_RANK_PREFIX,
    OBJECT_DTYPE,
    SEQUENCE_OF_MAPS_PREFIX,
    SEQUENCE_PREFIX,
    STRING_DTYPE,
    TensorInfo,
    target_variants,
    tensor_infos,
)
from ekiden.runtime.errors import InputError
from ekiden.runtime.profile.report import Report, build_report

__all__ = ["RemoteModel"]

_ARTIFACT_NAME = "model.eki"
_MAX_EVENT_WORDS = 1 << 18
"""Maximum words of profile events per message."""


class RemoteModel:
    """Compiled model on a remote machine: the artifact is uploaded once, calls send arrays, and
    results come back as tensors.

    Raises InputError for a model whose inputs or outputs are no tensors or that keeps values
    between runs, and what the session raises: LoadError where the other machine cannot run it.
    """

    def __init__(self, session: RPCSession, data: Bytes) -> None:
        metadata = artifact_metadata(data)
        self.inputs, self.outputs = tensor_infos(metadata, _ARTIFACT_NAME)
        self.target = str(metadata.get("target", "llvm"))
        if "states" in metadata:
            raise InputError(
                "remote: the model keeps state between runs: run it in the process that has the "
                "state"
            )
        for info in (*self.inputs, *self.outputs):
            if not _is_tensor(info):
                raise InputError(f"remote: '{info.name}': a tensor expected, got {info.dtype}")
        self._data = data
        session.upload(bytes(data), _ARTIFACT_NAME)
        self.session, self.module = session, session.load_module(_ARTIFACT_NAME)

    def _send_inputs(self, named: Mapping[str, object]) -> list[object]:
        """Send the inputs in order. Raises InputError for a missing one."""
        device = self.session.cpu()
        expected = {info.name for info in self.inputs}
        if expected != set(named):
            expected_text = ", ".join(f"'{info.name}'" for info in self.inputs)
            raise InputError(
                f"run: expected the inputs {expected_text}, got {', '.join(named) or 'none'}"
            )
        return [device.array(np.asarray(named[info.name])) for info in self.inputs]

    def __call__(self, **named: object) -> runtime.Tensor | tuple[runtime.Tensor, ...]:
        """Run `main` remotely on local arrays, by name."""
        outputs = self.module["main"](*self._send_inputs(named))
        if isinstance(outputs, tuple):
            return tuple(cast(RemoteTensor, output).tensor() for output in outputs)
        return cast(RemoteTensor, outputs).tensor()

    def measure(self, feed: Mapping[str, object], seconds: float) -> list[float]:
        """Return the seconds of at least 5 runs by the remote clock, until `seconds` have passed
        locally.
        """
        sent = self._send_inputs(feed)
        evaluator = self.module.time_evaluator("main", self.session.cpu(), number=1, repeat=5)
        until = time.monotonic() + seconds
        seconds_per_run = list(evaluator(*sent).results)
        while time.monotonic() < until:
            seconds_per_run += evaluator(*sent).results
        return seconds_per_run

    def profile(self, *args: Array) -> Report:
        """Profile `main` remotely on local arrays, by the remote clock, without comparison to the
        machine's peak. Raises InputError for an artifact of several targets, of which the other
        machine has chosen one.
        """
        if len(target_variants(artifact_metadata(self._data))) > 1:
            raise InputError("profile: with --remote an artifact for one target expected")
        local = runtime.Executable.from_bytes(strip_kernels(self._data, 0))
        device = self.session.cpu()
        sent = [device.array(np.asarray(argument)) for argument in args]
        self.module["main"](*sent)
        threads = self.session.get_function("ek.runtime.num_threads")(0)
        profile_data = self.module["profile"](local.index("main"), _MAX_EVENT_WORDS, *sent)
        return build_report(local, profile_data, cast(int, threads))


def _is_tensor(info: TensorInfo) -> bool:
    return info.dtype not in (STRING_DTYPE, OBJECT_DTYPE) and not info.dtype.startswith(
        (SEQUENCE_PREFIX, SEQUENCE_OF_MAPS_PREFIX, ANY_RANK_PREFIX)
    )
