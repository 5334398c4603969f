// The certificate that the webhook's replicas issue themselves: stored in a Secret that all replicas watch and the
// first one renews, its authority written into the webhook configurations. Makes the API calls; rotation.ts decides
// what is due.
import { X509Certificate } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import type {
  V1MutatingWebhookConfiguration,
  V1Secret,
  V1Service,
  V1ValidatingWebhookConfiguration,
} from '@kubernetes/client-node';
import { createBackoff } from '../../src/common/backoff.ts';
import { describeApiError, retryAfterMsOf, statusOf, unlessMissing } from '../../src/kube/api-error.ts';
import { callApi, pathOf } from '../../src/kube/call.ts';
import type { ApiConfig } from '../../src/kube/config.ts';
import type { CertificateListener, CertificateSource } from '../../src/serving/http-server.ts';
import { type Certificate, CLOCKS_DIFFER_MS } from '../../src/serving/x509.ts';
import {
  authorityBundle,
  readSecretData,
  renewIfDue,
  signingAuthority,
  toSecretData,
  type WebhookCertificates,
} from './rotation.ts';

export type SecretOptions = {
  readonly namespace: string;
  readonly secret: string;
  /** The Service that API servers call. It owns the Secret, which is deleted with it. */
  readonly service: string;
  /** Name of the mutating and of the validating webhook configuration. */
  readonly registration: string;
};

type Registration = V1MutatingWebhookConfiguration | V1ValidatingWebhookConfiguration;
type RegistrationClient = {
  readonly read: () => Promise<Registration>;
  readonly patch: (body: object[]) => Promise<unknown>;
};

// API servers learn of a changed registration by a watch, so a new authority needs some time before its certificates
// are used.
const SETTLE_MS = 3_000;
/** How late a replica may notice a renewal by another one, or damage to the Secret or a registration. */
const CHECK_EVERY_MS = 10_000;
/** Each try makes up to five calls, all of which must go well; few replicas make them. */
const RETRY_MS = { firstMs: 250, mostMs: 2_000 };
const CONFLICT_MS = 200;
const MOST_CONFLICTS = 10;

/** Resolves with the first certificate only when API servers trust it, however long that takes. */
export function fromSecret(config: ApiConfig, options: SecretOptions): CertificateSource {
  return async ({ onCertificate, onRejected, logger }) => {
    const { promise: first, resolve, reject } = Promise.withResolvers<Certificate>();
    const stop = new AbortController();
    let serving: Certificate | undefined;
    const serve = (certificate: Certificate) => {
      if (serving === undefined) resolve(certificate);
      else if (serving.cert !== certificate.cert) onCertificate(certificate);
      serving = certificate;
    };
    const running = keepCertificate(config, options, { signal: stop.signal, logger, onRejected, serve });
    running.catch(reject);
    return {
      certificate: await first,
      close: async () => {
        stop.abort();
        await running;
      },
    };
  };
}

type Replica = Pick<CertificateListener, 'logger' | 'onRejected'> & {
  readonly signal: AbortSignal;
  readonly serve: (certificate: Certificate) => void;
};

/** Checks Secret and registrations again and again, until the signal. */
async function keepCertificate(config: ApiConfig, options: SecretOptions, replica: Replica): Promise<void> {
  const { signal, logger } = replica;
  const check = createCheck(
    createSecretClient(config, options),
    registrationClients(config, options),
    options,
    replica,
  );
  const backoff = createBackoff(RETRY_MS);
  let conflicts = 0;
  while (!signal.aborted) {
    let waitMs = CONFLICT_MS;
    try {
      waitMs = await check();
      conflicts = 0;
      backoff.reset();
    } catch (error) {
      conflicts = isConflict(error) ? conflicts + 1 : 0;
      // Another replica was first: the next check reads what it wrote.
      if (conflicts === 0 || conflicts > MOST_CONFLICTS) {
        waitMs = backoff.nextMs(retryAfterMsOf(error));
        logger.warn(`cannot check or renew the certificate, and retries: ${describeApiError(error)}`);
      }
    }
    await delay(waitMs, undefined, { signal }).catch(() => {});
  }
}

