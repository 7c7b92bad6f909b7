"""A soak of a server of text: clients that come at random, read, leave, die, flood and ask for
nonsense, while every answer that is read whole must be the one it always was.

    python tests/serve/soak_texts.py --seconds 3600 --clients 16 --seed 1

prints one line of JSON: how many requests of each kind there were, the greatest pause of the
engine's loop between two steps while there was work and the longest step, both by the clock and by
the processor time of the loop's thread, the longest garbage collection, and what the server held
before and after. It ends with 1 where an answer was wrong, a model did not answer at the end, or
something was held that nobody used. The server is a process of its own, with a Llama of random
weights.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "llm")]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 999}, "y": {"enum": ["a"]}},
    "required": ["x", "y"],
}
QUEUE = 24
"""Answers at once for each model, of which four are made and the others wait."""
MODELS = {"patient": 120.0, "hasty": 0.2}
"""Model -> seconds that a request may take."""
SETTLE_SECONDS = 30.0
WARM_SECONDS = 10.0
"""Until all threads of the server's pools have begun, which end with it."""


# The server.


class ByteTokenizer:
    """Tokenizer whose tokens are bytes, named as SentencePiece names them."""

    decoder = None

    def encode(self, text: str, add_special_tokens: bool = True) -> SimpleNamespace:
        """Return the tokens of a text."""
        return SimpleNamespace(ids=list(text.encode()))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens."""
        return bytes(ids).decode(errors="replace")

    def id_to_token(self, token: int) -> str:
        """Return the name of a token."""
        return f"<0x{token:02X}>"


def serve(folder: str) -> None:
    """Serve both models until SIGTERM, answering GET /soak by what the process holds."""
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from tiny_models import tiny

    from ekiden import llm
    from ekiden.llm.engine import Engine
    from ekiden.llm.tokenizer import Tokenizer
    from ekiden.serve import ModelConfig, Server
    from ekiden.serve.decoders import DecoderTextModel
    from ekiden.serve.routes import Route
    from ekiden.serve.server import _loop_factory, relax_gc

    tokenizer = Tokenizer(ByteTokenizer(), {"chat_template": TEMPLATE})
    checkpoint = tiny("llama", vocab_size=256, max_position_embeddings=2048)
    pauses = Pauses()
    step, call = Engine.step, llm.Model._call_entry

    def timed_step(engine: Engine) -> None:
        pauses.begin(engine)
        step(engine)
        pauses.end(engine)

    def timed_call(model: llm.Model, entry: str, *inputs: object) -> object:
        began = time.thread_time()
        try:
            return call(model, entry, *inputs)
        finally:
            pauses.program[id(model)] += time.thread_time() - began

    Engine.step = timed_step  # type: ignore[method-assign]
    llm.Model._call_entry = timed_call  # type: ignore[method-assign]
    server = Server(folder, port=0, log="error", grpc=False)
    served = {
        name: DecoderTextModel(
            llm.load(checkpoint, page=16, sequences=4, tokenizer=tokenizer, context=2048)
        )
        for name in MODELS
    }

    async def held(request: Request) -> Response:
        if not any(m._model.engine._running for m in served.values()):
            gc.collect()  # a full collection would be a pause of texts under way
        models = server.engine.repository.models
        pages = {name: m._model.engine.pages.num_available for name, m in served.items()}
        return JSONResponse({
            "users": {name: models[name].get().num_users for name in MODELS},
            "texts": {
                name: len(m._model.engine._running) + len(m._model.engine._waiting)
                for name, m in served.items()
            },
            "free_pages": pages,
            "threads": threading.active_count(),
            "files": len(os.listdir("/proc/self/fd")),
            "rss_mb": int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20,
            **{f"longest_{name}_ms": round(1e3 * s, 1) for name, s in pauses.longest.items()},
            "steps": pauses.steps,
        })  # fmt: skip

    async def run() -> None:
        started, stop = asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        serving = asyncio.ensure_future(server.serve(stop, started))
        await started.wait()
        for name, model in served.items():
            config = ModelConfig(queue=QUEUE, seconds=MODELS[name])
            server.engine.repository.add_text(name, model, config)
        relax_gc()  # as `ekiden serve` does: a full collection of what compiling left is a pause
        pauses.longest["collection"] = 0.0
        print(server.port, flush=True)
        await serving

    from ekiden.serve.openai_routes import OpenAIRoutes

    routes = OpenAIRoutes.routes
    OpenAIRoutes.routes = lambda self: [*routes(self), Route("/soak", held)]  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run())


class Pauses:
    """Clock of an engine's loop: how long it did not step although it had texts. What takes the
    processor from it is in the times by the clock alone, and not in those of its thread.
    """

    def __init__(self) -> None:
        names = ("step", "pause", "step_processor", "host_processor", "pause_processor",
                 "collection")  # fmt: skip
        self.longest = dict.fromkeys(names, 0.0)
        self.steps = 0
        self.program: dict[int, float] = defaultdict(float)
        """Processor seconds of each model's calls within the step that it makes."""
        self._began: dict[int, tuple[float, float]] = {}
        self._ended: dict[int, tuple[float, float]] = {}
        self._collection_began = 0.0
        gc.callbacks.append(self._time_collection)

    def _time_collection(self, phase: str, info: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._collection_began = now
        elif info["generation"]:
            self._note("collection", now - self._collection_began)

    def _note(self, name: str, seconds: float) -> None:
        self.longest[name] = max(self.longest[name], seconds)

    def begin(self, engine: Any) -> None:  # noqa: ANN401  # an Engine
        """Take the time before a step."""
        now, used = self._began[id(engine)] = time.perf_counter(), time.thread_time()
        if id(engine) in self._ended and engine._running:
            self._note("pause", now - self._ended[id(engine)][0])
            self._note("pause_processor", used - self._ended[id(engine)][1])
        self.program[id(engine.model)] = 0.0

    def end(self, engine: Any) -> None:  # noqa: ANN401  # an Engine
        """Take the time after a step."""
        now, used = self._ended[id(engine)] = time.perf_counter(), time.thread_time()
        self._note("step", now - self._began[id(engine)][0])
        step_used = used - self._began[id(engine)][1]
        self._note("step_processor", step_used)
        self._note("host_processor", step_used - self.program[id(engine.model)])
        self.steps += 1


@contextmanager
def server_process(folder: Path) -> Iterator[int]:
    """The server as a process; yields its port."""
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(SETTLE_SECONDS)
        process.stdout.close()


# The clients.


class Soak:
    """Clients of one server, and what they saw."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self._seed = port, seed
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._expected: dict[str, str] = {}
        self._lock = threading.Lock()

    def run(self, seconds: float, clients: int) -> None:
        """Let clients come for so long."""
        ends = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._client, args=(random.Random(self._seed + n), ends))
            for n in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, random_numbers: random.Random, ends: float) -> None:
        while time.monotonic() < ends:
            name, act = random_numbers.choice(ACTS)
            try:
                act(self, random_numbers)
                self._count(name)
            except (OSError, http.client.HTTPException) as error:
                self._fault(f"{name}: {type(error).__name__}: {error}")
            time.sleep(random_numbers.expovariate(50))

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def _fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """One request on a connection of its own, read whole."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def check(self, key: str, status: int, text: str) -> None:
        """Compare an answer with the first of its kind; a full queue is an answer too."""
        if status == 429:
            self._count("told to come again")
            return
        if status != 200:
            self._fault(f"{key}: status {status}: {text[:200]}")
            return
        with self._lock:
            expected = self._expected.setdefault(key, text)
        if text != expected:
            self._fault(f"{key}: {text!r} is not {expected!r}")

    def held(self) -> dict[str, Any]:
        """What the server holds now."""
        status, data = self.request("GET", "/soak")
        assert status == 200, data
        held = json.loads(data)
        assert isinstance(held, dict)
        return held


def chat_body(numbers: random.Random, **argument: object) -> dict[str, Any]:
    seed = numbers.randrange(20)
    return {
        "model": "patient", "messages": [{"role": "user", "content": "hello " * (1 + seed * 3)}],
        "seed": seed, "max_tokens": 8 + seed * 4, "ignore_eos": True, **argument,
    }  # fmt: skip


def ask_whole(soak: Soak, numbers: random.Random) -> None:
    body = chat_body(numbers)
    status, data = soak.request("POST", "/v1/chat/completions", body)
    text = json.loads(data)["choices"][0]["message"]["content"] if status == 200 else str(data)
    soak.check(f"chat {body['seed']}", status, text)


def ask_stream(soak: Soak, numbers: random.Random) -> None:
    body = chat_body(numbers, stream=True)
    status, data = soak.request("POST", "/v1/chat/completions", body)
    text = data.decode()
    if status == 200:
        events = [line[6:] for line in text.split("\n\n") if line]
        assert events.pop() == "[DONE]", text
        deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
        text = "".join(delta.get("content", "") for delta in deltas)
    soak.check(f"chat {body['seed']}", status, text)


def ask_form(soak: Soak, numbers: random.Random) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    body = chat_body(numbers, response_format=form, ignore_eos=False)
    status, data = soak.request("POST", "/v1/chat/completions", body)
    text = json.loads(data)["choices"][0]["message"]["content"] if status == 200 else str(data)
    soak.check(f"form {body['seed']}", status, text)


def ask_scores(soak: Soak, numbers: random.Random) -> None:
    seed = numbers.randrange(20)
    body = {
        "model": "patient", "prompt": ["ab", "cd"], "n": 2, "logprobs": 2, "seed": seed,
        "max_tokens": 6, "frequency_penalty": 0.5, "ignore_eos": True,
    }  # fmt: skip
    status, data = soak.request("POST", "/v1/completions", body)
    text = str([c["text"] for c in json.loads(data)["choices"]]) if status == 200 else str(data)
    soak.check(f"scores {seed}", status, text)


def ask_nonsense(soak: Soak, numbers: random.Random) -> None:
    bodies: list[object] = [
        b"{", b"[]", b"\xff" * 20, {"model": "none", "messages": []},
        chat_body(numbers, temperature=9), chat_body(numbers, nothing=1),
        chat_body(numbers, max_tokens=10**9), chat_body(numbers, stop=[""]),
    ]  # fmt: skip
    status, data = soak.request("POST", "/v1/chat/completions", numbers.choice(bodies))
    if status not in (200, 400, 404, 429):
        soak._fault(f"nonsense: status {status}: {data[:200]!r}")


def ask_hasty(soak: Soak, numbers: random.Random) -> None:
    """A text that takes longer than its model gives."""
    body = {**chat_body(numbers, max_tokens=2000), "model": "hasty"}
    status, data = soak.request("POST", "/v1/chat/completions", body)
    if status not in (200, 429, 504):
        soak._fault(f"deadline: status {status}: {data[:200]!r}")
    soak._count(f"deadline {status}")


def leave(soak: Soak, numbers: random.Random) -> None:
    """Leave in the middle: by an end, by a reset, or before the request is whole."""
    body = json.dumps(chat_body(numbers, stream=numbers.random() < 0.7, max_tokens=1500)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        "Content-Type: application/json\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", soak.port), 180) as connection:
        whole = head + body
        is_cut = numbers.random() < 0.2
        connection.sendall(whole[: numbers.randrange(len(whole))] if is_cut else whole)
        if not is_cut and numbers.random() < 0.7:
            with suppress(ConnectionError):
                connection.recv(1 << 12)
        time.sleep(numbers.random() * 0.05)
        if numbers.random() < 0.5:  # a reset rather than an end, as of a process that is killed
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def flood(soak: Soak, numbers: random.Random) -> None:
    """More at once than the queue holds."""
    seeds = [random.Random(numbers.random()) for _ in range(QUEUE + 8)]
    threads = [threading.Thread(target=ask_whole, args=(soak, seed)) for seed in seeds]
    if numbers.random() < 0.9:
        return
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ACTS: list[tuple[str, Callable[[Soak, random.Random], None]]] = [
    ("whole", ask_whole), ("stream", ask_stream), ("stream", ask_stream), ("form", ask_form),
    ("scores", ask_scores), ("nonsense", ask_nonsense), ("hasty", ask_hasty), ("left", leave),
    ("left", leave), ("flood", flood),
]  # fmt: skip


