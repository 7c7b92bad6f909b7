# Objects: the Python handle of a counted object, its fields, and the class of each type.

cdef dict _CLASSES = {}            # type index -> class of handles
cdef dict _INDICES = {}            # class -> index of the type whose objects it makes

cdef enum:
    LARGE = 1 << 20                # bytes whose release may take the system's time


@cython.freelist(64)               # for the classes without members of their own, as Tensor
cdef class Object:
    """Handle of a runtime object, which it keeps alive.

    Fields and methods that the type was defined with, in any language, are attributes. Equality is
    identity; `structural_equal` compares meaning. The class of a type makes objects:
    `object_class("myns.MyExpr")(value=1)`.
    """

    cdef ek_object *handle
    cdef object __weakref__

    def __dealloc__(self):
        if self.handle != NULL:
            _release_object(self.handle)

    def __init__(self, *args, **fields):
        if self.handle != NULL:
            raise RuntimeError(f"{type(self).__name__}: initialised twice")
        self.handle = _make_object(type(self), args, fields)

    def __init_handle_by_constructor__(self, constructor, *args):
        """Initialise the handle with the result of a runtime function (TVM's way to write
        `__init__`). The constructor is the function, its name, or the key of a type, whose fields
        the arguments are.
        """
        cdef Object made
        if self.handle != NULL:
            raise RuntimeError(f"{type(self).__name__}: initialised twice")
        if isinstance(constructor, str):
            constructor = get_global_func(constructor, True) or object_class(constructor)
        made = constructor(*args)
        ek_object_retain(made.handle)
        self.handle = made.handle

    @property
    def type_key(self):
        """Return the type key."""
        return ek_type_key(self.handle.type_index).decode()

    def __getattr__(self, name):
        # A type may be defined, and given methods, after its class was made.
        cls = type(self)
        if self.handle != NULL and _refresh(cls, self.handle.type_index) and cls is not Object:
            if hasattr(cls, name):
                return getattr(self, name)
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")

    def __repr__(self):
        return _repr_object(self, 0)

    def __eq__(self, other):
        if not isinstance(other, Object):
            return NotImplemented
        return self.handle == (<Object>other).handle

    def __hash__(self):
        return hash(<size_t>self.handle)

    def __reduce__(self):
        return graph_json().load_json, (graph_json().save_json(self),)

    def same_as(self, other):
        """Return whether both are handles of the same object."""
        return self == other


cdef object graph_json():
    """Import the module that serialises objects, which depends on this one."""
    return sys.modules["ekiden.runtime.artifact.graph_json"]


cdef void _release_object(ek_object *object) noexcept:
    """Release a reference without the GIL, since freeing a large object takes long."""
    cdef ek_tensor *tensor = <ek_tensor *>object
    cdef PyObject *source
    if EK_REFS(object) != EK_REFS_NEW:
        ek_object_release(object)
    elif object.type_index != EK_TENSOR:
        with nogil:
            ek_object_release(object)
    elif tensor.dispose == _drop_source:           # here Python's lock is held already
        source = <PyObject *>tensor.managed
        tensor.dispose = NULL
        ek_object_release(object)
        Py_DECREF_(source)
    elif tensor.dispose == NULL and ek_dltensor_nbytes(&tensor.dl) < LARGE:
        ek_object_release(object)
    else:
        with nogil:
            ek_object_release(object)


cdef Object _wrap(cls, ek_object *handle):
    """A handle that takes over one reference."""
    cdef Object self = cls.__new__(cls)
    self.handle = handle
    return self


cdef class WeakRef:
    """Weak reference to a runtime object. Calling it returns the object, or None once it has been
    deleted, whichever language held it last.
    """

    cdef ek_object *handle

    def __init__(self, Object object not None):
        if self.handle == NULL:
            self.handle = object.handle
            ek_weak_retain(self.handle)

    def __dealloc__(self):
        if self.handle != NULL:
            ek_weak_release(self.handle)

    def __call__(self):
        cdef ek_object *found = ek_weak_lock(self.handle) if self.handle != NULL else NULL
        if found == NULL:
            return None
        result = _object_to_python(found)
        ek_object_release(found)
        return result


