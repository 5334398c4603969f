// Kubernetes' own programs, built from Go modules by the small module in test/cluster/kubernetes and cached outside the
// checkout by version. The first build takes minutes and reports its time.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { cacheFolder } from '../../support/toolchains/venv.ts';

const MODULE = join(import.meta.dirname, '../kubernetes');
const PROGRAMS = ['kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kubelet', 'kubectl'];

/** Version of k8s.io/kubernetes that the module requires, without the v. */
export function kubernetesVersion(): string {
  const version = /^\s*(?:require )?k8s\.io\/kubernetes v(\S+)$/m.exec(
    readFileSync(join(MODULE, 'go.mod'), 'utf8'),
  )?.[1];
  if (version === undefined) throw new Error(`${MODULE}/go.mod asks for no k8s.io/kubernetes`);
  return version;
}

/** Folder of the built programs; if it exists it is complete. */
export const kubernetesHome = (): string => join(cacheFolder(), `kubernetes-${kubernetesVersion()}-${process.arch}`);

export type Programs =
  | { readonly ok: true; readonly bin: string; readonly version: string }
  | { readonly ok: false; readonly reason: string };

/** Builds what is not in the cache. Never throws: if it cannot be built here, the result is a reason. */
export function kubernetesPrograms(say: (line: string) => void): Programs {
  const version = kubernetesVersion();
  const home = kubernetesHome();
  if (existsSync(home)) return { ok: true, bin: home, version };
  if (spawnSync('go', ['version']).status !== 0) return { ok: false, reason: 'Go is not on the PATH' };
  const [major = '', minor = ''] = version.split('.');
  const facts = {
    gitVersion: `v${version}`,
    gitMajor: major,
    gitMinor: minor,
    gitTreeState: 'clean',
    gitCommit: 'module',
    buildDate: '1970-01-01T00:00:00Z',
  };
  // Without these variables a server reports v0.0.0, which clients distrust.
  const flags = ['k8s.io/component-base/version', 'k8s.io/client-go/pkg/version'].flatMap((path) =>
    Object.entries(facts).map(([name, value]) => `-X ${path}.${name}=${value}`),
  );
  const fresh = `${home}.${process.pid}`;
  mkdirSync(fresh, { recursive: true });
  say(`building Kubernetes ${version} from Go modules; minutes, once`);
  const started = performance.now();
  const args = ['build', '-p', '2', '-trimpath', '-ldflags', `-s -w ${flags.join(' ')}`, '-o', `${fresh}/`];
  const built = spawnSync('go', [...args, ...PROGRAMS.map((name) => `k8s.io/kubernetes/cmd/${name}`)], {
    cwd: MODULE,
    env: { ...process.env, GOFLAGS: '-mod=readonly -buildvcs=false', CGO_ENABLED: '0' },
    encoding: 'utf8',
    maxBuffer: 1 << 26,
  });
  if (built.status !== 0) {
    rmSync(fresh, { recursive: true, force: true });
    return { ok: false, reason: `Kubernetes cannot be built: ${built.stderr.trim().split('\n').at(-1) ?? ''}` };
  }
  if (existsSync(home)) rmSync(fresh, { recursive: true });
  else renameSync(fresh, home);
  say(`built Kubernetes ${version} in ${Math.round((performance.now() - started) / 1000)} s`);
  return { ok: true, bin: home, version };
}
