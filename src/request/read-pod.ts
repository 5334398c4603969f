// Reads a pod's GPU request: which containers ask for a share of a GPU, in whichever dialect, and what was chosen for
// the pod. The webhook patches the pod by it; src/placement chooses GPUs for it.

import {
  CORES_LIMIT_ANNOTATION,
  GPU_CORES,
  PRIORITY_ANNOTATION,
  REQUEST_ANNOTATION,
  TEMPLATE_ANNOTATION,
} from '../api/names.ts';
import type { ContainerRequest, PodRequest } from '../api/request.ts';
import { parsePodRequest } from '../api/request-annotation.ts';
import { field, isObject, type JsonObject, objectAt } from '../common/json.ts';
import { invalid, type Problem } from '../common/problem.ts';
import { type Amounts, type AmountsByDialect, askedFor, collectAmounts } from './amounts.ts';
import { annotationPath, readChoices, withForeignChoices } from './annotations.ts';
import { listContainers, type PodContainer } from './containers.ts';
import type { Dialect } from './dialects/dialect.ts';
import { dialectsOf } from './dialects/index.ts';
import { requiredNodeLabels } from './node-labels.ts';
import { type PodContext, readContainer } from './read-container.ts';
import type { Rules } from './rules/namespace-rules.ts';

/** `containers`: all containers of the pod. */
type PodReading =
  /** No container asks for a share. */
  | { readonly kind: 'none'; readonly containers: readonly PodContainer[] }
  | {
      readonly kind: 'request';
      readonly containers: readonly PodContainer[];
      readonly request: PodRequest;
      readonly warnings: readonly string[];
    }
  | {
      readonly kind: 'refused';
      /** Empty where they cannot be listed. */
      readonly containers: readonly PodContainer[];
      readonly problems: readonly Problem[];
    };

/**
 * Reads any pod, patched or not, under the rules of its namespace. Never throws. A patched pod reads to the request
 * that it was patched for: its dialect reads the recorded amounts again, which count only if the container's resources
 * agree.
 */
export function readPodRequest(pod: unknown, rules: Rules): PodReading {
  const listed = listContainers(pod);
  if (!listed.ok) return { kind: 'refused', containers: [], problems: listed.error };
  const containers = listed.value;
  const metadata = objectAt(pod, 'metadata');
  const annotations = objectAt(metadata, 'annotations');
  const nodeLabels = requiredNodeLabels(pod);
  // In the order in which they are written; those of the nodes come first.
  const ofNodes = (one: Dialect) =>
    Number(one.nodeLabels?.some((key) => field(nodeLabels, key) !== undefined) ?? false);
  const dialects = dialectsOf(rules).toSorted((a, b) => ofNodes(b) - ofNodes(a));
  const problems: Problem[] = checkMaps(pod);
  const wrongRecord: Problem[] = [];
  const recorded = readRecorded(annotations, wrongRecord);
  const labels = objectAt(metadata, 'labels');
  const inLimits = containers.map((container) => askedFor(collectAmounts(container, dialects, problems)));
  const maps = { containers, annotations, labels, recorded, dialects, problems };
  const written = withPodAmounts(inLimits, maps).map(askedFor);
  const hasTemplate = field(annotations, TEMPLATE_ANNOTATION) !== undefined;
  if (!hasTemplate && problems.length === 0 && written.every((amounts) => amounts.size === 0)) {
    return { kind: 'none', containers };
  }

  const isUsed = ({ name }: Dialect) => [...recorded.values()].some(({ dialect }) => dialect === name);
  const used = dialects.filter((one) => written.some((amounts) => amounts.has(one)) || isUsed(one));
  const warnings: string[] = [];
  const chosen = withForeignChoices({ annotations, labels }, used, rules, warnings);
  const context: PodContext = {
    rules,
    dialects,
    labels,
    annotations,
    nodeLabels,
    choices: readChoices(chosen, rules, problems),
    recorded,
    priorities: [],
    problems,
    warnings,
  };
  problems.push(...wrongRecord);
  const templates = templatesByContainer(containers, context);
  const read = containers
    .map((container, index) =>
      readContainer(context, container, written[index] ?? new Map(), templates.get(container.name)),
    )
    .filter((request) => request !== undefined);
  const requests = withInitIndexes(read).toSorted((a, b) => (a.name < b.name ? -1 : 1));
  const twice = requests.find(({ name }, index) => name === requests[index - 1]?.name);
  if (twice) problems.push(invalid('spec.containers', twice.name, 'names two containers', 'give each its own name'));
  if (problems.length === 0 && requests.length === 0) return { kind: 'none', containers };
  const request = toPodRequest(withCoresLimits(requests, context), context);
  return problems.length > 0
    ? { kind: 'refused', containers, problems }
    : { kind: 'request', containers, request, warnings: context.warnings };
}

