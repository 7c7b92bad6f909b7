package ekiden

/*
#include "bridge.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// DType is the type of a tensor's elements, by NumPy's name.
type DType string

var dtypes = map[DType]C.ek_dtype{
	"float32": {code: 2, bits: 32, lanes: 1}, "float64": {code: 2, bits: 64, lanes: 1},
	"float16": {code: 2, bits: 16, lanes: 1}, "bfloat16": {code: 4, bits: 16, lanes: 1},
	"int8": {code: 0, bits: 8, lanes: 1}, "int16": {code: 0, bits: 16, lanes: 1},
	"int32": {code: 0, bits: 32, lanes: 1}, "int64": {code: 0, bits: 64, lanes: 1},
	"uint8": {code: 1, bits: 8, lanes: 1}, "uint16": {code: 1, bits: 16, lanes: 1},
	"uint32": {code: 1, bits: 32, lanes: 1}, "uint64": {code: 1, bits: 64, lanes: 1},
	"bool": {code: 6, bits: 8, lanes: 1},
}

// small is how many bytes of a result are copied to memory of Go: a finalizer costs more.
const small = 4096

// Element is a type that elements of tensors have; bools are bytes, 0 or 1.
type Element interface {
	float32 | float64 | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | bool
}

// Tensor has elements in row-major order: those of a slice, or memory of the runtime, which it keeps;
// small results are copied.
type Tensor struct {
	dtype DType
	shape []int64
	data  unsafe.Pointer
	size  int
	keep  any // the slice, or the runtime's object
}

func dtypeOf[T Element]() DType {
	var zero T
	return DType(fmt.Sprintf("%T", zero))
}

func countOf(shape []int64) int64 {
	count := int64(1)
	for _, extent := range shape {
		count *= extent
	}
	return count
}

// NewTensor is a tensor of a slice's elements, which stay where they are: a call reads them there,
// and RunInto writes them there. It is a ValueError where the shape has another number of elements.
func NewTensor[T Element](data []T, shape ...int64) (*Tensor, error) {
	for _, extent := range shape {
		if extent < 0 {
			return nil, failed("ValueError", "tensor: a dimension below 0")
		}
	}
	if count := countOf(shape); count != int64(len(data)) {
		return nil, failed("ValueError", "shape %v: %d elements expected, got %d", shape, count, len(data))
	}
	kept := append([]int64{}, shape...)
	return &Tensor{dtypeOf[T](), kept, unsafe.Pointer(unsafe.SliceData(data)), len(data), data}, nil
}

// Data is the elements of a tensor, without a copy: as long as the tensor is there. What is written to
// them no other result, argument or later run sees. It is a TypeError where they are of another type.
func Data[T Element](t *Tensor) ([]T, error) {
	if wanted := dtypeOf[T](); t.dtype != wanted {
		return nil, failed("TypeError", "read tensor: %s expected, got %s", wanted, t.dtype)
	}
	return unsafe.Slice((*T)(t.data), t.size), nil
}

func (t *Tensor) DType() DType   { return t.dtype }
func (t *Tensor) Shape() []int64 { return append([]int64{}, t.shape...) }

// Device returns the DLPack device type and number of its memory.
func (t *Tensor) Device() (kind, id int32) { return C.EK_CPU, 0 }

func (t *Tensor) String() string { return fmt.Sprintf("%s %v", t.dtype, t.shape) }

// copyFrom takes the elements of a tensor of the same shape and type.
func (t *Tensor) copyFrom(other *Tensor) {
	bytes := uintptr(t.size) * uintptr(dtypes[t.dtype].bits) / 8
	copy(unsafe.Slice((*byte)(t.data), bytes), unsafe.Slice((*byte)(other.data), bytes))
	runtime.KeepAlive(other)
}

// readTensor is a tensor of the runtime, whose reference is taken over. One that may only be read, as
// constants of a program are, is copied: a slice of Go can be written.
func readTensor(object *C.ek_object) (*Tensor, error) {
	dl := (*C.ek_dltensor)(unsafe.Add(unsafe.Pointer(object), unsafe.Sizeof(*object)))
	if C.ek_dltensor_is_contiguous(dl) == 0 || C.go_is_read_only(object) != 0 {
		whole, err := copyTensor(dl)
		C.ek_object_release(object)
		if err != nil {
			return nil, err
		}
		object, dl = whole, C.go_tensor(whole)
	}
	for name, dtype := range dtypes {
		if dtype == dl.dtype {
			shape := append([]int64{}, unsafe.Slice((*int64)(unsafe.Pointer(dl.shape)), int(dl.ndim))...)
			made := &Tensor{name, shape, C.ek_dltensor_data(dl), int(countOf(shape)), nil}
			if bytes := uintptr(made.size) * uintptr(dtype.bits) / 8; bytes <= small {
				kept := make([]uint64, (bytes+7)/8)
				copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(kept))), bytes), unsafe.Slice((*byte)(made.data), bytes))
				made.data, made.keep = unsafe.Pointer(unsafe.SliceData(kept)), kept
				C.ek_object_release(object)
			} else {
				made.keep = own(object)
			}
			return made, nil
		}
	}
	C.ek_object_release(object)
	return nil, failed("TypeError", "elements of dtype %d of %d bits are not for Go", dl.dtype.code, dl.dtype.bits)
}

// copyTensor is a new tensor of the runtime with the same elements.
func copyTensor(dl *C.ek_dltensor) (*C.ek_object, error) {
	var made *C.ek_object
	device := C.ek_device{_type: C.EK_CPU}
	_, err := attempt(func() C.int {
		code := C.ek_tensor_new(dl.shape, dl.ndim, dl.dtype, device, &made)
		if code == 0 {
			code = C.ek_tensor_copy(dl, C.go_tensor(made))
		}
		return code
	})
	return made, err
}
