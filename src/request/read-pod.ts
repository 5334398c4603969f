// Pod in, request out: which containers ask for a share of a GPU, in whichever dialect, and what exactly they ask for.
// Owns the whole reading and its refusals; changing the pod is the webhook's, choosing GPUs is placement's.

import {
  CORES_LIMIT_ANNOTATION,
  GPU,
  GPU_CORES,
  GPU_MEMORY,
  GPU_UUID_ANNOTATION,
  isContainerName,
  MEMORY_ISOLATION_ANNOTATION,
  REQUEST_ANNOTATION,
  TEMPLATE_ANNOTATION,
} from '../api/names.ts';
import { type ContainerRequest, type MemoryIsolation, nominalBytes, type PodRequest } from '../api/request.ts';
import { parsePodRequest } from '../api/request-annotation.ts';
import { field, isObject, type JsonObject, listAt, objectAt, textAt } from '../common/json.ts';
import { forbidden, invalid, missing, type Problem } from '../common/problem.ts';
import { sameQuantity } from '../common/quantity.ts';
import { amountPath, collectAmounts, ownAmounts, sameAmounts, showAmounts } from './amounts.ts';
import { annotationPath, type Choices, readChoices } from './annotations.ts';
import { type ContainerPlace, containersOf } from './containers.ts';
import { cotenant } from './dialects/cotenant.ts';
import type { Answer, Asked, Dialect } from './dialects/dialect.ts';
import { dialectsOf } from './dialects/index.ts';
import type { Rules, Template } from './rules/namespace-rules.ts';

export type PodReading =
  /** No container asks for a share. */
  | { readonly kind: 'none' }
  | { readonly kind: 'request'; readonly request: PodRequest; readonly warnings: readonly string[] }
  | { readonly kind: 'refused'; readonly problems: readonly Problem[] };

/** What a pod that was patched before says about one container whose dialect's names are gone. */
type Recorded = ReadonlyMap<string, Pick<ContainerRequest, 'dialect' | 'asked'>>;

type Reader = {
  readonly rules: Rules;
  readonly dialects: readonly Dialect[];
  readonly labels: JsonObject;
  readonly annotations: JsonObject;
  readonly choices: Choices;
  readonly recorded: Recorded;
  readonly problems: Problem[];
  readonly warnings: string[];
};

/**
 * Reads any pod, patched or not, under the rules of its namespace. Never throws. A patched pod reads to the request that it
 * was patched for: the recorded amounts are read again by their dialect, and count only if the resources beside agree.
 */
export function readPodRequest(pod: unknown, rules: Rules): PodReading {
  const places = containersOf(pod);
  if (!places.ok) return { kind: 'refused', problems: places.error };
  const metadata = objectAt(pod, 'metadata');
  const annotations = objectAt(metadata, 'annotations');
  const dialects = dialectsOf(rules);
  const problems: Problem[] = checkMaps(pod);
  const warnings: string[] = [];
  const written = places.value.map((place) => ({ place, amounts: collectAmounts(place, dialects, problems) }));
  const asksByTemplate = field(annotations, TEMPLATE_ANNOTATION) !== undefined;
  if (!asksByTemplate && problems.length === 0 && written.every(({ amounts }) => amounts.size === 0)) {
    return { kind: 'none' };
  }

  const reader: Reader = {
    rules,
    dialects,
    labels: objectAt(metadata, 'labels'),
    annotations,
    choices: readChoices(annotations, rules, problems),
    recorded: readRecorded(annotations, problems),
    problems,
    warnings,
  };
  const templates = templatesByContainer(places.value, reader);
  const containers: ContainerRequest[] = [];
  for (const { place, amounts } of written) {
    const name = textAt(place.container, 'name') ?? '';
    const template = templates.get(name);
    const request = readContainer(place, amounts, template, reader);
    if (request !== undefined) containers.push(request);
  }
  containers.sort((a, b) => (a.name < b.name ? -1 : 1));
  const twice = containers.find((container, index) => container.name === containers[index - 1]?.name);
  if (twice) problems.push(invalid('spec.containers', twice.name, 'names two containers', 'give each its own name'));
  if (problems.length === 0 && containers.length === 0) return { kind: 'none' };
  const limited = withCoresLimits(containers, reader);
  if (problems.length > 0) return { kind: 'refused', problems };
  const { placement, computePolicy, computeWeight, priority, gpuModels, gpuUuids } = reader.choices;
  const request: PodRequest = {
    containers: limited,
    priority,
    ...(placement && { placement }),
    ...(computePolicy && { computePolicy }),
    ...(computeWeight !== undefined && { computeWeight }),
    ...(rules.enforcement !== 'enforce' && { enforcement: rules.enforcement }),
    gpuModels,
    gpuUuids,
  };
  return { kind: 'request', request, warnings };
}

