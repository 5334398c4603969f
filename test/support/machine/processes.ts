// Processes of this machine, to test that none is left behind.
import { readdirSync, readFileSync } from 'node:fs';

/** Command lines of processes that contain a path. */
export const processesNaming = (path: string): string[] =>
  readdirSync('/proc').flatMap((name) => {
    if (!/^\d+$/.test(name)) return [];
    try {
      const args = readFileSync(`/proc/${name}/cmdline`, 'utf8').replaceAll('\0', ' ');
      return args.includes(path) ? [args] : [];
    } catch {
      return []; // it has ended meanwhile
    }
  });
