// Alibaba's ACK shared GPU scheduling and open-source gpushare: `aliyun.com/gpu-mem` in units of the cluster.
// The limit is proportional, as in cGPU, unless the operator chose the literal size (`rounding`).

import { MEMORY_ISOLATION_ANNOTATION } from '../../api/names.ts';
import {
  type ContainerRequest,
  type GpuShare,
  type MemoryAmount,
  MOST_GPUS,
  MOST_MEMORY_BYTES,
} from '../../api/request.ts';
import { textAt } from '../../common/json.ts';
import { type Checked, invalid, keyPath, missing, type Problem } from '../../common/problem.ts';
import { meantPercent, parsePercent, parseUnits, parseWhole, sameQuantity } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import { mayBeUnlimited, type Rules } from '../rules/namespace-rules.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';

const MEMORY = 'aliyun.com/gpu-mem';
const CORES = 'aliyun.com/gpu-core.percentage';
/** Whole GPUs, on nodes of the mode `topology`. */
const WHOLE = 'aliyun.com/gpu';
/** A label of pods; gpushare's nodes have a resource of this name. */
const COUNT = 'aliyun.com/gpu-count';
/** Of nodes; pods select nodes by it. In the mode `share` GPUs are shared without isolation. */
const MODE_LABEL = 'ack.node.gpu.schedule';
const DISABLE = 'CGPU_DISABLE';
const HIGH_PRIORITY = 'ALIYUN_COM_GPU_HIGH_PRIO';
const MEMORY_VARIABLE = 'ALIYUN_COM_GPU_MEM_CONTAINER';
const GPU_VARIABLE = 'ALIYUN_COM_GPU_MEM_DEV';
const WEIGHT_VARIABLE = 'ALIYUN_COM_GPU_SCHD_WEIGHT';

export const ack: Dialect = {
  name: 'ack',
  resources: [MEMORY, CORES, WHOLE, COUNT],
  podNotes: [COUNT],
  environment: [DISABLE, HIGH_PRIORITY],
  schedulers: ['ack-co-scheduler'],
  zeroIsNothing: true,
  // As gpushare's scheduler extender, which looks for one GPU for the sum of a pod's containers.
  sameGpu: true,
  signs: { deployments: ['kube-system/gpushare-schd-extender'] },
  read,
  variables,
};

function read(asked: Asked, rules: Rules): Checked<Answer> {
  const isAsked = (name: string) => !sameQuantity(asked.amounts.get(name) ?? '0', '0');
  if (isAsked(WHOLE)) return readWhole(asked, isAsked);
  const { unitBytes, rounding } = rules.ack;
  const memoryText = asked.amounts.get(MEMORY);
  if (memoryText === undefined) {
    return err([missing(asked.amountPath(MEMORY), `${CORES} needs an amount of ${MEMORY}`)]);
  }
  const problems: Problem[] = [];
  const units = parseUnits(memoryText, 1, MOST_MEMORY_BYTES / unitBytes, unitBytes);
  if (!units.ok) problems.push(invalid(asked.amountPath(MEMORY), memoryText, units.error.wrong, units.error.right));
  const gpus = readCount(asked, problems);
  const coresText = asked.amounts.get(CORES);
  const cores = coresText === undefined ? undefined : readCores(coresText, asked, problems);
  if (!units.ok || problems.length > 0) return err(problems);
  const perGpu = Math.floor(units.value / gpus);
  if (perGpu * gpus !== units.value) {
    const near = [perGpu, perGpu + 1].filter((count) => count > 0).map((count) => count * gpus);
    const wrong = `cannot be split equally over the ${gpus} GPUs of label ${COUNT}`;
    return err([invalid(asked.amountPath(MEMORY), memoryText, wrong, `write ${near.join(' or ')}`)]);
  }
  const memory: MemoryAmount =
    rounding === 'cgpu'
      ? { kind: 'units', units: perGpu, unitBytes, rounding: 'cgpu' }
      : { kind: 'bytes', bytes: perGpu * unitBytes };
  const share: GpuShare = cores === undefined ? { memory } : { memory, coresPercent: cores };
  const warnings =
    cores !== undefined && cores % 5 !== 0 ? [`${CORES}: ${cores} is taken as it is; ACK itself takes steps of 5`] : [];
  if (cores !== undefined && gpus > 1) warnings.push(`${CORES}: ${cores} is percent of each of the ${gpus} GPUs`);
  return {
    ok: true,
    value: {
      gpus: Array.from({ length: gpus }, () => share),
      ...(isIsolationOff(asked, rules, warnings) && { memoryIsolation: 'off' }),
      ...(asked.environment.get(HIGH_PRIORITY) === '1' ? { priority: 'high' } : {}),
      warnings,
    },
  };
}