/** The containers with what the annotation allows them above their share of compute. */
function withCoresLimits(containers: readonly ContainerRequest[], reader: Reader): readonly ContainerRequest[] {
  const { coresLimits } = reader.choices;
  if (coresLimits === undefined) return containers;
  const path = annotationPath(CORES_LIMIT_ANNOTATION);
  const refuse = (value: string, wrong: string, right: string) => {
    reader.problems.push(invalid(path, value, wrong, right));
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
    if (least > 100) refuse(String(total), `stands beside no ${GPU_CORES} of "${container.name}"`, 'write both');
    else if (!Number.isInteger(percent) || percent < least || percent > 100)
      refuse(
        String(total),
        `is no limit for "${container.name}"`,
        `write ${least * count} to ${100 * count}, whole percent of each GPU`,
      );
    else return { ...container, gpus: container.gpus.map((gpu) => ({ ...gpu, coresLimitPercent: percent })) };
    return container;
  });
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

function readRecorded(annotations: JsonObject, problems: Problem[]): Recorded {
  const text = field(annotations, REQUEST_ANNOTATION);
  if (text === undefined) return new Map();
  const record = parsePodRequest(text);
  if (record.ok) return new Map(record.value.containers.map((container) => [container.name, container]));
  problems.push(...record.error);
  return new Map();
}

function readContainer(
  place: ContainerPlace,
  amounts: ReadonlyMap<Dialect, ReadonlyMap<string, string>>,
  template: string | undefined,
  reader: Reader,
): ContainerRequest | undefined {
  const [first, second] = [...amounts.keys()];
  if (first === undefined && template === undefined) return undefined;
  const path = `${place.path}.resources.limits`;
  if (first !== undefined && second !== undefined) {
    const wrong = `has names of two dialects (${[...amounts.values()].map(showAmounts).join('; ')})`;
    reader.problems.push(invalid(path, undefined, wrong, 'write the amounts in one of them'));
    return undefined;
  }
  const name = field(place.container, 'name');
  if (!isContainerName(name)) {
    const right = 'write at most 63 of a-z, 0-9 and "-"';
    reader.problems.push(
      name === undefined
        ? missing(`${place.path}.name`, right)
        : invalid(`${place.path}.name`, name, 'is no name', right),
    );
    return undefined;
  }
  const present = (first && amounts.get(first)) ?? new Map<string, string>();
  if (template !== undefined) return readTemplate(place, name, template, first, present, reader);
  if (first === undefined) return undefined;
  if (first.zeroIsNothing && [...present.values()].every((amount) => sameQuantity(amount, '0'))) return undefined;
  const recorded = first === cotenant ? reader.recorded.get(name) : undefined;
  if (recorded !== undefined && recorded.dialect !== cotenant.name) {
    return readAgain(place, name, recorded, present, reader);
  }
  const environment = first === cotenant ? new Map() : readEnvironment(place, first, reader.problems);
  const answer = ask(place, first, present, environment, reader);
  // Our own names are recorded as they are counted, so that an amount that was left out reads the same once it is filled in.
  const asked = first === cotenant && answer ? ownAmounts(answer.gpus) : new Map([...present, ...environment]);
  return answer && complete(place, name, first, asked, answer, reader);
}

