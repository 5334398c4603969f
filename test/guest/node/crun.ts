// crun in the place of runc in the guest (COTENANT_RUNTIME=crun): Debian's newest, as that of older releases takes no
// container from containerd 2.1. It brings the C library that it was built for.
import { join } from 'node:path';
import { debianPackages, type Packages, packagesFolder, type Wanted } from '../../support/toolchains/debian.ts';

const PACKAGES: readonly Wanted[] = [
  ...['crun', 'libc6', 'libgcc-s1', 'libsystemd0', 'libcap2', 'libseccomp2', 'libblake3-0', 'libjson-c5'],
].map((name) => ({ name, from: 'sid' }));
const HOME = '/usr/lib/crun';

export const OCI_RUNTIMES = ['runc', 'crun'] as const;
export type OciRuntime = (typeof OCI_RUNTIMES)[number];

export function ociRuntime(): OciRuntime {
  const { COTENANT_RUNTIME: name = 'runc' } = process.env;
  const known = OCI_RUNTIMES.find((one) => one === name);
  if (known === undefined) throw new Error(`COTENANT_RUNTIME=${name}: write ${OCI_RUNTIMES.join(' or ')}`);
  return known;
}

/** Fetches it where it is missing. */
export const crunPackages = (say: (line: string) => void): Packages =>
  debianPackages(packagesFolder('crun', PACKAGES), PACKAGES, say);

/** Where its files go, by where they are in the packages' folder; and the program that starts it. */
export const CRUN_FILES: Readonly<Record<string, string>> = {
  'usr/bin/crun': join(HOME, 'crun'),
  'usr/lib/x86_64-linux-gnu': join(HOME, 'lib'),
};
export const CRUN_PROGRAM = `#!/bin/sh
exec ${HOME}/lib/ld-linux-x86-64.so.2 --library-path ${HOME}/lib --argv0 crun ${HOME}/crun "$@"
`;
