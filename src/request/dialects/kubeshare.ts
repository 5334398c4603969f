// KubeShare: fractions of a GPU's compute as labels `sharedgpu/gpu_request` and `gpu_limit` (version 2) or annotations
// `kubeshare/...` (version 1), and `gpu_mem` in bytes. A request above 1 is whole GPUs.
// Facts: github.com/NTHU-LSALAB/KubeShare, README of both versions.
import { GPU_MODEL_ANNOTATION, PRIORITY_ANNOTATION } from '../../api/names.ts';
import { type GpuShare, MOST_GPUS } from '../../api/request.ts';
import type { JsonObject } from '../../common/json.ts';
import { type Checked, invalid, keyPath, missing, type Problem } from '../../common/problem.ts';
import { parseQuantity, parseWhole, sameQuantity } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Answer, Asked, Dialect, PodAmounts } from './dialect.ts';
import { bytesAmount, hundredthsOf, percentAmount, rightAbove, rightFraction } from './fractions.ts';

const LABELS = 'sharedgpu/';
const ANNOTATIONS = 'kubeshare/';
const REQUEST = 'gpu_request';
const LIMIT = 'gpu_limit';
const MEMORY = 'gpu_mem';
const NAMES = [REQUEST, LIMIT, MEMORY];

export const kubeshare: Dialect = {
  name: 'kubeshare',
  resources: [],
  podKeys: [LABELS, ANNOTATIONS].flatMap((domain) => NAMES.map((name) => domain + name)),
  readPod,
  environment: [],
  schedulers: ['kubeshare-scheduler'],
  choices: [
    { annotation: `${LABELS}gpu_model`, isLabel: true, instead: GPU_MODEL_ANNOTATION },
    { annotation: `${LABELS}priority`, isLabel: true, usual: '0', instead: PRIORITY_ANNOTATION },
    { annotation: `${LABELS}group_name`, isLabel: true, instead: 'pod-group.scheduling.sigs.k8s.io/name' },
  ],
  zeroIsNothing: true,
  signs: { deployments: ['kube-system/kubeshare-scheduler'] },
  read,
};

/** KubeShare gives all containers of a pod the same GPU; here the first one gets it. */
function readPod(annotations: JsonObject, labels: JsonObject): readonly PodAmounts[] {
  return [
    [ANNOTATIONS, annotations, 'metadata.annotations'] as const,
    [LABELS, labels, 'metadata.labels'] as const,
  ].flatMap(([domain, map, path]) => {
    const keys = NAMES.map((name) => domain + name).filter((key) => Object.hasOwn(map, key));
    const amounts = new Map(keys.map((key) => [key, String(map[key])]));
    return amounts.size === 0 ? [] : [{ amounts, path }];
  });
}

function read(asked: Asked): Checked<Answer> {
  const [domain, ...others] = [LABELS, ANNOTATIONS].filter((own) =>
    [...asked.amounts.keys()].some((key) => key.startsWith(own)),
  );
  const map = domain === ANNOTATIONS ? 'metadata.annotations' : 'metadata.labels';
  const path = (name: string) => keyPath(map, `${domain}${name}`);
  if (others.length > 0) return err([invalid(map, undefined, `has ${LABELS} beside ${ANNOTATIONS}`, 'write one form')]);
  const textOf = (name: string) => asked.amounts.get(`${domain}${name}`);
  const [request, limit, memory] = [textOf(REQUEST), textOf(LIMIT), textOf(MEMORY)];
  if (request === undefined) return err([missing(path(REQUEST), 'write a fraction of a GPU such as "0.5"')]);
  const parsed = parseQuantity(request);
  if (parsed.ok && parsed.value.numerator > parsed.value.denominator) return wholeGpus(request, limit, path);

  const problems: Problem[] = [];
  const cores = percentOf(request, path(REQUEST), problems);
  const least = cores === undefined ? 0 : Number(request);
  const most = limit === undefined ? undefined : percentOf(limit, path(LIMIT), problems, least);
  if (most !== undefined && cores !== undefined && most < cores)
    problems.push(invalid(path(LIMIT), limit, `is less than ${REQUEST}`, rightAbove(least)));
  const amount =
    memory === undefined
      ? memoryOfRequest(request, domain, path, problems)
      : bytesAmount(memory, path(MEMORY), problems);
  if (problems.length > 0 || amount === undefined || cores === undefined) return err(problems);
  const share: GpuShare = {
    memory: amount,
    ...(cores > 0 && { coresPercent: cores }),
    ...(cores > 0 && most !== undefined && { coresLimitPercent: most }),
  };
  return { ok: true, value: { gpus: [share], warnings: [] } };
}

function wholeGpus(request: string, limit: string | undefined, path: (name: string) => string): Checked<Answer> {
  const count = parseWhole(request, 2, MOST_GPUS);
  if (!count.ok)
    return err([invalid(path(REQUEST), request, 'is above one GPU and no number of GPUs', count.error.right)]);
  if (limit !== undefined && !sameQuantity(limit, request))
    return err([invalid(path(LIMIT), limit, `is not ${REQUEST}`, `write ${request}: whole GPUs have no other limit`)]);
  return {
    ok: true,
    value: { gpus: Array.from({ length: count.value }, () => ({ memory: { kind: 'whole' } })), warnings: [] },
  };
}

/** Whole percent, rounded down, and at least 1; 0 for nothing. A problem proposes `least` or more. */
function percentOf(text: string, path: string, problems: Problem[], least = 0): number | undefined {
  if (sameQuantity(text, '0')) return 0;
  const hundredths = hundredthsOf(text);
  if (hundredths === undefined)
    problems.push(invalid(path, text, 'is no fraction of a GPU', rightFraction(text, least)));
  return hundredths === undefined ? undefined : Math.max(1, Math.floor(hundredths / 100));
}

/** Version 2 takes the part of the memory that the request is of the compute; version 1 has no such default. */
function memoryOfRequest(
  request: string,
  domain: string | undefined,
  path: (name: string) => string,
  problems: Problem[],
) {
  if (domain === LABELS && !sameQuantity(request, '0'))
    return hundredthsOf(request) === undefined ? undefined : percentAmount(request, path(REQUEST), problems);
  problems.push(missing(path(MEMORY), 'write bytes of memory'));
  return undefined;
}
