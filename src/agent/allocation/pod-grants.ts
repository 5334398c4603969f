// Publishes the volume of a pod: verifies its grant against this node and lets the registry create its files, or
// refuses with a reason for the pod's Events.

import { wrongMounts } from '../../api/csi-volume.ts';
import type { PodGrant } from '../../api/grant-annotation.ts';
import type { Mode } from '../../api/request.ts';
import { field } from '../../common/json.ts';
import { err, ok, type Result } from '../../common/result.ts';
import { effectiveMode } from '../../policy/mode.ts';
import { computeChoice } from '../compute/pod-annotations.ts';
import { requestedMode } from '../enforcement/pod-mode.ts';
import { podUidOf } from '../grants/grant.ts';
import type { Refusal } from '../grants/refusal.ts';
import type { PodShare, Registry } from '../grants/registry.ts';
import type { NodeState } from '../usage/node-usage.ts';
import { nodeGpus, verifyGrant } from './verify-grant.ts';

/** A pod for which the kubelet calls NodePublishVolume. */
export type PodVolume = {
  readonly podUid: string;
  readonly namespace: string;
  readonly pod: string;
  readonly target: string;
  /** The pod as the API server has it. */
  readonly object: unknown;
};

type PublishContext = {
  readonly state: NodeState;
  readonly registry: Registry;
  /** Why nothing may be granted on these GPUs now. */
  readonly notYet: (gpuUuids: readonly string[], byDriver: boolean) => Refusal | undefined;
  /** The node's enforcement mode. */
  readonly mode: Mode;
};

export const annotationsOf = ({ object }: PodVolume): unknown => field(field(object, 'metadata'), 'annotations');

/** For a new volume: creates its files if the grant is valid on this node now. */
export function publishPod(
  volume: PodVolume,
  { state, registry, notYet, mode }: PublishContext,
): Result<PodGrant, Refusal> {
  const { podUid, object } = volume;
  // A pod that has ended according to the API server may still run: its grant ends when the kubelet unpublishes its
  // volume.
  const others = registry.list().flatMap(({ grant }) => (podUidOf(grant) === podUid ? [] : [grant]));
  const annotations = annotationsOf(volume);
  const ruling = verifyGrant(annotations, nodeGpus(state, others));
  if (!ruling.ok) return err({ refused: ruling.why, later: ruling.later });
  const { containers } = ruling.grant;
  const wrong = wrongMounts(object, new Set(containers.map(({ name }) => name)));
  if (wrong !== undefined) return err({ refused: wrong });
  const isEnforced = effectiveMode(mode, requestedMode(annotations)).mode === 'enforce';
  const gpuUuids = containers.flatMap(({ gpus }) => gpus.map(({ gpuUuid }) => gpuUuid));
  const wait = notYet(gpuUuids, isEnforced);
  // Isolation may work again later: the pod then starts.
  if (wait) return err({ ...wait, later: true });
  registry.createPod(sharesOf(volume, ruling.grant), { inUse: false });
  return ok(ruling.grant);
}

/**
 * For a volume that is mounted already, after the agent lost its grant: the grant was valid once, so it is registered
 * again whatever the present health and free memory of its GPUs.
 */
export function adoptPod(volume: PodVolume, { state, registry }: PublishContext): Result<PodGrant, Refusal> {
  const gpus = nodeGpus(state, []).map((gpu) => ({ ...gpu, healthy: true }));
  const ruling = verifyGrant(annotationsOf(volume), gpus);
  if (!ruling.ok) return err({ refused: ruling.why, later: ruling.later });
  registry.createPod(sharesOf(volume, ruling.grant), { inUse: true });
  return ok(ruling.grant);
}

function sharesOf(volume: PodVolume, grant: PodGrant): readonly PodShare[] {
  const { podUid, namespace, pod, target } = volume;
  const annotations = annotationsOf(volume);
  return grant.containers.map(({ name, kind, initIndex, memoryIsolation, gpus }) => ({
    namespace,
    pod,
    container: name,
    ...computeChoice(annotations, name, gpus),
    isolateMemory: memoryIsolation === 'on',
    enforcement: requestedMode(annotations),
    owner: { podUid, target, kind, ...(initIndex !== undefined && { initIndex }) },
  }));
}
