"""Where the names of `ekiden.codegen.llvm` stand. Made by scripts/generate_exports.py."""

EXPORTED_NAMES = {
    "compiler": """
        LLVM_VERSION assembly check_target check_triple compile_ir compile_object ir_to_assembly
        llvm_lock program_ir
    """,
    "debug": "DebugInfo",
    "image": "ImageInfo link_image parse_image",
    "module_emitter": "emit_function emit_module",
}
"""Module -> its names."""
