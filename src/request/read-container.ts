// Reads what one container asks for: its dialect's amounts, a template, or the recorded request of a container that the
// webhook patched before.

import {
  GPU,
  GPU_CORES,
  GPU_MEMORY,
  GPU_UUID_ANNOTATION,
  isContainerName,
  MEMORY_ISOLATION_ANNOTATION,
  REQUEST_ANNOTATION,
  TEMPLATE_ANNOTATION,
} from '../api/names.ts';
import {
  type ContainerRequest,
  type GpuShare,
  largeShareWarning,
  type MemoryIsolation,
  nominalBytes,
  type Priority,
  smallShareWarning,
} from '../api/request.ts';
import { field, isObject, type JsonObject, listAt, textAt } from '../common/json.ts';
import { forbidden, invalid, missing, type Problem } from '../common/problem.ts';
import { formatBytes } from '../common/quantity.ts';
import { type Amounts, type AmountsByDialect, amountPath, ownAmounts, sameAmounts, showAmounts } from './amounts.ts';
import { annotationPath, type Choices } from './annotations.ts';
import type { PodContainer } from './containers.ts';
import { cotenant } from './dialects/cotenant.ts';
import { type Answer, type Dialect, ownsKey, ownsResource } from './dialects/dialect.ts';
import { mayBeUnlimited, type Rules } from './rules/namespace-rules.ts';
import { templateAmounts } from './templates.ts';

/** What the containers of one pod are read with. Problems and warnings are added to its lists. */
export type PodContext = {
  readonly rules: Rules;
  readonly dialects: readonly Dialect[];
  readonly labels: JsonObject;
  readonly annotations: JsonObject;
  readonly nodeLabels: JsonObject;
  readonly choices: Choices;
  /** By container name: what the request annotation of a pod that was patched before records. */
  readonly recorded: ReadonlyMap<string, Pick<ContainerRequest, 'dialect' | 'asked'>>;
  /** What containers ask for the pod in the names of a dialect. */
  readonly priorities: Priority[];
  readonly problems: Problem[];
  readonly warnings: string[];
};

/** The container's request, or undefined where it asks for nothing or a problem was added. */
export function readContainer(
  context: PodContext,
  container: PodContainer,
  written: AmountsByDialect,
  template: string | undefined,
): ContainerRequest | undefined {
  const { problems, recorded } = context;
  const [first, second] = [...written];
  if (first === undefined && template === undefined) return undefined;
  if (first !== undefined && second !== undefined) {
    const wrong = `has names of two dialects (${[...written.values()].map(showAmounts).join('; ')})`;
    const path = `${container.path}.resources.limits`;
    problems.push(invalid(path, undefined, wrong, 'write the amounts in one of them'));
    return undefined;
  }
  const name = field(container.spec, 'name');
  if (!isContainerName(name)) {
    const right = 'write at most 63 of a-z, 0-9 and "-"';
    const path = `${container.path}.name`;
    problems.push(name === undefined ? missing(path, right) : invalid(path, name, 'is not a container name', right));
    return undefined;
  }
  if (template !== undefined) return readTemplate(context, container, template, first);
  if (first === undefined) return undefined;
  const [dialect, amounts] = first;
  const record = dialect === cotenant ? recorded.get(name) : undefined;
  if (record !== undefined && record.dialect !== cotenant.name) return readRecord(context, container, record, amounts);
  const environment = dialect === cotenant ? new Map() : readEnvironment(container, dialect, problems);
  const answer = readDialect(context, container, dialect, { amounts, environment });
  if (answer === undefined) return undefined;
  // Our own names are recorded as they are counted, so that an omitted amount reads the same once the webhook adds it.
  const asked = dialect === cotenant ? ownAmounts(answer.gpus) : new Map([...amounts, ...environment]);
  return toRequest(context, container, dialect, { answer, asked });
}

/** A container that was patched before: its dialect reads the recorded amounts, and its resources must follow from
 * them. */
