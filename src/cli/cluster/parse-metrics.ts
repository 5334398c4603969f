// Parses use by GPU and container from the text of an agent's /metrics, for the few metrics that the CLI shows. Pure.
import type { Mode } from '../../api/request.ts';
import { type EffectiveMode, MODE_SOURCES, parseMode } from '../../policy/mode.ts';

export type ContainerUse = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly gpuUuid: string;
  readonly usedBytes?: number;
  /** Of the GPU's compute, 0 to 1. */
  readonly smRatio?: number;
  readonly fence?: string;
};

export type KnownUse = {
  readonly known: true;
  /** Bytes in use, by the GPU's UUID. */
  readonly gpus: ReadonlyMap<string, number>;
  readonly containers: readonly ContainerUse[];
  /** Those without a grant. */
  readonly foreign: readonly ContainerUse[];
  /** The node's enforcement mode; absent: the agent does not report it. */
  readonly mode?: Mode;
  /** Of containers, by `nameKey`. */
  readonly modes: ReadonlyMap<string, EffectiveMode>;
};

/** `short` fits into a column, `why` is the sentence. */
export type UnknownUse = {
  readonly known: false;
  readonly short: 'no agent' | 'no answer' | 'forbidden' | 'not asked' | 'no driver';
  readonly why: string;
};

export type Use = KnownUse | UnknownUse;

type Series = { readonly name: string; readonly labels: Readonly<Record<string, string>>; readonly value: number };

const SERIES = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$/;
const LABEL = /(?:^|,)([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES: Readonly<Record<string, string>> = { n: '\n', '"': '"', '\\': '\\' };
const GPU_USED = 'cotenant_device_memory_used_bytes';
const USED = 'cotenant_container_memory_used_bytes';
const SM = 'cotenant_container_sm_utilization_ratio';
const INFO = 'cotenant_container_info';
const FOREIGN_USED = 'cotenant_foreign_memory_used_bytes';
const UP = 'cotenant_up';
const NODE_MODE = 'cotenant_enforcement_mode';
const MODE = 'cotenant_container_enforcement';

type Names = Pick<ContainerUse, 'namespace' | 'pod' | 'container'>;
const nameKey = ({ namespace, pod, container }: Names): string => JSON.stringify([namespace, pod, container]);

function seriesOf(page: string): readonly Series[] {
  return page.split('\n').flatMap((line) => {
    const [, name, labels = '', value] = SERIES.exec(line) ?? [];
    if (name === undefined) return [];
    const pairs = [...labels.matchAll(LABEL)].map(
      ([, label = '', text = '']) =>
        [label, text.replace(/\\(.)/g, (_, mark: string) => ESCAPES[mark] ?? mark)] as const,
    );
    return [{ name, labels: Object.fromEntries(pairs), value: Number(value) }];
  });
}

export function useOf(page: string): Use {
  const all = seriesOf(page);
  const up = all.find(({ name }) => name === UP);
  if (up === undefined) return { known: false, short: 'no answer', why: 'its metrics are not those of an agent' };
  // An exporter half without its node half serves only this metric.
  if (up.value !== 1 && !all.some(({ name }) => name.startsWith('cotenant_') && name !== UP))
    return { known: false, short: 'no answer', why: 'its agent has no sample yet, or its node half is away' };
  if (up.value !== 1) return { known: false, short: 'no driver', why: 'its driver does not answer' };
  const of = (name: string) => all.filter((series) => series.name === name);
  const keyOf = ({ labels }: Series) =>
    JSON.stringify([labels.namespace, labels.pod, labels.container, labels.gpu_uuid]);
  const collect = (bytes: string, ratio?: string, info?: string): ContainerUse[] => {
    const ratios = new Map((ratio ? of(ratio) : []).map((series) => [keyOf(series), series.value]));
    const infos = new Map((info ? of(info) : []).map((series) => [keyOf(series), series.labels.fence]));
    return of(bytes).map((series) => {
      const [smRatio, fence] = [ratios.get(keyOf(series)), infos.get(keyOf(series))];
      const { namespace = '', pod = '', container = '', gpu_uuid: gpuUuid = '' } = series.labels;
      return {
        namespace,
        pod,
        container,
        gpuUuid,
        usedBytes: series.value,
        ...(smRatio === undefined ? {} : { smRatio }),
        ...(fence === undefined ? {} : { fence }),
      };
    });
  };
  const mode = parseMode(of(NODE_MODE).find(({ value }) => value === 1)?.labels.enforcement);
  return {
    known: true,
    ...(mode && { mode }),
    modes: new Map(
      of(MODE).flatMap(({ labels: { namespace = '', pod = '', container = '', enforcement, source: saidBy } }) => {
        const [is, by] = [parseMode(enforcement), (['node', ...MODE_SOURCES] as const).find((one) => one === saidBy)];
        return is && by ? [[nameKey({ namespace, pod, container }), { mode: is, by }]] : [];
      }),
    ),
    gpus: new Map(of(GPU_USED).map(({ labels, value }) => [labels.gpu_uuid ?? '', value])),
    containers: collect(USED, SM, INFO),
    foreign: collect(FOREIGN_USED),
  };
}

/** Of one container on one GPU; undefined: the agent does not report it, or does not answer. */
export const useOn = (
  use: Use | undefined,
  of: Pick<ContainerUse, 'namespace' | 'pod' | 'container' | 'gpuUuid'>,
): ContainerUse | undefined =>
  use?.known
    ? use.containers.find(
        (one) =>
          one.namespace === of.namespace &&
          one.pod === of.pod &&
          one.container === of.container &&
          one.gpuUuid === of.gpuUuid,
      )
    : undefined;

/** Of one container; undefined: the agent does not report it, or does not answer. */
export const modeOn = (use: Use | undefined, of: Names): EffectiveMode | undefined =>
  use?.known ? use.modes.get(nameKey(of)) : undefined;
