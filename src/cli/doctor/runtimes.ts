// Looks for container runtimes, whether they read CDI files, NVIDIA's toolkit, and the way by which a container with a
// share would get its GPUs. What a runtime does by default is from its own release notes: containerd 2.0 and Docker 28.2
// read CDI files, Podman 4.1 and CRI-O 1.23 always do; containerd 2.1 and CRI-O 1.34 take CDI names by NRI.
import { join } from 'node:path';
import { specificationsIn } from '../../agent/kubelet/cdi/folders.ts';
import { sourceOf } from '../../agent/kubelet/cdi/spec.ts';
import { attempt } from '../../common/result.ts';
import { checkOf, type Finding } from './finding.ts';
import { has, type Machine, read } from './machine.ts';

type Version = readonly [major: number, minor: number];
type Runtime = {
  readonly name: string;
  readonly version: Version | undefined;
  /** Undefined: not known. */
  readonly cdi: boolean | undefined;
  readonly nvidiaByDefault: boolean;
};

const PROGRAM_FOLDERS = ['usr/bin', 'usr/local/bin', 'usr/sbin', 'usr/local/sbin', 'opt/bin', 'bin'];
const programOf = (machine: Machine, name: string): string | undefined =>
  PROGRAM_FOLDERS.map((folder) => join(folder, name)).find((path) => has(machine, path));

const isFrom = (version: Version | undefined, major: number, minor: number): boolean | undefined =>
  version && (version[0] > major || (version[0] === major && version[1] >= minor));

