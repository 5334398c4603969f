// What the emulated node has in the place of runc and of a first process that only collects children: crun
// (COTENANT_RUNTIME=crun), and systemd, by which containerd and the kubelet then make cgroups
// (COTENANT_CGROUP_DRIVER=systemd).
import { join } from 'node:path';
import { debianPackages, type Packages, packagesFolder, type Wanted } from '../../support/toolchains/debian.ts';

/** Debian's newest: that of older releases takes no container from containerd 2.1. With the C library that it needs. */
const CRUN: readonly Wanted[] = [
  ...['crun', 'libc6', 'libgcc-s1', 'libsystemd0', 'libcap2', 'libseccomp2', 'libblake3-0', 'libjson-c5'],
].map((name) => ({ name, from: 'sid' }));
const SYSTEMD: readonly Wanted[] = [
  { name: 'systemd', from: 'own', as: 'needs' },
  { name: 'libsystemd-shared', from: 'own' },
];

export const OCI_RUNTIMES = ['runc', 'crun'] as const;
export const CGROUP_DRIVERS = ['cgroupfs', 'systemd'] as const;

function chosen<T extends string>(variable: string, choices: readonly [T, ...T[]]): T {
  const name = process.env[variable] ?? choices[0];
  const known = choices.find((one) => one === name);
  if (known === undefined) throw new Error(`${variable}=${name}: write ${choices.join(' or ')}`);
  return known;
}

export const ociRuntime = () => chosen('COTENANT_RUNTIME', OCI_RUNTIMES);
export const cgroupDriver = () => chosen('COTENANT_CGROUP_DRIVER', CGROUP_DRIVERS);

/** Both fetch what is missing. */
export const crunPackages = (say: (line: string) => void): Packages =>
  debianPackages(packagesFolder('crun', CRUN), CRUN, say);
export const systemdPackages = (say: (line: string) => void): Packages =>
  debianPackages(packagesFolder('guest-systemd', SYSTEMD), SYSTEMD, say);

const HOME = '/usr/lib/crun';
/** Where crun's files go, by where they are in the packages' folder; and the program that starts it. */
export const CRUN_FILES: Readonly<Record<string, string>> = {
  'usr/bin/crun': join(HOME, 'crun'),
  'usr/lib/x86_64-linux-gnu': join(HOME, 'lib'),
};
export const CRUN_PROGRAM = `#!/bin/sh
exec ${HOME}/lib/ld-linux-x86-64.so.2 --library-path ${HOME}/lib --argv0 crun ${HOME}/crun "$@"
`;

export const SYSTEMD_PROGRAM = '/usr/lib/systemd/systemd';
/** Units by their names: `command` runs as long as the machine does. */
export const systemdUnits = (command: string): Readonly<Record<string, string>> => ({
  'shutdown.target': '[Unit]\nDefaultDependencies=no\n',
  'default.target': '[Unit]\nDefaultDependencies=no\nWants=control.service\n',
  'control.service': `[Unit]
DefaultDependencies=no
[Service]
ExecStart=${command}
Environment=PATH=/usr/bin:/usr/sbin HOME=/root
StandardOutput=append:/var/log/control.log
StandardError=append:/var/log/control.log
TasksMax=infinity
LimitNOFILE=65536
`,
});
