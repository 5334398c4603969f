// The boards on fleets of several sizes, each as a link from the board above it leads there. One picture of each, in both
// themes and on a wall: test/bench/operate draws them all.
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { BOARDS } from '../../dashboards/boards.ts';
import type { Teardown } from '../support/native/node.ts';
import { complaints, type Found, LOOKS, openPen } from './draw.ts';
import type { FleetSize } from './fleet.ts';
import { type Recorded, recordedFleet } from './recorded.ts';

export const SIZES: readonly FleetSize[] = [1, 3, 8].flatMap((gpus) =>
  [5, 50, 400].map((tenants) => ({ gpus, tenants })),
);

/** What a click on a name on the board above chooses. */
async function chosen(
  board: string,
  { prometheus, toSeconds, nodes }: Recorded,
): Promise<Readonly<Record<string, string>>> {
  if (board === 'node-gpu') return { 'var-instance': nodes[0] ?? '' };
  if (board !== 'namespace' && board !== 'container') return {};
  const [waiting] = await prometheus.query(
    'topk(1, rate(cotenant_container_sm_throttled_seconds_total[4m]))',
    toSeconds,
  );
  const names = board === 'container' ? ['namespace', 'pod', 'container'] : ['namespace'];
  return Object.fromEntries(names.map((name) => [`var-${name}`, waiting?.metric[name] ?? '']));
}

export type Drawing = Found & { readonly name: string; readonly wrong: readonly string[] };

/** Draws the boards of a fleet into a folder; `small`: what is seen first, at half of its size. */
export async function drawFleet(
  t: Teardown,
  { size, into, small = false }: { readonly size: FleetSize; readonly into: string; readonly small?: boolean },
): Promise<readonly Drawing[]> {
  const recorded = await recordedFleet(t, size);
  const pen = await openPen(t);
  mkdirSync(into, { recursive: true });
  const drawings: Drawing[] = [];
  for (const board of BOARDS.keys()) {
    for (const [name, look] of Object.entries(LOOKS).filter(([name]) => !small || name === 'light')) {
      const when = { seconds: '3600', step: '60', to: String(recorded.toSeconds) };
      const asked = {
        board,
        ...look,
        prometheus: recorded.prometheus.url,
        ...when,
        ...(await chosen(board, recorded)),
      };
      const file = small ? board : `${board}-${size.gpus}-gpus-${size.tenants}-tenants-${name}`;
      const found = await pen.draw(asked, join(into, `${file}.png`), small);
      const wrong = [...found.problems, ...found.panels.flatMap((each) => complaints(each))];
      drawings.push({ ...found, name: file, wrong });
    }
  }
  return drawings;
}
