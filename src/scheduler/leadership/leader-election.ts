// Leader election of the extender: by the Lease that kube-scheduler holds in the same pod, or by one that this process
// holds for a kube-scheduler elsewhere. Talks to the API server; lease.ts judges.
import { randomUUID } from 'node:crypto';
import type { V1Lease } from '@kubernetes/client-node';
import { createRounds } from '../../common/rounds.ts';
import { describeApiError, retryAfterMsOf, statusOf, unlessMissing } from '../../kube/api-error.ts';
import { callApi, pathOf } from '../../kube/call.ts';
import type { ApiConfig } from '../../kube/config.ts';
import { listAndWatch } from '../../kube/list-watch.ts';
import { heldBy, judgeLease, type LeadershipState, type ObservedLease, observeLease, termOf } from './lease.ts';

export type LeaseName = { readonly namespace: string; readonly name: string };

export type Leadership = {
  /** As of now. */
  state(): LeadershipState;
  /** Resolves when the Lease was read once. */
  readonly ready: Promise<void>;
  close(): Promise<void>;
};

const now = () => ({ monotonicMs: performance.now(), wallMs: Date.now() });

/** Watches the Lease of the kube-scheduler in this pod. */
export function followLease(
  config: ApiConfig,
  { namespace, name }: LeaseName,
  hostname: string,
  onProblem: (text: string) => void,
): Leadership {
  const fieldSelector = `metadata.name=${name}`;
  let lease: ObservedLease | undefined;
  const observe = (object: V1Lease) => {
    lease = observeLease(object, lease, performance.now());
  };
  const forget = () => {
    lease = undefined;
  };
  const watch = listAndWatch(config, {
    path: `/apis/coordination.k8s.io/v1/namespaces/${namespace}/leases`,
    query: { fieldSelector },
    keep: (object: V1Lease) => object,
    onList: ([object]) => (object ? observe(object) : forget()),
    onChange: observe,
    onGone: forget,
    onProblem: (text) => onProblem(`the watch of the Lease ${namespace}/${name} failed and is retried: ${text}`),
  });
  return {
    state: () => judgeLease(lease, `${namespace}/${name}`, hostname, now()),
    ready: watch.ready,
    close: watch.close,
  };
}

// What kube-scheduler uses by default: a leader that could not renew for RENEW_WITHIN_MS stops before others may start.
const DURATION_S = 15;
const RENEW_WITHIN_MS = 10_000;
const EVERY_MS = 2000;
/** One call without an answer leaves time for another round. */
const CALL_MS = 3000;
const LEASES = '/apis/coordination.k8s.io/v1';

/** Holds the Lease in this process: acquires it when it has expired, renews it, and releases it at the end. */
export function holdLease(
  config: ApiConfig,
  { namespace, name }: LeaseName,
  hostname: string,
  onProblem: (text: string) => void,
): Leadership {
  const fullName = `${namespace}/${name}`;
  const lease = createLeaseWriter(config, { namespace, name }, `${hostname}_${randomUUID()}`);
  const { promise: ready, resolve: firstRead } = Promise.withResolvers<void>();

  const acquireOrRenew = async (): Promise<number> => {
    try {
      await lease.acquireOrRenew();
      firstRead();
      return 0;
    } catch (error) {
      if (statusOf(error) !== 409)
        onProblem(`cannot acquire or renew the Lease ${fullName}: ${describeApiError(error)}`);
      // A leader tries once more before the Lease counts as lost, however busy the API server says it is.
      const leftMs = (lease.held?.untilMs ?? 0) - performance.now();
      return leftMs > 0 ? Math.min(retryAfterMsOf(error), leftMs - CALL_MS) : retryAfterMsOf(error);
    }
  };

  const rounds = createRounds(acquireOrRenew, EVERY_MS);
  rounds.start();
  return {
    ready,
    state() {
      const { held } = lease;
      if (held && performance.now() < held.untilMs)
        return { leads: true, epoch: held.lease.transitions, term: termOf(held.lease) };
      if (held) return { leads: false, because: `this replica could not renew the Lease ${fullName} in time` };
      return { leads: false, because: heldBy(fullName, lease.observed?.holder, hostname) };
    },
    async close() {
      await rounds.close();
      try {
        await lease.release();
      } catch (error) {
        onProblem(`cannot release the Lease ${fullName}: ${describeApiError(error)}`);
      }
    },
  };
}

type HeldLease = { readonly lease: ObservedLease; readonly untilMs: number };

/** Writes the Lease for one holder, and knows what it saw of it last. */
function createLeaseWriter(config: ApiConfig, { namespace, name }: LeaseName, holderIdentity: string) {
  const path = pathOf(namespace, 'leases', name, LEASES);
  const call = (method: 'GET' | 'PUT', body?: object): Promise<V1Lease> =>
    callApi(config, { method, path, ...(body && { body }), withinMs: CALL_MS });
  let held: HeldLease | undefined;
  let observed: ObservedLease | undefined;
  return {
    get held() {
      return held;
    },
    get observed() {
      return observed;
    },
    async acquireOrRenew(): Promise<void> {
      const startedMs = performance.now();
      const hold = (lease: V1Lease) => {
        held = { lease: observeLease(lease, undefined, startedMs), untilMs: startedMs + RENEW_WITHIN_MS };
      };
      // With six digits, as the API server requires.
      const at = new Date().toISOString().replace('Z', '000Z');
      const spec = { holderIdentity, leaseDurationSeconds: DURATION_S, renewTime: at };
      const lease = await unlessMissing(call('GET'));
      if (!lease) {
        const body = { metadata: { namespace, name }, spec: { ...spec, acquireTime: at, leaseTransitions: 0 } };
        const all = pathOf(namespace, 'leases', undefined, LEASES);
        hold(await callApi(config, { method: 'POST', path: all, body, withinMs: CALL_MS }));
        return;
      }
      observed = observeLease(lease, observed, startedMs);
      const isOurs = observed.holder === holderIdentity;
      if (!isOurs && observed.holder !== '' && startedMs < observed.seenMs + observed.durationMs) {
        held = undefined;
        return;
      }
      const acquired = { acquireTime: at, leaseTransitions: observed.transitions + 1 };
      const body = { ...lease, spec: { ...lease.spec, ...spec, ...(isOurs ? {} : acquired) } };
      // Carries the resource version that was read: of two replicas that try, one is refused.
      hold(await call('PUT', body));
    },
    async release(): Promise<void> {
      if (!held) return;
      held = undefined;
      const lease = await call('GET');
      if (lease.spec?.holderIdentity !== holderIdentity) return;
      const spec = { ...lease.spec, holderIdentity: '', leaseDurationSeconds: 1 };
      await call('PUT', { ...lease, spec });
    },
  };
}
