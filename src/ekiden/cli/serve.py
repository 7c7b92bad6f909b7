"""`ekiden serve FOLDER`: serve the models of a folder."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields

from ekiden import serve
from ekiden.serve.config import LOAD_TIMES, LOG_LEVELS, ServerConfig

_STRING_FIELDS: dict[str, str] = {
    "host": "the address to listen on (127.0.0.1)",
    "token-file": "file of bearer tokens, one per line; a request must carry one",
    "control-token-file": "file of bearer tokens that may load and unload models",
    "tls-certificate": "the server's certificate, PEM",
    "tls-key": "the certificate's key, PEM",
    "tls-client-ca": "require client certificates signed by this one",
    "prompt-cache": "a folder that keeps what prompts of text models begin with, for later runs",
}
_NUMERIC_FIELDS: dict[str, tuple[type, str]] = {
    "port": (int, "HTTP's port, 0 for any (8000)"),
    "grpc-port": (int, "gRPC's port (one above HTTP's)"),
    "memory": (int, "maximum bytes of memory for models (default: the memory free at the start)"),
    "model-bytes": (int, "with --load demand: maximum bytes of loaded models' files (no limit)"),
    "prompt-cache-bytes": (int, "maximum bytes of the folder of --prompt-cache (4 GiB)"),
    "poll-seconds": (float, "seconds between checks for new versions (default: only on request)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments: the most commonly changed configuration fields."""
    parser.add_argument("folder", help="a folder of models: NAME/VERSION/model.eki, or NAME.eki")
    for name, text in _STRING_FIELDS.items():
        parser.add_argument(f"--{name}", help=text)
    for name, (kind, text) in _NUMERIC_FIELDS.items():
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.add_argument(
        "--open", action="store_true", default=None,
        help="listen beyond this machine without tokens or certificates of clients: everybody"
        " who reaches the address may run models, read sequences, lists and metrics, not load or"
        " unload",
    )  # fmt: skip
    parser.add_argument(
        "--allow-control", action="store_true", default=None,
        help="let programs of this machine load and unload models without a token",
    )  # fmt: skip
    parser.add_argument(
        "--traces", action="store_true", default=None, help="export spans to OpenTelemetry"
    )
    parser.add_argument(
        "--load", choices=LOAD_TIMES,
        help="load models at the start, or each at its first request (start)",
    )  # fmt: skip
    parser.add_argument("--log", choices=LOG_LEVELS, help="the lowest level to log (info)")


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    # The log is JSON, one object a line; gRPC's library says in words of its own that we fork.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    names = [config_field.name for config_field in fields(ServerConfig)]
    option_values = {name: getattr(options, name, None) for name in names}
    serve.Server(options.folder, **{k: v for k, v in option_values.items() if v is not None}).run()
    return 0
