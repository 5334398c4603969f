// Who is there inside a PID namespace, without looking through /proc at a tenant's bidding.
import test from 'ava';
import { insideSnapshot } from '../../../../src/agent/attribution/pid-namespaces.ts';
import type { ProcessFacts } from '../../../../src/agent/os/addon.ts';

const INSIDE = 4026532000;

/** A /proc of these processes by their pid, and this one; looking through all of it takes 100 ms, looking at one
 * nothing. */
function machine(present: Record<number, Partial<ProcessFacts>>) {
  const processes = new Map<number, Partial<ProcessFacts>>([
    [process.pid, { startTicks: 1, pidNamespace: 1, namespacePid: process.pid }],
    ...Object.entries(present).map(([pid, facts]): [number, Partial<ProcessFacts>] => [Number(pid), facts]),
  ]);
  const counts = { looks: 0, reads: 0 };
  const clock = { ms: 1_000_000 };
  const readProcess = (pid: number): ProcessFacts | undefined => {
    counts.reads += 1;
    const facts = processes.get(pid);
    return (
      facts && {
        startTicks: 0,
        parent: 1,
        ended: false,
        leaderless: false,
        command: '',
        cgroup: '',
        pidNamespace: INSIDE,
        ...facts,
      }
    );
  };
  const isThere = insideSnapshot({ readProcess }, { ticks: () => clock.ms / 10, nowMs: () => clock.ms }, () => {
    counts.looks += 1;
    clock.ms += 100;
    return ['self', 'cpuinfo', ...[...processes.keys()].map(String)];
  });
  return { processes, counts, clock, isThere: (pid: number, ticks: number) => isThere(INSIDE, pid, ticks) };
}

test('a process is found under its PID, start time and namespace until it ends', (t) => {
  const { processes, isThere } = machine({ 70: { namespacePid: 7, startTicks: 500 } });
  t.true(isThere(7, 500));
  t.false(isThere(8, 500));
  t.false(isThere(7, 501));
  t.true(isThere(7, 499), 'a process in a time namespace may write its start time a tick too early');
  t.false(isThere(7, 498));
  processes.set(70, { namespacePid: 7, startTicks: 500, ended: true });
  t.false(isThere(7, 500));
  processes.set(70, { namespacePid: 7, startTicks: 900 });
  t.false(isThere(7, 500), 'its pid is of another process now');
});

test('an unreadable inner PID matches any process with the same start time', (t) => {
  const { isThere } = machine({ 70: { startTicks: 500 } });
  t.true(isThere(7, 500));
  t.false(isThere(7, 501));
});

test('processes that ended, and those that never were, cost no second look through all', (t) => {
  const { processes, counts, isThere } = machine({ 70: { namespacePid: 7, startTicks: 500 } });
  t.true(isThere(7, 500));
  processes.delete(70);
  for (let pid = 1; pid < 2000; pid += 1) t.false(isThere(pid, 500));
  t.deepEqual(counts, { looks: 1, reads: 4 });
});

test('processes younger than the last scan are searched for a twentieth of the time', (t) => {
  const { processes, counts, clock, isThere } = machine({});
  t.false(isThere(7, 500));
  const now = () => clock.ms / 10;
  processes.set(70, { namespacePid: 7, startTicks: now() });
  t.true(isThere(7, now()), 'not looked for yet, so not said to be gone');
  t.true(isThere(8, now()), 'nor is one who never was');
  t.is(counts.looks, 1);
  const young = now();
  clock.ms += 2000;
  t.false(isThere(8, young));
  t.true(isThere(7, young));
  const until = clock.ms + 60_000;
  while (clock.ms < until) {
    isThere(9, now());
    clock.ms += 100;
  }
  t.true(counts.looks <= 2 + 60_000 / 2000, `${counts.looks} looks in a minute`);
});

test('a scan that cannot read its own process reports no process', (t) => {
  const { processes, clock, isThere } = machine({ 70: { namespacePid: 7, startTicks: 500 } });
  const own = processes.get(process.pid);
  processes.clear();
  t.true(isThere(7, 500));
  clock.ms += 2000;
  processes.set(process.pid, own ?? {});
  t.false(isThere(7, 500));
});
