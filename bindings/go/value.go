package ekiden

/*
#include "bridge.h"
*/
import "C"

import (
	"math"
	"runtime"
	"sync"
	"unsafe"
)

// Value is what crosses into the runtime and back: nil, bool, int and int64, float64, string,
// *Tensor, []any, func(...any) (any, error), *Function, *Module, *Object. A whole number comes back
// as int64, a tuple of a program as []any.
type Value = any

const valueSize = unsafe.Sizeof(C.ek_value{})

// blockSize is what most calls need of C's memory: a call of C for each piece would cost more than
// the call it is for.
const blockSize = 2048

// blocks are pieces of C's memory of that size, which calls use one after the other.
var blocks = sync.Pool{New: func() any {
	made := &block{C.calloc(1, blockSize)}
	runtime.SetFinalizer(made, func(b *block) { C.free(b.memory) })
	return made
}}

type block struct{ memory unsafe.Pointer }

// frame is what a call needs until it ends; its memory is C's.
type frame struct {
	values *C.ek_value
	count  int
	block  *block
	used   uintptr
	memory []unsafe.Pointer
	owned  []*C.ek_object
	pins   runtime.Pinner
	source []Value
}

func (f *frame) alloc(size uintptr) unsafe.Pointer {
	size = max(size+15, 16) &^ 15
	if f.used+size <= blockSize {
		made := unsafe.Add(f.block.memory, f.used)
		f.used += size
		clear(unsafe.Slice((*byte)(made), size))
		return made
	}
	made := C.calloc(1, C.size_t(size))
	f.memory = append(f.memory, made)
	return made
}

func (f *frame) text(text string) *C.char {
	made := C.CString(text)
	f.memory = append(f.memory, unsafe.Pointer(made))
	return made
}

func at(values *C.ek_value, i int) *C.ek_value {
	return (*C.ek_value)(unsafe.Add(unsafe.Pointer(values), uintptr(i)*valueSize))
}

// put is a value of a type, its payload 8 bytes.
func put(out *C.ek_value, kind C.int32_t, payload uint64) {
	*out = C.ek_value{type_index: kind}
	*(*uint64)(unsafe.Pointer(&out.v)) = payload
}

// putPointer is put for an address of C's.
func putPointer(out *C.ek_value, kind C.int32_t, address unsafe.Pointer) {
	*out = C.ek_value{type_index: kind}
	*(*unsafe.Pointer)(unsafe.Pointer(&out.v)) = address
}

// objectOf is the object that a value refers to.
func objectOf(value *C.ek_value) *C.ek_object {
	return *(**C.ek_object)(unsafe.Pointer(&value.v))
}

