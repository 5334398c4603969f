// The certificate that the webhook's replicas make themselves: kept in a Secret which all follow and whoever comes first
// renews, its authority written into the webhook's registrations. Owns the calls and their order; what is due is renewal.ts's.
import { X509Certificate } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import {
  AdmissionregistrationV1Api,
  ApiException,
  CoreV1Api,
  type KubeConfig,
  PatchStrategy,
  setHeaderOptions,
  type V1MutatingWebhookConfiguration,
  type V1ValidatingWebhookConfiguration,
  Watch,
} from '@kubernetes/client-node';
import { describeApiError } from '../../src/kube/api-error.ts';
import { createApiClient } from '../../src/kube/client.ts';
import type { CertificateSource } from '../../src/serving/http-server.ts';
import { type Certificate, CLOCKS_DIFFER_MS } from '../../src/serving/x509.ts';
import { authorityOf, bundleOf, dataOf, type Kept, readKept, renewed } from './rotation.ts';

export type SecretPlace = {
  readonly namespace: string;
  readonly secret: string;
  /** The Service that API servers call. The Secret goes with it when it is deleted. */
  readonly service: string;
  /** Name of both registrations, the mutating and the validating one. */
  readonly registration: string;
};

type Registration = V1MutatingWebhookConfiguration | V1ValidatingWebhookConfiguration;
type Kind = {
  readonly path: string;
  readonly read: () => Promise<Registration>;
  readonly patch: (body: object[]) => Promise<unknown>;
};

// API servers hear of a registration's change by a watch, so a new authority is given some time before anybody relies on it.
const SETTLE_MS = 3_000;
// Nothing but the clock tells that a renewal is due, and a watch may be lost.
const LOOK_EVERY_MS = 60_000;
const RETRY_MS = 5_000;
const CONFLICT_MS = 200;
const MOST_CONFLICTS = 10;

/** Resolves with the first certificate only when API servers trust it, however long that takes. */
export function fromSecret(config: KubeConfig, place: SecretPlace): CertificateSource {
  return async ({ onCertificate, onRejected, logger }) => {
    const { promise: first, resolve, reject } = Promise.withResolvers<Certificate>();
    const stop = new AbortController();
    let serving: Certificate | undefined;
    const following = follow(config, place, stop.signal, logger.info, onRejected, (certificate) => {
      if (serving === undefined) resolve(certificate);
      else if (serving.cert !== certificate.cert) onCertificate(certificate);
      serving = certificate;
    });
    following.catch(reject);
    return {
      certificate: await first,
      close: async () => {
        stop.abort();
        await following;
      },
    };
  };
}

async function follow(
  config: KubeConfig,
  place: SecretPlace,
  signal: AbortSignal,
  log: (line: string) => void,
  refuse: (why: string) => void,
  serve: (certificate: Certificate) => void,
): Promise<void> {
  const secret = createSecret(config, place);
  const registrations = kindsOf(config, place);
  const bell = createBell(signal);
  const watched = [secret.path, ...registrations.map(({ path }) => path)];
  const watching = watched.map((path) => ringOnChange(config, path, bell.ring, signal));
  const host = `${place.service}.${place.namespace}.svc`;
  const names = [host, `${place.service}.${place.namespace}`];
  /** When each authority was first seen in both registrations. */
  const seen = new Map<string, number>();
  let said = '';
  let conflicts = 0;

  /** One look at everything; returns how long nothing needs to be looked at again. */
  const look = async (): Promise<number> => {
    const now = new Date();
    const found = await secret.read();
    const present = found && readKept(found.data, names, now);
    if (found !== undefined && present === undefined)
      refuse(`the Secret ${place.secret} cannot serve and is made anew`);
    const next = renewed(present, names, now);
    if (next !== undefined) {
      await secret.write(next, found?.version);
      log(`made a certificate for ${host}, valid until ${new X509Certificate(next.cert).validToDate.toISOString()}`);
      return 0;
    }
    const kept = present as Kept;
    const authority = authorityOf(kept) as X509Certificate;
    const changed = await publish(registrations, kept, now);
    // A replica that starts finds what API servers have long heard of, unless it was made or published just now.
    const settled = seen.size === 0 && !changed && isOld(authority, now);
    const since = seen.get(authority.fingerprint256) ?? (settled ? 0 : now.getTime());
    seen.set(authority.fingerprint256, since);
    const wait = since + SETTLE_MS - now.getTime();
    if (wait > 0) return wait;
    serve({ cert: kept.cert, key: kept.key });
    return LOOK_EVERY_MS;
  };

  while (!signal.aborted) {
    let wait = RETRY_MS;
    try {
      wait = await look();
      said = '';
      conflicts = 0;
    } catch (error) {
      conflicts = isConflict(error) ? conflicts + 1 : 0;
      // Somebody else was first: what they wrote is looked at next.
      if (conflicts > 0 && conflicts <= MOST_CONFLICTS) {
        wait = CONFLICT_MS;
      } else if (describeApiError(error) !== said) {
        said = describeApiError(error);
        log(`the certificate cannot be looked after: ${said}`);
      }
    }
    await bell.within(wait);
  }
  await Promise.all(watching);
}

/**
 * Every webhook of every registration trusts the kept authorities, and those that were published before and are valid. True
 * when that had to be written.
 */
