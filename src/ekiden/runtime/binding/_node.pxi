# Nodes of the compiler: Python objects that every language sees as objects of the runtime, with type
# key, parent and fields. They are Python's own; what crosses is a handle, one for each node as long
# as somebody holds it, and fields are read from the node itself.

ctypedef struct PythonNode:
    ek_object base
    PyObject *source

cdef dict _NODES = {}              # id of a node -> address of its handle, which is held weakly
cdef dict _NODE_CLASSES = {}       # type index -> class of nodes
cdef dict _NODE_INDICES = {}       # class of nodes -> index of its type
cdef object _read_node_field = None
cdef object _build_node = None


def set_node_hooks(read, build):
    """Set the hooks for the compiler's nodes: `read(node, name)` returns a field in a form that
    can be converted, `build(cls, fields)` constructs a node.
    """
    global _read_node_field, _build_node
    _read_node_field, _build_node = read, build


def define_node_class(cls not None, list keys not None, list fields not None):
    """Register a class of nodes as a runtime type: `keys` are those of its parents, the first
    below EK_OBJECT, and its own; `fields` are (name, annotation, whether it may be left out, whether
    equality ignores it), those of its parents too.
    """
    cdef int32_t index = EK_OBJECT
    cdef const ek_type_info *parent
    cdef ek_type_def definition
    cdef Py_ssize_t count = len(fields)
    cdef bytearray memory = bytearray(max(1, count) * sizeof(ek_field))
    cdef ek_field *made = <ek_field *><char *>memory
    cdef list names = [name.encode() for name, _, _, _ in fields]
    cdef int32_t own = 0
    for key in keys:
        parent = ek_type_get(index)
        index = ek_type_register(key.encode(), index)
        if index < 0:
            _raise_pending()
    known = {parent.fields[i].name for i in range(parent.n_fields)}
    for i in range(count):
        if names[i] in known:
            continue
        _, annotation, is_optional, is_ignored = fields[i]
        made[own].name = <char *>names[i]
        made[own].type = _FIELD_TYPES.get(annotation, EK_ANY)
        made[own].offset = sizeof(ek_object)
        made[own].flags = EK_FIELD_READ_ONLY | (EK_FIELD_DEFAULT if is_optional else 0)
        made[own].flags |= EK_FIELD_IGNORE if is_ignored else 0
        made[own].get = <void *>_get_node_field
        made[own].standard.type_index = EK_ANY
        own += 1
    memset(&definition, 0, sizeof(definition))
    doc = (cls.__doc__ or "").encode()
    definition.doc = doc
    definition.fields = made
    definition.n_fields = own
    definition.size = sizeof(PythonNode)
    definition.build = _build_from_values
    _check(ek_type_define(index, &definition))
    _NODE_CLASSES[index] = cls
    _NODE_INDICES[cls] = index


def is_node_type(str type_key not None):
    """Return whether objects of a type are nodes of the compiler."""
    return ek_type_index(type_key.encode()) in _NODE_CLASSES


cdef void _delete_node(void *self, int flags) noexcept nogil:
    if flags & EK_DELETE_CONTENT and Py_IsInitialized():
        with gil:
            _forget_node(<PythonNode *>self)
    if flags & EK_DELETE_MEMORY:
        free(self)


cdef void _forget_node(PythonNode *handle) noexcept:
    key = <size_t>handle.source
    if _NODES is not None and _NODES.get(key) == <size_t>handle:
        del _NODES[key]
        ek_weak_release(&handle.base)
    Py_XDECREF(handle.source)


cdef ek_object *_node_from(object source) except NULL:
    """Return the handle of a node. The caller owns the reference."""
    cdef PythonNode *made
    cdef ek_object *known
    index = _NODE_INDICES.get(type(source))
    if index is None:
        return _opaque_from(source)
    found = _NODES.get(id(source))
    known = NULL if found is None else ek_weak_lock(<ek_object *><size_t>found)
    if known != NULL:
        return known
    made = <PythonNode *>malloc(sizeof(PythonNode))
    if made == NULL:
        raise MemoryError
    memset(made, 0, sizeof(PythonNode))
    made.base.refs = EK_REFS_NEW
    made.base.type_index = index
    made.base.deleter = _delete_node
    Py_INCREF(source)
    made.source = <PyObject *>source
    if found is not None:          # that handle is dying, on a thread that waits for this one
        ek_weak_release(<ek_object *><size_t>found)
    _NODES[id(source)] = <size_t>made
    ek_weak_retain(&made.base)
    return &made.base


cdef int _get_node_field(const ek_object *self, const ek_field *field,
                         ek_value *out) noexcept nogil:
    with gil:
        try:
            return _read_into((<PythonNode *>self).source, field.name, out)
        except BaseException as error:
            return _set_error(error)


cdef int _read_into(PyObject *source, const char *name, ek_value *out) except -1:
    value = _read_node_field(<object>source, name.decode())
    out[0] = ek_value_none()
    return _to_value(<PyObject *>value, out)


cdef int _build_from_values(const ek_type_info *info, const ek_value *values, int32_t n,
                            ek_object **out) noexcept nogil:
    with gil:
        try:
            fields = {info.fields[i].name.decode(): _to_python(&values[i])
                      for i in range(n) if values[i].type_index != EK_ANY}
            out[0] = _node_from(_build_node(_NODE_CLASSES[info.index], fields))
            return 0
        except BaseException as error:
            return _set_error(error)


# Python objects that are no nodes: others hold them without looking inside.

ctypedef struct OpaqueObject:
    ek_object base
    PyObject *source

cdef int32_t _OPAQUE_TYPE = ek_type_register(b"ek.PythonObject", EK_OBJECT)


cdef void _delete_opaque(void *self, int flags) noexcept nogil:
    if flags & EK_DELETE_CONTENT and Py_IsInitialized():
        with gil:
            Py_XDECREF((<OpaqueObject *>self).source)
    if flags & EK_DELETE_MEMORY:
        free(self)


cdef ek_object *_opaque_from(object source) except NULL:
    """Return an object that holds a Python object. The caller owns the reference."""
    cdef OpaqueObject *made = <OpaqueObject *>malloc(sizeof(OpaqueObject))
    if made == NULL:
        raise MemoryError
    memset(made, 0, sizeof(OpaqueObject))
    made.base.refs = EK_REFS_NEW
    made.base.type_index = _OPAQUE_TYPE
    made.base.deleter = _delete_opaque
    Py_INCREF(source)
    made.source = <PyObject *>source
    return &made.base