/** Switched off by the variable, or by the mode of the nodes that the pod selects, where the namespace allows that. */
function isIsolationOff({ environment, annotations, nodeLabels }: Asked, rules: Rules, warnings: string[]): boolean {
  const disable = environment.get(DISABLE);
  if (disable === 'true' || disable === '1') return true;
  if (textAt(nodeLabels, MODE_LABEL) !== 'share' || textAt(annotations, MEMORY_ISOLATION_ANNOTATION) === 'on')
    return false;
  if (!mayBeUnlimited(rules)) warnings.push(`${MODE_LABEL}: share: memory is limited all the same here`);
  return mayBeUnlimited(rules);
}

function readWhole(asked: Asked, isAsked: (name: string) => boolean): Checked<Answer> {
  const other = [MEMORY, CORES].find(isAsked);
  if (other !== undefined) {
    const wrong = `is a part of a GPU beside whole ones (${WHOLE})`;
    return err([invalid(asked.amountPath(other), asked.amounts.get(other), wrong, 'write one of the two')]);
  }
  const text = asked.amounts.get(WHOLE) ?? '';
  const count = parseWhole(text, 1, MOST_GPUS);
  if (!count.ok) {
    const right = meantPercent(text) === undefined ? count.error.right : `write ${MEMORY} for a part of a GPU`;
    return err([invalid(asked.amountPath(WHOLE), text, count.error.wrong, right)]);
  }
  return {
    ok: true,
    value: { gpus: Array.from({ length: count.value }, () => ({ memory: { kind: 'whole' } })), warnings: [] },
  };
}

/** gpushare's extender looks for one GPU whatever the amount says, and ACK's splits by the label. */
function readCount(asked: Asked, problems: Problem[]): number {
  const text = textAt(asked.labels, COUNT);
  const amount = asked.amounts.get(COUNT);
  if (amount !== undefined && !sameQuantity(amount, text ?? '1')) {
    const right = `write 1, or label ${COUNT}: "${amount}" for that many GPUs`;
    problems.push(invalid(asked.amountPath(COUNT), amount, 'does not split a share over GPUs', right));
  }
  if (text === undefined) return 1;
  const count = parseWhole(text, 1, MOST_GPUS);
  if (count.ok) return count.value;
  problems.push(invalid(keyPath('metadata.labels', COUNT), text, count.error.wrong, count.error.right));
  return 1;
}

/** Percent of each GPU; ACK's pages have it for one GPU only. */
function readCores(text: string, asked: Asked, problems: Problem[]): number | undefined {
  const percent = parsePercent(text, 1, 100);
  if (percent.ok) return percent.value;
  const { wrong, right } = percent.error;
  problems.push(invalid(asked.amountPath(CORES), text, wrong, `${right}: percent of one GPU`));
  return undefined;
}

/**
 * What cGPU's workloads read: units of each GPU, and those of the GPU as the container sees it, which are the same while
 * its limit holds, so that a program which divides the two takes all that it sees. Without the limit it sees the whole
 * GPU, which nothing here knows.
 */
function variables({ gpus, asked, memoryIsolation }: ContainerRequest): Readonly<Record<string, string>> {
  if (gpus[0]?.memory.kind === 'whole') return {};
  const total = parseWhole(asked[MEMORY], 1, MOST_MEMORY_BYTES);
  const units = (total.ok ? total.value : 0) / gpus.length;
  const cores = gpus[0]?.coresPercent;
  return {
    [MEMORY_VARIABLE]: String(units),
    ...(memoryIsolation === 'on' && { [GPU_VARIABLE]: String(units) }),
    ...(cores !== undefined && { [WEIGHT_VARIABLE]: String(Math.max(1, Math.floor(cores / 5))) }),
  };
}