# Classes ------------------------------------------------------------------------------------------

cdef class Field:
    """Descriptor that reads and writes a field of an object."""

    cdef const ek_field *field
    cdef readonly str __name__
    cdef readonly str __doc__

    def __get__(self, instance, owner):
        cdef ek_value value = ek_value_none()
        if instance is None:
            return self
        _check(ek_field_get((<Object>instance).handle, self.field, &value))
        return _move_out(&value)

    def __set__(self, instance, value):
        cdef ek_value inplace = ek_value_none()
        cdef Kept kept
        cdef Call call = Call(&inplace, &kept, 0)
        if self.field.flags & EK_FIELD_READ_ONLY:
            raise AttributeError(f"{type(instance).__name__}: field {self.__name__!r} is read-only")
        _set_argument(&call, <PyObject *>value, &inplace)
        status = ek_field_set((<Object>instance).handle, self.field, &inplace)
        _settle(&call)
        _check(status)


cdef class Method:
    """Descriptor of a method: a function whose first argument is the object."""

    cdef object function
    cdef readonly str __name__
    cdef readonly str __doc__

    def __get__(self, instance, owner):
        if instance is None:
            return self.function
        return types.MethodType(self.function, instance)


cdef dict _SEEN = {}               # class -> address of the type information it was made from


cdef bint _refresh(cls, int32_t index) except -1:
    """Add the fields and methods that the class's type has gained, and return whether there were
    any."""
    cdef const ek_type_info *info = ek_type_get(index)
    cdef Field field
    cdef Method method
    cdef int32_t i
    if info == NULL or _SEEN.get(cls) == <size_t>info:
        return False
    _SEEN[cls] = <size_t>info
    own = _own_names(cls)
    for i in range(info.n_fields):
        field = Field()
        field.field = &info.fields[i]
        field.__name__ = info.fields[i].name.decode()
        field.__doc__ = info.fields[i].doc.decode() if info.fields[i].doc != NULL else ""
        if field.__name__ not in own:
            setattr(cls, field.__name__, field)
    for i in range(info.n_methods):
        method = Method()
        ek_object_retain(info.methods[i].function)
        method.function = _wrap(PackedFunc, info.methods[i].function)
        method.__name__ = info.methods[i].name.decode()
        method.__doc__ = info.methods[i].doc.decode() if info.methods[i].doc != NULL else ""
        if method.__name__ not in own and not method.__name__.startswith("__"):
            setattr(cls, method.__name__, method)
    return True


cdef set _own_names(cls):
    """Return the names that a user's class defines itself, which take precedence, without defaults
    of fields."""
    names = {name for name, value in vars(cls).items() if not isinstance(value, (Field, Method))}
    return names - set(vars(cls).get("__annotations__", ()))


cdef object _class_of(int32_t index):
    """Return the class of a type: the registered one, or one created here from the type's
    reflection record."""
    cdef const ek_type_info *info
    found = _CLASSES.get(index)
    if found is not None:
        return found
    info = ek_type_get(index)
    if info == NULL or index < EK_OBJECT:
        return Object
    parent = _class_of(info.parent) if info.parent >= EK_OBJECT else Object
    key = info.key.decode()
    made = type(parent)(key.rpartition(".")[2], (parent,),
                        {"__slots__": (), "__module__": key.rpartition(".")[0] or "ekiden.runtime",
                         "__doc__": info.doc.decode() if info.doc != NULL else ""})
    return _bind_class(made, index)


cdef object _bind_class(cls, int32_t index):
    _CLASSES[index] = cls
    _INDICES[cls] = index
    _refresh(cls, index)
    return cls


def object_class(str type_key not None):
    """Return the Python class of a runtime type, whichever language defined it. Raises ValueError
    for an unknown type.
    """
    index = ek_type_index(type_key.encode())
    if index < 0:
        load_deferred()
        index = ek_type_index(type_key.encode())
    if index < 0:
        raise ValueError(f"object_class: no type has the key {type_key!r}")
    return _class_of(index)