def settled(soak: Soak) -> dict[str, Any]:
    """What the server holds once it has nothing under way, or after a while in any case."""
    ends = time.monotonic() + SETTLE_SECONDS
    while True:
        held = soak.held()
        is_free = not any(held["users"].values()) and not any(held["texts"].values())
        if is_free or time.monotonic() > ends:
            return held
        time.sleep(0.05)


def soak_server(folder: Path, seconds: float, clients: int, seed: int) -> dict[str, Any]:
    """Soak a server; return what was seen. Empty "faults" say that all was right."""
    with server_process(folder) as port:
        soak = Soak(port, seed)
        # A first round fills caches, and says what answers are when nothing is beside them.
        for act in (ask_whole, ask_stream, ask_form, ask_scores):
            for number in range(20):
                numbers = random.Random(number)
                act(soak, numbers)
        soak.run(min(seconds / 2, WARM_SECONDS), clients)
        before = settled(soak)
        soak.run(seconds, clients)
        after = settled(soak)
        for key in ("threads", "files"):
            if after[key] > before[key]:
                soak._fault(f"{key}: {before[key]} before, {after[key]} after")
        if after["free_pages"] != before["free_pages"]:
            soak._fault(f"pages: {before['free_pages']} before, {after['free_pages']} after")
        for key in ("users", "texts"):
            if any(after[key].values()):
                soak._fault(f"{key}: {after[key]} are held that nobody uses")
        ask_whole(soak, random.Random(0))  # the models live
        hasty = {**chat_body(random.Random(0), max_tokens=1), "model": "hasty"}
        status, data = soak.request("POST", "/v1/chat/completions", hasty)
        if status != 200:
            soak._fault(f"at the end: status {status}: {data[:200]!r}")
        counts = dict(sorted(soak.counts.items()))
        return {"counts": counts, "before": before, "after": after, "faults": soak.faults}


def main() -> int:
    """Run the soak, or its server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--serve", metavar="FOLDER", help="be the server of another process")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        seen = soak_server(Path(folder), options.seconds, options.clients, options.seed)
    print(json.dumps(seen))
    return 1 if seen["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
