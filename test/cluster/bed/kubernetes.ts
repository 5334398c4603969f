// Kubernetes' own programs, and prometheus-adapter: what of them is built. COTENANT_KUBERNETES=1.30.14 takes that version in
// place of the one that the tests usually run on.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  buildGo,
  type GoModule,
  goPrograms,
  homeOf,
  type Programs,
  versionOf,
} from '../../support/toolchains/go-programs.ts';
import { cacheFolder } from '../../support/toolchains/venv.ts';

const KUBERNETES: GoModule = {
  folder: join(import.meta.dirname, '../kubernetes'),
  path: 'k8s.io/kubernetes',
  packages: ['kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kubelet', 'kubectl'].map(
    (name) => `k8s.io/kubernetes/cmd/${name}`,
  ),
  // Without these variables a server reports v0.0.0, which clients distrust.
  flags(version) {
    const [major = '', minor = ''] = version.split('.');
    const facts = {
      gitVersion: `v${version}`,
      gitMajor: major,
      gitMinor: minor,
      gitTreeState: 'clean',
      gitCommit: 'module',
      buildDate: '1970-01-01T00:00:00Z',
    };
    return ['k8s.io/component-base/version', 'k8s.io/client-go/pkg/version'].flatMap((path) =>
      Object.entries(facts).map(([name, value]) => `-X ${path}.${name}=${value}`),
    );
  },
};

/** Makes metrics of pods from queries of a Prometheus, for Kubernetes' autoscaler of replicas. */
export const METRICS_ADAPTER: GoModule = {
  folder: join(import.meta.dirname, '../metrics-adapter'),
  path: 'sigs.k8s.io/prometheus-adapter',
  packages: ['sigs.k8s.io/prometheus-adapter/cmd/adapter'],
};

const OTHER = process.env.COTENANT_KUBERNETES;

/** Writes a module that requires this version of Kubernetes, whose own parts its go.mod takes from folders of its
 * repository, beside the folder of its programs. */
function moduleOf(version: string): string {
  const answer = execFileSync('go', ['mod', 'download', '-json', `${KUBERNETES.path}@v${version}`], {
    encoding: 'utf8',
  });
  const own = readFileSync((JSON.parse(answer) as { readonly GoMod: string }).GoMod, 'utf8');
  const parts = new Set([...own.matchAll(/^\s*(k8s\.io\/\S+) v0\.0\.0$/gm)].map(([, name]) => name));
  const replaced = [...parts].map((name) => `replace ${name} => ${name} v0.${version.slice(version.indexOf('.') + 1)}`);
  const [go = ''] = /^go .*$/m.exec(own) ?? [];
  const folder = `${kubernetesHome()}.module`;
  mkdirSync(folder, { recursive: true });
  writeFileSync(
    join(folder, 'go.mod'),
    ['module other', go, `require ${KUBERNETES.path} v${version}`, ...replaced, ''].join('\n'),
  );
  return folder;
}

export const kubernetesVersion = (): string => OTHER ?? versionOf(KUBERNETES);

/** 36 of 1.36.4. */
export const kubernetesMinor = (): number => Number(kubernetesVersion().split('.')[1]);

export const kubernetesHome = (): string =>
  OTHER === undefined ? homeOf(KUBERNETES) : join(cacheFolder(), `kubernetes-${OTHER}-${process.arch}`);

export function kubernetesPrograms(say: (line: string) => void): Programs {
  if (OTHER === undefined) return goPrograms(KUBERNETES, say);
  const { path, packages, flags } = KUBERNETES;
  const home = kubernetesHome();
  const folder = () => moduleOf(OTHER);
  return buildGo({ home, folder, path, version: OTHER, packages, flags: flags?.(OTHER), completes: true }, say);
}
