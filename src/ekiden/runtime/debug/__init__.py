"""Debugging: inspect and step compiled programs; disassembly, runs instruction by instruction."""
