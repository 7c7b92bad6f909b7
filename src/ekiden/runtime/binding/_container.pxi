# Values that hold values: data types, shapes, arrays and maps; and Python objects held as they are.

class ADT(tuple):
    """Value of an algebraic data type: its fields and the tag of its constructor.

    A tuple has tag 0 and crosses as the value of tag 0, which prints as a tuple and equals one.
    A value of any depth can be printed, compared, hashed, copied and pickled.
    """

    tag = 0
    constructor = None
    """Constructor that built the value, if known: in the interpreter and in user code."""
    _made = None                   # its object, once made of fields that cannot change

    def __new__(cls, tag, fields=(), constructor=None):
        """Return the value of a constructor, given itself or by its tag, applied to `fields`.

        Raises ValueError for another tag than the constructor's.
        """
        if hasattr(tag, "tag"):
            tag, constructor = tag.tag, tag
        elif constructor is not None and tag != constructor.tag:
            raise ValueError(f"ADT: {constructor.name_hint} has tag {constructor.tag}, got {tag}")
        self = super().__new__(cls, fields)
        if tag != 0:
            self.tag = tag
        if constructor is not None:
            self.constructor = constructor
        return self

    @property
    def fields(self):
        """Return the fields as a plain tuple."""
        return tuple(self)

    def __repr__(self):
        parts, work = [], [self]
        while work:
            at = work.pop()
            if type(at) is str:
                parts.append(at)
            else:
                tag, made = getattr(at, "tag", 0), getattr(at, "constructor", None)
                work += [")" if tag == 0 or made is not None else "))"]
                work += [","] if len(at) == 1 and made is None else []
                for i in range(len(at) - 1, -1, -1):
                    work += [at[i] if _is_adt(at[i]) else repr(at[i])]
                    work += [", "] if i else []
                name = "" if tag == 0 else f"ADT({tag}, "
                work += [(name if made is None else made.name_hint) + "("]
        return "".join(parts)

    def __eq__(self, other):
        work = [(self, other)]
        while work:
            one, two = work.pop()
            if one is two:
                continue
            if not (_is_adt(one) and _is_adt(two)):
                if one != two:
                    return False
            elif len(one) != len(two) or getattr(one, "tag", 0) != getattr(two, "tag", 0):
                return False
            else:
                work.extend(zip(one, two))
        return True

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        found, work = 0, [self]
        while work:
            at = work.pop()
            if _is_adt(at):
                work.extend(at)
                at = (len(at), getattr(at, "tag", 0))
            found = hash((found, at))
        return found

    def __reduce__(self):
        return _adt_of_records, (_adt_records(self),)


def _adt_records(root):
    """Return a value as records in postorder, which `_adt_of_records` reads: the tag (None for a
    plain tuple), the constructor, the fields without those that are values of this kind, and
    the record of each of those by its position."""
    cdef dict index_of = {}        # id of a value -> its record; the root keeps all ids alive
    cdef list records = [], stack = [root]
    while stack:
        at = stack[len(stack) - 1]
        missing = [field for field in at if _is_adt(field) and id(field) not in index_of]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if id(at) not in index_of:
            nested = {i: index_of[id(field)] for i, field in enumerate(at) if _is_adt(field)}
            fields = [None if i in nested else field for i, field in enumerate(at)]
            index_of[id(at)] = len(records)
            records.append((getattr(at, "tag", None), getattr(at, "constructor", None), fields,
                            nested))
    return records


def _adt_of_records(records):
    """Return the value that `_adt_records` took apart."""
    cdef list values = []
    for tag, constructor, fields, nested in records:
        fields = [values[nested[i]] if i in nested else f for i, f in enumerate(fields)]
        values.append(tuple(fields) if tag is None else ADT(tag, fields, constructor))
    return values[len(values) - 1]


class Shape(tuple):
    """Shape as a distinct type, which is converted to a runtime shape instead of a tuple."""

    def __repr__(self):
        return f"Shape({list(self)})"


cdef dict _map_to_python(ek_map *map):
    cdef uint64_t i
    cdef dict result = {}
    enter_recursion()
    try:
        for i in range(map.size):
            result[_to_python(&map.data[2 * i])] = _to_python(&map.data[2 * i + 1])
    finally:
        Py_LeaveRecursiveCall()
    return result


cdef list _items_to_python(ek_array *array):
    cdef int64_t i
    cdef list items = []
    enter_recursion()
    try:
        for i in range(array.size):
            items.append(_to_python(&array.data[i]))
    finally:
        Py_LeaveRecursiveCall()
    return items


cdef object _adt_to_python(ek_adt *adt):
    cdef tuple fields = PyTuple_New(adt.size)
    cdef object item
    cdef int32_t i
    for i in range(adt.size):
        if adt.fields[i].type_index == EK_ADT:
            return _deep_adt_to_python(adt)
        item = _to_python(&adt.fields[i])
        Py_INCREF(item)
        PyTuple_SET_ITEM(fields, i, item)
    return ADT(adt.tag, fields)


# A list of a million cells is a chain of a million ADTs: these two keep stacks of their own.

cdef object _deep_adt_to_python(ek_adt *root):
    cdef dict made = {}            # address -> tuple; the root keeps all addresses alive
    cdef list stack = [<size_t>root]
    cdef ek_adt *at
    while stack:
        at = <ek_adt *><size_t>stack[len(stack) - 1]
        missing = _missing_fields(at, made)
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        made[<size_t>at] = ADT(at.tag, _flat_fields(at, made))
    return made[<size_t>root]


cdef list _missing_fields(ek_adt *at, dict made):
    """Return the addresses of the nested ADTs that have no Python object yet."""
    cdef int32_t i
    cdef list missing = []
    for i in range(at.size):
        if at.fields[i].type_index == EK_ADT and <size_t>at.fields[i].v.obj not in made:
            missing.append(<size_t>at.fields[i].v.obj)
    return missing


cdef list _flat_fields(ek_adt *at, dict made):
    cdef int32_t i
    cdef list fields = []
    for i in range(at.size):
        if at.fields[i].type_index == EK_ADT:
            fields.append(made[<size_t>at.fields[i].v.obj])
        else:
            fields.append(_to_python(&at.fields[i]))
    return fields


cdef inline bint _is_adt(object value) noexcept:
    cls = type(value)
    return cls is tuple or cls is ADT


cdef Object _deep_adt(object root):
    """Return the ADT handle of a tuple that contains tuples, built without recursion."""
    cdef dict made = {}            # id of a tuple -> its object; the root keeps all ids alive
    cdef list stack = [root]
    cdef Arguments items
    cdef ek_object *out
    while stack:
        at = stack[len(stack) - 1]
        missing = [field for field in at if _is_adt(field) and not _is_made(field, made)]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        items = Arguments(tuple([made[id(field)] if _is_adt(field) else field for field in at]))
        _check(ek_container_new(EK_ADT, getattr(at, "tag", 0), items.call.values, items.count,
                                &out))
        made[id(at)] = _wrap(Object, out)
        if type(at) is ADT and all([_stays(field) for field in at]):
            at._made = made[id(at)]
    return made[id(root)]


cdef bint _is_made(object field, dict made):
    """Return whether the handle of a tuple is in 'made', adding a cached one."""
    if type(field) is ADT and field._made is not None:
        made[id(field)] = field._made
    return id(field) in made


cdef inline bint _stays(object field):
    """Return whether a field converts to the same value every time."""
    cls = type(field)
    if cls is Tensor:
        return ek_dltensor_is_contiguous((<Tensor>field).dl())
    return cls is int or (cls is ADT and field._made is not None)
