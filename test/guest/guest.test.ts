// Tests on real cgroup v2: checks of the agent's own code in an emulated machine that has no other version. The checks
// are in inside/checks.ts; the guest is started once, and each check is a test here.
import test from 'ava';
import { testUnless } from '../support/gate.ts';
import { guestFiles } from './files.ts';
import { CHECKS } from './inside/checks.ts';
import { parseResult, type Result } from './inside/report.ts';
import { boot } from './machine.ts';
import { guestTools } from './tools.ts';

const LIMIT_MS = 480_000;
const tools = guestTools(console.log, false);
const reason = tools.ok ? undefined : tools.reason;

const results = new Map<string, Result>();
const printed: string[] = [];
let problem: unknown;

test.before(async (t) => {
  t.timeout(LIMIT_MS + 10_000);
  if (!tools.ok) return;
  const started = performance.now();
  try {
    await boot(tools, guestFiles(tools.busybox), LIMIT_MS, (line) => {
      const result = parseResult(line);
      if (result) results.set(result.name, result);
      else printed.push(line);
    });
  } catch (error) {
    problem = error;
  }
  t.log(`${tools.versions}: ${Math.round((performance.now() - started) / 1000)} s`);
});

testUnless(reason)('the guest starts, runs its checks, and ends', (t) => {
  t.is(problem, undefined);
  t.is(results.size, CHECKS.length, printed.slice(-20).join('\n'));
});

for (const { name } of CHECKS) {
  testUnless(reason)(name, (t) => {
    const result = results.get(name);
    t.truthy(result, printed.slice(-5).join('\n'));
    t.is(result?.wrong, undefined);
    t.log(`${result?.ms} ms in the guest`);
  });
}
