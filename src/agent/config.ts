// The agent's settings: defaults, one file (YAML or JSON), flags over both. Unknown or ill-typed settings are errors that
// name their place; nothing is silently ignored.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { COMPAT_WORDS, isCompatList } from '../api/compat-exporters.ts';
import { COMPUTE_POLICIES, type ComputePolicy, MODES, type Mode, parseComputePolicy } from '../api/request.ts';
import { isObject } from '../common/json.ts';
import { LOG_FORMATS, LOG_LEVELS, type LogFormat, type LogLevel } from '../common/logger.ts';
import { DEFAULT_SHARE_SECONDS } from '../policy/compute-verdict.ts';
import { DEFAULT_EVICTION, type EvictionPolicy } from '../policy/eviction.ts';
import { DEFAULT_XID_LIST, parseXidList } from '../policy/gpu-health.ts';
import { DEFAULT_LADDER, type LadderPolicy } from '../policy/ladder.ts';
import { DEFAULT_TOLERANCE, type Tolerance } from '../policy/memory-verdict.ts';
import { ENFORCER_LIMITS } from './enforcement/enforcer.ts';
import { OWN_KIND } from './kubelet/cdi/split-spec.ts';

const require = createRequire(import.meta.url);

export type AgentConfiguration = {
  /** Grants, audit log, what was measured on the GPUs, and the socket on which grants are asked for. */
  readonly stateFolder: string;
  /** Where /metrics and the status page are served; port 0 takes a free one. */
  readonly host: string;
  readonly port: number;
  readonly nvmlLibrary: string;
  /** Measures on each GPU what a context costs, with a process of its own. */
  readonly calibrate: boolean;
  /** Tries with a process of its own on each GPU whether the interposer holds a container to its grant. */
  readonly canary: boolean;
  /** Sets the driver's own limits of memory for what is granted, where it has them. */
  readonly driverLimits: boolean;
  readonly cudaLibrary: string;
  /** Xids after which a GPU takes nobody new until it was reset: numbers with commas, `default`, `-` before one left out. */
  readonly unhealthyXids: string;
  readonly intervalMs: number;
  /** While a container is over its grant. */
  readonly urgentIntervalMs: number;
  readonly silenceMs: number;
  readonly mostTenantsPerGpu: number;
  readonly placement: 'binpack' | 'spread';
  /** How the compute of this node's GPUs is divided among containers; native: it is not. */
  readonly computePolicy: ComputePolicy;
  /** Of single GPUs, by UUID. */
  readonly computePolicies: Readonly<Record<string, ComputePolicy>>;
  /** Most of a GPU that a container of high priority may take. */
  readonly highCapPercent: number;
  /** Number of the interposer's engine that containers shall run; 0: that of the agent's build. */
  readonly interposerEngine: number;
  /** A series for each process, the largest 50 of the node. */
  readonly processMetrics: boolean;
  /** Exporters under whose names the page is served, too; with commas. */
  readonly compatibilityMetrics: string;
  /** Of the log on standard error; the flags --log-format and --log-level take precedence. */
  readonly log: { readonly format: LogFormat; readonly level: LogLevel };
  /** How the page is served, and to whom. */
  readonly page: {
    /** PEM, both or none: HTTPS. Followed when they change. */
    readonly certFile: string;
    readonly keyFile: string;
    /** Whoever shows the token of this file may read. */
    readonly bearerTokenFile: string;
    /** Whom the API server lets read may read. */
    readonly tokenReview: boolean;
    /** Of the node half for an exporter half in a process of its own (`cotenant exporter`); empty: one process is both, and listens. */
    readonly socket: string;
    /** User id that may connect to it besides root and the agent's own; 0: nobody. */
    readonly socketUser: number;
  };
  readonly enforcement: LadderPolicy &
    Tolerance &
    EvictionPolicy & {
      /** For so long a container is watched before its share of compute is judged. */
      readonly shareSeconds: number;
      readonly staleMs: number;
      readonly mostStopsPerMinute: number;
    };
  /** Names containers by a watch of this node's pods, and tells pods what was done to them. */
  readonly kubernetes: {
    readonly enabled: boolean;
    readonly nodeName: string;
    readonly kubeletRoot: string;
    /** Where the kubelet tells which devices it gave out; empty: it is not asked. */
    readonly podResources: string;
    /** Serves pods: their volumes, slots and amounts of this node. */
    readonly pods: boolean;
    /** Who tells the cluster how many tenants the node takes: the Node's status, or the kubelet by a device plugin. */
    readonly slots: 'status' | 'device-plugin';
    /** Where the runtime takes plugins; empty: devices reach containers by another way. */
    readonly nriSocket: string;
    /** Kind of the CDI devices that are given to containers, each named by a GPU's UUID. */
    readonly cdiKind: string;
    /** The runtime's CDI folders, with commas; empty: GPUs bring all parts of the driver. The last one is written to. */
    readonly cdiFolders: string;
  };
};

