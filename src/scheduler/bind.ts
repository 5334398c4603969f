// Binds pods: decides on the ledger as it stands, books at once, and has node and grant written in one call. Between the
// judgement of who leads and the booking nothing else runs, so no two decisions see the same room. Owns what is under way; what
// bound pods have comes from the watch (cluster.ts).
import { setTimeout as delay } from 'node:timers/promises';
import type { KubeConfig } from '@kubernetes/client-node';
import { REQUEST_ANNOTATION } from '../api/names.ts';
import { problemOf } from '../kube/api-error.ts';
import type { Ledger } from '../placement/allocations.ts';
import { needOf } from '../placement/demand.ts';
import { type BindingRequest, bindingOf, createBindingWriter, type Fate } from './binding-writer.ts';
import type { Decider, Shape } from './filter-and-score.ts';
import type { Leadership } from './leader-election.ts';
import { createRemembered } from './request-cache.ts';

/** `refused`: it does not fit, or must not be bound by this replica. `failed`: the API server did not take it. */
export type Bound =
  | { readonly outcome: 'bound' }
  | { readonly outcome: 'refused' | 'failed'; readonly because: string };

export type Binder = {
  bind(request: BindingRequest): Promise<Bound>;
  /** What filter saw of a pod, so that bind need not ask for it. */
  remember(podUid: string, request: string): void;
  /** True while a booking is not yet shown by the watch and was not there for a list that began at `listedMs`. */
  isUnderWay(podUid: string, listedMs: number): boolean;
  /** The watch shows it, or shows that it has gone. */
  settle(podUid: string): void;
  readonly underWay: number;
  close(): void;
};

export type BinderTimes = {
  /** For how long who asked waits for a binding's answer. */
  readonly answerMs: number;
  /** So long after its beginning a write cannot happen any more: the API server's own 60 s for a request, and some. */
  readonly landsMs: number;
  /** What was written and is not shown for so long may have ended without a word. */
  readonly shownMs: number;
};

const TIMES: BinderTimes = { answerMs: 5000, landsMs: 75_000, shownMs: 30_000 };
/** Who asked has given up by then, and the pod may be on its way to another node. */
const DECIDE_MS = 8000;

export type BinderParts = {
  readonly config: KubeConfig;
  readonly ledger: Ledger;
  readonly decider: Decider;
  readonly leadership: Leadership;
  /** Reads all bound pods again, as the API server has them now. */
  readonly relist: () => Promise<void>;
  readonly times?: BinderTimes;
  readonly log: (line: string) => void;
};

/** Booked here; `writtenMs` once the API server has it. */
type UnderWay = { readonly node: string; writtenMs: number | undefined };

