"""Decoding speed of Llamas with random weights, in tokens per second: decoding at two lengths of
context, and reading prompts, beside other engines.

    python benchmarks/decode.py --formats q4_0 q8_0 --threads 1 2 --size 360M
    python benchmarks/decode.py --write FOLDER      its checkpoint, and FOLDER/q4_0.gguf, ...
    python benchmarks/decode.py --read FOLDER       these files, rather than weights made anew
    python benchmarks/decode.py --genai OUT         onnxruntime-genai, of a model made by
        python -m onnxruntime_genai.models.builder -m FOLDER -o OUT -p int4 -e cpu
    python benchmarks/decode.py --llama FILE.gguf --node FOLDER     llama.cpp, where the folder has
        npm install node-llama-cpp

Each engine is a process of its own; they take turns, some tokens each, so that what else the
machine does falls upon all of them. With --cpu times are those that the process was running, which
says more than the clock where others use the machine, and is for one thread alone.

The last column is the share of the memory's bandwidth at which the weights of a token are read, at
the first length: of what the greatest of many integers takes, by NumPy, on as many threads, in turn
with the engines.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from ekiden import llm
from ekiden.llm.checkpoint import Weight
from ekiden.llm.gguf import write_gguf
from ekiden.llm.safetensors import write_safetensors
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME

LLAMA_CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152,
    "head_dim": 64, "max_position_embeddings": 4096, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA_SIZES: Mapping[str, Mapping[str, int]] = {
    "135M": {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3, "intermediate_size": 1536},
    "360M": {"hidden_size": 960, "num_hidden_layers": 32, "num_attention_heads": 15,
             "num_key_value_heads": 5, "intermediate_size": 2560},
}  # fmt: skip
GGUF_TENSOR_NAMES: Mapping[str, str] = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
CONTEXTS, STEPS, CONTEXT = (128, 2048), 12, 2304
BANDWIDTH_READ_BYTES = 1 << 28
"""Bytes that are read to know the bandwidth, more than caches hold."""
FIRST_ORDINARY_TOKEN = 300
"""The first token that is no byte or mark."""


@dataclass(frozen=True)
class RandomCheckpoint:
    """Llama checkpoint of random weights; weights of matrix products are in `format`."""

    size: str = "135M"
    format: str = "float32"

    @property
    def config(self) -> Mapping[str, Any]:
        return {**LLAMA_CONFIG, **LLAMA_SIZES[self.size]}

    def _tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors."""
        config = self.config
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        keys = config["head_dim"] * config["num_key_value_heads"]
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (config["vocab_size"], hidden),
            "model.norm.weight": (hidden,),
        }
        layer = {
            "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }  # fmt: skip
        for n in range(config["num_hidden_layers"]):
            shapes |= {f"model.layers.{n}.{name}.weight": shape for name, shape in layer.items()}
        return shapes

    @property
    def product_weight_bytes(self) -> int:
        """Return the bytes of all product weights, each of which is read once per token."""
        block_format = BLOCK_FORMATS_BY_NAME.get(self.format)
        bits = block_format.bits_per_value if block_format else 32
        return int(
            sum(math.prod(s) for s in self._tensor_shapes().values() if len(s) > 1) * bits / 8
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensor_shapes())

    def __getitem__(self, name: str) -> Weight:
        shape = self._tensor_shapes()[name]
        if len(shape) == 1:
            return Weight.of(name, np.ones(shape, np.float32))
        rng = np.random.default_rng(crc32(name.encode()))
        return Weight.of(name, rng.standard_normal(shape, np.float32) * 0.02, self.format)


def gguf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the GGUF metadata: hyperparameters and a vocabulary."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    types = [2, 3, 3] + [6] * 256
    more = config["vocab_size"] - len(tokens)
    tokens += [f"\u2581t{n}" for n in range(more)]
    return {
        "general.architecture": "llama", "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.rope.freq_base": config["rope_theta"], "llama.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.zeros(len(tokens), np.float32),
        "tokenizer.ggml.token_type": np.array(types + [1] * more, np.int32),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip


def to_gguf_tensor(config: Mapping[str, Any], weight: Weight) -> Weight:
    """Return a tensor under its GGUF name, with query and key rows permuted to interleaved rotary
    pairs.
    """
    name, data = weight.name.removesuffix(".weight"), weight.data
    layer = ""
    if name.startswith("model.layers."):
        _, _, number, name = name.split(".", 3)
        layer = f"blk.{number}."
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}
    if name in heads:
        # GGUF's llama layout interleaves the two halves that rotary embeddings rotate together.
        pairs = data.reshape(config[heads[name]], 2, -1, *data.shape[1:])
        data = np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(data.shape))
    return Weight(f"{layer}{GGUF_TENSOR_NAMES[name]}.weight", weight.format, weight.shape, data)