/** Of the machine's runtimes: the program, and whether it reads CDI files and runs containers under NVIDIA's runtime. */
const KNOWN: readonly {
  readonly name: string;
  readonly program: string;
  readonly cdi: (version: Version | undefined, machine: Machine) => boolean | undefined;
  readonly nvidiaByDefault: (machine: Machine) => boolean;
}[] = [
  {
    name: 'containerd',
    program: 'containerd',
    cdi: (version, machine) => {
      const [, set] =
        /^\s*enable_cdi\s*=\s*(true|false)/m.exec(read(machine, 'etc/containerd/config.toml') ?? '') ?? [];
      return set === undefined ? isFrom(version, 2, 0) : set === 'true' && isFrom(version, 1, 7);
    },
    nvidiaByDefault: (machine) =>
      /^\s*default_runtime_name\s*=\s*["']nvidia/m.test(read(machine, 'etc/containerd/config.toml') ?? ''),
  },
  {
    name: 'docker',
    program: 'dockerd',
    cdi: (version, machine) => dockerSettings(machine)?.features?.cdi ?? isFrom(version, 28, 2),
    nvidiaByDefault: (machine) => /nvidia/.test(String(dockerSettings(machine)?.['default-runtime'] ?? '')),
  },
  { name: 'podman', program: 'podman', cdi: (version) => isFrom(version, 4, 1), nvidiaByDefault: () => false },
  {
    name: 'cri-o',
    program: 'crio',
    cdi: (version) => isFrom(version, 1, 23),
    nvidiaByDefault: (machine) =>
      /^\s*default_runtime\s*=\s*["']nvidia/m.test(read(machine, 'etc/crio/crio.conf') ?? ''),
  },
];

type DockerSettings = { readonly features?: { readonly cdi?: boolean }; readonly 'default-runtime'?: unknown };
function dockerSettings(machine: Machine): DockerSettings | undefined {
  const parsed = attempt(() => JSON.parse(read(machine, 'etc/docker/daemon.json') ?? '{}') as DockerSettings | null);
  return parsed.ok ? (parsed.value ?? undefined) : undefined;
}

function runtimesOf(machine: Machine): readonly Runtime[] {
  return KNOWN.flatMap(({ name, program, cdi, nvidiaByDefault }): readonly Runtime[] => {
    const path = programOf(machine, program);
    if (path === undefined) return [];
    const [, major, minor] = /(\d+)\.(\d+)\.\d+/.exec(machine.versionOf(path) ?? '') ?? [];
    const version: Version | undefined = major === undefined ? undefined : [Number(major), Number(minor)];
    return [{ name, version, cdi: cdi(version, machine), nvidiaByDefault: nvidiaByDefault(machine) }];
  });
}

const said = ({ name, version }: Runtime): string => `${name} ${version ? version.join('.') : 'of unknown version'}`;
const HOW_CDI: Readonly<Record<string, string>> = {
  containerd: 'set enable_cdi = true in /etc/containerd/config.toml (1.7), and restart containerd',
  docker: 'write {"features": {"cdi": true}} into /etc/docker/daemon.json (25 and later), and restart Docker',
  podman: 'take Podman 4.1 or later',
  'cri-o': 'take CRI-O 1.23 or later',
};

export function runtimeFindings(machine: Machine): readonly Finding[] {
  const runtimes = runtimesOf(machine);
  const { ok, warn } = checkOf('runtime');
  if (runtimes.length === 0)
    return [
      warn('runtime-missing', 'no containerd, Docker, Podman or CRI-O', 'without one only "cotenant run" gives shares'),
    ];
  return [
    ...runtimes.map((runtime) => {
      if (runtime.cdi === true) return ok('cdi-on', `${said(runtime)}, reads CDI files`);
      const [reason, how] =
        runtime.cdi === false ? (['cdi-off', 'does not read'] as const) : (['cdi-unknown', 'may not read'] as const);
      return warn(reason, `${said(runtime)}, ${how} CDI files`, HOW_CDI[runtime.name] ?? '');
    }),
    ...defaultRuntime(runtimes),
    ...toolkit(machine),
    routeOf(machine, runtimes),
  ];
}

function defaultRuntime(runtimes: readonly Runtime[]): readonly Finding[] {
  const { ok, warn } = checkOf('default runtime');
  const nvidia = runtimes.filter(({ nvidiaByDefault }) => nvidiaByDefault).map(({ name }) => name);
  if (nvidia.length === 0)
    return [ok('default-runtime-plain', "containers do not run under NVIDIA's runtime by default")];
  return [
    warn(
      'default-runtime-nvidia',
      `${nvidia.join(', ')}: NVIDIA's runtime is the default one`,
      'each image with NVIDIA_VISIBLE_DEVICES=all sees every GPU; choose runc as the default where GPUs are shared',
    ),
  ];
}

const CDI_FOLDERS = ['etc/cdi', 'var/run/cdi', 'run/cdi'];

function toolkit(machine: Machine): readonly Finding[] {
  const { ok, warn } = checkOf('toolkit');
  const path = programOf(machine, 'nvidia-ctk');
  const read = attempt(() => specificationsIn(CDI_FOLDERS.map((folder) => join(machine.root, folder))).found);
  const source = read.ok ? sourceOf(read.value, 'nvidia.com/gpu') : undefined;
  const generate = 'nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml --device-name-strategy=uuid';
  const [, version] = /(\d+\.\d+\.\d+)/.exec((path && machine.versionOf(path)) ?? '') ?? [];
  return [
    path === undefined
      ? warn(
          'toolkit-missing',
          "no nvidia-ctk: NVIDIA's container toolkit is not installed",
          'install nvidia-container-toolkit',
        )
      : ok('toolkit-found', `nvidia-ctk ${version ?? 'of unknown version'}`),
    source === undefined
      ? warn('cdi-spec-missing', 'no CDI specification has GPUs of nvidia.com/gpu by UUID', `run "${generate}"`)
      : ok('cdi-spec-found', `a CDI specification has ${source.gpus.length} GPU(s)`),
  ];
}

/** The way by which a container with a share would get its GPUs (docs/operate/node.md). */
function routeOf(machine: Machine, runtimes: readonly Runtime[]): Finding {
  const { ok, warn } = checkOf('GPU access');
  const isNode = has(machine, 'var/lib/kubelet/config.yaml') || has(machine, 'var/lib/kubelet/kubeconfig');
  const by = (name: string) => runtimes.find((one) => one.name === name)?.version;
  const takesNames = isFrom(by('containerd'), 2, 1) || isFrom(by('cri-o'), 1, 34);
  if (isNode && takesNames && (has(machine, 'var/run/nri/nri.sock') || has(machine, 'run/nri/nri.sock')))
    return ok('route-nri', 'pods get the granted GPUs by NRI, and no others');
  if (isNode)
    return warn(
      'route-environment',
      "pods get GPUs by NVIDIA_VISIBLE_DEVICES and NVIDIA's runtime, which any pod can set",
      'containerd 2.1 or CRI-O 1.34 with NRI on (/var/run/nri/nri.sock) gives the granted GPUs only',
    );
  if (runtimes.some(({ cdi }) => cdi === true))
    return ok('route-cdi', 'containers get slices as CDI devices: --device cotenant.io/slice=NAME');
  return warn(
    'route-flags',
    'containers get slices by the flags that "cotenant slices NAME --flags ENGINE" prints',
    'switch CDI on to name slices as devices',
  );
}
