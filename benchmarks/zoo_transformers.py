"""Architectures of transformers for the zoo (zoo.py): small configurations, and inputs that fit.

A class of configurations says what its numbers are called, but not which go together, and a class
of models what its inputs are called, but not their shapes. So there are ways to make a
configuration small and shapes that an input of a name may have, and the first that runs is taken.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd
from typing import Any

from zoo_models import TooLargeError, ZooModel, build_within_limit, import_torchvision

Sizes = dict[str, Any]
"""Names of a configuration's fields -> what they shall be."""
Shrink = Callable[[Any], Sizes]
"""A configuration with the sizes of its class -> those that shall be others."""

_WIDTH_FIELDS: Mapping[str, int] = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embed_dim": 64,
    "intermediate_size": 128, "d_ff": 128, "n_inner": 128, "ffn_dim": 128,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64, "embedding_size": 64, "out_hidden_size": 64,
    "projection_dim": 64, "encoder_hidden_size": 64, "decoder_hidden_size": 64,
    "cross_attention_hidden_size": 64, "d_embed": 64, "mlp_dim": 128,
    "decoder_intermediate_size": 128,
}  # fmt: skip
"""What configurations call widths -> small ones."""
_HEAD_COUNT_FIELDS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
    "decoder_attention_heads", "decoder_num_attention_heads",
)  # fmt: skip
_REDUCED_COUNTS: Mapping[str, int] = {
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2, "num_encoder_layers": 2, "depth": 2,
    "decoder_num_hidden_layers": 2, "decoder_num_layers": 2,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "top_k_experts": 2, "moe_topk": 2, "moe_k": 2, "n_group": 1,
    "topk_group": 1, "num_expert_group": 1, "vocab_size": 512, "codebook_size": 64,
    "max_position_embeddings": 128, "n_positions": 128, "vocab_size_per_layer_input": 512,
}  # fmt: skip
"""How many of something there are -> few."""
_PLACEHOLDER_TOKEN = 3
"""The most that a token of a meaning may be: words of inputs are drawn above it."""


def _reduce_counts(plain: Any) -> Sizes:  # noqa: ANN401
    """Return sizes with few layers, experts and words."""
    sizes = {n: v for n, v in _REDUCED_COUNTS.items() if _int_field(plain, n) > v}
    for name, value in vars(plain).items():
        if name.endswith("_token_id") and isinstance(value, int) and value > _PLACEHOLDER_TOKEN:
            sizes[name] = _PLACEHOLDER_TOKEN
        if name.endswith("_feature_layer") and isinstance(value, list):
            sizes[name] = [-1 - position % 2 for position in range(len(value))]
    return sizes


