"""A server whose disk is full: its models, cache, log and temporary files. Run in a namespace of
its own, where a small disk can be mounted: `unshare -rm python full_disk.py FOLDER`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

SIZE = 1 << 20
X = [[1.0, 2.0, 3.0, 4.0]]


def fill(folder: Path) -> None:
    """Leave no byte."""
    with open(folder / "rest", "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def main(folder: Path) -> None:
    """All that a server does with files, and answers that stay right."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    models = folder / "models"
    for result in (models / "fresh" / "1", models / "step" / "1", folder / "tmp"):
        result.mkdir(parents=True)
    os.environ["EKIDEN_CACHE_DIR"] = str(folder / "cache")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    import onnx
    from serving import put, rows, serving

    import ekiden
    from ekiden.serve.logs import JsonLog

    path = put(models, "soft")
    put(models, "step", config='[sequences]\nstate = { "h" = "output1" }\n')
    port = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "g", [port], [y])
    onnx.save(onnx.helper.make_model(graph, ir_version=9), models / "fresh" / "1" / "model.onnx")
    data = path.read_bytes()
    fill(folder)
    with serving(models, grpc=False) as server, open(folder / "log", "w") as log:
        server.server.engine.log = JsonLog("debug", log)
        expected = server.infer("soft", x=X).output()
        assert server.infer("fresh", x=X).output() == [-1.0, -2.0, -3.0, -4.0]  # compiled, not kept
        path.unlink()  # a newer artifact whose copy the disk cut short
        with suppress(OSError):
            path.write_bytes(data + bytes(SIZE))
        fill(folder)
        actual = server.ask("POST", "/v2/repository/models/soft/load", {})
        assert actual.status == 422 and actual.error.startswith("load 'soft': "), actual.data
        assert server.infer("soft", x=X).output() == expected
        step = {"inputs": rows({"x": [[1.0, 1.0]]})}
        for at in range(3):
            step["parameters"] = {"sequence_id": 7, "sequence_start": at == 0}
            actual = server.ask("POST", "/v2/models/step/infer", step)
            assert actual.output() == [2.0 * (at + 1)] * 2
        state = server.ask("GET", "/v2/models/step/sequences/7")
        assert state.status == 200
        assert server.ask("PUT", "/v2/models/step/sequences/8", state.data).status == 200
        step["parameters"] = {"sequence_id": 8}
        assert server.ask("POST", "/v2/models/step/infer", step).output() == [8.0, 8.0]
        with suppress(OSError):
            log.close()
    try:
        ekiden.load(data).save(folder / "again.eki")
    except OSError as error:
        assert str(error).endswith("no space left on device"), error
        assert not (folder / "again.eki").exists()
    else:
        raise AssertionError("a file was saved on a full disk")
    print("whole")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(Path(sys.argv[1]))
