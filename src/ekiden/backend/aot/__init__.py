"""From bytecode to native code, which calls kernels directly and leaves frames to the machine."""