def make_node(str type_key not None, **fields):
    """Construct an object of a type from the values of its fields, or a node of a compiler type
    (TVM's name). The constructor of a registered Python class is not run.
    """
    cdef ek_object *made = _make_object(object_class(type_key), (), fields)
    try:
        return _object_to_python(made)
    finally:
        ek_object_release(made)


def is_defined(str type_key not None):
    """Return whether a type and its fields are defined, so that objects can be constructed."""
    index = ek_type_index(type_key.encode())
    if index < 0:
        load_deferred()
        index = ek_type_index(type_key.encode())
    return index >= 0 and ek_type_get(index).is_defined != 0


cdef dict _FIELD_TYPES = {
    "int": EK_INT, "float": EK_FLOAT, "bool": EK_BOOL, "str": EK_STR, "bytes": EK_BYTES,
    "Tensor": EK_TENSOR, "list": EK_ARRAY, "dict": EK_MAP, "Shape": EK_SHAPE,
    "PackedFunc": EK_FUNCTION, "Module": EK_MODULE, "DataType": EK_DTYPE, "Device": EK_DEVICE,
}


def register_object(type_key=None, *, bint frozen=False):
    """Register a subclass of Object as the class of all objects of a type key. A class decorator.
    A type that is new is registered below the type of the class's base. If it has no fields yet,
    the class's annotations define them, for all languages:

        @register_object("myns.Point")
        class Point(Object):
            x: float
            y: float = 0.0

    int, float, bool, str, bytes, list, dict, Tensor and classes of objects are checked; any other
    annotation admits any value. With `frozen` the fields are read-only.
    """

    def register(cls):
        if not (isinstance(cls, type) and issubclass(cls, Object)):
            raise TypeError(f"register_object: expected a subclass of Object, got {cls!r}")
        key = (type_key if isinstance(type_key, str) else cls.__name__).encode()
        index = ek_type_index(key)
        if index < 0:
            index = ek_type_register(key, _index_of_class(cls.__base__))
        if index < 0:
            _raise_pending()
        if ek_type_get(index).is_defined == 0 and "__annotations__" in vars(cls):
            _define_type(cls, index, frozen)
        return _bind_class(cls, index)

    return register(type_key) if isinstance(type_key, type) else register


cdef int32_t _index_of_class(cls) except -2:
    """Return the type index of a class or of its nearest base that has one."""
    for base in cls.__mro__:
        if base in _INDICES:
            return _INDICES[base]
    return EK_OBJECT


cdef int _define_type(cls, int32_t index, bint frozen) except -1:
    """Define a type from the annotations of its class."""
    annotations = vars(cls)["__annotations__"]
    cdef int32_t count = <int32_t>len(annotations)
    cdef bytearray memory = bytearray(max(1, count) * sizeof(ek_field))
    cdef ek_field *fields = <ek_field *><char *>memory
    cdef ek_type_def definition
    defaults = tuple([vars(cls).get(name) for name in annotations])
    cdef Arguments standards = Arguments(defaults)
    cdef list names = [name.encode() for name in annotations]
    for i, (name, annotation) in enumerate(annotations.items()):
        fields[i].name = <char *>names[i]
        fields[i].type = _field_type(annotation)
        fields[i].flags = EK_FIELD_READ_ONLY if frozen else 0
        if name in vars(cls):
            fields[i].flags |= EK_FIELD_DEFAULT
            fields[i].standard = standards.call.values[i]
    memset(&definition, 0, sizeof(definition))
    doc = (cls.__doc__ or "").encode()
    definition.doc = doc
    definition.fields = fields
    definition.n_fields = count
    return _check(ek_type_define(index, &definition))


cdef int32_t _field_type(object annotation) except? -2:
    if isinstance(annotation, type) and issubclass(annotation, Object):
        return _index_of_class(annotation)
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return _FIELD_TYPES.get(name.partition("[")[0], EK_ANY)


