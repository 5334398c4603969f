// Tencent's gpu-manager (TKE): `tencent.com/vcuda-core` in percent of a GPU, 100 and its multiples are whole GPUs, and
// `tencent.com/vcuda-memory` in units of 256 MiB. Facts: github.com/tkestack/gpu-manager, README.
import { type GpuShare, MOST_GPUS, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { textAt } from '../../common/json.ts';
import { type Checked, invalid, keyPath, missing, type Problem } from '../../common/problem.ts';
import { MIB, parsePercent, parseUnits } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';

const CORES = 'tencent.com/vcuda-core';
const MEMORY = 'tencent.com/vcuda-memory';
/** The most compute that a container may use while others leave it idle. */
const LIMIT_ANNOTATION = 'tencent.com/vcuda-core-limit';
const UNIT_BYTES = 256 * MIB;

export const tke: Dialect = {
  name: 'tke',
  resources: [CORES, MEMORY],
  podNotes: [LIMIT_ANNOTATION],
  environment: [],
  schedulers: [],
  zeroIsNothing: true,
  read,
};

function read(asked: Asked): Checked<Answer> {
  const text = asked.amounts.get(CORES);
  if (text === undefined) return err([missing(asked.amountPath(CORES), `${MEMORY} needs an amount of ${CORES}`)]);
  const cores = parsePercent(text, 1, 100 * MOST_GPUS);
  if (!cores.ok)
    return err([invalid(asked.amountPath(CORES), text, cores.error.wrong, `${cores.error.right}: 100 is one GPU`)]);
  if (cores.value >= 100) return readWholeGpus(cores.value, text, asked);
  const problems: Problem[] = [];
  const memoryText = asked.amounts.get(MEMORY);
  const units = parseUnits(memoryText ?? '', 1, MOST_MEMORY_BYTES / UNIT_BYTES, UNIT_BYTES);
  if (memoryText === undefined)
    problems.push(missing(asked.amountPath(MEMORY), `write units of 256 MiB beside ${CORES}`));
  else if (!units.ok)
    problems.push(
      invalid(asked.amountPath(MEMORY), memoryText, units.error.wrong, `${units.error.right}: 256 MiB each`),
    );
  const limit = readLimit(cores.value, asked, problems);
  if (problems.length > 0 || !units.ok) return err(problems);
  const share: GpuShare = {
    memory: { kind: 'bytes', bytes: units.value * UNIT_BYTES },
    coresPercent: cores.value,
    ...(limit !== undefined && { coresLimitPercent: limit }),
  };
  return { ok: true, value: { gpus: [share], warnings: [] } };
}

/** gpu-manager ignores an amount of memory beside whole GPUs. */
function readWholeGpus(cores: number, text: string, asked: Asked): Checked<Answer> {
  if (cores % 100 !== 0) {
    const below = Math.floor(cores / 100) * 100;
    const right = `write ${below} or ${below + 100}`;
    return err([invalid(asked.amountPath(CORES), text, 'is above one GPU and no number of whole GPUs', right)]);
  }
  const warnings = asked.amounts.has(MEMORY) ? [`${MEMORY}: no effect beside whole GPUs`] : [];
  return {
    ok: true,
    value: { gpus: Array.from({ length: cores / 100 }, () => ({ memory: { kind: 'whole' } })), warnings },
  };
}

function readLimit(cores: number, asked: Asked, problems: Problem[]): number | undefined {
  const text = textAt(asked.annotations, LIMIT_ANNOTATION);
  if (text === undefined) return undefined;
  const limit = parsePercent(text, cores, 100);
  if (limit.ok) return limit.value;
  const path = keyPath('metadata.annotations', LIMIT_ANNOTATION);
  problems.push(invalid(path, text, limit.error.wrong, `${limit.error.right}: percent of the GPU, from ${CORES} up`));
  return undefined;
}
