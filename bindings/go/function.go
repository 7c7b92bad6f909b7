package ekiden

/*
#include "bridge.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"runtime/cgo"
	"unsafe"
)

// Function is a packed function, of any language.
type Function struct{ *counted }

// NewFunction returns a function that every language can call, from any thread. A panic of body is a
// RuntimeError of the call.
func NewFunction(body func(...Value) (Value, error)) (*Function, error) {
	object, err := newCallback(body)
	if err != nil {
		return nil, err
	}
	return &Function{own(object)}, nil
}

func newCallback(body func(...Value) (Value, error)) (*C.ek_object, error) {
	var made *C.ek_object
	handle := cgo.NewHandle(body)
	_, err := attempt(func() C.int { return C.go_function_new(C.uintptr_t(handle), &made) })
	if err != nil {
		handle.Delete()
	}
	return made, err
}

//export ekidenGoCall
func ekidenGoCall(self C.uintptr_t, args *C.ek_value, n C.int32_t, ret *C.ek_value) (code C.int) {
	defer func() {
		if said := recover(); said != nil {
			setError(failed("RuntimeError", "%v", said))
			code = -1
		}
	}()
	if err := callBack(cgo.Handle(self), args, int(n), ret); err != nil {
		setError(err)
		return -1
	}
	return 0
}

func callBack(handle cgo.Handle, args *C.ek_value, n int, ret *C.ek_value) error {
	values := make([]Value, n)
	for i := range values {
		value, err := read(at(args, i))
		if err != nil {
			return err
		}
		values[i] = value
	}
	result, err := handle.Value().(func(...Value) (Value, error))(values...)
	if err != nil {
		return err
	}
	f, err := newFrame(nil)
	defer f.close()
	if err != nil {
		return err
	}
	if err := f.writeOwned(result, ret); err != nil {
		put(ret, C.EK_NONE, 0)
		return err
	}
	if ret.type_index >= C.EK_OBJECT {
		C.ek_object_retain(objectOf(ret))
	}
	return nil
}

//export ekidenGoDelete
func ekidenGoDelete(self C.uintptr_t) { cgo.Handle(self).Delete() }

// Call calls the function; the error is the function's own.
func (f *Function) Call(args ...Value) (Value, error) {
	object, err := f.get()
	if err != nil {
		return nil, err
	}
	given, err := newFrame(args)
	defer given.close()
	if err != nil {
		return nil, err
	}
	ret := (*C.ek_value)(given.alloc(valueSize))
	_, err = attempt(func() C.int {
		return C.go_invoke(object, given.values, C.int32_t(given.count), ret)
	})
	runtime.KeepAlive(f)
	if err != nil {
		return nil, err
	}
	return take(ret)
}

// Register registers a function globally, for all languages of the process. It is a ValueError where
// the name is taken.
func Register(name string, body func(...Value) (Value, error)) error {
	function, err := NewFunction(body)
	if err != nil {
		return err
	}
	defer function.Close()
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	_, err = attempt(func() C.int { return C.ek_registry_set(text, function.object, 0) })
	return err
}

// Remove removes a global function, and returns whether it was registered.
func Remove(name string) (bool, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	code, err := attempt(func() C.int { return C.ek_registry_set(text, nil, 1) })
	return code == 1, err
}

// Global returns the global function of a name, or a KeyError.
func Global(name string) (*Function, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	found := C.ek_registry_get(text)
	if found == nil {
		return nil, failed("KeyError", "there is no function '%s'", name)
	}
	return &Function{own(found)}, nil
}

func (f *Function) String() string { return fmt.Sprintf("Function(%p)", f.object) }