cdef ek_object *_make_object(cls, tuple args, dict fields) except NULL:
    """Create an object of a class's type from its fields, by position and by name."""
    cdef ek_object *out = NULL
    cdef const ek_type_info *info
    cdef Arguments values
    cdef int32_t i
    index = _INDICES.get(cls, -1)
    info = ek_type_get(index) if index >= 0 else NULL
    if info == NULL or not info.is_defined:
        raise TypeError(f"{cls.__name__}: made by the runtime, not by calling the class")
    _refresh(cls, index)
    names = [info.fields[i].name.decode() for i in range(info.n_fields)]
    given = _in_order(cls.__name__, names, args, fields)
    values = Arguments(tuple([None if value is _LEFT_OUT else value for value in given]))
    for i in range(values.count):
        if given[i] is _LEFT_OUT:
            values.call.values[i].type_index = EK_ANY
    _check(ek_object_new(index, values.call.values, values.count, &out))
    return out


cdef object _LEFT_OUT = object()


cdef list _in_order(str what, list names, tuple args, dict fields):
    """Return the values of the fields in order, _LEFT_OUT for an omitted one."""
    if len(args) > len(names):
        raise TypeError(f"{what}: expected at most {len(names)} fields, got {len(args)}")
    given = dict(zip(names, args))
    for name, value in fields.items():
        if name not in names or name in given:
            problem = "is given twice" if name in given else "is not one of its fields: "
            raise TypeError(f"{what}: {name!r} {problem}"
                            + ("" if name in given else ", ".join(names)))
        given[name] = value
    return [given.get(name, _LEFT_OUT) for name in names]


# What all objects can do --------------------------------------------------------------------------

cdef enum:
    REPR_DEPTH = 6                 # below this, objects are printed without their fields


cdef str _repr_object(Object self, int depth):
    cdef const ek_type_info *info
    cdef ek_value value
    if self.handle == NULL:
        return f"<{type(self).__name__}, not initialised>"
    info = ek_type_get(self.handle.type_index)
    if info == NULL or not info.is_defined:
        return f"<{self.type_key} at {<size_t>self.handle:#x}>"
    if depth > REPR_DEPTH:
        return f"{self.type_key}(...)"
    parts = []
    for i in range(info.n_fields):
        value = ek_value_none()
        _check(ek_field_get(self.handle, &info.fields[i], &value))
        parts.append(f"{info.fields[i].name.decode()}={_repr_inside(_move_out(&value), depth + 1)}")
    return f"{self.type_key}({', '.join(parts)})"


cdef str _repr_inside(object value, int depth):
    if depth > REPR_DEPTH and isinstance(value, (list, dict, tuple)):
        return "..."
    if type(value) is list:
        return f"[{', '.join([_repr_inside(item, depth + 1) for item in value])}]"
    if type(value) is dict:
        items = [f"{key!r}: {_repr_inside(item, depth + 1)}" for key, item in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, Object) and not isinstance(value, Tensor):
        return _repr_object(value, depth)
    return repr(value)


def fields_of(Object object not None):
    """Return the names and values of an object's fields, inherited ones first."""
    cdef const ek_type_info *info = ek_type_get(object.handle.type_index)
    cdef ek_value value
    cdef int32_t i
    cdef dict result = {}
    for i in range(info.n_fields):
        value = ek_value_none()
        _check(ek_field_get(object.handle, &info.fields[i], &value))
        result[info.fields[i].name.decode()] = _move_out(&value)
    return result


def structural_equal(a, b):
    """Return whether two values are structurally equal: equal fields, items and elements.

    Objects of types without fields, and tensors on other devices, are equal only to themselves.
    """
    cdef Arguments values = Arguments((a, b))
    cdef int result
    with nogil:
        result = ek_value_equal(&values.call.values[0], &values.call.values[1])
    if result < 0:
        _raise_pending()
    return result != 0


def structural_hash(value):
    """Return a hash that is equal for structurally equal values."""
    cdef Arguments values = Arguments((value,))
    cdef uint64_t result = 0
    cdef int status
    with nogil:
        status = ek_value_hash(values.call.values, &result)
    _check(status)
    return result
