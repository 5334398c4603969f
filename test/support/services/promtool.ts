// Finds Prometheus, promtool and Alertmanager: on the PATH, in the cache, or in Debian's packages, which are unpacked
// and not installed. Never throws: if there is none, the result is a reason.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

/** The tool's path, or the reason for a skipped test. */
export type Promtool = { readonly path: string } | { readonly reason: string };

/** The programs of each package of Debian. */
const PACKAGES = {
  prometheus: ['promtool', 'prometheus'],
  'prometheus-alertmanager': ['prometheus-alertmanager'],
} as const;
type Package = keyof typeof PACKAGES;
/** What else of a package a program does not start without; beside the programs, below `prometheus`. */
const MORE: Partial<Readonly<Record<Package, readonly string[]>>> = {
  'prometheus-alertmanager': ['./usr/share/prometheus/alertmanager'],
};
// All of this happens while a test file loads, for which ava allows two minutes.
const LOOK_MS = 20_000;
const FETCH_MS = 60_000;

/** Takes about 10 s the first time (a package of some 20 MB), then milliseconds. Prints what it fetches. */
export const findPromtool = (): Promtool => find('prometheus', 'promtool');

/** The same for the server. */
export const findPrometheus = (): Promtool => find('prometheus', 'prometheus');

export const findAlertmanager = (): Promtool => find('prometheus-alertmanager', 'prometheus-alertmanager');

function find(name: Package, program: string): Promtool {
  const installed = (process.env.PATH ?? '')
    .split(':')
    .map((folder) => join(folder, program))
    .find((path) => existsSync(path));
  if (installed !== undefined) return { path: installed };
  const cache = join(process.env.COTENANT_CACHE ?? join(homedir(), '.cache', 'cotenant'), name);
  const candidate = candidateVersion(name) ?? cachedVersion(cache, PACKAGES[name]);
  if (candidate === undefined) return { reason: `${program} is not on the PATH, and apt knows no package ${name}` };
  const path = join(cache, encodeURIComponent(candidate), program);
  if (existsSync(path)) return { path };
  console.log(`fetching ${name} ${candidate} from Debian into ${cache}`);
  mkdirSync(cache, { recursive: true });
  const work = mkdtempSync(join(cache, 'fetching-'));
  try {
    const why = unpack(work, name, candidate);
    if (why !== undefined) return { reason: `${program} is not on the PATH, and could not be fetched: ${why}` };
    // Another test may have been faster; its copy is as good.
    if (!existsSync(path)) renameSync(join(work, 'unpacked'), join(cache, encodeURIComponent(candidate)));
    return { path };
  } catch (error) {
    return existsSync(path) ? { path } : { reason: `${program} could not be put into ${cache}: ${String(error)}` };
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** The version that apt would install. Where the package lists are empty (fresh images), they are fetched first. */
function candidateVersion(name: Package): string | undefined {
  const ask = () => {
    const { stdout } = run('apt-cache', ['policy', name], undefined, LOOK_MS);
    const version = /^ *Candidate: (\S+)$/m.exec(stdout)?.[1];
    return version === '(none)' ? undefined : version;
  };
  const known = ask();
  if (known !== undefined) return known;
  return run('apt-get', ['-qq', 'update'], undefined, FETCH_MS).ok ? ask() : undefined;
}

/** A version that was fetched when apt still offered it. */
function cachedVersion(cache: string, programs: readonly string[]): string | undefined {
  const names = existsSync(cache) ? readdirSync(cache) : [];
  const found = names.find((name) => programs.every((program) => existsSync(join(cache, name, program))));
  return found === undefined ? undefined : decodeURIComponent(found);
}

/** Copies the programs from `unpacked` to `work`; returns the error, if any. */
function unpack(work: string, name: Package, version: string): string | undefined {
  const programs: readonly string[] = PACKAGES[name];
  const what = `${name}=${version}`;
  const download = run('apt-get', ['-qq', 'download', what], work, FETCH_MS);
  const archive = readdirSync(work).find((name) => name.endsWith('.deb'));
  if (!download.ok || archive === undefined)
    return download.stderr.trim().split('\n').pop() || 'apt-get download failed';
  const unpacked = join(work, 'unpacked');
  mkdirSync(unpacked);
  const shell =
    'archive=$1; into=$2; shift 2; dpkg-deb --fsys-tarfile "$archive" | tar -xC "$into" --strip-components 3 "$@"';
  const members = [...programs.map((program) => `./usr/bin/${program}`), ...(MORE[name] ?? [])];
  const extract = run('sh', ['-c', shell, 'sh', archive, unpacked, ...members], work, LOOK_MS);
  return extract.ok && programs.every((program) => existsSync(join(unpacked, program)))
    ? undefined
    : `${archive}: ${extract.stderr.trim()}`;
}

/** Output and exit code of promtool for a page of metrics; '' and 0 if it finds nothing. Throws if there is no
 * promtool. */
export function checkMetrics(page: string): { readonly status: number | null; readonly said: string } {
  const promtool = findPromtool();
  if ('reason' in promtool) throw new Error(promtool.reason);
  const { status, stdout, stderr } = spawnSync(promtool.path, ['check', 'metrics'], { input: page, encoding: 'utf8' });
  return { status, said: `${stdout}${stderr}` };
}

/** Runs a program to its end. A missing program counts as a failed one. */
export function run(
  file: string,
  args: readonly string[],
  cwd: string | undefined,
  timeout: number,
): { readonly ok: boolean; readonly stdout: string; readonly stderr: string } {
  const result = spawnSync(file, args, { ...(cwd !== undefined && { cwd }), timeout, encoding: 'utf8' });
  const stderr = (result.stderr ?? '') + (result.error === undefined ? '' : String(result.error));
  return { ok: result.status === 0, stdout: result.stdout ?? '', stderr };
}
