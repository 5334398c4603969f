// Baidu's CCE with cGPU and sGPU: the model of the GPU is part of each resource name (`baidu.com/v100_32g_cgpu`). Without
// an amount of memory GPUs are whole; else compute and memory are totals over the container's GPUs.
// Facts: intl.cloud.baidu.com, CCE, "GPU Exclusive and Shared Usage Instructions" (names, units) and "Best Practice for GPU
// Virtualization with Optimal Isolation" (several GPUs, no compute without memory); "Deploy the TensorFlow Serving
// inference service" (scheduler).
import { GPU_MODEL_ANNOTATION } from '../../api/names.ts';
import { type GpuShare, type MemoryAmount, MOST_GPUS, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { textAt } from '../../common/json.ts';
import { type Checked, invalid, missing, type Problem } from '../../common/problem.ts';
import { GIB, parsePercent, parseUnits, parseWhole } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';
import { rightTotal, splitOver } from './fractions.ts';

const COUNT = '_cgpu';

export const baidu: Dialect = {
  name: 'baidu',
  resources: [
    'baidu.com/*_cgpu',
    'baidu.com/*_cgpu_core',
    'baidu.com/*_cgpu_memory',
    'baidu.com/*_cgpu_memory_percent',
  ],
  environment: [],
  schedulers: ['volcano'],
  zeroIsNothing: true,
  read,
};

/** `baidu.com/v100_32g` of `baidu.com/v100_32g_cgpu_core`. */
const modelOf = (resource: string): string => resource.replace(/_cgpu(_core|_memory|_memory_percent)?$/, '');

function read(asked: Asked): Checked<Answer> {
  const { amounts, amountPath } = asked;
  const [first = '', ...others] = amounts.keys();
  const model = modelOf(first);
  const stray = others.find((name) => modelOf(name) !== model);
  if (stray !== undefined) {
    const wrong = `is of another model of GPU than ${first}`;
    return err([
      invalid(amountPath(stray), amounts.get(stray), wrong, 'write the amounts of one container for one model'),
    ]);
  }
  const count = `${model}${COUNT}`;
  const counted = amounts.get(count);
  if (counted === undefined)
    return err([missing(amountPath(count), 'write the number of GPUs, which is 1 for a share of one')]);
  const gpus = parseWhole(counted, 1, MOST_GPUS);
  if (!gpus.ok) return err([invalid(amountPath(count), counted, gpus.error.wrong, `${gpus.error.right}: GPUs`)]);

  const problems: Problem[] = [];
  const memory = readMemory(asked, count, gpus.value, problems);
  const cores = readCores(asked, count, gpus.value, problems);
  if (problems.length > 0) return err(problems);
  const gpu: GpuShare = { memory, ...(cores !== undefined && { coresPercent: cores }) };
  const warnings =
    textAt(asked.annotations, GPU_MODEL_ANNOTATION) === undefined
      ? [`${count}: the model in the name is not read; write ${GPU_MODEL_ANNOTATION}, where it is allowed`]
      : [];
  return { ok: true, value: { gpus: Array.from({ length: gpus.value }, () => gpu), warnings } };
}

/** Of each GPU; the whole of it where no amount is written. */
function readMemory({ amounts, amountPath }: Asked, count: string, gpus: number, problems: Problem[]): MemoryAmount {
  const [name, percentName] = [`${count}_memory`, `${count}_memory_percent`];
  const [text, percentText] = [amounts.get(name), amounts.get(percentName)];
  const refuse = (resource: string, wrong: string, right: string): MemoryAmount => {
    problems.push(invalid(amountPath(resource), amounts.get(resource), wrong, right));
    return { kind: 'whole' };
  };
  if (text !== undefined && percentText !== undefined)
    return refuse(percentName, `is not possible beside ${name}`, 'leave one of the two out');
  if (percentText !== undefined) {
    // Baidu's pages say of GiB alone that they are a total.
    if (gpus > 1) return refuse(percentName, `is not clear for ${gpus} GPUs`, `write ${name}, GiB in total`);
    const percent = parsePercent(percentText, 1, 100);
    if (!percent.ok) return refuse(percentName, percent.error.wrong, `${percent.error.right}: percent of the memory`);
    return percent.value === 100 ? { kind: 'whole' } : { kind: 'percent', percent: percent.value };
  }
  if (text === undefined) return { kind: 'whole' };
  const units = parseUnits(text, 1, MOST_MEMORY_BYTES / GIB, GIB);
  if (!units.ok)
    return refuse(name, units.error.wrong, `${gpus > 1 ? `write a multiple of ${gpus}` : units.error.right}: GiB`);
  const each = splitOver(units.value, gpus);
  return each.ok ? { kind: 'bytes', bytes: each.value * GIB } : refuse(name, each.error.wrong, each.error.right);
}

/** Percent of each GPU. */
function readCores(asked: Asked, count: string, gpus: number, problems: Problem[]): number | undefined {
  const name = `${count}_core`;
  const text = asked.amounts.get(name);
  if (text === undefined) return undefined;
  const refuse = (wrong: string, right: string) => {
    problems.push(invalid(asked.amountPath(name), text, wrong, right));
    return undefined;
  };
  if (![`${count}_memory`, `${count}_memory_percent`].some((memory) => asked.amounts.has(memory))) {
    problems.push(missing(asked.amountPath(`${count}_memory`), `write GiB beside ${name}`));
    return undefined;
  }
  const cores = parsePercent(text, 1, 100 * gpus);
  if (!cores.ok) return refuse(cores.error.wrong, `${rightTotal(text, gpus, cores.error.right)}: 100 is one GPU`);
  const each = splitOver(cores.value, gpus, 100);
  return each.ok ? each.value : refuse(each.error.wrong, each.error.right);
}
