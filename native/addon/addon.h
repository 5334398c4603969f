// The parts of the addon. Each exports plain functions over plain values and descriptors; the addon has no state, so
// that several threads may load it.
#pragma once

#include <napi.h>

void InitLedgers(Napi::Env env, Napi::Object exports);
void InitMounts(Napi::Env env, Napi::Object exports);
void InitPages(Napi::Env env, Napi::Object exports);
void InitProcesses(Napi::Env env, Napi::Object exports);
void InitResident(Napi::Env env, Napi::Object exports);