export const DEFAULTS: AgentConfiguration = {
  stateFolder: '/var/lib/cotenant',
  host: '127.0.0.1',
  port: 9837,
  nvmlLibrary: 'libnvidia-ml.so.1',
  calibrate: true,
  canary: true,
  driverLimits: true,
  cudaLibrary: 'libcuda.so.1',
  unhealthyXids: DEFAULT_XID_LIST,
  intervalMs: 1000,
  urgentIntervalMs: 250,
  silenceMs: 15_000,
  mostTenantsPerGpu: 50,
  placement: 'binpack',
  computePolicy: 'fixed',
  computePolicies: {},
  highCapPercent: 100,
  interposerEngine: 0,
  processMetrics: false,
  compatibilityMetrics: '',
  log: { format: 'text', level: 'info' },
  page: { certFile: '', keyFile: '', bearerTokenFile: '', tokenReview: false, socket: '', socketUser: 0 },
  enforcement: {
    ...DEFAULT_LADDER,
    ...DEFAULT_TOLERANCE,
    shareSeconds: DEFAULT_SHARE_SECONDS,
    ...ENFORCER_LIMITS,
    ...DEFAULT_EVICTION,
  },
  kubernetes: {
    enabled: false,
    nodeName: '',
    kubeletRoot: '/var/lib/kubelet',
    podResources: '/var/lib/kubelet/pod-resources/kubelet.sock',
    pods: false,
    slots: 'status',
    nriSocket: '/var/run/nri/nri.sock',
    cdiKind: 'nvidia.com/gpu',
    cdiFolders: '/etc/cdi,/var/run/cdi',
  },
};

/** Of a text with commas. */
export const foldersOf = (list: string): readonly string[] => (list === '' ? [] : list.split(','));

/** In the state folder: where grants are asked for. */
export const SOCKET_NAME = 'agent.sock';

type Check = (value: unknown) => boolean;
const wholeFrom =
  (least: number, most: number): Check =>
  (value) =>
    Number.isInteger(value) && Number(value) >= least && Number(value) <= most;
const numberFrom =
  (least: number, most: number): Check =>
  (value) =>
    typeof value === 'number' && value >= least && value <= most;
const text: Check = (value) => typeof value === 'string' && value !== '';
const anyText: Check = (value) => typeof value === 'string';
const compatList: Check = (value) => typeof value === 'string' && isCompatList(value);
const folders: Check = (value) => typeof value === 'string' && foldersOf(value).every((folder) => /^\/./.test(folder));
const xidList: Check = (value) => typeof value === 'string' && !('wrong' in parseXidList(value));
const flag: Check = (value) => typeof value === 'boolean';
const oneOf =
  (...names: readonly string[]): Check =>
  (value) =>
    typeof value === 'string' && names.includes(value);

/** Words, or cGPU's numbers, which YAML reads as such. */
const isPolicy: Check = (value) =>
  ['string', 'number'].includes(typeof value) && parseComputePolicy(String(value)) !== undefined;
const policies: Check = (value) => isObject(value) && Object.values(value).every(isPolicy);
const POLICY_WORDS = `one of ${COMPUTE_POLICIES.join(', ')}, or its number, 0 to 5`;

/** Settings that may be written in several ways, in the one that the program knows. */
const WRITTEN: Readonly<Record<string, (value: unknown) => unknown>> = {
  computePolicy: (value) => parseComputePolicy(String(value)),
  computePolicies: (value) =>
    Object.fromEntries(
      Object.entries(value as object).map(([gpuUuid, name]) => [gpuUuid, parseComputePolicy(String(name))]),
    ),
};

