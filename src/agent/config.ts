// The agent's settings: the schemas of its parts put together, read from defaults, one file (YAML or JSON) and flags
// over both. Unknown or invalid settings are errors that name their path.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as v from 'valibot';
import { isObject } from '../common/json.ts';
import { LOG_FORMATS, LOG_LEVELS } from '../common/logger.ts';
import { formatProblem, invalid, type Problem } from '../common/problem.ts';
import { check, nonEmpty, oneOf, type SettingsOf, whole } from '../common/schema.ts';
import { EXPORTER_ENTRIES, reviewingSetting } from '../exporter/settings.ts';
import { COMPUTE_ENTRIES } from './compute/settings.ts';
import { SliceSettings } from './containers/settings.ts';
import { EnforcementSettings } from './enforcement/settings.ts';
import { ISOLATION_ENTRIES } from './isolation/settings.ts';
import { OWN_KIND } from './kubelet/cdi/split-spec.ts';
import { KubernetesSettings } from './kubelet/settings.ts';

const require = createRequire(import.meta.url);

/** Also read by charts/values-schema.ts. */
export const SETTINGS_SCHEMA = v.object({
  /** Grants, audit log, what was measured on the GPUs, and the socket on which grants are requested. */
  stateFolder: v.optional(nonEmpty('a folder'), '/var/lib/cotenant'),
  ...EXPORTER_ENTRIES,
  nvmlLibrary: v.optional(nonEmpty('a library name or path'), 'libnvidia-ml.so.1'),
  ...ISOLATION_ENTRIES,
  intervalMs: v.optional(whole(50, 60_000), 1000),
  /** While a container is over its grant. */
  urgentIntervalMs: v.optional(whole(50, 60_000), 250),
  /** Within which a watch of the API server that broke begins again, at random: all agents lose theirs at once. */
  reconnectSeconds: v.optional(whole(0, 600), 5),
  silenceMs: v.optional(whole(1000, 600_000), 15_000),
  mostTenantsPerGpu: v.optional(whole(1, 1000), 50),
  placement: v.optional(oneOf(['binpack', 'spread']), 'binpack'),
  ...COMPUTE_ENTRIES,
  /** On standard error; the flags --log-format and --log-level take precedence. */
  log: v.optional(
    v.object({ format: v.optional(oneOf(LOG_FORMATS), 'text'), level: v.optional(oneOf(LOG_LEVELS), 'info') }),
    {},
  ),
  enforcement: v.optional(EnforcementSettings, {}),
  kubernetes: v.optional(KubernetesSettings, {}),
  slices: v.optional(SliceSettings, {}),
});

export type AgentConfiguration = SettingsOf<typeof SETTINGS_SCHEMA.entries>;

export const DEFAULTS: AgentConfiguration = v.parse(SETTINGS_SCHEMA, {});

/** In the state folder: where grants are requested. */
export const SOCKET_NAME = 'agent.sock';

type Schema = v.GenericSchema<unknown, unknown>;

const withoutDefault = (schema: Schema): Schema => ('wrapped' in schema ? (schema.wrapped as Schema) : schema);

/** Dotted path of each setting -> its schema; groups are taken apart. */
function leavesOf(entries: Readonly<Record<string, Schema>>, prefix = ''): [string, Schema][] {
  return Object.entries(entries).flatMap(([name, entry]): [string, Schema][] => {
    const schema = withoutDefault(entry);
    if (!('entries' in schema)) return [[`${prefix}${name}`, schema]];
    return leavesOf(schema.entries as Readonly<Record<string, Schema>>, `${prefix}${name}.`);
  });
}

const SETTINGS = new Map(leavesOf(SETTINGS_SCHEMA.entries));
const GROUPS = new Set([...SETTINGS.keys()].flatMap((path) => path.match(/^.*(?=\.)/)?.[0] ?? []));

export type Settings = Readonly<Record<string, unknown>>;

function flatten(value: unknown, prefix: string, problems: Problem[]): [string, unknown][] {
  if (!isObject(value)) {
    problems.push(invalid(prefix || 'the file', value, 'is not a map of settings', 'write name: value'));
    return [];
  }
  return Object.entries(value).flatMap(([key, inner]): [string, unknown][] => {
    const path = prefix === '' ? key : `${prefix}.${key}`;
    return GROUPS.has(path) ? flatten(inner, path, problems) : [[path, inner]];
  });
}

