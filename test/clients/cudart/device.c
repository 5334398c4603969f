/* Devices: their properties, and what belongs to a whole device or context. */
#include <string.h>

#include "cudart.h"

EXPORT rt_result cudaDriverGetVersion(int *version) {
    rt_result result = rt_start();
    if (!version) return rt_answer(ABI_ERROR_INVALID_VALUE);
    *version = 0; /* documented: none is installed */
    if (result == RT_ERROR_INSUFFICIENT_DRIVER) return ABI_SUCCESS;
    return rt_answer(DRIVER(cuDriverGetVersion, version));
}
EXPORT rt_result cudaRuntimeGetVersion(int *version) {
    if (!version) return rt_answer(ABI_ERROR_INVALID_VALUE);
    *version = RUNTIME_VERSION;
    return ABI_SUCCESS;
}
EXPORT rt_result cudaGetDeviceCount(int *count) {
    rt_result result = rt_start();
    if (!count) return rt_answer(ABI_ERROR_INVALID_VALUE);
    *count = 0;
    if (result == ABI_SUCCESS) result = DRIVER(cuDeviceGetCount, count);
    if (result == ABI_SUCCESS && *count == 0) result = ABI_ERROR_NO_DEVICE;
    return rt_answer(result);
}
/* Attributes have the driver's numbers. */
EXPORT rt_result cudaDeviceGetAttribute(int *value, int attribute, int device) {
    rt_result result = rt_start();
    return rt_answer(result == ABI_SUCCESS ? DRIVER(cuDeviceGetAttribute, value, attribute, device) : result);
}
EXPORT rt_result cudaDeviceGetPCIBusId(char *id, int length, int device) {
    rt_result result = rt_start();
    return rt_answer(result == ABI_SUCCESS ? DRIVER(cuDeviceGetPCIBusId, id, length, device) : result);
}
EXPORT rt_result cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    rt_result result = rt_start();
    return rt_answer(result == ABI_SUCCESS ? DRIVER(cuDeviceCanAccessPeer, can, device, peer) : result);
}
EXPORT rt_result cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    abi_context context;
    rt_result result = rt_enter();
    if (result == ABI_SUCCESS) result = rt_primary(peer, &context);
    return rt_answer(result == ABI_SUCCESS ? DRIVER(cuCtxEnablePeerAccess, context, flags) : result);
}
EXPORT rt_result cudaDeviceGetDefaultMemPool(abi_pool *pool, int device) {
    rt_result result = rt_start();
    return rt_answer(result == ABI_SUCCESS ? DRIVER(cuDeviceGetDefaultMemPool, pool, device) : result);
}
RT_PASS(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), cuCtxGetStreamPriorityRange, least, greatest)
RT_PASS(cudaDeviceSynchronize, (void), cuCtxSynchronize)
RT_PASS(cudaProfilerStart, (void), cuProfilerStart)
RT_PASS(cudaProfilerStop, (void), cuProfilerStop)

/* cudaDeviceProp as of CUDA 12: 1032 bytes, of which the name, the UUID and the total stand in front of numbers that
 * the driver has as attributes. Four bytes each unless they count bytes; what is left out stays 0. */
enum { PROPERTIES_BYTES = 1032, NAME_BYTES = 256, UUID_AT = 256, TOTAL_AT = 288 };
static const struct {
    short at, attribute;
} NUMBERS[] =
    {
        {304, 12},  {308, 10},  {320, 1},   {324, 2},   {328, 3},   {332, 4},   {336, 5},   {340, 6},   {344, 7},
        {348, 13},  {360, 75},  {364, 76},  {384, 15},  {388, 16},  {392, 17},  {396, 18},  {400, 19},  {404, 20},
        {408, 21},  {412, 77},  {416, 69},  {420, 22},  {424, 23},  {428, 73},  {432, 74},  {436, 70},  {440, 71},
        {444, 72},  {448, 45},  {452, 46},  {456, 24},  {460, 25},  {464, 26},  {468, 47},  {472, 48},  {476, 49},
        {480, 52},  {484, 42},  {488, 43},  {492, 27},  {496, 28},  {500, 29},  {504, 53},  {508, 54},  {512, 55},
        {516, 56},  {520, 57},  {524, 58},  {528, 59},  {532, 60},  {536, 61},  {540, 62},  {544, 63},  {548, 64},
        {552, 65},  {556, 66},  {560, 67},  {564, 68},  {576, 31},  {580, 32},  {584, 33},  {588, 34},  {592, 50},
        {596, 35},  {600, 40},  {604, 41},  {608, 36},  {612, 37},  {616, 38},  {620, 108}, {624, 39},  {628, 78},
        {632, 79},  {636, 80},  {648, 82},  {652, 83},  {656, 84},  {660, 85},  {664, 86},  {668, 87},  {672, 88},
        {676, 89},  {680, 90},  {684, 91},  {688, 95},  {692, 96},  {704, 100}, {708, 101}, {712, 106}, {716, 109},
        {728, 99},  {732, 112}, {736, 113}, {740, 114}, {744, 115}, {748, 116}, {752, 117}, {756, 118}, {760, 119},
        {764, 121}, {768, 125}, {772, 120}, {776, 129},
    },
  SIZES[] = {{296, 8}, {312, 11}, {352, 9}, {368, 14}, {376, 51}, {568, 30}, {640, 81}, {696, 97}, {720, 111}};

EXPORT rt_result cudaGetDeviceProperties_v2(unsigned char *properties, int device) {
    size_t total = 0;
    int value;
    rt_result result = rt_start();
    if (result == ABI_SUCCESS && !properties) result = ABI_ERROR_INVALID_VALUE;
    if (result != ABI_SUCCESS) return rt_answer(result);
    memset(properties, 0, PROPERTIES_BYTES);
    result = DRIVER(cuDeviceGetName, (char *)properties, NAME_BYTES, device);
    if (result == ABI_SUCCESS) result = DRIVER(cuDeviceGetUuid, (abi_uuid *)(properties + UUID_AT), device);
    if (result == ABI_SUCCESS) result = DRIVER(cuDeviceTotalMem, &total, device);
    memcpy(properties + TOTAL_AT, &total, sizeof total);
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS && result == ABI_SUCCESS; i++) {
        result = DRIVER(cuDeviceGetAttribute, &value, NUMBERS[i].attribute, device);
        memcpy(properties + NUMBERS[i].at, &value, sizeof value);
    }
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES && result == ABI_SUCCESS; i++) {
        result = DRIVER(cuDeviceGetAttribute, &value, SIZES[i].attribute, device);
        size_t wide = (size_t)value;
        memcpy(properties + SIZES[i].at, &wide, sizeof wide);
    }
    return rt_answer(result);
}
