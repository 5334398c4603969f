// Looks at this machine's driver, cgroups, clock and certificates by its files, below a root folder that tests and
// `kubectl debug` choose. Changes nothing.
import { X509Certificate } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { attempt } from '../../common/result.ts';
import { checkOf, type Finding } from './finding.ts';

export type Machine = {
  readonly root: string;
  readonly nowMs: number;
  /** The first line that `PROGRAM --version` prints; undefined: it cannot be started here. */
  readonly versionOf: (program: string) => string | undefined;
};

export const has = ({ root }: Machine, path: string): boolean => existsSync(join(root, path));

export function read({ root }: Machine, path: string): string | undefined {
  const text = attempt(() => readFileSync(join(root, path), 'utf8'));
  return text.ok ? text.value : undefined;
}

function names({ root }: Machine, path: string): readonly string[] {
  const found = attempt(() => readdirSync(join(root, path)));
  return found.ok ? found.value : [];
}

const LIBRARY_FOLDERS = ['usr/lib/x86_64-linux-gnu', 'usr/lib/aarch64-linux-gnu', 'usr/lib64', 'usr/lib'];

export function driverFindings(machine: Machine): readonly Finding[] {
  const { ok, warn, fail } = checkOf('driver');
  const [, version] =
    /NVRM version:.*?(\d+\.\d+(?:\.\d+)?)/.exec(read(machine, 'proc/driver/nvidia/version') ?? '') ?? [];
  if (version === undefined) {
    const todo = 'install the driver of NVIDIA, or load it with "modprobe nvidia"';
    return [fail('driver-not-loaded', 'the kernel module nvidia is not loaded', todo)];
  }
  const gpus = names(machine, 'proc/driver/nvidia/gpus').length;
  const nodes = names(machine, 'dev').filter((name) => /^nvidia\d+$/.test(name)).length;
  const library = LIBRARY_FOLDERS.some((folder) => has(machine, join(folder, 'libnvidia-ml.so.1')));
  return [
    gpus > 0
      ? ok('driver-loaded', `${version}, ${gpus} GPU(s)`)
      : fail('no-gpu', `${version}, and it has no GPU`, 'look for "NVRM" in the kernel log: dmesg | grep NVRM'),
    ...(nodes < gpus || !has(machine, 'dev/nvidiactl')
      ? [
          warn(
            'device-nodes-missing',
            `${nodes} of ${gpus} GPUs have a node in /dev`,
            'run "nvidia-modprobe -u -c 0", or nvidia-smi once',
          ),
        ]
      : []),
    ...(library
      ? []
      : [
          fail(
            'nvml-missing',
            'libnvidia-ml.so.1 is in none of the library folders',
            "install the driver's libraries of the same version",
          ),
        ]),
  ];
}

export function cgroupFindings(machine: Machine): readonly Finding[] {
  const { ok, warn } = checkOf('cgroups');
  const controllers = read(machine, 'sys/fs/cgroup/cgroup.controllers');
  if (controllers !== undefined) return [ok('cgroup-v2', `version 2, with ${controllers.trim() || 'no controller'}`)];
  const hybrid = has(machine, 'sys/fs/cgroup/unified/cgroup.procs');
  if (has(machine, 'sys/fs/cgroup/devices') || hybrid)
    return [
      warn(
        hybrid ? 'cgroup-hybrid' : 'cgroup-v1',
        `version 1${hybrid ? ' beside version 2' : ''}`,
        'Cotenant works with it; kubelets refuse version 1 by default since Kubernetes 1.35. Boot with systemd.unified_cgroup_hierarchy=1 for version 2',
      ),
    ];
  return [
    warn('cgroup-unknown', 'no cgroup hierarchy is mounted at /sys/fs/cgroup', 'mount it, or run doctor on the host'),
  ];
}

const SYNCHRONIZED = ['run/systemd/timesync/synchronized', 'run/chrony/chronyd.pid', 'run/ntpd.pid'];
/** Before this program was written. */
const LEAST_MS = Date.parse('2025-01-01T00:00:00Z');

export function clockFindings(machine: Machine): readonly Finding[] {
  const { ok, warn, fail } = checkOf('clock');
  const now = new Date(machine.nowMs).toISOString();
  if (machine.nowMs < LEAST_MS)
    return [fail('clock-not-set', `it is ${now} here`, 'set the clock: certificates and leases are judged by it')];
  if (SYNCHRONIZED.some((path) => has(machine, path))) return [ok('clock-synchronized', `${now}, by a time service`)];
  return [warn('clock-unsynchronized', `${now}, and no time service is seen`, 'start chrony or systemd-timesyncd')];
}

const SOON_DAYS = 14;
const DAY_MS = 86_400_000;

/** Of one certificate in PEM; `where`: a file or an object. */
export function certificateFinding(where: string, pem: string, nowMs: number): Finding {
  const { ok, warn, fail } = checkOf('certificate');
  const parsed = attempt(() => new X509Certificate(pem).validToDate.getTime());
  if (!parsed.ok) return fail('certificate-unreadable', `${where} has no certificate in PEM`, 'write it again');
  const days = Math.floor((parsed.value - nowMs) / DAY_MS);
  const until = new Date(parsed.value).toISOString();
  if (days < 0) return fail('certificate-expired', `${where} ended ${until}`, 'renew it');
  if (days < SOON_DAYS) return warn('certificate-expires', `${where} ends ${until}, in ${days} d`, 'renew it');
  return ok('certificate-valid', `${where} ends ${until}, in ${days} d`);
}

function certificateOfFile(file: string, nowMs: number): Finding {
  const pem = attempt(() => readFileSync(resolve(file), 'utf8'));
  if (pem.ok) return certificateFinding(file, pem.value, nowMs);
  return checkOf('certificate').fail(
    'certificate-unreadable',
    `${file} cannot be read: ${pem.error}`,
    'name another file',
  );
}

const KUBELET_CERTIFICATE = 'var/lib/kubelet/pki/kubelet-client-current.pem';

export function certificateFindings(machine: Machine, files: readonly string[]): readonly Finding[] {
  const kubelet = read(machine, KUBELET_CERTIFICATE);
  return [
    ...(kubelet === undefined ? [] : [certificateFinding(`/${KUBELET_CERTIFICATE}`, kubelet, machine.nowMs)]),
    ...files.map((file) => certificateOfFile(file, machine.nowMs)),
  ];
}
