// Watches one folder for changes, and watches it again when it was deleted and created anew. A watch can be lost
// silently, so callers also look from time to time.
import { type FSWatcher, statSync, watch } from 'node:fs';

type FolderWatch = {
  /** Starts the watch, or renews it where the folder is another one now. Throws where the folder cannot be read. */
  follow(): void;
  close(): void;
};

export function createFolderWatch(path: string, onEvent: (name: string | null) => void): FolderWatch {
  let current: { readonly watcher: FSWatcher; readonly identity: string } | undefined;
  const close = () => {
    current?.watcher.close();
    current = undefined;
  };
  return {
    follow() {
      const found = statSync(path, { bigint: true, throwIfNoEntry: false });
      // A folder created anew often gets the same inode number.
      const identity = found && `${found.dev}:${found.ino}:${found.birthtimeNs}`;
      if (current?.identity === identity) return;
      close();
      if (identity === undefined) return;
      try {
        const watcher = watch(path, { persistent: false }, (_event, name) => onEvent(name));
        watcher.on('error', close);
        current = { watcher, identity };
      } catch {
        // Too many watches on this machine.
      }
    },
    close,
  };
}
