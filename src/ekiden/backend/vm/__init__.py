"""Backend of the virtual machine; instructions, executables' bytes, and their printed form."""
