// The boards as a reader sees them: the JSON that ships, drawn by Grafana's own components in a browser, on a live
// Prometheus that scrapes a small cluster at work. A picture of each, in both themes and on a wall, is left in the build output.
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { BOARDS } from '../../../dashboards/boards.ts';
import { complaints, drawingReason, LOOKS, openPen, type Shown } from '../../boards/draw.ts';
import { liveCluster } from '../../boards/live.ts';
import { testUnless } from '../../support/gate.ts';
import { BUILD } from '../../support/native/node.ts';

const testOfDrawing = testUnless(drawingReason());

const PICTURES = join(BUILD, 'boards');
const SECONDS = 60;
/** A busy machine is scraped late, and leaves some seconds without an answer: a board is drawn again for so long. */
const AGAIN_MS = 60_000;
/** In a cluster at work these have nothing to show; all others have data. */
const MAY_BE_EMPTY: readonly string[] = [
  // In steps of a minute.
  'Most compute in 24 hours',
];

testOfDrawing('each board has data, room and whole names, in both themes and on a wall', async (t) => {
  t.timeout(600_000);
  const prometheus = await liveCluster(t);
  const pen = await openPen(t);
  mkdirSync(PICTURES, { recursive: true });
  for (const board of BOARDS.keys()) {
    for (const [name, look] of Object.entries(LOOKS)) {
      let found: readonly string[] = ['not drawn'];
      const end = Date.now() + AGAIN_MS;
      for (let tries = 0; found.length > 0 && (tries === 0 || Date.now() < end); tries += 1) {
        // Grafana leaves no room for a time label at the end of a plot, and labels each fifth second.
        const to = String(Math.floor(Date.now() / 5000) * 5 - 2);
        const when = { to, tries: String(tries), seconds: String(SECONDS) };
        const asked = { board, ...look, ...when, prometheus: prometheus.url };
        const { panels, problems } = await pen.draw(asked, join(PICTURES, `${board}-${name}.png`));
        found = [...problems, ...panels.flatMap((each) => complaints(each, MAY_BE_EMPTY))];
      }
      t.deepEqual(found, [], `${board}, ${name}`);
    }
  }
});

testOfDrawing('what a reader would complain about is found', (t) => {
  const fine = {
    title: 'X',
    type: 'timeseries',
    series: 3,
    titleClipped: false,
    columnsClipped: false,
    legendClipped: [],
    cellsClipped: [],
    labelsClipped: [],
  };
  const count = (shown: Partial<Shown>) => complaints({ ...fine, plotRatio: 0.9, ...shown }).length;
  t.is(count({}), 0);
  const wrong: readonly Partial<Shown>[] = [
    ...[{ empty: 'No data' }, { titleClipped: true }, { columnsClipped: true }],
    ...[{ legendClipped: ['a'] }, { cellsClipped: ['a'] }, { labelsClipped: ['a'] }],
    ...[{ plotRatio: 0.5 }, { series: 11 }, { standIn: 'gauge' }],
  ];
  for (const each of wrong) t.is(count(each), 1, JSON.stringify(each));
});
