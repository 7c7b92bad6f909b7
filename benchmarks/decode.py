"""Tokens a second of a Llama of 135M with random weights: decoding at two lengths of context, and
reading a prompt of 512.

    python benchmarks/decode.py --threads 1 2
    python benchmarks/decode.py --write FOLDER       its checkpoint, for other engines to convert
    python benchmarks/decode.py --genai FOLDER       a model of onnxruntime-genai beside it:
        python -m onnxruntime_genai.models.builder -m FOLDER -o OUT -p int4 -e cpu
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from ekiden import llm
from ekiden.llm.safetensors import write_safetensors
from ekiden.llm.weights import Weight

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152,
    "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 1536, "max_position_embeddings": 4096,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONTEXTS, PROMPT, STEPS = (128, 2048), 512, 24


@dataclass(frozen=True)
class Random:
    """The checkpoint; products have their weights in `format`."""

    format: str = "float32"

    @property
    def config(self) -> Mapping[str, object]:
        return CONFIG

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        keys = hidden // CONFIG["num_attention_heads"] * CONFIG["num_key_value_heads"]
        found: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (CONFIG["vocab_size"], hidden),
            "model.norm.weight": (hidden,),
        }
        layer = {
            "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }  # fmt: skip
        for n in range(CONFIG["num_hidden_layers"]):
            found |= {f"model.layers.{n}.{name}.weight": shape for name, shape in layer.items()}
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes())

    def __getitem__(self, name: str) -> Weight:
        shape = self._shapes()[name]
        if len(shape) == 1:
            return Weight.of(name, np.ones(shape, np.float32))
        rng = np.random.default_rng(crc32(name.encode()))
        return Weight.of(name, rng.standard_normal(shape, np.float32) * 0.02, self.format)


def rates(read: Callable[[int], None], step: Callable[[], None]) -> tuple[float, list[float]]:
    """(tokens a second of a prompt, of decoding at each context). `read` begins a text of so many
    tokens, `step` makes its next one."""
    found, prompts = [], []
    for _ in range(2):
        start = time.perf_counter()
        read(PROMPT)
        prompts.append(time.perf_counter() - start)
    for context in CONTEXTS:
        read(context)
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        found.append(1 / float(np.median(times)))
    return PROMPT / min(prompts), found


def of_ekiden(model: llm.Model, threads: int) -> tuple[float, list[float]]:
    """Those of Ekiden."""
    model.exe.num_threads = threads
    rng = np.random.default_rng(threads)  # a prompt that was read before is in the cache
    stream: list[llm.Stream] = []

    def read(count: int) -> None:
        while stream:
            stream.pop().close()
        prompt = rng.integers(0, CONFIG["vocab_size"], count).tolist()
        stream.append(model.engine.submit(prompt, llm.Sampling(max_tokens=STEPS + 2)))
        next(stream[0])

    def step() -> None:
        next(stream[0])

    return rates(read, step)


def of_genai(folder: Path, threads: int) -> tuple[float, list[float]]:
    """Those of onnxruntime-genai."""
    import onnxruntime_genai as genai  # noqa: PLC0415  # where it is asked for

    settings = folder / "genai_config.json"
    given = json.loads(settings.read_text())
    options = given["model"]["decoder"]["session_options"]
    options["intra_op_num_threads"] = threads
    settings.write_text(json.dumps(given))
    model = genai.Model(str(folder))
    rng = np.random.default_rng(0)
    generators: list[Any] = []

    def read(count: int) -> None:
        generators.clear()
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=count + STEPS + 2, do_sample=False)
        generators.append(genai.Generator(model, params))
        generators[0].append_tokens(rng.integers(3, CONFIG["vocab_size"], (1, count)).astype("i4"))
        generators[0].generate_next_token()

    return rates(read, lambda: generators[0].generate_next_token())


def show(name: str, threads: int, found: tuple[float, list[float]]) -> None:
    """A line of the table."""
    prompt, steps = found
    cells = "".join(f"{rate:>12.1f}" for rate in steps)
    print(f"{name:<24}{threads:>8}{prompt:>14.0f}{cells}{steps[1] / steps[0]:>8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--formats", nargs="+", default=["float32"])
    parser.add_argument("--cache", default="float32")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--genai", type=Path)
    options = parser.parse_args()
    if options.write is not None:
        options.write.mkdir(parents=True, exist_ok=True)
        checkpoint = Random()
        write_safetensors(
            options.write / "model.safetensors", {n: checkpoint[n] for n in checkpoint}
        )
        (options.write / "config.json").write_text(json.dumps(dict(CONFIG)))
        return
    print(f"{'':<24}{'threads':>8}{'prompt 512':>14}{'at 128':>12}{'at 2048':>12}{'ratio':>8}")
    for format in options.formats:
        model = llm.load(Random(format), sequences=1, cache=options.cache)
        for threads in options.threads:
            show(f"Ekiden {format}", threads, of_ekiden(model, threads))
    if options.genai is not None:
        for threads in options.threads:
            show("onnxruntime-genai", threads, of_genai(options.genai, threads))


if __name__ == "__main__":
    main()
