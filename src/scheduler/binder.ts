// Binds pods: decides on the ledger as it stands, books at once, and writes node and grant in one call. Between the judgement of
// who leads and the booking nothing else runs, so no two decisions see the same room. Owns what is under way; what bound pods
// have comes from the watch (cluster.ts).
import { setTimeout as delay } from 'node:timers/promises';
import { CoreV1Api, type KubeConfig, type V1Binding, type V1Pod } from '@kubernetes/client-node';
import { problemOf } from '../kube/problem.ts';
import { within } from '../kube/within.ts';
import type { Ledger } from '../placement/ledger.ts';
import { needOf } from '../placement/need.ts';
import { type ContainerGrant, formatPodGrant } from '../placement/pod-grant.ts';
import { GRANT_ANNOTATION, REQUEST_ANNOTATION, uuidsAnnotation } from '../request/names.ts';
import type { Decider, Shape } from './decide.ts';
import type { Leadership } from './leadership.ts';

export type BindingRequest = {
  readonly podName: string;
  readonly podNamespace: string;
  readonly podUid: string;
  readonly node: string;
};

/** `refused`: it does not fit, or must not be bound by this replica. `failed`: the API server did not take it. */
export type Bound =
  | { readonly outcome: 'bound' }
  | { readonly outcome: 'refused' | 'failed'; readonly because: string };

export type Binder = {
  bind(request: BindingRequest): Promise<Bound>;
  /** What filter saw of a pod, so that bind need not ask for it. */
  remember(podUid: string, shape: Shape): void;
  /** True while a booking is not yet shown by the watch and was not there for a list that began at `listedMs`. */
  isUnderWay(podUid: string, listedMs: number): boolean;
  /** The watch shows it, or shows that it has gone. */
  settle(podUid: string): void;
  readonly underWay: number;
};

/** Longest list of pods that were filtered and not bound yet. */
const MOST_REMEMBERED = 20_000;
const POST_MS = 5000;
/** Who asked has given up by then, and the pod may be on its way to another node. */
const DECIDE_MS = 8000;
/** Answers that say that nothing was written. */
const REFUSALS = [400, 401, 403, 404, 405, 409, 413, 422, 429];
/** Between the times that the pod is asked for what became of it. */
const ASK_AGAIN_MS = [250, 1000];

export type BinderParts = {
  readonly config: KubeConfig;
  readonly ledger: Ledger;
  readonly decider: Decider;
  readonly leadership: Leadership;
  /** Reads all bound pods again, as the API server has them now. */
  readonly relist: () => Promise<void>;
  readonly log: (line: string) => void;
};

