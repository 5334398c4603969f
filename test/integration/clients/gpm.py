# What nvidia-ml-py tells of the first GPU's counters between two samples, as one JSON object: percent by metric, or the name of
# its error.
import json
import time

import pynvml

METRICS = (
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    pynvml.NVML_GPM_METRIC_SM_UTIL,
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    pynvml.NVML_GPM_METRIC_FP32_UTIL,
)

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
answer = {"supported": bool(pynvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice), "metrics": {}}
try:
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    pynvml.nvmlGpmSampleGet(gpu, samples[0])
    time.sleep(1)
    pynvml.nvmlGpmSampleGet(gpu, samples[1])
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(METRICS)
    request.sample1, request.sample2 = samples
    for i, metric in enumerate(METRICS):
        request.metrics[i].metricId = metric
    pynvml.nvmlGpmMetricsGet(request)
    for metric in request.metrics[: len(METRICS)]:
        answer["metrics"][metric.metricId] = metric.value if metric.nvmlReturn == 0 else None
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)
except pynvml.NVMLError as error:
    answer["refused"] = str(error)
pynvml.nvmlShutdown()
print(json.dumps(answer))
