/* Search for a library file where the loader looks, and where drivers are installed besides. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens the file at `path` and returns its handle if it is the right one; NULL: go on. */
typedef void *shim_try_file(const char *path);

/* The first file called `name` that `try_file` accepts, searched for as by the object that holds `caller` (or
 * NULL). */
void *shim_search(const char *name, const void *caller, shim_try_file *try_file);
