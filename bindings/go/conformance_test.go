package ekiden

// Runs ../conformance.json: EKIDEN_CONFORMANCE=FOLDER go test, where the folder has it and its models.

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

type object = map[string]any

type runner struct {
	folder  string
	modules map[string]*Module
	models  map[string]*Model
	objects map[string]*Object
}

var callbacks = map[string]func(...Value) (Value, error){
	"double": func(args ...Value) (Value, error) {
		switch x := args[0].(type) {
		case int64:
			return 2 * x, nil
		case float64:
			return 2 * x, nil
		case string:
			return x + x, nil
		}
		return nil, errors.New("double: one number or text expected")
	},
	"echo": func(args ...Value) (Value, error) { return args[0], nil },
	"sum": func(args ...Value) (Value, error) {
		data, err := Data[float32](args[0].(*Tensor))
		sum := 0.0
		for _, x := range data {
			sum += float64(x)
		}
		return sum, err
	},
	"apply": func(args ...Value) (Value, error) { return args[0].(*Function).Call(args[1:]...) },
	"fail": func(...Value) (Value, error) {
		return nil, &Error{Kind: "ValueError", Message: "told to fail"}
	},
}

func numbers[T Element](list any) []T {
	made := []T{}
	for _, each := range list.([]any) {
		var x any
		switch any(*new(T)).(type) {
		case float32:
			x = float32(each.(float64))
		case float64:
			x = each.(float64)
		case int8:
			x = int8(each.(float64))
		case int32:
			x = int32(each.(float64))
		case int64:
			x = int64(each.(float64))
		case uint8:
			x = uint8(each.(float64))
		case bool:
			x = each.(float64) != 0
		}
		made = append(made, x.(T))
	}
	return made
}

func tensor(of object) *Tensor {
	shape := numbers[int64](of["shape"])
	data := of["data"]
	make := map[string]func() (*Tensor, error){
		"float32": func() (*Tensor, error) { return NewTensor(numbers[float32](data), shape...) },
		"float64": func() (*Tensor, error) { return NewTensor(numbers[float64](data), shape...) },
		"int8":    func() (*Tensor, error) { return NewTensor(numbers[int8](data), shape...) },
		"uint8":   func() (*Tensor, error) { return NewTensor(numbers[uint8](data), shape...) },
		"int32":   func() (*Tensor, error) { return NewTensor(numbers[int32](data), shape...) },
		"int64":   func() (*Tensor, error) { return NewTensor(numbers[int64](data), shape...) },
		"bool":    func() (*Tensor, error) { return NewTensor(numbers[bool](data), shape...) },
	}
	made, err := make[of["tensor"].(string)]()
	if err != nil {
		panic(err)
	}
	return made
}

func value(of any) Value {
	json := of.(object)
	if json["tensor"] != nil {
		return tensor(json)
	}
	for kind, inside := range json {
		switch kind {
		case "int":
			return int64(inside.(float64))
		case "array":
			return values(inside)
		case "callback":
			return callbacks[inside.(string)]
		case "none":
			return nil
		default:
			return inside
		}
	}
	return nil
}

func values(list any) []Value {
	made := []Value{}
	for _, each := range list.([]any) {
		made = append(made, value(each))
	}
	return made
}

func elements(t *Tensor) string {
	switch t.DType() {
	case "float32":
		data, _ := Data[float32](t)
		return fmt.Sprint(data)
	case "float64":
		data, _ := Data[float64](t)
		return fmt.Sprint(data)
	case "int8":
		data, _ := Data[int8](t)
		return fmt.Sprint(data)
	case "int64":
		data, _ := Data[int64](t)
		return fmt.Sprint(data)
	}
	return "other elements"
}

func same(got, wanted Value) bool {
	switch b := wanted.(type) {
	case []Value:
		a, isList := got.([]Value)
		if !isList || len(a) != len(b) {
			return false
		}
		for i := range b {
			if !same(a[i], b[i]) {
				return false
			}
		}
		return true
	case *Tensor:
		a, isTensor := got.(*Tensor)
		return isTensor && a.String() == b.String() && elements(a) == elements(b)
	}
	return got == wanted
}

