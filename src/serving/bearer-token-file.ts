// The one token that opens the page, from a file: read again when it is asked for, so that a mounted Secret may change. While
// the file cannot be read, or is too short to be a secret, nobody is let in by it.
import { createHash, timingSafeEqual } from 'node:crypto';
import { readFile } from 'node:fs/promises';

const READ_EVERY_MS = 1000;
const LEAST_LENGTH = 16;

export type BearerFile = {
  /** Is that the file's token? Takes the same time whatever they have in common. Rejects where the file has none. */
  matches(token: string): Promise<boolean>;
};

const digest = (text: string): Buffer => createHash('sha256').update(text).digest();

async function readToken(path: string): Promise<Buffer> {
  const token = (await readFile(path, 'utf8')).trim();
  if (token.length < LEAST_LENGTH || /\s/.test(token))
    throw new Error(`${path}: want one token of at least ${LEAST_LENGTH} characters without blanks`);
  return digest(token);
}

/** Rejects when the file cannot serve at the start. */
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
