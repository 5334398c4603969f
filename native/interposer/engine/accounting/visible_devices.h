/* The program's environment while the driver initializes. */
#pragma once

#pragma GCC visibility push(hidden)

/* Another list in place of the program's: no variable changes or moves, as other threads may read them. The list is
 * never freed for the same reason. A thread that sets a variable meanwhile goes on from this list. */
struct cot_visible_devices {
    char **before, **made; /* NULL: nothing was changed */
};
void cot_visible_devices_begin(struct cot_visible_devices *change);
void cot_visible_devices_end(const struct cot_visible_devices *change);

#pragma GCC visibility pop
