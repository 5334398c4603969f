// A Go program with libc inside, which no preload reaches. In such a program thread-local storage of libraries that it opens
// does not work (glibc), so it keeps to entry points that need no context: it takes memory by handle in blocks until it is
// refused, prints one JSON object, then waits for the end of its input. Knows nothing of Cotenant.
package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// Memory on a GPU: the kind of memory, of handles that others may open, of the place; and what is left at its default.
struct properties {
	int type, handles, place, gpu;
	void *windows;
	unsigned char flags[8];
};

static void *library;
static void *find(const char *name) { return dlsym(library, name); }
static int opened(void) { return (library = dlopen("libcuda.so.1", RTLD_NOW)) != NULL; }
static int start(void) { return ((int (*)(unsigned))find("cuInit"))(0); }
static int total(size_t *bytes) { return ((int (*)(size_t *, int))find("cuDeviceTotalMem_v2"))(bytes, 0); }
static int allocate(size_t bytes) {
	struct properties properties = {.type = 1, .place = 1};
	uint64_t handle;
	return ((int (*)(uint64_t *, size_t, const void *, uint64_t))find("cuMemCreate"))(&handle, bytes, &properties, 0);
}
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
	var total C.size_t
	must(C.total(&total), "cuDeviceTotalMem")
	blocks, refusal := 0, C.int(0)
	for {
		if refusal = C.allocate(block); refusal != 0 {
			break
		}
		blocks++
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{"total": total, "blocks": blocks, "refusal": refusal})
	io.Copy(io.Discard, os.Stdin)
}
