// The ledger as the cluster has it: a watch of nodes for their GPUs, and of bound pods for their grants. Owns keeping it so;
// of pods it keeps besides what evictor.ts must know, and nothing else of either.
import { CoreV1Api, type KubeConfig, type V1Node, type V1Pod } from '@kubernetes/client-node';
import { nodeGpusText } from '../api/earlier-names.ts';
import { GPUS_ANNOTATION, GRANT_ANNOTATION } from '../api/names.ts';
import { parseNodeGpus } from '../api/node-annotation.ts';
import { clientOf, PAGE_MS } from '../kube/client.ts';
import { follow } from '../kube/list-watch.ts';
import type { Ledger } from '../placement/allocations.ts';
import { type BoundPod, type BoundPodFacts, HOLDERS, readBoundPod } from './bound-pod.ts';

export type ClusterHooks = {
  readonly onProblem: (of: 'nodes' | 'pods', text: string) => void;
  readonly isUnderWay: (podUid: string, listedMs: number) => boolean;
  readonly settle: (podUid: string) => void;
  /** Told once for each text that cannot be read. */
  readonly onUnreadable: (text: string) => void;
};

export type Cluster = {
  /** Resolves when nodes and pods were read once. */
  readonly ready: Promise<void>;
  relistPods(): Promise<void>;
  /** Those with a grant that can be read, by UID. */
  readonly boundPods: ReadonlyMap<string, BoundPodFacts>;
  /** Bound pods whose grant, and nodes whose GPUs, cannot be read. */
  readonly unreadable: { readonly pods: number; readonly nodes: number };
  close(): Promise<void>;
};

type KeptNode = { readonly name: string; readonly text: string | undefined };
/** `text`: what decides whether the grant has changed; empty without one. */
type KeptPod = { readonly podUid: string; readonly read: BoundPod; readonly text: string };

const NOTHING: BoundPod = { kind: 'nothing' };

function keepPod(pod: V1Pod): KeptPod {
  const { metadata, spec } = pod;
  const podUid = metadata?.uid ?? '';
  const read = readBoundPod(pod);
  // Most pods of a cluster have no grant: one object serves all of them.
  if (read.kind === 'nothing') return { podUid, read: NOTHING, text: '' };
  return { podUid, read, text: `${spec?.nodeName} ${metadata?.annotations?.[GRANT_ANNOTATION]}` };
}

export function followCluster(config: KubeConfig, ledger: Ledger, hooks: ClusterHooks): Cluster {
  const api = clientOf(config, CoreV1Api, PAGE_MS);
  const boundPods = new Map<string, BoundPodFacts>();
  const badPods = new Map<string, string>();
  const badNodes = new Map<string, string>();
  // Nodes and pods are written all the time; what is read of them here hardly ever changes.
  const gpusText = new Map<string, string>();
  const grantText = new Map<string, string>();
  const complain = (bad: Map<string, string>, key: string, text: string) => {
    if (bad.get(key) !== text) hooks.onUnreadable(text);
    bad.set(key, text);
  };

  const forgetNode = (name: string) => {
    ledger.removeNode(name);
    gpusText.delete(name);
    badNodes.delete(name);
  };
  const learnNode = ({ name, text }: KeptNode) => {
    if (text === undefined) return forgetNode(name);
    if (gpusText.get(name) === text) return;
    const gpus = parseNodeGpus(text);
    if (!gpus.ok) {
      forgetNode(name);
      complain(badNodes, name, `node ${name}: annotation ${GPUS_ANNOTATION} cannot be read: ${gpus.error}`);
    } else {
      badNodes.delete(name);
      ledger.setNode(name, gpus.value);
    }
    gpusText.set(name, text);
  };

  const forgetPod = (podUid: string) => {
    hooks.settle(podUid);
    ledger.release(podUid);
    boundPods.delete(podUid);
    badPods.delete(podUid);
    grantText.delete(podUid);
  };
  const learnPod = ({ podUid, read, text }: KeptPod) => {
    if (read.kind === 'nothing') return forgetPod(podUid);
    if (read.kind === 'booking') boundPods.set(podUid, read.facts);
    else boundPods.delete(podUid);
    if (grantText.get(podUid) === text) return;
    grantText.set(podUid, text);
    hooks.settle(podUid);
    if (read.kind === 'unreadable') complain(badPods, podUid, `pod ${read.pod}: its grant cannot be read: ${read.why}`);
    else badPods.delete(podUid);
    ledger.book(read.booking);
  };

  const nodes = follow(config, {
    path: '/api/v1/nodes',
    list: (limit, from) => api.listNode({ limit, ...(from !== undefined && { _continue: from }) }),
    keep: ({ metadata }: V1Node): KeptNode => ({
      name: metadata?.name ?? '',
      text: nodeGpusText(metadata?.annotations),
    }),
    onList(items) {
      const there = new Set(items.map(({ name }) => name));
      for (const name of [...gpusText.keys()]) if (!there.has(name)) forgetNode(name);
      for (const node of items) learnNode(node);
    },
    onChange: learnNode,
    onGone: ({ name }) => forgetNode(name),
    onProblem: (text) => hooks.onProblem('nodes', text),
  });
  const pods = follow(config, {
    path: '/api/v1/pods',
    query: { fieldSelector: HOLDERS },
    list: (limit, from) =>
      api.listPodForAllNamespaces({ fieldSelector: HOLDERS, limit, ...(from !== undefined && { _continue: from }) }),
    keep: keepPod,
    onList(items, startedMs) {
      const there = new Set(items.map(({ podUid }) => podUid));
      for (const { podUid } of [...ledger.bookings()]) {
        if (!there.has(podUid) && !hooks.isUnderWay(podUid, startedMs)) forgetPod(podUid);
      }
      for (const pod of items) learnPod(pod);
    },
    onChange: learnPod,
    onGone: ({ podUid }) => forgetPod(podUid),
    onProblem: (text) => hooks.onProblem('pods', text),
  });
  return {
    ready: Promise.all([nodes.ready, pods.ready]).then(() => undefined),
    relistPods: pods.relist,
    boundPods,
    unreadable: {
      get pods() {
        return badPods.size;
      },
      get nodes() {
        return badNodes.size;
      },
    },
    async close() {
      await Promise.all([nodes.close(), pods.close()]);
    },
  };
}
