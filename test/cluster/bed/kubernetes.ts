// Kubernetes' own programs, and prometheus-adapter: what of them is built.
import { join } from 'node:path';
import { type GoModule, goPrograms, homeOf, type Programs } from '../../support/toolchains/go-programs.ts';

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

export const kubernetesHome = (): string => homeOf(KUBERNETES);

export const kubernetesPrograms = (say: (line: string) => void): Programs => goPrograms(KUBERNETES, say);
