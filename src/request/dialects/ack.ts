// Alibaba's ACK shared GPU scheduling and open-source gpushare: `aliyun.com/gpu-mem` in units of the cluster.
// The limit is proportional, as in cGPU, unless the operator chose the literal size (`rounding`).

import { type GpuShare, type MemoryAmount, MOST_GPUS, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { textAt } from '../../common/json.ts';
import { type Checked, invalid, keyPath, missing, type Problem } from '../../common/problem.ts';
import { parseWhole } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Rules } from '../rules/namespace-rules.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';

const MEMORY = 'aliyun.com/gpu-mem';
const CORES = 'aliyun.com/gpu-core.percentage';
const COUNT_LABEL = 'aliyun.com/gpu-count';
const DISABLE = 'CGPU_DISABLE';

export const ack: Dialect = {
  name: 'ack',
  resources: [MEMORY, CORES],
  environment: [DISABLE],
  schedulers: ['ack-co-scheduler'],
  zeroIsNothing: true,
  read,
};

function read(asked: Asked, rules: Rules): Checked<Answer> {
  const { unitBytes, rounding } = rules.ack;
  const memoryText = asked.amounts.get(MEMORY);
  if (memoryText === undefined) {
    return err([missing(asked.amountPath(MEMORY), `${CORES} needs an amount of ${MEMORY}`)]);
  }
  const problems: Problem[] = [];
  const units = parseWhole(memoryText, 1, MOST_MEMORY_BYTES / unitBytes);
  if (!units.ok) problems.push(invalid(asked.amountPath(MEMORY), memoryText, units.error.wrong, units.error.right));
  const gpus = readCount(asked, problems);
  const coresText = asked.amounts.get(CORES);
  const cores = coresText === undefined ? undefined : readCores(coresText, gpus, asked, problems);
  if (!units.ok || problems.length > 0) return err(problems);
  const perGpu = Math.floor(units.value / gpus);
  if (perGpu * gpus !== units.value) {
    const near = [perGpu, perGpu + 1].filter((count) => count > 0).map((count) => count * gpus);
    const wrong = `cannot be split equally over the ${gpus} GPUs of label ${COUNT_LABEL}`;
    return err([invalid(asked.amountPath(MEMORY), memoryText, wrong, `write ${near.join(' or ')}`)]);
  }
  const memory: MemoryAmount =
    rounding === 'cgpu'
      ? { kind: 'units', units: perGpu, unitBytes, rounding: 'cgpu' }
      : { kind: 'bytes', bytes: perGpu * unitBytes };
  const share: GpuShare = cores === undefined ? { memory } : { memory, coresPercent: cores };
  const warnings =
    cores !== undefined && cores % 5 !== 0 ? [`${CORES}: ${cores} is taken as it is; ACK itself takes steps of 5`] : [];
  const disable = asked.environment.get(DISABLE);
  return {
    ok: true,
    value: {
      gpus: Array.from({ length: gpus }, () => share),
      ...(disable === 'true' || disable === '1' ? { memoryIsolation: 'off' } : {}),
      warnings,
    },
  };
}

function readCount(asked: Asked, problems: Problem[]): number {
  const text = textAt(asked.labels, COUNT_LABEL);
  if (text === undefined) return 1;
  const count = parseWhole(text, 1, MOST_GPUS);
  if (count.ok) return count.value;
  problems.push(invalid(keyPath('metadata.labels', COUNT_LABEL), text, count.error.wrong, count.error.right));
  return 1;
}

function readCores(text: string, gpus: number, asked: Asked, problems: Problem[]): number | undefined {
  const path = asked.amountPath(CORES);
  const percent = parseWhole(text, 1, 100);
  if (!percent.ok) {
    problems.push(invalid(path, text, percent.error.wrong, `${percent.error.right}: percent of one GPU`));
    return undefined;
  }
  if (gpus === 1) return percent.value;
  const right = `leave it out, or ask for one GPU, or use cotenant.io/gpu-cores, which is a total over all GPUs`;
  problems.push(invalid(path, text, `is a share of one GPU, but label ${COUNT_LABEL} asks for ${gpus}`, right));
  return undefined;
}
