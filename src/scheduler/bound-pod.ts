// What a bound pod takes, read from its annotations, and how far it is. Pure. A grant that cannot be read closes the GPUs that its text names: the
// pod may be using them, and nobody knows how much.
import type { V1OwnerReference, V1Pod } from '@kubernetes/client-node';
import { parsePodGrant } from '../api/grant-annotation.ts';
import { GRANT_ANNOTATION, UUIDS_PREFIX } from '../api/names.ts';
import type { Booking } from '../placement/allocations.ts';
import { needOf } from '../placement/demand.ts';
import type { Holder } from '../placement/overcommit.ts';

/** What is to be known of a pod before it can be evicted. */
export type BoundPodFacts = Pick<Holder, 'epoch' | 'createdMs' | 'state'> & {
  readonly namespace: string;
  readonly name: string;
  readonly resourceVersion: string;
  /** Somebody makes another one when it has gone. */
  readonly isMadeAgain: boolean;
};

export type BoundPod =
  /** Not bound, done, or without a grant: it takes nothing (the agent gives a pod nothing that has no grant). */
  | { readonly kind: 'nothing' }
  | { readonly kind: 'booking'; readonly booking: Booking; readonly facts: BoundPodFacts }
  /** `pod`: its namespace and name. */
  | { readonly kind: 'unreadable'; readonly booking: Booking; readonly pod: string; readonly why: string };

/** Bound, and not at its end, whose containers may hold GPUs. */
export const HOLDERS = 'spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed';

const podName = ({ metadata }: V1Pod): string => `${metadata?.namespace ?? ''}/${metadata?.name ?? ''}`;

export function readBoundPod(pod: V1Pod): BoundPod {
  const { metadata, spec, status } = pod;
  const [podUid, nodeName, text] = [metadata?.uid, spec?.nodeName, metadata?.annotations?.[GRANT_ANNOTATION]];
  if (!podUid || !nodeName || text === undefined) return { kind: 'nothing' };
  if (status?.phase === 'Succeeded' || status?.phase === 'Failed') return { kind: 'nothing' };
  const grant = parsePodGrant(text);
  if (grant.ok) {
    const booking = { podUid, nodeName, need: needOf(grant.value.containers) };
    return { kind: 'booking', booking, facts: factsOf(pod, grant.value.epoch) };
  }
  const uuids = Object.entries(metadata?.annotations ?? {}).filter(([key]) => key.startsWith(UUIDS_PREFIX));
  const named = [text, ...uuids.map(([, value]) => value)].flatMap((value) => value.match(UUID) ?? []);
  const name = podName(pod);
  const because = `the grant of pod ${name} on it cannot be read`;
  const closes = { gpuUuids: [...new Set(named)], because };
  return { kind: 'unreadable', booking: { podUid, nodeName, need: new Map(), closes }, pod: name, why: grant.error };
}

function factsOf(pod: V1Pod, epoch: number): BoundPodFacts {
  const { metadata } = pod;
  const waiting = metadata?.deletionTimestamp === undefined ? 'waits' : 'leaves';
  return {
    namespace: metadata?.namespace ?? '',
    name: metadata?.name ?? '',
    resourceVersion: metadata?.resourceVersion ?? '',
    epoch,
    // A watch gives it as text.
    createdMs: metadata?.creationTimestamp === undefined ? 0 : new Date(metadata.creationTimestamp).getTime(),
    state: hasStarted(pod) ? 'started' : waiting,
    isMadeAgain: (metadata?.ownerReferences ?? []).some(isReplacing),
  };
}

/** A Job may count the pod as failed and give up; of what others do with theirs nobody knows. */
const REPLACING = ['apps/ReplicaSet', 'apps/StatefulSet', 'apps/DaemonSet', 'v1/ReplicationController'];

const isReplacing = ({ apiVersion, kind, controller }: V1OwnerReference): boolean =>
  controller === true && REPLACING.includes(`${apiVersion.replace(/^apps\/.*/, 'apps')}/${kind}`);

/** Whether any container has begun, of whatever kind. */
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
