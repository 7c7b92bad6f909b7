"""Decoders of RWKV layers, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from compiled_logits import forward
from numpy.typing import NDArray
from tiny_models import Memory, plain

from ekiden import llm
from ekiden.runtime.errors import EkidenError, ImportModelError, InputError

Floats = NDArray[np.float64]
HIDDEN, INNER, LAYERS, VOCABULARY, MLP = 16, 20, 3, 61, 24
CONFIG: dict[str, Any] = {
    "architectures": ["RwkvForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
    "attention_hidden_size": INNER, "intermediate_size": MLP, "num_hidden_layers": LAYERS,
    "rescale_every": 2, "eos_token_id": None,
}  # fmt: skip
IDS = np.random.default_rng(2).integers(0, VOCABULARY, 40).tolist()


def checkpoint(**changes: object) -> Memory:
    shapes: dict[str, tuple[int, ...]] = {
        "rwkv.embeddings.weight": (VOCABULARY, HIDDEN), "head.weight": (VOCABULARY, HIDDEN),
    }  # fmt: skip
    norms = ["rwkv.ln_out", "rwkv.blocks.0.pre_ln"]
    for n in range(LAYERS):
        block = f"rwkv.blocks.{n}."
        norms += [f"{block}ln1", f"{block}ln2"]
        attention, mlp = f"{block}attention.", f"{block}feed_forward."
        shapes |= {f"{attention}time_mix_{name}": (1, 1, HIDDEN)
                   for name in ("key", "value", "receptance")}  # fmt: skip
        shapes |= {f"{attention}{name}.weight": (INNER, HIDDEN)
                   for name in ("key", "value", "receptance")}  # fmt: skip
        shapes |= {
            f"{attention}time_decay": (INNER,), f"{attention}time_first": (INNER,),
            f"{attention}output.weight": (HIDDEN, INNER),
            f"{mlp}time_mix_key": (1, 1, HIDDEN), f"{mlp}time_mix_receptance": (1, 1, HIDDEN),
            f"{mlp}key.weight": (MLP, HIDDEN), f"{mlp}value.weight": (HIDDEN, MLP),
            f"{mlp}receptance.weight": (HIDDEN, HIDDEN),
        }  # fmt: skip
    shapes |= {f"{name}.{part}": (HIDDEN,) for name in norms for part in ("weight", "bias")}
    rng = np.random.default_rng(0)
    is_norm_weight = {f"{name}.weight" for name in norms}
    tensors = {
        name: plain(name, rng.normal(size=shape) * 0.5 + (name in is_norm_weight))
        for name, shape in shapes.items()
    }
    return Memory({**CONFIG, **changes}, tensors)


class Reference:
    """Logits of a checkpoint by NumPy in float64: the sums of the paper's equation 16, in which
    each earlier token is weighted by its age.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def value(self, name: str) -> Floats:
        return np.asarray(self.memory.tensors[name].data, np.float64)

    def norm(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * self.value(f"{name}.weight") + self.value(f"{name}.bias")

    def mix(self, x: Floats, name: str) -> Floats:
        share = self.value(name)[0]
        return x * share + np.concatenate([np.zeros((1, HIDDEN)), x[:-1]]) * (1 - share)

    def time_mix(self, at: str, x: Floats) -> Floats:
        r, k, v = (
            self.mix(x, f"{at}time_mix_{name}") @ self.value(f"{at}{name}.weight").T
            for name in ("receptance", "key", "value")
        )
        decay, first = np.exp(self.value(f"{at}time_decay")), self.value(f"{at}time_first")
        rows = []
        for t in range(len(x)):
            ages = np.arange(t - 1, -1, -1)[:, None]
            weights = np.exp(np.concatenate([k[:t] - ages * decay, (first + k[t])[None]]))
            rows.append((weights * v[: t + 1]).sum(0) / weights.sum(0))
        return (np.stack(rows) / (1 + np.exp(-r))) @ self.value(f"{at}output.weight").T

    def channel_mix(self, at: str, x: Floats) -> Floats:
        k = self.mix(x, f"{at}time_mix_key") @ self.value(f"{at}key.weight").T
        r = self.mix(x, f"{at}time_mix_receptance") @ self.value(f"{at}receptance.weight").T
        return (np.maximum(k, 0) ** 2 @ self.value(f"{at}value.weight").T) / (1 + np.exp(-r))

    def logits(self, ids: Sequence[int]) -> Floats:
        x = self.norm(self.value("rwkv.embeddings.weight")[list(ids)], "rwkv.blocks.0.pre_ln")
        every = self.memory.config["rescale_every"]
        assert isinstance(every, int)
        for n in range(LAYERS):
            block, share = f"rwkv.blocks.{n}.", 0.5 ** (n // every) if every else 1.0
            x = x + share * self.time_mix(f"{block}attention.", self.norm(x, f"{block}ln1"))
            x = x + share * self.channel_mix(f"{block}feed_forward.", self.norm(x, f"{block}ln2"))
            x = x / 2 if every and (n + 1) % every == 0 else x
        return self.norm(x, "rwkv.ln_out") @ self.value("head.weight").T


@pytest.mark.parametrize("rescale_every", [0, 1, 2])
def test_states_go_on_where_a_part_of_a_text_ended(rescale_every: int) -> None:
    memory = checkpoint(rescale_every=rescale_every)
    expected = Reference(memory).logits(IDS[:20])
    actual = forward(memory, np.array(IDS[:20]), (12, 1, 2, 5), "interpreter")
    assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()


def test_large_keys_do_not_overflow() -> None:
    memory = checkpoint()
    scaled = {
        name: plain(name, np.asarray(weight.data) * 60)
        for name, weight in memory.tensors.items()
        if name.endswith("attention.key.weight")
    }
    memory = Memory(memory.config, {**memory.tensors, **scaled})
    actual = forward(memory, np.array(IDS[:20]), (12, 8), "interpreter")
    expected = Reference(memory).logits(IDS[:20])
    assert np.isfinite(expected).all()
    assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


def test_texts_together_are_those_of_the_reference() -> None:
    memory = checkpoint()
    reference, model = Reference(memory), llm.load(memory, sequences=3, context=64)
    prompts = [IDS[:30], IDS[5:9], IDS[:30], [7], IDS[10:33]]
    engine = llm.Engine(model, sequences=3, chunk=8, steps=4)
    answers = engine.run(prompts, llm.Sampling(max_tokens=20))
    for prompt, answer in zip(prompts, answers, strict=True):
        likeliest = reference.logits([*prompt, *answer]).argmax(-1)
        assert likeliest[len(prompt) - 1 : -1].tolist() == answer
    assert engine.pages.num_available == 3


def test_what_states_cannot_do_is_refused() -> None:
    memory = checkpoint()
    with pytest.raises(InputError, match="a RwkvForCausalLM keeps a state of each text and takes"):
        llm.load(memory, draft=memory)
    tensors = dict(memory.tensors)
    del tensors["rwkv.blocks.1.attention.time_decay"]
    with pytest.raises(EkidenError, match=r"no tensor 'rwkv.blocks.1.attention.time_decay'"):
        llm.load(Memory(memory.config, tensors))
    with pytest.raises(ImportModelError, match="'attention_hidden_size': a whole number from 1"):
        llm.load(checkpoint(attention_hidden_size=-4))
