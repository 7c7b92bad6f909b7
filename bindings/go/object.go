package ekiden

/*
#include "bridge.h"
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// Object is an object of a type that any language defined.
type Object struct{ *counted }

// Kind is what a field holds.
type Kind int32

const (
	Any   Kind = C.EK_ANY
	Int   Kind = C.EK_INT
	Bool  Kind = C.EK_BOOL
	Float Kind = C.EK_FLOAT
)

// Field is a field of a type that is defined here.
type Field struct {
	Name string
	Kind Kind
}

// Define registers an object type for all languages of the process.
func Define(key string, fields ...Field) error {
	f, err := newFrame(nil)
	defer f.close()
	if err != nil {
		return err
	}
	size := unsafe.Sizeof(C.ek_field{})
	rows := f.alloc(uintptr(len(fields)) * size)
	for i, field := range fields {
		row := (*C.ek_field)(unsafe.Add(rows, uintptr(i)*size))
		row.name, row._type = f.text(field.Name), C.int32_t(field.Kind)
	}
	def := (*C.ek_type_def)(f.alloc(unsafe.Sizeof(C.ek_type_def{})))
	def.fields, def.n_fields = (*C.ek_field)(rows), C.int32_t(len(fields))
	text := f.text(key)
	_, err = attempt(func() C.int {
		index := C.ek_type_register(text, C.EK_OBJECT)
		if index < 0 {
			return -1
		}
		return C.ek_type_define(index, def)
	})
	return err
}

// New returns an object of a defined type, from the values of its first fields.
func New(key string, values ...Value) (*Object, error) {
	f, err := newFrame(values)
	defer f.close()
	if err != nil {
		return nil, err
	}
	index := C.ek_type_register(f.text(key), C.EK_ANY)
	if index < 0 {
		return nil, failed("TypeError", "there is no type '%s'", key)
	}
	var made *C.ek_object
	_, err = attempt(func() C.int { return C.ek_object_new(index, f.values, C.int32_t(f.count), &made) })
	if err != nil {
		return nil, err
	}
	return &Object{own(made)}, nil
}

// TypeKey returns the key of its type, such as "relay.Function".
func (o *Object) TypeKey() (string, error) {
	object, err := o.get()
	if err != nil {
		return "", err
	}
	return C.GoString(C.ek_type_get(C.go_type(object)).key), nil
}

// Fields returns the names of its fields, those of its type's parents first.
func (o *Object) Fields() ([]string, error) {
	object, err := o.get()
	if err != nil {
		return nil, err
	}
	names := make([]string, C.go_field_count(object))
	for i := range names {
		names[i] = C.GoString(C.go_field_name(object, C.int32_t(i)))
	}
	return names, nil
}

// find calls then with a field of the object, or returns an AttributeError.
func (o *Object) find(name string, f *frame, then func(*C.ek_object, *C.ek_field) C.int) error {
	object, err := o.get()
	if err != nil {
		return err
	}
	text := f.text(name)
	_, err = attempt(func() C.int {
		var field *C.ek_field
		if C.go_field(object, text, &field) != 0 {
			return -1
		}
		return then(object, field)
	})
	runtime.KeepAlive(o)
	return err
}

// Get is the value of a field, or an AttributeError.
func (o *Object) Get(name string) (Value, error) {
	f, err := newFrame(nil)
	defer f.close()
	if err != nil {
		return nil, err
	}
	out := (*C.ek_value)(f.alloc(valueSize))
	err = o.find(name, f, func(object *C.ek_object, field *C.ek_field) C.int {
		return C.ek_field_get(object, field, out)
	})
	if err != nil {
		return nil, err
	}
	return take(out)
}

// Set changes a field: AttributeError, TypeError, ValueError.
func (o *Object) Set(name string, value Value) error {
	f, err := newFrame([]Value{value})
	defer f.close()
	if err != nil {
		return err
	}
	return o.find(name, f, func(object *C.ek_object, field *C.ek_field) C.int {
		return C.ek_field_set(object, field, f.values)
	})
}

// Equal compares objects structurally: by type and fields, not by identity.
func (o *Object) Equal(other *Object) (bool, error) {
	f, err := newFrame([]Value{o, other})
	defer f.close()
	if err != nil {
		return false, err
	}
	code, err := attempt(func() C.int { return C.ek_value_equal(f.values, at(f.values, 1)) })
	return code == 1, err
}
