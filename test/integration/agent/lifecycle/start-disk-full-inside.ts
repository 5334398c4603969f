// In a mount namespace of its own, with a disk of few files at the given folder: an agent that is killed, the disk that
// fills up, the agent after that, and a tenant that goes over then. Prints what was seen as JSON.
import { spawnSync } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { BUILD, startNode, type Teardown } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const [folder = ''] = process.argv.slice(2);
const undos: (() => void | Promise<void>)[] = [];
const t: Teardown = { teardown: (undo) => undos.unshift(undo) };
const state = join(folder, 'state');
const settings = { intervalMs: 100, urgentIntervalMs: 100, calibrate: false };

/** No file more can be made. */
function fill(): void {
  for (let at = 0; ; at += 1) {
    try {
      writeFileSync(join(folder, `filler-${at}`), '', { flag: 'wx' });
    } catch {
      return;
    }
  }
}

try {
  const node = await startNode(t, '--gpu', 't4');
  const first = await startAgent(t, node, { state, settings });
  const client = ['env', '-u', 'LD_PRELOAD', join(BUILD, 'tests/client')];
  const tenant = runTenant(t, node, first, ['--gpu-memory', '256Mi', '--name', 'one'], client);
  for (const command of ['init', 'context 0']) await tell(tenant, command);
  await first.stop('SIGKILL');
  fill();
  const mkdir = spawnSync('mkdir', [join(state, 'x')], { encoding: 'utf8' }).stderr;
  const second = await startAgent(t, node, { state, settings });
  const log = second.log.filter((line) => line.includes('stateFolder'));
  await tell(tenant, `alloc ${400 * MIB}`);
  const { code } = await tenant.ended;
  const made = existsSync(join(state, 'x'));
  process.stdout.write(JSON.stringify({ mkdir, made, log, code }));
} finally {
  for (const undo of undos) await undo();
}
