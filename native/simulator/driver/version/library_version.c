/* The CUDA version that one build of the simulated driver reports; everything else is the same in every build. */
#include "../sim.h"

const int sim_library_cuda = SIM_LIBRARY_CUDA;