def write_tokenizer(folder: Path, tokens: Sequence[str]) -> None:
    """Write a whole-word tokenizer, without which onnxruntime-genai's builder creates no model."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415  # for --write alone

    words = models.WordLevel({token: n for n, token in enumerate(tokens)}, unk_token="<unk>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_checkpoint(folder: Path, size: str, formats: Sequence[str]) -> None:
    """Write the checkpoint for other engines."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = RandomCheckpoint(size)
    write_safetensors(folder / "model.safetensors", {n: plain[n] for n in plain})
    (folder / "config.json").write_text(json.dumps(dict(plain.config)))
    write_tokenizer(folder, gguf_metadata(plain.config)["tokenizer.ggml.tokens"])
    for format in formats:
        checkpoint = RandomCheckpoint(size, format)
        weights = [to_gguf_tensor(checkpoint.config, checkpoint[name]) for name in checkpoint]
        write_gguf(folder / f"{format}.gguf", gguf_metadata(checkpoint.config), weights)


# Engines: each has `read`, which begins a text of so many tokens and makes the next one, and
# `step`, which makes one more.

Engine = tuple[Callable[[int], None], Callable[[], None]]


def make_ekiden_engine(
    size: str, format: str, cache: str, threads: int, folder: Path | None = None
) -> Engine:
    """Return Ekiden's engine."""
    checkpoint = RandomCheckpoint(size, format) if folder is None else folder / f"{format}.gguf"
    model = llm.load(checkpoint, sequences=1, context=CONTEXT, cache=cache, num_threads=threads)
    rng = np.random.default_rng(threads)  # a prompt that was read before is in the cache
    streams: list[llm.Stream] = []

    def read_prompt(count: int) -> None:
        while streams:
            streams.pop().close()
        prompt = rng.integers(FIRST_ORDINARY_TOKEN, model.config.vocabulary, count).tolist()
        sampling = llm.Sampling(max_tokens=CONTEXT - count, ignore_end=True)
        streams.append(model.engine.submit(prompt, sampling))
        next(streams[0])

    return read_prompt, lambda: [next(streams[0])].clear()


def make_genai_engine(folder: Path, threads: int) -> Engine:
    """Return onnxruntime-genai's engine."""
    import onnxruntime_genai as genai  # noqa: PLC0415  # where it is asked for

    settings = folder / "genai_config.json"
    settings_json = json.loads(settings.read_text())
    # onnxruntime-genai takes the number of threads from its configuration file only.
    settings_json["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    settings.write_text(json.dumps(settings_json))
    model = genai.Model(str(folder))
    rng = np.random.default_rng(0)
    generators: list[Any] = []

    def read_prompt(count: int) -> None:
        generators.clear()
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=CONTEXT, do_sample=False)
        generators.append(genai.Generator(model, params))
        prompt = rng.integers(FIRST_ORDINARY_TOKEN, LLAMA_CONFIG["vocab_size"], (1, count)).astype(
            np.int32
        )
        generators[0].append_tokens(prompt)
        generators[0].generate_next_token()

    return read_prompt, lambda: generators[0].generate_next_token()


