"""C backend without a runtime library, for microcontrollers without an allocator: a program with
statically planned memory, as C99 functions.

    layout      what values of a type are in memory
    read, match, read_value    functions in A-normal form -> statements over storages
    place       storages -> bytes of results and frames; what turns of loops move
    plan        all functions, callees first -> module
    emit, emit_code, packed    module -> files of C
"""