export function createBinder({ config, ledger, decider, leadership, relist, log }: BinderParts): Binder {
  const api = config.makeApiClient(CoreV1Api);
  const remembered = new Map<string, Shape>();
  const running = new Map<string, { readonly node: string; readonly bound: Promise<Bound> }>();
  /** Booked here; `writtenMs` once the API server has it. */
  const underWay = new Map<string, { writtenMs: number | undefined }>();
  let readyFor: number | undefined;
  let reading: { readonly epoch: number; readonly done: Promise<void> } | undefined;

  /** A new leader looks at what the one before has bound until its end. */
  const takeOver = async (epoch: number): Promise<void> => {
    if (readyFor === epoch) return;
    if (reading?.epoch !== epoch) {
      const done = relist().then(() => {
        readyFor = epoch;
        log(`leads with epoch ${epoch}: read what is bound`);
      });
      reading = { epoch, done };
    }
    await reading.done;
  };

  const shapeOf = async ({ podUid, podName, podNamespace }: BindingRequest): Promise<Shape | { wrong: string }> => {
    const known = remembered.get(podUid);
    if (known) return known;
    const pod = await readPod(api, podNamespace, podName);
    if (pod?.metadata?.uid !== podUid) return { wrong: `there is no pod ${podNamespace}/${podName} of uid ${podUid}` };
    return decider.read(pod.metadata.annotations?.[REQUEST_ANNOTATION]);
  };

  const bindOnce = async (request: BindingRequest): Promise<Bound> => {
    const { podUid, node } = request;
    const askedMs = performance.now();
    const leading = leadership.state();
    if (!leading.leads) return refused(`this replica does not bind: ${leading.because}`);
    await takeOver(leading.epoch);
    const shape = await shapeOf(request);
    if ('wrong' in shape) return refused(shape.wrong);
    // From here to the booking nothing waits.
    const still = leadership.state();
    if (!still.leads || still.epoch !== leading.epoch) return refused('this replica does not lead any more');
    if (performance.now() - askedMs > DECIDE_MS) return refused('what is bound could not be read in time');
    if (ledger.bookingOf(podUid)) return refused('the pod has a grant already');
    const placed = decider.on(shape, node);
    if (!placed.ok) return refused(`node ${node}: ${placed.reason()}`);
    ledger.book({ podUid, nodeName: node, need: needOf(placed.containers) });
    underWay.set(podUid, { writtenMs: undefined });
    const binding = bindingOf(request, leading.epoch, placed.containers);
    const bound = await write(request, binding);
    if (bound.outcome === 'bound') remembered.delete(podUid);
    return bound;
  };

  const write = async (request: BindingRequest, body: V1Binding): Promise<Bound> => {
    const { podUid, podName: name, podNamespace: namespace } = request;
    const written = (): Bound => {
      // The watch may have been quicker.
      const own = underWay.get(podUid);
      if (own) own.writtenMs = performance.now();
      return { outcome: 'bound' };
    };
    const notWritten = (because: string): Bound => {
      if (underWay.delete(podUid)) ledger.release(podUid);
      return { outcome: 'failed', because };
    };
    try {
      await within(POST_MS, api.createNamespacedPodBinding({ name, namespace, body }));
      return written();
    } catch (error) {
      const code = (error as { code?: unknown }).code;
      const because = `the binding was not taken: ${problemOf(error)}`;
      if (typeof code === 'number' && code !== 409 && REFUSALS.includes(code)) return notWritten(because);
      // Nobody said whether it was written; 409 may be the echo of our own.
      for (const pauseMs of [0, ...ASK_AGAIN_MS]) {
        await delay(pauseMs);
        try {
          const pod = await within(POST_MS, readPod(api, namespace, name));
          const key = GRANT_ANNOTATION;
          const ours = pod?.metadata?.annotations?.[key] === body.metadata?.annotations?.[key];
          if (pod?.metadata?.uid === podUid && pod.spec?.nodeName === request.node && ours) return written();
          return notWritten(because);
        } catch (problem) {
          log(`whether pod ${namespace}/${name} was bound is not known yet: ${problemOf(problem)}`);
        }
      }
      // The room stays taken until a list shows which it was.
      written();
      relist().catch((problem) => log(`what is bound could not be read: ${problemOf(problem)}`));
      return { outcome: 'failed', because };
    }
  };

  return {
    bind(request) {
      const known = running.get(request.podUid);
      if (known?.node === request.node) return known.bound;
      if (known) return Promise.resolve(refused(`the pod is being bound to node ${known.node}`));
      const bound = bindOnce(request)
        .catch((error): Bound => ({ outcome: 'failed', because: problemOf(error) }))
        .finally(() => running.delete(request.podUid));
      running.set(request.podUid, { node: request.node, bound });
      return bound;
    },
    remember(podUid, shape) {
      remembered.delete(podUid);
      remembered.set(podUid, shape);
      const [oldest] = remembered.keys();
      if (remembered.size > MOST_REMEMBERED && oldest !== undefined) remembered.delete(oldest);
    },
    isUnderWay(podUid, listedMs) {
      const own = underWay.get(podUid);
      return own !== undefined && (own.writtenMs === undefined || own.writtenMs >= listedMs);
    },
    settle: (podUid) => void underWay.delete(podUid),
    get underWay() {
      return underWay.size;
    },
  };
}

const refused = (because: string): Bound => ({ outcome: 'refused', because });

/** Node and grant in one write: the API server puts a Binding's annotations on the pod. */
export function bindingOf(
  { podName, podNamespace, podUid, node }: BindingRequest,
  epoch: number,
  containers: readonly ContainerGrant[],
): V1Binding {
  const uuids = containers.map(({ name, cards }) => [
    uuidsAnnotation(name),
    cards.map(({ gpuUuid }) => gpuUuid).join(','),
  ]);
  const annotations = { [GRANT_ANNOTATION]: formatPodGrant({ epoch, containers }), ...Object.fromEntries(uuids) };
  return {
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name: podName, namespace: podNamespace, uid: podUid, annotations },
    target: { apiVersion: 'v1', kind: 'Node', name: node },
  };
}

async function readPod(api: CoreV1Api, namespace: string, name: string): Promise<V1Pod | undefined> {
  try {
    return await api.readNamespacedPod({ namespace, name });
  } catch (error) {
    if ((error as { code?: unknown }).code === 404) return undefined;
    throw error;
  }
}
