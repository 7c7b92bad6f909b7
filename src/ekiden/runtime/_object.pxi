# Objects: the Python handle of a counted object, and the class of each type.

cdef dict _CLASSES = {}            # type index -> class of handles

cdef enum:
    LARGE = 1 << 20                # bytes whose release may take the system's time


@cython.freelist(64)               # for the classes without members of their own, as Tensor
cdef class Object:
    """A reference to an object of the runtime. Holds it until the handle dies."""

    cdef ek_object *handle
    cdef object __weakref__

    def __dealloc__(self):
        if self.handle != NULL:
            _release_object(self.handle)

    def __init__(self):
        raise TypeError(f"{type(self).__name__}: made by the runtime, not by calling the class")

    @property
    def type_key(self):
        """The name under which the runtime knows the type."""
        return ek_type_key(self.handle.type_index).decode()

    def __repr__(self):
        return f"<{self.type_key} at {<size_t>self.handle:#x}>"

    def __eq__(self, other):
        if not isinstance(other, Object):
            return NotImplemented
        return self.handle == (<Object>other).handle

    def __hash__(self):
        return hash(<size_t>self.handle)


cdef void _release_object(ek_object *object) noexcept:
    """Drops a reference; freeing something large must not stop other Python threads."""
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


cdef Object _wrap(type cls, ek_object *handle):
    """A handle that takes over one reference."""
    cdef Object self = cls.__new__(cls)
    self.handle = handle
    return self


def register_object(str type_key not None):
    """Make a subclass of Object the class of all objects whose type has this key.

    The type is registered with the runtime if it is new. Use it as a class decorator.
    """

    def register(cls):
        if not (isinstance(cls, type) and issubclass(cls, Object)):
            raise TypeError(f"register_object: expected a subclass of Object, got {cls!r}")
        index = ek_type_register(type_key.encode(), EK_OBJECT)
        if index < 0:
            _raise_pending()
        _CLASSES[index] = cls
        return cls

    return register
