// `cotenant docker run` and the same of Podman and nerdctl: makes a grant for one container, starts the container with
// the grant's CDI device, and passes everything else on to the engine, as its exit status is passed back.
import { spawn, spawnSync } from 'node:child_process';
import { constants } from 'node:os';
import type { ContainerAnswer, GrantBody } from '../../../agent/admin-api.ts';
import { SLICE_KIND } from '../../../agent/containers/device-edits.ts';
import { loadNative } from '../../../agent/os/addon.ts';
import { GIB, parseUnits, parseWhole } from '../../../common/quantity.ts';
import { ask, STATE_OPTION, stateFolder } from '../../lib/agent-client.ts';
import { type Command, type Parsed, parse, text, UsageError, whole } from '../../lib/command.ts';
import { engineFlags } from '../../lib/engine-flags.ts';
import { askForGrant, grantLines } from '../../lib/grant-request.ts';
import { equalShares, SHARE_OPTIONS, type Share, shareOf, sharesOf } from '../../options/share.ts';

const WRAPPED = ['docker', 'podman', 'nerdctl'] as const;
type Wrapped = (typeof WRAPPED)[number];

const FORWARDED_SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const;

/** What the engines' own `--gpus` takes and ours does not (docker run, "Access an NVIDIA GPU"). */
const ENGINES_GPUS = /^"?(all|(count|device|driver|capabilities|options)=)/;

const NOT_FOUND = 127;
const NO_GRANT = 125;

const engineCommand = (engine: Wrapped): Command => ({
  name: engine,
  summary: `Runs a container by ${engine} with a share of a GPU of its own.`,
  usage: `run --gpu-memory 2Gi [options] [OPTION OF ${engine} RUN ...] IMAGE [ARGUMENT ...]`,
  options: { ...SHARE_OPTIONS, ...STATE_OPTION },
  notes: `These options come first; all that follows is passed on to ${engine} run. Of cGPU's variables among its options (-e ALIYUN_COM_GPU_MEM_CONTAINER=4 and others) the share is made as well. The exit code is that of ${engine}, ${NO_GRANT} if there is no grant.`,
  takesOperands: true,
  parse: (args) => parseLeading(engineCommand(engine), args),
  run: (parsed) => runContainer(engine, parsed),
});

export const docker = engineCommand('docker');
export const podman = engineCommand('podman');
export const nerdctl = engineCommand('nerdctl');

/** The command's own options end at the first argument that is not one of them. */
function parseLeading(command: Command, args: readonly string[]): Parsed | 'help' {
  const [verb, ...rest] = args;
  if (verb === undefined || verb === '--help' || verb === '-h') return 'help';
  if (verb !== 'run')
    throw new UsageError(
      `${command.name} ${verb}: only "${command.name} run" needs a grant; call ${command.name} itself`,
    );
  let end = 0;
  while (end < rest.length) {
    const [, long, equals] = /^--([^=]+)(=)?/.exec(rest[end] ?? '') ?? [];
    const [, short, attached] = /^-([a-z])(.*)$/s.exec(rest[end] ?? '') ?? [];
    const [, option] =
      Object.entries(command.options).find(
        ([name, one]) => name === long || (one.short !== undefined && one.short === short),
      ) ?? [];
    if (option === undefined && rest[end] !== '--help') break;
    end += option?.value !== undefined && equals === undefined && !attached ? 2 : 1;
  }
  const own = parse({ ...command, parse: undefined }, rest.slice(0, end));
  if (own === 'help') return 'help';
  const gpus = text(own, 'gpus');
  if (gpus !== undefined && ENGINES_GPUS.test(gpus))
    throw new UsageError(
      `--gpus ${gpus}: is ${command.name}'s own option for whole GPUs; leave it out, or write the number of GPUs that the share is on (--gpus 1)`,
    );
  return { values: own.values, operands: rest.slice(end) };
}

