# What nvidia-ml-py tells of the first GPU, as one JSON object.
import json

import pynvml

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)


def rows(name, *arguments):
    """What a call lists; the name of its error where it has nothing to list."""
    try:
        return getattr(pynvml, name)(gpu, *arguments)
    except pynvml.NVMLError as error:
        return str(error)


def pids(found):
    return [entry.pid for entry in found] if isinstance(found, list) else found


accounted = pynvml.nvmlDeviceGetAccountingPids(gpu)
samples = rows("nvmlDeviceGetSamples", pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
second = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
answer = {
    "count": pynvml.nvmlDeviceGetCount(),
    "driver": pynvml.nvmlSystemGetDriverVersion(),
    "name": pynvml.nvmlDeviceGetName(gpu),
    "uuid": pynvml.nvmlDeviceGetUUID(gpu),
    "memory": [memory.total, memory.used, memory.free],
    "second": [second.total, second.reserved, second.used, second.free],
    "processes": [
        [entry.pid, entry.usedGpuMemory] for entry in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    ],
    "temperature": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    "second_form": pids(rows("nvmlDeviceGetComputeRunningProcesses_v2")),
    "detail": pids(rows("nvmlDeviceGetRunningProcessDetailList", pynvml.nvmlProcessDetailList_v1, 0)),
    "busy": pids(rows("nvmlDeviceGetProcessUtilization", 0)),
    "busy_second": pids(rows("nvmlDeviceGetProcessesUtilizationInfo", 0)),
    "accounted": [[pid, pynvml.nvmlDeviceGetAccountingStats(gpu, pid).maxMemoryUsage] for pid in accounted],
    "samples": samples if isinstance(samples, str) else "some",
    "utilization": pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
}
pynvml.nvmlShutdown()
print(json.dumps(answer))