func strs(names []string) Value {
	made := []Value{}
	for _, each := range names {
		made = append(made, each)
	}
	return made
}

func inputs(step object) Inputs {
	made := Inputs{}
	for name, each := range step["inputs"].(object) {
		made[name] = tensor(each.(object))
	}
	return made
}

func (r *runner) open(path, as string) error {
	file := filepath.Join(r.folder, path)
	module, err := Load(file)
	if err != nil {
		return err
	}
	r.modules[as] = module
	if strings.HasSuffix(path, ".eki") {
		r.models[as], err = LoadModel(file)
	}
	return err
}

func (r *runner) define(step object) error {
	kinds := map[string]Kind{"int": Int, "float": Float, "bool": Bool, "any": Any}
	fields := []Field{}
	for _, row := range step["fields"].([]any) {
		pair := row.([]any)
		fields = append(fields, Field{pair[0].(string), kinds[pair[1].(string)]})
	}
	return Define(step["type"].(string), fields...)
}

func (r *runner) step(step object) (Value, error) {
	text := func(key string) string { found, _ := step[key].(string); return found }
	of := text("of")
	switch text("op") {
	case "open":
		return nil, r.open(text("path"), text("as"))
	case "functions":
		names, err := r.modules[of].Names()
		return strs(names), err
	case "inputs":
		names, err := r.models[of].Inputs("main")
		return strs(names), err
	case "call":
		function, err := r.modules[of].Function(text("function"))
		if err != nil {
			return nil, err
		}
		return function.Call(values(step["args"])...)
	case "run":
		return r.models[of].Run("main", inputs(step))
	case "overwrite":
		function, err := r.modules[of].Function("main")
		if err != nil {
			return nil, err
		}
		return overwritten(function, int(step["size"].(float64)))
	case "run_into":
		outputs := values(step["outputs"])
		tensors := flatten(outputs, nil)
		return outputs, r.models[of].RunInto("main", inputs(step), tensors...)
	case "kernels":
		_, times, err := r.models[of].Profile("main", inputs(step))
		return int64(len(times)), err
	case "threads":
		if err := r.models[of].SetNumThreads(int(step["n"].(float64))); err != nil {
			return nil, err
		}
		n, err := r.models[of].NumThreads()
		return int64(n), err
	case "device":
		kind, id := tensor(step["value"].(object)).Device()
		return []Value{int64(kind), int64(id)}, nil
	case "global":
		function, err := Global(text("name"))
		if err != nil {
			return nil, err
		}
		return function.Call(values(step["args"])...)
	case "register":
		return nil, Register(text("name"), callbacks[text("callback")])
	case "remove":
		return Remove(text("name"))
	case "define":
		return nil, r.define(step)
	case "new":
		made, err := New(text("type"), values(step["values"])...)
		r.objects[text("as")] = made
		return nil, err
	case "type":
		return r.objects[of].TypeKey()
	case "fields":
		names, err := r.objects[of].Fields()
		return strs(names), err
	case "get":
		return r.objects[of].Get(text("field"))
	case "set":
		return nil, r.objects[of].Set(text("field"), value(step["value"]))
	case "equal":
		return r.objects[text("a")].Equal(r.objects[text("b")])
	case "close":
		return nil, r.modules[of].Close()
	}
	return nil, fmt.Errorf("no step %s", text("op"))
}

func overwritten(function *Function, size int) (Value, error) {
	elements := make([]float32, size)
	for i := range elements {
		elements[i] = float32(i)
	}
	x, err := NewTensor(elements, int64(size))
	if err != nil {
		return nil, err
	}
	first, isRight := [][]float32{}, true
	for turn := range 2 {
		results, err := function.Call(x)
		if err != nil {
			return nil, err
		}
		for _, result := range results.([]Value) {
			data, err := Data[float32](result.(*Tensor))
			if err != nil {
				return nil, err
			}
			if turn == 0 {
				first = append(first, slices.Clone(data))
			}
		}
		for i, result := range results.([]Value) {
			data, _ := Data[float32](result.(*Tensor))
			isRight = isRight && slices.Equal(data, first[i])
			for k := range data {
				data[k] = 9
			}
		}
	}
	return isRight, nil
}