/** The engine's own options: all up to the image, which is at the latest before a second argument without a dash. */
function engineOptions(args: readonly string[]): readonly string[] {
  const end = args.findIndex(
    (arg, index) => arg === '--' || (!arg.startsWith('-') && !(args[index - 1] ?? 'image').startsWith('-')),
  );
  return end < 0 ? args : args.slice(0, end);
}

/** `-e NAME=VALUE` of these options; a name alone takes its value from this environment. */
export function variablesOf(options: readonly string[]): ReadonlyMap<string, string> {
  const given = options.flatMap((option, index) => {
    if (option === '-e' || option === '--env') return [options[index + 1] ?? ''];
    const [, value] = /^(?:--env=|-e)(.+)$/s.exec(option) ?? [];
    return value === undefined ? [] : [value];
  });
  return new Map(
    given.map((entry) => {
      const at = entry.indexOf('=');
      return at < 0 ? [entry, process.env[entry] ?? ''] : [entry.slice(0, at), entry.slice(at + 1)];
    }),
  );
}

/** Options that would give the container more of the GPUs, or start it again after its grant has ended. */
function refuseConflicts(engine: Wrapped, options: readonly string[], variables: ReadonlyMap<string, string>): void {
  const given = (name: string) =>
    options.flatMap((option, index) =>
      option === name
        ? [options[index + 1] ?? '']
        : option.startsWith(`${name}=`)
          ? [option.slice(name.length + 1)]
          : [],
    );
  const restart = given('--restart').find((value) => value !== 'no');
  if (restart !== undefined)
    throw new UsageError(
      `--restart ${restart}: the share ends with the container; for one that starts again write a slice into the slices file`,
    );
  const whole = [
    ...given('--gpus').map((value) => `--gpus ${value}`),
    ...given('--device').flatMap((value) =>
      /^(nvidia\.com\/|\/dev\/nvidia)/.test(value) ? [`--device ${value}`] : [],
    ),
    ...given('--runtime').flatMap((value) => (value.includes('nvidia') ? [`--runtime ${value}`] : [])),
    ...(variables.has('NVIDIA_VISIBLE_DEVICES') ? ['-e NVIDIA_VISIBLE_DEVICES'] : []),
  ][0];
  if (whole !== undefined)
    throw new UsageError(`${whole}: gives ${engine}'s container whole GPUs, beside its share; leave it out`);
}

const isOn = (value: string | undefined): boolean => value === 'true' || value === '1';

/** The share by cGPU's variables; undefined: they ask for none. */
export function cgpuShare(parsed: Parsed, variables: ReadonlyMap<string, string>): Share | undefined {
  const number = (name: string, least: number, most: number, unit = ''): number | undefined => {
    const value = variables.get(name);
    if (value === undefined || value === '') return undefined;
    if (/^\d{1,6}$/.test(value) && Number(value) >= least && Number(value) <= most) return Number(value);
    const read = unit === '' ? parseWhole(value, least, most) : parseUnits(value, least, most, GIB);
    const meant = read.ok ? read.value : read.error.meant;
    const right = meant === undefined ? '' : `; write ${meant}`;
    throw new UsageError(`-e ${name}=${value}: want ${least} to ${most}${unit}${right}`);
  };
  const units = number('ALIYUN_COM_GPU_MEM_CONTAINER', 0, 65_536, ' GiB') ?? 0;
  if (units === 0) return undefined;
  const total = number('ALIYUN_COM_GPU_MEM_DEV', 1, 65_536, ' GiB');
  if (total !== undefined && units > total)
    throw new UsageError(
      `-e ALIYUN_COM_GPU_MEM_CONTAINER=${units}: is more than ALIYUN_COM_GPU_MEM_DEV, which is ${total}`,
    );
  const weight = number('ALIYUN_COM_GPU_SCHD_WEIGHT', 1, 25);
  const high = number('ALIYUN_COM_GPU_HIGH_PRIO', 0, 1) === 1;
  const gpus = whole(parsed, 'gpus', 1, 16) ?? 1;
  const own = shareOf(parsed, equalShares(parsed, { kind: 'units', units, unitBytes: GIB, rounding: 'cgpu' }, gpus));
  return {
    ...own,
    isolateMemory: own.isolateMemory && !isOn(variables.get('CGPU_DISABLE')),
    // A weight above one makes cGPU divide by weights.
    compute: {
      ...(weight !== undefined && { weight }),
      ...(weight !== undefined && weight > 1 && { policy: 'weighted' }),
      ...(high && { priority: 'high' }),
      ...own.compute,
    },
  };
}

