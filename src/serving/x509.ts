// Makes X.509 v3 certificates (ECDSA P-256, names as SAN): self-signed ones for development, and an authority with the
// server certificates that it signs for a cluster. Writes the DER itself.
import { createHash, createPrivateKey, generateKeyPairSync, randomBytes, sign, X509Certificate } from 'node:crypto';
import { isIP } from 'node:net';

/** PEM texts. */
export type Certificate = { readonly cert: string; readonly key: string };

const DAY_MS = 86_400_000;
/** Certificates are valid from this long before they are made, for clients with a slow clock. */
export const CLOCKS_DIFFER_MS = 3_600_000;
const ECDSA_WITH_SHA256 = oid(1, 2, 840, 10045, 4, 3, 2);

/** `names` are DNS names or IP addresses; the first is also the subject. `now` begins the validity, less an hour for
 * clocks. */
export function selfSigned(names: readonly string[], now: Date, days = 365): Certificate {
  return issue({ subject: names[0] ?? '', names, now, days });
}

/** An authority that signs certificates of servers and nothing else. */
export function makeAuthority(subject: string, now: Date, days: number): Certificate {
  return issue({ subject, now, days });
}

/** A server certificate signed by `authority`, which `makeAuthority` made. */
export function signedBy(authority: Certificate, names: readonly string[], now: Date, days: number): Certificate {
  return issue({ subject: names[0] ?? '', names, now, days, authority });
}

type Terms = {
  readonly subject: string;
  /** Names of a server; absent: the certificate is an authority. */
  readonly names?: readonly string[];
  readonly now: Date;
  readonly days: number;
  /** Absent: signed with its own key. */
  readonly authority?: Certificate;
};

