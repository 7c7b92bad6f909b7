"""Backend of the virtual machine: instructions, executable files, and disassembly."""
