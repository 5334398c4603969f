// When the webhook's own certificate is renewed, and which authorities are published meanwhile. The clock is an
// argument, so that years pass in milliseconds.
import { X509Certificate } from 'node:crypto';
import test from 'ava';
import { makeAuthority, signedBy } from '../../../src/serving/x509.ts';
import {
  authorityBundle,
  readSecretData,
  renewIfDue,
  signingAuthority,
  toSecretData,
  type WebhookCertificates,
} from '../../../webhook/certificates/rotation.ts';

const NAMES = ['cotenant-webhook.cotenant-system.svc', 'cotenant-webhook.cotenant-system'];
const DAY_MS = 86_400_000;
const start = new Date('2026-11-21T12:00:00Z');
const after = (days: number) => new Date(start.getTime() + days * DAY_MS);

const first = renewIfDue(undefined, NAMES, start) as WebhookCertificates;
const leafOf = ({ cert }: WebhookCertificates) => new X509Certificate(cert);
const serials = (bundle: string) =>
  (bundle.match(/-----BEGIN[^-]*-----[^-]*-----END[^-]*-----/g) ?? []).map(
    (pem) => new X509Certificate(pem).serialNumber,
  );

test('the first certificate names the Service, for 90 days, signed by its own CA', (t) => {
  const authority = signingAuthority(first) as X509Certificate;
  const leaf = leafOf(first);
  for (const name of NAMES) t.is(leaf.checkHost(name), name);
  t.true(leaf.checkIssued(authority) && leaf.verify(authority.publicKey));
  t.false(leaf.ca);
  t.true(authority.ca);
  t.is(leaf.validToDate.toISOString(), after(90).toISOString());
  t.is(authority.validToDate.toISOString(), after(1080).toISOString());
  t.is(authority.publicKey.asymmetricKeyDetails?.namedCurve, 'prime256v1');
  t.not(first.key, first.authorityKey);
});

test('the Secret’s data is read back, and refused where it could not serve', (t) => {
  const data = toSecretData(first);
  t.deepEqual(readSecretData(data, NAMES, start), first);
  const other = toSecretData(renewIfDue(undefined, NAMES, start) as WebhookCertificates);
  const bad: readonly (readonly [string, Record<string, string>])[] = [
    ['nothing', {}],
    ...Object.keys(data).map((key) => [`another ${key}`, { ...data, [key]: other[key] ?? '' }] as const),
    ...Object.keys(data).map((key) => [`no ${key}`, { ...data, [key]: '' }] as const),
    ['no PEM', { ...data, 'tls.crt': 'AAAA' }],
  ];
  for (const [what, given] of bad) t.is(readSecretData(given, NAMES, start), undefined, what);
  t.is(readSecretData(data, ['another.svc'], start), undefined, 'for another name');
  t.is(readSecretData(data, NAMES, after(90)), undefined, 'expired');
  t.is(readSecretData(data, NAMES, after(-1)), undefined, 'not valid yet');
});

test('a certificate is renewed by the same authority after two thirds of its lifetime', (t) => {
  t.is(renewIfDue(first, NAMES, after(59)), undefined);
  const next = renewIfDue(first, NAMES, after(61)) as WebhookCertificates;
  t.is(next.authorities, first.authorities);
  t.is(next.authorityKey, first.authorityKey);
  t.not(next.key, first.key);
  t.true(leafOf(next).verify((signingAuthority(first) as X509Certificate).publicKey));
  t.is(leafOf(next).validToDate.toISOString(), after(151).toISOString());
});

test('an authority is replaced after two thirds of its lifetime; both are trusted then', (t) => {
  let kept = first;
  for (let day = 0; day < 719; day += 1) kept = renewIfDue(kept, NAMES, after(day)) ?? kept;
  t.is(kept.authorities, first.authorities);
  const next = renewIfDue(kept, NAMES, after(721)) as WebhookCertificates;
  const [current, former] = serials(next.authorities);
  t.deepEqual([former], serials(first.authorities));
  t.true(leafOf(next).verify((signingAuthority(next) as X509Certificate).publicKey));
  t.is(leafOf(next).checkIssued(signingAuthority(first) as X509Certificate), false);
  // What a slower replica still serves is trusted, too.
  t.true(leafOf(kept).validToDate < (signingAuthority(first) as X509Certificate).validToDate);
  t.deepEqual(serials(authorityBundle(next.authorities, first.authorities, after(1081)))[0], current);
});

test('no certificate outlives its authority, in ten years of daily checks', (t) => {
  let kept = first;
  const authorities = new Set(serials(first.authorities));
  for (let day = 0; day < 3650; day += 1) {
    const before = kept;
    kept = renewIfDue(kept, NAMES, after(day)) ?? kept;
    if (kept === before) continue;
    const [leaf, authority] = [leafOf(kept), signingAuthority(kept) as X509Certificate];
    if (leaf.validToDate > authority.validToDate) t.fail(`day ${day}`);
    t.not(readSecretData(toSecretData(kept), NAMES, after(day)), undefined);
    // Clients trust what was published before and what comes now.
    t.true(serials(kept.authorities).includes(serials(before.authorities)[0] ?? ''), `day ${day}`);
    authorities.add(authority.serialNumber);
  }
  t.is(authorities.size, 6);
});

test('published authorities stay trusted while valid, at most three former ones', (t) => {
  const day = (days: number) => makeAuthority('old', after(days), 30).cert;
  const [a, b, c, d, e] = [day(1), day(2), day(3), day(4), day(-40)];
  const leaf = signedBy({ cert: a, key: makeAuthority('old', start, 30).key }, NAMES, start, 30).cert;
  const now = after(5);
  const own = first.authorities;
  const published = [a, 'no certificate', b, own, leaf, c, d, e].join('\n');
  const bundle = authorityBundle(own, published, now);
  t.deepEqual(serials(bundle), [own, d, c, b].flatMap(serials));
  t.is(authorityBundle(own, bundle, now), bundle, 'again it is the same');
  t.is(authorityBundle(own, [b, a, d, c].join(''), now), bundle, 'in whatever order they were found');
  t.is(authorityBundle(own, '', now), own);
});
