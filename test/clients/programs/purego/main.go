// A Go program without cgo that loads the driver by itself: it takes memory in blocks until it is refused, from several
// goroutines at first, while Go's scheduler interrupts their threads by signals. Prints one JSON object, then waits for
// the end of its input. Knows nothing of Cotenant.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"

	"github.com/ebitengine/purego"
)

const block = 64 << 20

var (
	start    func(flags uint32) int32
	device   func(device *int32, ordinal int32) int32
	retain   func(context *uintptr, device int32) int32
	enter    func(context uintptr) int32
	info     func(free, total *uint64) int32
	allocate func(address *uint64, bytes uint64) int32
	release  func(address uint64) int32
)

func must(result int32, what string) {
	if result != 0 {
		fmt.Fprintf(os.Stderr, "%s: %d\n", what, result)
		os.Exit(1)
	}
}

// A thread of its own, as libraries do it that make a context current.
func work(context uintptr, rounds int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must(enter(context), "cuCtxSetCurrent")
	for round := 0; round < rounds; round++ {
		var address uint64
		must(allocate(&address, 2<<20), "cuMemAlloc")
		must(release(address), "cuMemFree")
	}
}

func main() {
	library, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	purego.RegisterLibFunc(&start, library, "cuInit")
	purego.RegisterLibFunc(&device, library, "cuDeviceGet")
	purego.RegisterLibFunc(&retain, library, "cuDevicePrimaryCtxRetain")
	purego.RegisterLibFunc(&enter, library, "cuCtxSetCurrent")
	purego.RegisterLibFunc(&info, library, "cuMemGetInfo_v2")
	purego.RegisterLibFunc(&allocate, library, "cuMemAlloc_v2")
	purego.RegisterLibFunc(&release, library, "cuMemFree_v2")

	runtime.LockOSThread()
	must(start(0), "cuInit")
	var gpu int32
	var context uintptr
	must(device(&gpu, 0), "cuDeviceGet")
	must(retain(&context, gpu), "cuDevicePrimaryCtxRetain")
	must(enter(context), "cuCtxSetCurrent")

	var free, total, idle, full uint64
	must(info(&free, &total), "cuMemGetInfo")
	var workers sync.WaitGroup
	for worker := 0; worker < 4; worker++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			work(context, 300)
		}()
	}
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	workers.Wait()
	close(stop)
	must(info(&idle, &total), "cuMemGetInfo")

	var addresses []uint64
	var refusal int32
	for {
		var address uint64
		if refusal = allocate(&address, block); refusal != 0 {
			break
		}
		addresses = append(addresses, address)
	}
	must(info(&full, &total), "cuMemGetInfo")
	must(release(addresses[0]), "cuMemFree")
	again := allocate(&addresses[0], block)
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"total": total, "free": free, "idle": idle, "full": full,
		"blocks": len(addresses), "refusal": refusal, "again": again,
	})
	io.Copy(io.Discard, os.Stdin)
}
