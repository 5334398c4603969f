// What being preloaded costs a program that never touches CUDA: /bin/true, from its exec to its end, in microseconds
// and in instructions. Both objects are preloaded, as into a container.
import { execFileSync, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { BUILD, type Teardown, temporaryFolder } from '../../support/native/node.ts';
import type { BenchOptions } from '../bench.ts';
import type { Row } from '../row.ts';
import { median, medianDifference } from '../statistics.ts';
import { whyNoCallgrind } from './instructions.ts';

const PROGRAM = '/bin/true';
const GOAL_US = 1000;

/** Instructions of one run, the loader's included. */
function instructionsOf(scope: Teardown, preload?: string): number {
  const out = join(temporaryFolder(scope), 'out');
  const env = { PATH: process.env.PATH ?? '', ...(preload === undefined ? {} : { LD_PRELOAD: preload }) };
  const args = ['--tool=callgrind', `--callgrind-out-file=${out}`, PROGRAM];
  const { status, stderr } = spawnSync('valgrind', args, { env, encoding: 'utf8' });
  const collected = /Collected : (\d+)/.exec(stderr)?.[1];
  if (status !== 0 || collected === undefined) throw new Error(`callgrind ended with ${status}: ${stderr}`);
  return Number(collected);
}

export function measureStarts(scope: Teardown, { quick, note }: BenchOptions): Row[] {
  note('interposer: exec');
  const objects = ['libcotenant.so', 'libcotenant-nvml.so'].map((name) => join(BUILD, name));
  const preload = objects.join(' ');
  const rounds = quick ? 300 : 3000;
  const output = execFileSync(join(BUILD, 'bench/starts'), [String(rounds), PROGRAM, preload], { encoding: 'utf8' });
  const samples = output
    .trim()
    .split('\n')
    .map((line) => line.split(' ').map(Number));
  const [plain, again, preloaded] = [0, 1, 2].map((column) => samples.map((line) => line[column] ?? Number.NaN));
  if (!plain || !again || !preloaded) throw new Error('no samples');
  const reference = {
    value: median(plain),
    what: `${PROGRAM} from before its exec to after its end, nothing preloaded`,
  };
  const skipped = whyNoCallgrind();
  const instructions = { name: 'interposer.exec.added_instructions', unit: 'instructions' };
  const plainly = skipped === undefined ? instructionsOf(scope) : 0;
  return [
    {
      name: 'interposer.exec.added_us',
      value: medianDifference(preloaded, plain),
      unit: 'us',
      reference,
      goal: { most: GOAL_US },
    },
    {
      name: 'interposer.exec.noise_us',
      value: Math.abs(medianDifference(again, plain)),
      unit: 'us',
      reference: { ...reference, what: 'the same, measured twice: what the machine adds by itself' },
    },
    skipped === undefined
      ? {
          ...instructions,
          value: instructionsOf(scope, preload) - plainly,
          reference: { value: plainly, what: `${PROGRAM}, the loader's work included, nothing preloaded` },
        }
      : { ...instructions, value: null, reference: null, skipped },
  ];
}
