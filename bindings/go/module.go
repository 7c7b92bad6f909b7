package ekiden

/*
#include "bridge.h"
*/
import "C"

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"unsafe"
)

// Module looks up functions by name: a compiled model, a shared library.
type Module struct{ *counted }

// Load is the module in a file: OSError, LoadError, ValueError for another suffix than .eki and .so.
func Load(path string) (*Module, error) {
	text := C.CString(path)
	defer C.free(unsafe.Pointer(text))
	var made *C.ek_object
	if _, err := attempt(func() C.int { return C.ek_module_load(text, &made) }); err != nil {
		return nil, err
	}
	return &Module{own(made)}, nil
}

// Names returns the names of its functions; none for a shared library, which cannot list them.
func (m *Module) Names() ([]string, error) {
	object, err := m.get()
	if err != nil {
		return nil, err
	}
	return texts(func(out *C.ek_value) C.int {
		return C.ek_module_part(object, C.EK_MODULE_NAMES, out)
	})
}

// texts returns the array of strings that a call returns.
func texts(call func(*C.ek_value) C.int) ([]string, error) {
	f, err := newFrame(nil)
	defer f.close()
	if err != nil {
		return nil, err
	}
	out := (*C.ek_value)(f.alloc(valueSize))
	if _, err := attempt(func() C.int { return call(out) }); err != nil {
		return nil, err
	}
	value, err := take(out)
	if err != nil {
		return nil, err
	}
	items, _ := value.([]Value)
	made := make([]string, len(items))
	for i, item := range items {
		made[i], _ = item.(string)
	}
	return made, nil
}

// Function returns the function of a name, of this module or of an imported one, or an AttributeError.
func (m *Module) Function(name string) (*Function, error) {
	object, err := m.get()
	if err != nil {
		return nil, err
	}
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	var found *C.ek_object
	if _, err := attempt(func() C.int { return C.ek_module_get(object, text, &found) }); err != nil {
		return nil, err
	}
	runtime.KeepAlive(m)
	if found != nil {
		return &Function{own(found)}, nil
	}
	known, err := m.Names()
	if err != nil {
		return nil, err
	}
	there := strings.Join(known, ", ")
	return nil, failed("AttributeError", "module: no function named '%s'; there are %s", name, there)
}

// Inputs maps the names of a function's inputs to tensors.
type Inputs map[string]*Tensor

// KernelTime is how often a kernel ran, and for how long.
type KernelTime struct {
	Name               string
	Calls, Nanoseconds int64
}

// Model is a compiled model of an .eki file: functions whose inputs have names.
type Model struct {
	Module     *Module
	executable *Object
}

// LoadModel is Load for a file that is a model.
func LoadModel(path string) (*Model, error) {
	module, err := Load(path)
	if err != nil {
		return nil, err
	}
	get, err := module.Function("get_executable")
	if err != nil {
		return nil, err
	}
	defer get.Close()
	value, err := get.Call()
	if err != nil {
		return nil, err
	}
	executable, isObject := value.(*Object)
	if !isObject {
		return nil, failed("TypeError", "the module is no model with named inputs")
	}
	return &Model{module, executable}, nil
}

// Close releases the model.
func (m *Model) Close() error {
	m.executable.Close()
	return m.Module.Close()
}

func (m *Model) index(function string) (int, error) {
	names, err := m.Module.Names()
	if err != nil {
		return 0, err
	}
	if found := slices.Index(names, function); found >= 0 {
		return found, nil
	}
	_, err = m.Module.Function(function)
	return 0, err
}

// Inputs returns the names of a function's inputs, in their order, or an AttributeError.
func (m *Model) Inputs(function string) ([]string, error) {
	index, err := m.index(function)
	if err != nil {
		return nil, err
	}
	object, err := m.executable.get()
	if err != nil {
		return nil, err
	}
	return texts(func(out *C.ek_value) C.int {
		return C.ek_executable_item(object, C.EK_PART_PARAMS, C.int64_t(index), out)
	})
}

