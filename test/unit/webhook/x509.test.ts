import { createPrivateKey, X509Certificate } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import { readCertificate } from '../../../src/serving/tls-files.ts';
import { selfSigned } from '../../../src/serving/x509.ts';

const NAMES = ['cotenant-webhook.cotenant.svc', 'localhost', '127.0.0.1', '::1', 'fe80::1:2'];
const now = new Date('2026-11-21T12:00:00Z');

test('a self-signed certificate is for its names and addresses, valid for a year', (t) => {
  const { cert, key } = selfSigned(NAMES, now);
  const read = new X509Certificate(cert);
  t.is(
    read.subjectAltName,
    'DNS:cotenant-webhook.cotenant.svc, DNS:localhost, IP Address:127.0.0.1, IP Address:0:0:0:0:0:0:0:1, IP Address:FE80:0:0:0:0:0:1:2',
  );
  t.is(read.subject, 'CN=cotenant-webhook.cotenant.svc');
  t.is(read.checkHost('localhost'), 'localhost');
  t.is(read.checkIP('127.0.0.1'), '127.0.0.1');
  t.is(read.checkHost('elsewhere'), undefined);
  t.is(read.validFromDate.toISOString(), '2026-11-21T11:00:00.000Z');
  t.is(read.validToDate.toISOString(), '2027-11-21T12:00:00.000Z');
  t.deepEqual(read.keyUsage, ['1.3.6.1.5.5.7.3.1']);
  t.false(read.ca);
  t.true(read.verify(read.publicKey), 'it is signed by its own key');
  t.true(read.checkPrivateKey(createPrivateKey(key)));
  t.is(read.publicKey.asymmetricKeyDetails?.namedCurve, 'prime256v1');
});

test('no two certificates share a serial number or a key', (t) => {
  const [one, two] = [selfSigned(NAMES, now), selfSigned(NAMES, now)];
  t.not(new X509Certificate(one.cert).serialNumber, new X509Certificate(two.cert).serialNumber);
  t.not(one.key, two.key);
});

test('dates from 2050 on are written in the form that X.509 asks for', (t) => {
  const { cert } = selfSigned(['localhost'], new Date('2049-12-31T23:30:00Z'), 2);
  const read = new X509Certificate(cert);
  t.is(read.validFromDate.toISOString(), '2049-12-31T22:30:00.000Z');
  t.is(read.validToDate.toISOString(), '2050-01-02T23:30:00.000Z');
});

test('files that cannot serve are refused by name, without showing the key', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'cotenant-certificate-'));
  t.teardown(() => rm(folder, { recursive: true }));
  const files = { certFile: join(folder, 'tls.crt'), keyFile: join(folder, 'tls.key') };
  const write = async (cert: string, key: string) => {
    await writeFile(files.certFile, cert);
    await writeFile(files.keyFile, key);
  };
  const [one, two] = [selfSigned(NAMES, now), selfSigned(NAMES, now)];
  await t.throwsAsync(() => readCertificate(files), { code: 'ENOENT' });
  await write(one.cert, one.key);
  t.deepEqual(await readCertificate(files), one);
  for (const [cert, key] of [
    [one.cert, two.key],
    [one.cert.slice(0, 200), one.key],
    [one.cert, ''],
    ['', one.key],
  ] as const) {
    await write(cert, key);
    const error = await t.throwsAsync(() => readCertificate(files));
    t.regex(error?.message ?? '', /^certificate .*tls\.crt with key .*tls\.key cannot serve: /);
    t.notRegex(error?.message ?? '', /BEGIN|MII/);
  }
});