def _make_width_shrinker(width: int) -> Shrink:
    """Return a shrinker to one width for all fields with four heads, since some rotary parameters
    do not fit narrower heads.
    """

    def sizes_of(plain: Any) -> Sizes:  # noqa: ANN401
        by = width // _HEAD_WIDTH
        sizes = _reduce_counts(plain) | {
            n: v * by for n, v in _WIDTH_FIELDS.items() if _int_field(plain, n)
        }
        sizes |= {n: 4 for n in _HEAD_COUNT_FIELDS if _int_field(plain, n)} | _override_int(
            plain, "d_kv", width
        )
        if _int_field(plain, "head_dim") or vars(plain).get("head_dim", 0) is None:
            sizes["head_dim"] = width
        if expand := _int_field(plain, "expand"):  # heads of a state space model share a wider row
            inside = expand * sizes.get("hidden_size", 0)
            sizes |= _override_int(plain, "num_heads", inside // width)
        shared = _int_field(plain, "num_key_value_heads")
        if shared:
            is_each = shared == _int_field(plain, "num_attention_heads")
            sizes["num_key_value_heads"] = 4 if is_each else 2
        return sizes

    return sizes_of


_HEAD_WIDTH = 16
_tiny, _small = _make_width_shrinker(_HEAD_WIDTH), _make_width_shrinker(4 * _HEAD_WIDTH)


def _divide_heads(plain: Any) -> Sizes:  # noqa: ANN401
    """Divide the numbers of heads and all widths by a common factor, at constant head width."""
    sizes = _reduce_counts(plain)
    heads = [n for n in _HEAD_COUNT_FIELDS if _int_field(plain, n) > 1]
    widths = [w for w in _WIDTH_FIELDS if _int_field(plain, w)]
    # A common divisor keeps the width of each head.
    by = gcd(*(_int_field(plain, n) for n in (*heads, *widths))) if heads else 1
    fewest = min((_int_field(plain, n) for n in heads), default=1)
    by = next(d for d in range(min(by, fewest // 2 or 1), 0, -1) if by % d == 0)
    sizes |= {n: _int_field(plain, n) // by for n in (*heads, *widths)}
    kv_heads = _int_field(plain, "num_key_value_heads")
    return sizes | ({"num_key_value_heads": max(1, kv_heads // by)} if kv_heads else {})


def _with_truncated_lists(shrink: Shrink) -> Shrink:
    """Return a shrinker that also truncates per-layer lists to the reduced number of layers."""

    def cut(plain: Any) -> Sizes:  # noqa: ANN401
        """Return the sizes with per-layer lists cut."""
        sizes = shrink(plain)
        for name in ("num_hidden_layers", "num_layers", "n_layer", "depth"):
            layers = _int_field(plain, name)
            for field_name, value in vars(plain).items():
                if layers and isinstance(value, (list, tuple)) and len(value) == layers:
                    sizes[field_name] = list(value[-sizes.get(name, layers) :])
            if layers and isinstance(
                out_indices := getattr(plain, "out_indices", None), (list, tuple)
            ):
                last = sizes.get(name, layers)
                sizes |= {"out_indices": sorted({min(position, last) for position in out_indices})}
                sizes |= {"out_features": None}  # the names of these
        return sizes

    return cut


def _unchanged_sizes(plain: Any) -> Sizes:  # noqa: ANN401
    return {}


_CONFIG_SHRINKERS: Sequence[Shrink] = (
    _tiny,
    _divide_heads,
    _with_truncated_lists(_tiny),
    _with_truncated_lists(_divide_heads),
    _small,
    _with_truncated_lists(_small),
    _reduce_counts,
    _with_truncated_lists(_reduce_counts),
    _unchanged_sizes,
)


def _with_consistent_widths(root: Any, shrink: Shrink) -> Shrink:  # noqa: ANN401
    """Return a shrinker that also changes all fields equal to a shrunk width."""
    became: dict[int, int] = {}
    for inner_config in _ConfigView(root).configs:
        sizes = shrink(inner_config)
        became |= {_int_field(inner_config, n): sizes[n] for n in _WIDTH_FIELDS if n in sizes}

    def sizes_of(plain: Any) -> Sizes:  # noqa: ANN401
        fields = [n for n in vars(plain) if _int_field(plain, n) in became]
        return {n: became[_int_field(plain, n)] for n in fields} | shrink(plain)

    return sizes_of


def _int_field(config: Any, name: str) -> int:  # noqa: ANN401
    """Return a writable integer field; 0 if there is none."""
    descriptor = getattr(type(config), name, None)
    if isinstance(descriptor, property) and descriptor.fset is None:
        return 0
    try:
        value = getattr(config, name, 0)
    except Exception:  # what differs from layer to layer has errors of its own
        return 0
    return value if isinstance(value, int) else 0


def _override_int(config: Any, name: str, value: int) -> Sizes:  # noqa: ANN401
    return {name: value} if _int_field(config, name) else {}


def _shrink_config(plain: Any, shrink: Shrink) -> Any:  # noqa: ANN401
    """Return a configuration with other sizes, nested ones included; derived fields are
    recomputed.
    """
    inner = {name: _shrink_config(value, shrink) for name, value in _nested_configs(plain).items()}
    return type(plain)(**_inherited_fields(plain) | _required_values(plain) | shrink(plain) | inner)


_BACKBONE_FIELDS = ("out_features", "out_indices")
"""What a backbone gives to others: properties of its configuration, kept under other names."""


def _inherited_fields(plain: Any) -> Sizes:  # noqa: ANN401
    """Return the fields that the enclosing configuration sets rather than the class."""
    usual = type(plain)()
    fields = {n: v for n, v in vars(plain).items() if isinstance(v, (str, list)) and n[0] != "_"}
    overridden = {n: v for n, v in fields.items() if n in vars(usual) and vars(usual)[n] != v}
    backbone_fields = {n: getattr(plain, n) for n in _BACKBONE_FIELDS if hasattr(plain, n)}
    return overridden | {n: v for n, v in backbone_fields.items() if getattr(usual, n) != v}


def _required_values(plain: Any) -> Sizes:  # noqa: ANN401
    """Return values for the fields that a class has no defaults for."""
    named = [n for n in _REQUIRED_FIELDS if vars(plain).get(n, 0) in (None, [], ())]
    return {n: value for n in named if (value := _REQUIRED_FIELDS[n](plain)) is not None}


_REQUIRED_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "prediction_length": lambda plain: 8,
    "default_language": lambda plain: next(iter(getattr(plain, "languages", ())), None),
    "num_experts": lambda plain: 4,
    "top_k_experts": lambda plain: 2,
    "moe_intermediate_size": lambda plain: 64,
    "projector_scale_factors": lambda plain: [1.0],
    "image_token_id": lambda plain: _PLACEHOLDER_TOKEN,
    "image_token_index": lambda plain: _PLACEHOLDER_TOKEN,
}
"""Fields that classes leave open, None or empty -> what they may be."""


def _nested_configs(config: Any) -> dict[str, Any]:  # noqa: ANN401
    from transformers import PretrainedConfig

    return {n: v for n, v in vars(config).items() if isinstance(v, PretrainedConfig)}


# Inputs.


class _ConfigView:
    """View of a configuration that looks up numbers in nested configurations too."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401
        self.configs = [config]
        for outer in self.configs:  # which grows
            self.configs += _nested_configs(outer).values()

    def __call__(self, default: int, *names: str) -> int:
        for config, name in itertools.product(self.configs, names):
            if _int_field(config, name):
                return _int_field(config, name)
        return default

    def image_size(self) -> tuple[int, int]:
        """Return the rows and columns of an image."""
        for config in self.configs:
            size = getattr(config, "image_size", None)
            if isinstance(size, int):
                return size, size
            if isinstance(size, (list, tuple)) and len(size) == 2:
                return size[0], size[1]
        return 224, 224


def _image_candidates(config_view: _ConfigView) -> Iterator[Any]:
    """Yield possible image inputs."""
    import torch

    channels, (rows, columns) = (
        config_view(3, "num_channels", "in_channels", "in_chans"),
        config_view.image_size(),
    )
    frames = config_view(4, "num_frames", "frames_per_clip")
    yield torch.randn(1, channels, rows, columns)
    yield torch.randn(1, frames, channels, rows, columns)
    yield torch.randn(1, 1, channels, rows, columns)
    yield _patch_rows(config_view)
    for extent in (64, 256, 384, 512):
        yield torch.randn(1, channels, extent, extent)
    yield _patch_rows(config_view)[None]


_PATCH_GRID = (1, 8, 8)


def _patch_rows(config_view: _ConfigView) -> Any:  # noqa: ANN401
    """Return image patches as rows."""
    import torch

    channels = config_view(3, "in_channels", "num_channels", "in_chans")
    extent, frames = (
        config_view(14, "patch_size"),
        config_view(1, "temporal_patch_size", "patch_temporal"),
    )
    return torch.randn(_PATCH_GRID[1] * _PATCH_GRID[2], channels * frames * extent**2)


def _hidden_state_candidates(config_view: _ConfigView) -> Iterator[Any]:
    """Yield possible hidden-state inputs."""
    import torch

    yield _patch_rows(config_view)
    yield torch.randn(1, 16, config_view(64, *_WIDTH_FIELDS))
    yield torch.randn(1, config_view(64, *_WIDTH_FIELDS), 16)


def _token_candidates(config_view: _ConfigView) -> Iterator[Any]:
    """Yield possible token inputs."""
    import torch

    vocabulary = config_view(512, "vocab_size")
    yield torch.randint(4, max(5, min(vocabulary, 500)), (1, 16))


def _spectrogram_candidates(config_view: _ConfigView) -> Iterator[Any]:
    """Yield possible spectrogram inputs."""
    import torch

    bins = config_view(
        80, "num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "input_dim"
    )
    for frames in (
        3000,
        config_view(1500, "max_source_positions") * 2,
        config_view(200, "max_length"),
    ):
        yield torch.randn(1, bins, frames)
        yield torch.randn(1, min(frames, 400), bins)
    if stacked := config_view(0, "num_stacked_frames"):  # of a lower rate, several in a row
        yield torch.randn(1, 64, bins * stacked)


def _audio_candidates(config_view: _ConfigView) -> Iterator[Any]:
    """Yield possible audio inputs."""
    import torch

    bins = config_view(128, "num_mel_bins")
    yield torch.randn(1, 8000)
    yield torch.randn(1, 1, 8000)
    yield torch.randn(1, config_view(1024, "max_length"), bins)
    yield torch.randn(1, 64, bins)
    yield torch.randn(1, 1, config_view(1024, "spec_size"), config_view(64, "num_mel_bins"))
    yield torch.randn(1, 16, config_view(64, *_WIDTH_FIELDS))


def _time_series_candidates(config_view: _ConfigView) -> Iterator[Any]:
    """Yield possible time series."""
    import torch

    yield torch.randn(
        1, config_view(64, "context_length"), config_view(1, "num_input_channels", "input_size")
    )
    yield torch.randn(1, config_view(64, "context_length"))


def _time_flag_candidates(config_view: _ConfigView) -> Iterator[Any]:
    """Yield possible flags of time series."""
    import torch

    yield from (
        torch.zeros_like(series, dtype=torch.int64)
        for series in _time_series_candidates(config_view)
    )


def _patch_grid_candidates(config_view: _ConfigView) -> Iterator[Any]:
    """Yield possible patch grids."""
    import torch

    yield torch.tensor([_PATCH_GRID])
    yield torch.tensor([_PATCH_GRID[1:]])


def _image_region_candidates(config_view: _ConfigView) -> Iterator[Any]:
    """Yield possible image regions."""
    import torch

    yield torch.randn(1, 16, config_view(64, "visual_feat_dim"))


def _box_candidates(config_view: _ConfigView) -> Iterator[Any]:
    """Yield possible boxes."""
    import torch

    yield torch.rand(1, 16, 4)


def _make_ones_generator(*shapes: Sequence[int]) -> Callable[[_ConfigView], Iterator[Any]]:
    """Return a generator of tensors of ones."""

    def ones_candidates(config_view: _ConfigView) -> Iterator[Any]:
        """Yield tensors of ones."""
        import torch

        yield from (torch.ones(*shape, dtype=torch.int64) for shape in shapes)

    return ones_candidates


_INPUT_GENERATORS: Mapping[str, Callable[[_ConfigView], Iterator[Any]]] = {
    "input_ids": _token_candidates,
    "decoder_input_ids": _token_candidates,
    "pixel_values": _image_candidates,
    "pixel_values_videos": _image_candidates,
    "hidden_states": _hidden_state_candidates,
    "inputs_embeds": _hidden_state_candidates,
    "query_embeds": _hidden_state_candidates,
    "action_embeds": _hidden_state_candidates,
    "qformer_input_ids": _token_candidates,
    "past_values_padding": _time_flag_candidates,
    "freq": _make_ones_generator((1, 1)),
    "encoder_hidden_states": _hidden_state_candidates,
    "context_hidden_states": _hidden_state_candidates,
    "input_features": _spectrogram_candidates,
    "input_values": _audio_candidates,
    "past_values": _time_series_candidates,
    "input_features_mask": _make_ones_generator((1, 3000), (1, 64)),
    "attention_mask": _make_ones_generator((1, 16)),
    "grid_thw": _patch_grid_candidates,
    "image_grid_thw": _patch_grid_candidates,
    "grid_hw": _patch_grid_candidates,
    "grid_hws": _patch_grid_candidates,
    "pixel_attention_mask": _make_ones_generator((1, _PATCH_GRID[1] * _PATCH_GRID[2]), (1, 1)),
    "spatial_shapes": _patch_grid_candidates,
    "visual_feats": _image_region_candidates,
    "visual_pos": _box_candidates,
}
"""What inputs are called -> tensors that may fit."""
_SIZE_INPUTS = ("grid_thw", "image_grid_thw", "grid_hw", "grid_hws", "spatial_shapes")
"""Inputs whose values are sizes: they are the architecture's here, not a user's."""
_EXTRA_INPUTS: Mapping[str, Sequence[Sequence[str]]] = {
    "pixel_values": [["input_ids"], ["pixel_attention_mask", "spatial_shapes"]],
    "input_features": [["input_ids"]],
    "input_ids": [
        ["pixel_values"], ["pixel_values", "image_grid_thw"], ["visual_feats", "visual_pos"],
        ["pixel_values", "pixel_attention_mask", "spatial_shapes"],
    ],
}  # fmt: skip
"""What a model may want beside its main input."""
_DEFAULT_EXTRA_INPUTS = [["pixel_values", "input_ids", "pixel_attention_mask"]]
"""What one of any other main input may want."""
_MAX_INPUT_TRIALS = 60


def _iter_input_sets(module: Any, config: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """Yield sets of inputs that a module may accept, the likeliest first."""
    parameters = inspect.signature(module.forward).parameters
    config_view = _ConfigView(config)
    main = module.main_input_name
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind == parameter.POSITIONAL_OR_KEYWORD
    ]
    names = list(dict.fromkeys([*([main] if main in parameters else []), *needed]))
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        names = list(dict.fromkeys([*names, "decoder_input_ids"]))
    wider = [names + [n for n in more if n not in names]
             for more in _EXTRA_INPUTS.get(main, _DEFAULT_EXTRA_INPUTS) if parameters.keys() >=
             set(more)]  # fmt: skip
    for group in [names, *(wider_group for wider_group in wider if wider_group != names)]:
        shapes = [
            list(_INPUT_GENERATORS[name](config_view))
            for name in group
            if name in _INPUT_GENERATORS
        ]
        known_names = [name for name in group if name in _INPUT_GENERATORS]
        for chosen in itertools.islice(itertools.product(*shapes), _MAX_INPUT_TRIALS):
            yield dict(zip(known_names, chosen, strict=True))


# Models.


def architecture_names() -> list[str]:
    """Return the names of all architectures."""
    import_torchvision()
    import transformers.modeling_utils  # noqa: F401
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def build_architecture(name: str, max_parameters: int) -> ZooModel:
    """Return a small model of an architecture, with positional inputs and tensor outputs. Raises
    TooLargeError if no shrinker makes it small enough, else the first shrinker's error.
    """
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    import_torchvision()
    why: Exception = TooLargeError(name)
    plain = CONFIG_MAPPING[name]()
    shrinkers = (
        *_CONFIG_SHRINKERS,
        *(_with_consistent_widths(plain, shrinker) for shrinker in _CONFIG_SHRINKERS[:4]),
    )
    for shrink in shrinkers:
        try:
            config = _shrink_config(CONFIG_MAPPING[name](), shrink)
            config.use_cache = False
            module = build_within_limit(
                max_parameters, lambda config=config: _module_from_config(config)
            )
            with torch.no_grad():
                return _find_valid_inputs(module, config)
        except Exception as error:  # of any kind: the next way may do
            why = error if isinstance(why, TooLargeError) else why
    raise why


def _module_from_config(config: Any) -> Any:  # noqa: ANN401
    """Return a module of a configuration. Experts are batched rather than visited one by one, as a
    trace of one input would.
    """
    from transformers import AutoModel

    try:
        return AutoModel.from_config(config, experts_implementation="batched_mm").eval()
    except (TypeError, ValueError):  # it has none, or no choice
        return AutoModel.from_config(config).eval()


def _find_valid_inputs(module: Any, config: Any) -> ZooModel:  # noqa: ANN401
    """Return the module with the first set of inputs that it accepts. Raises the last error."""
    why: Exception = TypeError("no inputs are known for it")
    for candidate_inputs in _iter_input_sets(module, config):
        size_inputs = {n: v for n, v in candidate_inputs.items() if n in _SIZE_INPUTS}
        inputs = {n: v for n, v in candidate_inputs.items() if n not in _SIZE_INPUTS}
        plain = wrap_positional(module, list(inputs), size_inputs)
        try:
            if plain(*inputs.values()):
                return ZooModel(
                    plain, inputs, {n: _extensible_axes(n, v) for n, v in inputs.items()}
                )
            why = ValueError("it gives no tensors")
        except Exception as error:
            why = error
    raise why


def _extensible_axes(name: str, value: Any) -> dict[int, str]:  # noqa: ANN401
    """Return an input's extensible axes: the batch, and the length of token inputs."""
    if not value.dtype.is_floating_point and value.ndim == 2:
        return {0: "batch", 1: "decoder_length" if "decoder" in name else "length"}
    return {0: "batch"} if value.shape[0] == 1 else {}


def wrap_positional(module: Any, names: Sequence[str], fixed_inputs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Wrap a module so that its inputs are positional and its outputs are tensors."""
    import torch
    from torch.utils._pytree import tree_leaves

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *args: Any) -> tuple[Any, ...]:  # noqa: ANN401
            """Run the module, and return its tensors."""
            inputs = dict(zip(names, args, strict=True))
            outputs = self.inner(**inputs, **fixed_inputs, return_dict=False)
            return tuple(v for v in tree_leaves(outputs) if isinstance(v, torch.Tensor))

    return Plain()
