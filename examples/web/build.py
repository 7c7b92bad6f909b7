"""Write the page with its model to a folder: `python examples/web/build.py FOLDER [WHEEL]`.

The model is that of `ekiden demo`, Magika, which pip fetches unless its wheel is given; it is there
twice, for WebAssembly alone and with kernels of WebGPU. Then any web server serves the folder:
`python -m http.server --directory FOLDER`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from ekiden.cli.demo import MAGIKA_MODEL_FOLDER, download_model
from ekiden.compiler.artifact import compile_artifact
from ekiden.compiler.export.web import web_targets, write_web_folder
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.registry import identify_model

HERE = Path(__file__).parent


def _compile_model(model: Path, targets: list[str]) -> bytes | memoryview:
    options = CompileOptions(web_targets(targets))
    return compile_artifact(identify_model(str(model)), options).to_bytes()


def build(folder: Path, wheel: Path | None = None) -> None:
    """Compile the model, and write page, model, runtime and labels."""
    with tempfile.TemporaryDirectory() as scratch:
        if wheel is None:
            model, config = download_model(Path(scratch))
        else:
            with zipfile.ZipFile(wheel) as archive:
                config = json.loads(archive.read(f"{MAGIKA_MODEL_FOLDER}/config.min.json"))
                model = Path(archive.extract(f"{MAGIKA_MODEL_FOLDER}/model.onnx", scratch))
        write_web_folder(_compile_model(model, []), folder)
        (folder / "gpu.eki").write_bytes(_compile_model(model, ["webgpu"]))
    for path in HERE.iterdir():
        if path.suffix in (".html", ".css", ".js"):
            shutil.copyfile(path, folder / path.name)
    names = {"labels": "target_labels_space", "begin": "beg_size", "end": "end_size",
             "padding": "padding_token", "least": "min_file_size_for_dl"}  # fmt: skip
    about = {name: config[key] for name, key in names.items()}
    (folder / "magika.json").write_text(json.dumps(about))
    files = sorted(path.name for path in folder.iterdir() if path.suffix not in (".ts", ".onnx"))
    (folder / "files.json").write_text(json.dumps([name for name in files if name != "files.json"]))


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
