// Rotates the certificate that the webhook's replicas share: an authority, the server certificate that it signs, and
// the authorities that API servers must trust meanwhile. Decides what is due for renewal; the clock is an argument.
import { createPrivateKey, X509Certificate } from 'node:crypto';
import { makeAuthority, signedBy } from '../../src/serving/x509.ts';

/** The content of the Secret, PEM texts. */
export type WebhookCertificates = {
  /** Authorities to trust; the first one signs. */
  readonly authorities: string;
  readonly authorityKey: string;
  readonly cert: string;
  readonly key: string;
};

/** The Secret's key of each part. */
const KEYS = [
  ['authorities', 'ca.crt'],
  ['authorityKey', 'ca.key'],
  ['cert', 'tls.crt'],
  ['key', 'tls.key'],
] as const;
const SERVER_DAYS = 90;
/** With renewal at two thirds of it, no certificate outlives the authority that signed it. */
const AUTHORITY_DAYS = 12 * SERVER_DAYS;
const RENEWED_AT = 2 / 3;
// Authorities that are trusted and no longer sign: another replica may still serve a certificate of theirs.
const MOST_FORMER = 3;
const PEM = /-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----/g;

/** Reads the Secret's data; undefined where its parts do not match or cannot serve `names` now, so that it must be
 * replaced. */
export function readSecretData(
  data: Readonly<Record<string, string>>,
  names: readonly string[],
  now: Date,
): WebhookCertificates | undefined {
  const text = (name: string) => Buffer.from(data[name] ?? '', 'base64').toString('utf8');
  const found = Object.fromEntries(KEYS.map(([part, key]) => [part, text(key)])) as WebhookCertificates;
  try {
    const [authority] = certificatesIn(found.authorities);
    const leaf = new X509Certificate(found.cert);
    const isGood =
      authority?.checkPrivateKey(createPrivateKey(found.authorityKey)) &&
      leaf.checkPrivateKey(createPrivateKey(found.key)) &&
      leaf.verify(authority.publicKey) &&
      leaf.issuer === authority.subject &&
      names.every((name) => leaf.checkHost(name) !== undefined) &&
      [authority, leaf].every((each) => isValid(each, now));
    return isGood ? found : undefined;
  } catch {
    return undefined;
  }
}

/** The Secret's data. */
export const toSecretData = (certificates: WebhookCertificates): Record<string, string> =>
  Object.fromEntries(KEYS.map(([part, key]) => [key, Buffer.from(certificates[part]).toString('base64')]));

/** The certificates to replace `current` with, or undefined where nothing is due. Former authorities stay trusted. */
export function renewIfDue(
  current: WebhookCertificates | undefined,
  names: readonly string[],
  now: Date,
): WebhookCertificates | undefined {
  const [authority] = certificatesIn(current?.authorities ?? '');
  if (current === undefined || authority === undefined || isDue(authority, now)) {
    const made = makeAuthority('cotenant webhook authority', now, AUTHORITY_DAYS);
    const { cert, key } = signedBy(made, names, now, SERVER_DAYS);
    return {
      authorities: authorityBundle(made.cert, current?.authorities ?? '', now),
      authorityKey: made.key,
      cert,
      key,
    };
  }
  if (!isDue(new X509Certificate(current.cert), now)) return undefined;
  const signer = { cert: authority.toString(), key: current.authorityKey };
  return { ...current, ...signedBy(signer, names, now, SERVER_DAYS) };
}

/**
 * The authorities to publish: those of `first` in their order, then the newest published ones that are still valid.
 * Applied to its own result it gives the same result, so that replicas agree.
 */
export function authorityBundle(first: string, published: string, now: Date): string {
  const own = certificatesIn(first);
  const known = new Set(own.map(({ fingerprint256 }) => fingerprint256));
  const former = certificatesIn(published)
    .filter((each) => each.ca && isValid(each, now) && !known.has(each.fingerprint256))
    .filter((each, index, all) => all.findIndex((one) => one.fingerprint256 === each.fingerprint256) === index)
    .toSorted((a, b) => b.validFromDate.getTime() - a.validFromDate.getTime() || order(a, b));
  return [...own, ...former]
    .slice(0, 1 + MOST_FORMER)
    .map((each) => each.toString())
    .join('');
}

export function signingAuthority({ authorities }: WebhookCertificates): X509Certificate | undefined {
  return certificatesIn(authorities)[0];
}

/** The certificates of a PEM text, without those that cannot be read. */
function certificatesIn(text: string): readonly X509Certificate[] {
  return (text.match(PEM) ?? []).flatMap((pem) => {
    try {
      return [new X509Certificate(pem)];
    } catch {
      return [];
    }
  });
}

function isValid({ validFromDate, validToDate }: X509Certificate, now: Date): boolean {
  return validFromDate <= now && now < validToDate;
}

function isDue({ validFromDate, validToDate }: X509Certificate, now: Date): boolean {
  const [from, to] = [validFromDate.getTime(), validToDate.getTime()];
  return now.getTime() >= from + (to - from) * RENEWED_AT;
}

function order(a: X509Certificate, b: X509Certificate): number {
  return a.fingerprint256 < b.fingerprint256 ? -1 : 1;
}
