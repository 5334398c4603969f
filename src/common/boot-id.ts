// Which start of the machine this is.
import { readFileSync } from 'node:fs';

/** Another one after each start of the machine; empty where it cannot be read: then a restart of it proves nothing. */
export function bootIdOfMachine(): string {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  } catch {
    return '';
  }
}
