"""Models of packages for the zoo (zoo.py): what one is, and those of torchvision and timm."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ZooModel:
    """PyTorch module, its inputs by name, and the extensible axes of each input with the names of
    their sizes; the first axis of other inputs is a batch.
    """

    module: Any
    inputs: Mapping[str, Any]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def extensible_axes(self, name: str) -> Mapping[int, str]:
        """Return an input's extensible axes with the names of their sizes."""
        return self.axes.get(name, {0: "batch"})


class TooLargeError(Exception):
    """Error raised for a model with more parameters than allowed."""


def build_within_limit(max_parameters: int, make: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Build a module if it has at most this many parameters, counted first on the meta device."""
    import torch

    try:
        # Meta tensors have shapes but no storage.
        with torch.device("meta"):
            count = sum(p.numel() for p in make().parameters())
    except (NotImplementedError, RuntimeError):  # not every module can be made so
        count = 0
    if count > max_parameters:
        raise TooLargeError(f"{count:,} parameters")
    return make()


def torchvision_names() -> list[str]:
    """Return the names of all models."""
    models = import_torchvision().models
    return [str(name) for name in models.list_models()]


def import_torchvision() -> Any:  # noqa: ANN401
    """Return the package. Its PyPI wheel lacks the operators for PyTorch's CPU build and cannot be
    imported: then they are declared here and computed by PyTorch's own, so that detectors can be
    built.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:  # operator torchvision::nms does not exist
        pass
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    _REGISTERED_LIBRARIES.append(library)
    for schema in _DETECTION_SCHEMAS:
        library.define(schema)
    package = importlib.import_module("torchvision")
    aligned = importlib.import_module("torchvision.ops.roi_align")
    vars(package.extension)["_has_ops"] = vars(aligned)["_has_ops"] = _has_operators
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", aligned._roi_align, "CPU")
    return package


_DETECTION_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
)


def _has_operators() -> bool:
    return True  # TorchScript reads this: a lambda would not do


def _nms(boxes: Any, scores: Any, threshold: float) -> Any:  # noqa: ANN401
    """Keep the best-scored box among those that overlap by more than the threshold."""
    import torch

    overlap = import_torchvision().ops.box_iou
    remaining, selected = torch.argsort(scores, descending=True, stable=True), []
    while remaining.numel():
        best, remaining = remaining[:1], remaining[1:]
        selected.append(best)
        remaining = remaining[overlap(boxes[best], boxes[remaining])[0] <= threshold]
    return torch.cat([remaining, *selected])


_REGISTERED_LIBRARIES: list[object] = []
"""Declarations of operators end with the object that made them."""


_VIDEO_MODELS = ("mc3", "mvit", "r2plus1d", "r3d", "s3d", "swin3d")


def torchvision_model(name: str, max_parameters: int) -> ZooModel:
    """Return a torchvision model. Raises TooLargeError."""
    import torch

    models = import_torchvision().models
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        options["weights_backbone"] = None
    module = build_within_limit(max_parameters, lambda: models.get_model(name, **options))
    family = name.split("_")[0]
    if family == "raft":
        return ZooModel(module, {n: torch.randn(1, 3, 128, 128) for n in ("image1", "image2")})
    extent = 299 if name == "inception_v3" else 224
    if family in _VIDEO_MODELS:
        extent = 224 if family in ("mvit", "s3d") else 112
        return ZooModel(module, {"x": torch.randn(1, 3, 16, extent, extent)})
    return ZooModel(module, {"x": torch.randn(1, 3, extent, extent)})


def timm_names() -> list[str]:
    """Return the names of all models."""
    import_torchvision()
    import timm

    return list(timm.list_models())


def timm_families() -> list[list[str]]:
    """Return the names of all models grouped by their defining module, each group's smallest first.
    Every model is built without memory, which takes minutes.
    """
    import_torchvision()
    import timm
    import torch

    families: dict[str, list[tuple[float, str]]] = {}
    for name in timm.list_models():
        module = timm.model_entrypoint(name).__module__
        try:
            with torch.device("meta"):
                meta_model = timm.create_model(name, pretrained=False)
            size: float = sum(p.numel() for p in meta_model.parameters())
        except Exception:  # of any kind: not every module can be made so
            size = math.inf
        families.setdefault(module, []).append((size, name))
    return [[name for _, name in sorted(family)] for _, family in sorted(families.items())]


def timm_model(name: str, max_parameters: int) -> ZooModel:
    """Return a timm model. Raises TooLargeError."""
    import torch

    import_torchvision()
    import timm

    module = build_within_limit(max_parameters, lambda: timm.create_model(name, pretrained=False))
    extents = module.pretrained_cfg["input_size"]
    return ZooModel(module, {"x": torch.randn(1, *extents)})
