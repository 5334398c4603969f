// The certificates of the chart's webhook: where they are kept, which CAs the API server trusts, and their rotation.
import { X509Certificate } from 'node:crypto';
import type { ExecutionContext } from 'ava';
import {
  readSecretData,
  renewIfDue,
  toSecretData,
  type WebhookCertificates,
} from '../../../webhook/certificates/rotation.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { NAMESPACE } from '../bed/product.ts';
import { podsOf } from '../support/release.ts';
import { createWithoutPause } from '../support/stream.ts';

const HOST = `cotenant-webhook.${NAMESPACE}.svc`;
const NAMES = [HOST, `cotenant-webhook.${NAMESPACE}`];
const SECRET = `/api/v1/namespaces/${NAMESPACE}/secrets/cotenant-webhook-keys`;
const DAY_MS = 86_400_000;

const secretOf = async (bed: Bed): Promise<WebhookCertificates | undefined> => {
  const secret = await bed.api.get<{ data: Record<string, string> }>(SECRET);
  return secret && readSecretData(secret.data, NAMES, new Date());
};

/** Serial numbers of the CAs that the API server trusts in both registrations. */
function trusted(bed: Bed): readonly string[] {
  const bundles = ['mutating', 'validating'].flatMap((kind) => {
    const path = '{range .webhooks[*]}{.clientConfig.caBundle}{"\\n"}{end}';
    const { out } = bed.kubectl('get', `${kind}webhookconfiguration`, 'cotenant-webhook', '-o', `jsonpath=${path}`);
    return out.trim().split('\n');
  });
  if (new Set(bundles).size !== 1) return [];
  const text = Buffer.from(bundles[0] ?? '', 'base64').toString();
  return text
    .split(/(?<=-----END CERTIFICATE-----\n)/)
    .filter(Boolean)
    .map((pem) => new X509Certificate(pem).serialNumber);
}

/** Waits until both replicas have loaded so many certificates. */
async function untilLoaded(bed: Bed, count: number): Promise<void> {
  const loaded = async () => {
    const pages = await Promise.all(
      (await podsOf(bed, 'webhook')).map(async ({ metadata }) => {
        const path = `/api/v1/namespaces/${NAMESPACE}/pods/${metadata.name}:8080/proxy/metrics`;
        return String((await bed.api.ask('GET', path)).body);
      }),
    );
    const good = pages.filter((page) => page.includes(`certificate_loads_total{result="ok"} ${count}\n`));
    return (pages.length === 2 && good.length === 2) || undefined;
  };
  await eventually(loaded, `both replicas serve certificate ${count}`);
}

const serialOf = (pem: string | undefined) => new X509Certificate(pem ?? '').serialNumber;

/** Certificates are reissued, by a new CA and by the same one, while pods like `pod` are created without a pause. */
export async function checkRotation(t: ExecutionContext, bed: Bed, pod: object): Promise<void> {
  const first = await secretOf(bed);
  t.is(new X509Certificate(first?.cert ?? '').checkHost(HOST), HOST);
  t.deepEqual(trusted(bed), [serialOf(first?.authorities)]);
  const stream = createWithoutPause(bed, pod);
  t.teardown(() => stream.end().then(() => undefined));

  // A deleted Secret leads to a new CA; the certificate that is still served stays trusted.
  t.is((await bed.api.ask('DELETE', SECRET)).status, 200);
  await untilLoaded(bed, 2);
  const second = await secretOf(bed);
  t.not(second?.key, first?.key);
  t.deepEqual(
    trusted(bed),
    [second, first].map((kept) => serialOf(kept?.authorities)),
  );

  // A certificate that is due is reissued by the same CA; this one is from a backup, for example.
  const old = renewIfDue(undefined, NAMES, new Date(Date.now() - 61 * DAY_MS)) as WebhookCertificates;
  t.is((await bed.api.ask('PATCH', SECRET, { data: toSecretData(old) })).status, 200);
  await untilLoaded(bed, 3);
  const third = await secretOf(bed);
  t.is(third?.authorities, old.authorities);
  t.not(third?.cert, old.cert);
  t.deepEqual(
    trusted(bed),
    [old, second, first].map((kept) => serialOf(kept?.authorities)),
  );

  // A removed CA bundle is written again.
  const before = stream.count();
  await eventually(() => stream.count() > before + 20 || undefined, 'pods are reviewed with the third certificate');
  t.deepEqual(await stream.end(), []);
  t.log(`${stream.count()} pods were created while the certificates changed`);
  const remove = JSON.stringify([{ op: 'remove', path: '/webhooks/0/clientConfig/caBundle' }]);
  t.is(bed.kubectl('patch', 'validatingwebhookconfiguration', 'cotenant-webhook', '--type=json', '-p', remove).code, 0);
  await eventually(() => trusted(bed).length === 3 || undefined, 'the authority is written again');
}
