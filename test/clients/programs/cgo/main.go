// A Go program that opens the driver through C, linked with libc or with all of it inside. Takes memory in blocks until it
// is refused, prints one JSON object, then waits for the end of its input. Knows nothing of Cotenant.
package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static void *library;
static void *find(const char *name) { return dlsym(library, name); }
static int opened(void) { return (library = dlopen("libcuda.so.1", RTLD_NOW)) != NULL; }
static int start(void) { return ((int (*)(unsigned))find("cuInit"))(0); }
static int enter(void) {
	int device = 0;
	void *context = NULL;
	int result = ((int (*)(int *, int))find("cuDeviceGet"))(&device, 0);
	if (result == 0) result = ((int (*)(void **, int))find("cuDevicePrimaryCtxRetain"))(&context, device);
	return result != 0 ? result : ((int (*)(void *))find("cuCtxSetCurrent"))(context);
}
static int info(size_t *free, size_t *total) { return ((int (*)(size_t *, size_t *))find("cuMemGetInfo_v2"))(free, total); }
static int allocate(uint64_t *address, size_t bytes) { return ((int (*)(uint64_t *, size_t))find("cuMemAlloc_v2"))(address, bytes); }
static int release(uint64_t address) { return ((int (*)(uint64_t))find("cuMemFree_v2"))(address); }
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
)

const block = 64 << 20

func must(result C.int, what string) {
	if result != 0 {
		fmt.Fprintf(os.Stderr, "%s: %d\n", what, result)
		os.Exit(1)
	}
}

func main() {
	runtime.LockOSThread()
	if C.opened() == 0 {
		fmt.Fprintln(os.Stderr, "libcuda.so.1 cannot be opened")
		os.Exit(1)
	}
	must(C.start(), "cuInit")
	must(C.enter(), "context")
	var free, total, full C.size_t
	must(C.info(&free, &total), "cuMemGetInfo")
	var addresses []C.uint64_t
	var refusal C.int
	for {
		var address C.uint64_t
		if refusal = C.allocate(&address, block); refusal != 0 {
			break
		}
		addresses = append(addresses, address)
	}
	must(C.info(&full, &total), "cuMemGetInfo")
	must(C.release(addresses[0]), "cuMemFree")
	again := C.allocate(&addresses[0], block)
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"total": total, "free": free, "idle": free, "full": full,
		"blocks": len(addresses), "refusal": refusal, "again": again,
	})
	io.Copy(io.Discard, os.Stdin)
}
