# What nvidia-ml-py tells of the first card, as one JSON object.
import json

import pynvml

pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(card)
second = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
answer = {
    "count": pynvml.nvmlDeviceGetCount(),
    "driver": pynvml.nvmlSystemGetDriverVersion(),
    "name": pynvml.nvmlDeviceGetName(card),
    "uuid": pynvml.nvmlDeviceGetUUID(card),
    "memory": [memory.total, memory.used, memory.free],
    "second": [second.total, second.reserved, second.used, second.free],
    "processes": [
        [entry.pid, entry.usedGpuMemory] for entry in pynvml.nvmlDeviceGetComputeRunningProcesses(card)
    ],
    "temperature": pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU),
    "utilization": pynvml.nvmlDeviceGetUtilizationRates(card).gpu,
}
pynvml.nvmlShutdown()
print(json.dumps(answer))
