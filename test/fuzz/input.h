/* Reads numbers and runs of bytes from the fuzzer's input, zeros beyond its end. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct input {
    const uint8_t *at;
    size_t left;
};

static inline void input_bytes(struct input *input, void *to, size_t size) {
    size_t here = size < input->left ? size : input->left;
    memset(to, 0, size);
    if (here) memcpy(to, input->at, here);
    input->at += here;
    input->left -= here;
}
static inline uint8_t input_byte(struct input *input) {
    uint8_t value;
    input_bytes(input, &value, sizeof value);
    return value;
}
static inline uint32_t input_word(struct input *input) {
    uint32_t value;
    input_bytes(input, &value, sizeof value);
    return value;
}
static inline uint64_t input_long(struct input *input) {
    uint64_t value;
    input_bytes(input, &value, sizeof value);
    return value;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