def make_bandwidth_engine(threads: int) -> Engine:
    """Return a pseudo-engine that only reads memory, as the bandwidth limit."""
    slices = np.array_split(np.ones(BANDWIDTH_READ_BYTES // 8, np.int64), threads)
    pool = ThreadPoolExecutor(threads)
    return lambda count: None, lambda: [*pool.map(np.max, slices)].clear()


def resident_bytes() -> int:
    """Return this process's resident bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def serve_requests(engine: Engine, clock: Callable[[], float]) -> None:
    """Answer the JSON lines {"read": tokens} and {"step": tokens} with durations, as
    decode_llama.mjs does.
    """
    read, step = engine
    for line in sys.stdin:
        request = json.loads(line)
        times = []
        for _ in range(request.get("step", 1)):
            start = clock()
            step() if "step" in request else read(request["read"])
            times.append(1e3 * (clock() - start))
        print(json.dumps({"times": times, "memory": resident_bytes()}), flush=True)


class EngineProcess:
    """Engine in a process of its own."""

    def __init__(self, name: str, command: Sequence[str], weights: int = 0) -> None:
        self.name, self.weights = name, weights
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.prompts: dict[int, list[float]] = {}
        self.steps: dict[int, list[float]] = {context: [] for context in CONTEXTS}
        self.memory = 0

    def request_milliseconds(self, **what: int) -> list[float]:
        """Return the milliseconds of each requested action."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                reply = json.loads(line)
                self.memory = reply["memory"]
                return list(reply["times"])
        raise SystemExit(f"{self.name}: ended with {self.process.wait()}")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def read_bandwidth(self, bytes: int) -> float:
        """Return the bytes read per second, if a step at the shortest context reads this many
        bytes.
        """
        return 1e3 * bytes / statistics.median(self.steps[CONTEXTS[0]])

    def print_row(self, threads: int, bandwidth: float) -> None:
        """Print a row of the table."""
        rates = [1e3 / statistics.median(self.steps[context]) for context in CONTEXTS]
        cells = "".join(f"{rate:>10.1f}" for rate in rates)
        prompts = "".join(
            f"{count * 1e3 / statistics.median(times):>12.0f}"
            for count, times in self.prompts.items()
        )
        share = f"{self.read_bandwidth(self.weights) / bandwidth:>8.0%}" if self.weights else ""
        print(f"{self.name:<28}{threads:>8}{prompts}{cells}{rates[1] / rates[0]:>8.2f}"
              f"{self.memory / 2**20:>10.0f}{share}", flush=True)  # fmt: skip


def measure_interleaved(
    workers: Sequence[EngineProcess], rounds: int, prompts: Sequence[int]
) -> None:
    """Measure all engines alternately."""
    for worker in workers:
        worker.request_milliseconds(read=32)
        worker.request_milliseconds(step=2)
    for _ in range(rounds):
        for count in prompts:
            for worker in workers:
                worker.prompts.setdefault(count, []).extend(worker.request_milliseconds(read=count))
    for context in CONTEXTS:
        for worker in workers:
            worker.request_milliseconds(read=context)
        for _ in range(rounds):
            for worker in workers:
                worker.steps[context] += worker.request_milliseconds(step=STEPS)


def start_workers(options: argparse.Namespace, threads: int) -> list[EngineProcess]:
    """Return the requested workers."""
    own = [sys.executable, __file__, "--size", options.size, "--threads", str(threads)]
    own += ["--cpu"] * options.cpu
    own += [] if options.read is None else ["--read", str(options.read)]
    workers = [
        EngineProcess(f"Ekiden {format}, {cache}",
                      [*own, "--work", "--formats", format, "--caches", cache],
                      RandomCheckpoint(options.size, format).product_weight_bytes)
        for format in options.formats
        for cache in options.caches
    ]  # fmt: skip
    for folder in options.genai:
        command = [*own, "--work", "--genai", str(folder)]
        workers.append(EngineProcess(f"onnxruntime-genai {folder.name}", command))
    for file in options.llama:
        script = str(Path(__file__).with_name("decode_llama.mjs"))
        command = ["node", script, str(options.node), str(file), str(threads), str(CONTEXT)]
        command += ["cpu"] * options.cpu
        weights = RandomCheckpoint(options.size, file.stem).product_weight_bytes
        workers.append(EngineProcess(f"llama.cpp {file.name}", command, weights))
    return workers


def make_engine(options: argparse.Namespace, threads: int) -> Engine:
    """Return a worker's engine."""
    if options.memory:
        return make_bandwidth_engine(threads)
    if options.genai:
        return make_genai_engine(options.genai[0], threads)
    return make_ekiden_engine(
        options.size, options.formats[0], options.caches[0], threads, options.read
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(LLAMA_SIZES), default="135M")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--formats", nargs="*", default=["q4_0"])
    parser.add_argument("--caches", nargs="+", default=["float16"], help="dtypes of Ekiden's cache")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--read", type=Path, help="where --write has put files")
    parser.add_argument("--genai", type=Path, nargs="*", default=[])
    parser.add_argument("--llama", type=Path, nargs="*", default=[])
    parser.add_argument("--node", type=Path, default=Path(), help="where node_modules is")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, nargs="+", default=[512], help="tokens of prompts")
    parser.add_argument("--cpu", action="store_true", help="the processor's time, not the clock's")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write is not None:
        write_checkpoint(options.write, options.size, options.formats)
        return
    if options.work:
        threads = options.threads[0]
        serve_requests(
            make_engine(options, threads), time.process_time if options.cpu else time.perf_counter
        )
        return
    if options.cpu and options.threads != [1]:
        parser.error("--cpu is for --threads 1")
    prompts = "".join(f"{f'prompt {count}':>12}" for count in options.prompts)
    columns = "".join(f"{f'at {context}':>10}" for context in CONTEXTS)
    print(f"{'':<28}{'threads':>8}{prompts}{columns}{'ratio':>8}{'MB':>10}{'read':>8}")
    for threads in options.threads:
        command = [sys.executable, __file__, "--threads", str(threads), *["--cpu"] * options.cpu]
        reader = EngineProcess("memory", [*command, "--work", "--memory"])
        workers = start_workers(options, threads)
        measure_interleaved([reader, *workers], options.rounds, options.prompts)
        bandwidth = reader.read_bandwidth(BANDWIDTH_READ_BYTES)
        for worker in workers:
            worker.print_row(threads, bandwidth)
        for worker in (reader, *workers):
            worker.close()
        print(f"memory is read at {bandwidth / 1e9:.1f} GB/s", flush=True)


if __name__ == "__main__":
    main()
