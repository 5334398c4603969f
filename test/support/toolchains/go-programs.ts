// Programs of other projects, built from Go modules by small modules of this checkout, and cached outside it by version.
// The first build takes minutes and reports its time.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { cacheFolder } from './venv.ts';

export type Programs =
  | { readonly ok: true; readonly bin: string; readonly version: string }
  | { readonly ok: false; readonly reason: string };

export type GoModule = {
  /** The folder with go.mod. */
  readonly folder: string;
  /** What it requires and what is built of it. */
  readonly path: string;
  readonly packages: readonly string[];
  /** Flags of the linker, by version. */
  readonly flags?: (version: string) => readonly string[];
};

/** Version that the module requires, without the v. */
export function versionOf({ folder, path }: GoModule): string {
  const requires = /^\s*(?:require )?(\S+) v(\S+)$/gm;
  const found = readFileSync(join(folder, 'go.mod'), 'utf8').matchAll(requires);
  const version = [...found].find(([, name]) => name === path)?.[2];
  if (version === undefined) throw new Error(`${folder}/go.mod asks for no ${path}`);
  return version;
}

/** Folder of the built programs; if it exists it is complete. */
export const homeOf = (module: GoModule): string =>
  join(cacheFolder(), `${module.path.split('/').at(-1)}-${versionOf(module)}-${process.arch}`);

export const isBuilt = (module: GoModule): boolean => existsSync(homeOf(module));

/** Builds what is not in the cache. Never throws: if it cannot be built here, the result is a reason. */
export function goPrograms(module: GoModule, say: (line: string) => void): Programs {
  const { folder, path, packages, flags } = module;
  const version = versionOf(module);
  return buildGo({ home: homeOf(module), folder: () => folder, path, version, packages, flags: flags?.(version) }, say);
}

export type GoBuild = {
  readonly home: string;
  /** The folder with go.mod; a throw is the reason why it cannot be built. */
  readonly folder: () => string;
  readonly path: string;
  readonly version: string;
  readonly packages: readonly string[];
  readonly flags?: readonly string[] | undefined;
  /** Whether go.mod may be completed by the build; by default what it says is all. */
  readonly completes?: boolean;
};

/** As goPrograms. */
export function buildGo(
  { home, folder, path, version, packages, flags = [], completes = false }: GoBuild,
  say: (line: string) => void,
): Programs {
  if (existsSync(home)) return { ok: true, bin: home, version };
  if (spawnSync('go', ['version']).status !== 0) return { ok: false, reason: 'Go is not on the PATH' };
  const fresh = `${home}.${process.pid}`;
  say(`building ${path} ${version} from Go modules; minutes, once`);
  const started = performance.now();
  const link = ['-s', '-w', ...flags].join(' ');
  const args = ['build', '-p', '2', '-trimpath', '-ldflags', link, '-o', `${fresh}/`, ...packages];
  let cwd: string;
  try {
    cwd = folder();
  } catch (error) {
    return { ok: false, reason: `${path} cannot be had: ${error instanceof Error ? error.message : error}` };
  }
  mkdirSync(fresh, { recursive: true });
  const built = spawnSync('go', args, {
    cwd,
    env: { ...process.env, GOFLAGS: `-mod=${completes ? 'mod' : 'readonly'} -buildvcs=false`, CGO_ENABLED: '0' },
    encoding: 'utf8',
    maxBuffer: 1 << 26,
  });
  if (built.status !== 0) {
    rmSync(fresh, { recursive: true, force: true });
    return { ok: false, reason: `${path} cannot be built: ${built.stderr.trim().split('\n').at(-1) ?? ''}` };
  }
  if (existsSync(home)) rmSync(fresh, { recursive: true });
  else renameSync(fresh, home);
  say(`built ${path} ${version} in ${Math.round((performance.now() - started) / 1000)} s`);
  return { ok: true, bin: home, version };
}