function readRecord(
  context: PodContext,
  container: PodContainer,
  record: Pick<ContainerRequest, 'dialect' | 'asked'>,
  written: Amounts,
): ContainerRequest | undefined {
  const { name } = container;
  const path = annotationPath(REQUEST_ANNOTATION);
  const dialect = context.dialects.find((candidate) => candidate.name === record.dialect);
  const asked = new Map(Object.entries(record.asked));
  const amounts = new Map(
    [...asked].filter(([key]) => dialect && (ownsResource(dialect, key) || ownsKey(dialect, key))),
  );
  const environment = new Map([...asked].filter(([key]) => dialect?.environment.includes(key)));
  if (dialect === undefined || amounts.size === 0 || amounts.size + environment.size !== asked.size) {
    const wrong = `records a request of "${name}" in the dialect ${record.dialect}, which is not read here`;
    context.problems.push(forbidden(path, undefined, wrong, 'leave this annotation out'));
    return undefined;
  }
  const answer = readDialect(context, container, dialect, { amounts, environment });
  if (answer === undefined) return undefined;
  const counted = ownAmounts(answer.gpus);
  if (sameAmounts(counted, written)) return toRequest(context, container, dialect, { answer, asked });
  const wrong = `records ${showAmounts(counted)} for "${name}", but its resources are ${showAmounts(written)}`;
  context.problems.push(forbidden(path, undefined, wrong, 'leave this annotation out: only the webhook writes it'));
  return undefined;
}

function readTemplate(
  context: PodContext,
  container: PodContainer,
  template: string,
  written: readonly [Dialect, Amounts] | undefined,
): ContainerRequest | undefined {
  const amounts = templateAmounts(context.rules.templates.get(template) ?? {});
  const answer = readDialect(context, container, cotenant, { amounts, environment: new Map() });
  if (answer === undefined) return undefined;
  const asked = new Map(ownAmounts(answer.gpus));
  if (written !== undefined) {
    const [dialect, present] = written;
    if (dialect !== cotenant || !sameAmounts(present, asked)) {
      const wrong = `differs from template "${template}", which is ${showAmounts(asked)}`;
      const right = `leave out the amounts or annotation ${TEMPLATE_ANNOTATION}`;
      context.problems.push(invalid(`${container.path}.resources.limits`, showAmounts(present), wrong, right));
      return undefined;
    }
  }
  asked.set(TEMPLATE_ANNOTATION, template);
  return toRequest(context, container, cotenant, { answer, asked });
}

function readDialect(
  { labels, annotations, nodeLabels, rules, priorities, problems, warnings }: PodContext,
  container: PodContainer,
  dialect: Dialect,
  { amounts, environment }: { readonly amounts: Amounts; readonly environment: ReadonlyMap<string, string> },
): Answer | undefined {
  const pathOf = (resource: string) => amountPath(container.path, resource);
  const answer = dialect.read({ amounts, amountPath: pathOf, environment, labels, annotations, nodeLabels }, rules);
  if (!answer.ok) {
    problems.push(...answer.error);
    return undefined;
  }
  for (const warning of answer.value.warnings) if (!warnings.includes(warning)) warnings.push(warning);
  const { priority } = answer.value;
  if (priority !== undefined && rules.priorities.includes(priority)) priorities.push(priority);
  else if (priority !== undefined)
    warnings.push(`${container.name}: priority ${priority} has no effect: it is not allowed in this namespace`);
  return { ...answer.value, gpus: answer.value.gpus.map((gpu) => withDefaultCores(gpu, rules)) };
}

/** A whole GPU has all its compute. */
function withDefaultCores(gpu: GpuShare, { defaults: { gpuCores } }: Rules): GpuShare {
  const isComplete = gpu.coresPercent !== undefined || gpu.memory.kind === 'whole';
  return gpuCores === undefined || isComplete ? gpu : { ...gpu, coresPercent: gpuCores };
}

