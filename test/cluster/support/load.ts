// Pods of one GPU's part that come and go all the time; each prints what it sees of its GPU. Nothing that happens to the
// parts of a cluster may give a pod more than its grant, or GPUs more grants than they have memory.
import { setTimeout as delay } from 'node:timers/promises';
import { parsePodGrant } from '../../../src/api/grant-annotation.ts';
import { GPUS_ANNOTATION, GRANT_ANNOTATION } from '../../../src/api/names.ts';
import { parseNodeGpus } from '../../../src/api/node-annotation.ts';
import { demandOf } from '../../../src/placement/demand.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { NODE_NAME } from '../bed/node.ts';
import { clientOf, MIB, ONE_SHARE, outputOf, type Pod, podOf } from './pods.ts';

/** The namespace of its pods. */
export const LOAD = 'load';
// Four on a GPU beside a small one: both GPUs of a node are full as soon as eight run, and two more wait.
const EACH_MIB = 5120;
const AT_A_TIME = 10;
const EVERY_MS = 700;
/** The longest pause of the kubelet before it starts a container again is 5 minutes, and what a binding without an answer asked
 * for stays reserved for 75 s (docs/operate/scheduler.md). */
const DRAINED_MS = 480_000;
/** Passes its arguments to the client. A container that started while the agent was away has no GPU, so it exits. */
const ENDS_WITHOUT_GPU = [
  '/bin/sh',
  '-c',
  '/bin/client libcuda.so.1 init </dev/null | grep -q "^0 " || exit 1; exec /bin/client libcuda.so.1 "$@"',
];

/** Memory of each GPU that programs can use, as the node's agent published it. */
export async function usableOf(bed: Bed): Promise<ReadonlyMap<string, number>> {
  const node = await bed.api.get<{ metadata: { annotations: Record<string, string> } }>(`/api/v1/nodes/${NODE_NAME}`);
  const read = parseNodeGpus(node?.metadata.annotations[GPUS_ANNOTATION] ?? '');
  if (!read.ok) throw new Error(read.error);
  return new Map(read.value.gpus.map(({ gpuUuid, usableBytes }) => [gpuUuid, usableBytes]));
}

export type Load = {
  /** Throws if something went wrong. */
  check(): void;
  /** Number of pods, from the `first`-th on, that have printed what they see. */
  seenFrom(first: number): number;
  /** Number of the next pod. */
  readonly next: number;
  /** All messages of pods that waited. */
  readonly sentences: ReadonlySet<string>;
  /** Answers of the API server to creations that it did not carry out. */
  readonly refused: readonly string[];
  /** Pods that never printed what they see. */
  leftBehind(): readonly string[];
  /** Creates no more pods; resolves when each pod has printed what it sees and is gone. */
  drain(): Promise<void>;
  stop(): Promise<void>;
};

const everyPod = async (bed: Bed): Promise<readonly Pod[]> =>
  (await bed.api.get<{ items: Pod[] }>('/api/v1/pods'))?.items ?? [];
const ofLoad = ({ metadata }: Pod): boolean => metadata.namespace === LOAD;

/** Memory granted on each GPU to pods that have not ended. */
function granted(pods: readonly Pod[]): Map<string, number> {
  const sums = new Map<string, number>();
  for (const { metadata, status } of pods) {
    const text = metadata.annotations?.[GRANT_ANNOTATION];
    if (text === undefined || status?.phase === 'Succeeded' || status?.phase === 'Failed') continue;
    const grant = parsePodGrant(text);
    if (!grant.ok) throw new Error(`${metadata.name}: ${grant.error}`);
    for (const [uuid, need] of demandOf(grant.value.containers))
      sums.set(uuid, (sums.get(uuid) ?? 0) + need.memoryBytes);
  }
  return sums;
}

