"""What every importer needs.

    options     what is asked of an import             imported    what it gives
    main        the function being made: its inputs and outputs
    scope       symbols, blocks, expressions            facts       what attempts have taught
    value       a tensor during import                  sizes       sizes that are data
    arithmetic  values that are shapes, evaluated       whole       floats that are whole numbers
    node        a node as converters see it             walk        errors that name the node
    choice      if                                      loop        loops
    functions   of elements, made of others
    sequence_value, text_value                          lists of tensors, tensors of strings

An importer walks over its model's nodes, each `with walk.at(name, inputs): ...`; a converter turns
a `Node` into an expression or a `Value`, and raises `Unsupported` where it cannot.
"""
