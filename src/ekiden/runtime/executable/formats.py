"""File formats of a compiled model. `compiler.export.library` writes them."""

ARTIFACT_SUFFIX = ".eki"

MODEL_FILE_KINDS = {
    ARTIFACT_SUFFIX: "the artifact, which ekiden.load maps",
    ".so": "a shared library with the runtime inside",
    ".o": "an object to link with libekiden_runtime.a",
    ".c": "the same as C",
    ".tar": "sources of model and runtime with a Makefile",
}
"""Suffix -> what it is."""