type PodMaps = Pick<PodContext, 'annotations' | 'labels' | 'recorded' | 'dialects' | 'problems'> & {
  readonly containers: readonly PodContainer[];
};

/**
 * The amounts of the containers with those that annotations and labels of the pod hold for one of them. They stay on a
 * pod that was patched: what is recorded of a container counts then, and shows which one it was before other injectors
 * added theirs.
 */
function withPodAmounts(
  written: readonly AmountsByDialect[],
  { containers, annotations, labels, recorded, dialects, problems }: PodMaps,
): readonly AmountsByDialect[] {
  const all = [...written];
  const apps = containers.filter(({ kind }) => kind === 'app');
  // The first of a name. Tenants write as many keys and containers as the API server takes: each is looked at once.
  const places = new Map(containers.map(({ name }, index): [string, number] => [name, index]).toReversed());
  const add = (dialect: Dialect, name: string, path: string, amounts: Amounts) => {
    const index = places.get(name);
    if (index === undefined) {
      const right = `write one of ${containers
        .slice(0, 8)
        .map((container) => container.name)
        .join(', ')}`;
      problems.push(invalid(path, name, 'names a container that is not in the pod', right));
      return;
    }
    const own = all[index] ?? new Map();
    if (own.size > 0 && recorded.get(name)?.dialect === dialect.name) return;
    all[index] = new Map([...own, [dialect, new Map([...(own.get(dialect) ?? []), ...amounts])]]);
  };
  for (const dialect of dialects) {
    const [before] = [...recorded].find(([, record]) => record.dialect === dialect.name) ?? [];
    for (const { container, amounts, path } of dialect.readPod?.(annotations, labels) ?? []) {
      if (typeof container !== 'number') {
        add(dialect, container ?? before ?? apps[0]?.name ?? '', path, amounts);
        continue;
      }
      // Places may have changed since the pod was patched; what was recorded counts.
      if (before !== undefined) break;
      const app = apps[container];
      if (app === undefined) {
        const wrong = `has a number for container ${container + 1}, and the pod has ${apps.length}`;
        problems.push(invalid(path, undefined, wrong, 'write one number for each container'));
        break;
      }
      add(dialect, app.name, path, amounts);
    }
  }
  return all;
}

/** `containers`: in the pod's order. */
function withInitIndexes(containers: readonly ContainerRequest[]): readonly ContainerRequest[] {
  const inits = containers.filter(({ kind }) => kind !== 'app');
  if (new Set(inits.map(({ kind }) => kind)).size < 2) return containers;
  return containers.map((one) => (one.kind === 'app' ? one : { ...one, initIndex: inits.indexOf(one) }));
}

function toPodRequest(containers: readonly ContainerRequest[], context: PodContext): PodRequest {
  const { choices, rules, annotations, priorities } = context;
  const { placement, computePolicy, computeWeight, gpuModels, gpuUuids } = choices;
  const isChosen = field(annotations, PRIORITY_ANNOTATION) !== undefined;
  const priority = isChosen || priorities.length === 0 ? choices.priority : 'high';
  return {
    containers,
    priority,
    ...(placement && { placement }),
    ...(computePolicy && { computePolicy }),
    ...(computeWeight !== undefined && { computeWeight }),
    ...(isOnOneGpu(containers, context) && { sameGpu: true as const }),
    ...(rules.enforcement !== 'enforce' && { enforcement: rules.enforcement }),
    gpuModels,
    gpuUuids,
  };
}

/** Whether a dialect puts several containers with a share of one GPU each on the same one. */
function isOnOneGpu(containers: readonly ContainerRequest[], { dialects }: PodContext): boolean {
  const together = dialects.filter(({ sameGpu }) => sameGpu).map(({ name }) => name);
  return containers.length > 1 && containers.every(({ dialect, gpus }) => together.includes(dialect) && !gpus[1]);
}

