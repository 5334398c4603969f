// The allocation of a bound pod, read from its annotations, and what the evictor must know of it. Pure. A grant that
// cannot be read blocks the GPUs that its text names: the pod may use them, and how much is unknown.
import type { V1OwnerReference, V1Pod } from '@kubernetes/client-node';
import { type PodGrant, parsePodGrant } from '../../api/grant-annotation.ts';
import { GRANT_ANNOTATION, MEMORY_ANNOTATION, REQUEST_ANNOTATION, UUIDS_PREFIX } from '../../api/names.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { createPool, shortDigest } from '../../common/digest.ts';
import type { Allocation } from '../../placement/allocations.ts';
import { demandOf } from '../../placement/demand.ts';
import type { GrantedPod } from '../../placement/overcommit.ts';
import { aspectsOf } from '../decisions/pod-aspects.ts';

/** A change of a running pod's memory that an operator asked for. */
export type ResizeRequest = Pick<BoundPodFacts, 'namespace' | 'name' | 'resourceVersion'> & {
  readonly nodeName: string;
  readonly grant: PodGrant;
  /** Text of the annotation. */
  readonly wanted: string;
};

/** What the evictor needs to know of a pod. */
export type BoundPodFacts = Pick<GrantedPod, 'epoch' | 'createdMs' | 'state'> & {
  readonly namespace: string;
  readonly name: string;
  readonly resourceVersion: string;
  /** Its controller makes another one when it is gone. */
  readonly isRecreated: boolean;
  readonly priority: number;
  /** It is being deleted, whether it has started or not. */
  readonly isTerminating: boolean;
  readonly labels: Readonly<Record<string, string>>;
};

export type BoundPod =
  /** Not bound, ended, or without a grant: it holds nothing, for the agent gives nothing to a pod without a grant. */
  | { readonly kind: 'no-grant' }
  | {
      readonly kind: 'granted';
      readonly allocation: Allocation;
      readonly facts: BoundPodFacts;
      readonly resize?: ResizeRequest;
    }
  /** `pod`: namespace and name. */
  | { readonly kind: 'invalid'; readonly allocation: Allocation; readonly pod: string; readonly why: string };

/** Field selector of pods that are bound and have not ended. */
export const BOUND_POD_FIELDS = 'spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed';

const podName = ({ metadata }: V1Pod): string => `${metadata?.namespace ?? ''}/${metadata?.name ?? ''}`;

export function readBoundPod(pod: V1Pod): BoundPod {
  const { metadata, spec, status } = pod;
  const [podUid, nodeName, text] = [metadata?.uid, spec?.nodeName, metadata?.annotations?.[GRANT_ANNOTATION]];
  if (!podUid || !nodeName || text === undefined) return { kind: 'no-grant' };
  if (status?.phase === 'Succeeded' || status?.phase === 'Failed') return { kind: 'no-grant' };
  const digest = shortDigest(`${nodeName} ${text}`);
  const grant = parsePodGrant(text);
  if (grant.ok) {
    const demand = demandOf(grant.value.containers);
    const allocation = { podUid, nodeName, digest, demand, gpuModels: gpuModelsOf(pod), ...aspectsOf(metadata, spec) };
    const facts = factsOf(pod, grant.value.epoch);
    const wanted = metadata?.annotations?.[MEMORY_ANNOTATION];
    if (wanted === undefined) return { kind: 'granted', allocation, facts };
    const { namespace, name, resourceVersion } = facts;
    const resize = { namespace, name, resourceVersion, nodeName, grant: grant.value, wanted };
    return { kind: 'granted', allocation, facts, resize };
  }
  const uuids = Object.entries(metadata?.annotations ?? {}).filter(([key]) => key.startsWith(UUIDS_PREFIX));
  const named = [text, ...uuids.map(([, value]) => value)].flatMap((value) => value.match(UUID) ?? []);
  const name = podName(pod);
  const blocks = { gpuUuids: [...new Set(named)], reason: `the grant of pod ${name} on it cannot be read` };
  const allocation = { podUid, nodeName, digest, demand: new Map(), blocks };
  return { kind: 'invalid', allocation, pod: name, why: grant.error };
}

/** Most pods allow any. */
function gpuModelsOf({ metadata }: V1Pod): readonly string[] {
  const text = metadata?.annotations?.[REQUEST_ANNOTATION] ?? '';
  if (!text.includes('"gpuModels"')) return ANY_MODEL;
  const request = parsePodRequest(text);
  return request.ok ? request.value.gpuModels : ANY_MODEL;
}

const ANY_MODEL: readonly string[] = [];

const NO_LABELS: BoundPodFacts['labels'] = {};
/** Replicas have the same ones. */
const sharedLabels = createPool<BoundPodFacts['labels']>(10_000);

function factsOf(pod: V1Pod, epoch: number): BoundPodFacts {
  const { metadata, spec } = pod;
  const labels = metadata?.labels ?? NO_LABELS;
  const waiting = metadata?.deletionTimestamp === undefined ? 'waiting' : 'terminating';
  return {
    namespace: metadata?.namespace ?? '',
    name: metadata?.name ?? '',
    resourceVersion: metadata?.resourceVersion ?? '',
    epoch,
    // The watch delivers it as text.
    createdMs: metadata?.creationTimestamp === undefined ? 0 : new Date(metadata.creationTimestamp).getTime(),
    state: hasStarted(pod) ? 'started' : waiting,
    isRecreated: (metadata?.ownerReferences ?? []).some(isRecreatingOwner),
    priority: spec?.priority ?? 0,
    isTerminating: metadata?.deletionTimestamp !== undefined,
    labels: sharedLabels(JSON.stringify(labels), labels),
  };
}

/** Not a Job, which may count the pod as failed and give up; what other controllers do is unknown. */
const RECREATING_OWNERS = ['apps/ReplicaSet', 'apps/StatefulSet', 'apps/DaemonSet', 'v1/ReplicationController'];

const isRecreatingOwner = ({ apiVersion, kind, controller }: V1OwnerReference): boolean =>
  controller === true && RECREATING_OWNERS.includes(`${apiVersion.replace(/^apps\/.*/, 'apps')}/${kind}`);

/** Whether any container has started, init containers included. */
function hasStarted({ status }: V1Pod): boolean {
  const containers = [
    ...(status?.initContainerStatuses ?? []),
    ...(status?.containerStatuses ?? []),
    ...(status?.ephemeralContainerStatuses ?? []),
  ];
  const begun = [...containers.map(({ state }) => state), ...containers.map(({ lastState }) => lastState)].some(
    (state) => state?.running !== undefined || state?.terminated !== undefined,
  );
  return begun || (status?.phase ?? 'Pending') !== 'Pending';
}

const UUID = /GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/g;
