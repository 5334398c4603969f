// containerd, runc, etcd, CNI plugins and busybox from Debian's packages.
import {
  type Packages,
  packagesFolder,
  debianPackages as packagesOf,
  type Wanted,
} from '../../support/toolchains/debian.ts';

const PACKAGES: readonly Wanted[] = [
  { name: 'containerd', from: 'sid' },
  { name: 'etcd-server', from: 'sid' },
  { name: 'etcd-client', from: 'sid' },
  // Newer packages need a newer C library.
  { name: 'runc', from: 'own' },
  { name: 'containernetworking-plugins', from: 'own' },
  { name: 'busybox-static', from: 'own' },
];

export const packagesHome = (): string => packagesFolder('bed-packages', PACKAGES);

export const debianPackages = (say: (line: string) => void): Packages => packagesOf(packagesHome(), PACKAGES, say);
