// What a pod was granted, on its way into the books: ruled by the referee, refused with the reason, or given files. The files are
// the registry's.

import type { PodGrant } from '../../api/grant-annotation.ts';
import type { Mode } from '../../api/request.ts';
import { effectiveMode } from '../../policy/mode.ts';
import { chosenBy } from '../compute/pod-annotations.ts';
import { saidOf } from '../enforcement/pod-mode.ts';
import { podUidOf } from '../grants/grant.ts';
import type { Registry } from '../grants/registry.ts';
import type { NodeState } from '../usage/node-usage.ts';
import type { Refusal } from './process-grants.ts';
import { refereeGpus, rule } from './verify-grant.ts';

/** A pod whose volume the kubelet wants, with what the API server has of it. */
export type PodAsk = {
  readonly podUid: string;
  readonly namespace: string;
  readonly pod: string;
  readonly target: string;
  /** It has the volume and may run with it: what it was granted is in the books in any case. */
  readonly mounted: boolean;
  readonly annotations: unknown;
  /** What is wrong with how it mounts its volume, given the containers with a share. */
  readonly wrongMounts: (shares: ReadonlySet<string>) => string | undefined;
};

/** `notYet`: why nothing may be granted on these GPUs now. */
export function publishPod(
  { podUid, namespace, pod, target, mounted, annotations, wrongMounts }: PodAsk,
  state: NodeState,
  registry: Registry,
  notYet: (gpuUuids: readonly string[], byDriver: boolean) => Refusal | undefined,
  /** Of this node. */
  mode: Mode,
): PodGrant | Refusal {
  // A pod that has ended by the API server's word may still run: what it has is free when the kubelet takes its volume.
  const others = registry.list().flatMap(({ grant }) => (podUidOf(grant) === podUid ? [] : [grant]));
  // What is in use was given once: whatever has become of its GPUs and their room since, the books must tell of it.
  const gpus = mounted ? refereeGpus(state, []).map((gpu) => ({ ...gpu, healthy: true })) : refereeGpus(state, others);
  const ruling = rule(annotations, gpus);
  if (!ruling.ok) return { refused: ruling.why, later: ruling.later };
  const { grant } = ruling;
  if (!mounted) {
    const wrong = wrongMounts(new Set(grant.containers.map(({ name }) => name)));
    if (wrong !== undefined) return { refused: wrong };
    const isEnforced = effectiveMode(mode, saidOf(annotations)).mode === 'enforce';
    const wait = notYet(
      grant.containers.flatMap(({ gpus: own }) => own.map(({ gpuUuid }) => gpuUuid)),
      isEnforced,
    );
    // The fence may be mended: the pod then starts.
    if (wait) return { ...wait, later: true };
  }
  registry.createPod(
    grant.containers.map(({ name, kind, memoryIsolation, gpus: own }) => ({
      namespace,
      pod,
      container: name,
      ...chosenBy(annotations, name, own),
      isolateMemory: memoryIsolation === 'on',
      enforcement: saidOf(annotations),
      owner: { podUid, target, kind },
    })),
    { inUse: mounted },
  );
  return grant;
}
