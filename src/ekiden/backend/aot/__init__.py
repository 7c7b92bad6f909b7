"""Ahead-of-time compilation of VM bytecode to native code, which calls kernels directly and leaves
frames to the virtual machine.
"""