export function createBinder(parts: BinderParts): Binder {
  const { config, ledger, decider, leadership, relist, times = TIMES, log } = parts;
  const closing = new AbortController();
  const writer = createBindingWriter({ config, landsMs: times.landsMs, closed: closing.signal, log });
  const remembered = createRemembered(() => performance.now());
  const running = new Map<string, { readonly node: string; readonly bound: Promise<Bound> }>();
  const underWay = new Map<string, UnderWay>();
  let readyFor: string | undefined;
  let reading: { readonly term: string; readonly done: Promise<void> } | undefined;

  /** A new leader looks at what the one before has bound until its end. */
  const takeOver = async (term: string, epoch: number): Promise<void> => {
    if (readyFor === term) return;
    if (reading?.term !== term) {
      const done = relist().then(() => {
        readyFor = term;
        log(`leads with epoch ${epoch}: read what is bound`);
      });
      reading = { term, done };
    }
    await reading.done;
  };

  const shapeOf = async (request: BindingRequest): Promise<Shape | { wrong: string }> => {
    const { podUid, podName, podNamespace } = request;
    const known = remembered.get(podUid);
    if (known !== undefined) return decider.read(known);
    const pod = await writer.readPod(request);
    if (pod?.metadata?.uid !== podUid) return { wrong: `there is no pod ${podNamespace}/${podName} of uid ${podUid}` };
    return decider.read(pod.metadata.annotations?.[REQUEST_ANNOTATION]);
  };

  const bindOnce = async (request: BindingRequest): Promise<Bound> => {
    const { podUid, node } = request;
    const askedMs = performance.now();
    const leading = leadership.state();
    if (!leading.leads) return refused(`this replica does not bind: ${leading.because}`);
    await takeOver(leading.term, leading.epoch);
    const shape = await shapeOf(request);
    if ('wrong' in shape) return refused(shape.wrong);
    // From here to the booking nothing waits.
    const still = leadership.state();
    if (!still.leads || still.term !== leading.term) return refused('this replica does not lead any more');
    if (performance.now() - askedMs > DECIDE_MS) return refused('what is bound could not be read in time');
    const before = underWay.get(podUid);
    if (before && before.writtenMs === undefined) return refused(unknownYet(before.node));
    if (ledger.bookingOf(podUid)) return refused('the pod has a grant already');
    const placed = decider.on(shape, node);
    if (!placed.ok) return refused(`node ${node}: ${placed.reason()}`);
    ledger.book({ podUid, nodeName: node, need: needOf(placed.containers) });
    const own: UnderWay = { node, writtenMs: undefined };
    underWay.set(podUid, own);
    const written = writer
      .write(request, bindingOf(request, leading.epoch, placed.containers))
      .then((fate) => conclude(podUid, own, fate));
    return beforeAnswer(written, node);
  };

  const conclude = (podUid: string, own: UnderWay, fate: Fate): Bound => {
    // The watch may have been quicker.
    const isOpen = underWay.get(podUid) === own;
    if (fate.kind === 'written') {
      own.writtenMs = performance.now();
      remembered.forget(podUid);
      return { outcome: 'bound' };
    }
    if (fate.kind === 'unknown') return { outcome: 'failed', because: unknownYet(own.node) };
    if (isOpen) {
      underWay.delete(podUid);
      ledger.release(podUid);
    }
    return { outcome: 'failed', because: fate.because };
  };

  /** The room stays taken behind an answer that is given before it is known what became of the binding. */
  const beforeAnswer = async (written: Promise<Bound>, node: string): Promise<Bound> => {
    const answered = new AbortController();
    const late = delay(times.answerMs, undefined, { signal: answered.signal, ref: false }).then(
      (): Bound => ({ outcome: 'failed', because: unknownYet(node) }),
    );
    late.catch(() => undefined);
    try {
      return await Promise.race([written, late]);
    } finally {
      answered.abort();
    }
  };

  let looking = false;
  /** A pod that ended as soon as it was bound is in no list, and no event tells of it any more. */
  const lookForLost = async (): Promise<void> => {
    const nowMs = performance.now();
    const lost = [...underWay.values()].some(
      ({ writtenMs }) => writtenMs !== undefined && nowMs - writtenMs > times.shownMs,
    );
    if (looking || !lost) return;
    looking = true;
    await relist();
    looking = false;
  };
  const timer = setInterval(() => void lookForLost(), times.shownMs / 6);
  timer.unref();

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
    remember: remembered.put,
    isUnderWay(podUid, listedMs) {
      const own = underWay.get(podUid);
      return own !== undefined && (own.writtenMs === undefined || own.writtenMs >= listedMs);
    },
    settle(podUid) {
      underWay.delete(podUid);
      remembered.forget(podUid);
    },
    get underWay() {
      return underWay.size;
    },
    close() {
      clearInterval(timer);
      closing.abort();
    },
  };
}

const refused = (because: string): Bound => ({ outcome: 'refused', because });

const unknownYet = (node: string): string =>
  `whether the pod was bound to node ${node} is not known yet, and its room there stays taken until it is`;