/** Path -> what it must be, and how to say so. */
const SETTINGS: Readonly<Record<string, readonly [Check, string]>> = {
  stateFolder: [text, 'a folder'],
  host: [text, 'an address'],
  port: [wholeFrom(0, 65535), 'a port, 0 to 65535'],
  nvmlLibrary: [text, 'a library name or path'],
  cudaLibrary: [text, 'a library name or path'],
  unhealthyXids: [xidList, "Xids with commas: default, N, -N; none that a tenant's program raises"],
  calibrate: [flag, 'true or false'],
  canary: [flag, 'true or false'],
  driverLimits: [flag, 'true or false'],
  intervalMs: [wholeFrom(50, 60_000), 'milliseconds, 50 to 60000'],
  urgentIntervalMs: [wholeFrom(50, 60_000), 'milliseconds, 50 to 60000'],
  silenceMs: [wholeFrom(1000, 600_000), 'milliseconds, 1000 to 600000'],
  mostTenantsPerGpu: [wholeFrom(1, 1000), '1 to 1000'],
  placement: [oneOf('binpack', 'spread'), 'binpack or spread'],
  computePolicy: [isPolicy, POLICY_WORDS],
  computePolicies: [policies, 'a map from the UUID of a GPU to its policy'],
  highCapPercent: [wholeFrom(1, 100), 'percent, 1 to 100'],
  interposerEngine: [wholeFrom(0, 999_999_999), "an engine's number, or 0"],
  processMetrics: [flag, 'true or false'],
  compatibilityMetrics: [compatList, `names with commas, of ${COMPAT_WORDS.join(', ')}; or nothing`],
  'log.format': [oneOf(...LOG_FORMATS), LOG_FORMATS.join(' or ')],
  'log.level': [oneOf(...LOG_LEVELS), `one of ${LOG_LEVELS.join(', ')}`],
  'page.certFile': [anyText, 'a file, or nothing'],
  'page.keyFile': [anyText, 'a file, or nothing'],
  'page.bearerTokenFile': [anyText, 'a file, or nothing'],
  'page.tokenReview': [flag, 'true or false'],
  'page.socket': [anyText, 'a path, or nothing'],
  'page.socketUser': [wholeFrom(0, 2 ** 32 - 2), 'a user id, 0 to 4294967294'],
  'enforcement.mode': [oneOf(...MODES), 'off, report or enforce'],
  'enforcement.softSeconds': [numberFrom(0, 3600), 'seconds, 0 to 3600'],
  'enforcement.softSamples': [wholeFrom(1, 1000), '1 to 1000'],
  'enforcement.hardSamples': [wholeFrom(2, 1000), '2 to 1000: one sample is never enough'],
  'enforcement.graceSeconds': [numberFrom(0, 3600), 'seconds, 0 to 3600'],
  'enforcement.coolDownSeconds': [numberFrom(0, 3600), 'seconds, 0 to 3600'],
  'enforcement.releaseSeconds': [numberFrom(1, 3600), 'seconds, 1 to 3600'],
  'enforcement.ratio': [numberFrom(1, 10), 'a ratio, 1 to 10'],
  'enforcement.bytes': [wholeFrom(0, 2 ** 40), 'bytes'],
  'enforcement.hardRatio': [numberFrom(1, 100), 'a ratio, 1 to 100'],
  'enforcement.reserveBytes': [wholeFrom(0, 2 ** 40), 'bytes'],
  'enforcement.shareSeconds': [numberFrom(10, 600), 'seconds, 10 to 600'],
  'enforcement.staleMs': [wholeFrom(100, 60_000), 'milliseconds, 100 to 60000'],
  'enforcement.mostStopsPerMinute': [wholeFrom(1, 1000), '1 to 1000'],
  'enforcement.evictAfterStops': [wholeFrom(0, 100), '0 to 100'],
  'enforcement.evictWindowSeconds': [wholeFrom(10, 86_400), 'seconds, 10 to 86400'],
  'kubernetes.enabled': [flag, 'true or false'],
  'kubernetes.nodeName': [anyText, "the node's name"],
  'kubernetes.kubeletRoot': [text, 'the folder of the kubelet'],
  'kubernetes.podResources': [anyText, 'a socket, or nothing'],
  'kubernetes.pods': [flag, 'true or false'],
  'kubernetes.slots': [oneOf('status', 'device-plugin'), 'status or device-plugin'],
  'kubernetes.nriSocket': [anyText, 'a socket, or nothing'],
  'kubernetes.cdiKind': [text, 'vendor/class'],
  'kubernetes.cdiFolders': [folders, 'absolute folders with commas, or nothing'],
};

