"""All steps, in the order of their value: a probe that is cut off has answered what matters most. Their budgets are together more
than it has."""

from . import (
    conformance,
    events,
    exports,
    gating,
    green,
    identity,
    imported,
    latency,
    leases,
    mps,
    ordered,
    othergpus,
    pools,
    residuals,
    rounding,
    runtime,
    timeslice,
    training,
    unmapping,
    waits,
)
from .nvml import cost, lists, memory, rights, sampler, utilization

_MODULES = (conformance, cost, events, exports, gating, green, identity, imported, latency, leases, lists, memory, mps,
            ordered, othergpus, pools, residuals, rights, rounding, runtime, sampler, timeslice, training, unmapping,
            utilization, waits)
_BY_ID = {step.id: step for module in _MODULES for step in module.STEPS}

#: With these each question has been asked.
FIRST = (
    "exports", "identity", "runtime.driver", "runtime.cudart", "rounding.linear", "rounding.pitch", "rounding.vmm",
    "rounding.arrays", "rounding.host", "rounding.managed", "rounding.pools", "rounding.ordered",
    "mappings.gaps", "pools.imported", "residuals", "green", "nvml.stride", "nvml.memory", "nvml.kill", "nvml.utilization", "events.cost", "events.intervals", "leases",
    "leases.small", "mps", "gating.standin", "gating.waits",
    "nvml.cost", "nvml.detail", "nvml.capabilities", "nvml.pidnamespace", "nvml.zombies",
)
#: What these ask has been answered in another way.
THEN = (
    "nvml.sampler", "runtime.pytorch", "timeslice", "latency", "events.pytorch", "training", "gating.nccl",
    "gating.parallel", "rounding.othergpus", "conformance.1", "conformance.2",
)
if sorted((*FIRST, *THEN)) != sorted(_BY_ID):
    raise LookupError(f"steps without a place, or places without a step: {sorted({*FIRST, *THEN} ^ set(_BY_ID))}")
ALL = tuple(_BY_ID[name] for name in (*FIRST, *THEN))