/** What a pod printed about its GPU, over all runs of its container; undefined while it has not. */
function sightOf(bed: Bed, pod: Pod): string | undefined {
  const lines = outputOf(bed, pod);
  const answers = lines.map((line) => line.split(' ').map(Number));
  let sight: string | undefined;
  for (const [index, answer] of answers.entries()) {
    const next = answers[index + 1];
    // Only `info` returns three numbers; without a GPU or a driver it fails, and nothing is used.
    if (answer.length !== 3 || answer[0] !== 0 || next === undefined) continue;
    if (answer[2] !== EACH_MIB * MIB || next[0] === 0) return lines.join(' | ');
    sight = 'its slice';
  }
  return sight;
}

/** Creates and deletes pods all the time; each prints the size of its GPU. */
export function startLoad(bed: Bed, usable: ReadonlyMap<string, number>): Load {
  const wrong = new Set<string>();
  const created = new Set<string>();
  const seen = new Set<string>();
  const sentences = new Set<string>();
  const refused: string[] = [];
  let next = 0;
  let [creating, going] = [true, true];
  /** While a part is down requests may be refused; their client gets the reason. */
  const create = async (): Promise<void> => {
    const commands = ['init', 'context 0', 'info', `alloc ${(EACH_MIB + 256) * MIB}`];
    const client = clientOf(ONE_SHARE.own(EACH_MIB), ['sh', ...commands], { command: ENDS_WITHOUT_GPU });
    const pod = podOf(`load-${next}`, [client], { namespace: LOAD });
    const name = `load-${next}`;
    next += 1;
    const { status, body } = await bed.api.ask('POST', `/api/v1/namespaces/${LOAD}/pods`, pod);
    if (status === 201) created.add(name);
    else refused.push(`${name}: ${status} ${JSON.stringify(body)}`);
  };
  const look = (pods: readonly Pod[]): void => {
    for (const [uuid, bytes] of granted(pods))
      if (bytes > (usable.get(uuid) ?? 0)) wrong.add(`${uuid} has given away ${bytes} bytes`);
    for (const pod of pods.filter(ofLoad)) {
      const { metadata, status } = pod;
      const sight = sightOf(bed, pod);
      if (sight === 'its slice') seen.add(metadata.name);
      else if (sight !== undefined) wrong.add(`${metadata.name} sees or gets more than its slice: ${sight}`);
      if (status?.phase === 'Failed' && metadata.deletionTimestamp === undefined)
        wrong.add(`${metadata.name} has failed: ${status.reason}: ${status.message}`);
      for (const { type, status: is, message } of status?.conditions ?? [])
        if (type === 'PodScheduled' && is === 'False' && message !== undefined) sentences.add(message);
    }
  };
  const round = async (): Promise<void> => {
    const pods = await everyPod(bed);
    look(pods);
    const own = pods.filter(ofLoad);
    const live = own.filter(({ metadata }) => metadata.deletionTimestamp === undefined);
    if (creating && live.length < AT_A_TIME) return create();
    const [done] = live.filter(({ metadata }) => seen.has(metadata.name));
    if (done) await bed.api.ask('DELETE', `/api/v1/namespaces/${LOAD}/pods/${done.metadata.name}`);
  };
  const run = async (): Promise<void> => {
    while (going) {
      try {
        await round();
      } catch (error) {
        // The API server is one of the killed parts: if a response is cut off, only the error code names the broken
        // connection.
        const { code = '' } = error as { readonly code?: string };
        if (!/ECONN|socket|50\d/.test(`${code} ${error}`)) wrong.add(String(error));
      }
      await delay(EVERY_MS);
    }
  };
  const ran = run();
  return {
    check() {
      if (wrong.size > 0) throw new Error([...wrong].slice(0, 5).join('\n'));
    },
    seenFrom: (first) => [...seen].filter((name) => Number(name.slice('load-'.length)) >= first).length,
    get next() {
      return next;
    },
    sentences,
    refused,
    leftBehind: () => [...created].filter((name) => !seen.has(name)),
    async drain() {
      creating = false;
      const gone = async () => ((await everyPod(bed)).some(ofLoad) ? undefined : true);
      await eventually(gone, 'each pod has printed what it sees and is gone', DRAINED_MS);
    },
    async stop() {
      going = false;
      await ran;
    },
  };
}
