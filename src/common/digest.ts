// Short digests of texts, and equal values kept once: for programs that keep something of each of very many objects.
import { hash } from 'node:crypto';

/** 96 bits of SHA-256 as 16 characters; a slice of a longer text would keep all of it in memory. */
export const shortDigest = (text: string): string => hash('sha256', text, 'buffer').toString('base64', 0, 12);

/** A tenant chooses some of the keys, labels for example, which may be a megabyte each. */
const MOST_KEY_LENGTH = 1024;

/**
 * Returns the first value that was passed with this key, so that equal ones are in memory once. Values with a long key
 * are returned as they are, so that the pool keeps at most `mostKeys` short ones of objects that are gone.
 */
export function createPool<T>(mostKeys: number): (key: string, value: T) => T {
  const pool = new Map<string, T>();
  return (key, value) => {
    const known = pool.get(key);
    if (known !== undefined) return known;
    if (key.length > MOST_KEY_LENGTH) return value;
    if (pool.size === mostKeys) pool.clear();
    pool.set(key, value);
    return value;
  };
}