/** The request as it is recorded; adds a problem for what the rules or the pod's annotations do not allow. */
function toRequest(
  { choices, rules, problems, warnings }: PodContext,
  { name, path, kind }: PodContainer,
  dialect: Dialect,
  { answer, asked }: { readonly answer: Answer; readonly asked: Amounts },
): ContainerRequest {
  const count = answer.gpus.length;
  const gpuUuids = choices.gpuUuids.filter((one) => !one.startsWith('!'));
  if (gpuUuids.length > 0 && gpuUuids.length < count) {
    const wrong = `names fewer GPUs than the ${count} that "${name}" asks for`;
    problems.push(invalid(annotationPath(GPU_UUID_ANNOTATION), gpuUuids.join(','), wrong, `name ${count} GPUs`));
  }
  if (!rules.allowUncountedMemory && answer.gpus.some(({ memory }) => nominalBytes(memory) === undefined)) {
    const wrong = 'has no fixed amount of memory that a quota can count, which is not allowed in this namespace';
    const right = `write ${GPU_MEMORY}, or have allowUncountedMemory switched on`;
    problems.push(forbidden(`${path}.resources.limits`, showAmounts(asked), wrong, right));
  }
  problems.push(...checkMost(answer.gpus, rules, `${path}.resources.limits`, showAmounts(asked)));
  const bytes = answer.gpus.map(({ memory }) => nominalBytes(memory)).filter((one) => one !== undefined);
  const unusual = smallShareWarning(Math.min(...bytes)) ?? largeShareWarning(Math.max(...bytes));
  if (unusual !== undefined) warnings.push(`${name}: ${unusual}`);
  const memoryIsolation: MemoryIsolation = answer.memoryIsolation ?? choices.memoryIsolation ?? rules.memoryIsolation;
  if (answer.memoryIsolation === 'off') {
    const [switched = ''] = dialect.environment;
    const value = `${switched}=${asked.get(switched)}`;
    if (choices.memoryIsolation === 'on') {
      const right = `leave one of the two out`;
      problems.push(invalid(`${path}.env`, value, `contradicts ${MEMORY_ISOLATION_ANNOTATION}: on`, right));
    } else if (!mayBeUnlimited(rules)) {
      const right = 'leave it out, or have allowMemoryIsolationOff switched on';
      problems.push(forbidden(`${path}.env`, value, 'switches isolation off, which is not allowed here', right));
    }
  }
  return { name, kind, dialect: dialect.name, asked: Object.fromEntries(asked), memoryIsolation, gpus: answer.gpus };
}

/** What is more than the namespace allows one container. */
function checkMost(gpus: readonly GpuShare[], { most }: Rules, path: string, asked: string): Problem[] {
  const sum = (amounts: readonly (number | undefined)[]): number | undefined =>
    amounts.reduce<number | undefined>((a, b) => (a === undefined || b === undefined ? undefined : a + b), 0);
  const problems: Problem[] = [];
  const refuse = (resource: string, largest: string, wrong: string) => {
    problems.push(
      forbidden(path, asked, `${wrong}; at most ${largest} is allowed`, `write ${resource}: ${largest} or less`),
    );
  };
  if (most.gpu !== undefined && gpus.length > most.gpu) refuse(GPU, String(most.gpu), `is ${gpus.length} GPUs`);
  const memory = sum(gpus.map((gpu) => nominalBytes(gpu.memoryLimit ?? gpu.memory)));
  if (most.gpuMemory !== undefined && (memory === undefined || memory > most.gpuMemory)) {
    const size = memory === undefined ? 'no fixed amount' : formatBytes(memory);
    refuse(GPU_MEMORY, formatBytes(most.gpuMemory), `is ${size} of ${GPU_MEMORY}`);
  }
  const cores = sum(gpus.map(({ coresPercent }) => coresPercent ?? 0)) ?? 0;
  if (most.gpuCores !== undefined && cores > most.gpuCores)
    refuse(GPU_CORES, String(most.gpuCores), `is ${cores} of ${GPU_CORES}`);
  return problems;
}

/** The variables that a dialect reads. One with `valueFrom` has no value yet and is refused. */
function readEnvironment(container: PodContainer, dialect: Dialect, problems: Problem[]): ReadonlyMap<string, string> {
  const found = new Map<string, string>();
  if (dialect.environment.length === 0) return found;
  for (const [index, entry] of listAt(container.spec, 'env').entries()) {
    const name = textAt(entry, 'name');
    if (name === undefined || !dialect.environment.includes(name)) continue;
    const value = isObject(entry) ? (field(entry, 'value') ?? '') : '';
    const path = `${container.path}.env[${index}]`;
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
