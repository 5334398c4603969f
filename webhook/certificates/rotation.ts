// What the webhook's replicas keep together, and when which part of it is due: an authority, the server's certificate that it
// signed, and which authorities API servers must trust meanwhile. Pure but for the making of keys; the clock is an argument.
import { createPrivateKey, X509Certificate } from 'node:crypto';
import { makeAuthority, signedBy } from '../../src/serving/x509.ts';

/** PEM texts, as they lie in the Secret. */
export type Kept = {
  /** Authorities to trust, the one that signs first. */
  readonly authorities: string;
  readonly authorityKey: string;
  readonly cert: string;
  readonly key: string;
};

const SERVER_DAYS = 90;
/** So long that a certificate never outlives the authority that signed it, with renewal at two thirds. */
const AUTHORITY_DAYS = 12 * SERVER_DAYS;
const RENEWED_AT = 2 / 3;
// Authorities that are trusted without signing: what another replica still serves may be theirs.
const MOST_FORMER = 3;
const PEM = /-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----/g;

/** The Secret's data where all of it belongs together and can serve `names` now; anything else is made anew. */
export function readKept(
  data: Readonly<Record<string, string>>,
  names: readonly string[],
  now: Date,
): Kept | undefined {
  const text = (name: string) => Buffer.from(data[name] ?? '', 'base64').toString('utf8');
  const kept = {
    authorities: text('ca.crt'),
    authorityKey: text('ca.key'),
    cert: text('tls.crt'),
    key: text('tls.key'),
  };
  try {
    const [authority] = certificatesIn(kept.authorities);
    const leaf = new X509Certificate(kept.cert);
    const good =
      authority?.checkPrivateKey(createPrivateKey(kept.authorityKey)) &&
      leaf.checkPrivateKey(createPrivateKey(kept.key)) &&
      leaf.verify(authority.publicKey) &&
      leaf.issuer === authority.subject &&
      names.every((name) => leaf.checkHost(name) !== undefined) &&
      [authority, leaf].every((each) => isValid(each, now));
    return good ? kept : undefined;
  } catch {
    return undefined;
  }
}

/** The same as a Secret's data. */
export function dataOf({ authorities, authorityKey, cert, key }: Kept): Record<string, string> {
  const encode = (text: string) => Buffer.from(text).toString('base64');
  return {
    'ca.crt': encode(authorities),
    'ca.key': encode(authorityKey),
    'tls.crt': encode(cert),
    'tls.key': encode(key),
  };
}

/** What must be kept instead, or undefined where nothing is due. A new authority stands beside those that it follows. */
export function renewed(kept: Kept | undefined, names: readonly string[], now: Date): Kept | undefined {
  const [current] = certificatesIn(kept?.authorities ?? '');
  if (kept === undefined || current === undefined || isDue(current, now)) {
    const made = makeAuthority('cotenant webhook authority', now, AUTHORITY_DAYS);
    const { cert, key } = signedBy(made, names, now, SERVER_DAYS);
    return { authorities: bundleOf(made.cert, kept?.authorities ?? '', now), authorityKey: made.key, cert, key };
  }
  if (!isDue(new X509Certificate(kept.cert), now)) return undefined;
  const { cert, key } = signedBy({ cert: current.toString(), key: kept.authorityKey }, names, now, SERVER_DAYS);
  return { ...kept, cert, key };
}

/**
 * The authorities to publish: those of `first` in their order, then the newest that are valid still of what is published. Of
 * its own result it makes the same again, so that replicas agree.
 */
export function bundleOf(first: string, published: string, now: Date): string {
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

/** The authority that signs, by which one tells whether it has been published long enough. */
export function authorityOf({ authorities }: Kept): X509Certificate | undefined {
  return certificatesIn(authorities)[0];
}

/** The certificates of a text; what cannot be read as one is left out. */
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
