"""Protocol-independent serving core: requests, models, sequences, metrics, shutdown."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ekiden import __version__
from ekiden.runtime.errors import EkidenError, RequestError
from ekiden.serve.batcher import PendingArrivals
from ekiden.serve.config import ServerConfig
from ekiden.serve.datatypes import Array
from ekiden.serve.event_loop_yield import yielding_to_loop
from ekiden.serve.failure_reasons import to_request_error
from ekiden.serve.logs import JsonLog
from ekiden.serve.metrics import ServerMetrics
from ekiden.serve.repository import (
    NOT_RESIDENT,
    ModelRepository,
    ModelVersion,
    ServedModel,
    VersionState,
)
from ekiden.serve.requests import (
    InferRequest,
    InferResponse,
    SequencePosition,
    answer_too_large_error,
    check_answer_size,
)
from ekiden.serve.sequences import ActiveSequence
from ekiden.serve.signature import TensorPort
from ekiden.serve.statistics import model_configuration
from ekiden.serve.tracing import Tracer

__all__ = ["PROTOCOL_EXTENSIONS", "ServingEngine"]

READER_THREADS = 2
"""Threads that read and write long messages: more would take turns at Python's lock, and the event
loop with them."""
PROTOCOL_EXTENSIONS = [
    "binary_tensor_data", "classification", "model_configuration", "model_repository", "sequence",
    "statistics",
]  # fmt: skip
Result = TypeVar("Result")


class ServingEngine:
    """Protocol-independent serving engine: models, sequences, metrics, and draining at shutdown."""

    def __init__(self, folder: Path, config: ServerConfig) -> None:
        self.config = config
        self.log = JsonLog(config.log)
        self.metrics = ServerMetrics()
        self.arrivals = PendingArrivals()
        self.tracer = Tracer(config.traces)
        self.repository = ModelRepository(
            folder, self._log_event, self.metrics.count_run,
            loads_on_demand=config.load == "demand", model_bytes=config.model_bytes,
            prompt_cache=_shared_prompt_cache(config),
        )  # fmt: skip
        self.metrics.register_residents(self.repository.residents)
        self.is_stopping = False
        self.has_started = False
        """Whether all that the folder has at first was tried."""
        self.in_flight = 0
        self.num_begun = 0
        """Requests since the start."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._held = 0
        self._readers = ThreadPoolExecutor(READER_THREADS, "read")

    def hold_bytes(self, count: int) -> None:
        """Count the bytes of an arriving request against the limit, until `release_bytes`."""
        if self._held + count > self.config.limits.held_bytes:
            raise RequestError("too many bytes of other requests are held", "busy", 1.0)
        self._held += count

    def release_bytes(self, count: int) -> None:
        """Release counted bytes."""
        self._held -= count

    async def run_on_reader(self, call: Callable[[], Result]) -> Result:
        """Run a function that parses or serialises a long message on a reader thread, yielding to
        the event loop every few milliseconds.
        """
        loop = asyncio.get_running_loop()

        def call_with_yields() -> Result:
            """Call the function in the reader thread with yields to the event loop."""
            with yielding_to_loop(loop):
                return call()

        return await loop.run_in_executor(self._readers, call_with_yields)

    def _log_event(self, event: str, **fields: object) -> None:
        self.log.write("warning" if event.endswith("failed") else "info", event, **fields)
        name = str(fields["model"])
        if event == "loaded" and not self.metrics.has_model(name):
            self._register_model(name)

    def _register_model(self, name: str) -> None:
        self.metrics.register_model(
            name, lambda: self._num_waiting(name), lambda: self._num_sequences(name)
        )
        self.metrics.register_prompts(name, lambda: self._prompt_tokens(name))

    def _num_waiting(self, name: str) -> int:
        model = self.repository.models.get(name)
        return 0 if model is None else sum(v.batcher.waiting for v in model.versions.values())

    def _prompt_tokens(self, name: str) -> Mapping[str, int]:
        """Return the prompt tokens of a decoder by their source; none of other models."""
        model = self.repository.models.get(name)
        return getattr(None if model is None else model.text, "prompt_tokens_by_source", {})

    def _num_sequences(self, name: str) -> int:
        model = self.repository.models.get(name)
        return 0 if model is None else len(model.sequences)

    @property
    def is_ready(self) -> bool:
        """Return whether every model of the folder can serve requests: false while one is loaded
        for the first time, and if one could not be loaded.
        """
        models = self.repository.models.values()
        if self.is_stopping or not self.has_started:
            return False
        return all(not (is_initial_loading(model) or has_failed(model)) for model in models)

    def server_metadata(self) -> dict[str, object]:
        """Return the server's name, version and extensions."""
        return {"name": "ekiden", "version": __version__, "extensions": PROTOCOL_EXTENSIONS}

    async def model_metadata(self, name: str, version: str) -> dict[str, object]:
        """Return a model's inputs and outputs. Raises RequestError if it is not ready."""
        model = await self.repository.acquire(name)
        version_served = model.get(version)
        ports = version_served.signature
        return {
            "name": name,
            "versions": [str(number) for number in sorted(model.versions)],
            "platform": "ekiden_text" if version_served.program.text is not None else "ekiden_eki",
            "inputs": [_tensor_metadata(port) for port in ports.inputs],
            "outputs": [_tensor_metadata(port) for port in ports.outputs],
        }

    async def model_configuration(self, name: str, version: str) -> dict[str, object]:
        """Return a model's configuration in Triton's form. Raises RequestError if it is not ready
        or is a text model.
        """
        model = await self.repository.acquire(name)
        served = model.get(version)
        if served.program.executable is None:
            raise RequestError(f"model '{name}' is one of text: it has no tensors")
        is_stateful = served.program.make_session is not None
        return model_configuration(name, served.signature, served.config, is_stateful)

    def model_statistics(self, name: str, version: str) -> list[dict[str, object]]:
        """Return the statistics of a model's versions that have any or are loaded, of all models
        for an empty name. Raises RequestError for an unknown model or version.
        """
        models = [self.repository.get(name)] if name else list(self.repository.models.values())
        rows = []
        for model in models:
            numbers = sorted({*model.statistics, *model.versions})
            if version:
                numbers = [number for number in numbers if str(number) == version]
                if not numbers:
                    model.get(version)  # raises, for an unknown version
            rows += [model.statistics_of(n).as_fields(model.name, n) for n in numbers]
        return rows

    def is_model_ready(self, name: str, version: str) -> bool:
        """Return whether a model can serve requests. Raises RequestError for an unknown name."""
        model = self.repository.get(name)
        if not model.versions and self.repository.loads_on_demand:
            return not (self.is_stopping or model.is_unloaded or has_failed(model))
        try:
            model.get(version)
        except RequestError:
            return False
        return not self.is_stopping

    def repository_index(self, only_ready: bool) -> list[dict[str, str]]:
        """Return every version of every model with its state."""
        rows = []
        for name, model in sorted(self.repository.models.items()):
            waits_for_request = self.repository.loads_on_demand and not model.is_unloaded
            absence = NOT_RESIDENT if waits_for_request else "not loaded"
            for version, state, reason in model.version_states(absence):
                if state is VersionState.READY or not only_ready:
                    rows.append({
                        "name": name, "version": version, "state": state.value, "reason": reason,
                    })  # fmt: skip
        return rows

    def close(self) -> None:
        """Unload all models."""
        self.repository.close()
        self.tracer.close()
        self._readers.shutdown(wait=False, cancel_futures=True)

    def begin_request(self) -> None:
        """Register the start of a request; shutdown waits for its `end_request`. Raises
        RequestError if the server is stopping.
        """
        if self.is_stopping:
            raise RequestError("the server stops", "stopping", 1.0)
        self.in_flight += 1
        self.num_begun += 1
        self._idle.clear()

    def end_request(self) -> None:
        """Register the end of a request."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()

    async def drain(self) -> bool:
        """Refuse new requests and wait for those in flight, up to the configured limit; then fail
        the remaining ones. Whether all have ended by themselves.
        """
        self.is_stopping = True
        if await self._wait_until_idle(self.config.limits.stop_seconds):
            return True
        # Waiting clients get an error now instead of a closed connection later.
        self.repository.runners.fail_all(RequestError("the server stops", "stopping", 1.0))
        await self._wait_until_idle(1.0)
        return False

    async def _wait_until_idle(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def run_counted(self, model: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Run a request with metrics and a tracing span; every error becomes a RequestError."""
        # Unknown names must not become metric labels: clients could create any number of them.
        known_model = model if model in self.repository.models else ""
        started = time.perf_counter()
        reason = "ok"
        try:
            self.begin_request()
            try:
                with self.tracer.span("infer", known_model):
                    return await call()
            finally:
                self.end_request()
        except asyncio.CancelledError:
            reason = "gone"
            raise
        except Exception as error:  # every request is answered
            client_error = to_request_error(error)
            reason = client_error.reason
            self._log_failure(known_model, reason, error)
            raise client_error from error
        finally:
            seconds = time.perf_counter() - started
            self.metrics.count_request(known_model, reason, seconds)
            self.log.log_request(known_model, reason, seconds)

    def _log_failure(self, model: str, reason: str, error: BaseException) -> None:
        """Log a request that failed on the server's side: the error's class and place, no data."""
        if reason == "failed":
            self.log.log_failure(model, error)

    def parse_request(self, model: str, read: Callable[[], Result]) -> Result:
        """Parse a request, counting it if it is invalid. Raises RequestError."""
        try:
            return read()
        except RequestError as error:
            self.count_rejected(model, error)
            raise

    async def parse_on_reader(self, model: str, read: Callable[[], Result]) -> Result:
        """Parse a long request on a reader thread. Raises RequestError."""
        try:
            return await self.run_on_reader(read)
        except RequestError as error:
            self.count_rejected(model, error)
            raise

    def count_rejected(self, model: str, error: RequestError) -> None:
        """Count a request that was refused."""
        known_model = model if model in self.repository.models else ""
        self.metrics.count_request(known_model, error.reason, 0.0)
        self.log.log_request(known_model, error.reason, 0.0)

    async def infer(self, request: InferRequest, is_last: bool = False) -> InferResponse:
        """Return the outputs of a request; `is_last` as in `Batcher.put`. Raises RequestError."""
        started = time.perf_counter()
        number, has_failed = 0, True
        try:
            response = await self.run_counted(
                request.model, lambda: self._infer_checked(request, is_last)
            )
            number, has_failed = int(response.version), False
            return response
        finally:
            model = self.repository.models.get(request.model)
            if model is not None and (number or model.versions):
                statistics = model.statistics_of(number or _requested_version(model, request))
                statistics.count_request(time.perf_counter() - started, has_failed)

    async def _infer_checked(self, request: InferRequest, is_last: bool) -> InferResponse:
        arrived = time.monotonic()
        model = await self.repository.acquire(request.model, request.parameters.seconds)
        if request.parameters.sequence is not None:
            return await self._run_sequence_step(
                model, request, request.parameters.sequence, arrived
            )
        version = model.get(request.version)
        if version.program.executable is None:
            raise RequestError(f"model '{model.name}' is one of text: ask for /v1/chat/completions")
        if version.program.make_session is not None:
            raise RequestError(f"model '{model.name}' keeps a state: name a 'sequence_id'")
        arrays = self._order_inputs(request, version)
        version.add_user()
        try:
            outputs = await version.run(
                arrays, deadline=_request_deadline(version, request, arrived),
                priority=request.parameters.priority, is_last=is_last,
            )  # fmt: skip
        finally:
            version.remove_user()
        return self._make_response(request, version, outputs)

    def _order_inputs(self, request: InferRequest, version: ModelVersion) -> list[Array]:
        """Return a request's arrays in the program's order. Raises RequestError if they do not
        match the signature, or the outputs would exceed the answer limit.
        """
        arrays = request.order_inputs(version.signature)
        # Checked before the run: an answer that is too large would waste it.
        size = version.answer_bytes(arrays)
        if size > self.config.limits.answer_bytes and request.outputs:
            names = {output.name for output in request.outputs}
            size = version.signature.min_output_bytes(arrays, names)
        if size > self.config.limits.answer_bytes:
            raise answer_too_large_error(size, self.config.limits.answer_bytes)
        return arrays

    def _make_response(
        self, request: InferRequest, version: ModelVersion, outputs: list[Array]
    ) -> InferResponse:
        response = InferResponse(
            request.model, str(version.number), request.id, version.signature, outputs
        )
        check_answer_size(request, response, self.config.limits.answer_bytes)
        return response

    async def _run_sequence_step(
        self, model: ServedModel, request: InferRequest, step: SequencePosition, arrived: float
    ) -> InferResponse:
        """Run the next request of a stateful sequence, in order and with its state."""
        live = self._get_or_begin_sequence(model, request.version, step)
        version = live.version
        assert isinstance(version, ModelVersion)
        deadline = _request_deadline(version, request, arrived)
        try:
            arrays = self._order_inputs(request, version)
            # Steps of one sequence run in order; their state is passed from one to the next.
            async with live.lock:
                outputs = await version.run(
                    arrays, deadline=deadline, run=live.session.run,
                    priority=request.parameters.priority,
                )  # fmt: skip
        except RequestError as error:
            if error.reason == "deadline":  # its state is not known to the client
                model.sequences.end(step.id, live)
            raise
        if step.end:
            model.sequences.end(step.id, live)
        return self._make_response(request, version, outputs)

    def _get_or_begin_sequence(
        self, model: ServedModel, version: str, step: SequencePosition
    ) -> ActiveSequence:
        if not step.start:
            return model.sequences.get(step.id)
        return self.begin_sequence(model, model.get(version), step.id)

    def begin_sequence(
        self, model: ServedModel, version: ModelVersion, name: int | str
    ) -> ActiveSequence:
        """Begin a sequence. Raises RequestError for a stateless model."""
        make = version.program.make_session
        if make is None:
            raise RequestError(f"model '{model.name}' keeps no state: it has no sequences")

        def open_sequence() -> ActiveSequence:
            """Open a session of the program and reference its version, which stays loaded while
            sequences use it.
            """
            session = make()
            version.add_user()
            return ActiveSequence(session, version)

        return model.sequences.begin(name, open_sequence)

    async def save_sequence(self, model_name: str, name: str) -> bytes:
        """Return the state of a sequence between two requests as safetensors bytes. Raises
        RequestError.
        """
        model = self.repository.get(model_name)
        live = model.sequences.get(_sequence_name(model, name))
        async with live.lock:
            return await self.run_on_reader(live.save)

    async def restore_sequence(self, model_name: str, name: str, data: bytes) -> None:
        """Begin a sequence from saved state, of this or another server."""
        model = await self.repository.acquire(model_name)
        key = _sequence_name(model, name)
        live = self.begin_sequence(model, model.get(), key)
        try:
            await self.run_on_reader(lambda: live.restore(data))
        except EkidenError:
            model.sequences.end(key, live)
            raise


