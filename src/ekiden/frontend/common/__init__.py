"""Infrastructure shared by all importers.

    options              the user's import options
    import_result        the importer's result
    main_builder         the function under construction: its inputs and outputs
    scope                symbols, blocks, expressions
    dim_facts            facts about dimensions, learnt from import attempts
    value                a tensor during import
    data_dependent_dims  sizes that depend on data
    arithmetic           evaluation of known shape values
    exact_integers       floats that are whole numbers
    node                 a node as converters see it
    walk                 errors that name the node
    conditional          If and Switch
    loop                 loops
    float_functions      composed elementwise functions
    sequence_value       lists of tensors
    text_value           tensors of strings

An importer walks over its model's nodes, each `with walk.at(name, inputs): ...`; a converter turns
a `Node` into an expression or a `Value`, and raises `Unsupported` where it cannot.
"""
