// Keeps the grants of containers without a pod: the slices of the slices file, and those that `cotenant docker run` asks
// for. Makes the objects that are mounted over the driver's libraries, and the CDI file that names all of them.
import { existsSync, mkdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from '../../common/logger.ts';
import { attempt, err, ok, type Result } from '../../common/result.ts';
import { replaceFile } from '../../common/state-file.ts';
import type { GrantAsk, GrantChange } from '../allocation/process-grants.ts';
import type { GrantMounts } from '../attribution/grant-mounts.ts';
import { type ContainerOwner, isOfContainers } from '../grants/grant.ts';
import type { LiveGrant } from '../grants/live-grant.ts';
import type { Refusal } from '../grants/refusal.ts';
import type { Registry } from '../grants/registry.ts';
import { SLICE_FILE, signatureOf, specificationsIn, writeSpecification } from '../kubelet/cdi/folders.ts';
import { type CdiSpec, sourceOf } from '../kubelet/cdi/spec.ts';
import { foldersOf } from '../kubelet/settings.ts';
import { BUILD_FOLDER } from '../os/addon.ts';
import { driverLibraries, GRANT_FOLDER, sliceSpec } from './device-edits.ts';
import { mountedObject } from './mounted-object.ts';
import type { SliceSettings } from './settings.ts';
import { parseSlices, type WantedSlice } from './slices-file.ts';

export type SliceState = {
  /** `cotenant.io/slice=NAME` */
  readonly device: string;
  /** Absent: it has no grant, for `problem`. */
  readonly grantId?: string;
  readonly gpus: readonly { readonly gpuUuid: string; readonly memoryBytes: number; readonly coresPercent: number }[];
  /** From the slices file, or for one container. */
  readonly kind: 'slice' | 'run';
  /** A container has it. */
  readonly inUse: boolean;
  readonly problem?: string;
};

/** A grant for one container, with its CDI device. */
type StartedContainer = { readonly live: LiveGrant; readonly device: string; readonly spec: CdiSpec };

export type Slices = {
  list(): readonly SliceState[];
  /** A grant for the container that this process starts; it ends with the container. */
  start(
    ask: GrantAsk,
    starter: { readonly pid: number; readonly startTicks: number },
  ): Result<StartedContainer, Refusal>;
  /** Why the amounts of this grant cannot be changed by a command; undefined: it is no slice. */
  whereKept(id: string): string | undefined;
  /** The specification of one device alone, for engines that do not read CDI files. */
  specOf(device: string): CdiSpec | undefined;
  /** After each sample: follows the slices file, NVIDIA's specification and the grants. */
  after(): void;
};

type SlicesOptions = {
  readonly settings: SliceSettings;
  readonly registry: Pick<Registry, 'list' | 'get' | 'subscribe'>;
  readonly mounts: Pick<GrantMounts, 'held'>;
  readonly grant: (owner: ContainerOwner, ask: GrantAsk) => Result<LiveGrant, Refusal>;
  readonly change: (id: string, change: GrantChange) => Result<LiveGrant, Refusal>;
  readonly end: (id: string) => void;
  /** UUID of the GPU with that index. */
  readonly uuidOf: (index: number) => string | undefined;
  readonly log: Pick<Logger, 'info' | 'warn'>;
  /** Folder of the interposer's objects. */
  readonly build?: string;
};

const deviceOf = ({ grant: { owner } }: LiveGrant): string => (isOfContainers(owner) ? owner.device : '');
const isSlice = ({ grant: { owner } }: LiveGrant): boolean => isOfContainers(owner) && owner.starter === undefined;

export function createSlices(options: SlicesOptions): Slices {
  const { settings, registry, mounts, log } = options;
  const folders = foldersOf(settings.cdiFolders);
  const file = createFollower(settings.file, log);
  const published = createPublisher(options, folders);
  const problems = new Map<string, string>();
  const containers = () => registry.list().filter(({ grant }) => isOfContainers(grant.owner));
  let changed = true;
  registry.subscribe(() => {
    changed = true;
  });

  const report = (device: string, problem: string | undefined): void => {
    if (problem !== undefined && problems.get(device) !== problem) log.warn(`slice ${device}: ${problem}`);
    if (problem === undefined) problems.delete(device);
    else problems.set(device, problem);
  };
  const follow = (wanted: readonly WantedSlice[]): void => {
    const names = new Map(wanted.map((one) => [one.device, one]));
    for (const device of problems.keys()) if (!names.has(device)) problems.delete(device);
    const isWanted = (live: LiveGrant): boolean => {
      const slice = names.get(deviceOf(live));
      return slice !== undefined && isStill(slice, live, options.uuidOf);
    };
    const others = containers().filter((live) => isSlice(live) && !isWanted(live));
    const held = mounts.held(others.map(({ grant }) => grant.id));
    for (const live of others) {
      const slice = names.get(deviceOf(live));
      // Containers that run keep what they were granted.
      if (held.has(live.grant.id)) {
        if (slice) report(slice.device, 'the file has it on other GPUs, and a container still uses it as it was');
      } else options.end(live.grant.id);
    }
    const granted = new Map(
      containers()
        .filter(isSlice)
        .map((live) => [deviceOf(live), live]),
    );
    for (const slice of wanted) {
      const live = granted.get(slice.device);
      if (live && !isStill(slice, live, options.uuidOf)) continue;
      report(slice.device, live ? changeSlice(slice, live, options) : grantSlice(slice, options));
    }
  };
  const offered = (): readonly LiveGrant[] => {
    const names = new Set(file.wanted().map(({ device }) => device));
    return containers().filter((live) => !isSlice(live) || names.has(deviceOf(live)));
  };

  return {
    list() {
      const all = containers();
      const held = mounts.held(all.map(({ grant }) => grant.id));
      const states = all.map((live): SliceState => {
        const { id, gpus } = live.grant;
        const problem = problems.get(deviceOf(live));
        return {
          device: deviceOf(live),
          grantId: id,
          gpus: gpus.map(({ gpuUuid, memoryBytes, coresPercent }) => ({ gpuUuid, memoryBytes, coresPercent })),
          kind: isSlice(live) ? 'slice' : 'run',
          inUse: held.has(id),
          ...(problem !== undefined && { problem }),
        };
      });
      const granted = new Set(all.map(deviceOf));
      const missing = file.wanted().filter(({ device }) => !granted.has(device));
      return [
        ...states,
        ...missing.map(({ device }): SliceState => {
          const problem = problems.get(device) ?? 'not granted yet';
          return { device, gpus: [], kind: 'slice', inUse: false, problem };
        }),
      ];
    },
    start(ask, starter) {
      const source = published.source();
      if (!source.ok) return source;
      const granted = options.grant({ device: `run-${starter.pid}-${starter.startTicks}`, starter }, ask);
      if (!granted.ok) return granted;
      const live = granted.value;
      const made = attempt(() => published.write(offered()));
      const spec = published.specOf(live);
      if (made.ok && spec) return ok({ live, device: deviceOf(live), spec });
      options.end(live.grant.id);
      return err({ refused: made.ok ? `the CDI specification lacks ${ask.name}'s GPU` : made.error });
    },
    whereKept(id) {
      const live = containers().find(({ grant }) => grant.id === id);
      if (!live || !isSlice(live)) return undefined;
      return `slice ${deviceOf(live)} is what ${settings.file} says: change it there`;
    },
    specOf(device) {
      const live = offered().find((one) => deviceOf(one) === device);
      return live && published.specOf(live);
    },
    after() {
      const isNew = file.look() || changed || problems.size > 0;
      const left = containers().some((live) => isSlice(live) && !offered().includes(live));
      if (isNew || left) follow(file.wanted());
      changed = false;
      const written = attempt(() => published.write(offered()));
      if (!written.ok) published.report(`the CDI file of slices cannot be written: ${written.error}`);
    },
  };
}

/** The slices file: read again when it has changed; one that cannot be read changes nothing. */
function createFollower(path: string, log: Pick<Logger, 'warn'>) {
  let seen: string | undefined;
  let wanted: readonly WantedSlice[] = [];
  const stateOf = (): string => {
    const found = statSync(path, { throwIfNoEntry: false });
    return found ? `${found.ino} ${found.size} ${found.mtimeMs} ${found.ctimeMs}` : 'none';
  };
  return {
    wanted: () => wanted,
    /** Has it changed? */
    look(): boolean {
      const state = stateOf();
      if (path === '' || state === seen) return false;
      seen = state;
      const read = attempt(() => (state === 'none' ? '' : readFileSync(path, 'utf8')));
      const parsed = read.ok ? parseSlices(read.value) : read;
      if (parsed.ok) wanted = parsed.value;
      else log.warn(`${path}: ${parsed.error}; the slices stay as they are`);
      return parsed.ok;
    },
  };
}

const gpusOf = ({ gpus }: WantedSlice, uuidOf: SlicesOptions['uuidOf']): readonly string[] =>
  gpus.map((name) => (/^\d+$/.test(name) ? (uuidOf(Number(name)) ?? `GPU ${name}`) : name));

/** Is the grant what the file wants, but for amounts that can be changed in use? */
function isStill(slice: WantedSlice, { grant }: LiveGrant, uuidOf: SlicesOptions['uuidOf']): boolean {
  const allowed = gpusOf(slice, uuidOf);
  return (
    grant.gpus.length === slice.shares.length &&
    grant.isolateMemory === slice.isolateMemory &&
    grant.gpus.every(({ gpuUuid }) => allowed.length === 0 || allowed.includes(gpuUuid))
  );
}

function grantSlice(slice: WantedSlice, { grant, uuidOf }: SlicesOptions): string | undefined {
  const { device, shares, models, isolateMemory, compute } = slice;
  const gpuUuids = gpusOf(slice, uuidOf);
  const ask = { name: device, container: 'slice', shares, gpuUuids, gpuModels: models, isolateMemory, compute };
  const live = grant({ device }, ask);
  return live.ok ? undefined : live.error.refused;
}

/** Gives a slice that has a grant the amounts of the file; undefined: it has them. */
function changeSlice(
  { shares: [share], compute: wantedCompute }: WantedSlice,
  { grant: { id, gpus, compute = {} } }: LiveGrant,
  { change }: SlicesOptions,
): string | undefined {
  const [gpu] = gpus;
  if (!share || !gpu) return undefined;
  const { coresPercent = 0 } = share;
  const coresLimitPercent = share.coresLimitPercent ?? null;
  const policy = wantedCompute.policy ?? null;
  const priority = wantedCompute.priority ?? 'normal';
  const weight = wantedCompute.weight ?? null;
  const bytes = share.memory.kind === 'bytes' ? share.memory.bytes : gpu.memoryBytes;
  const wanted: GrantChange = {
    ...(bytes !== gpu.memoryBytes && { memoryBytes: bytes }),
    ...(coresPercent !== gpu.coresPercent && { coresPercent }),
    ...(coresLimitPercent !== (gpu.coresLimitPercent ?? null) && { coresLimitPercent }),
    ...(policy !== (compute.policy ?? null) && { policy }),
    ...(priority !== (compute.priority ?? 'normal') && { priority }),
    ...(weight !== (compute.weight ?? null) && { weight }),
  };
  if (Object.keys(wanted).length === 0) return undefined;
  const live = change(id, wanted);
  return live.ok ? undefined : live.error.refused;
}

/** The CDI file of slices, and the objects that its devices mount, after NVIDIA's specification. */
function createPublisher({ settings, log, build = BUILD_FOLDER }: SlicesOptions, folders: readonly string[]) {
  let seen = '';
  let nvidia: CdiSpec | undefined;
  let reported = '';
  const folder = folders.at(-1) ?? '';

  const report = (problem: string): void => {
    if (problem !== reported && problem !== '') log.warn(problem);
    reported = problem;
  };
  const source = (): Result<CdiSpec, Refusal> => {
    const signature = signatureOf(folders);
    if (signature !== seen) {
      nvidia = sourceOf(specificationsIn(folders).found, settings.cdiKind)?.found.spec;
      seen = signature;
    }
    const where = settings.cdiFolders.replaceAll(',', ', ');
    if (nvidia === undefined)
      return err({
        refused: `no CDI specification in ${where} has ${settings.cdiKind}; write one with "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"`,
      });
    const names = new Set(driverLibraries(nvidia).map(({ object }) => object));
    if (names.size < 2)
      return err({
        refused: `the CDI specification of ${settings.cdiKind} in ${where} has no libcuda.so and libnvidia-ml.so`,
      });
    return ok(nvidia);
  };
  const makeObjects = (spec: CdiSpec, { folder: files }: LiveGrant): void => {
    for (const { hostPath, object, real, made } of driverLibraries(spec)) {
      const { bytes } = mountedObject(readFileSync(join(build, object)), readFileSync(hostPath), real, GRANT_FOLDER);
      const path = join(files, made);
      if (existsSync(path) && readFileSync(path).equals(bytes)) continue;
      // Containers that have the former one mounted keep it.
      replaceFile(path, bytes, { mode: 0o755, sync: false });
    }
  };
  const deviceIn = (live: LiveGrant) => ({
    name: deviceOf(live),
    gpuUuids: live.grant.gpus.map(({ gpuUuid }) => gpuUuid),
    folder: live.folder,
  });
  /** By grant, the specification that its objects are made for. */
  const made = new WeakMap<LiveGrant, CdiSpec>();
  const write = (grants: readonly LiveGrant[]): void => {
    const found = grants.length === 0 ? undefined : source();
    report(found?.ok === false ? found.error.refused : '');
    const spec = found?.ok ? found.value : undefined;
    if (spec !== undefined) {
      for (const live of grants.filter((one) => made.get(one) !== spec)) {
        makeObjects(spec, live);
        made.set(live, spec);
      }
    }
    const whole = spec && sliceSpec(spec, grants.map(deviceIn));
    if (whole !== undefined) mkdirSync(folder, { recursive: true, mode: 0o755 });
    if (whole !== undefined || existsSync(join(folder, SLICE_FILE))) writeSpecification(folder, SLICE_FILE, whole);
  };
  return {
    source,
    report,
    write,
    specOf(live: LiveGrant): CdiSpec | undefined {
      const spec = source();
      return spec.ok ? sliceSpec(spec.value, [deviceIn(live)]) : undefined;
    },
  };
}