func judge(got Value, err error, step object) string {
	fails, mayFail := step["fails"].(object)
	var known *Error
	if errors.As(err, &known) && mayFail {
		if known.Kind == fails["kind"] && strings.Contains(known.Message, fails["message"].(string)) {
			return ""
		}
	}
	if err != nil {
		return fmt.Sprintf("failed: %v", err)
	}
	if wanted, isSaid := step["is"]; mayFail || isSaid && !same(got, value(wanted)) {
		return fmt.Sprintf("gave %v", got)
	}
	return ""
}

func TestConformance(t *testing.T) {
	folder := os.Getenv("EKIDEN_CONFORMANCE")
	if folder == "" {
		t.Skip("EKIDEN_CONFORMANCE names no folder")
	}
	data, err := os.ReadFile(filepath.Join(folder, "conformance.json"))
	if err != nil {
		t.Fatal(err)
	}
	var script struct {
		Cases []struct {
			Name  string
			Steps []object
		}
	}
	if err := json.Unmarshal(data, &script); err != nil {
		t.Fatal(err)
	}
	steps := 0
	for _, each := range script.Cases {
		r := &runner{folder, map[string]*Module{}, map[string]*Model{}, map[string]*Object{}}
		for _, step := range each.Steps {
			times, isSaid := step["times"].(float64)
			if !isSaid {
				times = 1
			}
			for range int(times) {
				got, err := r.step(step)
				if why := judge(got, err, step); why != "" {
					t.Fatalf("%s: %v: %s", each.Name, step, why)
				}
			}
			steps++
		}
	}
	t.Logf("%d steps", steps)
}

func TestFunctionsFromGoroutines(t *testing.T) {
	function, err := NewFunction(func(args ...Value) (Value, error) { return args[0], nil })
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for n := range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 500 {
				if got, err := function.Call(n); err != nil || got != int64(n) {
					t.Errorf("got %v, %v", got, err)
				}
			}
		}()
	}
	group.Wait()
	runtime.GC()
}

func TestPanicIsError(t *testing.T) {
	function, _ := NewFunction(func(...Value) (Value, error) { panic("it broke") })
	_, err := function.Call()
	var known *Error
	if !errors.As(err, &known) || known.Kind != "RuntimeError" || known.Message != "it broke" {
		t.Errorf("got %v", err)
	}
}

func TestClosedHandleIsError(t *testing.T) {
	function, _ := NewFunction(func(...Value) (Value, error) { return nil, nil })
	for range 2 {
		if err := function.Close(); err != nil {
			t.Error(err)
		}
	}
	var known *Error
	if _, err := function.Call(); !errors.As(err, &known) || known.Kind != "ValueError" {
		t.Errorf("called after it was closed: %v", err)
	}
	if _, err := (&Function{}).Call(); !errors.As(err, &known) || known.Kind != "ValueError" {
		t.Errorf("called without one: %v", err)
	}
	other, _ := NewFunction(func(args ...Value) (Value, error) { return args[0], nil })
	if _, err := other.Call(function); !errors.As(err, &known) || known.Kind != "ValueError" {
		t.Errorf("given after it was closed: %v", err)
	}
	if got, err := other.Call([]Value{int64(1), "two"}); err != nil || len(got.([]Value)) != 2 {
		t.Errorf("gave %v, %v", got, err)
	}
	if _, err := other.Call(make(chan int)); !errors.As(err, &known) || known.Kind != "TypeError" {
		t.Errorf("gave a channel: %v", err)
	}
}

func TestTensorElementTypeAndCount(t *testing.T) {
	if _, err := NewTensor([]int32{1, 2}, 3); err == nil {
		t.Error("a shape of 3 for 2 elements")
	}
	made, _ := NewTensor([]int32{1, 2}, 2)
	if _, err := Data[float32](made); err == nil || !strings.Contains(err.Error(), "float32 expected") {
		t.Errorf("got %v", err)
	}
	function, _ := NewFunction(func(args ...Value) (Value, error) { return nil, nil })
	if _, err := function.Call(math.Inf(1), struct{}{}); err == nil {
		t.Error("a struct is no value")
	}
}
