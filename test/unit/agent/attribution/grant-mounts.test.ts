// Containers and the grants that they mount, by texts of /proc/PID/mountinfo as proc(5) describes them.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import { createGrantMounts, parseMounts, placeOf, readMounts } from '../../../../src/agent/attribution/grant-mounts.ts';
import type { LiveGrant } from '../../../../src/agent/grants/live-grant.ts';
import type { ProcessFacts } from '../../../../src/agent/os/addon.ts';

const SELF = ['22 1 254:0 / / rw - ext4 /dev/vda rw', '30 22 254:1 /data /var/lib rw - ext4 /dev/vdb rw'].join('\n');
const [ONE, TWO] = ['aaaaaa000001', 'aaaaaa000002'];
const grants = [ONE, TWO].map((id) => ({
  folder: `/var/lib/cotenant/grants/${id}`,
  grant: { id, owner: { device: id } },
})) as unknown as readonly LiveGrant[];
const mounted = (root: string, device = '254:1') =>
  `500 499 0:50 / / rw - overlay overlay rw\n501 500 ${device} ${root} /usr/lib/cotenant/grant ro - ext4 /dev/vdb rw`;

/** Processes 1 to 9 are the machine's; each other one is in a container of its own. */
const namespaceOf = (pid: number | 'self') => (pid === 'self' || pid < 10 ? 'mnt:[1]' : `mnt:[${pid}]`);

const mountsOf = (texts: Readonly<Record<string, string>>, unreadable: readonly string[] = []) =>
  createGrantMounts({
    namespaceOf,
    registry: { list: () => grants },
    native: {
      readProcess: (pid) => ({ startTicks: pid, ended: false }) as ProcessFacts,
      isRunning: (pid) => Object.hasOwn(texts, String(pid)),
    },
    mountsOf(pid) {
      if (pid === 'self') return SELF;
      const text = texts[String(pid)];
      if (text !== undefined) return text;
      throw Object.assign(new Error('no'), { code: unreadable.includes(String(pid)) ? 'EACCES' : 'ENOENT' });
    },
    processes: () => ['self', ...Object.keys(texts), ...unreadable],
  });

test('a path is found on its file system, also below a mount', (t) => {
  const mounts = parseMounts(SELF);
  t.deepEqual(placeOf('/var/lib/cotenant', mounts), { device: '254:1', root: '/data/cotenant' });
  t.deepEqual(placeOf('/var/libx', mounts), { device: '254:0', root: '/var/libx' });
  t.is(parseMounts('1 2 0:1 /a\\040b /c rw')[0]?.root, '/a b');
});

test('a process has the grant whose folder it mounts, from the same file system only', (t) => {
  const mounts = mountsOf({
    10: mounted(`/data/cotenant/grants/${ONE}`),
    11: mounted(`/data/cotenant/grants/${TWO}/ledger`),
    12: mounted(`/data/cotenant/grants/${ONE}`, '0:99'),
    13: mounted('/data/cotenant'),
    14: mounted('/data/cotenant/grants/aaaaaa000003'),
    15: mounted(`/home/evil/grants/${ONE}`),
    16: mounted(`/data/cotenant/grants/${ONE}//deleted`),
  });
  t.deepEqual(
    [10, 11, 12, 13, 14, 15, 16, 99].map((pid) => mounts.grantOf(pid)),
    [ONE, TWO, undefined, undefined, undefined, undefined, ONE, undefined],
  );
  t.deepEqual(mounts.processesWith(ONE), [10, 16]);
});

test('a grant is held while a process has it, or while that cannot be known', (t) => {
  const texts: Record<string, string> = { 10: mounted(`/data/cotenant/grants/${ONE}`) };
  const mounts = mountsOf(texts);
  t.deepEqual([...mounts.held([ONE, TWO])], [ONE]);
  texts[20] = mounted(`/data/cotenant/grants/${ONE}`);
  delete texts[10];
  t.deepEqual([...mounts.held([ONE])], [ONE], 'another container has it now');
  delete texts[20];
  t.deepEqual([...mounts.held([ONE])], []);
  t.deepEqual([...mountsOf({}, ['30']).held([ONE, TWO])], [ONE, TWO]);
});

