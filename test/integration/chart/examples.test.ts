// The example values: helm renders the chart with each of them.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { objectsOf, root, testWithHelm } from './chart.ts';

const FOLDER = join(root, 'examples/helm');

for (const name of readdirSync(FOLDER)) {
  testWithHelm(`helm renders the chart with examples/helm/${name}`, (t) => {
    const objects = objectsOf(t, {}, '--values', join(FOLDER, name));
    t.true(objects.some((object) => String(object.kind) === 'DaemonSet'));
  });
}
