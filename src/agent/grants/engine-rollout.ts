// Rolls out an interposer engine to running grants, one grant at a time, and reports those that cannot get it. files.ts
// copies the engine and writes its number to the limits page.
import type { Logger } from '../../common/logger.ts';
import { engineName } from './engine-files.ts';
import type { GrantFileStore, GrantFiles } from './files.ts';
import type { Grant } from './grant.ts';

type Renewable = GrantFiles & { readonly grant: Grant; readonly folder: string };

type Renewal = {
  /** Changes the first grant with another engine, which was not tried recently, to the wanted engine. */
  next(entries: readonly Renewable[]): void;
  isBehind(entry: GrantFiles): boolean;
  forget(id: string): void;
};

/** Pause after a failure: a full volume usually stays full. */
const RETRY_MS = 60_000;

export function createRenewal(options: {
  readonly files: Pick<GrantFileStore, 'changeEngine'>;
  /** Numbers of the engines in the build. */
  readonly brought: readonly number[];
  readonly wanted: number | undefined;
  readonly log: Pick<Logger, 'info' | 'warn'>;
}): Renewal {
  const { files, brought, wanted, log } = options;
  const failedMs = new Map<string, number>();
  const isBehind = ({ engine }: GrantFiles): boolean => wanted !== undefined && engine !== wanted;
  const isDue = ({ grant }: Renewable): boolean => {
    const last = failedMs.get(grant.id);
    return last === undefined || performance.now() - last >= RETRY_MS;
  };

  if (wanted !== undefined && !brought.includes(wanted)) {
    log.warn(
      `interposerEngine: this build has no engine ${wanted} (it has ${brought.join(', ')}): only grants whose folder has ${engineName(wanted)} change to it`,
    );
  }
  return {
    isBehind,
    next(entries) {
      const entry = entries.find((one) => isBehind(one) && isDue(one));
      if (!entry || wanted === undefined) return;
      const { id, namespace, pod, container } = entry.grant;
      try {
        if (!brought.includes(wanted) && !entry.engines.includes(wanted))
          throw new Error(`${engineName(wanted)} is neither in its folder nor in this build`);
        files.changeEngine(entry.grant, entry.folder, entry, wanted);
        failedMs.delete(id);
        log.info(`${namespace}/${pod}/${container} (grant ${id}) changes to engine ${wanted} of the interposer`);
      } catch (error) {
        const why = `engine ${wanted}: ${(error as Error).message}`;
        log.warn(
          `${namespace}/${pod}/${container} (grant ${id}) keeps its present engine, because it cannot get ${why}`,
        );
        failedMs.set(id, performance.now());
      }
    },
    forget: (id) => void failedMs.delete(id),
  };
}