async function runContainer(engine: Wrapped, parsed: Parsed): Promise<number> {
  const args = parsed.operands;
  const options = engineOptions(args);
  const variables = variablesOf(options);
  refuseConflicts(engine, options, variables);
  const byVariables = cgpuShare(parsed, variables);
  if (byVariables && text(parsed, 'gpu-memory') !== undefined)
    throw new UsageError('--gpu-memory and -e ALIYUN_COM_GPU_MEM_CONTAINER: want one of them');
  if (
    !byVariables &&
    text(parsed, 'gpu-memory') === undefined &&
    options.some((option) => /^(-m|--gpu-memory)\b/.test(option))
  )
    throw new UsageError(`--gpu-memory, -m: cotenant's options come directly after "${engine} run"`);
  if (args.length === 0) throw new UsageError('the image is missing');
  const share = byVariables ?? shareOf(parsed, sharesOf(parsed));
  const folder = stateFolder(parsed);
  const self = loadNative().readProcess(process.pid);
  if (!self) throw new Error('/proc cannot be read');
  const name = nameIn(options) ?? engine;
  const body: GrantBody = {
    ...share,
    ...{ name, container: engine, forContainer: true, pid: process.pid, startTicks: self.startTicks },
  };
  const grant = await askForGrant<ContainerAnswer>(folder, body);
  if (typeof grant === 'string') {
    console.error(`cotenant: no grant: ${grant}`);
    return NO_GRANT;
  }
  for (const line of grantLines(name, grant)) console.error(`cotenant: ${line}`);
  const flags = readsCdi(engine) ? ['--device', `${SLICE_KIND}=${grant.device}`] : engineFlags(engine, grant.spec);
  try {
    return await runEngine(engine, ['run', ...flags, ...args]);
  } finally {
    // Refused while a container has it: a detached one keeps it until it ends. An agent that is away ends it later.
    await ask(folder, 'DELETE', `/v1/grants/${grant.id}`).catch(() => {});
  }
}

const nameIn = (options: readonly string[]): string | undefined =>
  options.flatMap((option, index) => {
    if (option === '--name') return options[index + 1] ?? [];
    return option.startsWith('--name=') ? option.slice('--name='.length) : [];
  })[0];

/** Since when: nerdctl's docs/config.md, `cdi_spec_dirs`. */
const READS_CDI_SINCE = { podman: [4, 1], nerdctl: [2, 1] } as const;

/** Docker where its daemon says so. */
function readsCdi(engine: Wrapped): boolean {
  const output = (...args: readonly string[]) => spawnSync(engine, args, { encoding: 'utf8' }).stdout ?? '';
  if (engine === 'docker') return /"\//.test(output('info', '--format', '{{json .CDISpecDirs}}'));
  const [, major, minor] = /(\d+)\.(\d+)/.exec(output('--version')) ?? [];
  const [sinceMajor, sinceMinor] = READS_CDI_SINCE[engine];
  return Number(major) > sinceMajor || (Number(major) === sinceMajor && Number(minor) >= sinceMinor);
}

async function runEngine(engine: Wrapped, args: readonly string[]): Promise<number> {
  const child = spawn(engine, args, { stdio: 'inherit' });
  for (const signal of FORWARDED_SIGNALS) process.on(signal, () => child.kill(signal));
  return new Promise((resolve) => {
    child.on('error', (error) => {
      console.error(`cotenant: ${engine}: ${error.message}`);
      resolve(NOT_FOUND);
    });
    child.on('exit', (code, signal) => resolve(signal === null ? (code ?? 0) : 128 + constants.signals[signal]));
  });
}
