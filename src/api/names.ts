// Names of resources, annotations and labels that Cotenant reads or writes in a cluster
// (docs/reference/annotations.md). The other files of this folder declare the formats of the values.

/** Number of GPUs that the container gets. */
export const GPU = 'cotenant.io/gpu';
/** Memory over all GPUs of the container, in bytes. */
export const GPU_MEMORY = 'cotenant.io/gpu-memory';
/** Compute over all GPUs of the container, in percent of one GPU. */
export const GPU_CORES = 'cotenant.io/gpu-cores';
export const OWN_RESOURCES: readonly string[] = [GPU, GPU_MEMORY, GPU_CORES];

/** A pod's normalized request; only the webhook writes it. */
export const REQUEST_ANNOTATION = 'cotenant.io/request';
/** What a pod was granted: the scheduler writes it in the Binding, and again when the pod's memory changes. */
export const GRANT_ANNOTATION = 'cotenant.io/grant';
/** `gpu-uuids.cotenant.io/<container>`: the granted GPUs of one container; only the Binding writes it. */
export const UUIDS_PREFIX = 'gpu-uuids.cotenant.io/';
/** `gpu-memory.cotenant.io/<container>`: the MiB granted to it, in the Binding where a variable refers to them. */
const MEMORY_PREFIX = 'gpu-memory.cotenant.io/';

/** An operator's change of a running pod's compute; only the configured writers write it. */
export const COMPUTE_ANNOTATION = 'cotenant.io/compute';

/** An operator's change of a running pod's memory; only the configured writers write it. The scheduler grants it. */
export const MEMORY_ANNOTATION = 'cotenant.io/memory';

/** Type of a pod's condition: what became of a change of its memory. */
export const MEMORY_RESIZED = 'cotenant.io/MemoryResized';

/** An administrator's enforcement mode for a pod, which overrides all others; only the configured writers write it. */
export const ENFORCEMENT_OVERRIDE_ANNOTATION = 'cotenant.io/enforcement-override';

/**
 * NRI's own name for a list (JSON) of plugins without which a container is not started; honored by containerd 2.2 and
 * newer and by CRI-O. A key with `/pod` or `/container.<name>` behind it wins over the bare one.
 */
export const REQUIRED_PLUGINS_ANNOTATION = 'required-plugins.noderesource.dev';
/** The name that the agent's NRI plugin registers with. */
export const NRI_PLUGIN = 'cotenant';
/** A container's variable for its driver parts; the webhook sets it to what the namespace's rules allow. */
export const DRIVER_CAPABILITIES_VARIABLE = 'NVIDIA_DRIVER_CAPABILITIES';

/** On a Node: its GPUs as its agent sees them; only the agent writes it. */
export const GPUS_ANNOTATION = 'cotenant.io/gpus';

/** On an Event of the agent: the action that it reports, as the audit log names it (`kill`, `terminate`, `warn`). */
export const ACTION_ANNOTATION = 'cotenant.io/action';

/** On the scheduler's own pod: a text that it writes there when it begins to lead, to know what its watch has shown. */
export const WATCH_MARK_ANNOTATION = 'cotenant.io/watch-mark';

/** On a container in its runtime, never on a pod: the UUIDs of the GPUs that the agent gave it at its creation. */
export const GIVEN_ANNOTATION = 'cotenant.io/gpus-given';

/**
 * On the chart's objects and pods: the part of Cotenant, independent of names that values can override. Any tenant can
 * write it on a pod, so it counts only in the namespace of the release.
 */
export const COMPONENT_LABEL = 'cotenant.io/component';
/** On the CSIDriver object, which only administrators write: the namespace of the release. */
export const NAMESPACE_ANNOTATION = 'cotenant.io/namespace';

/** On the agents' pods: the service account whose tokens open the data of the status page, with this audience alone. */
export const STATUS_READER_ANNOTATION = 'cotenant.io/status-reader';
export const STATUS_AUDIENCE = 'cotenant.io/status';
/** The header of such a token: the API server's proxy hands no Authorization on. */
export const STATUS_TOKEN_HEADER = 'x-cotenant-token';
export const STATUS_PATHS = ['/status.json', '/history.json'] as const;

export const PLACEMENT_ANNOTATION = 'cotenant.io/placement';
/** On a pod its compute policy, on a Node (a label) the policy of its GPUs. */
export const COMPUTE_POLICY_ANNOTATION = 'cotenant.io/compute-policy';
export const COMPUTE_WEIGHT_ANNOTATION = 'cotenant.io/compute-weight';
export const CORES_LIMIT_ANNOTATION = 'cotenant.io/gpu-cores-limit';
export const PRIORITY_ANNOTATION = 'cotenant.io/priority';
export const MEMORY_ISOLATION_ANNOTATION = 'cotenant.io/memory-isolation';
/** On a pod an enforcement mode that is stricter than the namespace's, on a Node (a label) the mode of that node. */
export const ENFORCEMENT_ANNOTATION = 'cotenant.io/enforcement';
export const GPU_MODEL_ANNOTATION = 'cotenant.io/gpu-model';
export const GPU_UUID_ANNOTATION = 'cotenant.io/gpu-uuid';
export const TEMPLATE_ANNOTATION = 'cotenant.io/template';

/** The annotations that a tenant writes. */
export const TENANT_ANNOTATIONS: readonly string[] = [
  PLACEMENT_ANNOTATION,
  COMPUTE_POLICY_ANNOTATION,
  COMPUTE_WEIGHT_ANNOTATION,
  CORES_LIMIT_ANNOTATION,
  PRIORITY_ANNOTATION,
  MEMORY_ISOLATION_ANNOTATION,
  ENFORCEMENT_ANNOTATION,
  GPU_MODEL_ANNOTATION,
  GPU_UUID_ANNOTATION,
  TEMPLATE_ANNOTATION,
];

/** A container's name is a DNS label, so the key always fits. */
export function uuidsAnnotation(container: string): string {
  return UUIDS_PREFIX + container;
}

export function memoryAnnotation(container: string): string {
  return MEMORY_PREFIX + container;
}

/** True for every annotation key in our domain, also those that a later version may add. */
export function isOwnKey(key: string): boolean {
  const slash = key.indexOf('/');
  const domain = slash < 0 ? '' : key.slice(0, slash);
  return domain === 'cotenant.io' || domain.endsWith('.cotenant.io');
}

const GRANT_KEYS: readonly string[] = [
  GRANT_ANNOTATION,
  COMPUTE_ANNOTATION,
  MEMORY_ANNOTATION,
  ENFORCEMENT_OVERRIDE_ANNOTATION,
];

/** True for annotations that only the scheduler and operators write; no pod may be created with them. */
export function isGrantKey(key: string): boolean {
  return GRANT_KEYS.includes(key) || key.startsWith(UUIDS_PREFIX);
}

/** A container's name as Kubernetes allows it (RFC 1123 label). */
export function isContainerName(value: unknown): value is string {
  return typeof value === 'string' && value.length <= 63 && /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(value);
}
