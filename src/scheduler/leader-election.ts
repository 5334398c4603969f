// Whether this replica may bind: by the Lease that kube-scheduler keeps in the same pod, or by one that is kept here for a
// kube-scheduler elsewhere. Owns talking to the API server about it; the judgement is in lease.ts.
import { randomUUID } from 'node:crypto';
import { CoordinationV1Api, type KubeConfig, type V1Lease, V1MicroTime } from '@kubernetes/client-node';
import { problemOf } from '../kube/api-error.ts';
import { clientOf } from '../kube/client.ts';
import { follow } from '../kube/list-watch.ts';
import { judge, type Leading, type SeenLease, seen, termOf } from './lease.ts';

export type LeaseName = { readonly namespace: string; readonly name: string };

export type Leadership = {
  /** As of now. */
  state(): Leading;
  /** Resolves when it is known who leads. */
  readonly ready: Promise<void>;
  close(): Promise<void>;
};

const now = () => ({ monotonicMs: performance.now(), wallMs: Date.now() });

/** The Lease of the kube-scheduler in this pod, followed. */
export function followLease(
  config: KubeConfig,
  { namespace, name }: LeaseName,
  hostname: string,
  onProblem: (text: string) => void,
): Leadership {
  const api = clientOf(config, CoordinationV1Api);
  const fieldSelector = `metadata.name=${name}`;
  let lease: SeenLease | undefined;
  const learn = (object: V1Lease) => {
    lease = seen(object, lease, performance.now());
  };
  const forget = () => {
    lease = undefined;
  };
  const following = follow(config, {
    path: `/apis/coordination.k8s.io/v1/namespaces/${namespace}/leases`,
    query: { fieldSelector },
    list: () => api.listNamespacedLease({ namespace, fieldSelector }),
    keep: (object: V1Lease) => object,
    onList: ([object]) => (object ? learn(object) : forget()),
    onChange: learn,
    onGone: forget,
    onProblem: (text) => onProblem(`the Lease ${namespace}/${name} cannot be followed: ${text}`),
  });
  return {
    state: () => judge(lease, `${namespace}/${name}`, hostname, now()),
    ready: following.ready,
    close: following.close,
  };
}

// What kube-scheduler uses by default: a leader that could not renew for RENEW_WITHIN_MS stops before others may start.
const DURATION_S = 15;
const RENEW_WITHIN_MS = 10_000;
const EVERY_MS = 2000;
/** One call without an answer leaves time for another round. */
const CALL_MS = 3000;

/** A Lease kept here: taken when nobody renews it, renewed while it is ours, given back at the end. */
export function keepLease(
  config: KubeConfig,
  { namespace, name }: LeaseName,
  hostname: string,
  onProblem: (text: string) => void,
): Leadership {
  const api = clientOf(config, CoordinationV1Api, CALL_MS);
  const holderIdentity = `${hostname}_${randomUUID()}`;
  const { promise: ready, resolve: asked } = Promise.withResolvers<void>();
  let held: { readonly lease: SeenLease; readonly untilMs: number } | undefined;
  let others: SeenLease | undefined;
  let closing = false;

  const round = async (): Promise<void> => {
    const startedMs = performance.now();
    const hold = (lease: V1Lease) => {
      held = { lease: seen(lease, undefined, startedMs), untilMs: startedMs + RENEW_WITHIN_MS };
    };
    const at = new V1MicroTime();
    const spec = { holderIdentity, leaseDurationSeconds: DURATION_S, renewTime: at };
    let lease: V1Lease;
    try {
      lease = await api.readNamespacedLease({ namespace, name });
    } catch (error) {
      if ((error as { code?: number }).code !== 404) throw error;
      const body = { metadata: { namespace, name }, spec: { ...spec, acquireTime: at, leaseTransitions: 0 } };
      hold(await api.createNamespacedLease({ namespace, body }));
      return;
    }
    others = seen(lease, others, startedMs);
    const ours = others.holder === holderIdentity;
    if (!ours && others.holder !== '' && startedMs < others.seenMs + others.durationMs) {
      held = undefined;
      return;
    }
    const taken = { acquireTime: at, leaseTransitions: others.transitions + 1 };
    const body = { ...lease, spec: { ...lease.spec, ...spec, ...(ours ? {} : taken) } };
    // The resource version that was read goes with it: of two that try, one is refused.
    hold(await api.replaceNamespacedLease({ namespace, name, body }));
  };
  const run = async (): Promise<void> => {
    while (!closing) {
      try {
        await round();
        asked();
      } catch (error) {
        if ((error as { code?: number }).code !== 409)
          onProblem(`the Lease ${namespace}/${name} cannot be kept: ${problemOf(error)}`);
      }
      await pause();
    }
  };
  let wake: (() => void) | undefined;
  const pause = async (): Promise<void> => {
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, EVERY_MS);
    wake = resolve;
    if (closing) resolve();
    await promise;
    clearTimeout(timer);
  };
  const ran = run();
  return {
    ready,
    state() {
      if (held && performance.now() < held.untilMs)
        return { leads: true, epoch: held.lease.transitions, term: termOf(held.lease) };
      if (held) return { leads: false, because: `the Lease ${namespace}/${name} could not be renewed in time` };
      return {
        leads: false,
        because: `${others?.holder || 'nobody'} holds the Lease ${namespace}/${name}, not ${hostname}`,
      };
    },
    async close() {
      closing = true;
      wake?.();
      await ran;
      if (!held) return;
      held = undefined;
      try {
        const lease = await api.readNamespacedLease({ namespace, name });
        if (lease.spec?.holderIdentity !== holderIdentity) return;
        await api.replaceNamespacedLease({
          namespace,
          name,
          body: { ...lease, spec: { ...lease.spec, holderIdentity: '', leaseDurationSeconds: 1 } },
        });
      } catch (error) {
        onProblem(`the Lease ${namespace}/${name} could not be given back: ${problemOf(error)}`);
      }
    },
  };
}