/** The check resolves with the time until the next one, if nothing changes. */
function createCheck(
  secret: ReturnType<typeof createSecretClient>,
  registrations: readonly RegistrationClient[],
  { service, namespace, secret: secretName }: SecretOptions,
  { logger, onRejected, serve }: Replica,
): () => Promise<number> {
  const host = `${service}.${namespace}.svc`;
  const names = [host, `${service}.${namespace}`];
  /** When each authority was first seen in both registrations. */
  const publishedMs = new Map<string, number>();
  return async () => {
    const now = new Date();
    const found = await secret.read();
    const current = found && readSecretData(found.data, names, now);
    if (found !== undefined && current === undefined)
      onRejected(`the Secret ${secretName} cannot serve and is replaced`);
    const next = renewIfDue(current, names, now);
    if (next !== undefined) {
      await secret.write(next, found?.version);
      const validTo = new X509Certificate(next.cert).validToDate.toISOString();
      logger.info(`issued a certificate for ${host}, valid until ${validTo}`);
      return 0;
    }
    const certificates = current as WebhookCertificates;
    const authority = signingAuthority(certificates) as X509Certificate;
    const changed = await publishAuthorities(registrations, certificates, now);
    // At the start of a replica API servers know the authority already, unless it was issued or published just now.
    const isKnown = publishedMs.size === 0 && !changed && isOld(authority, now);
    const sinceMs = publishedMs.get(authority.fingerprint256) ?? (isKnown ? 0 : now.getTime());
    publishedMs.set(authority.fingerprint256, sinceMs);
    const waitMs = sinceMs + SETTLE_MS - now.getTime();
    if (waitMs > 0) return waitMs;
    serve({ cert: certificates.cert, key: certificates.key });
    return CHECK_EVERY_MS;
  };
}

/**
 * Makes every webhook of every registration trust our authorities and the published ones that are still valid. True
 * where a registration had to be changed.
 */
async function publishAuthorities(
  registrations: readonly RegistrationClient[],
  { authorities }: WebhookCertificates,
  now: Date,
): Promise<boolean> {
  const found = await Promise.all(registrations.map(async (client) => ({ ...client, object: await client.read() })));
  const decode = (bundle: string | undefined) => Buffer.from(bundle ?? '', 'base64').toString('utf8');
  const published = found.flatMap(({ object }) =>
    (object.webhooks ?? []).map(({ clientConfig }) => decode(clientConfig.caBundle)),
  );
  const bundle = authorityBundle(authorities, published.join(''), now);
  let changed = false;
  for (const { object, patch } of found) {
    const outdated = (object.webhooks ?? []).flatMap(({ clientConfig }, index) =>
      decode(clientConfig.caBundle) === bundle ? [] : [index],
    );
    if (outdated.length === 0) continue;
    changed = true;
    await patch([
      { op: 'test', path: '/metadata/resourceVersion', value: object.metadata?.resourceVersion },
      ...outdated.map((index) => ({
        op: 'add',
        path: `/webhooks/${index}/clientConfig/caBundle`,
        value: Buffer.from(bundle).toString('base64'),
      })),
    ]);
  }
  return changed;
}

function registrationClients(config: ApiConfig, { registration: name }: SecretOptions): readonly RegistrationClient[] {
  return ['mutating', 'validating'].map((kind) => {
    const path = `/apis/admissionregistration.k8s.io/v1/${kind}webhookconfigurations/${encodeURIComponent(name)}`;
    return {
      read: () => callApi(config, { method: 'GET', path }),
      patch: (body) => callApi(config, { method: 'PATCH', path, patch: 'json', body }),
    };
  });
}

/**
 * Writes with server-side apply, for which RBAC can allow the creation of an object of one name. Of two replicas that
 * create it at the same time the second gets a conflict, because each applies under its own field manager.
 */
function createSecretClient(config: ApiConfig, { namespace, secret: name, service }: SecretOptions) {
  const path = pathOf(namespace, 'secrets', name);
  return {
    read: async () => {
      const found = await unlessMissing(callApi<V1Secret>(config, { method: 'GET', path }));
      return found && { data: found.data ?? {}, version: found.metadata?.resourceVersion };
    },
    write: async (certificates: WebhookCertificates, version: string | undefined) => {
      // Fails without the Service: the webhook is being uninstalled, and a Secret would be left behind.
      const servicePath = pathOf(namespace, 'services', service);
      const { metadata: owner } = await callApi<V1Service>(config, { method: 'GET', path: servicePath });
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
        data: toSecretData(certificates),
      };
      const query = { fieldManager: `cotenant-webhook-${hostname()}`, force: String(version !== undefined) };
      await callApi(config, { method: 'PATCH', path, query, patch: 'apply', body });
    },
  };
}

function isOld(authority: X509Certificate, now: Date): boolean {
  return now.getTime() - authority.validFromDate.getTime() > CLOCKS_DIFFER_MS + CHECK_EVERY_MS;
}

/** Another replica changed or created the object, or the `test` of a patch failed. */
const isConflict = (error: unknown): boolean => [409, 422].some((status) => status === statusOf(error));