// newFrame converts values to the arguments of a call; close it, also after an error.
func newFrame(values []Value) (*frame, error) {
	f := &frame{count: len(values), source: values, block: blocks.Get().(*block)}
	f.values = (*C.ek_value)(f.alloc(uintptr(len(values)) * valueSize))
	for i, value := range values {
		if err := f.write(value, at(f.values, i)); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (f *frame) close() {
	for _, object := range f.owned {
		C.ek_object_release(object)
	}
	for _, memory := range f.memory {
		C.free(memory)
	}
	f.pins.Unpin()
	runtime.KeepAlive(f.source)
	blocks.Put(f.block)
}

func (f *frame) write(value Value, out *C.ek_value) error {
	switch v := value.(type) {
	case nil:
		put(out, C.EK_NONE, 0)
	case bool:
		number := uint64(0)
		if v {
			number = 1
		}
		put(out, C.EK_BOOL, number)
	case int:
		put(out, C.EK_INT, uint64(v))
	case int32:
		put(out, C.EK_INT, uint64(v))
	case int64:
		put(out, C.EK_INT, uint64(v))
	case float32:
		put(out, C.EK_FLOAT, math.Float64bits(float64(v)))
	case float64:
		put(out, C.EK_FLOAT, math.Float64bits(float64(v)))
	case string:
		return f.writeText(v, out)
	case *Tensor:
		putPointer(out, C.EK_DLTENSOR_PTR, unsafe.Pointer(f.lend(v)))
	case []Value:
		return f.writeItems(v, out)
	case *Function:
		return f.writeObject(v.counted, out)
	case *Module:
		return f.writeObject(v.counted, out)
	case *Object:
		return f.writeObject(v.counted, out)
	case func(...Value) (Value, error):
		object, err := newCallback(v)
		if err != nil {
			return err
		}
		f.owned = append(f.owned, object)
		putPointer(out, C.EK_FUNCTION, unsafe.Pointer(object))
	default:
		return failed("TypeError", "a value expected, got %T", value)
	}
	return nil
}

func (f *frame) writeObject(c *counted, out *C.ek_value) error {
	object, err := c.get()
	if err != nil {
		return err
	}
	C.ek_object_retain(object)
	f.owned = append(f.owned, object)
	putPointer(out, object.type_index, unsafe.Pointer(object))
	return nil
}

func (f *frame) writeText(text string, out *C.ek_value) error {
	data := f.text(text)
	_, err := attempt(func() C.int { return C.ek_string_new(C.EK_STR, data, C.size_t(len(text)), out) })
	if err == nil && out.type_index >= C.EK_OBJECT {
		f.owned = append(f.owned, objectOf(out))
	}
	return err
}

// lend returns a tensor over the memory of t, which is pinned during the call.
func (f *frame) lend(t *Tensor) *C.ek_dltensor {
	made := (*C.ek_dltensor)(f.alloc(unsafe.Sizeof(C.ek_dltensor{})))
	dims := (*C.int64_t)(f.alloc(uintptr(len(t.shape)) * 8))
	copy(unsafe.Slice((*int64)(unsafe.Pointer(dims)), len(t.shape)), t.shape)
	if _, isRuntime := t.keep.(*counted); !isRuntime && t.data != nil {
		f.pins.Pin(t.data)
	}
	*made = C.ek_dltensor{data: t.data, ndim: C.int32_t(len(t.shape)), dtype: dtypes[t.dtype], shape: dims}
	made.device._type = C.EK_CPU
	return made
}

func (f *frame) writeItems(items []Value, out *C.ek_value) error {
	values := (*C.ek_value)(f.alloc(uintptr(len(items)) * valueSize))
	for i, item := range items {
		if err := f.writeOwned(item, at(values, i)); err != nil {
			return err
		}
	}
	var made *C.ek_object
	_, err := attempt(func() C.int {
		return C.ek_container_new(C.EK_ARRAY, 0, values, C.int64_t(len(items)), &made)
	})
	if err == nil {
		f.owned = append(f.owned, made)
		putPointer(out, C.EK_ARRAY, unsafe.Pointer(made))
	}
	return err
}

// writeOwned is write, with tensors copied: for what keeps them.
func (f *frame) writeOwned(value Value, out *C.ek_value) error {
	if err := f.write(value, out); err != nil || out.type_index != C.EK_DLTENSOR_PTR {
		return err
	}
	made, err := copyTensor(C.go_lent(out))
	if err == nil {
		f.owned = append(f.owned, made)
		putPointer(out, C.EK_TENSOR, unsafe.Pointer(made))
	}
	return err
}

// take converts an owned value and releases it.
func take(value *C.ek_value) (Value, error) {
	made, err := read(value)
	if value.type_index >= C.EK_OBJECT {
		C.ek_object_release(objectOf(value))
	}
	return made, err
}

// read reads a value that is borrowed.
func read(value *C.ek_value) (Value, error) {
	switch value.type_index {
	case C.EK_NONE:
		return nil, nil
	case C.EK_INT:
		return *(*int64)(unsafe.Pointer(&value.v)), nil
	case C.EK_BOOL:
		return *(*int64)(unsafe.Pointer(&value.v)) != 0, nil
	case C.EK_FLOAT:
		return *(*float64)(unsafe.Pointer(&value.v)), nil
	case C.EK_SMALL_STR, C.EK_RAW_STR, C.EK_STR:
		return textOf(C.go_text(value)), nil
	case C.EK_DLTENSOR_PTR: // a borrowed tensor may be freed when the call ends
		object, err := copyTensor(C.go_lent(value))
		if err != nil {
			return nil, err
		}
		return readTensor(object)
	}
	if value.type_index < C.EK_OBJECT {
		return nil, failed("TypeError", "a value of type %d is not for Go", value.type_index)
	}
	return readObject(objectOf(value))
}

func readObject(object *C.ek_object) (Value, error) {
	isTuple := object.type_index == C.EK_ARRAY || object.type_index == C.EK_ADT
	if isTuple && C.go_is_tuple(object) != 0 {
		var n C.int64_t
		items := C.go_items(object, &n)
		made := make([]Value, n)
		for i := range made {
			item, err := read(at(items, i))
			if err != nil {
				return nil, err
			}
			made[i] = item
		}
		return made, nil
	}
	C.ek_object_retain(object)
	switch object.type_index {
	case C.EK_TENSOR:
		return readTensor(object)
	case C.EK_FUNCTION:
		return &Function{own(object)}, nil
	case C.EK_MODULE:
		return &Module{own(object)}, nil
	}
	return &Object{own(object)}, nil
}
