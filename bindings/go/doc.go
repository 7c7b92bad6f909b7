// Package ekiden runs models that Ekiden compiled, and shares functions and objects with other
// languages of the process.
//
//	model, err := ekiden.LoadModel("model.eki")
//	x, err := ekiden.NewTensor([]float32{1, 2, 3, 4}, 1, 4)
//	result, err := model.Run("main", ekiden.Inputs{"x": x})
//
// It is built with cgo, against libekiden_runtime.so: CGO_CFLAGS names the folder of
// ekiden/runtime.h, CGO_LDFLAGS that of the library.
//
// What the runtime counts is given back by Close, or by the collector. Any goroutine may call
// anything, but one at a time writes the fields of an object or closes a thing. A call reads the
// slices of its tensors where they are: nobody writes them meanwhile.
package ekiden
