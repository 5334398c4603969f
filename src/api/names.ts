// The names that users and the cluster see: resources, annotations, and which of them a tenant may write.
// Owns the spelling only; what a value means is read in the files beside this one.

/** GPUs that the container sees. */
export const GPU = 'cotenant.io/gpu';
/** Memory over all GPUs of the container, in bytes. */
export const GPU_MEMORY = 'cotenant.io/gpu-memory';
/** Compute over all GPUs of the container, in percent of one GPU. */
export const GPU_CORES = 'cotenant.io/gpu-cores';
export const OWN_RESOURCES: readonly string[] = [GPU, GPU_MEMORY, GPU_CORES];

/** The normalized limits of a pod, written by the webhook alone. */
export const REQUEST_ANNOTATION = 'cotenant.io/request';
/** What the pod got, written by the scheduler's Binding alone. */
export const GRANT_ANNOTATION = 'cotenant.io/grant';
/** `gpu-uuids.cotenant.io/<container>`: the granted GPUs of one container, written by the Binding alone. */
export const UUIDS_PREFIX = 'gpu-uuids.cotenant.io/';

/** What an operator gave a pod that runs in place of what it chose of compute; written by the configured writers alone. */
export const COMPUTE_ANNOTATION = 'cotenant.io/compute';

/** The mode of enforcement that an administrator gave a pod in place of all others; written by the same. */
export const ENFORCEMENT_OVERRIDE_ANNOTATION = 'cotenant.io/enforcement-override';

/**
 * NRI's own name for a list (JSON) of plugins without which a container is not started; honored by containerd 2.2 and newer
 * and by CRI-O. A key with `/pod` or `/container.<name>` behind it wins over the bare one.
 */
export const REQUIRED_PLUGINS_ANNOTATION = 'required-plugins.noderesource.dev';
/** Name under which the agent's plugin registers with NRI. */
export const NRI_PLUGIN = 'cotenant';
/** Of a container: which parts of the driver it gets; the webhook has set it to what the namespace's rules allow. */
export const DRIVER_CAPABILITIES_VARIABLE = 'NVIDIA_DRIVER_CAPABILITIES';

/** On a Node: its GPUs as its agent sees them, written by the agent alone. */
export const GPUS_ANNOTATION = 'cotenant.io/gpus';

/** On an Event of the agent: the action that it reports, as the audit log names it (`kill`, `terminate`, `warn`). */
export const ACTION_ANNOTATION = 'cotenant.io/action';

/** On a container in its runtime, never on a pod: the GPUs that the agent gave it when it was made, as UUIDs. */
export const GIVEN_ANNOTATION = 'cotenant.io/gpus-given';

/**
 * On the chart's objects and pods: which part of Cotenant it is, by no name that can be overridden. Anybody may write it on a
 * pod, so it counts in the namespace of the release alone.
 */
export const COMPONENT_LABEL = 'cotenant.io/component';
/** On the CSIDriver, which only administrators write: the namespace of the release. */
export const NAMESPACE_ANNOTATION = 'cotenant.io/namespace';

export const PLACEMENT_ANNOTATION = 'cotenant.io/placement';
/** On a pod what it chose, on a Node (a label) the policy of its GPUs. */
export const COMPUTE_POLICY_ANNOTATION = 'cotenant.io/compute-policy';
export const COMPUTE_WEIGHT_ANNOTATION = 'cotenant.io/compute-weight';
export const CORES_LIMIT_ANNOTATION = 'cotenant.io/gpu-cores-limit';
export const PRIORITY_ANNOTATION = 'cotenant.io/priority';
export const MEMORY_ISOLATION_ANNOTATION = 'cotenant.io/memory-isolation';
/** On a pod a mode of enforcement that is stricter than the namespace's, on a Node (a label) the mode of that node. */
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

/** The annotation that carries one container's granted GPUs. A container's name is a DNS label, so the key always fits. */
export function uuidsAnnotation(container: string): string {
  return UUIDS_PREFIX + container;
}

/** True for every annotation key in our domain, also those that a later version may add. */
export function isOwnKey(key: string): boolean {
  const slash = key.indexOf('/');
  const domain = slash < 0 ? '' : key.slice(0, slash);
  return domain === 'cotenant.io' || domain.endsWith('.cotenant.io');
}

const GRANT_KEYS: readonly string[] = [GRANT_ANNOTATION, COMPUTE_ANNOTATION, ENFORCEMENT_OVERRIDE_ANNOTATION];

/** True for the keys that say what a pod got. Nobody may create a pod with them. */
export function isGrantKey(key: string): boolean {
  return GRANT_KEYS.includes(key) || key.startsWith(UUIDS_PREFIX);
}

/** A container's name as Kubernetes allows it (RFC 1123 label). */
export function isContainerName(value: unknown): value is string {
  return typeof value === 'string' && value.length <= 63 && /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(value);
}
