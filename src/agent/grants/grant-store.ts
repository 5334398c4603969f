// The folders of grants in the state folder: one per grant, with grant.json, from which the next agent adopts the
// grant.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { err, type Result } from '../../common/result.ts';
import { prepareFile } from '../../common/state-file.ts';
import { formatGrant, type Grant, parseGrant } from './grant.ts';

export type GrantStore = {
  ids(): readonly string[];
  folderOf(id: string): string;
  read(id: string): Result<Grant>;
  /** Writes grant.json where there is none: after a crash the grant must be known before the kubelet mounts its
   * volume. */
  ensure(grant: Grant): void;
  /** Writes the new content beside the file; calling the result replaces the file. */
  prepare(grant: Grant): () => void;
  remove(id: string): void;
};

export function createGrantStore(stateFolder: string): GrantStore {
  const root = join(stateFolder, 'grants');
  mkdirSync(root, { recursive: true, mode: 0o755 });
  const folderOf = (id: string): string => join(root, id);
  const pathOf = (id: string): string => join(folderOf(id), 'grant.json');
  const prepare = (grant: Grant): (() => void) => {
    mkdirSync(folderOf(grant.id), { recursive: true, mode: 0o755 });
    return prepareFile(pathOf(grant.id), formatGrant(grant), { sync: false });
  };
  return {
    ids: () => readdirSync(root),
    folderOf,
    read: (id) => (existsSync(pathOf(id)) ? parseGrant(readFileSync(pathOf(id), 'utf8')) : err('the file is missing')),
    ensure(grant) {
      if (!existsSync(pathOf(grant.id))) prepare(grant)();
    },
    prepare,
    remove: (id) => rmSync(folderOf(id), { recursive: true, force: true }),
  };
}