/** A container that was patched before: its dialect reads the recorded amounts, and its resources must be what follows. */
function readAgain(
  place: ContainerPlace,
  name: string,
  recorded: Pick<ContainerRequest, 'dialect' | 'asked'>,
  present: ReadonlyMap<string, string>,
  reader: Reader,
): ContainerRequest | undefined {
  const path = annotationPath(REQUEST_ANNOTATION);
  const dialect = reader.dialects.find((candidate) => candidate.name === recorded.dialect);
  const asked = new Map(Object.entries(recorded.asked));
  const amounts = new Map([...asked].filter(([key]) => dialect?.resources.includes(key)));
  const environment = new Map([...asked].filter(([key]) => dialect?.environment.includes(key)));
  if (dialect === undefined || amounts.size === 0 || amounts.size + environment.size !== asked.size) {
    const wrong = `records a request of "${name}" in the dialect ${recorded.dialect}, which is not read here`;
    reader.problems.push(forbidden(path, undefined, wrong, 'leave this annotation out'));
    return undefined;
  }
  const answer = ask(place, dialect, amounts, environment, reader);
  if (answer === undefined) return undefined;
  if (sameAmounts(ownAmounts(answer.gpus), present)) return complete(place, name, dialect, asked, answer, reader);
  const wrong = `records ${showAmounts(ownAmounts(answer.gpus))} for "${name}", whose resources are ${showAmounts(present)}`;
  reader.problems.push(forbidden(path, undefined, wrong, 'leave this annotation out: only the webhook writes it'));
  return undefined;
}

function readTemplate(
  place: ContainerPlace,
  name: string,
  template: string,
  first: Dialect | undefined,
  present: ReadonlyMap<string, string>,
  reader: Reader,
): ContainerRequest | undefined {
  const amounts = templateAmounts(reader.rules.templates.get(template) ?? {});
  const answer = ask(place, cotenant, amounts, new Map(), reader);
  if (answer === undefined) return undefined;
  const asked = new Map(ownAmounts(answer.gpus));
  if (first !== undefined && (first !== cotenant || !sameAmounts(present, asked))) {
    const wrong = `stands beside template "${template}", which is ${showAmounts(asked)}`;
    const value = showAmounts(present);
    const right = `leave out the amounts or annotation ${TEMPLATE_ANNOTATION}`;
    reader.problems.push(invalid(`${place.path}.resources.limits`, value, wrong, right));
    return undefined;
  }
  return complete(place, name, cotenant, asked.set(TEMPLATE_ANNOTATION, template), answer, reader);
}

function templateAmounts({ gpu, gpuMemory, gpuCores }: Template): ReadonlyMap<string, string> {
  const amounts = new Map<string, string>();
  if (gpu !== undefined) amounts.set(GPU, gpu);
  if (gpuMemory !== undefined) amounts.set(GPU_MEMORY, gpuMemory);
  if (gpuCores !== undefined) amounts.set(GPU_CORES, gpuCores);
  return amounts;
}

/** Container name -> template, with a problem for every container that the annotation cannot mean. */
function templatesByContainer(places: readonly ContainerPlace[], reader: Reader): ReadonlyMap<string, string> {
  const { templates } = reader.choices;
  if (templates === undefined) return new Map();
  const path = annotationPath(TEMPLATE_ANNOTATION);
  const names = places.map((place) => textAt(place.container, 'name') ?? '');
  if (typeof templates === 'string') {
    const apps = places.filter((place) => place.kind === 'app').map((place) => textAt(place.container, 'name') ?? '');
    if (apps.length === 1) return new Map([[apps[0] ?? '', templates]]);
    // Sidecars that other injectors append must not change what the annotation means to a pod that was patched before.
    const already = [...reader.recorded].filter(([, { asked }]) => asked[TEMPLATE_ANNOTATION] === templates);
    if (already.length === 1) return new Map([[already[0]?.[0] ?? '', templates]]);
    const right = `write container=${templates} for each of the ${apps.length} containers that is meant`;
    reader.problems.push(invalid(path, templates, 'does not say which container it is for', right));
    return new Map();
  }
  for (const [name, template] of templates) {
    if (names.includes(name)) continue;
    const right = `write one of ${names.slice(0, 8).join(', ')}`;
    reader.problems.push(invalid(path, `${name}=${template}`, 'names a container that is not in the pod', right));
  }
  return templates;
}

