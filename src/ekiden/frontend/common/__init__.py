"""Infrastructure shared by all importers.

    options     user's import options                  imported    the importer's result
    main        the function under construction: its inputs and outputs
    scope       symbols, blocks, expressions            facts       facts learnt from import
    attempts
    value       a tensor during import                  sizes       data-dependent sizes
    arithmetic  evaluation of known shape values        whole       floats that are whole numbers
    node        a node as converters see it             walk        errors that name the node
    choice      if                                      loop        loops
    functions   composed elementwise functions
    sequence_value, text_value                          lists of tensors, tensors of strings

An importer walks over its model's nodes, each `with walk.at(name, inputs): ...`; a converter turns
a `Node` into an expression or a `Value`, and raises `Unsupported` where it cannot.
"""
