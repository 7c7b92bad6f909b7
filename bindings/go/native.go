package ekiden

/*
#cgo LDFLAGS: -lekiden_runtime
#include "bridge.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// Error is an error of the runtime: its kind, such as "InputError", a message that names the thing,
// and where it came up, the innermost call first.
type Error struct {
	Kind, Message, Backtrace string
}

func (e *Error) Error() string { return e.Kind + ": " + e.Message }

func failed(kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// takeError is the error that a call left. It must be on the thread of the call.
func takeError() error { return errorOf(C.ek_error_take()) }

// errorOf takes an error object over.
func errorOf(object *C.ek_object) error {
	if object == nil {
		return failed("InternalError", "a call failed without an error")
	}
	var parts [3]C.ek_bytes
	C.go_error_parts(object, &parts[0])
	made := &Error{textOf(parts[0]), textOf(parts[1]), textOf(parts[2])}
	C.ek_object_release(object)
	return made
}

// setError makes an error the thread's own.
func setError(err error) {
	kind, message := "RuntimeError", err.Error()
	var known *Error
	if errors.As(err, &known) {
		kind, message = known.Kind, known.Message
	}
	k, m := C.CString(kind), C.CString(message)
	C.go_set_error(k, m)
	C.free(unsafe.Pointer(k))
	C.free(unsafe.Pointer(m))
}

func textOf(bytes C.ek_bytes) string {
	return C.GoStringN((*C.char)(unsafe.Pointer(bytes.data)), C.int(bytes.size))
}

// attempt runs one call of C on one thread, where its error is.
func attempt(call func() C.int) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	code := call()
	if code < 0 {
		return 0, takeError()
	}
	return int(code), nil
}

// counted is one strong reference, given back once.
type counted struct {
	object *C.ek_object
}

// own takes a reference over.
func own(object *C.ek_object) *counted {
	made := &counted{object}
	runtime.SetFinalizer(made, (*counted).Close)
	return made
}

// Close releases the object; any later use is a ValueError.
func (c *counted) Close() error {
	if c.object != nil {
		C.ek_object_release(c.object)
		c.object = nil
		runtime.SetFinalizer(c, nil)
	}
	return nil
}

func (c *counted) get() (*C.ek_object, error) {
	if c == nil || c.object == nil {
		return nil, failed("ValueError", "it is closed")
	}
	return c.object, nil
}

// NumThreads is how many threads share a loop; with n above 0, it first sets that.
func NumThreads(n int) int { return int(C.ek_num_threads(C.int(n))) }