func (m *Model) positionalArgs(function string, inputs Inputs) ([]Value, error) {
	wanted, err := m.Inputs(function)
	if err != nil {
		return nil, err
	}
	for name := range inputs {
		if !slices.Contains(wanted, name) {
			there := strings.Join(wanted, ", ")
			return nil, failed("InputError", "no input '%s'; there are %s", name, there)
		}
	}
	args := make([]Value, len(wanted))
	for i, name := range wanted {
		if inputs[name] == nil {
			return nil, failed("InputError", "input '%s' is missing", name)
		}
		args[i] = inputs[name]
	}
	return args, nil
}

// Run runs a function with inputs by name: a *Tensor, or []Value of several. An InputError names the
// input that is missing, too many, or of another type or shape.
func (m *Model) Run(function string, inputs Inputs) (Value, error) {
	args, err := m.positionalArgs(function, inputs)
	if err != nil {
		return nil, err
	}
	found, err := m.Module.Function(function)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	return found.Call(args...)
}

// RunContext is Run, which returns early when the context is done: the run itself continues to its end,
// with the memory of its inputs, and its result is dropped.
func (m *Model) RunContext(ctx context.Context, function string, inputs Inputs) (Value, error) {
	type outcome struct {
		value Value
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := m.Run(function, inputs)
		done <- outcome{value, err}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case result := <-done:
		return result.value, result.err
	}
}

// RunInto is Run with results written to the elements of tensors. It is a ValueError where there are
// more or fewer results, or one has another shape or type.
func (m *Model) RunInto(function string, inputs Inputs, outputs ...*Tensor) error {
	value, err := m.Run(function, inputs)
	if err != nil {
		return err
	}
	results := flatten(value, nil)
	if len(results) != len(outputs) {
		return failed("ValueError", "expected %d outputs, got %d", len(results), len(outputs))
	}
	for i, result := range results {
		if wanted, got := result.String(), outputs[i].String(); wanted != got {
			return failed("ValueError", "output %d: shape and type %s expected, got %s", i, wanted, got)
		}
	}
	for i, result := range results {
		outputs[i].copyFrom(result)
	}
	return nil
}

func flatten(value Value, found []*Tensor) []*Tensor {
	switch v := value.(type) {
	case *Tensor:
		return append(found, v)
	case []Value:
		for _, item := range v {
			found = flatten(item, found)
		}
	}
	return found
}

// Profile runs a function, and returns its result with the time of each kernel call.
func (m *Model) Profile(function string, inputs Inputs) (Value, []KernelTime, error) {
	args, err := m.positionalArgs(function, inputs)
	if err != nil {
		return nil, nil, err
	}
	index, err := m.index(function)
	if err != nil {
		return nil, nil, err
	}
	executable, err := m.executable.get()
	if err != nil {
		return nil, nil, err
	}
	var made *C.ek_object
	if _, err := attempt(func() C.int { return C.ek_vm_new(executable, &made) }); err != nil {
		return nil, nil, err
	}
	machine := &Object{own(made)}
	defer machine.Close()
	debugger, err := callGlobal("ek.vm.module", machine)
	if err != nil {
		return nil, nil, err
	}
	defer debugger.(*Module).Close()
	kernels, err := debugger.(*Module).Function("kernels")
	if err != nil {
		return nil, nil, err
	}
	defer kernels.Close()
	value, err := kernels.Call(append([]Value{index}, args...)...)
	if err != nil {
		return nil, nil, err
	}
	items := value.([]Value)
	var times []KernelTime
	for i := 1; i+2 < len(items); i += 3 {
		times = append(times, KernelTime{items[i].(string), items[i+1].(int64), items[i+2].(int64)})
	}
	return items[0], times, nil
}

func callGlobal(name string, args ...Value) (Value, error) {
	function, err := Global(name)
	if err != nil {
		return nil, err
	}
	defer function.Close()
	return function.Call(args...)
}

// SetNumThreads sets the maximum number of threads of a run; 0 for the number of the process.
func (m *Model) SetNumThreads(n int) error {
	if n < 0 {
		return failed("ValueError", "threads: 0 or more expected, got %d", n)
	}
	_, err := callGlobal("ek.executable.num_threads", m.executable, n)
	return err
}

// NumThreads is what SetNumThreads said.
func (m *Model) NumThreads() (int, error) {
	value, err := callGlobal("ek.executable.num_threads", m.executable)
	if err != nil {
		return 0, err
	}
	return int(value.(int64)), nil
}
