"""All steps, in the order of their value: a probe that is cut off has answered what matters most."""

from . import (
    events,
    exports,
    identity,
    nvml_cost,
    nvml_lists,
    nvml_memory,
    nvml_utilization,
    pools,
    residuals,
    rounding,
    runtime,
)

ALL = (
    *exports.STEPS, *identity.STEPS, *runtime.STEPS, *rounding.STEPS, *pools.STEPS, *residuals.STEPS, *events.STEPS,
    *nvml_lists.STEPS, *nvml_memory.STEPS, *nvml_utilization.STEPS, *nvml_cost.STEPS,
)
