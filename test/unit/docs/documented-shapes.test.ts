// What the documentation of other systems says of their manifests, held against what the webhook makes of them. The
// answers in test/fixtures/manifests/documented-shapes.txt come from those pages alone; differences are named there.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import type { GpuShare, MemoryAmount } from '../../../src/api/request.ts';
import { parsePodRequest } from '../../../src/api/request-annotation.ts';
import { objectAt } from '../../../src/common/json.ts';
import { ROOT } from '../../support/docs.ts';
import { answerOf, configured, creation } from '../webhook/reviews.ts';
import { ALLOWED, podOf, type Row, rows } from './shapes.ts';

const lines = readFileSync(join(ROOT, 'test/fixtures/manifests/documented-shapes.txt'), 'utf8').split('\n');
const sources = new Set(lines.flatMap((line) => /^# ([\w-]+): ./.exec(line)?.[1] ?? []));
const shapes = lines
  .filter((line) => line !== '' && !line.startsWith('#'))
  .map((line) => line.split(' | ').map((cell) => cell.trim()));
const MIB = 2 ** 20;

const amountOf = (memory: MemoryAmount): string => {
  if (memory.kind === 'bytes') return `${memory.bytes / MIB} MiB`;
  if (memory.kind === 'units') return `${(memory.units * memory.unitBytes) / MIB} MiB`;
  return memory.kind === 'percent' ? `${memory.percent} %` : 'whole';
};
const memoryOf = ({ memory, memoryLimit }: GpuShare) =>
  `${amountOf(memory)}${memoryLimit ? ` (limit ${amountOf(memoryLimit)})` : ''}`;
const coresOf = ({ coresPercent }: GpuShare) => (coresPercent === undefined ? 'none' : `${coresPercent} %`);
/** Once where all GPUs have the same. */
const perGpu = (gpus: readonly GpuShare[], say: (gpu: GpuShare) => string) => [...new Set(gpus.map(say))].join(', ');

/** `none`, `refused`, or GPUs, memory and compute of each container that has some. */
function madeOf(row: Row): readonly string[] {
  const settings = { rules: { dialects: row.dialects.split(','), ...ALLOWED } };
  const answer = answerOf(creation(podOf(row)), configured(settings));
  if (answer.outcome === 'denied') return ['refused'];
  const record = parsePodRequest(objectAt(objectAt(answer.pod, 'metadata'), 'annotations')['cotenant.io/request']);
  if (!record.ok) return ['none'];
  const { containers } = record.value;
  const ofEach = (say: (gpus: readonly GpuShare[]) => string) => containers.map(({ gpus }) => say(gpus)).join(' + ');
  return [
    ofEach((gpus) => String(gpus.length)),
    ofEach((gpus) => perGpu(gpus, memoryOf)),
    ofEach((gpus) => perGpu(gpus, coresOf)),
  ];
}

test('each shape becomes what its system documents, or what is named instead', (t) => {
  t.deepEqual(
    shapes.map((cells) => cells.slice(0, 4).join(' | ')),
    rows.map(({ dialects, kind, limits, more }) => [dialects, kind, limits, more].join(' | ')),
  );
  const differences = shapes.flatMap((cells, index) => {
    const [gpus = '', memory = '', compute = '', here = '', source = ''] = cells.slice(4);
    t.true(sources.has(source), source);
    const documented = gpus === 'none' || gpus === 'refused' ? [gpus] : [gpus, memory, compute];
    const expected = here === '' ? documented : here.split(' / ');
    const made = madeOf(rows[index] as Row);
    const isSame = expected.every((text, cell) => /^-( \+ -)*$/.test(text) || made[cell] === text);
    return isSame && made.length === expected.length ? [] : [`${made.join(' / ')}: ${cells.join(' | ')}`];
  });
  t.deepEqual(differences, []);
});
