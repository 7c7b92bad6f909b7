"""Decoder architectures: logits, and rejected configurations."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from compiled_logits import CONTEXT, forward
from families import CONVERTED, FAMILIES
from reference_decoder import Reference
from tiny_models import CONFIGS, Memory, config_of, plain, tiny

from ekiden import llm
from ekiden.llm.checkpoint import Weight
from ekiden.llm.decoder import CacheLayout, decoder_module
from ekiden.llm.decoder_config import DECODER_ARCHITECTURES, read_config
from ekiden.llm.sampling import Sampling
from ekiden.runtime.errors import ImportModelError, InputError, UnsupportedError
from long_runs import alike

IDS = np.random.default_rng(1).integers(0, 97, 40)


def test_every_row_has_a_small_model() -> None:
    tested = {c["architectures"][0] for c in CONFIGS.values()}
    tested |= {architecture for architecture, _ in FAMILIES.values()}
    assert tested | set(CONVERTED) == set(DECODER_ARCHITECTURES)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_reference(name: str) -> None:
    """As the interpreter has them: nothing is compiled."""
    checkpoint = tiny(name)
    expected = Reference(checkpoint, CONTEXT).logits(IDS[:24])
    actual = forward(checkpoint, IDS, (17, 1, 6), "debug")
    np.testing.assert_allclose(actual, expected, atol=1e-4)


@alike(2)
@pytest.mark.parametrize("name", ["llama", "gemma2", "neox"])
def test_compiled_logits_are_those_of_the_reference(name: str) -> None:
    checkpoint = tiny(name)
    expected = Reference(checkpoint, CONTEXT).logits(IDS)
    actual = forward(checkpoint, IDS, (30, 1, 1, 8), "vm")
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def transformers_model(checkpoint: Memory) -> Any:  # noqa: ANN401  # of that package
    """The model of transformers with the weights of a checkpoint."""
    reason = "the package transformers is what logits are compared with"
    transformers = pytest.importorskip("transformers", reason=reason)
    torch = pytest.importorskip("torch", reason=reason)
    config: dict[str, Any] = deepcopy(dict(checkpoint.config))  # the package adds to ropes
    kind = getattr(transformers, config.pop("architectures")[0])
    if "rope_scaling" in config:
        config["rope_parameters"] = config.pop("rope_scaling")
    of = kind.config_class
    of = transformers.Gemma3TextConfig if kind.__name__ == "Gemma3ForCausalLM" else of
    result = kind(of(**config, attn_implementation="eager")).eval()
    weights = {name: torch.from_numpy(np.array(checkpoint[name].data)) for name in checkpoint}
    unexpected = result.load_state_dict(weights, strict=False).unexpected_keys
    assert not unexpected
    result.tie_weights()
    return result


@pytest.mark.filterwarnings("ignore")  # of that package
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str) -> None:
    checkpoint = tiny(name)
    other = transformers_model(checkpoint)
    import torch

    with torch.no_grad():
        expected = other(torch.tensor([IDS.tolist()])).logits[0].numpy()
    np.testing.assert_allclose(forward(checkpoint, IDS, (30, 1, 9), "vm"), expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # of that package
def test_greedy_text_is_that_of_transformers() -> None:
    checkpoint = tiny("llama")
    other = transformers_model(checkpoint)
    import torch

    model = llm.load(checkpoint, page=16, sequences=1)
    prompt = IDS[:12].tolist()
    actual = model.engine.run([prompt], Sampling(max_tokens=200))[0]
    with torch.no_grad():
        expected = other(torch.tensor([[*prompt, *actual]])).logits[0].numpy().argmax(-1)
    assert len(actual) == 200
    assert actual == expected[len(prompt) - 1 : -1].tolist()


def test_unknown_architecture_is_refused_with_those_that_there_are() -> None:
    config = config_of("llama", architectures=["BambaForCausalLM"])
    with pytest.raises(UnsupportedError) as caught:
        llm.load(Memory(config, {}))
    assert str(caught.value) == (
        "config: no decoder of the architecture 'BambaForCausalLM'; there are "
        + ", ".join(DECODER_ARCHITECTURES)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "config: 'hidden_size': a positive number expected, got None"),
        ({"num_key_value_heads": 3}, "4 'num_attention_heads' are no multiple of 3"),
        ({"hidden_act": "maxout"}, "config: 'hidden_act': 'maxout' is none of"),
        ({"rope_scaling": {"rope_type": "round"}}, "config: rope 'round' is none of default,"),
        ({"rope_scaling": {"rope_type": "linear"}}, "config: rope 'linear' lacks 'factor'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "a"}}, "config: rope 'yarn': could not"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 0}},
            "'linear': frequencies and factor",
        ),
        (
            {"rope_scaling": "linear"},
            "config: rope: settings by their names expected, got 'linear'",
        ),
        ({"rope_theta": -1}, "config: 'rope_theta': a number of at least 1e-30 expected, got -1"),
        ({"head_dim": 3}, "config: rope: an even number of the 3 places of a head"),
        ({"head_dim": 2**63}, "config: 'head_dim': a whole number from 1 to 16777216 expected"),
        ({"num_hidden_layers": 2**63}, "config: 'num_hidden_layers': a whole number from 0 to"),
        ({"num_key_value_heads": "x"}, "config: 'num_key_value_heads': a whole number from 0"),
        ({"rms_norm_eps": float("nan")}, "config: 'rms_norm_eps': a number of at least 0 expected"),
        ({"eos_token_id": [2, "</s>"]}, "config: 'eos_token_id': tokens expected, got [2, '</s>']"),
        (
            {"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"]},
            "config: 'layer_types': 3 kinds expected, got ['full_attention']",
        ),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": -1},
            "config: 'sliding_window': a whole number from 0",
        ),
    ],
)
def test_wrong_configuration_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ImportModelError) as caught:
        read_config(config_of("llama", **changes))
    assert message in str(caught.value)


def test_unknown_end_tokens_are_ignored() -> None:
    for argument, expected in ((-1, ()), ([5, 97, None, -1], (5,)), (None, ()), (0, (0,))):
        assert read_config(config_of("llama", eos_token_id=argument)).end_tokens == expected
    with pytest.raises(ImportModelError, match="'max_position_embeddings': a positive number"):
        llm.load(Memory(config_of("llama", max_position_embeddings="many"), {}))


def test_missing_tensor_is_named_and_a_wrong_shape_is_shown() -> None:
    whole = tiny("llama")
    name = "model.layers.1.mlp.up_proj.weight"
    rest = {n: w for n, w in whole.tensors.items() if n != name}
    with pytest.raises(ImportModelError, match=f"checkpoint: no tensor '{name}'"):
        llm.load(Memory(whole.config, rest))
    wrong = {**whole.tensors, name: plain(name, np.zeros((5, 32)))}
    with pytest.raises(ImportModelError, match="must have 96 rows"):
        llm.load(Memory(whole.config, wrong))
    norm = "model.norm.weight"
    wrong = {**whole.tensors, norm: plain(norm, np.zeros(5))}
    with pytest.raises(ImportModelError, match=r"'model.norm.weight' must have the shape \(32\)"):
        llm.load(Memory(whole.config, wrong))


def test_unexpected_tensors_are_refused() -> None:
    whole = tiny("llama")
    config, layout = read_config(whole.config, CONTEXT), CacheLayout(16)
    ignored = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4),
        "model.layers.0.mlp.down_proj.bias": np.zeros(32),
        "model.layers.3.eh_proj.weight": np.ones((2, 2)),
    }
    known = {**whole.tensors, **{name: plain(name, values) for name, values in ignored.items()}}
    decoder_module(Memory(whole.config, known), config, layout)
    other = {f"model.layers.{n}.mlp.up_proj.bias": plain("", np.ones(48)) for n in range(3)}
    other |= {"score.weight": plain("", np.ones((2, 32))), "z.bias": plain("", np.ones(3))}
    with pytest.raises(ImportModelError) as caught:
        decoder_module(Memory(whole.config, {**known, **other}), config, layout)
    assert str(caught.value) == (
        "checkpoint: a decoder LlamaForCausalLM has no place for"
        " 'model.layers.0.mlp.up_proj.bias', 'model.layers.1.mlp.up_proj.bias',"
        " 'model.layers.2.mlp.up_proj.bias' and 2 more"
    )


def test_other_parts_of_a_multimodal_model_are_ignored() -> None:
    whole = tiny("gemma3")
    tensors = {f"language_model.{name}": whole[name] for name in whole}
    tensors["vision_tower.embeddings.weight"] = plain("", np.ones((2, 2)))
    config, layout = read_config(whole.config, CONTEXT), CacheLayout(16)
    decoder_module(Memory(whole.config, tensors), config, layout)


def test_context_that_the_model_cannot_have_is_refused() -> None:
    with pytest.raises(InputError, match="'context' must be from 2 to 256 tokens, got 257"):
        llm.load(tiny("llama"), context=257)


@alike(4)
@pytest.mark.parametrize("format", ["q4_0", "q8_0", "q4_k", "q6_k"])
def test_weights_in_blocks_are_multiplied_as_they_are(format: str) -> None:
    """Exact where nothing is rounded to bytes; near where the processor multiplies these."""
    size = 256 if format.endswith("_k") else 64
    result = tiny("llama", hidden_size=size, intermediate_size=size)
    tensors = {
        name: Weight.of(name, tensor.data, format) if tensor.data.ndim == 2 else tensor
        for name, tensor in result.tensors.items()
    }
    decoded = {name: plain(name, tensor.values()) for name, tensor in tensors.items()}
    expected = Reference(Memory(result.config, decoded), CONTEXT).logits(IDS)
    for target, within in (("llvm -mcpu=x86-64", 1e-4), ("llvm", 0.2)):
        model = llm.load(
            Memory(result.config, tensors), context=CONTEXT, page=16, sequences=1, cache="float32",
            target=target,
        )  # fmt: skip
        error = np.abs(model.logits(IDS.tolist()) - expected)
        assert error.max() <= within * np.abs(expected).max()
    assert len(model.engine.run([[1, 2, 3]], Sampling(max_tokens=4))[0]) == 4
