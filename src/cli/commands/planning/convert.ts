// `cotenant convert`: what the webhook would make of manifests, container by container, without a cluster.
import { rulesOf, type WebhookConfiguration } from '../../../../webhook/config.ts';
import { mutatePod } from '../../../../webhook/mutate.ts';
import { isOwnKey, TENANT_ANNOTATIONS } from '../../../api/names.ts';
import type { ContainerRequest } from '../../../api/request.ts';
import { parsePodRequest } from '../../../api/request-annotation.ts';
import { isObject, type JsonObject, listAt, objectAt, textAt } from '../../../common/json.ts';
import { formatProblem } from '../../../common/problem.ts';
import { sameQuantity } from '../../../common/quantity.ts';
import { ownAmounts, showAmounts } from '../../../request/amounts.ts';
import { listContainers, type PodContainer } from '../../../request/containers.ts';
import { type Dialect, ownsKey, ownsResource } from '../../../request/dialects/dialect.ts';
import { dialectsOf, FOREIGN_DIALECTS } from '../../../request/dialects/index.ts';
import { type Command, text } from '../../lib/command.ts';
import { mapPods, objectName } from '../../lib/manifests.ts';
import { formOf, outputOptions } from '../../lib/output.ts';
import { askedBy, jsonText, oneCell, oneLine, yamlText } from '../../lib/text.ts';
import { MANIFEST_OPTIONS, readManifests } from '../../options/manifests.ts';
import { namespaceOption } from '../../options/target.ts';

type Converted = {
  readonly container: string;
  /** Undefined: it gets no GPU. */
  readonly share?: {
    readonly dialect: string;
    readonly asked: string;
    readonly becomes: string;
    readonly meaning: string;
  };
};
export type ConvertedPod = {
  /** `Deployment/train`, and the place of the pod's template in it. */
  readonly object: string;
  readonly place: string;
  readonly outcome: 'share' | 'untouched' | 'refused';
  readonly containers: readonly Converted[];
  /** Resources, annotations and labels of dialects that are off, and resources of GPUs that no dialect has. */
  readonly unread: readonly string[];
  readonly problems: readonly string[];
  readonly warnings: readonly string[];
};

export const convert: Command = {
  name: 'convert',
  summary: 'Shows what the webhook would make of manifests: the share of each container and why, or the refusal.',
  usage: '-f FILE [-f FILE ...] [--config FILE] [-n NAMESPACE] [-o table|yaml|json]',
  options: {
    ...MANIFEST_OPTIONS,
    namespace: namespaceOption('of manifests that name none (default default)'),
    ...outputOptions('table (default), yaml (the manifests as they would become) or json'),
  },
  notes: 'It asks no cluster. Its exit code is 1 where a pod would be refused.',
  async run(parsed) {
    const form = formOf(parsed);
    const { documents, configuration } = readManifests(parsed);
    const results = documents.map((document) => convertDocument(document, configuration, text(parsed, 'namespace')));
    const pods = results.flatMap((result) => result.pods);
    if (form === 'yaml')
      process.stdout.write((await Promise.all(results.map(({ after }) => yamlText(after)))).join('---\n'));
    else if (form === 'json') console.log(jsonText(pods));
    else {
      const lines = [...pods.flatMap(linesOf), ...documents.flatMap((document) => unreadOf(document) ?? [])];
      console.log(lines.length === 0 ? 'there are no pods in these manifests' : lines.join('\n'));
    }
    return pods.some(({ outcome }) => outcome === 'refused') ? 1 : 0;
  },
};

/** The object with each of its pods as the webhook would patch it; one that it refuses stays as it is. */
export function convertDocument(
  document: JsonObject,
  configuration: WebhookConfiguration,
  defaultNamespace = 'default',
): { readonly after: unknown; readonly pods: readonly ConvertedPod[] } {
  const namespace = textAt(objectAt(document, 'metadata'), 'namespace') ?? defaultNamespace;
  const object = objectName(document);
  const pods: ConvertedPod[] = [];
  const after = mapPods(document, (given, { place }) => {
    const pod = withNames(document, given);
    const mutation = mutatePod(pod, namespace, configuration);
    const described = describe(pod, mutation, namespace, configuration);
    const misplaced = place === '' ? [] : misplacedOn(document, pod);
    const kind = textAt(document, 'kind') ?? 'Pod';
    const foreign =
      place === '' && kind !== 'Pod' && /pod/i.test(kind)
        ? [`the webhook sees pods only: write kind Pod in the place of ${kind}`]
        : [];
    const warnings = [
      ...described.warnings,
      ...foreign,
      ...misplaced.map((key) => `${key} is on ${object}, not on its pods: no effect`),
    ];
    pods.push({ object, place, ...described, warnings });
    return mutation.kind === 'patched' ? mutation.pod : given;
  });
  return { after, pods };
}

/** Knative names the container of its services, where they do not (knative.dev, config-defaults, `container-name-template`). */
function withNames(document: JsonObject, pod: JsonObject): JsonObject {
  const spec = objectAt(pod, 'spec');
  const [container, ...others] = listAt(spec, 'containers');
  const isKnative = (textAt(document, 'apiVersion') ?? '').startsWith('serving.knative.dev/');
  if (!isKnative || !isObject(container) || others.length > 0 || textAt(container, 'name') !== undefined) return pod;
  return { ...pod, spec: { ...spec, containers: [{ ...container, name: 'user-container' }] } };
}