function issue({ subject, names, now, days, authority }: Terms): Certificate {
  const { publicKey, privateKey } = generateKeyPairSync('ec', {
    namedCurve: 'P-256',
    publicKeyEncoding: { type: 'spki', format: 'der' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  });
  const serial = randomBytes(16);
  serial[0] = ((serial[0] ?? 0) & 0x7f) | 0x40; // positive, and without a leading zero octet
  const algorithm = sequence(ECDSA_WITH_SHA256);
  const signer = authority === undefined ? { name: subject, publicKey } : readSigner(authority);
  const body = sequence(
    der(0xa0, integer(Buffer.from([2]))), // version 3
    integer(serial),
    algorithm,
    commonName(signer.name),
    sequence(time(new Date(now.getTime() - CLOCKS_DIFFER_MS)), time(new Date(now.getTime() + days * DAY_MS))),
    commonName(subject),
    publicKey,
    der(
      0xa3,
      sequence(
        ...(names === undefined ? authorityExtensions() : serverExtensions(names)),
        ...keyIds(publicKey, signer.publicKey),
      ),
    ),
  );
  const signature = sign('sha256', body, createPrivateKey(authority?.key ?? privateKey));
  const certificate = sequence(body, algorithm, der(0x03, Buffer.concat([Buffer.from([0]), signature])));
  const lines = certificate.toString('base64').match(/.{1,64}/g) ?? [];
  return { cert: `-----BEGIN CERTIFICATE-----\n${lines.join('\n')}\n-----END CERTIFICATE-----\n`, key: privateKey };
}

function serverExtensions(names: readonly string[]): Buffer[] {
  return [
    extension(oid(2, 5, 29, 19), true, sequence()), // basicConstraints: no authority
    extension(oid(2, 5, 29, 15), true, der(0x03, Buffer.from([7, 0x80]))), // keyUsage: digitalSignature
    extension(oid(2, 5, 29, 37), false, sequence(oid(1, 3, 6, 1, 5, 5, 7, 3, 1))), // extKeyUsage: serverAuth
    extension(oid(2, 5, 29, 17), false, sequence(...names.map(alternativeName))),
  ];
}

function authorityExtensions(): Buffer[] {
  const none = integer(Buffer.from([0]));
  return [
    extension(oid(2, 5, 29, 19), true, sequence(der(0x01, Buffer.from([0xff])), none)), // basicConstraints: none below it
    extension(oid(2, 5, 29, 15), true, der(0x03, Buffer.from([2, 0x04]))), // keyUsage: keyCertSign
  ];
}

/** By these a client that trusts several authorities of one name finds the one that signed. */
function keyIds(own: Buffer, signer: Buffer): Buffer[] {
  const id = (publicKey: Buffer) => createHash('sha256').update(publicKey).digest().subarray(0, 20);
  return [
    extension(oid(2, 5, 29, 14), false, der(0x04, id(own))), // subjectKeyIdentifier
    extension(oid(2, 5, 29, 35), false, sequence(der(0x80, id(signer)))), // authorityKeyIdentifier
  ];
}

function readSigner({ cert }: Certificate): { readonly name: string; readonly publicKey: Buffer } {
  const { subject, publicKey } = new X509Certificate(cert);
  return { name: subject.replace(/^CN=/, ''), publicKey: publicKey.export({ type: 'spki', format: 'der' }) };
}

function commonName(name: string): Buffer {
  return sequence(set(sequence(oid(2, 5, 4, 3), der(0x0c, Buffer.from(name.slice(0, 64))))));
}

/** GeneralName: [2] is a DNS name, [7] the octets of an address. */
function alternativeName(name: string): Buffer {
  const family = isIP(name);
  if (family === 4) return der(0x87, Buffer.from(name.split('.').map(Number)));
  if (family === 6) return der(0x87, address6(name));
  return der(0x82, Buffer.from(name, 'ascii'));
}

function address6(text: string): Buffer {
  const [head = '', tail] = text.split('::');
  const groups = (part: string) => (part === '' ? [] : part.split(':').map((group) => Number.parseInt(group, 16)));
  const [left, right] = [groups(head), groups(tail ?? '')];
  const middle = tail === undefined ? [] : Array.from({ length: 8 - left.length - right.length }, () => 0);
  const bytes = Buffer.alloc(16);
  for (const [index, group] of [...left, ...middle, ...right].entries()) bytes.writeUInt16BE(group, index * 2);
  return bytes;
}

function extension(id: Buffer, critical: boolean, value: Buffer): Buffer {
  const flag = critical ? [der(0x01, Buffer.from([0xff]))] : [];
  return sequence(id, ...flag, der(0x04, value));
}

/** UTCTime up to 2049, GeneralizedTime from 2050 on (RFC 5280, 4.1.2.5). */
function time(date: Date): Buffer {
  const text = `${date.toISOString().slice(0, 19).replaceAll(/[-T:]/g, '')}Z`;
  return date.getUTCFullYear() < 2050 ? der(0x17, Buffer.from(text.slice(2))) : der(0x18, Buffer.from(text));
}

function integer(value: Buffer): Buffer {
  return der(0x02, value);
}

function oid(first: number, second: number, ...rest: number[]): Buffer {
  const septets = (arc: number): number[] => (arc < 128 ? [arc] : [...septets(Math.floor(arc / 128)), arc % 128]);
  const bytes = rest.flatMap((arc) => septets(arc).map((byte, at, all) => (at < all.length - 1 ? byte | 0x80 : byte)));
  return der(0x06, Buffer.from([first * 40 + second, ...bytes]));
}

function sequence(...parts: Buffer[]): Buffer {
  return der(0x30, Buffer.concat(parts));
}

function set(...parts: Buffer[]): Buffer {
  return der(0x31, Buffer.concat(parts));
}

/** Tag, length (short form below 128, else as few octets as it takes), content. */
function der(tag: number, content: Buffer): Buffer {
  const octets: number[] = [];
  for (let rest = content.length; rest > 0; rest = Math.floor(rest / 256)) octets.unshift(rest % 256);
  const length = content.length < 128 ? [content.length] : [0x80 | octets.length, ...octets];
  return Buffer.concat([Buffer.from([tag, ...length]), content]);
}
