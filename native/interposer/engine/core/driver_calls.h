/* Calls of the real driver: of entry points that the engine wraps (CALL_REAL) and of all others (CALL_DRIVER). */
#pragma once

#include "../../generated/cuda_verbs.h"
#include "engine.h"

#pragma GCC visibility push(hidden)

/* The entry points that the engine wraps, numbered. */
enum {
#define COT_NUMBER(index, symbol) COT_REAL_##symbol,
    COT_CUDA_SERVED(COT_NUMBER)
#undef COT_NUMBER
        COT_REAL_COUNT
};

extern _Atomic(void *) cot_real_addresses[];
void *cot_resolve_real(uint32_t index);
void *cot_driver(const char *name);
int cot_missing(void);

/* The driver's entry point of a COT_REAL_ number, or NULL. */
static inline void *cot_real(uint32_t index) {
    void *known = atomic_load_explicit(&cot_real_addresses[index], memory_order_acquire);
    return __builtin_expect(known != NULL, 1) ? known : cot_resolve_real(index);
}

/* Calls the driver's entry point. Without it the result is that of a machine without a driver. */
#define CALL_REAL(symbol, types, ...)                                                \
    ({                                                                               \
        abi_result(*real_) types = (abi_result(*) types)cot_real(COT_REAL_##symbol); \
        real_ ? real_(__VA_ARGS__) : (abi_result)cot_missing();                      \
    })
/* The address of an entry point without a wrapper, or NULL. Each place in the code looks it up once. */
#define DRIVER(name)                                                                                    \
    ({                                                                                                  \
        static _Atomic(void *) address_;                                                                \
        void *known_ = atomic_load_explicit(&address_, memory_order_relaxed);                           \
        if (!known_) atomic_store_explicit(&address_, known_ = cot_driver(name), memory_order_relaxed); \
        known_;                                                                                         \
    })
#define CALL_DRIVER(name, types, ...)                                 \
    ({                                                                \
        abi_result(*call_) types = (abi_result(*) types)DRIVER(name); \
        call_ ? call_(__VA_ARGS__) : (abi_result)ABI_ERROR_NOT_FOUND; \
    })

#pragma GCC visibility pop
