"""Decoders of state-space layers: texts with states in the place of pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_logits import forward
from numpy.typing import NDArray
from tiny_models import Memory, plain

from ekiden import llm
from ekiden.llm.decoder_config import read_config
from ekiden.runtime.errors import EkidenError, ImportModelError, InputError, UnsupportedError

Floats = NDArray[np.float64]
SIZES = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4,
         "eos_token_id": None}  # fmt: skip
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "mamba": {**SIZES, "architectures": ["MambaForCausalLM"], "time_step_rank": 3,
              "conv_kernel": 3},
    "mamba2": {**SIZES, "architectures": ["Mamba2ForCausalLM"], "num_heads": 8, "head_dim": 4,
               "n_groups": 2, "use_bias": True},
}  # fmt: skip
IDS = np.random.default_rng(2).integers(0, 61, 40).tolist()


def checkpoint(name: str, **changes: object) -> Memory:
    """A small model with random weights."""
    config = {**CONFIGS[name], **changes}
    c = read_config(config)
    sizes = c.state_space
    assert sizes is not None
    inner, heads, size = sizes.inner, sizes.heads, sizes.size
    shapes: dict[str, tuple[int, ...]] = {
        "backbone.embeddings.weight": (c.vocabulary, c.hidden),
        "backbone.norm_f.weight": (c.hidden,),
    }
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocabulary, c.hidden)
    for n in range(c.layers):
        at = f"backbone.layers.{n}."
        mixer = {
            "in_proj.weight": (inner + sizes.convolved + (heads or 0), c.hidden),
            "conv1d.weight": (sizes.convolved, 1, sizes.kernel), "conv1d.bias": (sizes.convolved,),
            "A_log": (heads,) if heads else (inner, size), "D": (heads or inner,),
            "out_proj.weight": (c.hidden, inner),
        }  # fmt: skip
        if heads:
            mixer |= {
                "dt_bias": (heads,),
                "norm.weight": (inner,),
                "in_proj.bias": mixer["in_proj.weight"][:1],
                "out_proj.bias": (c.hidden,),
            }
        else:
            rank = sizes.step_rank
            mixer |= {"x_proj.weight": (rank + 2 * size, inner), "dt_proj.weight": (inner, rank),
                      "dt_proj.bias": (inner,)}  # fmt: skip
        shapes[f"{at}norm.weight"] = (c.hidden,)
        shapes |= {f"{at}mixer.{name}": shape for name, shape in mixer.items()}
    rng = np.random.default_rng(0)
    tensors = {
        name: plain(name, rng.normal(size=shape) * 0.4 + ("norm" in name))
        for name, shape in shapes.items()
    }
    return Memory(config, tensors)


def silu(x: Floats) -> Floats:
    return x / (1 + np.exp(-x))


class Reference:
    """The logits of a checkpoint by NumPy in float64, a token after the other."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.config = memory, read_config(memory.config)

    def value(self, name: str) -> Floats:
        stored = self.memory.tensors
        return np.asarray(stored[name].data, np.float64) if name in stored else np.zeros(1)

    def norm(self, x: Floats, name: str, groups: int = 1) -> Floats:
        parts = x.reshape(*x.shape[:-1], groups, -1)
        parts = parts / np.sqrt((parts**2).mean(-1, keepdims=True) + self.config.epsilon)
        return parts.reshape(x.shape) * self.value(f"{name}.weight")

    def mixer(self, at: str, x: Floats) -> Floats:
        sizes = self.config.state_space
        assert sizes is not None
        inner, heads, size, groups = sizes.inner, sizes.heads, sizes.size, sizes.groups
        both = x @ self.value(f"{at}in_proj.weight").T + self.value(f"{at}in_proj.bias")
        if heads:
            gate, data, steps = np.split(both, [inner, inner + sizes.convolved], -1)
        else:
            data, gate = np.split(both, 2, -1)
        kernel = self.value(f"{at}conv1d.weight")[:, 0]
        before = np.concatenate([np.zeros((sizes.kernel - 1, data.shape[1])), data])
        data = silu(self.value(f"{at}conv1d.bias") + np.stack(
            [(before[n : n + sizes.kernel].T * kernel).sum(-1) for n in range(len(x))]
        ))  # fmt: skip
        rates = -np.exp(self.value(f"{at}A_log"))
        if heads:
            data, into, out_of = np.split(data, [inner, inner + groups * size], -1)
            steps = steps + self.value(f"{at}dt_bias")
            steps = np.repeat(
                np.clip(np.log1p(np.exp(steps)), *sizes.step_limits), inner // heads, -1
            )
            rates = np.repeat(rates, inner // heads)[:, None]
        else:
            low = data @ self.value(f"{at}x_proj.weight").T
            low, into, out_of = np.split(low, [sizes.step_rank, sizes.step_rank + size], -1)
            steps = low @ self.value(f"{at}dt_proj.weight").T + self.value(f"{at}dt_proj.bias")
            steps = np.log1p(np.exp(steps))
        state, rows = np.zeros((inner, size)), []
        for n in range(len(x)):
            b, c = (
                np.repeat(v[n].reshape(groups, size), inner // groups, 0) for v in (into, out_of)
            )
            step = steps[n][:, None]
            state = np.exp(step * rates) * state + step * b * data[n][:, None]
            rows.append((state * c).sum(-1))
        skip = self.value(f"{at}D")
        y = np.stack(rows) + data * np.repeat(skip, inner // len(skip))
        y = y * silu(gate)
        y = self.norm(y, f"{at}norm", groups) if heads else y
        return y @ self.value(f"{at}out_proj.weight").T + self.value(f"{at}out_proj.bias")

    def logits(self, ids: Sequence[int]) -> Floats:
        x = self.value("backbone.embeddings.weight")[list(ids)]
        for n in range(self.config.layers):
            at = f"backbone.layers.{n}."
            x = x + self.mixer(f"{at}mixer.", self.norm(x, f"{at}norm"))
        head = "backbone.embeddings.weight" if self.config.tied else "lm_head.weight"
        return self.norm(x, "backbone.norm_f") @ self.value(head).T


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("changes", [{}, {"time_step_limit": [0.3, 0.9]}], ids=["", "limits"])
def test_states_go_on_where_a_part_of_a_text_ended(name: str, changes: dict[str, Any]) -> None:
    memory = checkpoint(name, **changes)
    expected = Reference(memory).logits(IDS[:20])
    actual = forward(memory, np.array(IDS[:20]), (12, 1, 2, 5), "interpreter")
    assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.fixture(scope="module", params=CONFIGS)
def memory(request: pytest.FixtureRequest) -> Memory:
    return checkpoint(request.param)


@pytest.fixture(scope="module")
def model(memory: Memory) -> llm.Model:
    return llm.load(memory, sequences=3, context=64)


def test_texts_together_are_those_of_the_reference(memory: Memory, model: llm.Model) -> None:
    reference = Reference(memory)
    prompts = [IDS[:30], IDS[5:9], IDS[:30], [7], IDS[10:33]]
    for steps in (1, 4):
        engine = llm.Engine(model, sequences=3, chunk=8, steps=steps)
        answers = engine.run(prompts, llm.Sampling(max_tokens=20))
        for prompt, answer in zip(prompts, answers, strict=True):
            likeliest = reference.logits([*prompt, *answer]).argmax(-1)
            assert likeliest[len(prompt) - 1 : -1].tolist() == answer
        # No text begins with the state of another one, however alike their prompts are.
        assert engine.prompt_tokens["memory"] == 0
        assert engine.pages.num_available == 3
    logits = reference.logits(IDS)
    assert np.abs(model.logits(IDS) - logits).max() <= 1e-5 * np.abs(logits).max()


def test_what_states_cannot_do_is_refused(memory: Memory, tmp_path: Path) -> None:
    kind = memory.config["architectures"][0]  # type: ignore[index]
    for options, message in (
        ({"draft": memory}, f"load: a {kind} keeps a state of each text and takes no 'draft'"),
        ({"prompt_cache": tmp_path}, "takes no 'prompt_cache'"),
        ({"adapters": {"poet": tmp_path}}, "takes no 'adapters'"),
        ({"cache": "int8"}, f"load: the states of a {kind} are float32, not 'int8'"),
    ):
        with pytest.raises(InputError) as caught:
            llm.load(memory, **options)  # type: ignore[arg-type]
        assert message in str(caught.value)
    with pytest.raises(UnsupportedError, match=f"embed: no embeddings are made by a {kind}"):
        llm.load_embedding_model(memory)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mamba", {"hidden_act": "gelu"}, "'hidden_act': only 'silu' is supported, got 'gelu'"),
        ("mamba", {"state_size": 0}, "'state_size': a positive number expected, got 0"),
        ("mamba2", {"head_dim": 5}, "'num_heads': 8 of 5 numbers are not the 32 of 'expand'"),
        ("mamba2", {"n_groups": 3}, "in 3 'n_groups'"),
        ("mamba2", {"time_step_limit": [2, 1]}, "'time_step_limit': two numbers from 0 on"),
        ("mamba2", {"time_step_limit": 3}, "'time_step_limit': two numbers from 0 on expected"),
    ],
)
def test_a_wrong_configuration_of_states_is_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((ImportModelError, UnsupportedError)) as caught:
        llm.load(Memory({**CONFIGS[name], **changes}, {}))
    assert message in str(caught.value)


def test_a_missing_tensor_is_named(memory: Memory) -> None:
    tensors = dict(memory.tensors)
    del tensors["backbone.layers.1.mixer.A_log"]
    with pytest.raises(EkidenError, match="no tensor 'backbone.layers.1.mixer.A_log'"):
        llm.load(Memory(memory.config, tensors))
