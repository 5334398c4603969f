// Certificates that change on disk while the server runs, in the ways in which Kubernetes and people change them.
import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { watch } from 'node:fs';
import { mkdir, mkdtemp, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { fromFiles, readCertificate } from '../../../src/serving/tls-files.ts';
import { type Certificate, selfSigned } from '../../../src/serving/x509.ts';
import { startWebhook, type Webhook } from '../../../webhook/server.ts';
import { configured, creation, sharePod } from '../../unit/webhook/reviews.ts';
import { post, trusting } from './client.ts';

const BODY = JSON.stringify(creation(sharePod()));
const serialOf = ({ cert }: Certificate) => new X509Certificate(cert).serialNumber;
const made = () => selfSigned(['localhost'], new Date());

async function folderOf(t: ExecutionContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'cotenant-reload-'));
  t.teardown(() => rm(folder, { recursive: true }));
  return folder;
}

async function write(folder: string, { cert, key }: Certificate): Promise<void> {
  await writeFile(join(folder, 'tls.crt'), cert);
  await writeFile(join(folder, 'tls.key'), key);
}

/** A server on the folder's certificate, with a promise for each next line of its log. */
async function started(t: ExecutionContext, folder: string) {
  const lines: string[] = [];
  let wake = () => {};
  const write = (line: string) => {
    lines.push(line);
    wake();
  };
  const webhook = await startWebhook({
    configuration: () => configured(),
    host: 'localhost',
    certificate: fromFiles({ certFile: join(folder, 'tls.crt'), keyFile: join(folder, 'tls.key') }),
    logger: { info: write, warn: write, error: write },
  });
  t.teardown(() => webhook.close());
  const logged = async (wanted: RegExp) => {
    while (!lines.some((line) => wanted.test(line))) {
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  };
  return { webhook, lines, logged };
}

async function servedSerial(webhook: Webhook, ca: string): Promise<string> {
  const agent = trusting(ca);
  const { serialNumber } = await post(webhook, agent, '/mutate', BODY);
  agent.destroy();
  return serialNumber;
}

test('an overwritten certificate is served to new connections, open ones continue', async (t) => {
  const folder = await folderOf(t);
  const [one, two] = [made(), made()];
  await write(folder, one);
  const { webhook, logged } = await started(t, folder);
  t.is(webhook.certificate, one.cert);
  const old = trusting(one.cert);
  const before = await post(webhook, old, '/mutate', BODY);
  t.is(before.serialNumber, serialOf(one));

  await write(folder, two);
  await logged(/certificate reloaded/);
  t.is(await servedSerial(webhook, two.cert), serialOf(two));
  const after = await post(webhook, old, '/mutate', BODY);
  t.is(after.status, 200);
  t.is(after.connection, before.connection, 'the connection from before was not cut');
  old.destroy();
  t.regex(await webhook.metrics(), /certificate_loads_total\{result="ok"\} 2\n/);
});

test('a Secret that the kubelet swaps by its link is followed', async (t) => {
  const folder = await folderOf(t);
  const [one, two] = [made(), made()];
  for (const [name, certificate] of [
    ['..first', one],
    ['..second', two],
  ] as const) {
    await mkdir(join(folder, name));
    await write(join(folder, name), certificate);
  }
  await symlink('..first', join(folder, '..data'));
  await symlink('..data/tls.crt', join(folder, 'tls.crt'));
  await symlink('..data/tls.key', join(folder, 'tls.key'));
  const { webhook, logged } = await started(t, folder);
  t.is(await servedSerial(webhook, one.cert), serialOf(one));
  await symlink('..second', join(folder, '..data_tmp'));
  await rename(join(folder, '..data_tmp'), join(folder, '..data'));
  await logged(/certificate reloaded/);
  t.is(await servedSerial(webhook, two.cert), serialOf(two));
});

test('a mismatched pair is refused and the old one serves until a right pair comes', async (t) => {
  const folder = await folderOf(t);
  const [one, two] = [made(), made()];
  await write(folder, one);
  const { webhook, lines, logged } = await started(t, folder);
  await writeFile(join(folder, 'tls.key'), two.key);
  await logged(/cannot serve: the key belongs to another certificate; the previous TLS certificate stays in use/);
  // Each of these makes it read the same pair again.
  for (const name of ['a', 'b', 'c', 'd']) await writeFile(join(folder, name), '');
  t.is(await servedSerial(webhook, one.cert), serialOf(one));
  await writeFile(join(folder, 'tls.crt'), two.cert);
  await logged(/certificate reloaded/);
  t.is(await servedSerial(webhook, two.cert), serialOf(two));
  t.is(
    lines.filter((line) => line.includes('belongs to another certificate')).length,
    1,
    'logged once, not on every event',
  );
  t.false(
    lines.some((line) => line.includes('PRIVATE')),
    'no key is logged',
  );
  t.regex(await webhook.metrics(), /certificate_loads_total\{result="refused"\} [1-9]/);
});

test('a pair that is read between the writes of its files is not refused', async (t) => {
  const folder = await folderOf(t);
  await write(folder, made());
  const { webhook, lines } = await started(t, folder);
  const files = { certFile: join(folder, 'tls.crt'), keyFile: join(folder, 'tls.key') };
  let last = made();
  for (let round = 0; round < 10; round += 1) {
    last = made();
    const changes = watch(folder);
    const noticed = once(changes, 'change');
    await writeFile(files.certFile, last.cert);
    await noticed;
    changes.close();
    // The webhook, which watches for longer, reads before this does.
    await t.throwsAsync(readCertificate(files), { message: /belongs to another certificate/ });
    await writeFile(files.keyFile, last.key);
  }
  while ((await servedSerial(webhook, last.cert).catch(() => '')) !== serialOf(last));
  t.regex(await webhook.metrics(), /certificate_loads_total\{result="refused"\} 0\n/);
  t.false(lines.some((line) => line.includes('cannot serve')));
});

test('a server without a usable certificate does not start', async (t) => {
  const folder = await folderOf(t);
  await t.throwsAsync(() => started(t, folder), { code: 'ENOENT' });
  await write(folder, { cert: made().cert, key: made().key });
  await t.throwsAsync(() => started(t, folder), { message: /cannot serve: the key belongs to another certificate/ });
});