def is_initial_loading(model: ServedModel) -> bool:
    """Return whether a model is being loaded and no version of it can serve yet."""
    return not model.versions and any(s is VersionState.LOADING for s, _ in model.states.values())


def has_failed(model: ServedModel) -> bool:
    """Return whether a model of the folder could not be loaded; one that was unloaded on request
    has not failed.
    """
    return not model.versions and model.load_failure is not None


def _sequence_name(model: ServedModel, text: str) -> int | str:
    """Convert a sequence name from a URL: digits are a number, as in requests, unless a sequence
    has that text as its name.
    """
    active = dict(model.sequences.items())
    return int(text) if text.isascii() and text.isdigit() and text not in active else text


def _requested_version(model: ServedModel, request: InferRequest) -> int:
    """Return the loaded version that a failed request was for; the newest if it names none or an
    unknown one.
    """
    text = request.version
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return number if number in model.versions else max(model.versions)


def _request_deadline(version: ModelVersion, request: InferRequest, arrived: float) -> float:
    """Return the deadline of a request by its arrival time, both by time.monotonic()."""
    seconds = version.config.seconds
    requested_seconds = request.parameters.seconds
    return arrived + (min(seconds, requested_seconds) if requested_seconds else seconds)


def _tensor_metadata(port: TensorPort) -> dict[str, object]:
    return {"name": port.name, "datatype": port.datatype.name, "shape": port.shape}


def _shared_prompt_cache(config: ServerConfig) -> dict[str, object]:
    """Return the fields of `TextConfig` by which text models share the server's prompt cache."""
    if not config.prompt_cache:
        return {}
    folder = os.path.abspath(config.prompt_cache)
    return {"prompt_cache": folder, "prompt_cache_bytes": config.prompt_cache_bytes}
