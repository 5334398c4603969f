// What a bound pod takes, read from its annotations. Pure. A grant that cannot be read closes the cards that its text names: the
// pod may be using them, and nobody knows how much.
import type { V1Pod } from '@kubernetes/client-node';
import type { Booking } from '../placement/ledger.ts';
import { needOf } from '../placement/need.ts';
import { parsePodGrant } from '../placement/pod-grant.ts';
import { GRANT_ANNOTATION, UUIDS_PREFIX } from '../request/names.ts';

export type BoundPod =
  /** Not bound, done, or without a grant: it takes nothing (the agent gives a pod nothing that has no grant). */
  | { readonly kind: 'nothing' }
  | { readonly kind: 'booking'; readonly booking: Booking }
  | { readonly kind: 'unreadable'; readonly booking: Booking; readonly why: string };

/** Bound, and not at its end, whose containers may hold cards. */
export const HOLDERS = 'spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed';

export const podName = ({ metadata }: V1Pod): string => `${metadata?.namespace ?? ''}/${metadata?.name ?? ''}`;

export function readBoundPod(pod: V1Pod): BoundPod {
  const { metadata, spec, status } = pod;
  const [podUid, nodeName, text] = [metadata?.uid, spec?.nodeName, metadata?.annotations?.[GRANT_ANNOTATION]];
  if (!podUid || !nodeName || text === undefined) return { kind: 'nothing' };
  if (status?.phase === 'Succeeded' || status?.phase === 'Failed') return { kind: 'nothing' };
  const grant = parsePodGrant(text);
  if (!('wrong' in grant)) {
    return { kind: 'booking', booking: { podUid, nodeName, need: needOf(grant.containers) } };
  }
  const uuids = Object.entries(metadata?.annotations ?? {}).filter(([key]) => key.startsWith(UUIDS_PREFIX));
  const named = [text, ...uuids.map(([, value]) => value)].flatMap((value) => value.match(UUID) ?? []);
  const because = `the grant of pod ${podName(pod)} on it cannot be read`;
  const closes = { gpuUuids: [...new Set(named)], because };
  return { kind: 'unreadable', booking: { podUid, nodeName, need: new Map(), closes }, why: grant.wrong };
}

const UUID = /GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/g;
