// PromQL for the granted, used and idle part of GPUs of each namespace at one moment: for the recording rules, and for
// servers without them. Pure. Amounts are in GPUs: 1 is the memory, or the compute, of one GPU.
import type { Amounts, Kind } from '../../policy/chargeback.ts';
import { heldBytes } from './container-series.ts';

/** `of` selects a container's metric, `ofGpu` a GPU's. */
export type Selectors = {
  readonly of: (metric: string, ...matchers: readonly string[]) => string;
  readonly ofGpu: (metric: string, ...matchers: readonly string[]) => string;
};

/** The names of the recorded series. The last part says what was summed over. */
export const RECORDED: Readonly<Record<Kind, Readonly<Record<keyof Amounts, string>>>> = {
  memory: {
    granted: 'namespace:cotenant_memory_granted_gpus:sum',
    used: 'namespace:cotenant_memory_used_gpus:sum',
    wasted: 'namespace:cotenant_memory_wasted_gpus:sum',
  },
  compute: {
    granted: 'namespace:cotenant_compute_granted_gpus:sum',
    used: 'namespace:cotenant_compute_used_gpus:rate5m',
    wasted: 'namespace:cotenant_compute_wasted_gpus:rate5m',
  },
};
/** Labels that no other series of a container has. All others stay, those of the scrape's target included. */
const OF_ITS_RUN = 'pod_uid, container_id, runtime, fence';
export const RECORDED_GPUS = 'job:cotenant_gpus:count';

/** A MIG instance is not a GPU, and its share of one is not known. */
const NO_INSTANCE = 'gpu_uuid!~"MIG-.*"';
export const NOT_OF_INSTANCES = 'mode!="mig"';

export function gpus({ ofGpu }: Selectors): string {
  return `count by (job) (${ofGpu('cotenant_device_memory_total_bytes', NO_INSTANCE)})`;
}

export function usage(
  { of, ofGpu }: Selectors,
  window: string,
): Readonly<Record<Kind, Readonly<Record<keyof Amounts, string>>>> {
  const total = ofGpu('cotenant_device_memory_total_bytes');
  // Memory that can be granted; some drivers do not report what they reserve.
  const usable = `(${total} - ${ofGpu('cotenant_device_memory_reserved_bytes')} or ${total})`;
  // A container with an exclusive GPU was granted all of it, by Cotenant or by another allocator.
  const alone = `max without (${OF_ITS_RUN}) (${of('cotenant_container_info', 'mode="exclusive"')})`;
  const whole = `${alone} * on (job, instance, gpu_uuid) group_left () ${usable}`;
  const limit = `(${of('cotenant_container_memory_limit_bytes')} or ${whole})`;
  const held = heldBytes((metric, ...matchers) => of(metric, ...matchers, NOT_OF_INSTANCES));
  const share = `rate(${of('cotenant_container_sm_seconds_total', NOT_OF_INSTANCES)}[${window}])`;
  const cores = `(max without (enforced) (${of('cotenant_container_sm_limit_ratio')}) or ${alone})`;
  const sum = (expression: string) => `sum by (job, namespace) (${expression})`;
  const ofMemory = (bytes: string) => sum(`${bytes} / on (job, instance, gpu_uuid) group_left () ${usable}`);
  return {
    memory: {
      granted: ofMemory(limit),
      used: ofMemory(held),
      wasted: ofMemory(`clamp_min(${limit} - ${held}, 0)`),
    },
    compute: {
      granted: sum(cores),
      used: sum(share),
      // A container without granted compute wastes none.
      wasted: sum(`clamp_min(${cores} - ${share}, 0)`),
    },
  };
}
