"""Models of packages for the zoo (zoo.py): what one is, and those of torchvision and timm."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Model:
    """A module, its inputs by name, and which axes of them may be longer, by what they are called;
    of axes that none are named, the first is a batch.
    """

    module: Any
    inputs: Mapping[str, Any]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def axes_of(self, name: str) -> Mapping[int, str]:
        """The axes of an input that may be longer -> names of their sizes."""
        return self.axes.get(name, {0: "batch"})


class TooLargeError(Exception):
    """A model has more parameters than it may."""


def within(most: int, make: Callable[[], Any]) -> Any:  # noqa: ANN401
    """The module that is made, if it has no more parameters, which is found out without memory."""
    import torch

    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in make().parameters())
    except (NotImplementedError, RuntimeError):  # not every module can be made so
        count = 0
    if count > most:
        raise TooLargeError(f"{count:,} parameters")
    return make()


def torchvision_names() -> list[str]:
    """The names of all models."""
    models = torchvision().models
    return [str(name) for name in models.list_models()]


def torchvision() -> Any:  # noqa: ANN401
    """The package. Its wheel of PyPI has no operators for PyTorch's build for CPUs, and cannot be
    imported: there they are declared and computed by PyTorch's own, so that detectors can be built.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:  # operator torchvision::nms does not exist
        pass
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    _KEPT.append(library)
    for schema in _DETECTION:
        library.define(schema)
    package = importlib.import_module("torchvision")
    aligned = importlib.import_module("torchvision.ops.roi_align")
    vars(package.extension)["_has_ops"] = vars(aligned)["_has_ops"] = _has_operators
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", aligned._roi_align, "CPU")
    return package


_DETECTION = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
)


def _has_operators() -> bool:
    return True  # TorchScript reads this: a lambda would not do


def _nms(boxes: Any, scores: Any, threshold: float) -> Any:  # noqa: ANN401
    """Of boxes that overlap by more than a share, the one with the best score."""
    import torch

    overlap = torchvision().ops.box_iou
    left, kept = torch.argsort(scores, descending=True, stable=True), []
    while left.numel():
        best, left = left[:1], left[1:]
        kept.append(best)
        left = left[overlap(boxes[best], boxes[left])[0] <= threshold]
    return torch.cat([left, *kept])


_KEPT: list[object] = []
"""Declarations of operators end with the object that made them."""


_OF_VIDEOS = ("mc3", "mvit", "r2plus1d", "r3d", "s3d", "swin3d")


def torchvision_model(name: str, most: int) -> Model:
    """A model of torchvision. Raises TooLargeError."""
    import torch

    models = torchvision().models
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        options["weights_backbone"] = None
    module = within(most, lambda: models.get_model(name, **options))
    family = name.split("_")[0]
    if family == "raft":
        return Model(module, {n: torch.randn(1, 3, 128, 128) for n in ("image1", "image2")})
    extent = 299 if name == "inception_v3" else 224
    if family in _OF_VIDEOS:
        extent = 224 if family in ("mvit", "s3d") else 112
        return Model(module, {"x": torch.randn(1, 3, 16, extent, extent)})
    return Model(module, {"x": torch.randn(1, 3, extent, extent)})


def timm_names() -> list[str]:
    """The names of all models."""
    torchvision()
    import timm

    return list(timm.list_models())


def timm_families() -> list[list[str]]:
    """The names of all models by the module that defines them, each family's smallest first. Every
    model is made, without memory: minutes.
    """
    torchvision()
    import timm
    import torch

    families: dict[str, list[tuple[float, str]]] = {}
    for name in timm.list_models():
        module = timm.model_entrypoint(name).__module__
        try:
            with torch.device("meta"):
                made = timm.create_model(name, pretrained=False)
            size: float = sum(p.numel() for p in made.parameters())
        except Exception:  # of any kind: not every module can be made so
            size = math.inf
        families.setdefault(module, []).append((size, name))
    return [[name for _, name in sorted(family)] for _, family in sorted(families.items())]


def timm_model(name: str, most: int) -> Model:
    """A model of timm. Raises TooLargeError."""
    import torch

    torchvision()
    import timm

    module = within(most, lambda: timm.create_model(name, pretrained=False))
    extents = module.pretrained_cfg["input_size"]
    return Model(module, {"x": torch.randn(1, *extents)})
