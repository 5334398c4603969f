// The certificate on disk: reads it, checks that key and certificate belong together, and tells when another one is there.
// Owns files and their watching; which server uses the certificate is the caller's.
import { createPrivateKey, X509Certificate } from 'node:crypto';
import { type FSWatcher, watch } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { createSecureContext } from 'node:tls';
import type { Certificate, CertificateSource } from './x509.ts';

export type CertificateFiles = { readonly certFile: string; readonly keyFile: string };

type Watching = {
  /** Resolves when nothing is read or told any more. */
  readonly close: () => Promise<void>;
};

// A mounted Secret is swapped by renaming a link, and file systems exist that send no events: both are caught by reading.
const READ_EVERY_MS = 30_000;

/** Both files, followed when they change. Rejects when they cannot serve at the start. */
export function fromFiles(files: CertificateFiles): CertificateSource {
  return async ({ take, refuse }) => {
    const certificate = await readCertificate(files);
    return { certificate, close: watchCertificate(files, certificate, take, refuse).close };
  };
}

/** Reads both files. Rejects with a text that names them where they cannot serve. */
export async function readCertificate({ certFile, keyFile }: CertificateFiles): Promise<Certificate> {
  const [cert, key] = await Promise.all([readFile(certFile, 'utf8'), readFile(keyFile, 'utf8')]);
  try {
    if (!new X509Certificate(cert).checkPrivateKey(createPrivateKey(key))) throw new Error('the key is of another one');
    createSecureContext({ cert, key });
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new Error(`certificate ${certFile} with key ${keyFile} cannot serve: ${why}`);
  }
  return { cert, key };
}

/**
 * Calls `onChange` with every new pair that can serve, and `onRefused` once for each that cannot (half-written pairs are
 * read again on the next event).
 */
function watchCertificate(
  files: CertificateFiles,
  current: Certificate,
  onChange: (certificate: Certificate) => void,
  onRefused: (why: string) => void,
): Watching {
  let serving = current;
  let refused = '';
  let closed = false;
  let reading = Promise.resolve();
  const read = async () => {
    if (closed) return;
    try {
      const found = await readCertificate(files);
      refused = '';
      if (closed || (found.cert === serving.cert && found.key === serving.key)) return;
      serving = found;
      onChange(found);
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      if (!closed && why !== refused) onRefused(why);
      refused = why;
    }
  };
  // One after the other, so that an older reading never overtakes a newer one.
  const readAgain = () => {
    reading = reading.then(read);
  };
  const folders = new Set([dirname(files.certFile), dirname(files.keyFile)]);
  const watchers: FSWatcher[] = [];
  for (const folder of folders) {
    const watcher = watch(folder, { persistent: false }, readAgain);
    watcher.on('error', readAgain);
    watchers.push(watcher);
  }
  const timer = setInterval(readAgain, READ_EVERY_MS);
  timer.unref();
  return {
    close: async () => {
      closed = true;
      clearInterval(timer);
      for (const watcher of watchers) watcher.close();
      await reading;
    },
  };
}