/** The GPUs that an object names outside of the pods that are known here, such as one from which an operator makes pods. */
export function unreadOf(document: JsonObject): string | undefined {
  const { metadata: _, status: __, ...rest } = objectAt({ rest: mapPods(document, () => ({})) }, 'rest');
  const resource = namedIn(rest);
  return (
    resource && oneLine(`${objectName(document)}: names ${resource} outside of a pod's template, is not converted`)
  );
}

/** Parts of a pod in which such a name is that of a taint or label. */
const OF_NODES = ['tolerations', 'nodeSelector', 'affinity'];

/** The first key or text that is a resource of a dialect, also as quotas write it (`requests.nvidia.com/gpu`). */
function namedIn(value: unknown): string | undefined {
  if (typeof value === 'string') {
    const name = value.replace(/^(requests|limits)\./, '');
    return FOREIGN_DIALECTS.some((dialect) => ownsResource(dialect, name)) ? value : undefined;
  }
  if (!isObject(value) && !Array.isArray(value)) return undefined;
  for (const [key, part] of Object.entries(value)) {
    if (OF_NODES.includes(key)) continue;
    const found = namedIn(key) ?? namedIn(part);
    if (found !== undefined) return found;
  }
  return undefined;
}

function describe(
  pod: JsonObject,
  mutation: ReturnType<typeof mutatePod>,
  namespace: string,
  configuration: WebhookConfiguration,
): Omit<ConvertedPod, 'object' | 'place'> {
  const listed = listContainers(pod);
  const containers = listed.ok ? listed.value : [];
  const read = dialectsOf(rulesOf(configuration, namespace));
  const record = mutation.kind === 'patched' ? parsePodRequest(mutation.record) : undefined;
  const shares = record?.ok ? record.value.containers : [];
  return {
    outcome: mutation.kind === 'patched' ? 'share' : mutation.kind,
    containers: containers.map((container) => {
      const share = shares.find(({ name }) => name === container.name);
      return { container: container.name, ...(share && { share: shareOf(share) }) };
    }),
    unread: [
      ...new Set([
        ...containers.flatMap(resourcesOf).filter((name) => ofForeign(ownsResource, read)(name) || isUnknownGpu(name)),
        ...keysOf(pod).filter(ofForeign(ownsKey, read)),
      ]),
    ],
    problems: mutation.kind === 'refused' ? mutation.problems.map(formatProblem) : [],
    warnings: mutation.kind === 'refused' ? [] : mutation.warnings,
  };
}

/** Names of dialects that are off. */
const ofForeign =
  (owns: (dialect: Dialect, name: string) => boolean, read: readonly Dialect[]) =>
  (name: string): boolean =>
    FOREIGN_DIALECTS.some((dialect) => owns(dialect, name)) && !read.some((dialect) => owns(dialect, name));

/** By its name, such as `nvidia.com/vgpu` or `amd.com/gpu`: the pod waits for a node with its device plugin. */
const isUnknownGpu = (name: string): boolean =>
  /^[^/]+\/.*(gpu|cuda)/i.test(name) &&
  !isOwnKey(name) &&
  !FOREIGN_DIALECTS.some((dialect) => ownsResource(dialect, name));

const keysOf = ({ metadata }: JsonObject): readonly string[] =>
  Object.keys({ ...objectAt(metadata, 'annotations'), ...objectAt(metadata, 'labels') });

/** What the object itself has of annotations and labels that only count on its pods, which lack them. */
function misplacedOn(document: JsonObject, pod: JsonObject): readonly string[] {
  const counts = (key: string) =>
    TENANT_ANNOTATIONS.includes(key) ||
    FOREIGN_DIALECTS.some(
      (dialect) =>
        ownsKey(dialect, key) ||
        dialect.podNotes?.includes(key) ||
        dialect.choices?.some(({ annotation }) => annotation === key),
    );
  return keysOf(document).filter((key) => counts(key) && !keysOf(pod).includes(key));
}

/** Those that it asks for: of 0 it asks nothing. */
const resourcesOf = ({ spec }: PodContainer): readonly string[] =>
  Object.entries(objectAt(objectAt(spec, 'resources'), 'limits'))
    .filter(([, amount]) => !sameQuantity(amount, '0'))
    .map(([name]) => name);

const shareOf = ({ dialect, asked, gpus }: ContainerRequest): NonNullable<Converted['share']> => ({
  dialect,
  asked: showAmounts(new Map(Object.entries(asked))),
  becomes: showAmounts(ownAmounts(gpus)),
  meaning: askedBy({ gpus }),
});

function linesOf({ object, place, outcome, containers, unread, problems, warnings }: ConvertedPod): readonly string[] {
  const head = { share: '', untouched: ': asks for no share, is left as it is', refused: ': is refused' }[outcome];
  const lines = containers.flatMap(({ container, share }) => [
    ...(share ? [`${container} (${share.dialect}): ${share.asked}`, `  ${share.meaning}`, `  ${share.becomes}`] : []),
    ...(!share && outcome === 'share' ? [`${container}: no GPU`] : []),
  ]);
  const off = unread.map((name) => `${name} is not read: ${whyUnread(name)}`);
  const all = [...lines, ...off, ...problems, ...warnings.map((warning) => `warning: ${warning}`)];
  return [oneLine(`${object}${place === '' ? '' : ` ${place}`}${head}`), ...all.map((line) => `  ${oneCell(line)}`)];
}

function whyUnread(name: string): string {
  const owners = FOREIGN_DIALECTS.filter((dialect) => ownsResource(dialect, name) || ownsKey(dialect, name));
  return owners.length === 0
    ? 'no dialect has it, and the pod waits for a node that does'
    : `dialect ${owners.map((dialect) => dialect.name).join(' or ')} is off`;
}
