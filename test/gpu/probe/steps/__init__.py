"""All steps, in the order of their value: a probe that is cut off has answered what matters most."""

from . import (
    events,
    exports,
    gating,
    green,
    identity,
    latency,
    leases,
    mps,
    nvml_cost,
    nvml_lists,
    nvml_memory,
    nvml_rights,
    nvml_utilization,
    othercards,
    pools,
    residuals,
    rounding,
    runtime,
    timeslice,
)

ALL = (
    *exports.STEPS, *identity.STEPS, *runtime.STEPS, *rounding.STEPS, *pools.STEPS, *residuals.STEPS, *green.STEPS,
    *nvml_lists.STEPS, *nvml_memory.STEPS, *nvml_utilization.STEPS, *nvml_rights.STEPS, *leases.STEPS, *timeslice.STEPS, *events.STEPS,
    *latency.STEPS, *mps.STEPS, *gating.STEPS, *nvml_cost.STEPS, *othercards.STEPS,
)
