"""Prints what NVML reports for each GPU as one line of JSON. An argument keeps the process alive for that many seconds."""
import json
import sys
import time

import pynvml

pynvml.nvmlInit()
gpus = []
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    gpus.append({"uuid": pynvml.nvmlDeviceGetUUID(handle), "totalBytes": memory.total, "usedBytes": memory.used})
print(json.dumps(gpus), flush=True)
if len(sys.argv) > 1:
    time.sleep(float(sys.argv[1]))
