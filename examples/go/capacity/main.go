// Command capacity tells what a rank takes of its host: threads, memory, descriptors, requests to
// the store.
//
//	go run ./examples/go/capacity 64
//
// The ranks are processes of this host, which meet by files. Rank 0 prints a line at each stage.
package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/goccl/goccl"
)

const timeout = 5 * time.Minute

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) == 4 {
		rank, _ := strconv.Atoi(os.Args[1])
		size, _ := strconv.Atoi(os.Args[2])
		return measure(rank, size, os.Args[3])
	}
	size := 2
	if len(os.Args) > 1 {
		n, err := strconv.Atoi(os.Args[1])
		if err != nil || n < 2 || len(os.Args) > 2 {
			return errors.New("usage: capacity [number of ranks, 2 or more]")
		}
		size = n
	}
	folder, err := os.MkdirTemp("", "goccl-capacity")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	var ranks []*exec.Cmd
	for rank := range size {
		c := exec.Command("/proc/self/exe", strconv.Itoa(rank), strconv.Itoa(size), folder)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			return err
		}
		ranks = append(ranks, c)
	}
	for _, c := range ranks {
		if e := c.Wait(); err == nil {
			err = e
		}
	}
	return err
}

// measure is one rank.
func measure(rank, size int, folder string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	show := func(stage string) {
		if rank == 0 {
			fmt.Printf("%-22s %s\n", stage, usage())
		}
	}
	show("before")
	store := &files{folder: folder}
	comm, err := goccl.Init(ctx, goccl.Config{Rank: rank, Size: size, Store: store, Timeout: timeout})
	if err != nil {
		return err
	}
	defer comm.Close()
	if rank < 2 {
		fmt.Printf("rank %d: %d sets of %d bytes, %d gets of %d bytes\n", rank, store.sets, store.set,
			store.gets, store.got)
	}
	small, large := make([]float32, 1), make([]float32, 1<<18)
	for _, stage := range []struct {
		name      string
		operation goccl.Operation
	}{
		{"after Init", goccl.BarrierOp()},
		{"allreduce of 4 B", goccl.AllReduceOp(small, small, goccl.Sum)},
		{"allreduce of 1 MiB", goccl.AllReduceOp(large, large, goccl.Sum)},
		{"alltoall of 64 B each", goccl.AllToAllOp(make([]float32, 16*size), make([]float32, 16*size))},
	} {
		if stage.name == "after Init" {
			show(stage.name)
			continue
		}
		if err := errors.Join(comm.Run(ctx, stage.operation), goccl.Barrier(ctx, comm)); err != nil {
			return err
		}
		show(stage.name)
		if err := goccl.Barrier(ctx, comm); err != nil { // nobody goes on meanwhile
			return err
		}
	}
	return nil
}

// usage is what this process takes.
func usage() string {
	var said []string
	add := func(file string, names ...string) {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			for _, n := range names {
				if n == name {
					said = append(said, n+" "+strings.Join(strings.Fields(value), " "))
				}
			}
		}
	}
	add("/proc/self/status", "Threads", "VmSize", "VmLck", "VmPTE")
	add("/proc/self/smaps_rollup", "Pss", "Rss")
	descriptors, _ := os.ReadDir("/proc/self/fd")
	maps, _ := os.ReadFile("/proc/self/maps")
	return fmt.Sprintf("%s, descriptors %d, maps %d", strings.Join(said, ", "), len(descriptors)-1,
		bytes.Count(maps, []byte("\n")))
}

// files is a store of files in a folder, which counts what it is asked.
type files struct {
	folder               string
	sets, set, gets, got int
}

func (f *files) path(key string) string {
	return filepath.Join(f.folder, base64.RawURLEncoding.EncodeToString([]byte(key)))
}

// Set implements goccl.Store.
func (f *files) Set(key string, value []byte) error {
	f.sets, f.set = f.sets+1, f.set+len(value)
	to := f.path(key)
	whole := fmt.Sprint(to, ".", os.Getpid())
	if err := os.WriteFile(whole, value, 0o600); err != nil {
		return err
	}
	return os.Rename(whole, to)
}

// Get implements goccl.Store.
func (f *files) Get(key string) ([]byte, bool, error) {
	value, err := os.ReadFile(f.path(key))
	f.gets, f.got = f.gets+1, f.got+len(value)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return value, err == nil, err
}
