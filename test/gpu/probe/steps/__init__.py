"""All steps, in the order of their value: a probe that is cut off has answered what matters most."""

from . import exports, identity, nvml_lists, nvml_memory, nvml_utilization, pools, residuals, rounding, runtime

ALL = (
    *exports.STEPS, *identity.STEPS, *runtime.STEPS, *rounding.STEPS, *pools.STEPS, *residuals.STEPS, *nvml_lists.STEPS,
    *nvml_memory.STEPS, *nvml_utilization.STEPS,
)