function ask(
  place: ContainerPlace,
  dialect: Dialect,
  amounts: ReadonlyMap<string, string>,
  environment: ReadonlyMap<string, string>,
  { labels, annotations, rules, problems, warnings }: Reader,
): Answer | undefined {
  const asked: Asked = {
    amounts,
    amountPath: (resource) => amountPath(place.path, resource),
    environment,
    labels,
    annotations,
  };
  const answer = dialect.read(asked, rules);
  if (!answer.ok) {
    problems.push(...answer.error);
    return undefined;
  }
  for (const warning of answer.value.warnings) if (!warnings.includes(warning)) warnings.push(warning);
  return answer.value;
}

function complete(
  place: ContainerPlace,
  name: string,
  dialect: Dialect,
  asked: ReadonlyMap<string, string>,
  answer: Answer,
  { choices, rules, problems }: Reader,
): ContainerRequest {
  const gpus = answer.gpus.length;
  if (choices.gpuUuids.length > 0 && choices.gpuUuids.length < gpus) {
    const wrong = `names fewer GPUs than the ${gpus} that "${name}" asks for`;
    problems.push(invalid(annotationPath(GPU_UUID_ANNOTATION), choices.gpuUuids.join(','), wrong, `name ${gpus} GPUs`));
  }
  if (!rules.allowUncountedMemory && answer.gpus.some(({ memory }) => nominalBytes(memory) === undefined)) {
    const wrong = 'is a share whose memory no quota counts, which is not allowed in this namespace';
    const right = `write ${GPU_MEMORY}, or have allowUncountedMemory switched on`;
    problems.push(forbidden(`${place.path}.resources.limits`, showAmounts(asked), wrong, right));
  }
  const memoryIsolation: MemoryIsolation = answer.memoryIsolation ?? choices.memoryIsolation ?? 'on';
  if (answer.memoryIsolation === 'off') {
    const value = dialect.environment.map((key) => `${key}=${asked.get(key)}`).join(' ');
    if (choices.memoryIsolation === 'on') {
      const right = `leave one of the two out`;
      problems.push(invalid(`${place.path}.env`, value, `contradicts ${MEMORY_ISOLATION_ANNOTATION}: on`, right));
    } else if (!rules.allowMemoryIsolationOff) {
      const right = 'leave it out, or have allowMemoryIsolationOff switched on';
      problems.push(forbidden(`${place.path}.env`, value, 'switches isolation off, which is not allowed here', right));
    }
  }
  return {
    name,
    kind: place.kind,
    dialect: dialect.name,
    asked: Object.fromEntries(asked),
    memoryIsolation,
    gpus: answer.gpus,
  };
}

/** The variables that a dialect reads. One that takes its value from elsewhere cannot be known here and is refused. */
function readEnvironment(place: ContainerPlace, dialect: Dialect, problems: Problem[]): ReadonlyMap<string, string> {
  const found = new Map<string, string>();
  if (dialect.environment.length === 0) return found;
  for (const [index, entry] of listAt(place.container, 'env').entries()) {
    const name = textAt(entry, 'name');
    if (name === undefined || !dialect.environment.includes(name)) continue;
    const value = isObject(entry) ? (field(entry, 'value') ?? '') : '';
    const path = `${place.path}.env[${index}]`;
    if (field(entry, 'valueFrom') !== undefined) {
      problems.push(invalid(path, name, 'takes its value from elsewhere', 'write the value itself, true or false'));
    } else if (typeof value !== 'string') {
      problems.push(invalid(`${path}.value`, value, 'is not text', 'write true or false'));
    } else {
      found.set(name, value);
    }
  }
  return found;
}
