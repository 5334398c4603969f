// The kernel's boot ID, which changes with each start of the machine.
import { readFileSync } from 'node:fs';

/** Empty where it cannot be read: then a reboot cannot be recognized. */
export function readBootId(): string {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  } catch {
    return '';
  }
}
