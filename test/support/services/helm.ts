// Finds helm, or builds the pinned version with Go into the cache, because neither Debian nor npm has it. The build
// takes minutes, once. What is rendered is the part of the chart's tests.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';

const MODULE = 'helm.sh/helm/v4';
export const HELM_VERSION = 'v4.3.1';
/** Timeout of a test that may have to build helm. */
export const BUILD_MS = 20 * 60_000;
const LOOK_MS = 60_000;
const TELL_EVERY_MS = 20_000;

export type Helm =
  | { readonly kind: 'ready'; readonly path: string }
  | { readonly kind: 'buildable' }
  | { readonly kind: 'missing'; readonly reason: string };

const folder = join(process.env.COTENANT_CACHE ?? join(homedir(), '.cache', 'cotenant'), 'helm', HELM_VERSION);
const pinned = join(folder, 'helm');

/** Fast enough to run while a test file loads: what is installed, and whether the rest could be fetched. */
export function lookForHelm(): Helm {
  if (existsSync(pinned)) return { kind: 'ready', path: pinned };
  // Run outside the checkout, so that Go does not look for a module in it.
  const go = spawnSync('go', ['list', '-m', `${MODULE}@${HELM_VERSION}`], {
    cwd: tmpdir(),
    timeout: LOOK_MS,
    encoding: 'utf8',
  });
  if (go.status === 0) return { kind: 'buildable' };
  const installed = (process.env.PATH ?? '')
    .split(':')
    .map((part) => join(part, 'helm'))
    .find((path) => spawnSync(path, ['version', '--short'], { encoding: 'utf8' }).stdout?.startsWith('v'));
  if (installed !== undefined) return { kind: 'ready', path: installed };
  const why =
    go.error !== undefined ? 'Go is not on the PATH' : `Go cannot fetch it: ${go.stderr.trim().split('\n').pop()}`;
  return { kind: 'missing', reason: `helm is not on the PATH, and ${why}` };
}

/** The program's path, built first if necessary. Prints the progress. Rejects when the build fails. */
export async function readyHelm(helm: Exclude<Helm, { kind: 'missing' }>): Promise<string> {
  if (helm.kind === 'ready') return helm.path;
  if (existsSync(pinned)) return pinned;
  mkdirSync(dirname(folder), { recursive: true });
  const work = mkdtempSync(join(dirname(folder), 'building-'));
  const started = performance.now();
  let packages = 0;
  let last = '';
  const tell = () => {
    const seconds = Math.round((performance.now() - started) / 1000);
    console.log(`building helm ${HELM_VERSION}, once: ${packages} packages after ${seconds} s`);
  };
  tell();
  const timer = setInterval(tell, TELL_EVERY_MS);
  try {
    const args = ['install', '-v', '-p', '2', `${MODULE}/cmd/helm@${HELM_VERSION}`];
    const child = spawn('go', args, {
      cwd: tmpdir(),
      env: { ...process.env, GOBIN: work },
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    const ended = once(child, 'close');
    for await (const line of createInterface({ input: child.stderr })) {
      last = line;
      if (!line.startsWith('go: ')) packages += 1;
    }
    const [code] = (await ended) as [number | null];
    if (code !== 0) throw new Error(`go install of helm ${HELM_VERSION} ended with ${code}: ${last}`);
    mkdirSync(folder, { recursive: true });
    renameSync(join(work, 'helm'), pinned);
    return pinned;
  } finally {
    clearInterval(timer);
    rmSync(work, { recursive: true, force: true });
  }
}

/** Runs helm without a cluster and without the user's files. */
export function runHelm(
  path: string,
  args: readonly string[],
  input = '',
): { readonly ok: boolean; readonly stdout: string; readonly stderr: string } {
  const home = join(tmpdir(), 'cotenant-helm-home');
  const env = {
    ...process.env,
    KUBECONFIG: '/dev/null',
    HELM_CACHE_HOME: join(home, 'cache'),
    HELM_CONFIG_HOME: join(home, 'config'),
    HELM_DATA_HOME: join(home, 'data'),
  };
  const result = spawnSync(path, args, { input, env, timeout: LOOK_MS, encoding: 'utf8' });
  return { ok: result.status === 0, stdout: result.stdout ?? '', stderr: result.stderr ?? '' };
}
