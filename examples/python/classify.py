"""Classify files by content with the model of `ekiden demo`, written by `prepare`.

    python examples/python/classify.py prepare FOLDER [WHEEL]
    python examples/python/classify.py FOLDER FILE ...

`prepare` fetches Magika with pip, unless its wheel is given, and writes `magika.eki` and
`magika.txt`: a line with how many bytes of begin and end the model sees and the number that
stands for none, then a label a line. bindings/README.md names the same program in other languages.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

import ekiden
from ekiden.cli.demo import MAGIKA_MODEL_FOLDER, download_model, extract_features


def prepare(folder: Path, wheel: Path | None = None) -> None:
    """Write the model, and the feature sizes and labels that a program needs."""
    with tempfile.TemporaryDirectory() as scratch:
        if wheel is None:
            model, config = download_model(Path(scratch))
        else:
            with zipfile.ZipFile(wheel) as archive:
                config = json.loads(archive.read(f"{MAGIKA_MODEL_FOLDER}/config.min.json"))
                model = Path(archive.extract(f"{MAGIKA_MODEL_FOLDER}/model.onnx", scratch))
        folder.mkdir(parents=True, exist_ok=True)
        ekiden.export(str(model), folder / "magika.eki")
    sizes = [config[name] for name in ("beg_size", "end_size", "padding_token")]
    labels = config["target_labels_space"]
    assert isinstance(labels, list)
    lines = [" ".join(map(str, sizes)), *map(str, labels)]
    (folder / "magika.txt").write_text("\n".join(lines) + "\n")


def classify(folder: Path, path: Path) -> tuple[str, float]:
    """Return the label of a file, and its score."""
    sizes, *labels = (folder / "magika.txt").read_text().splitlines()
    begin, end, padding = map(int, sizes.split())
    model = ekiden.load(folder / "magika.eki")
    row = np.array([extract_features(path.read_bytes(), begin, end, padding)], "int32")
    scores = np.asarray(model(**{model.inputs[0].name: row}))[0]
    best = int(scores.argmax())
    return labels[best], float(scores[best])


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
    else:
        for name in sys.argv[2:]:
            label, score = classify(Path(sys.argv[1]), Path(name))
            print(f"{name}: {label} {100 * score:.1f} %")
