// The bearer token in a file that opens the exporter's pages. Read again while it is used, so that a mounted Secret may
// change; a file that cannot be read, or is too short to be a secret, opens nothing.
import { createHash, timingSafeEqual } from 'node:crypto';
import { readFile } from 'node:fs/promises';

const READ_EVERY_MS = 1000;
const LEAST_LENGTH = 16;

export type BearerFile = {
  /** Compares in constant time. Rejects where the file has no valid token. */
  matches(token: string): Promise<boolean>;
};

const digest = (text: string): Buffer => createHash('sha256').update(text).digest();

async function readToken(path: string): Promise<Buffer> {
  const token = (await readFile(path, 'utf8')).trim();
  if (token.length < LEAST_LENGTH || /\s/.test(token))
    throw new Error(`${path}: want one token of at least ${LEAST_LENGTH} characters without blanks`);
  return digest(token);
}

/** Rejects where the file has no valid token at the start. */
export async function openBearerTokenFile(path: string, now: () => number): Promise<BearerFile> {
  let reading = readToken(path);
  let readAt = now();
  await reading;
  return {
    async matches(token) {
      if (now() - readAt >= READ_EVERY_MS) {
        readAt = now();
        reading = readToken(path);
      }
      return timingSafeEqual(digest(token), await reading);
    },
  };
}
