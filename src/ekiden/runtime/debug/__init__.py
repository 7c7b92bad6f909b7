"""To look into a program: disassembly, runs instruction by instruction."""
