// Classify says what files contain: classify FOLDER FILE ..., where the folder is what
// python examples/python/classify.py prepare FOLDER writes.
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"ekiden.dev/ekiden"
)

const (
	block  = 4096
	spaces = "\t\n\v\f\r "
)

// features is the first bytes of a file and its last ones, without the white space around it.
func features(data []byte, begin, end int, padding int32) []int32 {
	head := bytes.TrimLeft(data[:min(len(data), block)], spaces)
	tail := bytes.TrimRight(data[max(0, len(data)-block):], spaces)
	head, tail = head[:min(len(head), begin)], tail[max(0, len(tail)-end):]
	row := make([]int32, begin+end)
	for i := range row {
		row[i] = padding
	}
	for i, each := range head {
		row[i] = int32(each)
	}
	for i, each := range tail {
		row[len(row)-len(tail)+i] = int32(each)
	}
	return row
}

// best is the place of the largest.
func best(scores []float32) int {
	at := 0
	for i, score := range scores {
		if score > scores[at] {
			at = i
		}
	}
	return at
}

func run(folder string, names []string) error {
	model, err := ekiden.LoadModel(filepath.Join(folder, "magika.eki"))
	if err != nil {
		return err
	}
	defer model.Close()
	about, err := os.ReadFile(filepath.Join(folder, "magika.txt"))
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(about)), "\n")
	var begin, end int
	var padding int32
	if _, err := fmt.Sscan(lines[0], &begin, &end, &padding); err != nil {
		return err
	}
	inputs, err := model.Inputs("main")
	if err != nil {
		return err
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		row := features(data, begin, end, padding)
		given, err := ekiden.NewTensor(row, 1, int64(len(row)))
		if err != nil {
			return err
		}
		result, err := model.Run("main", ekiden.Inputs{inputs[0]: given})
		if err != nil {
			return err
		}
		scores, err := ekiden.Data[float32](result.(*ekiden.Tensor))
		if err != nil {
			return err
		}
		at := best(scores)
		fmt.Printf("%s: %s %.1f %%\n", name, lines[1+at], 100*scores[at])
	}
	return nil
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: classify FOLDER FILE ...")
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}
