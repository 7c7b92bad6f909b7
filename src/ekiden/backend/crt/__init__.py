"""C without the runtime, for machines without an allocator: a straight-line program with its memory
planned, as one function in C99.
"""
