// A small API server for the extender's tests: nodes, pods, one Lease, bindings; and a binding that goes wrong in a
// chosen way. What a real one does with them is seen in test/cluster; this one fails on demand.
import type { ServerResponse } from 'node:http';
import type {
  CoreV1Event,
  KubeConfig,
  V1Binding,
  V1Eviction,
  V1Lease,
  V1Node,
  V1Pod,
  V1PodDisruptionBudget,
} from '@kubernetes/client-node';
import type { ExecutionContext } from 'ava';
import { REQUEST_ANNOTATION } from '../../../src/api/names.ts';
import { formatNodeGpus } from '../../../src/api/node-annotation.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { type Asked, answer, answerList, refuse, startApiServer, watchers } from '../../support/services/api-server.ts';
import { recordOf, uuid } from '../../unit/scheduler/cluster.ts';

/** No test renews a Lease, and a busy machine may take long. */
export const LEASE_SECONDS = 120;

export type BindingFault = 'none' | 'refused' | 'cut-before' | 'cut-after' | 'cut-and-blind';

/** `unanswered`: carried out, and the connection is cut. `busy`: to be tried again after 2 s. */
export type PatchFault = 'none' | 'busy' | 'conflict' | 'forbidden' | 'unanswered';

export type Api = {
  readonly config: KubeConfig;
  fault: BindingFault;
  patchFault: PatchFault;
  /** Of pods and of their status, also those that were refused. */
  readonly patches: V1Pod[];
  /** When they came; milliseconds of a monotonic clock. */
  readonly patchedMs: number[];
  /** What bindings, and lists of pods, wait for before anything is done; and bindings after their connection was
   * cut. */
  hold: { bindings?: Promise<void>; lists?: Promise<void>; afterCut?: Promise<void> };
  readonly pods: Map<string, V1Pod>;
  readonly bindings: V1Binding[];
  /** All that were requested, also those that were refused. */
  readonly evictions: V1Eviction[];
  evictionFault: () => number | undefined;
  readonly budgets: V1PodDisruptionBudget[];
  /** PodGroups of Kubernetes 1.36 by name, with `minCount`; 0: the basic policy. */
  readonly podGroups: Map<string, number>;
  readonly events: CoreV1Event[];
  /** Events are taken, and get no answer. */
  silentEvents: boolean;
  /** How often bound pods were listed. */
  podLists: number;
  /** The extender's own pod, which it marks: there is none, the watch shows the mark, or it waits in `marks`. */
  ownPod: 'absent' | 'shown' | 'held';
  readonly marks: V1Pod[];
  addPod(name: string, mib: number, more?: Partial<V1Pod>): V1Pod;
  /** Sends a change of a pod to all watches. */
  show(type: 'ADDED' | 'MODIFIED' | 'DELETED', pod: V1Pod): void;
  /** `uid`: of the Lease. */
  lead(holder: string, transitions: number, ageMs?: number, uid?: string): void;
  /** Stops answering. */
  close(): void;
  /** Ends all watches. */
  hangUp(): void;
};

