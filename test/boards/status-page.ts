// `node test/boards/status-page.ts`: takes the picture of the status page in docs/operate/agent.md anew: of the
// demonstration's node, while a tenant that the agent has stopped before exceeds its grant again.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { withTeardown } from '../bench/bench.ts';
import { eventually } from '../support/native/node.ts';
import { openPage } from '../support/services/browser.ts';

const MAIN = join(import.meta.dirname, '../../src/cli/main.ts');
const PICTURE = join(import.meta.dirname, '../../docs/operate/boards/status-page.png');
const PORT = 19_837;
const [WIDTH, HEIGHT] = [1280, 760];
const PATIENCE_MS = 180_000;

await withTeardown(async (scope) => {
  const words = [MAIN, 'demo', '--plain', '--port', String(PORT), '--webhook-port', '0'];
  const demo: ChildProcess = spawn(process.execPath, words, { stdio: 'ignore', detached: true });
  const ended = once(demo, 'exit');
  scope.teardown(async () => {
    process.kill(-(demo.pid ?? 0), 'SIGINT');
    await ended;
  });
  const url = `http://127.0.0.1:${PORT}/`;
  const isThere = async () => (await fetch(url).catch(() => undefined))?.ok || undefined;
  await eventually(isThere, 'the status page', PATIENCE_MS);
  const page = await openPage(scope, url);
  await page.resize(WIDTH, HEIGHT);
  const shows = (expression: string) => async () => (await page.evaluate(expression)) === true || undefined;
  const isWell = "document.querySelector('#well')?.textContent === 'all well'";
  await eventually(
    shows(`/kill/.test(document.querySelector('#actions')?.textContent) && ${isWell}`),
    'a stop',
    PATIENCE_MS,
  );
  await eventually(
    shows("/over its memory grant/.test(document.querySelector('#well')?.textContent)"),
    'the next problem',
    PATIENCE_MS,
  );
  writeFileSync(PICTURE, await page.picture({ width: WIDTH, height: HEIGHT, scale: 0.6 }));
});
