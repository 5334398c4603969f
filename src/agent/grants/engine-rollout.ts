// Rolls out an interposer engine to running grants, one grant at a time, and reports those that cannot get it. files.ts
// copies the engine and writes its number to the limits page.
import { engineName } from './engine-files.ts';
import type { GrantFileStore, GrantFiles } from './files.ts';
import type { Grant } from './grant.ts';

type Renewable = GrantFiles & { readonly grant: Grant; readonly folder: string };

export type Renewal = {
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
  readonly onProblem: (text: string) => void;
  /** Called for each grant that got the engine. */
  readonly onChange: (text: string) => void;
}): Renewal {
  const { files, brought, wanted, onProblem, onChange } = options;
  const failed = new Map<string, { readonly text: string; readonly atMs: number }>();
  const isBehind = ({ engine }: GrantFiles): boolean => wanted !== undefined && engine !== wanted;
  const isDue = ({ grant }: Renewable): boolean => {
    const last = failed.get(grant.id);
    return last === undefined || performance.now() - last.atMs >= RETRY_MS;
  };

  if (wanted !== undefined && !brought.includes(wanted)) {
    onProblem(
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
        failed.delete(id);
        onChange(`${namespace}/${pod}/${container} (grant ${id}) changes to engine ${wanted} of the interposer`);
      } catch (error) {
        const why = `engine ${wanted}: ${(error as Error).message}`;
        const text = `${namespace}/${pod}/${container} (grant ${id}) keeps its present engine, because it cannot get ${why}`;
        if (failed.get(id)?.text !== text) onProblem(text);
        failed.set(id, { text, atMs: performance.now() });
      }
    },
    forget: (id) => void failed.delete(id),
  };
}
