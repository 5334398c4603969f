// Processes as they see themselves in their own PID namespaces, for all that this agent can see. Looks into /proc only when
// it is asked, and then once: what is asked about is rare (a process that ended).
import { readdirSync } from 'node:fs';
import type { Native } from '../native.ts';

/** One view for one sample; true also for whoever cannot be told from a living one. */
export function insideView(native: Native): (pidNamespace: number, pid: number, startTicks: number) => boolean {
  let alive: Set<string> | undefined;
  const key = (pidNamespace: number, pid: number, startTicks: number) => `${pidNamespace} ${pid} ${startTicks}`;
  return (pidNamespace, pid, startTicks) => {
    alive ??= new Set(
      readdirSync('/proc')
        .filter((name) => /^\d+$/.test(name))
        .flatMap((name) => {
          const facts = native.readProcess(Number(name));
          return facts && facts.state !== 'Z' ? [key(facts.pidNamespace, facts.namespacePid, facts.startTicks)] : [];
        }),
    );
    return alive.has(key(pidNamespace, pid, startTicks));
  };
}
