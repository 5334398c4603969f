// Helper programs that hang in a driver call: they are abandoned, and the agent does not wait for them.
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { askDriverLimits, getLine } from '../../../../src/agent/isolation/driver-limits/client.ts';
import { createHelperRunner } from '../../../../src/agent/os/helper-process.ts';
import { BUILD, eventually, temporaryFolder } from '../../../support/native/node.ts';

const TIMEOUT_MS = 1000;

test('at most three programs that hang in the driver are abandoned; the next waits', async (t) => {
  const library = join(temporaryFolder(t), 'hang.so');
  copyFileSync(join(BUILD, 'tests/hanging_nvml.so'), library);
  const release = () => writeFileSync(`${library}.release`, '');
  t.teardown(release);
  const tools = createHelperRunner();
  const run = () =>
    tools.run({
      program: 'cotenant-limits',
      args: ['--library', library],
      env: process.env,
      timeoutMs: TIMEOUT_MS,
      input: `${getLine({ gpuUuid: 'GPU-0', folder: '/x' })}\n`,
    });
  for (const count of [1, 2, 3]) {
    let problem = (await run())?.problem ?? '';
    // A program that a busy machine did not let ask the driver in time does not hang there, and was ended.
    while (/^it did not end within/.test(problem)) problem = (await run())?.problem ?? '';
    t.regex(problem, /hangs in the driver and is abandoned/);
    t.is(tools.user.openCount(), count);
  }
  t.regex((await run())?.problem ?? '', /^not started: 3 helper processes hang in the driver/);
  t.is(readFileSync(`${library}.starts`).length, 3, 'none is begun');
  await t.throwsAsync(
    askDriverLimits(tools, library, [getLine({ gpuUuid: 'GPU-0', folder: '/x' })]),
    { message: /^not started: 3 helper/ },
    'the caller gets the answer',
  );
  release();
  await eventually(() => tools.user.openCount() === 0 || undefined, 'they have ended');
  // The driver answers again: that it does not work.
  t.regex((await run())?.stderr ?? '', /NVML does not start \(999\)/);
});
