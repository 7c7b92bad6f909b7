"""The VM compiler's output: instructions, executables' bytes, and their printed form."""
