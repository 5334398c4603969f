/* Looking for a library as the loader does, and where the loader does not. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens the file at `path` and returns its handle when it is the one; NULL: go on. */
typedef void *shim_try_file(const char *path);

/* The first file called `name` that `try_file` takes, as an object that holds `caller` (or NULL) would find it. */
void *shim_search(const char *name, const void *caller, shim_try_file *try_file);
