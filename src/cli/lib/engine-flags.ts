// A CDI device as flags of an engine's command line, for engines that do not read CDI files. Hooks cannot be flags: the
// links of the driver's libraries that they would make are mounted instead.
import type { CdiSpec, Edits } from '../../agent/kubelet/cdi/spec.ts';
import { UsageError } from './command.ts';

export const ENGINES = ['docker', 'podman', 'nerdctl', 'ctr'] as const;
type Engine = (typeof ENGINES)[number];

type Dialect = {
  readonly mount: (from: string, to: string, readOnly: boolean) => string;
  readonly device: (from: string, to: string) => string;
};
const OF_DOCKER: Dialect = {
  mount: (from, to, readOnly) => `type=bind,source=${from},target=${to}${readOnly ? ',readonly' : ''}`,
  device: (from, to) => `${from}:${to}`,
};
const DIALECTS: Readonly<Record<Engine, Dialect>> = {
  docker: OF_DOCKER,
  podman: OF_DOCKER,
  nerdctl: OF_DOCKER,
  ctr: {
    mount: (from, to, readOnly) => `type=bind,src=${from},dst=${to},options=rbind:${readOnly ? 'ro' : 'rw'}`,
    device: (from, to) => {
      if (from !== to) throw new UsageError(`ctr gives ${from} the same name in the container, not ${to}`);
      return from;
    },
  },
};

/** Names by which programs open the driver's libraries, where only the file with the driver's version is mounted. */
function links(mounts: NonNullable<Edits['mounts']>): NonNullable<Edits['mounts']> {
  const there = new Set(mounts.map(({ containerPath }) => containerPath));
  return mounts.flatMap((mount) => {
    const [, library] = /^(.*\/lib(?:cuda|nvidia-ml)\.so)\.\d+\.[\d.]+$/.exec(mount.containerPath) ?? [];
    if (library === undefined || mount.containerPath.startsWith('/usr/lib/cotenant/')) return [];
    return [`${library}.1`].filter((path) => !there.has(path)).map((path) => ({ ...mount, containerPath: path }));
  });
}

/** The specification has one device. */
export function engineFlags(engine: Engine, { containerEdits, devices }: CdiSpec): readonly string[] {
  const dialect = DIALECTS[engine];
  const edits = [containerEdits, ...devices.map((device) => device.containerEdits)];
  const mounts = edits.flatMap((one) => one.mounts ?? []);
  const all = [...mounts, ...links(mounts)];
  const clean = (path: string): string => {
    if (/[,:\s]/.test(path)) throw new UsageError(`${path}: ${engine} takes no mount with a comma, a colon or a space`);
    return path;
  };
  const isReadOnly = (options: unknown) => Array.isArray(options) && options.includes('ro');
  return [
    ...edits.flatMap(({ env = [] }) => (env as readonly string[]).flatMap((entry) => ['--env', entry])),
    ...edits
      .flatMap(({ deviceNodes = [] }) => deviceNodes)
      .flatMap(({ path, hostPath }) => [
        '--device',
        dialect.device(typeof hostPath === 'string' ? hostPath : path, path),
      ]),
    ...all.flatMap(({ hostPath, containerPath, options }) => [
      '--mount',
      dialect.mount(clean(hostPath), clean(containerPath), isReadOnly(options)),
    ]),
  ];
}
