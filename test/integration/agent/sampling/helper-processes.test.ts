// Programs of ours that a driver does not let end: they are left behind, and nobody waits for them.
import { copyFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { askDriverLimits, getLine } from '../../../../src/agent/isolation/driver-limits/client.ts';
import { createTools } from '../../../../src/agent/os/helper-process.ts';
import { BUILD, eventually, temporaryFolder } from '../../../support/node.ts';

const TIMEOUT_MS = 300;

test('a program that hangs in the driver is left behind in time, a few of them at most, and another one runs when they have ended', async (t) => {
  const library = join(temporaryFolder(t), 'hang.so');
  copyFileSync(join(BUILD, 'tests/hang.so'), library);
  const release = () => writeFileSync(`${library}.release`, '');
  t.teardown(release);
  const tools = createTools();
  const run = () =>
    tools.run({
      program: 'cotenant-limits',
      args: ['--library', library],
      env: process.env,
      timeoutMs: TIMEOUT_MS,
      input: `${getLine({ gpuUuid: 'GPU-0', folder: '/x' })}\n`,
    });
  for (const count of [1, 2, 3]) {
    t.regex((await run())?.problem ?? '', /hangs in the driver and is left behind/);
    t.is(tools.user.held(), count);
  }
  const begunMs = performance.now();
  t.regex((await run())?.problem ?? '', /^3 before it hang in the driver/);
  t.true(performance.now() - begunMs < TIMEOUT_MS, 'none is begun');
  await t.throwsAsync(
    askDriverLimits(tools, library, [getLine({ gpuUuid: 'GPU-0', folder: '/x' })]),
    { message: /^3 before it hang/ },
    'whoever asked is told',
  );
  release();
  await eventually(() => tools.user.held() === 0 || undefined, 'they have ended');
  // The driver answers again: that it does not work.
  t.regex((await run())?.stderr ?? '', /NVML does not start \(999\)/);
});
