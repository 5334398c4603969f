/* The priority of whoever has to see others' work in time. */
#pragma once

/* The calling thread goes before everybody; where that is not allowed, it has more of a processor than others. */
void rise(void);
