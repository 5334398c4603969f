// Reads of a process in /proc, whatever size a tenant gives its files.
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { loadNative, type ProcessFacts } from '../../../src/agent/os/addon.ts';
import { testUnless } from '../../support/gate.ts';
import { BUILD, eventually } from '../../support/native/node.ts';

const NATIVE = join(import.meta.dirname, '../../../src/agent/os/addon.ts');
const PIDFD_OPEN = 434;
const read = (pid: number): ProcessFacts => {
  const facts = loadNative().readProcess(pid);
  if (!facts) throw new Error(`process ${pid} is not there`);
  return facts;
};

/** The first process of a new PID namespace, with so many supplementary groups. */
async function inNamespace(t: ExecutionContext, groups: number): Promise<number> {
  const list = `Array.from({ length: ${groups} }, (_, index) => 100000 + index)`;
  const script = `process.setgroups(${list}); console.log('ready'); setInterval(() => {}, 1e6)`;
  const words = ['--pid', '--fork', '--kill-child', process.execPath, '-e', script];
  const child = spawn('unshare', words, { stdio: ['ignore', 'pipe', 'inherit'] });
  t.teardown(() => child.kill('SIGKILL'));
  await once(child.stdout, 'data');
  const children = `/proc/${child.pid}/task/${child.pid}/children`;
  return eventually(() => Number(execFileSync('cat', [children], { encoding: 'utf8' })) || undefined, 'it has forked');
}

/** Without pidfd_open(2), as on an older kernel, so that /proc/PID/status is read. */
function readWithoutHandles(pid: number): ProcessFacts {
  const script = `import { loadNative } from '${NATIVE}'; console.log(JSON.stringify(loadNative().readProcess(${pid})))`;
  const words = [String(PIDFD_OPEN), process.execPath, '--input-type=module', '-e', script];
  return JSON.parse(
    execFileSync(join(BUILD, 'tests/run_without_syscall'), words, { encoding: 'utf8' }),
  ) as ProcessFacts;
}

/** A process whose first thread has ended; another one waits for a line. */
async function leaderless(t: ExecutionContext): Promise<number> {
  const child = spawn(join(BUILD, 'tests/client'), ['leaderless:libc.so.6'], { stdio: ['pipe', 'ignore', 'inherit'] });
  t.teardown(() => child.kill('SIGKILL'));
  return eventually(
    () => (loadNative().readProcess(child.pid ?? 0)?.leaderless ? child.pid : undefined),
    'its first thread has ended',
  );
}

testUnless(undefined)('a process whose first thread has ended runs on in its cgroup', async (t) => {
  const pid = await leaderless(t);
  const { startTicks, ended, cgroup } = read(pid);
  t.false(ended);
  t.is(cgroup, read(process.pid).cgroup, 'as the one that started it');
  t.true(loadNative().isRunning(pid, startTicks));
  t.is(loadNative().signalExact(pid, startTicks, cgroup, 9), 'sent');
  await eventually(() => !loadNative().isRunning(pid, startTicks) || undefined, 'it ends');
});

const testAsRoot = testUnless(process.getuid?.() === 0 ? undefined : 'only root can give a process groups');
testAsRoot('the PID in its own namespace is read however many groups a process has', async (t) => {
  const own = read(process.pid);
  t.is(own.namespacePid, process.pid);
  for (const groups of [0, 400, 65_536]) {
    const pid = await inNamespace(t, groups);
    t.is(read(pid).namespacePid, 1, `${groups} groups`);
    t.not(read(pid).pidNamespace, own.pidNamespace);
    t.deepEqual(readWithoutHandles(pid), read(pid), `${groups} groups, before Linux 5.5`);
  }
});
