// What someone on call sees: the boards, drawn on fleets of nine sizes in both themes and on a wall, how long their queries
// take on a large cluster, and the alerts of a day with a trouble for each of them and of one without. The pictures are
// left in the build output.
import { join } from 'node:path';
import { drawingReason, isClipped, isEmpty } from '../../boards/draw.ts';
import { type Drawing, drawFleet, SIZES } from '../../boards/scenes.ts';
import { badDay, TROUBLES } from '../../integration/dashboards/day/bad.ts';
import { firings } from '../../integration/dashboards/day/firings.ts';
import { quietDay } from '../../integration/dashboards/day/quiet.ts';
import { BUILD } from '../../support/native/node.ts';
import { type Bench, type BenchOptions, withTeardown } from '../bench.ts';
import type { Row } from '../row.ts';
import { queries } from './queries.ts';

const PICTURES = join(BUILD, 'boards');
const SEED = 7;

function rowsOf(drawings: readonly Drawing[]): readonly Row[] {
  const panels = drawings.flatMap((drawing) => drawing.panels);
  const full = panels.filter((panel) => !isEmpty(panel)).length;
  const all = { value: panels.length, what: 'panels drawn' };
  return [
    {
      name: 'boards.drawn',
      value: drawings.filter(({ problems }) => problems.length === 0).length,
      unit: 'pictures',
      reference: { value: drawings.length, what: 'boards, sizes and looks asked for' },
      goal: { least: drawings.length },
    },
    {
      name: 'boards.panels_with_data_ratio',
      value: full / panels.length,
      unit: 'ratio',
      reference: all,
      goal: { least: 1 },
    },
    {
      name: 'boards.clipped',
      value: panels.filter(isClipped).length,
      unit: 'panels',
      reference: all,
      goal: { most: 0 },
    },
  ];
}

async function boards({ quick, note }: BenchOptions): Promise<readonly Row[]> {
  const reason = drawingReason();
  if (reason !== undefined) {
    const row = { value: null, reference: null, skipped: reason };
    return ['drawn', 'panels_with_data_ratio', 'clipped'].map((name) => ({ ...row, name: `boards.${name}`, unit: '' }));
  }
  const drawings: Drawing[] = [];
  const sizes = quick ? SIZES.slice(0, 1) : SIZES;
  for (const size of sizes) {
    const found = await withTeardown((scope) => drawFleet(scope, { size, into: PICTURES }));
    for (const { name, wrong } of found) for (const each of wrong) note(`${name}: ${each}`);
    drawings.push(...found);
  }
  return rowsOf(drawings);
}

async function alerts(): Promise<readonly Row[]> {
  const [bad, quiet] = [await firings(badDay(SEED)), await firings(quietDay(SEED))];
  const flapped = [...bad.values()].filter((times) => times > 1).length + quiet.size;
  const troubles = { value: TROUBLES.length, what: 'alerts with a trouble in the simulated day' };
  const fired = TROUBLES.filter((name) => bad.has(name)).length;
  return [
    { name: 'alerts.fired', value: fired, unit: 'alerts', reference: troubles, goal: { least: TROUBLES.length } },
    { name: 'alerts.flapped', value: flapped, unit: 'alerts', reference: troubles, goal: { most: 0 } },
  ];
}

export const operate: Bench = {
  name: 'operate',
  what: 'boards drawn on fleets of nine sizes, the time of their queries, and alerts over a simulated day',
  isPure: true,
  run: async (_scope, options) => [
    ...(await boards(options)),
    ...(options.quick ? [] : await queries(options)),
    ...(await alerts()),
  ],
};