test('a list of mounts is read whole up to its bound, and one beyond it is an error', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'ct-mounts-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, 'mountinfo');
  for (const size of [0, 1, 4999, 5000]) {
    writeFileSync(file, 'm'.repeat(size));
    t.is(readMounts(file, 5000).length, size);
  }
  writeFileSync(file, 'm'.repeat(5001));
  t.throws(() => readMounts(file, 5000), { message: /has more than 5000 bytes$/ });
  t.true(readMounts('/proc/self/mountinfo').includes(' / '), 'of a file whose size is not known');
});

test('a grant counts as held while a process has more mounts than are read', (t) => {
  const endless = createGrantMounts({
    namespaceOf,
    registry: { list: () => grants },
    native: { readProcess: () => undefined, isRunning: () => false },
    mountsOf(pid) {
      if (pid === 'self') return SELF;
      throw Object.assign(new Error('too long'), { code: 'EFBIG' });
    },
    processes: () => ['40'],
  });
  t.deepEqual([...endless.held([ONE])], [ONE]);
  t.is(endless.grantOf(40), undefined);
});

test("the machine's own processes have no grant, though a container shared its mount", (t) => {
  const shared = mounted(`/data/cotenant/grants/${ONE}`);
  const mounts = mountsOf({ 1: shared, 7: shared, 10: shared });
  t.deepEqual(mounts.processesWith(ONE), [10]);
  t.is(mounts.grantOf(7), undefined);
  t.is(mounts.grantOf(10), ONE);
  t.deepEqual([...mountsOf({ 1: shared }).held([ONE])], []);
});

test('one pass over the processes serves any number of grants', (t) => {
  const ids = Array.from({ length: 1000 }, (_, index) => `aaaaaa${String(index).padStart(6, '0')}`);
  const list = ids.map((id) => ({ folder: `/var/lib/cotenant/grants/${id}`, grant: { id, owner: { device: id } } }));
  let reads = 0;
  const mounts = createGrantMounts({
    namespaceOf,
    registry: { list: () => list as unknown as readonly LiveGrant[] },
    native: { readProcess: (pid) => ({ startTicks: pid, ended: false }) as ProcessFacts, isRunning: () => true },
    mountsOf(pid) {
      if (pid === 'self') return SELF;
      reads += 1;
      // Every tenth process is in a container with a grant.
      return pid % 10 === 0 ? mounted(`/data/cotenant/grants/${ids[pid / 10]}`) : '500 499 0:50 / / rw - overlay o rw';
    },
    processes: () => Array.from({ length: 2000 }, (_, pid) => String(pid + 10)),
  });
  const held = mounts.held(ids);
  t.is(held.size, 200);
  t.is(reads, 2000);
  // Its holders are known now, and only the others are looked for.
  t.is(mounts.held([...held]).size, 200);
  t.is(reads, 2000);
  t.deepEqual(mounts.held(ids), held);
  t.is(reads, 4000);
});

test('a folder whose path has blanks is found as the kernel writes it', (t) => {
  const folder = `/var/lib/my state/grants/${ONE}`;
  const mounts = createGrantMounts({
    namespaceOf,
    registry: {
      list: () => [{ folder, grant: { id: ONE, owner: { device: ONE } } }] as unknown as readonly LiveGrant[],
    },
    native: { readProcess: () => undefined, isRunning: () => false },
    mountsOf: (pid) => (pid === 'self' ? SELF : mounted(`/data/my\\040state/grants/${ONE}`)),
    processes: () => ['10'],
  });
  t.is(mounts.grantOf(10), ONE);
});