export async function startApi(t: ExecutionContext, gpus: Readonly<Record<string, number>>): Promise<Api> {
  let version = 1;
  const watched = {
    nodes: watchers(),
    pods: watchers(),
    nominated: watchers(),
    leases: watchers(),
    poddisruptionbudgets: watchers(),
  };
  const nodes = Object.entries(gpus).map(
    ([name, mib], index): V1Node => ({
      metadata: {
        name,
        resourceVersion: '1',
        annotations: {
          'cotenant.io/gpus': formatNodeGpus({
            mostTenantsPerGpu: 10,
            gpus: [{ gpuUuid: uuid(index), index: 0, model: 'x', usableBytes: mib * MIB, healthy: true }],
          }),
        },
      },
    }),
  );
  let lease: V1Lease | undefined;
  const api: Omit<Api, 'config' | 'close'> = {
    fault: 'none',
    patchFault: 'none',
    patches: [],
    patchedMs: [],
    hold: {},
    pods: new Map(),
    bindings: [],
    evictions: [],
    evictionFault: () => undefined,
    budgets: [],
    podGroups: new Map(),
    events: [],
    silentEvents: false,
    podLists: 0,
    ownPod: 'absent',
    marks: [],
    addPod(name, mib, more = {}) {
      const annotations = { [REQUEST_ANNOTATION]: recordOf(mib) };
      const pod: V1Pod = {
        metadata: { namespace: 'team', name, uid: `uid-${name}`, resourceVersion: String(version++), annotations },
        spec: { containers: [] },
        ...more,
      };
      api.pods.set(name, pod);
      return pod;
    },
    show: (type, pod) => {
      pod.metadata = { ...pod.metadata, resourceVersion: String(version++) };
      const isNominated = pod.status?.nominatedNodeName && !pod.spec?.nodeName;
      (isNominated ? watched.nominated : watched.pods).send(type, pod);
    },
    lead(holder, transitions, ageMs = 0, uid = 'lease') {
      const renewTime = new Date(Date.now() - ageMs).toISOString() as unknown as NonNullable<
        V1Lease['spec']
      >['renewTime'];
      const spec = {
        holderIdentity: holder,
        leaseTransitions: transitions,
        leaseDurationSeconds: LEASE_SECONDS,
        renewTime,
      };
      lease = { metadata: { name: 'l', namespace: 'ns', uid, resourceVersion: String(version++) }, spec } as V1Lease;
      watched.leases.send('MODIFIED', lease);
    },
    hangUp() {
      for (const each of Object.values(watched)) each.hangUp();
    },
  };
  const evict = async ({ body }: Asked, response: ServerResponse) => {
    api.evictions.push((await body()) as V1Eviction);
    const code = api.evictionFault();
    if (code !== undefined) return refuse(response, code, 'not today');
    return answer(response, 201, { kind: 'Status', status: 'Success' });
  };
  /** A merge of annotations, and of conditions by their type. */
  const patch = async ({ body }: Asked, response: ServerResponse, name: string) => {
    const change = (await body()) as V1Pod;
    api.patches.push(change);
    api.patchedMs.push(performance.now());
    const pod = api.pods.get(name);
    if (!pod?.metadata || change.metadata?.uid !== pod.metadata.uid) return refuse(response, 404, 'no such pod');
    const of = change.metadata?.resourceVersion;
    if (change.status === undefined) {
      const { patchFault } = api;
      if (patchFault === 'busy') return refuse(response.setHeader('Retry-After', '2'), 429, 'too many requests');
      if (patchFault === 'forbidden') return refuse(response, 403, 'not today');
      if (patchFault === 'conflict' || (of !== undefined && of !== pod.metadata.resourceVersion))
        return refuse(response, 409, 'it has changed');
      pod.metadata.annotations = { ...pod.metadata.annotations, ...change.metadata?.annotations };
      if (patchFault === 'unanswered') return response.destroy();
    } else {
      const types = change.status.conditions?.map(({ type }) => type) ?? [];
      const others = pod.status?.conditions?.filter(({ type }) => !types.includes(type)) ?? [];
      pod.status = { ...pod.status, conditions: [...others, ...(change.status.conditions ?? [])] };
    }
    api.show('MODIFIED', pod);
    return answer(response, 200, pod);
  };
  const bind = async ({ body }: Asked, response: ServerResponse, name: string) => {
    const binding = (await body()) as V1Binding;
    api.bindings.push(binding);
    await api.hold.bindings;
    if (api.fault === 'cut-before') return response.destroy();
    if (api.hold.afterCut) {
      response.destroy();
      await api.hold.afterCut;
    }
    const pod = api.pods.get(name);
    if (api.fault === 'refused' || !pod?.spec || !pod.metadata) return refuse(response, 403, 'not today');
    // As BindingREST of kube-apiserver does: a Binding's UID is a precondition.
    const { uid } = binding.metadata ?? {};
    if (uid !== undefined && uid !== pod.metadata.uid)
      return refuse(response, 409, `Precondition failed: UID in precondition: ${uid}`);
    if (pod.spec.nodeName) return refuse(response, 409, `pod ${name} is already assigned`);
    pod.spec.nodeName = binding.target.name ?? '';
    pod.metadata.annotations = { ...pod.metadata.annotations, ...binding.metadata?.annotations };
    if (api.fault.startsWith('cut-')) return response.destroy();
    return answer(response, 201, { kind: 'Status', status: 'Success' });
  };
  const handle = async (asked: Asked, response: ServerResponse): Promise<unknown> => {
    const { url, isWatch, body } = asked;
    const [, kind = ''] = /\/(nodes|pods|leases|poddisruptionbudgets)$/.exec(url.pathname) ?? [];
    const [, name = '', verb] =
      /\/namespaces\/team\/pods\/([^/]+)(?:\/(binding|eviction|status))?$/.exec(url.pathname) ?? [];
    if (verb === 'binding') return bind(asked, response, name);
    if (verb === 'eviction') return evict(asked, response);
    if (asked.method === 'PATCH' && name !== '') return patch(asked, response, name);
    if (asked.method === 'PATCH' && url.pathname.endsWith('/namespaces/ns/pods/pod-a') && api.ownPod !== 'absent') {
      const own = { ...((await body()) as V1Pod), spec: { nodeName: 'a', containers: [] } };
      api.marks.push({ ...own, metadata: { ...own.metadata, name: 'pod-a', namespace: 'ns', uid: 'uid-pod-a' } });
      if (api.ownPod === 'shown') for (const one of api.marks.splice(0)) api.show('MODIFIED', one);
      return answer(response, 200, own);
    }
    if (url.pathname.endsWith('/namespaces/team/events')) {
      const event = (await body()) as CoreV1Event;
      const isKnown = api.events.some(({ metadata }) => metadata.name === event.metadata.name);
      if (!isKnown) api.events.push(event);
      return api.silentEvents ? undefined : answer(response, isKnown ? 409 : 201, {});
    }
    if (name !== '') {
      if (api.fault === 'cut-and-blind') return response.destroy();
      const pod = api.pods.get(name);
      return pod ? answer(response, 200, pod) : refuse(response, 404, 'no such pod');
    }
    const group = /\/apis\/scheduling\.k8s\.io\/v1alpha2\/namespaces\/team\/podgroups\/(.+)$/.exec(url.pathname)?.[1];
    const minCount = api.podGroups.get(group ?? '');
    if (minCount !== undefined)
      return answer(response, 200, {
        metadata: { name: group },
        spec: { schedulingPolicy: minCount === 0 ? { basic: {} } : { gang: { minCount } } },
      });
    if (!Object.hasOwn(watched, kind)) return refuse(response, 404, 'what?');
    const known = kind as Exclude<keyof typeof watched, 'nominated'>;
    if (isWatch) return watched[known].add(response);
    const selector = url.searchParams.get('fieldSelector') ?? '';
    if (selector.startsWith('spec.nodeName=')) {
      const unbound = [...api.pods.values()].filter(({ spec }) => !spec?.nodeName);
      if (!selector.includes('nominatedNodeName')) return answerList(response, unbound);
      if (isWatch) return watched.nominated.add(response);
      const nominated = unbound.filter(({ status }) => status?.nominatedNodeName);
      return answerList(response, nominated, String(version));
    }
    if (kind === 'pods') {
      api.podLists += 1;
      await api.hold.lists;
    }
    const bound = [...api.pods.values()].filter(({ spec }) => spec?.nodeName);
    const { budgets: poddisruptionbudgets } = api;
    const items = { nodes, pods: bound, leases: lease ? [lease] : [], poddisruptionbudgets }[known];
    return answerList(response, items, String(version));
  };
  return Object.assign(api, await startApiServer(t, handle));
}
