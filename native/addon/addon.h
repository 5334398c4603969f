// The parts of the addon. Each exports plain functions over plain values and descriptors; the addon holds no state, so
// that it may be loaded in several threads.
#pragma once

#include <napi.h>

void InitLedgers(Napi::Env env, Napi::Object exports);
void InitMounts(Napi::Env env, Napi::Object exports);
void InitPages(Napi::Env env, Napi::Object exports);
void InitProcesses(Napi::Env env, Napi::Object exports);
void InitResident(Napi::Env env, Napi::Object exports);