/** Maps that are read here must be maps; the API server sends no others. */
function checkMaps(pod: unknown): Problem[] {
  const metadata = field(pod, 'metadata');
  const maps: [string, unknown][] = [
    ['metadata', metadata],
    ['metadata.annotations', field(metadata, 'annotations')],
    ['metadata.labels', field(metadata, 'labels')],
  ];
  return maps
    .filter(([, value]) => value !== undefined && !isObject(value))
    .map(([path, value]) => invalid(path, value, 'is not a map', 'write keys with their values'));
}

function readRecorded(annotations: JsonObject, problems: Problem[]): PodContext['recorded'] {
  const text = field(annotations, REQUEST_ANNOTATION);
  if (text === undefined) return new Map();
  const recorded = parsePodRequest(text);
  if (recorded.ok) return new Map(recorded.value.containers.map((container) => [container.name, container]));
  problems.push(...recorded.error);
  return new Map();
}

/** Container name -> template, with a problem for every container that the annotation cannot mean. */
function templatesByContainer(
  containers: readonly PodContainer[],
  { choices: { templates }, recorded, problems }: PodContext,
): ReadonlyMap<string, string> {
  if (templates === undefined) return new Map();
  const path = annotationPath(TEMPLATE_ANNOTATION);
  if (typeof templates === 'string') {
    const apps = containers.filter(({ kind }) => kind === 'app');
    if (apps.length === 1) return new Map([[apps[0]?.name ?? '', templates]]);
    // Sidecars that other injectors append must not change what the annotation means to a pod that was patched before.
    const already = [...recorded].filter(([, { asked }]) => asked[TEMPLATE_ANNOTATION] === templates);
    if (already.length === 1) return new Map([[already[0]?.[0] ?? '', templates]]);
    const right = `write container=${templates} for each of the ${apps.length} containers that is meant`;
    problems.push(invalid(path, templates, 'does not say which container it is for', right));
    return new Map();
  }
  const names = containers.map(({ name }) => name);
  for (const [name, template] of templates) {
    if (names.includes(name)) continue;
    const right = `write one of ${names.slice(0, 8).join(', ')}`;
    problems.push(invalid(path, `${name}=${template}`, 'names a container that is not in the pod', right));
  }
  return templates;
}

/** The containers with the limits above their share of compute that the annotation allows them. */
function withCoresLimits(
  containers: readonly ContainerRequest[],
  { choices: { coresLimits }, problems }: PodContext,
): readonly ContainerRequest[] {
  if (coresLimits === undefined) return containers;
  const refuse = (value: string, wrong: string, right: string) => {
    problems.push(invalid(annotationPath(CORES_LIMIT_ANNOTATION), value, wrong, right));
    return containers;
  };
  const names = containers.map(({ name }) => name);
  const [only = '', ...others] = names;
  if (typeof coresLimits === 'number' && others.length > 0)
    return refuse(String(coresLimits), 'does not say which container it is for', `write ${only}=${coresLimits}`);
  const limits = typeof coresLimits === 'number' ? new Map([[only, coresLimits]]) : coresLimits;
  const stray = [...limits.keys()].find((name) => !names.includes(name));
  if (stray !== undefined)
    return refuse(stray, 'names no container with a share', `write one of ${names.slice(0, 8).join(', ')}`);
  return containers.map((container) => {
    const total = limits.get(container.name);
    if (total === undefined) return container;
    const count = container.gpus.length;
    const percent = total / count;
    const least = Math.max(...container.gpus.map(({ coresPercent }) => coresPercent ?? 101));
    if (least <= 100 && Number.isInteger(percent) && percent >= least && percent <= 100)
      return { ...container, gpus: container.gpus.map((gpu) => ({ ...gpu, coresLimitPercent: percent })) };
    if (least > 100) refuse(String(total), `needs ${GPU_CORES} of "${container.name}"`, 'write both');
    else {
      const right = `write ${least * count} to ${100 * count}, whole percent of each GPU`;
      refuse(String(total), `is not a limit for "${container.name}"`, right);
    }
    return container;
  });
}
