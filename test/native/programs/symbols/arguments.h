/* A call with more of every kind of argument than registers hold: integers, doubles, vectors, variable arguments, and a
 * result in memory of the caller. Shared by the calling program and the driver. */
#pragma once

#include <stdarg.h>
#include <stdint.h>

typedef float vector __attribute__((vector_size(16)));
struct answer {
    uint64_t sum, wrong, words[8];
};

#define INTEGERS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define ARGUMENT(i) (0x1111111111111111u * ((i) + 1))
#define DOUBLE_ARGUMENT(i) (1.0 / ((i) + 3))
#define VECTOR_ARGUMENT(i) ((vector){(i) + 0.5f, (i) + 0.25f, (i) + 0.125f, -(float)(i)})
#define MORE 10

#define TAKE(i) uint64_t n##i, double d##i,
#define TAKE_VECTORS vector v0, vector v1, vector v2, vector v3
/* Vectors come first: they are the first in the registers that they share with doubles. */
typedef struct answer (*many_arguments)(TAKE_VECTORS, INTEGERS(TAKE) int more, ...);