/** Settings of settings. */
const GROUPS: readonly string[] = ['log', 'page', 'enforcement', 'kubernetes'];

export type Settings = Readonly<Record<string, unknown>>;

function flatten(value: unknown, prefix: string, problems: string[]): [string, unknown][] {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    problems.push(`${prefix || 'the file'}: want a map of settings`);
    return [];
  }
  return Object.entries(value).flatMap(([key, inner]): [string, unknown][] => {
    const path = prefix === '' ? key : `${prefix}.${key}`;
    return GROUPS.includes(path) ? flatten(inner, path, problems) : [[path, inner]];
  });
}

/** Does this setting hold text? Then `12345` given for it is a text, too. */
export function isText(path: string): boolean {
  const check = SETTINGS[path]?.[0];
  return [text, anyText, compatList, folders, xidList].some((one) => one === check);
}

/** Settings by path over the defaults; throws one error that lists everything that is wrong. */
export function configure(settings: Settings, source: string, base: AgentConfiguration = DEFAULTS): AgentConfiguration {
  const problems: string[] = [];
  const result = structuredClone(base) as unknown as Record<string, Record<string, unknown> | unknown>;
  for (const [path, value] of flatten(settings, '', problems)) {
    const rule = Object.hasOwn(SETTINGS, path) ? SETTINGS[path] : undefined; // `constructor` is no setting
    if (!rule) {
      problems.push(`${path}: no such setting; known are ${Object.keys(SETTINGS).join(', ')}`);
    } else if (!rule[0](value)) {
      problems.push(`${path}: ${JSON.stringify(value)}; want ${rule[1]}`);
    } else {
      const [outer = '', inner] = path.split('.');
      if (inner === undefined) result[outer] = WRITTEN[outer]?.(value) ?? value;
      else (result[outer] as Record<string, unknown>)[inner] = value;
    }
  }
  if (problems.length > 0) throw new Error(`${source}:\n  ${problems.join('\n  ')}`);
  return result as unknown as AgentConfiguration;
}

/** Settings that each may be had, but not together; throws like `configure`. For when file and flags are one. */
export function checkTogether(configuration: AgentConfiguration): AgentConfiguration {
  const { intervalMs, silenceMs, enforcement } = configuration;
  const problems: string[] = [];
  // A sampler that keeps its time must not pass for one that hangs.
  if (silenceMs < 2 * intervalMs)
    problems.push(`silenceMs: ${silenceMs}; want at least twice intervalMs, which is ${intervalMs}`);
  if (enforcement.hardRatio < enforcement.ratio)
    problems.push(
      `enforcement.hardRatio: ${enforcement.hardRatio}; want at least ratio, which is ${enforcement.ratio}`,
    );
  if (enforcement.evictAfterStops > 0 && !configuration.kubernetes.enabled)
    problems.push('enforcement.evictAfterStops: asks the API server; want kubernetes.enabled, too');
  const { certFile, keyFile, tokenReview, socket, socketUser } = configuration.page;
  if ((certFile === '') !== (keyFile === ''))
    problems.push(`page.${certFile === '' ? 'certFile' : 'keyFile'}: is missing; want both files, or none`);
  if (socket === '' && socketUser !== 0)
    problems.push('page.socketUser: is of the socket of the node half; want page.socket, too');
  if (tokenReview && !configuration.kubernetes.enabled)
    problems.push('page.tokenReview: asks the API server; want kubernetes.enabled, too');
  if (configuration.kubernetes.cdiKind === OWN_KIND && configuration.kubernetes.cdiFolders !== '')
    problems.push(`kubernetes.cdiKind: ${OWN_KIND} is what is written; want another one, or no kubernetes.cdiFolders`);
  if (problems.length > 0) throw new Error(`settings that do not go together:\n  ${problems.join('\n  ')}`);
  return configuration;
}

/** The settings of one file. */
export function readSettings(path: string): Settings {
  let value: unknown;
  try {
    // Without a file nobody needs its parser.
    const { parse } = require('yaml') as typeof import('yaml');
    value = parse(readFileSync(path, 'utf8'));
  } catch (error) {
    throw new Error(`${path}: ${(error as Error).message}`);
  }
  if (value === null || value === undefined) return {};
  if (typeof value !== 'object' || Array.isArray(value)) throw new Error(`${path}: want a map of settings`);
  return value as Settings;
}

export const modeOf = (configuration: AgentConfiguration): Mode => configuration.enforcement.mode;
