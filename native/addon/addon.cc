#include "addon.h"

static Napi::Object Init(Napi::Env env, Napi::Object exports) {
    InitLedgers(env, exports);
    InitPages(env, exports);
    InitMounts(env, exports);
    InitProcesses(env, exports);
    InitResident(env, exports);
    return exports;
}

NODE_API_MODULE(cotenant, Init)
