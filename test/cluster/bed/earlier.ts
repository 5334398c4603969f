// An earlier commit of this repository with its programs built, outside the checkout: what an upgrade starts from.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { cacheFolder } from '../../support/toolchains/venv.ts';
import type { Release } from './product.ts';

/** What users have installed before they upgrade. With a release it becomes that release's commit. */
const COMMIT = '020aaa14cb3d855c4e4724cbaf9fa78a3d5e9ad8';
const PARTS = ['package.json', 'package-lock.json', 'LICENSE', 'charts', 'image', 'native', 'src', 'webhook'];
const ROOT = join(import.meta.dirname, '../../..');

export type Earlier =
  | { readonly ok: true; readonly release: Release }
  | { readonly ok: false; readonly reason: string };

/** Builds what is not in the cache, if `get` is set. Never throws: if that is not possible, the result is a reason. */
export function earlierRelease(say: (line: string) => void, get = true): Earlier {
  const home = join(cacheFolder(), `earlier-${COMMIT.slice(0, 12)}-${process.arch}`);
  const done: Earlier = { ok: true, release: { checkout: home, tag: 'earlier' } };
  if (existsSync(home)) return done;
  if (!get) return { ok: false, reason: 'the earlier release is not built: node test/cluster/prepare.ts says why' };
  const fresh = `${home}.${process.pid}`;
  mkdirSync(fresh, { recursive: true });
  const cache = process.env.COTENANT_COMPILER_CACHE;
  const steps: { readonly does: string; readonly command: string[]; readonly folder?: string }[] = [
    {
      does: 'is not in this clone',
      command: ['git', '-C', ROOT, 'archive', '-o', join(fresh, 'all.tar'), COMMIT, ...PARTS],
    },
    { does: 'cannot be unpacked', command: ['tar', '-C', fresh, '-xf', join(fresh, 'all.tar')] },
    { does: 'gets no packages', command: ['npm', 'ci', '--omit=dev', '--ignore-scripts', '--no-audit', '--no-fund'] },
    {
      does: 'cannot be built',
      command: ['make', '-C', 'native', '-j2', ...(cache ? [`CC=${cache} gcc`, `CXX=${cache} g++`] : [])],
    },
    { does: 'cannot be tidied', command: ['rm', '-r', 'all.tar', 'native/build/o'] },
  ];
  say(`building commit ${COMMIT}, once`);
  for (const {
    does,
    command: [file = '', ...args],
  } of steps) {
    const { status, stderr, error } = spawnSync(file, args, { cwd: fresh, encoding: 'utf8', maxBuffer: 1 << 26 });
    if (status === 0) continue;
    rmSync(fresh, { recursive: true, force: true });
    const why = error?.message ?? stderr.trim().split('\n').at(-1);
    return { ok: false, reason: `commit ${COMMIT.slice(0, 12)}, from which to upgrade, ${does}: ${why}` };
  }
  if (existsSync(home)) rmSync(fresh, { recursive: true });
  else renameSync(fresh, home);
  return done;
}
