"""Where the names of `ekiden.codegen.llvm` stand. Made by scripts/generate_exports.py."""

EXPORTS = {
    "compiler": """
        LLVM_VERSION assembly assembly_of_text check_target check_triple compile_object
        compile_text held
    """,
    "debug": """
        DebugLines
    """,
    "image": """
        ImageInfo inspect link
    """,
    "module_emitter": """
        emit emit_all
    """,
}
"""Module -> its names."""
