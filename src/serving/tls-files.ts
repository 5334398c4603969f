// TLS certificates in files: reads certificate, key and client authority, checks that they belong together, and watches
// for new ones.
import { createPrivateKey, X509Certificate } from 'node:crypto';
import { type FSWatcher, watch } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { createSecureContext } from 'node:tls';
import { isDeepStrictEqual } from 'node:util';
import type { CertificateListener, CertificateSource, ServerCertificate } from './http-server.ts';

/** Paths of PEM files. */
export type CertificateFiles = {
  readonly certFile: string;
  readonly keyFile: string;
  /** The authority that must have signed the certificates of clients. */
  readonly clientCaFile?: string;
};

// A mounted Secret is swapped by renaming a link, and some file systems send no events: reading catches both.
const READ_EVERY_MS = 30_000;
// Certificate and key are two files: between the writes of both they do not belong together.
const SETTLE_MS = 2000;

/** Follows the files when they change. Rejects when they cannot serve at the start. */
export function fromFiles(files: CertificateFiles): CertificateSource {
  return async (listener) => {
    const certificate = await readCertificate(files);
    return { certificate, close: watchCertificate(files, certificate, listener) };
  };
}

/** Rejects with a text that names the files where they cannot serve. */
export async function readCertificate(files: CertificateFiles): Promise<ServerCertificate> {
  const { certFile, keyFile, clientCaFile } = files;
  const [cert = '', key = '', clientCa] = await Promise.all(
    [certFile, keyFile, clientCaFile].map((path) => (path === undefined ? undefined : readFile(path, 'utf8'))),
  );
  const certificate = { cert, key, ...(clientCa !== undefined && { clientCa }) };
  try {
    if (!new X509Certificate(cert).checkPrivateKey(createPrivateKey(key)))
      throw new Error('the key belongs to another certificate');
    createSecureContext({ cert, key, ca: clientCa });
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    const ca = clientCaFile === undefined ? '' : ` and client authority ${clientCaFile}`;
    throw new Error(`certificate ${certFile} with key ${keyFile}${ca} cannot serve: ${why}`);
  }
  return certificate;
}

/**
 * Passes on every new certificate that can serve, and once each reason why one cannot after a while either: until then
 * the pair may be half written. Returns how to stop.
 */
function watchCertificate(
  files: CertificateFiles,
  current: ServerCertificate,
  { onCertificate, onRejected }: Pick<CertificateListener, 'onCertificate' | 'onRejected'>,
): () => Promise<void> {
  let serving = current;
  let rejected = '';
  let failingSinceMs: number | undefined;
  let settling: NodeJS.Timeout | undefined;
  let closed = false;
  let reading = Promise.resolve();
  const read = async () => {
    if (closed) return;
    try {
      const found = await readCertificate(files);
      rejected = '';
      failingSinceMs = undefined;
      if (closed || isDeepStrictEqual(found, serving)) return;
      serving = found;
      onCertificate(found);
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      if (closed || why === rejected) return;
      const now = performance.now();
      failingSinceMs ??= now;
      if (now - failingSinceMs >= SETTLE_MS) {
        onRejected(why);
        rejected = why;
        return;
      }
      clearTimeout(settling);
      settling = setTimeout(readAgain, failingSinceMs + SETTLE_MS - now + 1);
      settling.unref();
    }
  };
  // One after the other, so that an older reading never overtakes a newer one.
  const readAgain = () => {
    reading = reading.then(read);
  };
  const paths = [files.certFile, files.keyFile, files.clientCaFile].filter((path) => path !== undefined);
  const watchers: FSWatcher[] = [];
  for (const folder of new Set(paths.map((path) => dirname(path)))) {
    const watcher = watch(folder, { persistent: false }, readAgain);
    watcher.on('error', readAgain);
    watchers.push(watcher);
  }
  const timer = setInterval(readAgain, READ_EVERY_MS);
  timer.unref();
  return async () => {
    closed = true;
    clearInterval(timer);
    clearTimeout(settling);
    for (const watcher of watchers) watcher.close();
    await reading;
  };
}