/** Is the setting a text? Then `12345` given for it on the command line is one as well. */
export const isText = (path: string): boolean => SETTINGS.get(path)?.type === 'string';

/** Settings by path over `base`; throws one error that lists every problem. */
export function configure(given: Settings, source: string, base: AgentConfiguration = DEFAULTS): AgentConfiguration {
  const problems: Problem[] = [];
  const result = structuredClone(base) as unknown as Record<string, Record<string, unknown> | unknown>;
  for (const [path, value] of flatten(given, '', problems)) {
    const schema = SETTINGS.get(path);
    if (!schema) {
      problems.push(invalid(path, undefined, 'no such setting', `known are ${[...SETTINGS.keys()].join(', ')}`));
      continue;
    }
    const checked = check(schema, value, path);
    if (!checked.ok) {
      problems.push(...checked.error);
      continue;
    }
    const [outer = '', inner] = path.split('.');
    if (inner === undefined) result[outer] = checked.value;
    else (result[outer] as Record<string, unknown>)[inner] = checked.value;
  }
  if (problems.length > 0) throw new Error(`${source}:\n  ${problems.map(formatProblem).join('\n  ')}`);
  return result as unknown as AgentConfiguration;
}

/** Settings that are valid each but not together; throws as `configure` does. For when file and flags are merged. */
export function checkTogether(configuration: AgentConfiguration): AgentConfiguration {
  const { intervalMs, silenceMs, enforcement, kubernetes, page } = configuration;
  const { ratio, hardRatio, evictAfterStops } = enforcement;
  const problems: Problem[] = [];
  const requires = (holds: boolean, ...problem: Parameters<typeof invalid>) => {
    if (!holds) problems.push(invalid(...problem));
  };
  // A sampler that keeps its interval must not be taken for one that hangs.
  requires(
    silenceMs >= 2 * intervalMs,
    'silenceMs',
    silenceMs,
    `is less than twice intervalMs, which is ${intervalMs}`,
    `write at least ${2 * intervalMs}`,
  );
  requires(
    hardRatio >= ratio,
    'enforcement.hardRatio',
    hardRatio,
    `is less than ratio, which is ${ratio}`,
    `write at least ${ratio}`,
  );
  requires(
    evictAfterStops === 0 || kubernetes.enabled,
    'enforcement.evictAfterStops',
    evictAfterStops,
    'needs the API server',
    'set kubernetes.enabled, or write 0',
  );
  requires(
    (page.certFile === '') === (page.keyFile === ''),
    `page.${page.certFile === '' ? 'certFile' : 'keyFile'}`,
    undefined,
    'is missing',
    'set page.certFile and page.keyFile, or neither',
  );
  requires(
    page.socket !== '' || page.socketUser === 0,
    'page.socketUser',
    page.socketUser,
    'is the user of a socket that is not set',
    'set page.socket',
  );
  const reviewing = reviewingSetting(page);
  requires(
    reviewing === undefined || kubernetes.enabled,
    `page.${reviewing}`,
    true,
    'needs the API server',
    'set kubernetes.enabled, or write false',
  );
  requires(
    kubernetes.cdiKind !== OWN_KIND || kubernetes.cdiFolders === '',
    'kubernetes.cdiKind',
    OWN_KIND,
    'is the kind that the agent writes',
    'write another one, or empty kubernetes.cdiFolders',
  );
  if (problems.length > 0)
    throw new Error(`settings that cannot be combined:\n  ${problems.map(formatProblem).join('\n  ')}`);
  return configuration;
}

/** The settings of one file. */
export function readSettings(path: string): Settings {
  let value: unknown;
  try {
    // Loaded only for a file: the parser is large.
    const { parse } = require('yaml') as typeof import('yaml');
    value = parse(readFileSync(path, 'utf8'));
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new Error(
      `${path}: ${code === 'MULTIPLE_DOCS' ? 'has several documents; want one, with the settings' : message}`,
    );
  }
  if (value === null || value === undefined) return {};
  if (!isObject(value)) throw new Error(`${path}: is not a map of settings; write name: value`);
  return value;
}
