// Go and Rust programs that load the driver themselves: without Cotenant they fill the GPU, with a grant the grant. A
// preload does not reach a Go program with a static libc; the agent detects it.
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { describeWatch, isWithin, startWatch, stopping } from '../support/machine/scheduling-delays.ts';
import { OUT_OF_MEMORY } from '../support/native/client.ts';
import { BUILD, startNode } from '../support/native/node.ts';
import { runTenant, startAgent } from '../support/product/agent.ts';
import { MIB } from '../support/product/grant.ts';
import { type Built, built } from './build.ts';
import { checksums, startHolder, surroundings, WAYS } from './client.ts';

const BLOCK = 64 * MIB;
const SLICE = 1024 * MIB;
const GPU = 'l4,memory=6Gi';
const WITHIN_MS = 5000;
const before = checksums([join(BUILD, 'simulated')]);

const goFlags = { GOFLAGS: '-mod=readonly', GOTOOLCHAIN: 'local' };
const purego = built({
  source: 'purego',
  version: ['go', 'version'],
  steps: (out) => [{ command: ['go', 'build', '-o', join(out, 'purego'), '.'], env: { ...goFlags, CGO_ENABLED: '0' } }],
});
const cgo = built({
  source: 'cgo',
  version: ['go', 'version'],
  steps: (out) => [{ command: ['go', 'build', '-o', join(out, 'cgo'), '.'], env: { ...goFlags, CGO_ENABLED: '1' } }],
});
const libcInside = built({
  source: 'static',
  version: ['go', 'version'],
  steps: (out) => {
    const linked = ['-ldflags', '-linkmode external -extldflags "-static"'];
    return [
      { command: ['go', 'build', ...linked, '-o', join(out, 'static'), '.'], env: { ...goFlags, CGO_ENABLED: '1' } },
    ];
  },
});
const rust = built({
  source: 'rust',
  version: ['cargo', '--version'],
  steps: (out) => [
    { command: ['cargo', 'build', '--quiet', '--release', '--locked'], env: { CARGO_TARGET_DIR: 'target' } },
    { command: ['cp', 'target/release/bare', 'target/release/cudarc', out] },
  ],
});

/** Skips the test with the reason if the program cannot be built. */
function withProgram(
  title: string,
  program: Built,
  implementation: (t: ExecutionContext, folder: string) => Promise<void>,
): void {
  if (program.ok) test.serial(title, (t) => implementation(t, program.folder));
  else test.serial.skip(`${title} (${program.reason})`, () => {});
}

const CLIENTS: readonly [string, Built, string][] = [
  ['pure Go', purego, 'purego'],
  ['cgo', cgo, 'cgo'],
  ['Rust dlopen', rust, 'bare'],
  ['Rust cudarc', rust, 'cudarc'],
];
for (const [client, program, name] of CLIENTS) {
  withProgram(`a ${client} program fills the GPU alone, its grant in both forms`, program, async (t, folder) => {
    const node = await startNode(t, '--gpu', GPU, '--gpu', GPU);
    const contextBytes = node.usage().gpus[0]?.contextBytes ?? 0;
    for (const way of WAYS) {
      const available = way === 'direct' ? node.usable(0) : SLICE;
      const blocks = Math.floor((available - contextBytes) / BLOCK);
      const holder = await startHolder(t, [join(folder, name)], surroundings(t, node, way, SLICE));
      const { filled } = holder;
      t.is(filled.total, available, `${way}: total`);
      t.is(filled.free, available - contextBytes, `${way}: free`);
      t.is(filled.idle, filled.free, `${way}: what it gave back is free again`);
      t.deepEqual([filled.blocks, filled.refusal, filled.again], [blocks, OUT_OF_MEMORY, 0], way);
      t.is(filled.full, available - contextBytes - blocks * BLOCK, `${way}: free at the end`);
      const held = node.usage().clients.find(({ pid }) => pid === holder.pid)?.gpus[0];
      t.is(held?.bytes, contextBytes + blocks * BLOCK, `${way}: the driver's own count`);
      t.true((held?.peak ?? Infinity) <= available, `${way}: never more than granted`);
      t.is(await holder.end(), 0, way);
    }
  });
}

withProgram(
  'a Go program with a static libc escapes the preload; the agent stops it',
  libcInside,
  async (t, folder) => {
    const node = await startNode(t, '--gpu', GPU);
    const agent = await startAgent(t, node);
    await agent.measured(1);
    const flags = ['--gpu-memory', '1Gi', '--name', 'static'];
    const rogue = runTenant(t, node, agent, flags, [join(folder, 'static')]);
    const filled = JSON.parse(await rogue.line()) as { blocks: number; total: number };
    t.is(filled.total, node.usable(0), 'it sees the GPU');
    t.true(filled.blocks * BLOCK > SLICE, 'nothing refused it');
    const over = startWatch(stopping(agent.child, node.child));
    t.is((await rogue.ended).code, 137);
    const taken = over();
    t.true(isWithin(WITHIN_MS, taken), `stopped ${describeWatch(taken)}`);
    t.deepEqual(
      agent.audit().map(({ action, pod, reason }) => `${action} ${pod} ${reason}`),
      ['warn static bypass', 'kill static bypass'],
    );
    t.true(agent.audit().every(({ usedBytes }) => usedBytes > SLICE));
  },
);

test.serial('the driver libraries are unchanged after the tests', (t) => {
  t.true(Object.keys(before).length >= 6);
  t.deepEqual(checksums([join(BUILD, 'simulated')]), before);
});