async function publish(registrations: readonly Kind[], kept: Kept, now: Date): Promise<boolean> {
  const found = await Promise.all(registrations.map(async (kind) => ({ ...kind, object: await kind.read() })));
  const bundleAt = (bundle: string | undefined) => Buffer.from(bundle ?? '', 'base64').toString('utf8');
  const published = found.flatMap(({ object }) =>
    (object.webhooks ?? []).map(({ clientConfig }) => bundleAt(clientConfig.caBundle)),
  );
  const bundle = bundleOf(kept.authorities, published.join(''), now);
  let changed = false;
  for (const { object, patch } of found) {
    const wrong = (object.webhooks ?? []).flatMap(({ clientConfig }, index) =>
      bundleAt(clientConfig.caBundle) === bundle ? [] : [index],
    );
    if (wrong.length === 0) continue;
    changed = true;
    await patch([
      { op: 'test', path: '/metadata/resourceVersion', value: object.metadata?.resourceVersion },
      ...wrong.map((index) => ({
        op: 'add',
        path: `/webhooks/${index}/clientConfig/caBundle`,
        value: Buffer.from(bundle).toString('base64'),
      })),
    ]);
  }
  return changed;
}

function kindsOf(config: KubeConfig, { registration: name }: SecretPlace): readonly Kind[] {
  const api = createApiClient(config, AdmissionregistrationV1Api);
  const asPatch = setHeaderOptions('Content-Type', PatchStrategy.JsonPatch);
  const path = (plural: string) =>
    `/apis/admissionregistration.k8s.io/v1/${plural}?fieldSelector=metadata.name%3D${name}`;
  return [
    {
      path: path('mutatingwebhookconfigurations'),
      read: () => api.readMutatingWebhookConfiguration({ name }),
      patch: (body) => api.patchMutatingWebhookConfiguration({ name, body }, asPatch),
    },
    {
      path: path('validatingwebhookconfigurations'),
      read: () => api.readValidatingWebhookConfiguration({ name }),
      patch: (body) => api.patchValidatingWebhookConfiguration({ name, body }, asPatch),
    },
  ];
}

/**
 * Written by apply, which may create an object for whom the right to create is limited to its name. Of two replicas that
 * make it at the same time the second is told of a conflict, since each applies under its own name.
 */
function createSecret(config: KubeConfig, { namespace, secret: name, service }: SecretPlace) {
  const api = createApiClient(config, CoreV1Api);
  const asApply = setHeaderOptions('Content-Type', PatchStrategy.ServerSideApply);
  return {
    path: `/api/v1/namespaces/${namespace}/secrets?fieldSelector=metadata.name%3D${name}`,
    read: async () => {
      try {
        const { data = {}, metadata } = await api.readNamespacedSecret({ name, namespace });
        return { data, version: metadata?.resourceVersion };
      } catch (error) {
        if (error instanceof ApiException && error.code === 404) return undefined;
        throw error;
      }
    },
    write: async (kept: Kept, version: string | undefined) => {
      // Without the Service the webhook is being uninstalled, and nothing may be left behind.
      const { metadata: owner } = await api.readNamespacedService({ name: service, namespace });
      const body = {
        apiVersion: 'v1',
        kind: 'Secret',
        metadata: {
          name,
          namespace,
          ...(version !== undefined && { resourceVersion: version }),
          ownerReferences: [{ apiVersion: 'v1', kind: 'Service', name: service, uid: owner?.uid }],
        },
        type: 'Opaque',
        data: dataOf(kept),
      };
      const who = { fieldManager: `cotenant-webhook-${hostname()}`, force: version !== undefined };
      await api.patchNamespacedSecret({ name, namespace, body, ...who }, asApply);
    },
  };
}

/** Rings for each event of what is watched, and once for each new watch, until the signal. */
async function ringOnChange(config: KubeConfig, path: string, ring: () => void, signal: AbortSignal): Promise<void> {
  const watch = new Watch(config);
  while (!signal.aborted) {
    const { promise: ended, resolve } = Promise.withResolvers<void>();
    const stop = () => resolve();
    signal.addEventListener('abort', stop, { once: true });
    try {
      const running = await watch.watch(path, {}, ring, () => resolve());
      await ended;
      running.abort();
    } catch {
      // The look that follows says why the API server cannot be reached.
    }
    signal.removeEventListener('abort', stop);
    await delay(RETRY_MS, undefined, { signal }).catch(() => {});
  }
}

/** A bell that may be rung before somebody waits for it. */
function createBell(signal: AbortSignal) {
  let rung = Promise.withResolvers<void>();
  signal.addEventListener('abort', () => rung.resolve(), { once: true });
  return {
    ring: () => rung.resolve(),
    /** Resolves when it has been rung since the last time, or after the time. */
    within: async (ms: number) => {
      const timer = new AbortController();
      await Promise.race([rung.promise, delay(ms, undefined, { signal: timer.signal }).catch(() => {})]);
      timer.abort();
      if (!signal.aborted) rung = Promise.withResolvers<void>();
    },
  };
}

function isOld(authority: X509Certificate, now: Date): boolean {
  return now.getTime() - authority.validFromDate.getTime() > CLOCKS_DIFFER_MS + LOOK_EVERY_MS;
}

/** Changed or made meanwhile, or the test of a patch does not hold. */
function isConflict(error: unknown): boolean {
  return error instanceof ApiException && (error.code === 409 || error.code === 422);
}
